"""A named lease is a slice that others join, and that comes and goes while it is held."""

import os
import shutil

import bed
from bed import CGROUP2, cgroup_of, eventually

SLICE = '/numalease.slice/numalease-web.slice'


class Named(bed.SessionCase):
    def setUp(self):
        super().setUp()
        self.holder = self.bed.connect(cgroup=self.session)
        self.joiner = self.bed.connect(cgroup=self.session)

    def limit(self, cgroup, file, value):
        self.bed.put(f'{CGROUP2.lstrip("/")}{cgroup}/{file}', value)

    def join(self, lease):
        """Who joins is in a scope below the slice: its cgroup."""
        self.joiner.call('Join', 's', lease['id'])
        return f'{SLICE}/numalease-{lease["id"]}-{self.joiner.pid}.scope'

    def test_a_process_of_a_session_joins_in_a_scope_of_its_own(self):
        lease = self.holder.active(cores='1', name='web')
        self.assertEqual(lease['confinement']['kind'], 'slice')
        self.assertEqual(self.join(lease), cgroup_of(self.joiner.pid))
        self.assertEqual(cgroup_of(self.holder.pid), self.session, 'who holds it is not inside')

    def test_what_bound_the_process_in_its_session_still_does(self):
        lease = self.holder.active(cores='1', name='web')
        self.limit(self.session, 'memory.max', str(1 << 30))
        self.limit(self.session, 'pids.max', '300')
        self.limit(f'/user.slice/{self.bed.slice}', 'pids.max', '200')
        self.join(lease)
        started = [line for line in self.bed.systemd.lines if line.startswith('StartTransientUnit')][0]
        self.assertIn(f' MemoryMax={1 << 30} TasksMax=200 ', started)

    def test_nobody_leaves_the_limits_of_his_slice_by_joining(self):
        lease = self.holder.active(cores='1', name='web')
        for cgroup in ('/user.slice', f'/user.slice/{self.bed.slice}'):
            self.limit(cgroup, 'memory.max', '4294967296')
            with self.fails('Unsupported', self.bed.slice, 'memory.max=4294967296', 'lift them'):
                self.join(lease)
            self.limit(cgroup, 'memory.max', 'max')
        self.assertEqual(cgroup_of(self.joiner.pid), self.session)
        self.join(lease)

    def begin_anew(self, lease):
        self.limit(SLICE, 'memory.events', 'oom 0\noom_kill 0')
        eventually(lambda: self.watcher.lease(lease['id'])['confinement']['memory_oom_kill'] == 0, 'the new count')

    def overrun(self, lease, kills, told):
        self.limit(SLICE, 'memory.events', f'oom {kills}\noom_kill {kills}')
        eventually(lambda: self.watcher.lease(lease['id'])['oom_kills'] == told, f'{told} kills')

    def remove(self, folder):
        """As cgroups go: what is made anew has other inode numbers, which a disk's file system would give again."""
        for path in (folder, *folder.rglob('*')):
            self.addCleanup(os.close, os.open(path, os.O_RDONLY))
        shutil.rmtree(folder)

    def test_kills_are_seen_however_often_the_slice_is_made_anew(self):
        shown = self.bed.root / CGROUP2.lstrip('/') / SLICE.lstrip('/')
        lease = self.holder.active(cores='1', name='web')
        eventually((shown / 'cgroup.events').exists, 'the properties')
        self.remove(shown.parent)  # as where nothing has run in it yet
        self.begin_anew(lease)
        self.overrun(lease, 2, told=2)
        self.overrun(lease, 3, told=3)
        self.remove(shown)
        self.begin_anew(lease)
        self.overrun(lease, 1, told=4)
        self.remove(shown.parent)
        self.begin_anew(lease)
        self.overrun(lease, 2, told=6)

    def test_who_joined_is_no_stranger_to_the_next_daemon(self):
        lease = self.holder.active(cores='1', name='web', share='yes')
        scope = self.join(lease)
        eventually(lambda: self.bed.shown(scope, 'cpuset.cpus.effective') == lease['placement']['cpus'])
        self.bed.daemon.kill()
        self.bed.start_daemon()
        other = self.bed.connect(cgroup=self.session)
        cores = min(8, len(os.sched_getaffinity(0)))
        self.assertEqual(other.active(cores=str(cores), share='yes')['placement']['cores'], cores)


class Joining(bed.Case):
    """Of other leases: nobody is moved out of a unit."""

    def setUp(self):
        super().setUp()
        self.bed.start_systemd()
        self.bed.start_daemon()
        self.session = self.bed.connect(cgroup=self.bed.session())
        self.service, self.cgroup = self.bed.service()

    def test_a_service_is_not_moved_into_a_scope(self):
        lease = self.session.active(cores='1')
        with self.fails('Unsupported', f'{self.cgroup} is outside /user.slice/{self.bed.slice}', 'numa-leasectl run'):
            self.service.call('Join', 's', lease['id'])
        self.assertEqual(cgroup_of(self.service.pid), self.cgroup)

    def test_a_session_of_the_same_user_is(self):
        lease = self.session.active(cores='1')
        other = self.bed.connect(cgroup=self.bed.make_cgroup(f'/user.slice/{self.bed.slice}/session-2.scope'))
        self.assertIn(other.pid, [it['pid'] for it in other.call('Join', 's', lease['id'])[0]['holders']])
        self.assertEqual(cgroup_of(other.pid), lease['confinement']['cgroup'])

    def test_what_is_inside_stays_where_it_is(self):
        lease = self.session.active(cores='1')
        inside = self.bed.make_cgroup(lease['confinement']['cgroup'] + '/inner')
        other = self.bed.connect(cgroup=inside)
        other.call('Join', 's', lease['id'])
        self.assertEqual(cgroup_of(other.pid), inside)

    def test_who_is_outside_of_a_unit_is_told_at_once(self):
        lease = self.service.active(cores='1')
        with self.fails('Unsupported', 'is outside numalease-test.service', 'start it from that unit'):
            self.session.call('Join', 's', lease['id'], patience=1)
        other, _ = self.bed.service_again()
        other.call('Join', 's', lease['id'])
        self.assertEqual(cgroup_of(other.pid), self.cgroup)


if __name__ == '__main__':
    bed.main()
