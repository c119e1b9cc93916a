"""A lease with a real llama.cpp in it, looked at from outside for as long as it runs."""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'kernel'))

import harness  # noqa: E402
from harness import Case  # noqa: E402

PROC = pathlib.Path('/proc')
ENGINE = None  # the folder that the `fetch` beside this file fills; set by main()

# The engine itself takes these; a user's own environment must not decide a test.
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(('LLAMA_', 'GGML_', 'GLIBC_TUNABLES', 'OMP_', 'NUMA_LEASE'))}


def program(name):
    return ENGINE / 'bin' / name


def model(size='tiny'):
    return ENGINE / f'{size}.gguf'


def numbers(text):
    """{0, 1, 2, 7} of '0-2,7'."""
    found = set()
    for part in text.strip().split(','):
        first, _, last = part.partition('-')
        found |= set(range(int(first), int(last or first) + 1))
    return found


def words_of(path):
    """'\\0'-separated words of /proc/PID/cmdline or environ."""
    return path.read_bytes().decode(errors='replace').split('\0')[:-1]


def environment_of(pid):
    return dict(word.partition('=')[::2] for word in words_of(PROC / str(pid) / 'environ'))


def descendants(pid):
    found = [pid]
    for one in found:
        found += harness.children_of(one)
    return found


class Watch:
    """Looks at a process, or the engine below it, again and again until it ends.

    `threads` is the highest number of entries seen in /proc/PID/task, `cpus` every CPU that any of them was allowed.
    """

    def __init__(self, process):
        self.process = process
        self.pid = None
        self.threads = 0
        self.cpus = set()
        self.samples = 0
        self.command = []
        self.environment = {}
        self.huge_kb = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self):
        self._thread.join(harness.PATIENCE)

    def _find(self):
        for pid in descendants(self.process.pid):
            with contextlib.suppress(OSError):
                if (PROC / str(pid) / 'exe').resolve().parent == ENGINE / 'bin':
                    self.command = words_of(PROC / str(pid) / 'cmdline')
                    self.environment = environment_of(pid)
                    # In the middle of exec the program is the new one, and its words are not there yet.
                    self.pid = pid if self.command and self.environment else None
                    return

    def _look(self):
        done = threading.Event()
        while self.process.popen.poll() is None and not done.wait(0.005):
            with contextlib.suppress(OSError):  # it has just ended
                if self.pid is None:
                    self._find()
                else:
                    self._sample(PROC / str(self.pid))

    def _sample(self, process):
        tasks = list((process / 'task').iterdir())
        self.threads = max(self.threads, len(tasks))
        for task in tasks:
            with contextlib.suppress(OSError):  # a thread that has just ended
                status = (task / 'status').read_text()
                self.cpus |= numbers(status.split('Cpus_allowed_list:')[1].split('\n')[0])
        rollup = (process / 'smaps_rollup').read_text()
        self.huge_kb = max(self.huge_kb, int(rollup.split('Private_Hugetlb:')[1].split()[0]))
        self.samples += 1


class Outcome:
    """What one run of the engine in a lease of its own showed."""

    def __init__(self, process, watch):
        watch.end()
        self.watch = watch
        self.status = process.popen.returncode
        self.err = process.err
        self.lines = process.lines
        self.ours = [line.removeprefix('numa-leasectl: ') for line in self.err.splitlines()
                     if line.startswith('numa-leasectl: ')]

    @property
    def said(self):
        """The engine's own account: one line of JSON."""
        return json.loads(self.lines[-1])

    def warnings(self):
        """Lines of ours about what the user typed."""
        return [line for line in self.ours
                if any(text in line for text in ('asks for', 'size itself', '--numa', 'drops the variables'))
                and not line.startswith(('llama.cpp: ', 'generic: '))]


class EngineCase(Case):
    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()

    def start_in_lease(self, command, options=('--cores', '1'), env=()):
        return self.start(self.words('run', *options, '--', *command), env={**CLEAN, **dict(env)})

    def generate(self, *arguments, size='tiny', options=('--cores', '1'), env=(), wrapper=()):
        """Runs the engine in a lease to its end."""
        # Few tokens, because two threads that spin on one core need seconds for each.
        command = [*wrapper, program('llama-cli'), '-m', model(size), '--front-hold', '0.5', '-n', '2', *arguments]
        process = self.start_in_lease(command, options, env)
        watch = Watch(process)
        process.wait(60)
        outcome = Outcome(process, watch)
        self.assertEqual(outcome.status, 0, outcome.err)
        return outcome

    def assert_inside(self, outcome):
        """Every thread stayed on the lease's CPUs whenever it was looked at."""
        lease = numbers(outcome.watch.environment['NUMA_LEASE_CPUS'])
        self.assertGreater(outcome.watch.samples, 5)
        self.assertLessEqual(outcome.watch.cpus, lease)

    def assert_threads(self, outcome, computing):
        """So many threads compute; two more are llama.cpp's log and, in place of one worker, its main thread."""
        self.assertEqual(outcome.said['threads'], computing, outcome.err)
        self.assertEqual(outcome.said['process_threads'], computing + 1, 'as it counted itself while generating')
        self.assertEqual(outcome.watch.threads, computing + 1, 'in /proc/PID/task')


def main():
    global ENGINE
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument('--engine', required=True, type=pathlib.Path)
    ours, rest = parser.parse_known_args()
    ENGINE = ours.engine.resolve()
    sys.argv[1:] = rest
    harness.main()
