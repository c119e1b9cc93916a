"""The bus goes away under a running daemon."""

import subprocess

import bed
from bed import eventually


class LostBus(bed.Case):
    def setUp(self):
        super().setUp()
        self.bed.start_systemd()
        self.bed.start_daemon()

    def over_socket(self, *verb):
        return subprocess.run([f'{bed.OPTIONS.bin}/numa-leasectl', '--daemon-socket', f'{self.bed.runtime}/socket', *verb],
                              capture_output=True, text=True, timeout=bed.PATIENCE, check=True).stdout

    def test_keeps_the_leases_and_puts_the_kernel_back_at_their_end(self):
        client = self.bed.connect(cgroup=self.bed.session())
        lease = client.active(cores='1', numa_balancing='off')
        client.run('exec', 'sleep', '1000')
        self.bed.broker.kill()
        self.assertIsNone(self.bed.daemon.process.poll(), self.bed.log.read_text())
        self.assertIn(lease['id'], self.over_socket('list'))
        self.assertEqual(self.bed.balancing(), '0')
        client.kill()
        # Nobody shows the empty cgroup any more: the stand-in for systemd went with its bus.
        if self.bed.shown(lease['confinement']['cgroup'], 'cgroup.procs') is not None:
            self.bed.empty(lease['confinement']['cgroup'])
        eventually(lambda: self.bed.balancing() == '1', 'the knob is put back')
        self.assertIsNone(self.bed.daemon.process.poll(), self.bed.log.read_text())

    def test_a_unit_that_cannot_be_put_back_without_the_bus_is_put_back_by_the_next_daemon(self):
        client, cgroup = self.bed.service()
        client.active(cores='1', numa_balancing='off', grace='0s')
        client.run('exec', 'sleep', '1000')
        self.bed.broker.kill()
        client.kill()
        self.bed.cgroups.append(cgroup)
        self.bed.empty(cgroup)
        eventually(lambda: self.bed.balancing() == '1', 'what needs no bus is put back at once')
        self.bed.daemon.kill()
        self.bed.start_broker()
        self.bed.start_systemd()
        self.bed.service()
        dropins = self.bed.root / 'run/systemd/system.control/numalease-test.service.d'
        self.assertTrue(dropins.exists())
        self.bed.start_daemon()
        eventually(lambda: not dropins.exists(), 'our drop-ins gone')
        eventually(lambda: self.bed.shown(cgroup, 'cpuset.cpus.effective') == self.bed.CPUS, 'the full set')

    def test_is_not_kept_busy_by_the_loss(self):
        self.bed.broker.kill()
        self.over_socket('status')

        def switches():
            return [line for line in bed.text_of(f'/proc/{self.bed.daemon.pid}/status').splitlines() if 'ctxt' in line]

        # The same for six looks in a row: it sleeps. One that spins never shows that.
        seen = []
        eventually(lambda: seen.append(switches()) or (len(seen) > 5 and seen[-1] == seen[-6]), 'the daemon sleeps')

    def test_stops_cleanly_afterwards(self):
        self.bed.broker.kill()
        self.over_socket('status')
        self.assertEqual(self.bed.daemon.kill(15), 0)

    def test_a_caller_waiting_on_the_bus_is_forgotten(self):
        client = self.bed.connect()
        client.active(cores='1', numa_balancing='off')
        client.send('Wait', 'ss', 'c1', 'ended')
        self.bed.broker.kill()
        client.kill()
        eventually(lambda: self.bed.balancing() == '1', 'the knob is put back')


if __name__ == '__main__':
    bed.main()
