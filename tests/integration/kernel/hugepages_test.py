"""Huge pages: what was asked and got, what belongs to others, and what is still in use."""

import pathlib
import signal
import sys

import harness
from harness import OVERCOMMIT, PAGES, POOL, Case, alive, eventually, read, snapshot, write

# Maps and touches N huge pages, says so, and keeps them until a line or a signal comes. Source: mmap(2).
MAPPER = '''
import mmap, sys
pages = int(sys.argv[1])
area = mmap.mmap(-1, pages << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
for page in range(pages):
    area[page << 21] = 1
print('mapped', flush=True)
import signal
signal.pause()
'''


def surplus():
    return int(read(POOL / 'surplus_hugepages'))


class HugePages(Case):
    def setUp(self):
        super().setUp()
        self.need(PAGES)
        self.before = self.set_kernel({PAGES: 3})
        self.daemon = self.start_daemon()

    def mapper(self, pages):
        process = self.start([sys.executable, '-I', '-S', '-c', MAPPER, pages])
        process.expect('mapped')
        return process

    def too_many(self):
        """Pages that cannot be had: as much as the machine has memory."""
        for line in pathlib.Path('/proc/meminfo').read_text().splitlines():
            if line.startswith('MemTotal:'):
                return int(line.split()[1]) // 2048 + 1000
        raise AssertionError('no MemTotal')

    def test_the_lease_gets_its_pages_and_gives_them_back(self):
        process = self.run_lease('--hugepages', '2M=32M')
        self.assertEqual((read(PAGES), read(POOL / 'free_hugepages')), ('19', '19'))
        grant = self.json('show', 'c1')['knobs'][0]
        self.assertEqual((grant['knob'], grant['wanted'], grant['got']), ('hugepages/2M/node0', '16', '16'))
        process.kill()
        self.expect_kernel(self.before)

    def test_two_leases_add_up_and_each_gives_back_its_own(self):
        first = self.run_lease('--share', '--hugepages', '2M=8M')
        second = self.run_lease('--share', '--hugepages', '2M=16M')
        self.assertEqual(read(PAGES), '15')
        first.kill()
        eventually(lambda: read(PAGES) == '11', harness.SECOND, lambda: f'11 pages, but {read(PAGES)}')
        second.kill()
        self.expect_kernel(self.before)

    def test_more_than_the_node_has_is_refused_with_numbers_and_everything_given_back(self):
        asked = self.too_many()
        done = self.ctl('run', '--hugepages', f'2M={asked * 2}M', '--', 'true', timeout=120)
        self.assertIn(done.returncode, (75, 78))
        self.assert_failure(done, done.returncode, 'hugepages')
        self.assertEqual(snapshot(), self.before)

    def test_at_least_takes_what_there_is_room_for(self):
        # Surely there for the lower bound, surely not for the upper one, and small: the pool is written page by page.
        process = self.run_lease('--best-effort', '--hugepages', '2M=16M..32M')
        got = int(self.json('show', 'c1')['knobs'][0]['got'])
        self.assertGreaterEqual(got, 8)
        self.assertEqual(int(read(PAGES)), 3 + got)
        process.kill()
        self.expect_kernel(self.before)

    def test_a_bystanders_surplus_pages_do_not_become_permanent(self):
        write(OVERCOMMIT, 20)
        bystander = self.mapper(10)
        self.assertEqual((int(read(PAGES)), surplus()), (10, 7))  # 3 persistent and 7 surplus
        # Growing the pool first makes surplus pages persistent, so the lease's 16 show in what is free.
        free = int(read(POOL / 'free_hugepages'))
        workload = self.run_lease('--hugepages', '2M=32M')
        self.assertEqual(int(read(POOL / 'free_hugepages')), free + 16)
        workload.kill()
        eventually(lambda: (read(PAGES), surplus()) == ('10', 7), harness.SECOND,
                   lambda: f'10 with 7 surplus, but {read(PAGES)} with {surplus()}')
        bystander.kill()
        bystander.wait()
        eventually(lambda: (read(PAGES), surplus()) == ('3', 0), 10, lambda: f'{read(PAGES)}, {surplus()}')

    def test_pages_still_in_use_are_reported_and_given_back_when_they_are_free(self):
        workload = self.run_lease('--hugepages', '2M=32M')
        stranger = self.mapper(12)
        workload.kill()
        self.daemon.expect_said('hugepages/2M/node0')
        eventually(lambda: int(read(PAGES)) - surplus() <= 12, harness.SECOND, lambda: f'{read(PAGES)}, {surplus()}')
        knob = next(it for it in self.json('knobs') if it['knob'] == 'hugepages/2M/node0')
        self.assertIn('stuck', knob)
        self.assertTrue(alive(stranger.pid))
        stranger.kill()
        stranger.wait()
        eventually(lambda: snapshot() == self.before, 10, lambda: f'{self.before}, but it is {snapshot()}')

    def test_pages_in_use_across_a_dead_daemon(self):
        workload = self.run_lease('--hugepages', '2M=32M')
        stranger = self.mapper(12)
        for process in (self.daemon, workload):
            process.kill()
            process.wait()
        self.start_daemon()
        eventually(lambda: int(read(PAGES)) - surplus() <= 12, harness.SECOND, lambda: f'{read(PAGES)}, {surplus()}')
        stranger.kill()
        stranger.wait()
        eventually(lambda: snapshot() == self.before, 10, lambda: f'{self.before}, but it is {snapshot()}')

    def test_pages_that_an_administrator_adds_meanwhile_stay(self):
        workload = self.run_lease('--hugepages', '2M=32M')
        write(PAGES, 24)
        workload.kill()
        eventually(lambda: read(PAGES) == '8', harness.SECOND, lambda: f'8 pages, but {read(PAGES)}')

    def test_pages_that_an_administrator_takes_meanwhile_are_charged_to_the_lease(self):
        workload = self.run_lease('--hugepages', '2M=32M')
        write(PAGES, 9)
        workload.kill()
        eventually(lambda: read(PAGES) == '3', harness.SECOND, lambda: f'3 pages, but {read(PAGES)}')

    def test_a_signal_does_not_cut_the_reservation_short(self):
        process = self.start(self.words('run', '--hugepages', '2M=1G', '--', 'cat', PAGES))
        while process.popen.poll() is None and not process.lines:
            self.daemon.kill(signal.SIGHUP)
            process._pump()
        self.assertEqual(process.wait(), 0, process.err)
        self.assertEqual(process.lines, ['515'])
        self.expect_kernel(self.before)


if __name__ == '__main__':
    harness.main()
