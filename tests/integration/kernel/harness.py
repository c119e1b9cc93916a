"""What the end-to-end tests share: the two real programs, the real kernel, and a promise to leave it as it was.

Every test runs as root against a daemon of its own in a temporary runtime directory (`--bus none`). The kernel state is
read before the first test of a file and written back after each one; a process outside of the test's own tree does the
same where the test is killed.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from wire import Wire

BIN = None  # where the two programs are; set by main()

MM = pathlib.Path('/sys/kernel/mm')
POOL = pathlib.Path('/sys/devices/system/node/node0/hugepages/hugepages-2048kB')
BALANCING = pathlib.Path('/proc/sys/kernel/numa_balancing')
PAGES = POOL / 'nr_hugepages'
OVERCOMMIT = pathlib.Path('/proc/sys/vm/nr_overcommit_hugepages')
THP = MM / 'transparent_hugepage/enabled'
THP_DEFRAG = MM / 'transparent_hugepage/defrag'
ZONE_RECLAIM = pathlib.Path('/proc/sys/vm/zone_reclaim_mode')
WEIGHT = MM / 'mempolicy/weighted_interleave/node0'
WEIGHT_AUTO = MM / 'mempolicy/weighted_interleave/auto'
# In the order in which they are put back: writing a weight clears the kernel's own choice.
STATE = [BALANCING, THP, THP_DEFRAG, ZONE_RECLAIM, WEIGHT, WEIGHT_AUTO, OVERCOMMIT, PAGES]

SECOND = 1.0
PATIENCE = 20.0  # for what has no promised time: a start, a message


# ── The kernel ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read(path):
    """The value in the form in which it is written back: '1', 'madvise'."""
    text = pathlib.Path(path).read_text().strip()
    return text[text.index('[') + 1:text.index(']')] if '[' in text else text


def write(path, value):
    with open(path, 'w', buffering=1) as file:
        file.write(str(value))


def snapshot():
    return {path: read(path) for path in STATE if path.exists()}


def put_back(state):
    for path, value in state.items():
        if read(path) != value:
            with contextlib.suppress(OSError):
                write(path, value)


def processes_of(directory):
    """PIDs whose command line names our temporary directory: daemons that a client started, and what they left."""
    found = []
    for entry in pathlib.Path('/proc').iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if directory.encode() in (entry / 'cmdline').read_bytes():
                found.append(int(entry.name))
    return found


def kill_all(pids):
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def start_guard(state, directory):
    """A process in a session of its own that puts everything back once we are gone, however we go."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.close(theirs)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.closerange(ours + 1, 64)
        if os.read(ours, 1) == b'':  # the test is gone without a word
            kill_all(processes_of(directory))
            put_back(state)
            shutil.rmtree(directory, ignore_errors=True)
        os._exit(0)
    os.wait()
    os.close(ours)
    return theirs


