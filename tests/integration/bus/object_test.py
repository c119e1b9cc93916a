"""The object on the bus: when it appears, what it says of itself, and what it tells while a lease lives."""

import os
import shutil
import socket
import subprocess
import xml.etree.ElementTree as xml

import bed
from bed import LEASE, MANAGER, PATH, SERVICE

INTROSPECTABLE = 'org.freedesktop.DBus.Introspectable'
PROPERTIES = 'org.freedesktop.DBus.Properties'
OBJECT_MANAGER = 'org.freedesktop.DBus.ObjectManager'
OURS = f"type='signal',sender='{SERVICE}'"


def parse(text):
    """What an introspection says, without comments and order: {interface: {(kind, name): details}}."""
    out = {}
    for interface in xml.fromstring(text).findall('interface'):
        members = out.setdefault(interface.get('name'), {})
        for member in interface:
            args = [(arg.get('name'), arg.get('type'), arg.get('direction')) for arg in member.findall('arg')]
            notes = {note.get('name'): note.get('value') for note in member.findall('annotation')}
            members[member.tag, member.get('name')] = (args, member.get('type'), member.get('access'), notes)
    return out


class Appearance(bed.Case):
    def test_the_name_appears_only_when_the_object_can_be_called_and_ready_comes_after_it(self):
        watcher = self.bed.connect()
        watcher.match("type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='org.numalease1'")
        notify = f'{self.bed.top}/ready'
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
            inbox.bind(notify)
            inbox.settimeout(bed.PATIENCE)
            self.bed.start(self.bed.daemon_words(), stderr=self.bed.stderr, env={**os.environ, 'NOTIFY_SOCKET': notify})
            watcher.expect(lambda line: '"signal":"NameOwnerChanged"' in line, 'the name')
            # Called in the instant in which it is seen.
            self.assertEqual(watcher.call('GetStatus')[0]['mode'], 'daemon')
            self.assertIn(b'READY=1', inbox.recv(4096))
        owner = watcher.call('GetNameOwner', 's', SERVICE, to='org.freedesktop.DBus', path='/org/freedesktop/DBus',
                             interface='org.freedesktop.DBus')
        self.assertEqual(owner[0], watcher.signals('NameOwnerChanged')[0]['args'][2])

    def test_ready_finds_the_name_taken(self):
        self.bed.start_daemon()
        watcher = self.bed.connect()
        self.assertTrue(watcher.call('NameHasOwner', 's', SERVICE, to='org.freedesktop.DBus',
                                     path='/org/freedesktop/DBus', interface='org.freedesktop.DBus')[0])

    def second(self, root):
        """What a daemon with a runtime directory of its own says when it cannot start on `root`."""
        words = self.bed.daemon_words()
        words[words.index('--runtime-dir') + 1] = str(self.bed.top / 'second-run')
        words[words.index('--root') + 1] = str(root)
        done = subprocess.run(words, capture_output=True, text=True, timeout=bed.PATIENCE, check=False)
        self.assertEqual(done.returncode, 125)
        return done.stderr

    def test_a_second_daemon_on_the_bus_or_on_the_kernel_is_refused_and_says_so(self):
        self.bed.start_daemon()
        shutil.copytree(self.bed.root, self.bed.top / 'other-kernel')
        self.assertIn('org.numalease1 is owned by another process on this bus',
                      self.second(self.bed.top / 'other-kernel'))
        self.assertIn('sys/kernel/mm', self.second(self.bed.root))
        self.assertEqual(self.bed.connect().call('GetStatus')[0]['pid'], self.bed.daemon.pid)


