"""Who calls is what the bus says, and nothing that the caller says."""

import xml.etree.ElementTree as xml

import bed
from bed import LEASE, NOBODY, PATH, eventually


class Identity(bed.Case):
    def setUp(self):
        super().setUp()
        self.bed.start_polkit(acquire='yes', manage='no')
        self.bed.start_daemon()
        self.watcher = self.bed.connect()

    def leases(self):
        return self.watcher.call('ListLeases')[0]

    def test_uid_and_pid_come_from_the_bus(self):
        client = self.bed.connect(user=NOBODY, group=NOBODY, extra_groups=[])
        lease = client.active(cores='1')
        path = f'{PATH}/lease/{lease["id"]}'
        self.assertEqual(self.watcher.get(path, LEASE, 'Uid'), NOBODY)
        self.assertEqual(self.watcher.get(path, LEASE, 'Pid'), client.pid)

    def test_no_field_of_a_request_names_a_caller(self):
        for field in ('pid', 'uid', 'caller', 'cgroup', 'caller.pid', 'caller.uid'):
            with self.fails('InvalidRequest', field):
                self.watcher.acquire(**{field: '1'})
            with self.fails('InvalidRequest', field):
                self.watcher.call('Acquire', 'a{sv}', {field: 1})
        self.assertEqual(self.leases(), [])

    def test_no_method_takes_a_number_that_could_be_a_process(self):
        for method in xml.parse(bed.OPTIONS.xml).iter('method'):
            for arg in method.findall('arg'):
                if arg.get('direction') == 'in':
                    self.assertIn((arg.get('name'), arg.get('type')),
                                  {('id', 's'), ('until', 's'), ('request', 'a{sv}'), ('grace_usec', 't'), ('time_usec', 't'),
                                   ('max', 'u'), ('waiting', 'u'), ('text', 's'),
                                   ('file', 'h')})

    def test_a_caller_that_exits_before_the_answer_leaves_no_lease_that_lasts(self):
        for _ in range(10):
            client = self.bed.connect()
            client.send('Acquire', 'a{sv}', {'cores': '1', 'numa-balancing': 'off'}, quit=True)
            client.process.wait(bed.PATIENCE)
        self.watcher.call('GetStatus')  # asked after all of them
        eventually(lambda: all(it['state'] in ('ended', 'refused') for it in self.leases()), 'no lease is left')
        eventually(lambda: self.bed.balancing() == '1')

    def test_a_caller_whose_process_is_gone_is_refused_although_its_connection_lives(self):
        orphan = self.bed.connect(then=['true'])
        orphan.process.wait(bed.PATIENCE)
        with self.fails('Denied', 'gone'):
            orphan.acquire(cores='1')
        self.assertEqual(self.leases(), [])

    def test_a_caller_whose_process_is_our_own_is_refused(self):
        self.bed.daemon.kill()
        # Whoever opened this connection has become the daemon.
        inside = self.bed.connect(then=self.bed.daemon_words())
        eventually(lambda: inside.call('NameHasOwner', 's', bed.SERVICE, to='org.freedesktop.DBus',
                                       path='/org/freedesktop/DBus', interface='org.freedesktop.DBus')[0])
        self.assertEqual(inside.call('GetStatus')[0]['pid'], inside.pid)
        with self.fails('Denied', f'process {inside.pid}: cannot hold a lease'):
            inside.acquire(cores='1')
        self.assertEqual(self.leases(), [])

    def test_a_caller_that_changed_its_uid_after_it_connected_is_refused(self):
        client = self.bed.connect(then=['setpriv', f'--reuid={NOBODY}', f'--regid={NOBODY}', '--clear-groups', 'sleep',
                                        '1000'])
        eventually(lambda: f'Uid:\t{NOBODY}' in bed.text_of(f'/proc/{client.pid}/status'))
        with self.fails('Denied', f'runs as uid {NOBODY}, but the request came from uid 0'):
            client.acquire(cores='1')

    def test_another_users_lease_is_not_to_be_ended_or_entered(self):
        lease = self.watcher.active(cores='1')['id']
        stranger = self.bed.connect(user=NOBODY, group=NOBODY, extra_groups=[])
        for member, signature, args in (('Release', 's', [lease]), ('Stop', 'st', [lease, 0]), ('Join', 's', [lease])):
            with self.fails('Denied', 'org.numalease1.manage'):
                stranger.call(member, signature, *args)
        self.assertEqual(stranger.lease(lease)['state'], 'active')


if __name__ == '__main__':
    bed.main()
