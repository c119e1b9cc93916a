"""The hard cases of the queue, with real processes of two users: limits, floods, who leaves, and time that is up."""

import contextlib
import grp
import os
import pathlib
import signal
import sys
import time

import harness
from harness import SECOND, Case, alive, eventually
from messages_test import NOBODY
from wire import Wire

GROUP = grp.getgrgid(65534).gr_name
IGNORES = 'trap "" TERM; echo up; while :; do sleep 0.1; done'


class QueueCase(Case):
    """Root and a user who is nobody else, beside a daemon whose socket is open to both."""

    LIMITS = '{}'  # of that user

    def setUp(self):
        super().setUp()
        self.config = pathlib.Path(self.runtime_dir) / 'site.yaml'
        self.config.write_text(f'group: {GROUP}\nusers: {{65534: {self.LIMITS}}}\n')
        self.daemon = self.start_daemon('--config', self.config)
        self.cores = len(self.json('topology')['cores'])

    def need_cores(self, least):
        if self.cores < least:
            self.skipTest(f'needs {least} cores')

    def run_user(self, *options, script='echo up; exec sleep 1000'):
        process = self.start([*NOBODY, *self.words('run', *options, '--', 'sh', '-c', script)])
        process.expect('up')
        return process

    def queue(self, *options, prefix=(), script='echo up; exec sleep 1000', **popen):
        """`run` of a script that has to wait; returns once it does."""
        words = self.words('run', '--wait=forever', *options, '--', 'sh', '-c', script)
        process = self.start([*prefix, *words], **popen)
        process.expect_said(' is queued: ')
        return process

    def waiting(self):
        """Who waits, the first to be served first."""
        return [it['id'] for it in sorted(self.leases('queued'), key=lambda it: it['position'])]

    def assert_one_line(self, done, status, *texts):
        self.assert_failure(done, status, *texts)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual(done.stdout, '')

    def refused(self, status, *options, texts=(), verb='run', prefix=NOBODY):
        command = ('--', 'true') if verb == 'run' else ()
        self.assert_one_line(self.ctl(verb, *options, *command, prefix=prefix), status, *texts)


class Limited(QueueCase):
    LIMITS = '{cores: 1, leases: 2, queued: 1, time: 1h}'

    def test_what_a_user_may_never_have_is_refused_also_to_who_would_wait(self):
        self.need_cores(2)
        for wait in ('--no-wait', '--wait=forever'):
            self.refused(78, wait, '--cores', '2', texts=('cores: 2 asked', '1 is the most for uid 65534'))
            self.refused(77, wait, '--cores', '1', '--time', '2h', texts=('2h asked', 'at most 1h', 'class normal'))
        self.assertEqual(self.leases(), [])

    def test_without_an_end_of_its_own_a_lease_has_the_longest(self):
        self.run_user('--cores', '1')
        lease = self.json('show', 'c1')
        self.assertEqual(lease['expires'] - lease['started']['boot'], 3600_000_000)
        self.assertIn('ends after 1h', ' '.join(lease['notes']))

    def test_who_has_all_cores_already_is_refused_or_waits_for_them_while_others_go_on(self):
        self.need_cores(2)
        first = self.run_user('--cores', '1')
        self.refused(77, '--no-wait', '--cores', '1',
                     texts=('uid 65534 has 1 already', '1 is the most', '--wait=forever'))
        second = self.queue('--cores', '1', prefix=NOBODY)
        self.assertIn('1 is the most for uid 65534', self.json('show', 'c2')['in_the_way'][0])
        self.assertEqual(self.ctl('run', '--no-wait', '--cores', '1', '--', 'true').returncode, 0)  # root's
        # One waits already, which is the most.
        self.refused(77, '--wait=forever', '--cores', '1', texts=('1 requests in the queue', 'the most allowed'))
        first.kill()
        second.expect('up')

    def test_leases_that_share_are_counted_too(self):
        self.run_user('--share', '--cores', '1')
        self.refused(77, '--no-wait', '--share', '--cores', '1', texts=('cores', '1 is the most for uid 65534'))

    def test_the_limit_of_leases(self):
        self.config.write_text(f'group: {GROUP}\nusers: {{65534: {{leases: 1}}}}\n')
        before = self.daemon.err.count('the site configuration is in force')
        self.daemon.kill(signal.SIGHUP)
        eventually(lambda: self.daemon.err.count('the site configuration is in force') > before, what='the new limits')
        first = self.run_user('--share', '--cores', '1')
        self.refused(77, '--no-wait', '--share', '--cores', '1', texts=('leases: ', '1 is the most for uid 65534'))
        second = self.queue('--share', '--cores', '1', prefix=NOBODY)
        first.kill()
        second.expect('up')


