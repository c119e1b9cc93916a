"""Policies beside whose command a supervisor stays, with a real llama.cpp: a server that is warmed, and instances."""

import os
import pathlib
import signal
import socket

import engine
import harness
from engine import EngineCase, environment_of, model, program
from harness import alive, children_of, eventually, kill_all
from inside_test import free_port, is_ready


class Notified:
    """A manager's socket, as systemd gives one to a service of Type=notify."""

    def __init__(self, directory):
        self.path = f'{directory}/notify'
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(120)

    def until(self, line):
        """Everything that is said before a message with that line, and that message."""
        said = []
        while line not in said:
            said += self.socket.recv(65536).decode().split('\n')
        return said


class Supervised(EngineCase):
    def serve(self, policy, *arguments, options=('--cores', '1'), env=(), name='llama-server'):
        # One core: threads that spin on cores that others want need seconds for each token.
        process = self.start_in_lease([program(name), '-m', model('big'), *arguments], ('--policy', policy, *options), env)
        # Killed, the supervisor leaves its server running.
        self.addCleanup(lambda: kill_all(children_of(process.pid)))
        return process

    def engine_below(self, process):
        def found():
            pids = [pid for pid in children_of(process.pid)
                    if pathlib.Path(f'/proc/{pid}/exe').resolve().parent == engine.ENGINE / 'bin']
            return pids and pids[0]
        return eventually(found, what=lambda: process.err)

    def assert_ends(self, process, number, status):
        server = self.engine_below(process)
        process.kill(number)
        self.assertEqual(process.wait(), status, process.err)
        self.assertFalse(alive(server))
        eventually(lambda: self.leases() == [], what='the end of the lease')


class FirstTouch(Supervised):
    def test_a_server_is_announced_when_it_is_warm(self):
        port = free_port()
        manager = Notified(self.runtime_dir)
        self.addCleanup(manager.socket.close)
        # Some thirty tokens of it are what the server makes by itself: they must not be all that is loaded.
        process = self.serve('first-touch', '--port', port, '-n', '1', env={'NOTIFY_SOCKET': manager.path})
        manager.until('READY=1')
        self.assertTrue(is_ready(port))
        process.expect_said(f'first-touch: ready: port {port}')
        said = process.err
        for text in ('this process stays to warm the server', f'the server answers on port {port}; it is warmed now',
                     'first-touch: round 1: ', 'first-touch: warm: round ', ' of files: on node 0'):
            self.assertIn(text, said)
        self.assertLess(said.index('first-touch: warm: '), said.index('first-touch: ready'))
        # All of its 248 MiB were mapped and touched, and that is what was said.
        files = said.split('first-touch: warm: ')[1].split(' of files')[0].split()[-1]
        self.assertGreater(float(files.rstrip('M')), 240, said)
        self.assert_ends(process, signal.SIGTERM, 0)

    def test_its_grant_is_as_the_policy_says(self):
        port = free_port()
        process = self.serve('first-touch', '--port', port)
        server = self.engine_below(process)
        eventually(lambda: is_ready(port), what=lambda: process.err)
        lease = self.leases()[0]
        self.assertEqual((lease['request']['mempolicy'], lease['request']['numa-balancing']), ('local', 'off'))
        self.assertEqual(environment_of(server)['NUMA_LEASE_ID'], lease['id'])
        self.assert_ends(process, signal.SIGINT, 0)

    def test_one_that_is_killed_while_it_is_warmed_ends_us_with_its_status(self):
        process = self.serve('first-touch', '--port', free_port())
        os.kill(self.engine_below(process), signal.SIGKILL)
        self.assertEqual(process.wait(), 128 + signal.SIGKILL)
        self.assertNotIn('ready', process.err)

    def test_what_is_no_server_is_run_as_ever(self):
        process = self.serve('first-touch', '--front-hold', '1', '-n', '1', name='llama-cli')
        eventually(lambda: pathlib.Path(f'/proc/{process.pid}/exe').resolve().name == 'llama-cli')
        self.assertEqual(process.wait(60), 0, process.err)
        self.assertIn('is no server that can be made to generate: it is not warmed', process.err)

    def test_a_server_elsewhere_is_not_warmed(self):
        port = free_port()
        process = self.serve('first-touch', '--port', port, '--host', '127.0.0.2')
        eventually(lambda: is_ready(port, '127.0.0.2'), what=lambda: process.err)
        process.expect_said('the server listens at 127.0.0.2, not at 127.0.0.1: it is not warmed')
        process.kill(signal.SIGTERM)
        self.assertEqual(process.wait(), 0, process.err)


