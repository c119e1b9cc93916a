"""A machine of plain files, a private dbus-daemon, and the programs of the build on it.

Processes and cgroups are real, so the bus and the kernel say who calls; what the daemon reads and writes of the kernel
lies below a directory of its own, where fake_systemd shows the cpuset files that systemd would.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SERVICE = 'org.numalease1'
PATH = '/org/numalease1'
MANAGER = 'org.numalease1.Manager'
LEASE = 'org.numalease1.Lease'
SYSTEMD = 'org.freedesktop.systemd1'
NOBODY = 65534
PATIENCE = 20
OPTIONS = None

BUS_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
 <type>system</type>
 <listen>unix:path={path}/bus</listen>
 <servicedir>{path}/services</servicedir>
 <auth>EXTERNAL</auth>
 <policy context="default">
  <allow user="*"/><allow own="*"/><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
  <allow send_type="method_call"/><allow receive_type="signal"/>
 </policy>
</busconfig>
"""


def text_of(path):
    return pathlib.Path(path).read_text().strip()


def find_cgroup2():
    """Where the unified hierarchy is mounted, the conventional place first; None where there is none."""
    found = []
    for line in text_of('/proc/self/mountinfo').splitlines():
        left, _, right = line.partition(' - ')
        if right.startswith('cgroup2 '):
            found.append(left.split()[4])
    return '/sys/fs/cgroup' if '/sys/fs/cgroup' in found else next(iter(found), None)


CGROUP2 = find_cgroup2()