class Flood(QueueCase):
    QUEUED, CALLS = 8, 10000
    LIMITS = f'{{queued: {QUEUED}}}'

    def figures(self):
        """Descriptors and resident bytes of the daemon."""
        proc = pathlib.Path(f'/proc/{self.daemon.pid}')
        return (len(list((proc / 'fd').iterdir())),
                int((proc / 'statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE'))

    def flooder(self):
        """A process of the user's that sends requests and reads no answer; says when it has sent all that it can."""
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(ours)
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                with Wire(f'{self.runtime_dir}/socket', timeout=5) as wire:
                    for _ in range(self.CALLS):
                        wire.send('Acquire', 'a{sv}', {'cores': '1', 'wait': 'forever'})
                    os.write(theirs, b'.')
                    signal.pause()
            except (OSError, ConnectionError):
                os.write(theirs, b'!')  # cut off, or nobody takes more of it
                signal.pause()
            finally:
                os._exit(0)
        os.close(theirs)
        self.addCleanup(harness.kill_all, [pid])
        return pid, ours

    def flood(self, watcher):
        """A flood that ends; how many waited at most, how often was looked meanwhile and the longest that it took."""
        pid, ours = self.flooder()
        longest, looks, most, over = 0.0, 0, 0, b''
        os.set_blocking(ours, False)
        # That an answer is there is to be seen at once, also where this machine is busy with other things.
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        self.addCleanup(os.setpriority, os.PRIO_PROCESS, 0, usual)
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        while not over:
            with contextlib.suppress(BlockingIOError):
                over = os.read(ours, 1)
            start = time.monotonic()
            counts = watcher.call('GetStatus')['leases']
            longest = max(longest, time.monotonic() - start)
            looks += 1
            most = max(most, counts.get('queued', 0))
        os.setpriority(os.PRIO_PROCESS, 0, usual)
        os.close(ours)
        harness.kill_all([pid])
        os.waitpid(pid, 0)
        eventually(lambda: not watcher.call('GetStatus')['leases'].get('queued'), what='the flooder has left the queue')
        self.assertEqual(over, b'.', 'the flooder could say all that it had to say')
        return most, looks, longest

    def test_a_client_that_asks_ten_thousand_times_and_never_listens(self):
        self.run_lease('--cores', self.cores)
        with self.daemon.wire() as watcher:
            descriptors = self.figures()[0]

            def without_it():
                """Resident bytes once its connection is closed, a moment after its requests are gone."""
                eventually(lambda: self.figures()[0] <= descriptors, what=lambda: f'{descriptors} → {self.figures()}')
                return self.figures()[1]

            self.flood(watcher)  # what is allocated once is
            before = without_it()
            most, looks, longest = self.flood(watcher)
            after = without_it()
        print(f'{self.CALLS} requests: {looks} looks meanwhile, one took at most {1e3 * longest:.0f} ms, '
              f'{most} waited, memory {before >> 10} → {after >> 10} KiB', file=sys.stderr)
        self.assertEqual(most, self.QUEUED)
        self.assertLess(longest, SECOND)
        self.assertLess(after, before + (4 << 20))
        self.assertEqual([it['id'] for it in self.leases()], ['c1'])


class Leaving(QueueCase):
    def setUp(self):
        super().setUp()
        self.holder = self.run_lease('--cores', self.cores)

    def assert_next(self, process):
        """It gets what the holder had."""
        self.holder.kill()
        process.expect('up')

    def test_ctrl_c_while_waiting_ends_with_130_and_leaves_the_queue(self):
        words = self.words('run', '--wait=forever', '--', 'true')
        # A shell between us, as between a terminal and the program: Ctrl-C is a signal to both.
        shell = self.start(['sh', '-c', 'trap : INT; "$@"; echo "status $?"', 'sh', *words], start_new_session=True)
        shell.expect_said('c2 is queued: ')
        behind = self.queue()
        self.assertEqual(self.waiting(), ['c2', 'c3'])
        os.killpg(shell.pid, signal.SIGINT)
        shell.expect('status 130')
        eventually(lambda: self.waiting() == ['c3'], what='it has left')
        self.assertEqual(len(shell.err.splitlines()), 1, shell.err)  # that it was queued
        entry, = self.json('history')
        self.assertEqual((entry['id'], entry['state'], entry['reason']), ('c2', 'refused', 'the client vanished'))
        self.assert_next(behind)

    def test_sigkill_of_who_is_first_moves_the_others_up(self):
        first = self.queue('--cores', self.cores, prefix=NOBODY)
        behind = self.queue('--cores', '1')
        self.assertEqual(self.waiting(), ['c2', 'c3'])
        first.kill()
        eventually(lambda: self.waiting() == ['c3'], what='it has left')
        self.assertIn('c1', self.json('show', 'c3')['in_the_way'][0])
        self.assertEqual(self.json('show', 'c3')['position'], 1)
        self.assert_next(behind)


class Restart(QueueCase):
    def used(self):
        """What the journal says of use, without its checksums and numbers."""
        lines = (pathlib.Path(self.runtime_dir) / 'journal').read_text().splitlines()
        return {words[3]: words[4:] for words in map(str.split, lines) if words[2:3] == ['usage']}

    def test_a_queue_outlives_the_daemon_with_its_order_and_what_was_used(self):
        self.assertEqual(self.ctl('run', '--', 'sleep', '1.5').returncode, 0)
        eventually(lambda: self.used().get('0', ['node_seconds=0'])[1:], what='the use of that')
        holder = self.run_lease('--cores', self.cores)
        # Who has been told when to start keeps the turn, although the other user has used less.
        first = self.queue('--cores', self.cores)
        second = self.queue('--cores', '1', prefix=NOBODY)
        before = [self.json('show', lease) for lease in ('c3', 'c4')]
        self.assertEqual([lease['position'] for lease in before], [1, 2])
        used = self.used()
        self.daemon.kill()
        self.daemon.wait()
        self.daemon = self.start_daemon('--config', self.config)
        self.assertEqual(self.used(), used)
        self.assertEqual(self.waiting(), ['c3', 'c4'])
        now = [self.json('show', lease) for lease in ('c3', 'c4')]
        for key in ('position', 'estimate', 'queued'):
            self.assertEqual([lease[key] for lease in now], [lease[key] for lease in before])
        holder.kill()
        first.expect('up')
        self.assertEqual(self.waiting(), ['c4'])
        first.kill()
        second.expect('up')


class Time(QueueCase):
    LIMITS = '{time: 10min}'

    def left(self, lease):
        return self.json('show', lease)['left_usec'] / 1e6

    def test_a_job_that_ignores_the_end_of_its_time_is_killed_after_the_grace(self):
        process = self.run_lease('--time', '1s', script=IGNORES)
        waiting = self.queue('--cores', self.cores)
        eventually(lambda: self.json('show', 'c1')['reason'] == 'its time is up', what='the end of its time')
        # Told to end it lives on, and keeps its CPUs for as long as that is so.
        self.assertTrue(alive(process.pid))
        self.assertEqual(self.json('show', 'c1')['state'], 'active')
        self.assertEqual(self.waiting(), ['c2'])
        self.assertEqual(process.wait(), -signal.SIGKILL)
        waiting.expect('up')
        entry, = self.json('history')
        self.assertEqual((entry['id'], entry['state'], entry['reason']), ('c1', 'ended', 'its time is up'))
        self.assertIn('its time is up', self.ctl('history').stdout)
        self.assertIn('its time is up', self.ctl('show', 'c1').stdout)
        self.assertGreaterEqual(entry['ran_usec'], 11_000_000)  # its second, and the grace of ten

    def test_a_warning_signal_arrives_before_the_end_and_the_job_lives_on(self):
        script = ('trap "echo warned" USR1; trap "echo told to end; exit 0" TERM; echo up; '
                  'while :; do sleep 0.05; done')
        process = self.run_lease('--time', '3s', '--warn', '1s:USR1', script=script)
        process.expect('warned')
        self.assertNotIn('told to end', process.lines)
        self.assertEqual(self.json('show', 'c1')['state'], 'active')
        self.assertEqual(process.wait(), 0)
        self.assertEqual(process.lines, ['up', 'warned', 'told to end'])

    def test_without_a_signal_nobody_is_sent_one(self):
        script = 'trap "exit 0" TERM; echo up; while :; do sleep 0.05; done'
        process = self.run_lease('--time', '1s', '--warn', '1s', script=script)
        self.assertEqual(process.wait(), 0)
        self.assertEqual(process.lines, ['up'])

    def test_an_owner_puts_the_end_off_as_far_as_the_site_allows(self):
        self.run_user('--cores', '1', '--time', '5min')
        done = self.ctl('extend', 'c1', '4min', prefix=NOBODY)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        self.assertRegex(done.stdout, r'^c1 ends in [89]min')
        self.assertGreater(self.left('c1'), 8 * 60)
        self.refused(77, 'c1', '5min', verb='extend', texts=('14min in all', 'at most 10min'))
        self.assertLess(self.left('c1'), 9 * 60)
        self.assertEqual(self.ctl('extend', 'c1', '5min').returncode, 0)  # an administrator
        self.assertGreater(self.left('c1'), 13 * 60)

    def test_nobody_else_may_put_the_end_off(self):
        self.run_lease('--cores', '1', '--time', '5min')
        self.refused(77, 'c1', '1min', verb='extend', texts=('org.numalease1.manage',))
        self.assertLess(self.left('c1'), 5 * 60)

    def test_what_was_promised_to_the_first_in_the_queue_is_not_put_off(self):
        self.run_user('--cores', self.cores, '--time', '5min')
        first = self.queue('--cores', self.cores)
        self.assertIn('when c1 (', self.json('show', 'c2')['estimate'])
        self.refused(75, 'c1', '1min', verb='extend', texts=('c2 (uid 0) waits first', 'c1'))
        self.assertLess(self.left('c1'), 5 * 60)
        first.kill()
        eventually(lambda: self.waiting() == [], what='nobody waits')
        self.assertEqual(self.ctl('extend', 'c1', '1min', prefix=NOBODY).returncode, 0)

    def test_what_has_no_end_has_none_to_put_off(self):
        self.run_lease('--cores', '1')
        self.refused(64, 'c1', '1min', verb='extend', prefix=(), texts=('c1 has no end',))


class Backfill(QueueCase):
    def test_what_is_over_in_time_goes_ahead_and_nothing_else_does(self):
        self.need_cores(2)
        holder = self.run_lease('--cores', self.cores - 1, '--time', '5min')
        first = self.queue('--cores', self.cores, prefix=NOBODY)
        # One core is free until the holder's end, which whoever waits for all of them is promised.
        endless = self.queue('--cores', '1')
        self.assertIn('behind c2, which it would delay; with an end, --time, it might go before it',
                      self.json('show', 'c3')['in_the_way'])
        too_long = self.queue('--cores', '1', '--time', '1h')
        short = self.start(self.words('run', '--wait=forever', '--cores', '1', '--time', '1min', '--', 'echo', 'short'))
        self.assertEqual(short.wait(), 0, short.err)
        self.assertEqual(short.lines, ['short'])
        self.assertNotIn('is queued', short.err)
        self.assertEqual(self.waiting(), ['c2', 'c3', 'c4'])
        self.assertNotIn('delay', self.ctl('run', '--no-wait', '--cores', '1', '--time', '1min', '--', 'true').stderr)
        done = self.ctl('run', '--no-wait', '--cores', '1', '--', 'true')
        self.assert_failure(done, 75, 'behind c2')
        holder.kill()
        first.expect('up')
        self.assertEqual(self.waiting(), ['c3', 'c4'])
        first.kill()
        endless.expect('up')
        too_long.expect('up')


if __name__ == '__main__':
    harness.main()