class Object(bed.SessionCase):
    def setUp(self):
        super().setUp()
        self.watcher.match(OURS)

    def caller(self):
        return self.bed.connect(cgroup=self.session)

    def introspect(self, path):
        return parse(self.watcher.call('Introspect', path=path, interface=INTROSPECTABLE)[0])

    def managed(self):
        return self.watcher.call('GetManagedObjects', interface=OBJECT_MANAGER)[0]

    def test_introspection_equals_the_file(self):
        with open(bed.OPTIONS.xml) as file:
            written = parse(file.read())
        manager = self.introspect(PATH)
        self.assertEqual(manager[MANAGER], written[MANAGER])
        self.assertIn(OBJECT_MANAGER, manager)
        self.assertNotIn(LEASE, manager)
        lease = self.caller().active(cores='1')
        of_lease = self.introspect(f'{PATH}/lease/{lease["id"]}')
        self.assertEqual(of_lease[LEASE], written[LEASE])
        self.assertNotIn(MANAGER, of_lease)
        self.assertEqual(set(written), {MANAGER, LEASE})

    def test_a_lease_that_is_not_there_has_no_object(self):
        with self.fails('UnknownObject'):
            self.watcher.get(f'{PATH}/lease/c99', LEASE, 'State')

    def test_managed_objects_are_the_leases_with_their_properties(self):
        self.assertEqual(self.managed(), {})
        client = self.caller()
        lease = client.active(cores='1', reason='a test')
        path = f'{PATH}/lease/{lease["id"]}'
        managed = self.managed()
        self.assertEqual(list(managed), [path])
        properties = managed[path][LEASE]
        self.assertEqual({name: properties[name] for name in properties if name != 'Details'},
                         {'Id': lease['id'], 'State': 'active', 'Reason': 'granted', 'Uid': 0, 'Pid': client.pid,
                          'Command': 'bus_client', 'Cpus': lease['placement']['cpus'], 'Nodes': '0', 'Gpus': '',
                          'Cores': 1, 'Threads': 1})
        for name, value in properties.items():
            if name != 'Details':
                self.assertEqual(self.watcher.get(path, LEASE, name), value)
        self.assertEqual(self.watcher.get(path, LEASE, 'Details')['confinement'], lease['confinement'])

    def test_properties_cannot_be_written(self):
        lease = self.caller().active(cores='1')
        with self.fails('PropertyReadOnly'):
            self.watcher.call('Set', 'ssv', LEASE, 'State', 'ended', path=f'{PATH}/lease/{lease["id"]}',
                              interface=PROPERTIES)

    def test_the_manager_says_its_version(self):
        self.assertRegex(self.watcher.get(PATH, MANAGER, 'Version'), r'^\d+\.\d+\.\d+$')
        self.assertEqual(self.watcher.call('GetStatus')[0]['version'], self.watcher.get(PATH, MANAGER, 'Version'))

    def test_every_change_of_a_lease_is_told_from_queued_to_ended(self):
        # Neither lease wants the prior, so that each ending has something to do.
        self.bed.put('proc/sys/kernel/numa_balancing', '2')
        first = self.caller()
        first.active(cores='1', numa_balancing='off', required='numa-balancing')
        second = self.caller()
        lease, said = second.acquire(cores='1', numa_balancing='on', required='numa-balancing', wait='forever')
        self.assertEqual(said['state'], 'queued')
        path = f'{PATH}/lease/{lease}'
        active = second.send('Wait', 'ss', lease, 'active')
        first.kill()
        second.answer(active)
        ended = self.watcher.send('Wait', 'ss', lease, 'ended')
        second.kill()
        self.watcher.answer(ended)

        states = [it['args'][1] for it in self.watcher.signals('LeaseChanged') if it['args'][0] == lease]
        self.assertEqual(list(dict.fromkeys(states)), ['queued', 'preparing', 'active', 'ending', 'ended'])
        self.assertTrue(all(it['args'][2] for it in self.watcher.signals('LeaseChanged')), 'each has a reason')
        added = [it for it in self.watcher.signals('InterfacesAdded') if it['args'][0] == path]
        self.assertEqual(len(added), 1)
        self.assertEqual(added[0]['args'][1][LEASE]['State'], 'queued')
        changed = [it for it in self.watcher.signals('PropertiesChanged') if it['path'] == path]
        told = [it['args'][1]['State'] for it in changed]
        self.assertEqual(list(dict.fromkeys(told)), ['preparing', 'active', 'ending', 'ended'])
        self.assertTrue(all(it['args'][0] == LEASE and 'Id' not in it['args'][1] for it in changed))
        granted = next(it['args'][1] for it in changed if it['args'][1]['State'] == 'active')
        self.assertEqual((granted['Reason'], granted['Cores']), ('granted', 1))

    def test_an_old_lease_leaves_the_bus_and_that_is_told(self):
        client = self.caller()
        for _ in range(66):  # 64 that are over are kept
            lease = self.over(client)
        gone = [it['args'] for it in self.watcher.signals('InterfacesRemoved')]
        self.assertIn([f'{PATH}/lease/c1', [LEASE]],
                      [[path, [name for name in names if name == LEASE]] for path, names in gone])
        self.assertNotIn(f'{PATH}/lease/c1', self.managed())
        self.assertIn(f'{PATH}/lease/{lease}', self.managed())

    def over(self, client):
        """A lease that is over at once: refused by a systemd that refuses."""
        self.bed.behave(self.watcher, 'refuse')
        lease = client.acquire(cores='1')[0]
        self.watcher.wait(lease, 'ended')
        return lease


if __name__ == '__main__':
    bed.main()