def eventually(condition, what='what was waited for', patience=PATIENCE):
    """The first true value of `condition`, looked at until there is one: for what no event tells a test."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f'{what}: not within {patience} s')
        time.sleep(0.01)


class BusError(Exception):
    def __init__(self, name, text):
        super().__init__(f'{name}: {text}')
        self.name, self.text = name.rsplit('.', 1)[-1], text


class Program:
    """A process whose lines of output are collected as they come."""

    def __init__(self, words, cgroup=None, **options):
        if cgroup is not None:
            words = ['sh', '-c', 'echo 0 >"$0" && exec "$@"', f'{CGROUP2}{cgroup}/cgroup.procs', *words]
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        self.pid = self.process.pid
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip('\n'))
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)  # no more will come
            self.changed.notify_all()

    def expect(self, matches, what, start=0, patience=PATIENCE):
        """The first line from `start` on that matches."""
        deadline = time.monotonic() + patience
        with self.changed:
            while True:
                for line in self.lines[start:]:
                    if line is not None and matches(line):
                        return line
                left = deadline - time.monotonic()
                if left <= 0 or (self.lines and self.lines[-1] is None):
                    raise AssertionError(f'{what}: not seen in {self.lines}')
                self.changed.wait(left)

    def kill(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def close(self):
        self.process.stdin.close()  # what speaks for a process that became another one ends by this
        self.kill()
        self.reader.join(PATIENCE)
        self.process.stdout.close()


class Client(Program):
    """A bus connection in a process of its own; see bus_client.cpp."""

    def __init__(self, bed, then=(), **options):
        super().__init__([bed.client, bed.address, *then], stderr=bed.stderr, **options)
        self.ids = 0
        self.name = json.loads(self.expect(lambda line: 'unique' in line, 'the connection'))['unique']

    def tell(self, **command):
        self.process.stdin.write(json.dumps(command) + '\n')
        self.process.stdin.flush()

    def send(self, member, signature='', *args, to=SERVICE, path=PATH, interface=MANAGER, **more):
        self.ids += 1
        self.tell(id=self.ids, to=to, path=path, interface=interface, member=member, signature=signature,
                  args=list(args), **more)
        return self.ids

    def answer(self, number, patience=PATIENCE):
        line = self.expect(lambda text: json.loads(text).get('id') == number, f'an answer to {number}',
                           patience=patience)
        said = json.loads(line)
        if 'error' in said:
            raise BusError(said['error'], said['text'])
        return said['reply']

    def call(self, member, signature='', *args, patience=PATIENCE, **more):
        return self.answer(self.send(member, signature, *args, **more), patience)

    def acquire(self, **fields):
        """Id and lease; a field is named as on the command line, with _ for -."""
        return self.call('Acquire', 'a{sv}', {name.replace('_', '-'): text for name, text in fields.items()})

    def active(self, **fields):
        """Acquires and waits: the lease in force."""
        return self.wait(self.acquire(**fields)[0], 'active')

    def wait(self, lease, until):
        return self.call('Wait', 'ss', lease, until)[0]

    def lease(self, lease):
        return self.call('GetLease', 's', lease)[0]

    def get(self, path, interface, name):
        return self.call('Get', 'ss', interface, name, path=path, interface='org.freedesktop.DBus.Properties')[0]

    def match(self, rule):
        self.tell(match=rule)
        self.expect(lambda line: 'matched' in line and json.loads(line).get('matched') == rule, rule)

    def signals(self, name=None):
        with self.changed:
            said = [json.loads(line) for line in self.lines if line and line.startswith('{')]
        return [it for it in said if 'signal' in it and name in (None, it['signal'])]

    def run(self, kind, *words):
        """`exec`: becomes the command. `spawn`: starts it as a child and returns its PID."""
        self.tell(**{kind: list(words)})
        line = self.expect(lambda text: kind + ('ed' if kind == 'spawn' else '') in json.loads(text), kind)
        return json.loads(line).get('spawned')


class Bed:
    """Everything a test needs; `close` leaves nothing behind."""

    CPUS, NODES = '0-7', '0'

    def __init__(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix='numalease-bus-'))
        self.top.chmod(0o711)
        self.client = shutil.copy(f'{OPTIONS.bin}/bus_client', self.top)  # where every user can reach it
        self.address = f'unix:path={self.top}/bus'
        self.runtime = self.top / 'run'
        self.root = self.top / 'root'
        self.stderr = open(self.top / 'stderr', 'w')
        self.log = self.top / 'daemon.log'
        self.programs, self.cgroups = [], []
        self.systemd = self.polkit = self.daemon = None
        self.slice = f'user-{os.getpid()}.slice'
        self.make_root()
        (self.top / 'services').mkdir()  # what the bus can start: nothing, unless a test says so
        (self.top / 'bus.conf').write_text(BUS_CONFIG.format(path=self.top))
        self.start_broker()

    def start_broker(self):
        self.broker = self.start(['dbus-daemon', f'--config-file={self.top}/bus.conf', '--nofork', '--nopidfile',
                                  '--print-address'], stderr=self.stderr)
        self.broker.expect(lambda line: 'unix:' in line, 'the private bus')

    def make_root(self):
        """One node of eight cores with a thread each."""
        self.put('sys/devices/system/node/online', '0')
        self.put('sys/devices/system/node/node0/cpulist', self.CPUS)
        self.put('sys/devices/system/node/node0/cpumap', 'ff')
        self.put('sys/devices/system/node/node0/distance', '10')
        self.put('sys/devices/system/node/node0/meminfo',
                 'Node 0 MemTotal: 33554432 kB\nNode 0 MemFree: 16777216 kB')
        self.put('proc/meminfo', 'MemTotal: 33554432 kB')
        self.put('proc/cpuinfo', 'processor\t: 0')
        for name in ('online', 'present', 'possible'):
            self.put(f'sys/devices/system/cpu/{name}', self.CPUS)
        for cpu in range(8):
            path = f'sys/devices/system/cpu/cpu{cpu}/topology/'
            self.put(path + 'physical_package_id', '0')
            self.put(path + 'core_id', str(cpu))
            for name in ('thread_siblings', 'core_cpus'):
                self.put(path + name + '_list', str(cpu))
                self.put(path + name, f'{1 << cpu:x}')
            for name in ('core_siblings', 'package_cpus'):
                self.put(path + name + '_list', self.CPUS)
                self.put(path + name, 'ff')
        self.put('proc/sys/kernel/numa_balancing', '1')
        self.put('proc/sys/kernel/random/boot_id', text_of('/proc/sys/kernel/random/boot_id'))
        (self.root / 'sys/kernel/mm').mkdir(parents=True)
        (self.root / CGROUP2.lstrip('/')).mkdir(parents=True)

    def put(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + '\n')

    def read(self, path):
        return text_of(self.root / path)

    def balancing(self):
        return self.read('proc/sys/kernel/numa_balancing')

    def empty(self, cgroup):
        """Shows a cgroup as empty: what nobody does once fake_systemd is gone."""
        path = f'{CGROUP2.lstrip("/")}{cgroup}'
        self.put(f'{path}/cgroup.procs', '')
        self.put(f'{path}/cgroup.events', 'populated 0\nfrozen 0')

    def shown(self, cgroup, file):
        """A file of a cgroup as fake_systemd shows it; None where there is none."""
        path = self.root / f'{CGROUP2.lstrip("/")}{cgroup}/{file}'
        return text_of(path) if path.exists() else None

    # ── Programs ────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, words, **options):
        program = Program([str(word) for word in words], **options)
        self.programs.append(program)
        return program

    def connect(self, **options):
        client = Client(self, **options)
        self.programs.append(client)
        return client

    def start_systemd(self, *options):
        self.systemd = self.start([f'{OPTIONS.bin}/fake_systemd', '--bus', self.address, '--root', self.root,
                                   '--cpus', self.CPUS, '--nodes', self.NODES, *options], stderr=self.stderr)
        self.systemd.expect(lambda line: line == 'ready', 'the stand-in for systemd')
        return self.systemd

    def start_polkit(self, **table):
        self.decide(**table)
        self.polkit = self.start([f'{OPTIONS.bin}/fake_polkit', '--bus', self.address, '--table',
                                  self.top / 'polkit'], stderr=self.stderr)
        self.polkit.expect(lambda line: line == 'ready', 'the stand-in for polkit')

    def decide(self, **table):
        (self.top / 'polkit').write_text(''.join(f'org.numalease1.{action.replace("_", "-")} {verdict}\n'
                                                 for action, verdict in table.items()))

    def startable(self, script):
        """Lets the bus start `script` for our name."""
        (self.top / 'services/numalease.service').write_text(
            f'[D-BUS Service]\nName={SERVICE}\nExec=/bin/sh -c "{script}"\n')
        self.connect().call('ReloadConfig', to='org.freedesktop.DBus', path='/org/freedesktop/DBus',
                            interface='org.freedesktop.DBus')

    def daemon_words(self, *options):
        return [f'{OPTIONS.bin}/numa-leased', '--root', str(self.root), '--runtime-dir', str(self.runtime), '--bus',
                self.address, '--config', str(self.top / 'site.yaml'), '--log-level', 'debug', *options]

    def start_daemon(self, *options):
        """Returns once READY=1 has come."""
        notify = f'{self.top}/notify'
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
            inbox.bind(notify)
            inbox.settimeout(PATIENCE)
            with open(self.log, 'a') as log:
                self.daemon = self.start(self.daemon_words(*options), stderr=log,
                                         env={**os.environ, 'NOTIFY_SOCKET': notify})
            try:
                while b'READY=1' not in inbox.recv(4096):
                    pass
            except TimeoutError:
                raise AssertionError('the daemon is not ready: ' + self.log.read_text()) from None
            finally:
                os.unlink(notify)
        return self.daemon

    # ── Cgroups ─────────────────────────────────────────────────────────────────────────────────────────────────

    def session(self):
        """A login session of a user: a cgroup whose processes systemd would know as that."""
        return self.make_cgroup(f'/user.slice/{self.slice}/session-1.scope')

    def make_cgroup(self, path):
        os.makedirs(CGROUP2 + path, exist_ok=True)
        self.cgroups.append(path)
        return path

    def service(self, prior=(), name='numalease-test.service'):
        """A client that systemd takes for a service, and the service's cgroup."""
        client = self.connect()
        client.call('AddService', 'suay', name, client.pid, list(prior), to=SYSTEMD,
                    path='/org/freedesktop/systemd1', interface='org.numalease.Test')
        return client, f'/system.slice/{name}'

    def service_again(self, name='numalease-test.service'):
        """Another process of that service, as after a restart: nothing is set anew."""
        cgroup = f'/system.slice/{name}'
        return self.connect(cgroup=cgroup), cgroup

    def behave(self, client, how):
        client.call('Behave', 's', how, to=SYSTEMD, path='/org/freedesktop/systemd1', interface='org.numalease.Test')

    def allowed_cpus(self, client, unit):
        """The property as systemd has it, a list of bytes."""
        path = client.call('GetUnit', 's', unit, to=SYSTEMD, path='/org/freedesktop/systemd1',
                           interface='org.freedesktop.systemd1.Manager')[0]
        return client.call('Get', 'ss', 'org.freedesktop.systemd1.Service', 'AllowedCPUs', to=SYSTEMD, path=path,
                           interface='org.freedesktop.DBus.Properties')[0]

    def close(self):
        for program in reversed(self.programs):
            if program is not self.systemd and program is not self.broker:
                program.close()
        if self.systemd is not None:
            self.systemd.kill(signal.SIGTERM)  # it removes its cgroups
        for program in (self.systemd, self.broker):
            if program is not None:
                program.close()
        for cgroup in self.cgroups:
            self.remove_cgroup(cgroup)
        self.stderr.close()
        shutil.rmtree(self.top)

    def remove_cgroup(self, path):
        while path not in ('', '/'):
            try:
                os.rmdir(CGROUP2 + path)
            except FileNotFoundError:
                pass
            except OSError:
                return  # somebody else's, or still in use above
            path = path.rsplit('/', 1)[0]


