"""What those who share a machine see of each other: how busy, what was, who is there without a lease, and asking."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import threading

import bed
from bed import NOBODY, PATIENCE, eventually

ENTER, LEAVE = '\x1b[?1049h\x1b[?25l', '\x1b[?25h\x1b[?1049l'
WIDTH = 80
ALL = str(min(8, len(os.sched_getaffinity(0))))  # of the machine below the fake root, what a caller may have


def has_terminal(slave):
    """In a child: this is its controlling terminal."""
    def become():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    return become


class Seeing(bed.SessionCase):
    def ctl(self, *verb, **options):
        return subprocess.run([f'{bed.OPTIONS.bin}/numa-leasectl', '--bus', self.bed.address, *verb],
                              capture_output=True, text=True, timeout=PATIENCE, check=False, **options)

    def caller(self, **options):
        return self.bed.connect(cgroup=self.session, **options)

    def count(self, lease, usec, pressure=0):
        """Shows what the cgroup of a lease has used."""
        path = f'{bed.CGROUP2.lstrip("/")}{lease["confinement"]["cgroup"]}'
        self.bed.put(f'{path}/cpu.stat', f'usage_usec {usec}\nuser_usec {usec}')
        self.bed.put(f'{path}/cpu.pressure', f'some avg10=0.00 avg60=0.00 avg300=0.00 total={pressure}')

    def history(self, most=100):
        return self.watcher.call('History', 'u', most)[0]

    # ── How busy ────────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_lease_says_what_it_has_used_since_it_began(self):
        lease = self.caller().active(cores='2', time='2h')
        self.count(lease, 5_000_000, 70)
        use = eventually(lambda: self.watcher.lease(lease['id']).get('use'))
        self.assertEqual((use['cpu_usec'], use['cpu_pressure_usec']), (5_000_000, 70))
        self.assertGreater(use['busy_permille'], 0)
        listed, = self.watcher.call('ListLeases')[0]
        self.assertEqual(listed['use']['cpu_usec'], 5_000_000)
        self.assertLess(7_000_000_000, listed['left_usec'])
        self.assertLessEqual(listed['left_usec'], 7_200_000_000)
        text = self.ctl('list').stdout
        self.assertRegex(text.splitlines()[0], r'^ID +STATE +USER +.* BUSY +SINCE +LEFT +COMMAND$')
        self.assertRegex(text.splitlines()[1], r' \d+% ')
        self.assertRegex(self.ctl('show', lease['id']).stdout, r'state +active for .*, \d+% busy')

    def test_what_a_unit_used_before_is_not_its_leases(self):
        client, cgroup = self.bed.service()
        self.bed.put(f'{bed.CGROUP2.lstrip("/")}{cgroup}/cpu.stat', 'usage_usec 1000')
        lease = client.active(cores='1')
        self.assertEqual(lease['confinement']['kind'], 'unit')
        self.bed.put(f'{bed.CGROUP2.lstrip("/")}{cgroup}/cpu.stat', 'usage_usec 1500')
        eventually(lambda: self.watcher.lease(lease['id'])['use']['cpu_usec'] == 500)
        # So it is for the next daemon.
        self.bed.daemon.kill()
        self.bed.start_daemon()
        self.assertEqual(self.watcher.lease(lease['id'])['use']['cpu_usec'], 500)

    # ── Where its memory is ─────────────────────────────────────────────────────────────────────────────────────

    def charge(self, lease, text):
        self.bed.put(f'{bed.CGROUP2.lstrip("/")}{lease["confinement"]["cgroup"]}/memory.numa_stat', text)

    def test_when_its_engine_is_ready_the_daemon_keeps_where_its_memory_is(self):
        client = self.caller()
        lease = client.active(cores='2', command='engine')
        id = lease['id']
        self.assertNotIn('verified', lease)
        self.charge(lease, f'anon N0={300 << 20} N7={100 << 20}\nfile N0={9 << 20} N7=0\n'
                           f'file_mapped N0={8 << 20} N7=0\nshmem N0={1 << 20} N7=0\n')
        found = client.call('Verify', 's', id)[0]
        self.assertEqual(found['nodes'], {'0': {'anonymous': 301 << 20, 'file': 8 << 20, 'file_mapped': 7 << 20},
                                          '7': {'anonymous': 100 << 20, 'file': 0, 'file_mapped': 0}})
        self.assertEqual((found['inside'], found['total']), (309 << 20, 409 << 20))
        warning = '100M (24 %) is on node 7, outside of its nodes 0: 100M anonymous, 0 of files'
        self.assertEqual(found['warnings'], [warning])
        # What is asked again at once is not looked at again.
        self.charge(lease, 'anon N0=1')
        self.assertEqual(client.call('Verify', 's', id)[0], found)
        self.assertEqual(json.loads(self.ctl('list', '--json').stdout)[0]['verified'], found)
        self.assertIn(f'{id} when it was ready: {warning}\n', self.ctl('list').stdout)
        shown = self.ctl('show', id).stdout
        self.assertRegex(shown, r'verified +\d+s ago: 409M, 76 % of it on leased nodes \(node 0: 309M, node 7: 100M\)')
        self.assertRegex(shown, r'amiss then +100M \(24 %\)')
        line, = [it for it in self.bed.log.read_text().splitlines() if 'the memory of lease' in it]
        for text in ('level=warning', f'lease={id}', f'inside={309 << 20}', f'total={409 << 20}', 'warnings=1', warning):
            self.assertIn(text, line)
        self.bed.daemon.kill()
        self.bed.start_daemon()
        self.assertEqual(self.watcher.lease(id)['verified'], found)

    def test_where_its_memory_is_cannot_be_known_without_a_count(self):
        client = self.caller()
        lease = client.active(cores='1')
        found = client.call('Verify', 's', lease['id'])[0]
        cgroup = lease['confinement']['cgroup']
        self.assertEqual((found['unknown'], found['nodes']), (f'its cgroup {cgroup} has no memory.numa_stat', {}))
        self.assertIn(f'not known: its cgroup {cgroup}', self.ctl('show', lease['id']).stdout)

    def test_only_its_holder_says_that_an_engine_is_ready(self):
        lease = self.caller().active(cores='1')['id']
        stranger = self.bed.connect(user=NOBODY, group=NOBODY, extra_groups=[])
        with self.fails('Denied', 'org.numalease1.manage'):
            stranger.call('Verify', 's', lease)
        with self.fails('NoSuchLease'):
            self.watcher.call('Verify', 's', 'c99')

    # ── What was ────────────────────────────────────────────────────────────────────────────────────────────────

    def test_what_is_over_is_remembered_across_restarts(self):
        self.assertEqual(self.history(), [])
        client = self.caller()
        lease = client.active(cores='1', reason='a test')
        self.count(lease, 3_000_000)
        eventually(lambda: self.watcher.lease(lease['id'])['use'].get('cpu_usec') == 3_000_000)
        client.kill()  # its cgroup may be gone before it is looked at once more
        self.watcher.wait(lease['id'], 'ended')
        entry, = self.history()
        self.assertEqual((entry['id'], entry['uid'], entry['command'], entry['cores'], entry['state'], entry['cpu_usec']),
                         (lease['id'], 0, 'bus_client', 1, 'ended', 3_000_000))
        self.assertTrue(entry['reason'])
        self.assertGreater(entry['ran_usec'], 0)
        self.assertEqual(entry['boot'], self.bed.read('proc/sys/kernel/random/boot_id'))
        file = self.bed.runtime / 'history'
        eventually(lambda: file.exists() and file.read_text().count('\n') == 1, 'the line is in the file')
        with open(file, 'a') as torn:
            torn.write('00000000 0 lease c9')
        self.bed.daemon.kill()
        self.bed.start_daemon()
        self.assertEqual(self.history(), [entry])
        client = self.caller()
        second = client.active(cores='1')
        client.kill()
        self.watcher.wait(second['id'], 'ended')
        self.assertEqual([it['id'] for it in self.history()], [second['id'], lease['id']])
        self.assertEqual([it['id'] for it in self.history(1)], [second['id']])
        said = self.ctl('history', '--last', '1')
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertRegex(said.stdout.splitlines()[1], rf'^{second["id"]} +root +normal +1 ')
        self.assertEqual([it['id'] for it in json.loads(self.ctl('history', '--json').stdout)],
                         [second['id'], lease['id']])
        self.assertEqual(self.ctl('history', '--last', '0').returncode, 64)

    def test_a_history_that_cannot_be_written_costs_no_lease_and_one_warning(self):
        (self.bed.runtime / 'history').mkdir()
        for _ in range(3):
            client = self.caller()
            lease = client.active(cores='1')
            client.kill()
            self.watcher.wait(lease['id'], 'ended')
        self.assertEqual(len(self.history()), 3)
        self.bed.daemon.kill(signal.SIGTERM)
        self.assertEqual(self.bed.log.read_text().count('the history of leases is not kept'), 1)

    def test_a_request_that_waited_in_vain_is_there_and_one_that_did_not_is_not(self):
        first = self.caller()
        first.active(cores=ALL)
        with self.fails('NotNow'):
            self.caller().acquire(cores=ALL, wait='no')
        second = self.caller()
        lease = second.acquire(cores=ALL, wait='forever')[0]
        second.kill()
        self.watcher.wait(lease, 'ended')
        entry, = self.history()
        self.assertEqual(entry['id'], lease)
        self.assertNotIn('ran_usec', entry)

    # ── Who is there without a lease ────────────────────────────────────────────────────────────────────────────

    def test_who_is_busy_on_leased_cpus_is_named_at_grant_and_on_demand(self):
        self.assertEqual(self.watcher.call('GetSquatters')[0], [])
        cpu = min(os.sched_getaffinity(0))
        burner = self.bed.start(['nice', '-n', '-20', 'taskset', '-c', str(cpu), 'sh', '-c', 'while :; do :; done'])
        eventually(lambda: bed.text_of(f'/proc/{burner.pid}/comm') == 'sh')
        lease = self.caller().active(cores=ALL)
        words = f'sh (pid {burner.pid}, root)'
        eventually(lambda: any(words in note for note in self.watcher.lease(lease['id'])['notes']), 'the note')
        self.assertIn('busy on its CPUs without a lease', self.bed.log.read_text())
        found = [it for it in self.watcher.call('GetSquatters')[0] if it['pid'] == burner.pid]
        self.assertEqual([(it['lease'], it['command'], it['cpus']) for it in found], [(lease['id'], 'sh', str(cpu))])
        self.assertGreater(found[0]['percent'], 20)
        self.assertIn(f'{words} without a lease on CPUs {cpu} of {lease["id"]}', self.ctl('status').stdout)

    def test_everybody_who_asks_shares_one_look(self):
        self.caller().active(cores=ALL)
        clients = [self.bed.connect() for _ in range(4)]
        asked = [(client, client.send('GetSquatters')) for client in clients for _ in range(8)]
        answers = {json.dumps(client.answer(number)) for client, number in asked}
        self.assertEqual(len(answers), 1)

    def test_run_says_so_at_a_terminal(self):
        cpu = min(os.sched_getaffinity(0))
        burner = self.bed.start(['nice', '-n', '-20', 'taskset', '-c', str(cpu), 'sh', '-c', 'while :; do :; done'])
        eventually(lambda: bed.text_of(f'/proc/{burner.pid}/comm') == 'sh')
        terminal = Terminal(['sh', '-c', 'echo 0 >"$0" && exec "$@"', f'{bed.CGROUP2}{self.session}/cgroup.procs',
                             f'{bed.OPTIONS.bin}/numa-leasectl', '--bus', self.bed.address, 'run', '--cores', ALL,
                             '--', 'echo', 'it', 'runs'])
        self.addCleanup(terminal.close)
        text = terminal.expect('it runs\r\n')
        self.assertIn(f'sh (pid {burner.pid}, root) without a lease on CPUs {cpu} of c', text)

    # ── Another tuner (CASES 9) ─────────────────────────────────────────────────────────────────────────────────

    def test_the_log_and_doctor_name_another_tuner_that_runs(self):
        tuned = shutil.copy(shutil.which('sleep'), self.bed.top / 'tuned')
        process = subprocess.Popen([tuned, '60'])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.bed.daemon.kill()
        self.bed.start_daemon()
        self.assertIn('tuned tunes this machine, too', self.bed.log.read_text())
        said = self.ctl('doctor')
        self.assertEqual(said.returncode, 1, said.stderr)
        self.assertIn('tuned tunes this machine, too', said.stdout)
        self.assertIn('    systemctl disable --now tuned\n', said.stdout)
        found = json.loads(self.ctl('--json', 'doctor').stdout)
        self.assertIn('systemctl disable --now tuned', [it['way_out'] for it in found])

    # ── Asking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_question_is_in_the_log_with_who_asked(self):
        lease = self.caller().active(cores='1')
        said = self.ctl('ask', lease['id'], 'are', 'you', 'done?')
        self.assertEqual((said.returncode, said.stderr), (0, ''))
        self.assertEqual(said.stdout, f'told who holds {lease["id"]} through: log (no process of it has a terminal)\n')
        line, = [it for it in self.bed.log.read_text().splitlines() if 'are you done?' in it]
        for field in (f'lease={lease["id"]}', 'asked_by=root', 'asked_by_uid=0', 'level=info'):
            self.assertIn(field, line)

    def test_only_one_harmless_line_in_ten_seconds_goes_through_and_only_of_who_may_lease(self):
        lease = self.caller().active(cores='1')['id']
        stranger = self.bed.connect(user=NOBODY, group=NOBODY, extra_groups=[])
        with self.fails('Denied', 'org.numalease1.acquire'):
            stranger.call('Ask', 'ss', lease, 'hello')
        for text in ('', 'a\nb', '\x1b[2J', '\u202eabc', 'x' * 501):
            with self.fails('InvalidRequest', 'text: '):
                self.watcher.call('Ask', 'ss', lease, text)
        with self.fails('NoSuchLease'):
            self.watcher.call('Ask', 'ss', 'c99', 'hello')
        self.watcher.call('Ask', 'ss', lease, 'hello')
        with self.fails('Quota', '10 s'):
            self.bed.connect().call('Ask', 'ss', lease, 'hello again')
        self.assertNotIn('hello again', self.bed.log.read_text())

    def terminal(self, mode):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        self.addCleanup(os.close, slave)
        os.chmod(os.ttyname(slave), mode)
        return master, slave

    def test_that_its_time_is_nearly_up_is_on_the_holders_terminal(self):
        master, slave = self.terminal(0o620)
        client = self.bed.connect(cgroup=None, preexec_fn=has_terminal(slave))
        lease = client.active(cores='1', time='5s')['id']
        self.assertEqual(select.select([master], [], [], 10)[0], [master])
        self.assertRegex(os.read(master, 4096).decode(),
                         f'\a?Your lease {lease} ends in [0-9mus ]+; for more time: numa-leasectl extend {lease} 1h\r')

    def test_a_question_is_on_the_holders_terminal_unless_it_wants_none(self):
        master, slave = self.terminal(0o620)
        client = self.bed.connect(cgroup=None, preexec_fn=has_terminal(slave))
        lease = client.active(cores='1')['id']
        said = self.watcher.call('Ask', 'ss', lease, 'größer?')[0]
        name = os.ttyname(slave).removeprefix('/dev/')
        self.assertEqual(said, {'lease': lease, 'through': ['log', f'terminal {name}']})
        shown = os.read(master, 4096).decode()
        self.assertIn(f'Message from root about your lease {lease} (numa-leasectl ask): größer?\r', shown)

    def test_a_terminal_with_mesg_n_is_left_alone(self):
        master, slave = self.terminal(0o600)
        client = self.bed.connect(preexec_fn=has_terminal(slave))
        said = self.watcher.call('Ask', 'ss', client.active(cores='1')['id'], 'hello')[0]
        self.assertEqual(said['through'], ['log'])
        self.assertIn('mesg n', said['no_terminal'])
        self.assertEqual(select.select([master], [], [], 0)[0], [])


class Terminal:
    """`top` on a terminal of its own, and all that it has shown."""

    def __init__(self, words, rows=24, columns=WIDTH):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(words, stdin=self.slave, stdout=self.slave, stderr=self.slave,
                                        preexec_fn=has_terminal(self.slave), env={**os.environ, 'COLUMNS': ''})
        self.text, self.changed = '', threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def resize(self, rows, columns):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))

    def _read(self):
        data = b''
        while True:
            try:
                data += os.read(self.master, 65536)
            except OSError:
                return
            with self.changed:
                self.text = data.decode(errors='replace').replace('\r\r\n', '\r\n')  # the terminal adds one
                self.changed.notify_all()

    def expect(self, text, start=0):
        with self.changed:
            found = self.changed.wait_for(lambda: text in self.text[start:], PATIENCE)
        assert found, f'{text!r} not in {self.text[start:]!r}'
        return self.text

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)


class Top(bed.SessionCase):
    def words(self, *more):
        return [f'{bed.OPTIONS.bin}/numa-leasectl', '--bus', self.bed.address, 'top', *more]

    def open(self, *more, **options):
        terminal = Terminal(self.words('--interval', '200ms', *more), **options)
        self.addCleanup(terminal.close)
        terminal.expect('NODE')
        return terminal

    def lease(self):
        return self.bed.connect(cgroup=self.session).active(cores='2', command='x' * 300, time='1h')['id']

    def assert_left(self, terminal, status=0):
        self.assertEqual(terminal.process.wait(PATIENCE), status)
        eventually(lambda: terminal.text.endswith(LEAVE), 'the terminal is left')
        self.assertTrue(terminal.text.startswith(ENTER), terminal.text[:40])
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before)

    def assert_fits(self, text, columns):
        for line in re.sub(r'\x1b\[[?0-9;]*[A-Za-z]', '', text.replace('\x1b[H', '\r\n')).split('\r\n'):
            self.assertLessEqual(len(line), columns, line)

    def test_once_needs_no_terminal(self):
        lease = self.lease()
        said = subprocess.run(self.words('--once'), capture_output=True, text=True, timeout=PATIENCE, check=False,
                              stdin=subprocess.DEVNULL)
        self.assertEqual((said.returncode, said.stderr), (0, ''))
        self.assertRegex(said.stdout, rf'(?m)^{lease} +root +active +0 +2 ')
        self.assertRegex(said.stdout, r'(?m)^0 +8 +2 ')
        self.assertNotIn('\x1b', said.stdout)
        self.assert_fits(said.stdout.replace('\n', '\r\n'), WIDTH)

    def test_for_programs(self):
        lease = self.lease()
        said = subprocess.run(self.words('--json'), capture_output=True, text=True, timeout=PATIENCE, check=True)
        found = json.loads(said.stdout)
        self.assertEqual([it['id'] for it in found['leases']], [lease])
        self.assertEqual([(it['id'], it['cores'], it['leased']) for it in found['nodes']], [(0, 8, 2)])

    def test_shows_what_comes_and_goes_and_leaves_with_q(self):
        terminal = self.open()
        terminal.expect('no leases')
        lease = self.lease()
        terminal.expect(f'\x1b[K\r\n{lease} ')
        waiting = self.bed.connect(cgroup=self.session).acquire(cores=ALL, wait='forever')[0]
        terminal.expect(f'{waiting} root, since')
        os.write(terminal.master, b'q')
        self.assert_left(terminal)
        self.assert_fits(terminal.text, WIDTH)

    def test_leaves_with_ctrl_c_and_with_a_signal(self):
        terminal = self.open()
        os.write(terminal.master, b'\x03')
        self.assert_left(terminal)
        for number in (signal.SIGTERM, signal.SIGHUP):
            terminal = self.open()
            terminal.process.send_signal(number)
            self.assert_left(terminal)

    def test_gives_the_terminal_back_while_it_is_stopped(self):
        terminal = self.open()
        os.write(terminal.master, b'\x1a')
        terminal.expect(LEAVE)
        eventually(lambda: bed.text_of(f'/proc/{terminal.process.pid}/stat').rsplit(')', 1)[1].split()[0] == 'T')
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before)
        at = len(terminal.text)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.expect('NODE', at)
        os.write(terminal.master, b'q')
        self.assert_left(terminal)

    def test_follows_the_size_of_the_terminal(self):
        self.lease()
        terminal = self.open()
        at = len(terminal.text)
        terminal.resize(6, 40)
        terminal.expect('more lines', at)
        begin = terminal.text.index('more lines', at)
        terminal.expect('NODE', begin)
        frame = terminal.text[terminal.text.rindex('\x1b[H', 0, begin):begin]
        self.assertEqual(frame.count('\r\n'), 5)
        self.assert_fits(frame, 40)
        os.write(terminal.master, b'q')
        self.assert_left(terminal)

    def test_says_that_the_daemon_has_gone_and_finds_the_next(self):
        terminal = self.open()
        self.bed.daemon.kill()
        terminal.expect('nobody has the name')
        at = len(terminal.text)
        self.bed.start_daemon()
        terminal.expect('NODE', at)
        os.write(terminal.master, b'q')
        self.assert_left(terminal)

    def test_an_interval_that_makes_no_sense_is_refused(self):
        for interval in ('0', '1us', '2h', 'often'):
            said = subprocess.run(self.words('--interval', interval), capture_output=True, text=True,
                                  timeout=PATIENCE, check=False)
            self.assertEqual(said.returncode, 64)
            self.assertIn('--interval', said.stderr)


if __name__ == '__main__':
    bed.main()
