"""`where` beside the kernel's own sums and numastat, on real processes of this machine."""

import os
import pathlib
import shutil
import subprocess
import sys

import harness
from harness import Case, eventually

MIB = 1 << 20
# Holds `private` MiB in one mapping of its own, `shared` MiB of shared memory, and every page of a file, and says so.
HOLD = '''
import mmap, sys, time
private, shared, name = int(sys.argv[1]) << 20, int(sys.argv[2]) << 20, sys.argv[3]
kept = [mmap.mmap(-1, private, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)]
if shared:
    kept.append(mmap.mmap(-1, shared))
for it in kept:
    for at in range(0, len(it), mmap.PAGESIZE):
        it[at] = 1
if name:
    with open(name, 'rb') as file:
        kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    sum(kept[-1][at] for at in range(0, len(kept[-1]), mmap.PAGESIZE))
print('up', flush=True)
time.sleep(1000)
'''
PYTHON = [os.path.realpath(sys.executable), '-I', '-S', '-c', HOLD]  # not a wrapper of it


def kib(text):
    """'Rss:  12 kB' lines → bytes by name."""
    pairs = (line.split(':', 1) for line in text.splitlines() if line.endswith(' kB'))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


class Where(Case):
    def setUp(self):
        super().setUp()
        self.file = pathlib.Path(self.runtime_dir) / 'a model=1.gguf'
        self.file.write_bytes(os.urandom(MIB) * 80)

    def hold(self, private=160, shared=72, file=None, words=PYTHON):
        process = self.start([*words, private, shared, self.file if file is None else file])
        process.expect('up')
        return process

    def assert_near(self, got, wanted, tolerance):
        self.assertLessEqual(abs(got - wanted), tolerance, f'{got} is not {wanted}')

    def assert_verdict(self, got, fine, *texts):
        lines = [it['text'] for it in got['verdict'] if it['fine'] is fine]
        self.assertTrue(any(all(text in line for text in texts) for line in lines), got['verdict'])


