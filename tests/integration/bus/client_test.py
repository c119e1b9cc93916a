"""numa-leasectl over a bus does what it does over the socket."""

import json
import os
import shutil
import signal
import subprocess

import bed
from bed import NOBODY, cgroup_of, eventually


class Ctl(bed.Case):
    def setUp(self):
        super().setUp()
        self.bed.start_systemd()
        self.bed.start_daemon()

    def words(self, *verb):
        return [f'{bed.OPTIONS.bin}/numa-leasectl', '--bus', self.bed.address, *verb]

    def ctl(self, *verb):
        return subprocess.run(self.words(*verb), capture_output=True, text=True, timeout=bed.PATIENCE, check=False)

    def listed(self):
        said = json.loads(self.ctl('list', '--all', '--json').stdout)
        return said if isinstance(said, list) else said['leases']

    def run_in_session(self, *words):
        return self.bed.start(self.words('run', *words), stderr=self.bed.stderr, cgroup=self.bed.session())

    def test_run_is_the_command_inside_the_scope(self):
        command = self.run_in_session('--cores', '1', '--numa-balancing', 'off', '--', 'sh', '-c',
                                      'echo $$ $NUMA_LEASE_ID; read line; exit 37')
        pid, lease = command.expect(lambda line: len(line.split()) == 2, 'the command').split()
        self.assertEqual(int(pid), command.pid)
        self.assertEqual(cgroup_of(command.pid), f'/user.slice/{self.bed.slice}/numalease-{lease}.scope')
        self.assertEqual(self.bed.balancing(), '0')
        command.process.stdin.write('go\n')
        command.process.stdin.flush()
        self.assertEqual(command.process.wait(bed.PATIENCE), 37)
        eventually(lambda: self.bed.balancing() == '1', 'the knob is put back')

    def test_list_shows_the_lease(self):
        command = self.run_in_session('--cores', '1', '--reason', 'a test', '--', 'sh', '-c', 'echo up; read line')
        command.expect(lambda line: line == 'up', 'the command')
        lease, = self.listed()
        self.assertEqual((lease['state'], lease['caller']['process']['pid']), ('active', command.pid))
        self.assertIn(lease['id'], self.ctl('list').stdout)

    def test_stop_ends_the_command_and_returns_when_the_lease_is_over(self):
        command = self.run_in_session('--cores', '1', '--numa-balancing', 'off', '--', 'sh', '-c',
                                      'echo $NUMA_LEASE_ID; exec sleep 1000')
        lease = command.expect(lambda line: line.startswith('c'), 'the lease')
        stopped = self.ctl('stop', lease)
        self.assertEqual((stopped.returncode, stopped.stderr), (0, ''))
        self.assertEqual(command.process.wait(bed.PATIENCE), -15)
        self.assertEqual(self.bed.balancing(), '1')
        lease, = self.listed()
        self.assertEqual(lease['state'], 'ended')

    def test_without_a_daemon_on_that_bus_it_says_so(self):
        self.bed.daemon.kill()
        said = self.ctl('list')
        self.assertEqual(said.returncode, 69)
        self.assertTrue(said.stderr.startswith('numa-leasectl:'), said.stderr)
        self.assertIn('org.numalease1', said.stderr)

    def wait_for_room(self, *way):
        """Whoever waits keeps the place while the daemon restarts, and while it is killed."""
        self.end_daemon()
        self.bed.start_daemon('--keep-leases')
        first = self.run_in_session('--cores', '1', '--numa-balancing', 'off', '--', 'sh', '-c', 'echo up; read line')
        first.expect(lambda line: line == 'up', 'the command')
        words = [f'{bed.OPTIONS.bin}/numa-leasectl', *way, 'run', '--cores', '1', '--numa-balancing', 'on',
                 '--wait=forever', '--', 'echo', 'got it']
        second = self.bed.start(words, stderr=subprocess.STDOUT, cgroup=self.bed.session())
        waiting = lambda: [it['id'] for it in self.listed() if it['state'] == 'queued']
        eventually(waiting, 'it waits')
        before = waiting()
        self.restart_daemon()
        self.assertEqual(waiting(), before)
        self.bed.daemon.kill()
        self.bed.start_daemon('--keep-leases')
        self.assertEqual(waiting(), before)
        first.process.stdin.write('go\n')
        first.process.stdin.flush()
        second.expect(lambda line: line == 'got it', 'its turn')

    def test_who_waits_on_the_bus_keeps_the_place_over_restarts(self):
        self.wait_for_room('--bus', self.bed.address)

    def test_who_waits_on_the_socket_keeps_the_place_over_restarts(self):
        self.wait_for_room('--daemon-socket', str(self.bed.runtime / 'socket'))

    # ── hold ────────────────────────────────────────────────────────────────────────────────────────────────────

    def hold(self):
        """Of the lease `web`: the program, which prints what it says, and the file for those that join."""
        program = self.bed.start(self.words('--runtime-dir', self.bed.runtime, 'hold', 'web', '--cores', '1',
                                            '--numa-balancing', 'off'), stderr=subprocess.STDOUT)
        file = self.bed.runtime / 'env/web'
        eventually(file.exists, 'the environment')
        return program, file

    def end_daemon(self):
        self.assertEqual(self.bed.daemon.kill(signal.SIGTERM), 0)

    def restart_daemon(self):
        self.end_daemon()
        self.bed.start_daemon('--keep-leases')

    def assert_over(self, program, file):
        self.assertEqual(program.process.wait(bed.PATIENCE), 75)
        said = program.expect(lambda line: 'is over' in line, 'why')
        self.assertTrue(said.startswith('numa-leasectl: c1 is over: '), said)
        self.assertFalse(file.exists())

    def test_hold_keeps_its_lease_until_it_is_told_to_end(self):
        program, file = self.hold()
        self.assertEqual(program.kill(signal.SIGTERM), 0)
        self.assertFalse(file.exists())

    def test_the_lines_for_a_container_are_there_while_the_lease_is_held(self):
        said = self.ctl('show', 'web', '--as', 'docker')
        self.assertEqual(said.returncode, 64)
        self.assertIn('numa-leasectl hold NAME', said.stderr)
        self.hold()
        self.assertIn('--cgroup-parent=numalease-web.slice', self.ctl('show', 'web', '--as', 'docker').stdout)

    def test_hold_ends_with_its_lease(self):
        program, file = self.hold()
        self.end_daemon()
        self.assert_over(program, file)

    def test_hold_keeps_its_lease_over_a_restart_of_the_daemon_and_sees_the_end_after_it(self):
        self.end_daemon()
        self.bed.start_daemon('--keep-leases')
        program, file = self.hold()
        before = self.listed()
        self.restart_daemon()
        self.assertEqual(self.listed(), before)
        # Over a second one, too; and what ends it this time is not seen by anybody who could tell.
        self.restart_daemon()
        self.assertEqual(self.listed(), before)
        self.assertIsNone(program.process.poll())
        self.end_daemon()
        subprocess.run(self.bed.daemon_words('--restore'), check=True, timeout=bed.PATIENCE, capture_output=True)
        self.assertEqual(self.bed.balancing(), '1')
        self.assertIsNone(program.process.poll(), 'nobody has told it yet')
        self.bed.start_daemon('--keep-leases')
        self.assert_over(program, file)

    def test_hold_starts_no_daemon_that_was_stopped(self):
        self.end_daemon()
        self.bed.start_daemon('--keep-leases')
        program, _ = self.hold()
        self.bed.startable(f'touch {self.bed.top}/started')
        self.end_daemon()
        looks = self.bed.connect()
        looks.match("type='signal',member='NameOwnerChanged'")
        eventually(lambda: len(looks.signals()) > 5, 'it comes to look for a daemon, and goes again')
        self.assertFalse((self.bed.top / 'started').exists())
        self.assertEqual(program.kill(signal.SIGTERM), 0)


