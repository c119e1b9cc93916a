"""Broken and hostile input: on the socket, in the journal, in the runtime directory, and a second daemon."""

import contextlib
import grp
import os
import pathlib
import signal
import socket
import subprocess
import time
import zlib

import harness
from harness import BALANCING, PAGES, Case, alive, eventually, read, snapshot
from messages_test import NOBODY
from wire import BusError, Variant, Wire

BOOT = pathlib.Path('/proc/sys/kernel/random/boot_id')


@contextlib.contextmanager
def as_nobody():
    """What the kernel says of a socket is who connected or listened."""
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


class Socket(Case):
    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()
        self.before = snapshot()

    def still_answers(self):
        self.assertIsNone(self.daemon.popen.poll(), self.daemon.err)
        with self.daemon.wire() as wire:
            self.assertEqual(wire.call('ListLeases'), [])
        self.assertEqual(snapshot(), self.before)

    def refused(self, *arguments, wire=None, name='InvalidRequest'):
        with self.daemon.wire() as own, self.assertRaises(BusError) as caught:
            (wire or own).call('Acquire', 'a{sv}', *arguments)
        self.assertEqual(caught.exception.name, name, caught.exception)
        return caught.exception.text

    def test_fields_that_are_wrong_are_named(self):
        for field, value in (('node', '0-'), ('node', '3-1'), ('node', '0,,2'), ('cores', '1e3'), ('cores', ''),
                             ('memory', '9' * 40), ('hugepages', '2M'), ('wait', 'tomorrow'), ('nonsense', '1'),
                             ('time', '-1s'), ('reason', 'a\nb'), ('reason', '\x1b[31m'), ('near', '../../etc')):
            with self.subTest(field=field, value=value):
                self.assertIn(field, self.refused({field: value}))
        self.still_answers()

    def test_values_of_another_type_are_refused(self):
        for variant in (Variant('u', 1), Variant('b', 1), Variant('x', -1), Variant('as', ['0']), Variant('d', 0.5),
                        Variant('a{sv}', {'a': 'b'}), Variant('v', Variant('s', '0')), Variant('(ss)', ('a', 'b')),
                        Variant('aa{sv}', [{'a': 'b'}])):
            with self.subTest(variant.signature):
                self.refused({'node': variant})
        self.still_answers()

    def test_a_dictionary_of_a_mebibyte(self):
        self.refused({f'key-{i:05}': 'x' * 100 for i in range(10000)})
        self.refused({'reason': 'x' * (1 << 20)})
        self.refused({'x' * (1 << 20): '1'})
        self.still_answers()

    def test_a_dictionary_of_great_depth(self):
        deep = Variant('s', 'bottom')
        for _ in range(30):
            deep = Variant('v', deep)
        self.refused({'node': deep})
        self.still_answers()

    def test_a_nul_in_a_text_ends_only_its_own_connection(self):
        with self.daemon.wire() as other, self.daemon.wire() as wire:
            wire.send('Acquire', 'a{sv}', {'reason': 'a\0b'})
            with self.assertRaises((ConnectionError, BusError)):
                wire.answer(1)
            self.assertEqual(other.call('ListLeases'), [])
        self.still_answers()

    def test_a_wrong_signature_and_an_unknown_method(self):
        with self.daemon.wire() as wire:
            for member, signature, arguments in (('Acquire', '', ()), ('Acquire', 's', ('x',)), ('Release', 'u', (1,)),
                                                 ('Nothing', '', ()), ('Stop', 's', ('c1',))):
                with self.subTest(member=member), self.assertRaises(BusError):
                    wire.call(member, signature, *arguments)
        self.still_answers()

    def test_ids_that_are_none(self):
        with self.daemon.wire() as wire:
            for lease in ('', 'c0', 'c1', 'c18446744073709551616', '../c1', 'x' * 100000, 'c1 c2'):
                for member, signature, rest in (('Release', 's', ()), ('Join', 's', ()), ('GetLease', 's', ()),
                                                ('Stop', 'st', (0,)), ('Wait', 'ss', ('ended',))):
                    with self.subTest(member=member, lease=lease[:20]), self.assertRaises(BusError) as caught:
                        wire.call(member, signature, lease, *rest)
                    self.assertEqual(caught.exception.name, 'NoSuchLease')
        self.still_answers()

    def test_the_most_extreme_numbers(self):
        with self.daemon.wire() as wire:
            lease, _ = wire.acquire(share='yes')
            with self.assertRaises(BusError) as caught:
                wire.call('Stop', 'st', lease, (1 << 64) - 1)
            self.assertEqual(caught.exception.name, 'InvalidRequest')
            with self.assertRaises(BusError) as caught:
                wire.call('Wait', 'ss', lease, 'doomsday')
            self.assertEqual(caught.exception.name, 'InvalidRequest')

    def vanish(self, **fields):
        """A client that acquires and is gone before it asks anything else."""
        pid = os.fork()
        if pid == 0:
            try:
                self.daemon.wire().acquire(**fields)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    def test_a_client_that_vanishes_between_acquire_and_wait_leaves_no_lease(self):
        self.need(BALANCING)
        before = self.set_kernel({BALANCING: 1, PAGES: 3})
        for _ in range(5):
            self.vanish(numa_balancing='off', hugepages='2M=32M')
        self.expect_kernel(before)
        eventually(lambda: self.leases() == [], what='no lease is left')

    def test_a_client_that_vanishes_without_reading_the_answer(self):
        pid = os.fork()
        if pid == 0:
            try:
                self.daemon.wire().send('Acquire', 'a{sv}', {'numa-balancing': 'off'})
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        eventually(lambda: self.leases() == [] and snapshot() == self.before, what='no lease is left')

    def test_calls_sent_together_with_the_end_of_the_authentication(self):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.settimeout(5)
        one.connect(f'{self.runtime_dir}/socket')
        with self.daemon.wire() as wire:
            call = wire.bytes_of('ListLeases')
        one.sendall(b'\0AUTH EXTERNAL 30\r\nBEGIN\r\n' + call + call)
        seen = b''
        while seen.count(b'aa{sv}') < 2:  # the signature of the answer
            seen += one.recv(65536)
        one.close()

    def test_a_flood_of_connections_and_garbage(self):
        flood = []
        for i in range(200):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            one.connect(f'{self.runtime_dir}/socket')
            if i % 4 == 1:
                one.sendall(os.urandom(4096))
            elif i % 4 == 2:
                one.sendall(b'\0AUTH EXTERNAL 30\r\nBEGIN\r\n' + b'l\1\0\1\xff\xff\xff\x7f' + os.urandom(512))
            elif i % 4 == 3:
                one.sendall(b'\0AUTH EXTERNAL 30\r\n')
            flood.append(one)
        start = time.monotonic()
        self.still_answers()
        self.assertLess(time.monotonic() - start, 5)
        for one in flood:
            one.close()
        self.still_answers()

    def test_calls_sent_without_reading_any_answer(self):
        with self.daemon.wire() as wire:
            wire.socket.settimeout(0.2)
            try:
                for _ in range(20000):
                    wire.send('GetTopology')
            except (TimeoutError, ConnectionError):
                pass
            self.still_answers()
        self.still_answers()


