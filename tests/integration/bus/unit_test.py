"""A system service stays in its unit, which is narrowed at runtime and put back."""

import os
import shutil
import signal

import bed
from bed import CGROUP2, cgroup_of, eventually

NAME = 'numalease-test.service'
DROPIN = f'run/systemd/system.control/{NAME}.d'
# What node 0 can give without the reserve, and the page or so that the service has already.
LIMIT = (16 << 30) - (256 << 20) + (1 << 20)
OURS = ['50-AllowedCPUs.conf', '50-AllowedMemoryNodes.conf', '50-MemoryMax.conf']


class Unit(bed.Case):
    def setUp(self):
        super().setUp()
        self.bed.start_systemd()
        self.bed.start_daemon()
        self.watcher = self.bed.connect()

    def put_calls(self):
        """What systemd was told about the unit, without the words that are always the same."""
        head = f'SetUnitProperties {NAME} runtime '
        lines = [line for line in self.bed.systemd.lines if line and line.startswith('SetUnitProperties')]
        self.assertTrue(all(line.startswith(head) for line in lines), lines)
        return [line[len(head):] for line in lines]

    def dropins(self):
        directory = self.bed.root / DROPIN
        return sorted(os.listdir(directory)) if directory.exists() else []

    def end(self, client, lease):
        """Kills the holder and waits for the end."""
        ended = self.watcher.send('Wait', 'ss', lease['id'], 'ended')
        client.kill()
        return self.watcher.answer(ended)[0]

    def test_is_narrowed_itself_and_its_process_is_never_moved(self):
        client, cgroup = self.bed.service()
        lease = client.active(cores='1')
        self.assertEqual(lease['confinement']['kind'], 'unit')
        self.assertEqual(lease['confinement']['unit'], NAME)
        self.assertEqual(cgroup_of(client.pid), cgroup)
        cpus = lease['placement']['cpus']
        self.assertEqual(self.put_calls(), [f'AllowedCPUs={cpus} AllowedMemoryNodes=0 MemoryMax={LIMIT}'])
        self.assertEqual(lease['confinement']['effective_cpus'], cpus)
        self.assertEqual(self.bed.shown(cgroup, 'cpuset.cpus.effective'), cpus)

    def test_without_a_prior_everything_is_set_and_verified_then_unset_and_our_file_unlinked(self):
        client, cgroup = self.bed.service()
        lease = client.active(cores='1')
        self.assertEqual(self.dropins(), OURS)
        self.assertEqual(self.end(client, lease)['state'], 'ended')
        self.assertEqual(self.put_calls()[1:],
                         ['AllowedCPUs=0-7 AllowedMemoryNodes=0 MemoryMax=infinity', 'AllowedCPUs= AllowedMemoryNodes='])
        self.assertEqual(self.bed.shown(cgroup, 'cpuset.cpus.effective'), '0-7')
        self.assertEqual(self.bed.allowed_cpus(self.watcher, NAME), [])
        self.assertEqual(self.dropins(), [])
        self.assertFalse((self.bed.root / DROPIN).exists())

    def test_unsetting_waits_for_the_full_set_to_be_in_force(self):
        client, cgroup = self.bed.service()
        lease = client.active(cores='1')
        self.bed.behave(self.watcher, 'deaf')
        ended = self.watcher.send('Wait', 'ss', lease['id'], 'ended')
        client.kill()
        eventually(lambda: len(self.put_calls()) == 2, 'the full set')
        self.bed.behave(self.watcher, 'normal')
        self.assertEqual(self.put_calls()[1:], ['AllowedCPUs=0-7 AllowedMemoryNodes=0 MemoryMax=infinity'])
        self.bed.put(f'{CGROUP2.lstrip("/")}{cgroup}/cpuset.cpus.effective', '0-7')
        self.watcher.answer(ended)
        self.assertEqual(self.put_calls()[2:], ['AllowedCPUs= AllowedMemoryNodes='])

    def test_a_prior_that_was_not_empty_is_written_back(self):
        client, cgroup = self.bed.service(prior=[0b00001111])
        lease = client.active(cores='1')
        self.assertEqual([(it['property'], it['prior'], it['prior_source']) for it in lease['confinement']['settings']],
                         [('AllowedCPUs', '0-3', 'runtime'), ('AllowedMemoryNodes', '', 'none'), ('MemoryMax', '', 'none')])
        before = ['50-AllowedCPUs.conf']
        self.end(client, lease)
        self.assertEqual(self.bed.allowed_cpus(self.watcher, NAME), [0b00001111])
        self.assertEqual(self.bed.shown(cgroup, 'cpuset.cpus.effective'), '0-3')
        self.assertEqual(self.put_calls()[1:], ['AllowedCPUs=0-3 AllowedMemoryNodes=0 MemoryMax=infinity', 'AllowedMemoryNodes='])
        self.assertEqual(self.dropins(), before)
        self.assertTrue(self.bed.read(f'{DROPIN}/{before[0]}').endswith('[Service]\nAllowedCPUs=0-3'))

    def test_a_setting_in_a_file_of_the_administrators_own_is_not_overridden(self):
        client, _ = self.bed.service(prior=[0b00001111])
        shutil.rmtree(self.bed.root / DROPIN)
        lease = client.active(cores='1')
        self.assertEqual(lease['confinement']['kind'], 'affinity')
        self.assertIn(f'{NAME} has AllowedCPUs=0-3 of its own', lease['confinement']['why'])
        self.assertEqual(self.put_calls(), [])

    def test_a_typed_limit_is_set_and_an_overrun_is_told(self):
        client, cgroup = self.bed.service()
        events = f'{CGROUP2.lstrip("/")}{cgroup}/memory.events'
        self.bed.put(events, 'oom 1\noom_kill 1')  # of an earlier life of the unit
        lease = client.active(cores='1', memory_max='512M')
        limit = (513 << 20)
        self.assertEqual(self.put_calls()[0].split()[-1], f'MemoryMax={limit}')
        self.bed.put(events, 'oom 2\noom_kill 3')
        eventually(lambda: self.watcher.lease(lease['id'])['oom_kills'] == 2, 'the overrun')
        said = f"out of memory: 2 processes killed at the lease's limit of 513M (MemoryMax={limit})"
        self.assertIn(said, self.watcher.lease(lease['id'])['reason'])
        self.assertIn(said, self.end(client, lease)['reason'])

    def test_what_somebody_else_sets_meanwhile_is_left_alone(self):
        client, _ = self.bed.service()
        lease = client.active(cores='1')
        self.bed.put(f'{DROPIN}/50-AllowedCPUs.conf', '[Service]\nAllowedCPUs=5-6')
        ended = self.end(client, lease)
        self.assertEqual(self.put_calls()[1:], ['AllowedMemoryNodes=0 MemoryMax=infinity', 'AllowedMemoryNodes='])
        self.assertEqual(self.dropins(), ['50-AllowedCPUs.conf'])
        self.assertIn(f'AllowedCPUs of {NAME} was set by somebody else meanwhile and is left alone', ended['notes'])

    def test_systemd_is_made_to_forget_the_unlinked_files_and_only_then(self):
        client, _ = self.bed.service()
        lease = client.active(cores='1')
        self.assertNotIn('Reload', self.bed.systemd.lines)
        self.end(client, lease)
        self.assertEqual(self.bed.systemd.lines.count('Reload'), 1)

    def test_the_administrators_own_drop_ins_are_not_touched(self):
        own = {f'{DROPIN}/60-admin.conf': '[Service]\nMemoryMax=4G',
               f'etc/systemd/system/{NAME}.d/50-AllowedCPUs.conf': '[Service]\nCPUWeight=10',
               f'run/systemd/system/{NAME}.d/50-AllowedCPUs.conf': '[Service]\nAllowedCPUs=0-7'}
        for path, text in own.items():
            self.bed.put(path, text)
        client, _ = self.bed.service()
        self.end(client, client.active(cores='1'))
        self.assertEqual({path: self.bed.read(path) for path in own}, own)
        self.assertEqual(self.dropins(), ['60-admin.conf'])

    def test_memory_nodes_of_a_large_unit_are_left_alone(self):
        client, cgroup = self.bed.service()
        self.bed.put(f'{CGROUP2.lstrip("/")}{cgroup}/memory.current', str(257 << 20))
        lease = client.active(cores='1')
        self.assertEqual(self.put_calls(), [f'AllowedCPUs={lease["placement"]["cpus"]} MemoryMax={LIMIT + (256 << 20)}'])
        self.assertIn(f'memory nodes of {NAME} left alone: it is larger than 256M already', lease['notes'])
        self.end(client, lease)
        self.assertEqual(self.put_calls()[1:], ['AllowedCPUs=0-7 MemoryMax=infinity', 'AllowedCPUs='])
        self.assertEqual(self.dropins(), [])

    def test_ends_only_when_the_last_process_of_the_unit_is_gone(self):
        client, cgroup = self.bed.service()
        lease = client.active(cores='1', numa_balancing='off')
        child = client.run('spawn', 'sleep', '1000')
        ended = self.watcher.send('Wait', 'ss', lease['id'], 'ended')
        client.kill()
        eventually(lambda: bed.text_of(f'{CGROUP2}{cgroup}/cgroup.procs').split() == [str(child)])
        self.assertEqual(self.watcher.lease(lease['id'])['state'], 'active')
        os.kill(child, signal.SIGKILL)
        self.assertEqual(self.watcher.answer(ended)[0]['state'], 'ended')
        self.assertEqual(self.bed.balancing(), '1')

    def refused(self, how, *texts):
        client, cgroup = self.bed.service()
        self.bed.behave(self.watcher, how)
        with self.fails('Io', *texts):
            client.active(cores='1', numa_balancing='off')
        self.assertEqual(self.bed.balancing(), '1')
        return client, cgroup

    def test_a_change_that_systemd_refuses_undoes_everything(self):
        self.refused('refuse', f'systemd did not confine {NAME}', f'{NAME} could not be put back: refused by the test')
        # The caller is told; the daemon goes on until it is sure.
        self.assertEqual(self.watcher.lease('c1')['state'], 'ending')
        ended = self.watcher.send('Wait', 'ss', 'c1', 'ended')
        self.bed.behave(self.watcher, 'normal')
        self.assertEqual(self.watcher.answer(ended)[0]['state'], 'refused')
        self.assertEqual(self.dropins(), [])

    def test_effective_files_that_never_follow_undo_everything(self):
        _, cgroup = self.refused('deaf', f'{NAME} has CPUs 0-7', 'were set')
        self.assertEqual(self.put_calls()[1:],
                         ['AllowedCPUs=0-7 AllowedMemoryNodes=0 MemoryMax=infinity', 'AllowedCPUs= AllowedMemoryNodes='])
        eventually(lambda: self.bed.shown(cgroup, 'cpuset.cpus.effective') == '0-7')
        self.assertEqual(self.dropins(), [])

    def test_a_systemd_that_vanishes_while_it_is_asked_undoes_the_rest(self):
        self.refused('vanish', f'systemd did not confine {NAME}', f'systemd does not answer, {NAME} stays confined')
        self.assertEqual(self.watcher.lease('c1')['state'], 'ending', 'until systemd is back')

    def test_killing_the_daemon_between_set_and_unset_is_put_right_by_the_next_start(self):
        client, cgroup = self.bed.service()
        lease = client.active(cores='1', numa_balancing='off')
        self.bed.daemon.kill()
        client.kill()
        self.assertNotEqual(self.bed.shown(cgroup, 'cpuset.cpus.effective'), '0-7')
        self.assertEqual(self.bed.balancing(), '0')
        self.bed.start_daemon()
        self.assertEqual(self.watcher.wait(lease['id'], 'ended')['state'], 'ended')
        self.assertEqual(self.bed.balancing(), '1')
        eventually(lambda: self.bed.shown(cgroup, 'cpuset.cpus.effective') == '0-7')
        self.assertEqual(self.dropins(), [])

    def test_a_lease_that_lives_is_adopted_by_the_next_daemon_and_nothing_is_set_again(self):
        client, cgroup = self.bed.service()
        lease = client.active(cores='1', numa_balancing='off')
        told = self.put_calls()
        self.bed.daemon.kill()
        self.bed.start_daemon()
        self.assertEqual(self.watcher.lease(lease['id'])['state'], 'active')
        self.assertEqual(self.put_calls(), told)
        self.assertEqual(self.bed.balancing(), '0')
        self.assertEqual(self.end(client, lease)['state'], 'ended')
        self.assertEqual(self.bed.balancing(), '1')
        self.assertEqual(self.bed.shown(cgroup, 'cpuset.cpus.effective'), '0-7')

    def test_a_restarted_unit_is_looked_at_only_when_the_former_lease_is_off_it(self):
        first, cgroup = self.bed.service()
        first.active(cores='1')
        self.bed.behave(self.watcher, 'deaf')  # so that the putting back takes its time
        first.kill()
        eventually(lambda: len(self.put_calls()) == 2, 'the full set')
        second, _ = self.bed.service_again()
        lease = second.acquire(cores='1')[0]
        self.bed.behave(self.watcher, 'normal')
        self.bed.put(f'{CGROUP2.lstrip("/")}{cgroup}/cpuset.cpus.effective', '0-7')
        lease = second.wait(lease, 'active')
        self.assertEqual([it['prior'] for it in lease['confinement']['settings']], ['', '', ''],
                         f'what we wrote is no prior: {lease}')
        self.end(second, lease)
        self.assertEqual(self.bed.allowed_cpus(self.watcher, NAME), [])
        self.assertEqual(self.bed.shown(cgroup, 'cpuset.cpus.effective'), '0-7')

    def test_of_two_processes_of_a_unit_that_ask_at_once_one_gets_the_unit(self):
        first, cgroup = self.bed.service()
        second, _ = self.bed.service_again()
        self.bed.behave(self.watcher, 'deaf')  # so that the first is still being confined
        lease = first.acquire(cores='1')[1]
        eventually(self.put_calls, 'the mask of the first')
        with self.fails('NotNow', f'{NAME} is confined for {lease["id"]} already'):
            second.active(cores='1', share='yes')
        self.bed.behave(self.watcher, 'normal')
        self.bed.put(f'{CGROUP2.lstrip("/")}{cgroup}/cpuset.cpus.effective', lease['placement']['cpus'])
        first.wait(lease['id'], 'active')
        second.kill()
        self.end(first, lease)
        self.assertEqual(self.bed.allowed_cpus(self.watcher, NAME), [])
        self.assertEqual(self.bed.shown(cgroup, 'cpuset.cpus.effective'), '0-7')

    def test_an_ending_without_systemd_is_made_up_for_when_it_is_back(self):
        client, cgroup = self.bed.service()
        client.active(cores='1', numa_balancing='off', grace='0s')
        # As when systemd executes itself anew: for a while nobody has its name.
        self.bed.systemd.kill()
        client.kill()
        self.bed.empty(cgroup)
        eventually(lambda: self.bed.balancing() == '1', 'what needs no systemd is put back at once')
        self.assertEqual(self.dropins(), OURS)
        self.bed.cgroups.append(cgroup)
        self.bed.start_systemd()
        self.bed.service()
        eventually(lambda: self.dropins() == [], 'our drop-ins gone')
        self.assertEqual(self.bed.allowed_cpus(self.watcher, NAME), [])



if __name__ == '__main__':
    bed.main()