class Broken(bed.Case):
    """A daemon that the bus has in store and that does not start."""

    def as_nobody(self, *verb):
        """With the socket of the package, which is root's."""
        shutil.copy(f'{bed.OPTIONS.bin}/numa-leasectl', self.bed.top)
        script = ('mount --make-rprivate / 2>/dev/null; mount -t tmpfs none /run && mkdir /run/numa-lease && '
                  'python3 -c "import socket; socket.socket(socket.AF_UNIX).bind(\'/run/numa-lease/socket\')" && '
                  'chmod 600 /run/numa-lease/socket && exec setpriv --reuid $0 --regid $0 --clear-groups "$@"')
        return subprocess.run(['unshare', '--mount', '--propagation', 'unchanged', 'sh', '-c', script, str(NOBODY),
                               f'{self.bed.top}/numa-leasectl', *verb], capture_output=True, text=True, check=False,
                              env={**os.environ, 'DBUS_SYSTEM_BUS_ADDRESS': self.bed.address}, timeout=bed.PATIENCE)

    def test_is_no_denial(self):
        self.bed.startable('false')
        said = self.as_nobody('stop', 'c1')
        self.assertEqual(said.returncode, 69, said.stderr)
        self.assertNotIn('usermod', said.stderr)

    def test_and_without_one_the_socket_says_who_may(self):
        said = self.as_nobody('stop', 'c1')
        self.assertEqual(said.returncode, 77, said.stderr)
        self.assertIn('usermod', said.stderr)


if __name__ == '__main__':
    bed.main()