class Others(Case):
    """Two users where the socket is open to a group."""

    def setUp(self):
        super().setUp()
        config = pathlib.Path(self.runtime_dir) / 'site.yaml'
        config.write_text(f'group: {grp.getgrgid(65534).gr_name}\nlimits: {{leases: 2, queued: 1}}\n')
        self.daemon = self.start_daemon('--config', config)

    def test_a_member_of_the_group_gets_a_lease(self):
        done = self.ctl('run', '--cores', '1', '--', 'id', '-u', prefix=NOBODY)
        self.assertEqual((done.returncode, done.stdout), (0, '65534\n'), done.stderr)

    def test_but_may_not_drop_the_page_cache(self):
        self.assert_failure(self.ctl('run', '--page-cache', 'drop', '--', 'true', prefix=NOBODY), 77, 'drop-caches')

    def test_anothers_lease_can_be_seen_and_not_touched(self):
        process = self.run_lease()
        for words in (['release', 'c1'], ['stop', 'c1'], ['exec', 'c1', '--', 'true']):
            with self.subTest(words):
                self.assert_failure(self.ctl(*words, prefix=NOBODY), 77, 'manage')
        self.assertTrue(alive(process.pid))
        self.assertEqual(self.ctl('show', 'c1', prefix=NOBODY).returncode, 0)

    def test_a_user_has_sixteen_connections_and_the_log_one_line_a_second_for_the_others(self):
        path = f'{self.runtime_dir}/socket'
        with contextlib.ExitStack() as kept, as_nobody():
            for _ in range(16):
                kept.enter_context(Wire(path))
            with self.assertRaises(ConnectionError):
                Wire(path)
        for _ in range(30):
            self.ctl('run', '--page-cache', 'drop', '--', 'true', prefix=NOBODY)
        self.daemon.expect_said(' count=')
        denied = [line for line in self.daemon.err.splitlines() if 'uid=65534' in line]
        self.assertLess(len(denied), 20, denied)

    def test_quotas_of_a_user(self):
        for _ in range(2):
            self.run_user('--share', '--cores', '1')
        self.assert_failure(self.ctl('run', '--no-wait', '--share', '--cores', '1', '--', 'true', prefix=NOBODY), 77,
                            'leases')

    def run_user(self, *options):
        process = self.start([*NOBODY, *self.words('run', *options, '--', 'sh', '-c', 'echo up; exec sleep 1000')])
        process.expect('up')
        return process


