"""A read-only /proc/sys, as containers have it: what is typed refuses, what a policy brought is skipped and said."""

import grp
import os
import pathlib

import harness
from harness import BALANCING, Case, read, snapshot

READ_ONLY = harness.with_mounts('mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys')


class ReadOnly(Case):
    def setUp(self):
        super().setUp()
        self.need(BALANCING)
        self.before = self.set_kernel({BALANCING: 1})
        self.daemon = self.start_daemon(prefix=READ_ONLY)

    def test_what_is_typed_refuses(self):
        done = self.ctl('run', '--numa-balancing', 'off', '--', 'true')
        self.assertIn(done.returncode, (78, 125))
        self.assert_failure(done, done.returncode, 'numa_balancing', 'Read-only file system')
        self.assertEqual(snapshot(), self.before)
        self.assertEqual(self.leases(), [])

    def test_best_effort_is_granted_and_says_what_it_lacks(self):
        done = self.ctl('run', '--best-effort', '--numa-balancing', 'off', '--', 'cat', BALANCING)
        self.assertEqual((done.returncode, done.stdout), (0, '1\n'), done.stderr)
        self.assertIn('Read-only file system', done.stderr)

    def test_what_a_policy_brought_is_skipped_and_said(self):
        home = pathlib.Path(self.runtime_dir) / 'home'
        policies = home / '.config/numa-lease/policies'
        policies.mkdir(parents=True)
        os.chown(home, 65534, 65534)  # only a home of one's own counts
        (policies / 'quiet.yaml').write_text('request:\n  numa-balancing: off\n')
        done = self.with_policies(home, 'run', '--policy', 'quiet', '--', 'cat', BALANCING)
        self.assertEqual((done.returncode, done.stdout), (0, '1\n'), done.stderr)
        self.assertIn('Read-only file system', done.stderr)

    def with_policies(self, home, verb, *rest):
        """A user's own policies are not read for root, so the request of one who may ask is made by a member."""
        self.daemon.end()
        config = pathlib.Path(self.runtime_dir) / 'site.yaml'
        config.write_text(f'group: {grp.getgrgid(65534).gr_name}\n')
        self.daemon = self.start_daemon('--config', config, prefix=READ_ONLY)
        return self.ctl(verb, *rest, prefix=['setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups', '--',
                                             'env', f'HOME={home}'])

    def test_the_rest_of_a_lease_works(self):
        done = self.ctl('run', '--cores', '1', '--hugepages', '2M=4M', '--', 'cat', harness.PAGES)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(int(done.stdout), int(self.before[harness.PAGES]) + 2)
        self.expect_kernel(self.before)
        self.assertEqual(read(BALANCING), '1')


if __name__ == '__main__':
    harness.main()
