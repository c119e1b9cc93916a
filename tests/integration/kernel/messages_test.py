"""What people see: exit statuses with one line of ours, the queue, the verbs, JSON, reports."""

import json
import os
import pathlib
import signal
import tempfile

import harness
from harness import BALANCING, PAGES, Case, children_of, eventually, read, snapshot

NOBODY = ('setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups', '--', 'env', 'HOME=/')


class Statuses(Case):
    def refused(self, status, *words, texts=()):
        done = self.ctl(*words)
        self.assert_failure(done, status, *texts)
        self.assertEqual(done.stdout, '')
        return done

    def test_64_for_what_cannot_be_understood(self):
        self.start_daemon()
        before = snapshot()
        for options, text in (
            (['--node', '0-'], 'node'), (['--node', '3-1'], 'node'), (['--node', '0,,2'], 'node'),
            (['--node', ''], 'node'), (['--cores', '99999999999999999999'], 'cores'), (['--cores', '-1'], 'cores'),
            (['--memory', '99999999999999999999G'], 'memory'), (['--hugepages', '2M=1Q'], 'hugepages'),
            (['--numa-balancing', 'sometimes'], 'numa-balancing'),
            (['--nonsense'], '--nonsense'), (['--node', '0', '--socket', '0'], 'socket'),
            (['--interleave', 'on', '--mempolicy', 'bind'], 'contradicts'), (['--wait=soon'], 'wait'),
        ):
            with self.subTest(options):
                self.refused(64, 'run', *options, '--', 'true', texts=[text])
        self.refused(64, 'run')
        self.refused(64, 'frobnicate')
        self.refused(64, 'show', 'c99', texts=['c99'])
        self.refused(64, 'exec', 'c99', '--', 'true', texts=['c99'])
        self.assertEqual(self.json('list'), [])
        self.assertEqual(snapshot(), before)

    def test_64_for_what_only_a_lease_can_do(self):
        self.start_daemon()
        for options in (['--shield'], ['--memory-max', '1G'], ['--weights', '0=1', '--mempolicy', 'weighted'], ['--hugepages', '2M=2M']):
            with self.subTest(options):
                self.refused(64, 'run', '--unleased', *options, '--', 'true', texts=['--unleased', options[0]])

    def test_64_for_a_report_of_a_service_which_nothing_could_complete(self):
        self.start_daemon()
        report = pathlib.Path(self.runtime_dir) / 'report.json'
        done = self.ctl('run', '--report', report, '--', 'true',
                        prefix=('sh', '-c', 'SYSTEMD_EXEC_PID=$$ exec "$@"', 'sh'))
        self.assert_failure(done, 64, '--report', 'service')
        self.assertFalse(report.exists())

    def test_64_for_a_container_client_and_nothing_is_acquired(self):
        self.start_daemon()
        for command in (['docker', 'run', 'image'], ['podman', 'run', 'image'], ['nerdctl', 'run', 'image'],
                        ['env', 'A=b', 'docker', 'run', 'image'], ['sudo', '-n', 'docker', 'compose', 'up'],
                        ['docker-compose', 'up']):
            with self.subTest(command):
                done = self.refused(64, 'run', '--numa-balancing', 'off', '--', *command)
                self.assertIn('cgroup', done.stderr)
                self.assertIn('use instead', done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertEqual(self.json('list'), [])

    def test_66_for_a_model_or_policy_that_cannot_be_read(self):
        self.start_daemon()
        self.refused(66, 'run', '--policy', 'no-such-policy', '--', 'true', texts=['no-such-policy'])
        self.refused(66, 'run', '--model', '/nowhere/model.gguf', '--', 'true', texts=['/nowhere/model.gguf'])
        self.assertEqual(self.json('list'), [])

    def test_69_without_a_daemon(self):
        self.refused(69, 'release', 'c1', texts=['numa-leased'])
        self.refused(69, 'stop', 'c1')
        self.refused(69, 'exec', 'c1', '--', 'true')
        done = self.ctl('run', '--', 'true', prefix=NOBODY)
        self.assert_failure(done, 69, 'as root', 'numa-leasectl run --unleased')

    def test_75_when_there_is_no_room_now(self):
        self.start_daemon()
        self.run_lease()
        self.refused(75, 'run', '--no-wait', '--', 'true', texts=['c1'])

    def test_77_for_a_user_who_may_not(self):
        self.start_daemon()
        done = self.ctl('run', '--', 'true', prefix=NOBODY)
        self.assert_failure(done, 77, f'{self.runtime_dir}/socket', 'usermod')

    def test_78_for_what_this_machine_never_has(self):
        self.start_daemon()
        for options, text in ((['--node', '700'], 'node 700'), (['--socket', '77'], 'socket 77'),
                              (['--cores', '8000'], '8000 cores'), (['--memory', '900T'], ''),
                              (['--near', 'gpu:63'], 'gpu'), (['--gpu', '63'], 'gpu 63'),
                              (['--hugepages', '3M=30M'], 'hugepages')):
            with self.subTest(options):
                self.refused(78, 'run', *options, '--', 'true', texts=[text])
        self.assertEqual([it for it in self.json('list') if it['state'] != 'refused'], [])

    def test_help_has_an_example_for_every_verb(self):
        for verb in ('status', 'run', 'exec', 'plan', 'list', 'show', 'wait', 'release', 'stop', 'topology', 'knobs',
                     'policy'):
            with self.subTest(verb):
                done = self.ctl(verb, '--help')
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f'Example: numa-leasectl {verb}', done.stdout)
                self.assertEqual([line for line in done.stdout.splitlines() if len(line) > 80], [])


