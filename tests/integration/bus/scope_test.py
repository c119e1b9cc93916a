"""A caller in a login session: its lease is a scope inside the user's own slice."""

import os
import signal
import time

import bed
from bed import CGROUP2, cgroup_of, eventually


class Scope(bed.SessionCase):
    def setUp(self):
        super().setUp()
        self.client = self.bed.connect(cgroup=self.session)

    def scope_of(self, lease):
        return f'/user.slice/{self.bed.slice}/numalease-{lease["id"]}.scope'

    def test_is_inside_the_users_own_slice_and_set_before_the_process_joins(self):
        lease = self.client.active(cores='1')
        self.assertEqual(lease['confinement']['kind'], 'scope')
        self.assertEqual(lease['confinement']['slice'], self.bed.slice)
        self.assertEqual(cgroup_of(self.client.pid), self.scope_of(lease))
        started = [line for line in self.bed.systemd.lines if line.startswith('StartTransientUnit')]
        self.assertEqual(started, [f'StartTransientUnit numalease-{lease["id"]}.scope in {self.bed.slice} '
                                   f'AllowedCPUs={lease["placement"]["cpus"]} AllowedMemoryNodes=0 '
                                   f'MemoryMax={(16 << 30) - (256 << 20)} PID={self.client.pid}'])
        self.assertFalse([line for line in self.bed.systemd.lines if line.startswith('SetUnitProperties')],
                         'an ancestor, or the scope a second time')

    def test_limits_below_the_users_slice_still_bind(self):
        shown = f'{CGROUP2.lstrip("/")}{self.session}/'
        self.bed.put(shown + 'memory.max', str(3 << 30))
        self.bed.put(shown + 'pids.max', '500')
        lease = self.client.active(cores='1')
        started = [line for line in self.bed.systemd.lines if line.startswith('StartTransientUnit')]
        self.assertIn(f' MemoryMax={3 << 30} TasksMax=500 PID=', started[0])
        self.assertIn('MemoryMax is 3G: that bound its caller before', lease['notes'])
        self.assertIn(str(3 << 30), [it['value'] for it in lease['confinement']['settings']])

    def test_grant_says_what_the_effective_files_say(self):
        lease = self.client.active(cores='1')
        scope = self.scope_of(lease)
        self.assertEqual(lease['confinement']['cgroup'], scope)
        self.assertEqual(lease['confinement']['effective_cpus'], self.bed.shown(scope, 'cpuset.cpus.effective'))
        self.assertEqual(lease['confinement']['effective_nodes'], self.bed.shown(scope, 'cpuset.mems.effective'))
        self.assertEqual(lease['confinement']['effective_cpus'], lease['placement']['cpus'])

    def test_outlives_the_launcher_and_ends_when_the_cgroup_is_empty(self):
        lease = self.client.active(cores='1', numa_balancing='off')
        child = self.client.run('spawn', 'sleep', '1000')
        self.assertEqual(cgroup_of(child), self.scope_of(lease))
        ended = self.watcher.send('Wait', 'ss', lease['id'], 'ended')
        self.client.kill()
        # The daemon hears of the launcher's end before it can answer what is asked after it.
        eventually(lambda: bed.text_of(f'{CGROUP2}{self.scope_of(lease)}/cgroup.procs').split() == [str(child)])
        self.assertEqual(self.watcher.lease(lease['id'])['state'], 'active')
        self.assertEqual(self.bed.balancing(), '0')
        os.kill(child, signal.SIGKILL)
        self.assertEqual(self.watcher.answer(ended)[0]['state'], 'ended')
        self.assertEqual(self.bed.balancing(), '1')
        eventually(lambda: not os.path.exists(CGROUP2 + self.scope_of(lease)), 'the scope is collected')

    def refused(self, how, *texts):
        self.bed.behave(self.watcher, how)
        with self.fails('Io', *texts):
            self.client.active(cores='1', numa_balancing='off')
        self.assertEqual(self.bed.balancing(), '1')
        lease = self.watcher.call('ListLeases')[0][0]
        self.assertEqual(lease['state'], 'refused')
        self.assertEqual(self.watcher.call('GetStatus')[0]['knobs_off_prior'], [])
        return lease

    def test_a_start_that_systemd_refuses_undoes_everything(self):
        self.refused('refuse', 'systemd did not start numalease-c1.scope', 'refused by the test')
        self.assertEqual(cgroup_of(self.client.pid), self.session)

    def test_a_job_that_fails_undoes_everything(self):
        self.refused('fail-job', 'systemd could not start numalease-c1.scope: failed')
        self.assertEqual(cgroup_of(self.client.pid), self.session)

    def test_effective_files_that_never_follow_undo_everything(self):
        self.bed.put(f'{CGROUP2.lstrip("/")}/user.slice/{self.bed.slice}/numalease-c1.scope/cpuset.cpus.effective',
                     '0-7')
        self.refused('deaf', 'numalease-c1.scope has CPUs 0-7', 'were set')

    def test_a_systemd_that_vanishes_while_it_starts_the_scope_undoes_everything(self):
        self.refused('vanish', 'systemd did not start numalease-c1.scope')
        # It is gone for good: the next lease says what holds it instead.
        lease = self.client.active(cores='1')
        self.assertEqual(lease['confinement']['kind'], 'affinity')

    def test_of_many_at_once_systemd_is_asked_for_a_few_and_all_get_theirs(self):
        self.bed.behave(self.watcher, 'slow')
        clients = [self.bed.connect(cgroup=self.session) for _ in range(40)]
        leases = [client.acquire(cores='1', share='yes')[0] for client in clients]
        asked = lambda: sum(line.startswith('StartTransientUnit') for line in self.bed.systemd.lines)
        eventually(lambda: asked() >= 16)
        time.sleep(0.2)
        self.assertEqual(asked(), 16)
        self.bed.behave(self.watcher, 'normal')
        for client, lease in zip(clients, leases):
            self.assertEqual(client.wait(lease, 'active')['confinement']['kind'], 'scope')

    def test_a_refusal_leaves_the_caller_free_to_ask_again(self):
        self.refused('refuse', 'systemd')
        self.bed.behave(self.watcher, 'normal')
        self.assertEqual(self.client.active(cores='1')['confinement']['kind'], 'scope')


if __name__ == '__main__':
    bed.main()