class Strangers(Case):
    """A runtime directory, or a socket, that somebody else prepared."""

    def refused(self, *texts):
        done = subprocess.run([harness.BIN / 'numa-leased', '--bus', 'none', '--runtime-dir', self.runtime_dir],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 77, done.stderr)
        for text in (self.runtime_dir, *texts):
            self.assertIn(text, done.stderr)
        self.assert_failure(self.ctl('run', '--', 'true'), 69, *texts)  # no daemon comes up

    def test_a_directory_of_somebody_else_is_not_used(self):
        os.chown(self.runtime_dir, 65534, 65534)
        self.refused('uid 65534')
        self.assertIn('leases are not shown', self.ctl('list').stderr)

    def test_a_directory_that_others_may_write_is_not_used(self):
        for mode in (0o775, 0o1777):
            os.chmod(self.runtime_dir, mode)
            self.refused('others than its owner')

    def test_a_socket_that_somebody_else_serves_is_not_spoken_to(self):
        os.chown(self.runtime_dir, 65534, 65534)
        server = socket.socket(socket.AF_UNIX)
        self.addCleanup(server.close)
        with as_nobody():
            server.bind(f'{self.runtime_dir}/socket')
            server.listen()
        for words in (['run', '--', 'true'], ['list']):
            with self.subTest(words):
                self.assert_failure(self.ctl(*words, timeout=10), 77, f'{self.runtime_dir}/socket', 'uid 65534')