class Queue(Case):
    def setUp(self):
        super().setUp()
        self.start_daemon()

    def test_waiting_has_an_end_and_names_who_is_in_the_way(self):
        self.run_lease()
        done = self.ctl('run', '--wait=1s', '--', 'true')
        self.assert_failure(done, 75)
        self.assertIn('c1', done.stderr)
        self.assertEqual(len(self.leases()), 1)

    def test_who_waits_starts_when_the_room_is_free(self):
        first = self.run_lease()
        second = self.start(self.words('run', '--wait=forever', '--', 'echo', 'started'))
        second.expect_said('c2 is queued: ')
        self.assertIn('c1', second.err)
        self.assertEqual(self.json('show', 'c2')['state'], 'queued')
        self.assertIn('c1', ' '.join(self.json('show', 'c2')['in_the_way']))
        first.kill()
        self.assertEqual(second.wait(), 0, second.err)
        self.assertEqual(second.lines, ['started'])

    def test_first_come_first_served(self):
        first = self.run_lease()
        order = pathlib.Path(self.runtime_dir) / 'order'
        waiting = []
        for name in 'abc':
            waiting.append(self.start(self.words('run', '--wait=forever', '--', 'sh', '-c', f'echo {name} >> {order}')))
            waiting[-1].expect_said('is queued')
        first.kill()
        for process in waiting:
            self.assertEqual(process.wait(), 0, process.err)
        self.assertEqual(order.read_text().split(), ['a', 'b', 'c'])

    def test_who_is_killed_while_waiting_leaves_the_queue(self):
        first = self.run_lease()
        waiting = self.start(self.words('run', '--wait=forever', '--', 'true'))
        waiting.expect_said('is queued')
        waiting.kill()
        eventually(lambda: [it['id'] for it in self.leases()] == ['c1'], what='the queue is empty')
        first.kill()

    def test_a_nested_run_is_a_part_of_its_parent_and_does_not_wait_for_it(self):
        inner = ' '.join(str(word) for word in self.words('run', '--cores', '1', '--no-wait', '--quiet'))
        done = self.ctl('run', '--quiet', '--', 'sh', '-c', f'{inner} -- sh -c \'echo $NUMA_LEASE_ID $NUMA_LEASE_CORES\'')
        self.assertEqual((done.returncode, done.stdout), (0, 'c2 1\n'), done.stderr)
        eventually(lambda: self.leases() == [], what='the end of both')

    def test_exec_enters_the_lease(self):
        first = self.run_lease('--cores', '1')
        cpus = self.json('show', 'c1')['placement']['cpus']
        done = self.ctl('exec', 'c1', '--', 'sh', '-c',
                        'echo $$ $NUMA_LEASE_ID; grep Cpus_allowed_list /proc/self/status; cat /proc/self/cgroup')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split()[1:4:2], ['c1', cpus])
        if harness.has_cgroup2():
            self.assertIn('numalease-c1', done.stdout)
        first.kill()

    def test_exec_keeps_the_lease_after_its_first_holder(self):
        first = self.run_lease()
        second = self.start(self.words('exec', 'c1', '--', 'sh', '-c', 'echo up; exec sleep 1000'))
        second.expect('up')
        first.kill()
        first.wait()
        self.assertEqual([it['state'] for it in self.leases()], ['active'])
        second.kill()
        eventually(lambda: self.leases() == [], what='the end of the lease')

    def test_release_is_refused_while_processes_live(self):
        self.run_lease()
        self.assert_failure(self.ctl('release', 'c1'), 75, 'c1')
        self.assertEqual([it['state'] for it in self.leases()], ['active'])

    def test_wait_returns_when_the_lease_has_ended(self):
        process = self.run_lease()
        waiting = self.start(self.words('wait', 'c1', '--until', 'ended'))
        self.assertEqual(self.ctl('wait', 'c1', '--until', 'active').returncode, 0)
        self.assertIsNone(waiting.popen.poll())
        process.kill()
        self.assertEqual(waiting.wait(), 0, waiting.err)

    def test_time_is_up(self):
        process = self.run_lease('--time', '300ms')
        self.assertEqual(process.wait(), -signal.SIGTERM)
        eventually(lambda: self.leases() == [], what='the end of the lease')
        self.assertIn('time is up', self.json('show', 'c1')['reason'])