class Verified(Supervised):
    def test_a_server_is_looked_at_when_it_is_ready(self):
        port = free_port()
        process = self.serve('single-node', '--port', port, options=('--cores', '1', '--verify'))
        process.expect_said('single-node: ready: verified')
        self.assertTrue(is_ready(port))
        self.assertIn('this process stays to say where its memory is once it has loaded', process.err)
        self.assertNotIn('amiss', process.err)
        self.assertRegex(process.err, r'single-node: .*on node 0')
        # The daemon has looked too, and keeps it.
        lease, = self.leases()
        self.assertIn(f'single-node: lease {lease["id"]}: {lease["verified"]["text"]}', process.err)
        self.assert_ends(process, signal.SIGTERM, 0)

    def test_what_is_no_server_is_looked_at_when_it_has_loaded(self):
        process = self.serve('single-node', '-n', '1', '--front-hold', '6', options=('--cores', '1', '--verify'),
                             name='llama-cli')
        process.expect_said('single-node: ready: verified')
        self.assertEqual(process.wait(), 0, process.err)


class PerNode(Supervised):
    """On a machine with one node: one instance."""

    def test_an_instance_has_a_lease_inside_of_the_whole_one(self):
        port = free_port()
        process = self.serve('per-node', '--port', port)
        process.expect_said(f'per-node: ready: port {port}')
        self.assertTrue(is_ready(port))
        server = self.engine_below(process)
        whole, part = sorted(self.leases(), key=lambda lease: int(lease['id'][1:]))
        self.assertEqual(part['caller']['parent'], whole['id'])
        self.assertIn(f'per-node: lease {whole["id"]}: {whole["verified"]["text"]}', process.err)
        self.assertEqual(environment_of(server)['NUMA_LEASE_ID'], part['id'])
        self.assertEqual(part['placement']['nodes'], '0')
        # What it needs is asked for once for each, not for all together.
        self.assertNotIn('memory', whole['request'])
        self.assertGreater(part['placement']['promise']['0'], 200 << 20)
        # Its weights are read, not mapped.
        mapped = [line for line in pathlib.Path(f'/proc/{server}/maps').read_text().splitlines() if '.gguf' in line]
        self.assertEqual(mapped, [])
        self.assert_ends(process, signal.SIGTERM, 0)

    def test_the_supervisors_death_leaves_the_instance_in_its_lease(self):
        process = self.serve('per-node', '--port', free_port())
        process.expect_said('per-node: ready')
        server = self.engine_below(process)
        part = environment_of(server)['NUMA_LEASE_ID']
        process.kill(signal.SIGKILL)
        process.wait()
        self.addCleanup(lambda: kill_all([server]))
        self.assertTrue(alive(server))
        self.assertIn(part, [lease['id'] for lease in self.leases()])
        os.kill(server, signal.SIGTERM)
        eventually(lambda: self.leases() == [], what='the end of the lease')

    def test_what_cannot_fit_its_node_is_not_begun(self):
        done = self.ctl('run', '--policy', 'per-node', '--memory', '900T', '--', 'touch', f'{self.runtime_dir}/begun')
        self.assert_failure(done, 78, '900T')
        self.assertFalse(os.path.exists(f'{self.runtime_dir}/begun'))
        eventually(lambda: self.leases() == [], what='the end of the lease')

    def test_one_that_fails_is_started_again_where_the_policy_says_so(self):
        policy = harness.BIN / '../share/numa-lease/policies/again.yaml'
        policy.write_text('request: {node: all}\nrun: {per: node, on-failure: restart}\n')
        self.addCleanup(policy.unlink)
        runs = f'{self.runtime_dir}/runs'
        done = self.ctl('run', '--policy', 'again', '--', 'sh', '-c', f'echo x >>{runs}; [ $(wc -l <{runs}) -ge 3 ]')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count('instance 0 on node 0 ended with 1; it is started again'), 2, done.stderr)


if __name__ == '__main__':
    engine.main()