class JournalAtStart(Case):
    """What may lie in the runtime directory when the daemon starts."""

    def setUp(self):
        super().setUp()
        self.need(BALANCING)
        self.before = self.set_kernel({BALANCING: 1, PAGES: 3})
        self.journal = pathlib.Path(self.runtime_dir) / 'journal'

    def leave_behind(self):
        """A dead daemon and a dead workload: the kernel is changed, and the journal says how."""
        daemon = self.start_daemon()
        workload = self.run_lease('--numa-balancing', 'off', '--hugepages', '2M=32M')
        for process in (daemon, workload):
            process.kill()
            process.wait()
        self.assertEqual((read(BALANCING), read(PAGES)), ('0', '19'))

    def starts(self, *warnings):
        daemon = self.start_daemon()
        for warning in warnings:
            daemon.expect_said(warning)
        self.assertEqual(self.ctl('run', '--', 'true').returncode, 0)
        return daemon

    def test_a_torn_tail_is_dropped_and_the_rest_is_used(self):
        self.leave_behind()
        with self.journal.open('ab') as file:
            file.write(b'0badc0de 999 row numa_balancing pri')
        self.starts('level=warning')
        self.expect_kernel(self.before)

    def test_cut_anywhere_it_starts_and_takes_no_value_of_ours_for_a_prior(self):
        self.leave_behind()
        whole = self.journal.read_bytes()
        for size in (0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            with self.subTest(size):
                self.journal.write_bytes(whole[:size])
                self.assertIn(self.restore().returncode, (0, 1))
        self.journal.write_bytes(whole)
        harness.write(BALANCING, 0)
        harness.write(PAGES, 19)
        self.starts()
        self.expect_kernel(self.before)

    def test_a_foreign_file(self):
        for content in (b'', b'\0' * 4096, b'#!/bin/sh\nexit 1\n', os.urandom(100000), b'\n' * 1000,
                        b'numa-lease-journal 999 boot=x\n'):
            with self.subTest(content[:20]):
                self.journal.write_bytes(content)
                daemon = self.starts()
                daemon.kill(signal.SIGTERM)
                self.assertEqual(daemon.wait(), 0, daemon.err)
                self.assertEqual(snapshot(), self.before)

    def test_another_boots_journal_is_set_aside(self):
        self.leave_behind()
        text = self.journal.read_text()
        self.assertIn(BOOT.read_text().strip(), text)
        self.journal.write_text(text.replace(BOOT.read_text().strip(), '00000000-0000-0000-0000-000000000000'))
        self.starts('boot')
        self.assertEqual((read(BALANCING), read(PAGES)), ('0', '19'))  # another kernel's business
        self.assertEqual([it for it in self.leases()], [])

    def test_a_well_formed_journal_with_hostile_values(self):
        lines = [f'numa-lease-journal 1 boot={BOOT.read_text().strip()}']
        for number, body in enumerate(('row numa_balancing prior=../../etc/passwd writing=0',
                                       'row hugepages/2M/node99 prior=99999999999999999999',
                                       'row nonsense/%00 prior=1', 'lease c1 id=c2 state=active', 'lease ../x id=../x',
                                       'counter leases next=18446744073709551615', 'row numa_balancing gone',
                                       'lease c7 id=c7 state=active caller.process.pid=1'), start=1):
            line = f'{number} {body}'
            lines.append(f'{zlib.crc32(line.encode()):08x} {line}')
        self.journal.write_text('\n'.join(lines) + '\n')
        daemon = self.start_daemon()
        self.assertIsNone(daemon.popen.poll())
        self.ctl('list')
        self.assertEqual(snapshot(), self.before)
        daemon.kill(signal.SIGTERM)
        daemon.wait()
        self.assertEqual(snapshot(), self.before)

    def test_a_symbolic_link_is_not_followed(self):
        target = pathlib.Path(self.runtime_dir) / 'precious'
        target.write_text('precious\n')
        self.journal.symlink_to(target)
        daemon = harness.Daemon(self.runtime_dir)
        self.track(daemon)
        self.assertEqual(target.read_text(), 'precious\n')


class FullDirectory(Case):
    """A runtime directory on a tiny file system of a mount namespace of its own."""

    def setUp(self):
        super().setUp()
        self.need(BALANCING)
        self.before = self.set_kernel({BALANCING: 1, PAGES: 3})
        self.daemon = self.start_daemon(prefix=harness.with_mounts(
            f'mount -t tmpfs -o size=64k,mode=755 none {self.runtime_dir}'))
        self.inside = ('nsenter', '--mount', '--root', '--target', self.daemon.pid, '--')
        self.filler = pathlib.Path(f'/proc/{self.daemon.pid}/root{self.runtime_dir}/filler')

    def fill(self):
        with open(self.filler, 'wb', buffering=0) as file:
            try:
                while True:
                    file.write(bytes(512))
            except OSError:
                pass

    def inside_lease(self):
        process = self.start([*self.inside, *self.words('run', '--share', '--numa-balancing', 'off', '--hugepages',
                                                        '2M=32M', '--', 'sh', '-c', 'echo up; exec sleep 1000')])
        process.expect('up')
        return process

    def test_a_full_directory_refuses_new_leases_and_ends_old_ones(self):
        process = self.inside_lease()
        self.fill()
        done = self.ctl('run', '--share', '--thp', 'never', '--', 'true', prefix=self.inside)
        self.assert_failure(done, 125, 'journal')
        self.assertEqual(read(BALANCING), '0')
        process.kill()
        self.expect_kernel(self.before)
        self.assertIn('journal', ' '.join(self.json('status', prefix=self.inside)['daemon']['degraded']))
        self.filler.unlink()
        eventually(lambda: self.ctl('run', '--', 'true', prefix=self.inside).returncode == 0, what='a lease again')

    def test_it_starts_and_puts_back_in_a_full_directory(self):
        process = self.inside_lease()
        self.fill()
        keeper = self.start([*self.inside, 'sleep', '1000'])  # keeps the namespace
        inside = ('nsenter', '--mount', '--root', '--target', keeper.pid, '--')
        eventually(lambda: pathlib.Path(f'/proc/{keeper.pid}/exe').resolve().name == 'sleep', what='sleep')
        for it in (self.daemon, process):
            it.kill()
            it.wait()
        self.assertEqual((read(BALANCING), read(PAGES)), ('0', '19'))
        self.start_daemon(prefix=inside)
        self.expect_kernel(self.before)


class SecondDaemon(Case):
    def second(self, runtime_dir, prefix=()):
        daemon = self.track(harness.Daemon(runtime_dir, prefix=prefix))
        self.assertFalse(daemon.is_ready)
        self.assertEqual(daemon.wait(), 125)
        return daemon.err

    def test_a_second_daemon_on_this_kernel_refuses_to_start(self):
        first = self.start_daemon()
        other = self.runtime_dir + '-other'
        for directory in (self.runtime_dir, other):
            said = self.second(directory)
            self.assertIn(f'PID {first.pid}', said)
            self.assertEqual(len(said.strip().splitlines()), 1, said)
        self.assertEqual(self.ctl('list').returncode, 0)

    def test_also_from_another_mount_namespace(self):
        self.start_daemon()
        script = f'mount -t tmpfs -o mode=755 none {self.runtime_dir}'
        self.assertIn('one numa-leased serves a kernel',
                      self.second(self.runtime_dir, harness.with_mounts(script)))
        self.assertIn('one numa-leased serves a kernel', self.second(
            self.runtime_dir + '-other',
            harness.with_mounts('umount --recursive --lazy /sys; mount -t sysfs none /sys')))

    def test_restore_beside_a_living_daemon_refuses_and_changes_nothing(self):
        self.need(BALANCING)
        harness.write(BALANCING, 1)
        self.start_daemon()
        self.run_lease('--numa-balancing', 'off')
        self.assertEqual(self.restore().returncode, 125)
        self.assertEqual(read(BALANCING), '0')


if __name__ == '__main__':
    harness.main()
