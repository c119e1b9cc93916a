"""Many at once: a long queue, leases that come and go by the thousand, and how fast the daemon answers meanwhile.

Alone it is short. The figures of the README: load_test.py --bin DIR --queued 10000 --minutes 10
"""

import contextlib
import os
import pathlib
import signal
import statistics
import sys
import time
import warnings

import harness
from harness import Case, eventually
from wire import Wire

QUEUED, CLIENTS, SHOWN = 500, 50, 64
MINUTES, A_MINUTE = 0.2, 1000


class Load(Case):
    def figures(self):
        """Resident bytes, descriptors and seconds of CPU of the daemon."""
        proc = pathlib.Path(f'/proc/{self.daemon.pid}')
        rss = int((proc / 'statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')
        ticks = sum(int(it) for it in (proc / 'stat').read_text().rsplit(')', 1)[1].split()[11:13])
        return rss, len(list((proc / 'fd').iterdir())), ticks / os.sysconf('SC_CLK_TCK')

    def child(self, work):
        """A process of its own, so that the kernel says who asks."""
        pid = os.fork()
        if pid == 0:
            code = 1
            warnings.simplefilter('ignore', ResourceWarning)  # what it has goes with it
            with contextlib.suppress(BaseException):
                work()
                code = 0
            os._exit(code)
        self.addCleanup(self.end, pid)
        return pid

    @staticmethod
    def end(pid):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    @staticmethod
    def timed(wire, *question):
        """The answer, and the median of the seconds it takes."""
        answer, seconds = None, []
        for _ in range(9):
            start = time.monotonic()
            answer = wire.call(*question)
            seconds.append(time.monotonic() - start)
        return answer, statistics.median(seconds)

    def socket(self):
        return str(pathlib.Path(self.runtime_dir) / 'socket')

    def waiting(self, wire):
        return wire.call('GetStatus')['leases'].get('queued', 0)

    def test_a_long_queue(self):
        self.daemon = self.start_daemon()
        watcher = self.daemon.wire()

        def hold():
            wire = Wire(self.socket())
            lease, _ = wire.acquire(node='all')
            wire.call('Wait', 'ss', lease, 'active')
            signal.pause()

        holder = self.child(hold)
        eventually(lambda: watcher.call('GetStatus')['leases'].get('active'), what='the lease in the way')
        memory, _, cpu = self.figures()
        begun = time.monotonic()

        def queue():
            wire = Wire(self.socket(), timeout=3600)
            for _ in range(QUEUED // CLIENTS):
                wire.acquire(cores='1', wait='forever', time='1h')
            signal.pause()

        clients = [self.child(queue) for _ in range(CLIENTS)]
        looks = []

        def all_wait():
            start = time.monotonic()
            watcher.call('GetLease', 's', 'c1')
            looks.append(time.monotonic() - start)
            time.sleep(0.05)
            return self.waiting(watcher) == QUEUED // CLIENTS * CLIENTS

        eventually(all_wait, seconds=3000, what='all of them waiting')
        seconds = time.monotonic() - begun
        now = self.figures()
        whole, all_seconds = self.timed(watcher, 'ListLeases')
        self.assertEqual(sum(it['state'] == 'queued' for it in whole), QUEUED // CLIENTS * CLIENTS)
        leases, seconds_of_list = self.timed(watcher, 'ListCurrent', 'u', SHOWN)
        self.assertEqual([it['state'] for it in leases], ['active'] + SHOWN * ['queued'])
        self.assertEqual([it['position'] for it in leases[1:]], list(range(1, SHOWN + 1)))
        self.assertRegex(self.ctl('list').stdout,
                         f'\\n{QUEUED // CLIENTS * CLIENTS - SHOWN} more wait; numa-leasectl list --all shows them\\n$')
        print(f'{QUEUED} requests by {CLIENTS} clients queued in {seconds:.1f} s, {now[2] - cpu:.1f} s CPU; '
              f'{(now[0] - memory) / QUEUED / 1024:.1f} KiB each; one lease is shown in {1e3 * statistics.median(looks):.1f} ms '
              f'meanwhile; list in {1e3 * seconds_of_list:.1f} ms, list --all in {1e3 * all_seconds:.0f} ms',
              file=sys.stderr)
        # A waiter that is killed leaves the queue; those of others stay.
        self.end(clients[0])
        eventually(lambda: self.waiting(watcher) == QUEUED // CLIENTS * (CLIENTS - 1), seconds=600, what='one client gone')
        self.end(holder)
        eventually(lambda: watcher.call('GetStatus')['leases'].get('active'), what='the first of them')
        for client in clients:
            self.end(client)
        eventually(lambda: not self.waiting(watcher) and not watcher.call('GetStatus')['leases'].get('active'),
                   seconds=3000, what='an empty queue')

    def test_leases_that_come_and_go(self):
        def lease():
            wire = Wire(self.socket())
            name, _ = wire.acquire(cores='1', share='yes', wait='forever')
            wire.call('Wait', 'ss', name, 'active')

        # The history of leases is bounded: a full one is there from the start, so that nothing else may grow.
        before = self.start_daemon()
        self.assertEqual(os.waitpid(self.child(lease), 0)[1], 0)
        history = pathlib.Path(self.runtime_dir) / 'history'
        eventually(history.exists, what='the history')
        before.end()
        history.write_text(history.read_text().splitlines()[-1] + '\n' + history.read_text() * 10_000)
        self.daemon = self.start_daemon()
        watcher = self.daemon.wire()

        def run(seconds, looks):
            begun, done, failed = time.monotonic(), 0, 0
            while time.monotonic() - begun < seconds:
                failed += os.waitpid(self.child(lease), 0)[1] != 0
                done += 1
                if done % 10 == 0:
                    start = time.monotonic()
                    watcher.call('ListCurrent', 'u', SHOWN)
                    looks.append(time.monotonic() - start)
                time.sleep(max(0.0, begun + done * 60 / A_MINUTE - time.monotonic()))
            self.assertEqual(failed, 0)
            return done

        def when_all_is_over():
            eventually(lambda: set(watcher.call('GetStatus')['leases']) <= {'ended', 'refused'}, what='their end')
            return self.figures()

        run(3, [])  # what is kept of the last ones is there, what is allocated once is
        before, looks = when_all_is_over(), []
        done = run(60 * MINUTES, looks)
        after = when_all_is_over()
        print(f'{done} leases in {MINUTES} min, {after[2] - before[2]:.1f} s CPU: memory {before[0] >> 10} → '
              f'{after[0] >> 10} KiB, descriptors {before[1]} → {after[1]}; list in {1e3 * statistics.median(looks):.1f} ms '
              f'(95 %: {1e3 * sorted(looks)[len(looks) * 95 // 100]:.1f})', file=sys.stderr)
        self.assertEqual(after[1], before[1], 'descriptors')
        self.assertLess(after[0], before[0] + (2 << 20), 'bytes')


if __name__ == '__main__':
    rest = sys.argv[1:]
    for name in ('--queued', '--minutes'):
        if name in rest:
            at = rest.index(name)
            globals()[name[2:].upper()] = (int if name == '--queued' else float)(rest[at + 1])
            del rest[at:at + 2]
    sys.argv[1:] = rest
    harness.main()
