"""Nobody owns systemd's name: affinity, and the lease says so."""

import bed
from bed import cgroup_of


class Affinity(bed.Case):
    def test_is_what_remains_without_systemd_and_is_said_plainly(self):
        self.bed.start_daemon()
        client = self.bed.connect(cgroup=self.bed.session())
        lease = client.active(cores='1')
        self.assertEqual(lease['confinement']['kind'], 'affinity')
        self.assertEqual(lease['confinement']['why'],
                         'no systemd manages this machine: affinity only, a program can undo it')
        self.assertEqual(lease['confinement']['effective_cpus'], lease['placement']['cpus'])
        self.assertEqual(client.call('GetStatus')[0]['confinement'], ['affinity'])

    def test_a_systemd_that_comes_later_is_used_and_one_that_leaves_is_not(self):
        self.bed.start_daemon()
        session = self.bed.session()
        kinds = []
        for start in (lambda: None, self.bed.start_systemd, lambda: self.bed.systemd.kill(15)):
            start()
            client = self.bed.connect(cgroup=session)
            kinds.append(client.active(cores='1')['confinement']['kind'])
            client.kill()
        self.assertEqual(kinds, ['affinity', 'scope', 'affinity'])

    def test_a_cgroup_that_is_not_systemds_is_left_alone(self):
        self.bed.start_systemd()
        self.bed.start_daemon()
        cgroup = self.bed.make_cgroup('/numalease-test.foreign/inside.service')
        client = self.bed.connect(cgroup=cgroup)
        lease = client.active(cores='1')
        self.assertEqual(lease['confinement']['kind'], 'affinity')
        self.assertIn(f"the caller's cgroup {cgroup} is not systemd's to confine", lease['confinement']['why'])
        self.assertEqual(cgroup_of(client.pid), cgroup)
        self.assertEqual([line for line in self.bed.systemd.lines if line != 'ready'], [])


if __name__ == '__main__':
    bed.main()