def cgroup_of(pid):
    """Where a process is in the unified hierarchy."""
    return next(line[3:] for line in text_of(f'/proc/{pid}/cgroup').splitlines() if line.startswith('0::'))


class Case(unittest.TestCase):
    def setUp(self):
        self.bed = Bed()
        self.addCleanup(self.bed.close)

    def fails(self, name, *texts):
        """A context in which a call gets the error `name`, whose text holds all of `texts`."""
        return Failure(self, name, texts)

    def run(self, result=None):
        before = len(result.errors) + len(result.failures)
        keep = {}
        self.addCleanup(lambda: keep.update(log=self.bed.log.read_text() if self.bed.log.exists() else ''))
        super().run(result)
        if len(result.errors) + len(result.failures) > before:
            print(keep.get('log', ''), file=sys.stderr)


class SessionCase(Case):
    """With a systemd, a daemon, the cgroup of a login session, and somebody who only looks."""

    def setUp(self):
        super().setUp()
        self.bed.start_systemd()
        self.bed.start_daemon()
        self.session = self.bed.session()
        self.watcher = self.bed.connect()


class Failure:
    def __init__(self, case, name, texts):
        self.case, self.name, self.texts = case, name, texts

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        self.case.assertIs(kind, BusError, f'expected {self.name}, got {error!r}')
        self.case.assertEqual(error.name, self.name, error.text)
        for text in self.texts:
            self.case.assertIn(text, error.text)
        return True


def why_not():
    """What is missing here, or nothing."""
    if os.geteuid() != 0:
        return 'needs root: processes are moved between cgroups and run as other users'
    if shutil.which('dbus-daemon') is None:
        return 'needs dbus-daemon'
    if CGROUP2 is None or not os.access(CGROUP2 + '/cgroup.procs', os.W_OK):
        return 'needs a cgroup v2 hierarchy that can be written'
    return ''


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument('--bin', required=True)
    parser.add_argument('--xml')
    options, rest = parser.parse_known_args()
    sys.modules['bed'].OPTIONS = OPTIONS = options
    if why_not():
        print('skipped:', why_not())
        sys.exit(77)
    unittest.main(module='__main__', argv=[sys.argv[0], *rest])