class Looking(Case):
    def test_verbs_that_look_need_neither_root_nor_a_daemon(self):
        for words in (['list'], ['status'], ['topology'], ['knobs'], ['plan', '--cores', '1'],
                      ['plan', '--cores', '1', '--', 'llama-server'], ['policy', 'list']):
            with self.subTest(words):
                done = self.ctl(*words, prefix=NOBODY)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(done.stdout)
        self.assertEqual(os.listdir(self.runtime_dir), [])
        self.assert_failure(self.ctl('show', 'c1', prefix=NOBODY), 64, 'c1')

    def test_they_see_leases_of_a_daemon_whose_socket_they_may_not_use(self):
        self.start_daemon()
        self.run_lease()
        self.assertIn('c1', self.ctl('list', prefix=NOBODY).stdout)
        self.assertIn('c1', self.ctl('show', 'c1', prefix=NOBODY).stdout)

    def test_a_journal_that_cannot_be_read_is_said(self):
        self.start_daemon()
        self.run_lease()
        os.chmod(f'{self.runtime_dir}/journal', 0o600)
        for verb, where in (('list', 'stderr'), ('status', 'stdout')):
            with self.subTest(verb):
                done = self.ctl(verb, prefix=NOBODY)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f'{self.runtime_dir}: journal: cannot read: Permission denied', getattr(done, where))

    def test_json_of_every_verb_parses(self):
        self.start_daemon()
        self.run_lease('--share', '--cores', '1')
        for words in (['list'], ['status'], ['topology'], ['knobs'], ['show', 'c1'], ['plan', '--share', '--cores', '1'],
                      ['policy', 'list'], ['policy', 'show', 'single-node'], ['wait', 'c1', '--until', 'active']):
            with self.subTest(words):
                self.assertTrue(self.json(*words))
        self.assertEqual(json.loads(self.ctl('stop', 'c1', '--json').stdout)['state'], 'ended')

    def test_policy_check_knows_every_kind_of_file_by_its_place_or_its_keys(self):
        folder = pathlib.Path(self.runtime_dir)
        for name in ('engines', 'leases', 'policies'):
            (folder / name).mkdir()
        for name, text, told in (
            ('numa-lease.yaml', '# reserve: 1G\n', 'site configuration: ok'),
            ('any.yaml', 'group: llm\nlimits: {cores: 4}\n', 'site configuration: ok'),
            ('engines/e.yaml', 'facts: [a]\n', 'engine e: ok'), ('any.yaml', 'programs: [x]\n', 'engine any: ok'),
            ('leases/web.yaml', 'cores: 4\n', 'lease web: ok'), ('any.yaml', 'engine: vllm\n', 'lease any: ok'),
            ('policies/p.yaml', 'why: x\n', 'policy p: ok'), ('any.yaml', 'request: {cores: 4}\n', 'policy any: ok'),
        ):
            with self.subTest(name, text=text):
                (folder / name).write_text(text)
                done = self.ctl('policy', 'check', folder / name)
                self.assertEqual((done.returncode, done.stdout), (0, told + '\n'), done.stderr)
                self.assertEqual(self.ctl('policy', 'check', '--json', folder / name).returncode, 0)
        for name, text, place in (
            ('numa-lease.yaml', 'reserve: 1G\nlimit: {}\n', ":2:1: unknown key 'limit'"),
            ('any.yaml', 'limits: {classes: [gold]}\n', ":1:20: 'gold' is no class"),
            ('leases/web.yaml', 'core: 4\n', ":1:1: unknown key 'core'"),
        ):
            with self.subTest(name, text=text):
                (folder / name).write_text(text)
                self.assert_failure(self.ctl('policy', 'check', folder / name), 66, f'{folder / name}{place}')

    def test_status_names_a_knob_off_its_prior_and_for_whom(self):
        self.need(BALANCING)
        harness.write(BALANCING, 1)
        self.start_daemon()
        self.run_lease('--numa-balancing', 'off')
        self.assertIn('numa_balancing is 0, was 1, for c1', self.ctl('status').stdout)

    def test_output_has_no_colour_and_no_control_characters_of_others(self):
        self.start_daemon()
        self.run_lease('--reason', 'plain', script='echo up; exec sleep 1000 # \x1b[31m')
        for verb in (['list'], ['show', 'c1'], ['status']):
            self.assertNotIn('\x1b', self.ctl(*verb).stdout)

    def test_run_unleased_is_for_everybody(self):
        done = self.ctl('run', '--unleased', '--cores', '1', '--', 'sh', '-c',
                        'id -u; grep Cpus_allowed_list /proc/self/status; echo $NUMA_LEASE_THREADS', prefix=NOBODY)
        self.assertEqual(done.returncode, 0, done.stderr)
        uid, _, allowed, threads = done.stdout.split()
        self.assertEqual((uid, threads), ('65534', '1'))
        self.assertNotIn('-', allowed)
        self.assertEqual(os.listdir(self.runtime_dir), [])

    def test_run_unleased_leaves_no_process_behind_the_command(self):
        process = self.start(self.words('run', '--unleased', '--', 'sleep', '1000'))
        eventually(lambda: pathlib.Path(f'/proc/{process.pid}/exe').resolve().name == 'sleep', what='exec')
        self.assertEqual(children_of(process.pid), [])


