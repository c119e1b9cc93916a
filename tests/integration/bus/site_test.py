"""The site configuration: what a user may have, and what becomes of a wrong file."""

import grp
import pwd
import signal
import subprocess

import bed
from bed import NOBODY


class Site(bed.Case):
    def setUp(self):
        super().setUp()
        self.file = self.bed.top / 'site.yaml'
        self.user = pwd.getpwuid(NOBODY).pw_name
        self.group = grp.getgrgid(NOBODY).gr_name

    def start(self, text):
        self.file.write_text(text)
        self.bed.start_daemon()
        self.watcher = self.bed.connect()
        self.client = self.connect()

    def connect(self):
        return self.bed.connect(user=NOBODY, group=NOBODY, extra_groups=[])

    def reload(self, text, told):
        """`told`: what the log says when it is done."""
        before = self.bed.log.read_text().count(told)
        self.file.write_text(text)
        self.bed.daemon.process.send_signal(signal.SIGHUP)
        bed.eventually(lambda: self.bed.log.read_text().count(told) > before, told)

    def status(self):
        return self.watcher.call('GetStatus')[0]

    def check(self):
        return subprocess.run([f'{bed.OPTIONS.bin}/numa-leased', '--check', '--config', str(self.file)],
                              capture_output=True, text=True, timeout=bed.PATIENCE, check=False)

    def test_more_leases_than_a_user_may_have_are_refused(self):
        self.start(f'group: {self.group}\nlimits: {{leases: 1}}\n')
        first = self.client.active(cores='1', share='yes')
        second = self.connect()
        with self.fails('Quota', f'uid {NOBODY} has 1 already'):
            second.acquire(cores='1', share='yes', wait='no')
        for _ in range(2):  # root's are not bounded
            self.bed.connect().active(cores='1', share='yes')
        self.client.kill()
        self.watcher.wait(first['id'], 'ended')
        second.active(cores='1', share='yes')

    def test_what_is_said_of_a_group_goes_before_what_is_said_of_all_and_a_user_before_both(self):
        everybody = f'group: {self.group}\nlimits: {{leases: 0}}\n'
        of_group = everybody + f'groups: {{{self.group}: {{leases: 1}}, no-such-group: {{leases: 9}}}}\n'
        self.start(everybody)
        with self.fails('Impossible', 'leases: 1 asked, 0 is the most'):
            self.client.acquire(cores='1')
        self.reload(of_group, 'the site configuration is in force')
        self.client.active(cores='1', share='yes')
        with self.fails('Quota', 'leases: ', '1 is the most'):
            self.client.acquire(cores='1', share='yes', wait='no')  # inside the first: one more all the same
        self.reload(of_group + f'users: {{{self.user}: {{leases: 2}}, root: {{leases: 0}}}}\n',
                    'the site configuration is in force')
        self.connect().active(cores='1', share='yes')
        with self.fails('Quota', 'leases: ', '2 is the most'):
            self.client.acquire(cores='1', share='yes', wait='no')
        with self.fails('Impossible', 'leases: ', '0 is the most for uid 0'):
            self.watcher.acquire(cores='1', share='yes')

    def test_a_wrong_file_at_the_start_leaves_the_defaults_and_says_so(self):
        self.start('group: other\nlimits: {leases: none}\n')
        degraded = [it for it in self.status()['degraded'] if 'configuration' in it]
        self.assertEqual(degraded, [f"configuration not used: {self.file}:2:18: leases: 'none' is not a number up to "
                                    '65536; the defaults are in force'])
        self.assertEqual(self.status()['configuration'], '')
        self.assertEqual(self.status()['scheduling']['half_life'], 86_400_000_000)
        with self.fails('Denied', 'usermod -aG numa-lease'):
            self.client.acquire(cores='1')
        self.assertEqual(self.watcher.active(cores='1')['state'], 'active')

    def test_a_wrong_file_on_reload_leaves_the_former_in_force(self):
        former = f'group: {self.group}\nlimits: {{leases: 1}}\nscheduling: {{aging: never}}\n'
        self.start(former)
        self.assertEqual(self.check().returncode, 0)
        self.client.active(cores='1')
        self.reload(f'group: {self.group}\nlimits: {{leases: 2\n', 'the site configuration is not used')
        self.assertIn('level=error', self.bed.log.read_text())
        with self.fails('Quota', 'leases: ', '1 is the most'):
            self.client.acquire(cores='1', wait='no')
        degraded = [it for it in self.status()['degraded'] if 'configuration' in it]
        self.assertIn(f'{self.file}:3:1: ', degraded[0])
        self.assertIn('the former stays in force', degraded[0])
        self.assertEqual(self.status()['configuration'], str(self.file))
        self.assertEqual(self.status()['scheduling']['aging'], 2 ** 62 - 1)
        checked = self.check()
        self.assertEqual(checked.returncode, 66)
        self.assertRegex(checked.stderr, f'^numa-leased: {self.file}:3:1: .*\n$')
        self.reload(former.replace('1}', '2}'), 'the site configuration is in force')
        self.assertFalse([it for it in self.status()['degraded'] if 'configuration' in it])
        self.client.active(cores='1')

    def test_whoever_waits_is_looked_at_again_after_a_reload(self):
        self.start('reserve: 6G\n')
        self.bed.connect().active(cores='1', memory='8G')
        lease = self.watcher.acquire(cores='1', memory='8G', wait='forever')
        self.assertEqual(lease[1]['state'], 'queued')
        self.reload('reserve: 0\n', 'the site configuration is in force')
        self.assertEqual(self.watcher.wait(lease[0], 'active')['state'], 'active')

    def test_a_file_that_is_gone_is_the_defaults_again(self):
        self.start(f'group: {self.group}\nlimits: {{leases: 0}}\n')
        self.file.unlink()
        self.bed.daemon.process.send_signal(signal.SIGHUP)
        bed.eventually(lambda: 'no site configuration any more' in self.bed.log.read_text(), 'the defaults')
        self.assertEqual(self.status()['configuration'], '')
        self.assertEqual(self.check().returncode, 0)
        with self.fails('Denied', 'usermod -aG numa-lease'):
            self.client.acquire(cores='1')


if __name__ == '__main__':
    bed.main()
