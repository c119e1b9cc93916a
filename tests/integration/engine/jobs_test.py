"""Three real llama.cpp jobs by two users where two have room: through the queue, and as a free-for-all.

What is judged is who runs when and where; how fast it was is printed, in one table, and never judged.
"""

import grp
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import engine
from engine import CLEAN, EngineCase, numbers
from harness import Case, eventually
from messages_test import NOBODY

MODEL = ('--layers', '2', '--width', '2048', '--ffn', '8192')  # 140 MB; few steps a token: it ends on any machine
TOKENS = '16'
# What is started at once; the first user has two.
JOBS = (('root', ()), ('root', ()), ('nobody', NOBODY))


def boot_usec():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Jobs(EngineCase):
    def setUp(self):
        super(EngineCase, self).setUp()
        config = pathlib.Path(self.runtime_dir) / 'site.yaml'
        config.write_text(f'group: {grp.getgrgid(65534).gr_name}\n')
        self.daemon = self.start_daemon('--config', config)
        self.cores = len(self.json('topology')['cores'])
        self.each = self.cores // 2
        if not 2 * self.each <= self.cores < 3 * self.each:
            self.skipTest(f'of {self.cores} cores there is no share that just two can have')
        # Where both users can reach them: the build folder may be in /root.
        self.programs = pathlib.Path(Case.scratch) / 'engine'
        shutil.copytree(engine.ENGINE / 'bin', self.programs, dirs_exist_ok=True)
        self.model = self.programs / 'jobs.gguf'
        make = pathlib.Path(__file__).resolve().parents[2] / 'workload/mkgguf.py'
        subprocess.run([sys.executable, make, self.model, *MODEL], check=True, timeout=60, stdout=subprocess.DEVNULL)

    def engine_words(self):
        return [self.programs / 'llama-cli', '-m', self.model, '-n', TOKENS]

    def end_of(self, process):
        """Waits for an engine; its own account, with when it was over."""
        status = process.wait(240)
        self.assertEqual(status, 0, process.err)
        return json.loads(process.lines[-1])

    def free_for_all(self):
        begun = time.monotonic()
        processes = [self.start([*prefix, *self.engine_words()], env=CLEAN) for _, prefix in JOBS]
        said = [self.end_of(process) for process in processes]
        return time.monotonic() - begun, said, [0] * len(JOBS)

    def through_the_queue(self):
        # The machine is the second user's until all three wait: who is served first is then for the queue to say.
        holder = self.start([*NOBODY, *self.words('run', '--cores', self.cores, '--', 'sh', '-c',
                                                  'echo up; exec sleep 1000')])
        holder.expect('up')
        processes = []
        for _, prefix in JOBS:
            processes.append(self.start([*prefix, *self.words('run', '--cores', self.each, '--wait=forever', '--',
                                                              *self.engine_words())], env=CLEAN))
            eventually(lambda: len(self.leases('queued')) == len(processes), what=lambda: processes[-1].err)
        begun, since = time.monotonic(), boot_usec()
        holder.kill()
        said = [self.end_of(process) for process in processes]
        makespan = time.monotonic() - begun
        eventually(lambda: self.leases() == [], what='the end of all')
        leases = [self.json('show', f'c{number}') for number in (2, 3, 4)]
        self.judge(leases, said)
        return makespan, said, [(lease['started']['boot'] - since) / 1e6 for lease in leases]

    def judge(self, leases, said):
        for lease, own in zip(leases, said, strict=True):
            self.assertEqual(numbers(own['cpus_allowed']), numbers(lease['placement']['cpus']), 'where it ran')
            self.assertEqual(own['threads'], lease['placement']['threads'])
            for other in leases:
                together = (other is not lease and lease['started']['boot'] < other['ended']['boot']
                            and other['started']['boot'] < lease['ended']['boot'])
                if together:
                    self.assertEqual(numbers(lease['placement']['cpus']) & numbers(other['placement']['cpus']), set(),
                                     'a CPU in two leases at once')
        first, second, others = (lease['started']['boot'] for lease in leases)
        self.assertLess(others, second, "the second user's job is before the first user's second")
        self.assertGreaterEqual(second, min(leases[0]['ended']['boot'], leases[2]['ended']['boot']),
                                'the third starts when one of the two has ended')
        self.assertLess(first, second)
        history = {entry['id']: entry for entry in self.json('history')}
        for lease, (user, _) in zip(leases, JOBS, strict=True):
            entry = history[lease['id']]
            self.assertEqual(entry['uid'], 0 if user == 'root' else 65534)
            self.assertEqual(entry['waited_usec'], lease['started']['boot'] - lease['queued']['boot'])
            self.assertGreater(entry['waited_usec'], 0)
            self.assertIn('llama-cli', entry['command'])
        self.assertEqual(len(history), len(JOBS) + 1)

    def test_three_jobs_by_two_users(self):
        rows = []
        for name, run in (('free-for-all', self.free_for_all), ('queue', self.through_the_queue)):
            makespan, said, waits = run()
            total = sum(own['tokens'] for own in said) / makespan
            rows.append((name, f'{makespan:.1f}', f'{total:.1f}',
                         *(f'{own["tokens_per_second"]:.1f} ({own["threads"]} thr, wait {wait:.1f} s)'
                           for own, wait in zip(said, waits, strict=True))))
        users = (f'job {at} of {user}: tokens/s' for at, (user, _) in enumerate(JOBS, 1))
        heads = ('', 'makespan s', 'tokens/s', *users)
        for row in (heads, *rows):
            print(f'{row[0]:<14}{row[1]:>11}{row[2]:>10}  ' + '  '.join(f'{cell:<30}' for cell in row[3:]).rstrip(),
                  file=sys.stderr)


if __name__ == '__main__':
    engine.main()