class Reports(Case):
    def setUp(self):
        super().setUp()
        self.need(BALANCING)
        self.before = self.set_kernel({BALANCING: 1, PAGES: 3})
        self.report = pathlib.Path(tempfile.mktemp(dir=self.runtime_dir, suffix='.json'))

    def complete(self):
        def finished():
            report = json.loads(self.report.read_text())
            return report if report['complete'] else None
        return eventually(finished, what=lambda: self.report.read_text())

    @staticmethod
    def value(knobs, name):
        return next(it['value'] for it in knobs['knobs'] if it['knob'] == name)

    def test_a_report_holds_the_grant_and_the_state_before_and_after(self):
        done = self.ctl('run', '--report', self.report, '--numa-balancing', 'off', '--hugepages', '2M=32M', '--', 'cat',
                        BALANCING)
        self.assertEqual((done.returncode, done.stdout), (0, '0\n'), done.stderr)
        report = self.complete()
        self.assertEqual([self.value(report[when], 'numa_balancing') for when in ('before', 'after')], ['1', '1'])
        self.assertEqual([self.value(report[when], 'hugepages/2M/node0') for when in ('before', 'after')], ['3', '3'])
        grants = {it['knob']: it['got'] for it in report['lease']['knobs']}
        self.assertEqual((grants['numa_balancing'], grants['hugepages/2M/node0']), ('0', '16'))
        self.assertEqual(report['lease']['state'], 'ended')
        self.assertIn('cat', report['command'])

    def test_it_is_finished_also_when_the_command_is_killed(self):
        self.start_daemon()
        process = self.run_lease('--report', self.report, '--numa-balancing', 'off')
        self.assertFalse(json.loads(self.report.read_text())['complete'])
        process.kill()
        self.assertEqual(self.value(self.complete()['after'], 'numa_balancing'), '1')

    def test_a_refusal_is_reported_too(self):
        self.start_daemon()
        self.assertEqual(self.ctl('run', '--report', self.report, '--node', '700', '--', 'true').returncode, 78)
        self.assertIn('node 700', str(self.complete()['notes']))

    def test_a_report_that_cannot_be_written_is_said_before_anything_happens(self):
        done = self.ctl('run', '--report', '/nowhere/report.json', '--', 'true')
        self.assert_failure(done, 66, '/nowhere/report.json')
        self.assertEqual(read(BALANCING), '1')


if __name__ == '__main__':
    harness.main()