class Process(Where):
    """Without any daemon."""

    def test_sums_are_the_kernels_own(self):
        pid = self.hold().pid
        got = self.json('where', '--exact', pid)
        rollup = kib(pathlib.Path(f'/proc/{pid}/smaps_rollup').read_text())
        all_ = got['all']
        # smaps counts the kernel's own pages, too: vdso and its data.
        self.assert_near(all_['total'], rollup['Rss'], 16 * 4096)
        self.assertEqual(all_['anonymous'], rollup['Anonymous'])
        self.assertEqual(all_['shared'], 72 * MIB)
        self.assertEqual(got['transparent_huge'], rollup['AnonHugePages'])
        self.assertEqual(sum(it['total'] for it in got['nodes']), all_['total'])
        self.assertEqual((got['sampled'], got['threads']), (0, 1))

    def test_also_those_of_numastat(self):
        pid = self.hold().pid
        total = subprocess.run(['numastat', '-p', str(pid)], capture_output=True, text=True, check=True).stdout
        last = total.strip().splitlines()[-1].split()
        self.assertEqual(last[0], 'Total')
        self.assert_near(self.json('where', pid)['all']['total'], float(last[-1]) * MIB, 0.01 * MIB)

    def test_names_what_is_large(self):
        got = self.json('where', self.hold().pid)
        self.assertEqual([it['kind'] for it in got['mappings']], ['anonymous', 'shared'])
        # The kernel may have merged a neighbour into the first.
        self.assert_near(got['mappings'][0]['bytes'], 160 * MIB, 2 * MIB)
        self.assertEqual(got['mappings'][1]['bytes'], 72 * MIB)
        self.assertEqual([(it['file'], it['bytes']) for it in got['files']], [(str(self.file), 80 * MIB)])
        self.assert_verdict(got, True, f'the model {self.file} is file-mapped: 80M')

    def test_a_sample_comes_to_the_same(self):
        pid = self.hold().pid
        exact, sampled = self.json('where', pid), self.json('where', '--sample', pid)
        self.assertGreater(sampled['sampled'], 60000)
        self.assertLessEqual(sampled['sampled'], 65536)
        for kind in ('anonymous', 'shared', 'file'):
            self.assert_near(sampled['all'][kind], exact['all'][kind], exact['all'][kind] // 50)
        for one, other in zip(exact['mappings'] + exact['files'], sampled['mappings'] + sampled['files'], strict=True):
            self.assertEqual(one['kind'], other['kind'])
            self.assert_near(other['bytes'], one['bytes'], one['bytes'] // 50)
        self.assertIn('sampled: ', self.ctl('where', '--sample', pid).stdout)

    def test_a_sample_of_a_mapping_with_holes_is_near(self):
        half = HOLD.replace('for at in range(0, len(it), mmap.PAGESIZE)',
                            'for at in range(0, len(it), 2 * mmap.PAGESIZE)')
        process = self.hold(1024, 0, words=[*PYTHON[:-1], half])
        exact, sampled = self.json('where', process.pid), self.json('where', '--sample', process.pid)
        self.assertGreater(exact['mappings'][0]['bytes'], 500 * MIB)
        self.assert_near(sampled['mappings'][0]['bytes'], exact['mappings'][0]['bytes'], 10 * MIB)

    def test_one_node_can_have_nothing_elsewhere(self):
        if pathlib.Path('/sys/devices/system/node/has_memory').read_text().strip() != '0':
            self.skipTest('this machine has more than one node')
        text = self.ctl('where', self.hold().pid).stdout
        self.assertIn('\nok: one node: nothing can be elsewhere\n', text)
        self.assertIn('in no lease; it may use node 0\n', text)

    def test_an_engine_that_did_not_map_its_model(self):
        process = self.start(['bash', '-c', 'exec -a llama-server "$@"', 'sh', PYTHON[0], '-I', '-S', '-c', HOLD, 80, 0, '',
                              '-m', self.file])
        process.expect('up')
        self.assert_verdict(self.json('where', process.pid), True, f'the model {self.file} is not file-mapped')

    def test_a_file_name_of_another_line(self):
        name = pathlib.Path(self.runtime_dir) / 'x N1=9\n7f0000000000 default anon=9 N1=9 kernelpagesize_kB=4'
        shutil.copy(self.file, name)
        got = self.json('where', self.hold(8, 0, name).pid)
        self.assertEqual([it['node'] for it in got['nodes']], [0])
        self.assertEqual([it['file'] for it in got['files']], [str(name)])

    def test_many_mappings(self):
        many = 'import mmap, time\nkept = []\nfor i in range(20000):\n' \
               '    kept.append(mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,\n' \
               '                          prot=mmap.PROT_READ | (mmap.PROT_WRITE if i % 2 else 0)))\n' \
               '    if i % 2: kept[-1][0] = 1\nprint("up", flush=True)\ntime.sleep(1000)'
        process = self.start([*PYTHON[:-1], many])
        process.expect('up')
        rollup = kib(pathlib.Path(f'/proc/{process.pid}/smaps_rollup').read_text())
        self.assertEqual(self.json('where', process.pid)['all']['anonymous'], rollup['Anonymous'])
        self.assert_near(self.json('where', '--sample', process.pid)['all']['anonymous'], rollup['Anonymous'], 65536)


class Refused(Where):
    def as_nobody(self, *words):
        return self.ctl(*words, prefix=['setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups', '--'])

    def test_another_users_process_needs_root(self):
        pid = self.hold(8, 0).pid
        for option in ('--exact', '--sample'):
            self.assert_failure(self.as_nobody('where', option, pid), 77, f'process {pid}', "root's", 'needs root')

    def test_ones_own_does_not(self):
        process = self.hold(96, 0, words=['setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups', '--', *PYTHON])
        for option in ('--exact', '--sample'):
            done = self.as_nobody('where', '--json', option, process.pid)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_is_not_there(self):
        self.assert_failure(self.ctl('where', 1 << 22), 64, f'no process {1 << 22}')
        self.assert_failure(self.ctl('where', 'nobody'), 64, "no lease 'nobody'")
        self.assert_failure(self.ctl('where'), 64, 'PID|LEASE')
        self.assert_failure(self.ctl('where', '--exact', '--sample', 1), 64, '--exact')

    def test_a_process_that_has_ended_and_was_not_waited_for(self):
        child = os.fork()
        if child == 0:
            os._exit(0)
        self.addCleanup(os.waitpid, child, 0)
        eventually(lambda: not harness.alive(child))
        for option in ('--exact', '--sample'):
            done = self.ctl('where', option, child)
            # What a process without memory looks like differs between kernels.
            self.assertIn(done.returncode, (0, 125), done.stderr)
            self.assertIn('no memory', done.stdout + done.stderr)


class Lease(Where):
    def setUp(self):
        super().setUp()
        self.start_daemon()

    def lease(self, *words, options=()):
        process = self.start(self.words('run', '--quiet', '--share', *options, '--', *words))
        process.expect('up')
        return process

    def test_a_process_is_found_in_its_lease_whatever_it_says_itself(self):
        self.lease(*PYTHON, 8, 0, self.file)
        process = self.lease('env', 'NUMA_LEASE_ID=c1', 'NUMA_LEASE_NODES=7', *PYTHON, 8, 0, self.file)
        got = self.json('where', process.pid)
        self.assertEqual((got['lease'], got['bounds']['nodes']), ('c2', '0'))
        self.assert_verdict(got, True, 'all of 1 thread may run on')
        outside = self.json('where', os.getpid())
        self.assertNotIn('lease', outside)

    def test_a_lease_is_the_sum_of_its_processes(self):
        if not harness.has_cgroup2():
            self.skipTest('no cgroup v2: only the first process is known')
        # A fifo each: what comes up is read here, and only the whole is told.
        script = 'mkfifo "$0.a" "$0.b"; "$@" >"$0.a" & read up <"$0.a"; "$@" >"$0.b" & read up <"$0.b"; echo up; wait'
        self.lease('sh', '-c', script, f'{self.runtime_dir}/pipe', *PYTHON, 96, 0, self.file)
        got = self.json('where', 'c1')
        self.assertEqual(len(got['processes']), 3)
        self.assertEqual(len(got['mappings']), 2)
        for it in got['mappings']:
            self.assert_near(it['bytes'], 96 * MIB, 2 * MIB)
        self.assertEqual(len({it['pid'] for it in got['mappings']}), 2)
        self.assertEqual([it['bytes'] for it in got['files']], [160 * MIB])
        self.assertIn('3 processes in lease c1: node 0, CPUs ', self.ctl('where', 'c1').stdout)

    def test_threads_that_left_the_lease_are_counted(self):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            self.skipTest('one CPU')
        process = self.lease(*PYTHON, 8, 0, self.file, options=['--cores', '1'])
        self.assert_verdict(self.json('where', 'c1'), True, 'all of 1 thread may run on')
        os.sched_setaffinity(process.pid, cpus)
        if len(os.sched_getaffinity(process.pid)) < 2:
            self.skipTest('a cpuset holds it')
        self.assert_verdict(self.json('where', 'c1'), False, '1 of 1 thread may run outside of')

    def test_without_its_daemon_a_claim_is_no_more_than_that(self):
        process = self.hold(8, 0, words=['env', 'NUMA_LEASE_ID=c9', *PYTHON])
        self.assertNotIn('lease', self.json('where', process.pid))
        for it in self._processes:
            if it is not process:
                it.end()
        got = self.json('where', process.pid)
        self.assertNotIn('lease', got)
        self.assertIn('its environment names the lease c9, but no daemon confirms it', got['notes'][0])

    def test_a_lease_that_waits_or_is_over(self):
        process = self.start(self.words('run', '--', 'sh', '-c', 'echo up; exec sleep 1000'))
        process.expect('up')
        self.start(self.words('run', '--wait=forever', '--', 'true'))
        eventually(lambda: self.leases('queued'), what='the second to wait')
        self.assert_failure(self.ctl('where', 'c2'), 75, 'c2 has no place yet')
        process.kill()
        eventually(lambda: not self.leases(), what='the end of both')
        self.assert_failure(self.ctl('where', 'c1'), 64, 'c1')


if __name__ == '__main__':
    harness.main()
