"""Two engines at once, huge pages that are really used, and a server that is the launched process."""

import pathlib
import signal
import socket
import urllib.error
import urllib.request

import engine
from engine import EngineCase, Outcome, Watch, model, program
from harness import PAGES, POOL, children_of, eventually, read


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def is_ready(port, host='127.0.0.1'):
    try:
        with urllib.request.urlopen(f'http://{host}:{port}/health', timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):  # not listening yet, or 503 while it loads
        return False


class TwoAtOnce(EngineCase):
    def test_two_leases_of_one_core_never_share_a_cpu(self):
        if self.json('plan', '--share', '--node', 'any:1')['placement']['cores'] < 2:
            self.skipTest('a node with one core has room for one lease only')
        command = [program('llama-cli'), '-m', model(), '--front-hold', '2']
        processes = [self.start_in_lease(command) for _ in range(2)]
        watches = [Watch(process) for process in processes]
        # Both are there at the same time, or this shows nothing.
        eventually(lambda: all(watch.samples for watch in watches), what=lambda: [p.err for p in processes])
        self.assertEqual([process.popen.poll() for process in processes], [None, None])
        for process in processes:
            self.assertEqual(process.wait(60), 0, process.err)
        first, second = (Outcome(process, watch) for process, watch in zip(processes, watches))
        for outcome in (first, second):
            self.assert_inside(outcome)
            self.assert_threads(outcome, 1)
        self.assertEqual(first.watch.cpus & second.watch.cpus, set())


class HugePages(EngineCase):
    SIZE = 400  # MiB; the model's weights, its KV cache and what it computes with need 328 of them at one thread
    OPTIONS = ('--cores', '1', '--hugepages', f'2M={SIZE}M')

    def test_reserved_used_and_given_back(self):
        self.need(PAGES)
        before = self.set_kernel({PAGES: 3})
        outcome = self.generate('--load-mode', 'none', size='big', options=self.OPTIONS)
        # Nobody but numa-leasectl has told it: buffers from malloc come from the pool.
        self.assertEqual(outcome.watch.environment['GLIBC_TUNABLES'], 'glibc.malloc.hugetlb=2')
        self.assertGreater(outcome.said['huge_kb'], 260 * 1024, outcome.err)
        self.assertGreater(outcome.watch.huge_kb, 260 * 1024, 'Private_Hugetlb in /proc/PID/smaps_rollup')
        self.assert_inside(outcome)
        self.expect_kernel(before)

    def test_what_the_user_tunes_stands_and_is_added_to(self):
        self.need(PAGES)
        before = self.set_kernel({PAGES: 3})
        outcome = self.generate('--no-mmap', size='big', options=self.OPTIONS,
                                env={'GLIBC_TUNABLES': 'glibc.malloc.tcache_count=0'})
        # Not in /proc/PID/environ: glibc cuts the variable up where it is.
        self.assertIn('GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=2', outcome.err)
        self.assertGreater(outcome.watch.huge_kb, 260 * 1024, outcome.err)
        off = self.generate('--no-mmap', size='big', options=self.OPTIONS,
                            env={'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=0'})
        self.assertEqual((off.watch.environment['GLIBC_TUNABLES'], off.watch.huge_kb), ('glibc.malloc.hugetlb=0', 0))
        self.expect_kernel(before)

    def test_a_mapped_model_uses_none_and_that_is_said(self):
        self.need(PAGES)
        outcome = self.generate(size='big', options=('--cores', '1', '--hugepages', '2M=8M'))
        self.assertEqual(outcome.watch.huge_kb, 0)
        self.assertNotIn('GLIBC_TUNABLES', outcome.watch.environment)
        self.assertIn('huge pages: llama.cpp maps its model, and a mapped file never uses them; to read it instead, say '
                      '--load-mode none', outcome.ours)

    def test_given_back_after_sigkill_in_the_middle(self):
        self.need(PAGES)
        before = self.set_kernel({PAGES: 3})
        process = self.start_in_lease([program('llama-cli'), '-m', model('big'), '--load-mode', 'none',
                                       '--front-hold', '600'], self.OPTIONS)
        watch = Watch(process)
        eventually(lambda: watch.huge_kb > 260 * 1024, 60, lambda: f'{watch.huge_kb} kB of huge pages: {process.err}')
        self.assertEqual(int(read(PAGES)), 3 + self.SIZE // 2)
        process.kill()
        process.wait()
        self.expect_kernel(before)


class Server(EngineCase):
    def serve(self, *arguments):
        port = free_port()
        process = self.start_in_lease([program('llama-server'), '-m', model(), '--port', port, *arguments])
        eventually(lambda: is_ready(port) or process.popen.poll() is not None, what=lambda: process.err)
        self.assertIsNone(process.popen.poll(), process.err)
        return process

    def test_it_has_the_pid_of_run_and_nothing_of_ours_above_or_below(self):
        process = self.serve()
        self.assertEqual(pathlib.Path(f'/proc/{process.pid}/exe').resolve().name, 'llama-server')
        self.assertEqual(children_of(process.pid), [])

    def test_sigterm_reaches_it_and_its_own_status_comes_back(self):
        process = self.serve()
        process.kill(signal.SIGTERM)
        self.assertEqual(process.wait(), 0, process.err)
        eventually(lambda: self.leases() == [], what='the end of the lease')

    def test_its_threads_all_stay_in_the_lease(self):
        process = self.serve()
        watch = Watch(process)
        eventually(lambda: watch.samples > 20, what='samples')
        process.kill(signal.SIGTERM)
        process.wait()
        outcome = Outcome(process, watch)
        self.assert_inside(outcome)
        self.assertEqual(outcome.said['threads'], 1)
        # Main, log, listener, one for HTTP, and a second while the first was busy; by itself it starts eight or more.
        self.assertIn(watch.threads, (4, 5))
        self.assertEqual(watch.environment['LLAMA_ARG_THREADS_HTTP'], '1')


if __name__ == '__main__':
    engine.main()
