"""`run` becomes the command: same PID, status, signals, descriptors; and a lease lives as long as what it holds."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import harness
from harness import BALANCING, Case, alive, children_of, eventually, read

# What a process can see of how it was started, as one JSON line.
INSIDE = '''
import json, os, sys
status = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines())
listed = [f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd')]
fds = {path: os.readlink(path) for path in listed if os.path.lexists(path)}  # without the one that listed them
print(json.dumps({'fds': fds, 'pid': os.getpid(), 'ppid': os.getppid(), 'pgid': os.getpgrp(), 'sid': os.getsid(0),
                  'cwd': os.getcwd(), 'umask': os.umask(0),
                  'signals': {name: status[name].strip() for name in ('SigBlk', 'SigIgn', 'SigCgt', 'ShdPnd')},
                  'nice': os.nice(0), 'threads': status['Threads'].strip()}))
'''


class Exec(Case):
    def setUp(self):
        super().setUp()
        self.start_daemon()

    def test_the_pid_of_the_command_is_the_pid_of_the_client(self):
        process = self.start(self.words('run', '--', 'sh', '-c', 'echo $$'))
        self.assertEqual(process.wait(), 0, process.err)
        self.assertEqual(process.lines, [str(process.pid)])

    def test_exit_statuses_are_the_commands_own(self):
        for status in (0, 1, 37, 64, 75, 125, 255):
            with self.subTest(status):
                done = self.ctl('run', '--quiet', '--', 'sh', '-c', f'exit {status}')
                self.assertEqual((done.returncode, done.stderr), (status, ''))

    def test_a_command_killed_by_a_signal_shows_that_signal(self):
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT):
            with self.subTest(number):
                self.assertEqual(self.ctl('run', '--', 'sh', '-c', f'kill -{int(number)} $$').returncode, -number)

    def test_signals_reach_the_command(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            with self.subTest(number):
                process = self.run_lease(
                    script=f'trap "echo caught; exit 9" {int(number)}; echo up; while :; do sleep 0.05; done')
                process.kill(number)
                self.assertEqual(process.wait(), 9)
                self.assertEqual(process.lines[-1], 'caught')

    def test_no_process_of_ours_stays_in_the_commands_tree(self):
        process = self.run_lease('--numa-balancing', 'keep')
        self.assertEqual(children_of(process.pid), [])
        stat = pathlib.Path(f'/proc/{process.pid}/stat').read_text().rsplit(')', 1)[1].split()
        self.assertEqual(int(stat[1]), os.getpid())
        # The shell has said that it is up, and becomes the sleep next.
        harness.eventually(lambda: pathlib.Path(f'/proc/{process.pid}/exe').resolve().name == 'sleep')

    def test_also_where_the_client_started_the_daemon_and_a_report_is_written(self):
        for process in self._processes:
            process.end()
        report = pathlib.Path(self.runtime_dir) / 'report.json'
        process = self.start(self.words('run', '--report', report, '--', 'sleep', '1000'))
        eventually(lambda: pathlib.Path(f'/proc/{process.pid}/exe').resolve().name == 'sleep', what='exec')
        self.assertEqual(children_of(process.pid), [])
        for pid in harness.processes_of(self.runtime_dir):  # the daemon, and who waits to finish the report
            self.assertNotEqual(os.getsid(pid), os.getsid(process.pid))
        fds = os.listdir(f'/proc/{process.pid}/fd')
        self.assertEqual(sorted(fds), ['0', '1', '2'])

    def test_the_command_sees_what_plain_exec_would_show_it(self):
        command = [sys.executable, '-I', '-S', '-c', INSIDE]
        here = {'cwd': '/', 'umask': 0o027, 'preexec_fn': lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN)}
        inner = subprocess.run(self.words('run', '--quiet', '--', *command), stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=60, **here)
        plain = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **here)
        self.assertEqual(inner.returncode, 0, inner.stderr)
        inside, outside = json.loads(inner.stdout), json.loads(plain.stdout)
        for name in ('signals', 'ppid', 'pgid', 'sid', 'cwd', 'umask', 'nice', 'threads'):
            self.assertEqual(inside[name], outside[name], name)
        # Pipes of two runs have different numbers.
        self.assertEqual({fd: name.split(':')[0] for fd, name in inside['fds'].items()},
                         {fd: name.split(':')[0] for fd, name in outside['fds'].items()})

    def test_an_inherited_descriptor_is_passed_on(self):
        ours, theirs = os.pipe()
        done = self.ctl('run', '--', 'sh', '-c', f'echo through >&{theirs}', pass_fds=[theirs])
        os.close(theirs)
        with open(ours) as file:
            self.assertEqual(file.read(), 'through\n')
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_standard_input_is_the_commands(self):
        done = subprocess.run(self.words('run', '--', 'cat'), input='typed\n', capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stdout, 'typed\n')

    def test_a_command_that_is_not_there_is_127(self):
        done = self.ctl('run', '--', '/nowhere/at-all')
        self.assert_failure(done, 127, '/nowhere/at-all', 'No such file')
        eventually(lambda: self.leases() == [], what='no lease is left')

    def test_a_command_that_cannot_run_is_126(self):
        self.assert_failure(self.ctl('run', '--', '/etc/passwd'), 126, '/etc/passwd', 'Permission denied')
        self.assert_failure(self.ctl('run', '--', '/'), 126)

    def test_the_command_finds_its_lease_in_its_environment(self):
        done = self.ctl('run', '--cores', '1', '--', 'sh', '-c',
                        'echo $NUMA_LEASE_ID $NUMA_LEASE_CPUS $NUMA_LEASE_NODES $NUMA_LEASE_CORES $NUMA_LEASE_THREADS; '
                        'grep Cpus_allowed_list /proc/self/status')
        lease, cpus, nodes, cores, threads, _, allowed = done.stdout.split()
        self.assertEqual((lease, nodes, cores, threads), ('c1', '0', '1', '1'))
        self.assertEqual(allowed, cpus)


class Children(Case):
    def setUp(self):
        super().setUp()
        self.need(BALANCING)
        if not harness.has_cgroup2():
            self.skipTest('no cgroup v2: a lease ends with its first process')
        self.before = self.set_kernel({BALANCING: 1})
        self.daemon = self.start_daemon()

    def orphan(self):
        """A lease whose launcher is dead and whose child lives; returns the child's PID."""
        launcher = self.run_lease('--numa-balancing', 'off', script='sleep 1000 & echo $!; echo up; wait')
        child = int(launcher.lines[0])
        self.addCleanup(harness.kill_all, [child])
        launcher.kill()
        launcher.wait()
        return child

    def test_a_lease_lives_as_long_as_a_child_of_the_killed_launcher(self):
        child = self.orphan()
        # An answer to a question asked after the death shows that the daemon has seen it.
        self.assertEqual([it['state'] for it in self.leases()], ['active'])
        self.assertEqual(read(BALANCING), '0')
        os.kill(child, signal.SIGKILL)
        self.expect_kernel(self.before)
        eventually(lambda: self.leases() == [], what='the end of the lease')

    def test_also_across_a_new_daemon(self):
        child = self.orphan()
        self.daemon.kill()
        self.daemon.wait()
        self.start_daemon()
        self.assertEqual(([it['state'] for it in self.leases()], read(BALANCING)), (['active'], '0'))
        os.kill(child, signal.SIGKILL)
        self.expect_kernel(self.before)

    def test_release_is_refused_while_the_child_lives_and_stop_ends_it(self):
        child = self.orphan()
        self.assert_failure(self.ctl('release', 'c1'), 75, 'c1')
        self.assertEqual(self.ctl('stop', 'c1').returncode, 0)
        self.expect_kernel(self.before)
        self.assertFalse(alive(child))

    def test_stop_terminates_then_kills_the_whole_lease(self):
        process = self.run_lease('--numa-balancing', 'off',
                                 script='trap "echo asked" TERM; sh -c "trap : TERM; while :; do sleep 0.05; done" & '
                                        'echo $!; echo up; while :; do sleep 0.05; done')
        child = int(process.lines[0])
        self.addCleanup(harness.kill_all, [child])
        done = self.ctl('stop', 'c1', '--grace', '300ms')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(process.wait(), -signal.SIGKILL)
        self.assertIn('asked', process.lines)
        self.assertFalse(alive(child))
        self.expect_kernel(self.before)

    def test_stop_of_a_command_that_obeys_needs_no_kill(self):
        process = self.run_lease(script='trap "exit 5" TERM; echo up; while :; do sleep 0.05; done')
        self.assertEqual(self.ctl('stop', 'c1', '--grace', '1h').returncode, 0)
        self.assertEqual(process.wait(), 5)


if __name__ == '__main__':
    harness.main()