def eventually(condition, seconds=PATIENCE, what='the condition'):
    """Waits for `condition()` to be true; returns its value. Fails with what was seen last."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f'not within {seconds} s: {what() if callable(what) else what}')
        time.sleep(0.002)


def cgroup2():
    mounts = [line.split(' - ') for line in pathlib.Path('/proc/self/mountinfo').read_text().splitlines()]
    return [pathlib.Path(left.split()[4]) for left, right in mounts if right.startswith('cgroup2 ')]


def has_cgroup2():
    return bool(cgroup2())


def tracking_cgroups():
    """Cgroups that a daemon without systemd made, deepest first."""
    # Not glob: what is removed while it looks would be an error; os.walk passes over that.
    folders = (pathlib.Path(folder) for mount in cgroup2() for folder, _, _ in os.walk(mount))
    return sorted((folder for folder in folders if folder.name.startswith('numalease-')), reverse=True)


def alive(pid):
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] not in 'ZX'
    except OSError:
        return False


def children_of(pid):
    found = []
    for entry in pathlib.Path('/proc').iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / 'stat').read_text().rsplit(')', 1)[1].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


# ── The programs ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Process:
    """A child whose output is kept line by line; killed at the end of the test."""

    def __init__(self, words, **options):
        self.err_path = tempfile.mktemp(dir=Case.scratch, suffix='.err')
        with open(self.err_path, 'wb') as err:
            self.popen = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL,
                                          stdout=subprocess.PIPE, stderr=err, **options)
        os.set_blocking(self.popen.stdout.fileno(), False)
        self._buffer = b''
        self.lines = []

    pid = property(lambda self: self.popen.pid)

    @property
    def err(self):
        return pathlib.Path(self.err_path).read_text(errors='replace')

    def _pump(self):
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.popen.stdout.fileno(), 65536):
                self._buffer += part
        *whole, self._buffer = self._buffer.split(b'\n')
        self.lines += [line.decode(errors='replace') for line in whole]

    def expect(self, line, seconds=PATIENCE):
        """Waits until the program has printed exactly this line; returns what came before it."""
        def seen():
            self._pump()
            if line not in self.lines and self.popen.poll() is not None:
                self._pump()
                if line not in self.lines:
                    raise AssertionError(f'ended with {self.popen.returncode} before {line!r}: {self.lines} {self.err}')
            return line in self.lines
        eventually(seen, seconds, lambda: f'{line!r} in {self.lines}; said {self.err}')
        return self.lines[:self.lines.index(line)]

    def expect_said(self, text, seconds=PATIENCE):
        eventually(lambda: text in self.err, seconds, lambda: f'{text!r} in {self.err!r}')

    def wait(self, seconds=PATIENCE):
        status = self.popen.wait(seconds)
        self._pump()
        return status

    def kill(self, number=signal.SIGKILL):
        self.popen.send_signal(number)

    def end(self):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(PATIENCE)
        self.popen.stdout.close()


class Daemon(Process):
    """numa-leased, answering."""

    def __init__(self, runtime_dir, *options, prefix=()):
        self.runtime_dir = runtime_dir
        ours, theirs = os.pipe()
        super().__init__([*prefix, BIN / 'numa-leased', '--bus', 'none', '--runtime-dir', runtime_dir, '--config',
                          f'{runtime_dir}/no-site.yaml', '--ready-fd', theirs, *options], pass_fds=[theirs])
        os.close(theirs)
        with open(ours, 'rb') as ready:
            self.is_ready = bool(select.select([ready], [], [], PATIENCE)[0]) and ready.read(5) == b'ready'

    def wire(self):
        return Wire(f'{self.runtime_dir}/socket')


class Case(unittest.TestCase):
    """A test with a runtime directory of its own on a kernel that is known and comes back."""

    scratch = None
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise unittest.SkipTest('changing kernel state needs root')
        Case.scratch = tempfile.mkdtemp(prefix='numa-lease-test-')
        os.chmod(Case.scratch, 0o755)
        cls.at_start = snapshot()
        guard = start_guard(cls.at_start, Case.scratch)
        cls.addClassCleanup(os.close, guard)
        cls.addClassCleanup(os.write, guard, b'.')
        cls.addClassCleanup(shutil.rmtree, Case.scratch, ignore_errors=True)

    def setUp(self):
        self.runtime_dir = tempfile.mkdtemp(prefix='run-', dir=Case.scratch)
        os.chmod(self.runtime_dir, 0o755)
        self._processes = []
        self.addCleanup(put_back, self.at_start)
        self.addCleanup(self._end_processes)
        self.wait_for_kernel()

    def _end_processes(self):
        for process in reversed(self._processes):
            process.end()
        kill_all(processes_of(Case.scratch))
        eventually(lambda: not processes_of(Case.scratch), what='the end of what the test started')
        for cgroup in tracking_cgroups():
            with contextlib.suppress(OSError):
                cgroup.rmdir()

    def wait_for_kernel(self):
        """Until no numa-leased serves this kernel."""
        directory = os.open(MM, os.O_RDONLY | os.O_DIRECTORY)
        try:
            def free():
                try:
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    return False
            eventually(free, 60, 'another numa-leased serves this kernel; stop it first')
        finally:
            os.close(directory)

    def need(self, *paths):
        for path in paths:
            if not path.exists():
                self.skipTest(f'this kernel has no {path}')

    def set_kernel(self, values):
        """Gives the kernel these values, which are then what must come back."""
        for path, value in values.items():
            write(path, value)
            self.assertEqual(read(path), str(value))
        return snapshot()

    def expect_kernel(self, before, seconds=SECOND):
        """Everything reads as `before` within a second."""
        eventually(lambda: snapshot() == before, seconds, lambda: f'{before}, but it is {snapshot()}')

    # The programs

    def track(self, process):
        self._processes.append(process)
        return process

    def start(self, words, **options):
        return self.track(Process(words, **options))

    def start_daemon(self, *options, runtime_dir=None, prefix=()):
        daemon = self.track(Daemon(runtime_dir or self.runtime_dir, *options, prefix=prefix))
        if not daemon.is_ready:
            daemon.wait()
            self.fail(f'numa-leased did not start: {daemon.err}')
        return daemon

    def restore(self):
        return subprocess.run([BIN / 'numa-leased', '--bus', 'none', '--runtime-dir', self.runtime_dir, '--restore'],
                              capture_output=True, text=True, timeout=60)

    def words(self, verb, *rest):
        return [BIN / 'numa-leasectl', verb, '--bus', 'none', '--runtime-dir', self.runtime_dir, *rest]

    def ctl(self, verb, *rest, timeout=60, prefix=(), **options):
        """Runs one verb to its end."""
        return subprocess.run([str(word) for word in [*prefix, *self.words(verb, *rest)]], capture_output=True,
                              text=True, errors='replace', stdin=subprocess.DEVNULL, timeout=timeout, **options)

    def run_lease(self, *options, script='echo up; exec sleep 1000', **popen):
        """`run` of a shell script in the background; where it prints "up", waits for that."""
        process = self.start(self.words('run', *options, '--', 'sh', '-c', script), **popen)
        if 'echo up' in script:
            process.expect('up')
        return process

    def json(self, verb, *rest, **options):
        done = self.ctl(verb, '--json', *rest, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def leases(self, *states):
        return [it for it in self.json('list') if it['state'] in (states or ('queued', 'preparing', 'active', 'ending'))]

    def embedded_pid(self):
        """The daemon that a client started in our runtime directory."""
        found = [pid for pid in processes_of(self.runtime_dir)
                 if pathlib.Path(f'/proc/{pid}/exe').resolve().name == 'numa-leased']
        self.assertEqual(len(found), 1, found)
        return found[0]

    def assert_failure(self, done, status, *texts):
        """Exit `status` with one line of ours that holds the texts; other lines of ours may come before it."""
        self.assertEqual(done.returncode, status, done.stderr)
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ''
        self.assertTrue(last.startswith('numa-leasectl: '), done.stderr)
        for text in texts:
            self.assertIn(text, last)


def with_mounts(script):
    """Words before a command that run it in a mount namespace of its own, after `script`. Nothing gets out of it, also
    where the root is no mount point (a chroot)."""
    return ['unshare', '--mount', '--propagation', 'unchanged', 'sh', '-c',
            f'mount --make-rprivate / 2>/dev/null; {script} && exec "$@"', 'sh']


def main():
    global BIN
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument('--bin', required=True, type=pathlib.Path)
    ours, rest = parser.parse_known_args()
    # A signal from ctest becomes an exception, so that cleanups run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Where every user can reach them: a clone in /root is nobody else's to enter.
    with tempfile.TemporaryDirectory(prefix='numa-lease-programs-') as programs:
        os.chmod(programs, 0o755)
        BIN = pathlib.Path(programs) / 'bin'
        BIN.mkdir()
        for name in ('numa-leased', 'numa-leasectl'):
            shutil.copy(ours.bin / name, BIN)
        shutil.copytree(ours.bin / '../share', BIN / '../share')
        sys.exit(run_tests(rest))


def run_tests(rest):
    result = unittest.main(argv=[sys.argv[0], *rest], exit=False, verbosity=2).result
    if not result.wasSuccessful():
        return 1
    return 77 if result.skipped and len(result.skipped) >= max(result.testsRun, 1) else 0
