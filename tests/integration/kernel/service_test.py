"""The daemon as a service manager has it: told to stop, it keeps its leases; its descriptors are kept for it."""

import array
import os
import pathlib
import signal
import socket
import subprocess

import harness
from harness import BALANCING, PAGES, Case, alive, eventually, read, snapshot

WANTS = ('--numa-balancing', 'off', '--hugepages', '2M=32M')


class Service(Case):
    def setUp(self):
        super().setUp()
        self.need(BALANCING)
        self.before = self.set_kernel({BALANCING: 1, PAGES: 3})

    def leased(self):
        return self.run_lease(*WANTS)

    def restore_if_stopping(self, bus):
        return subprocess.run([harness.BIN / 'numa-leased', '--bus', bus, '--runtime-dir', self.runtime_dir,
                               '--restore', '--if-stopping', 'numa-leased.service'],
                              capture_output=True, text=True, timeout=60)

    def test_sigterm_leaves_the_leases_to_the_next_daemon(self):
        daemon = self.start_daemon('--keep-leases')
        workload = self.leased()
        lease = self.leases()[0]
        daemon.kill(signal.SIGTERM)
        self.assertEqual(daemon.wait(), 0, daemon.err)
        self.assertIn('the leases wait for the next daemon', daemon.err)
        self.assertEqual((read(BALANCING), read(PAGES)), ('0', '19'))
        self.start_daemon('--keep-leases')
        again = self.leases()[0]
        self.assertEqual((again['id'], again['state'], again['started']), (lease['id'], 'active', lease['started']))
        self.assertTrue(alive(workload.pid))
        workload.kill()
        self.expect_kernel(self.before)

    def test_who_waits_keeps_the_place(self):
        daemon = self.start_daemon('--keep-leases')
        workload = self.leased()
        waiting = self.start(self.words('run', '--wait=forever', '--', 'true'))
        eventually(lambda: self.leases('queued'), what='the second waits')
        before = self.leases('queued')[0]['id']
        daemon.kill(signal.SIGTERM)
        self.assertEqual(daemon.wait(), 0, daemon.err)
        self.start_daemon('--keep-leases')
        self.assertEqual(self.leases('queued')[0]['id'], before)
        workload.kill()
        self.assertEqual(waiting.wait(), 0)

    def test_nothing_is_restored_where_systemd_cannot_be_asked(self):
        daemon = self.start_daemon('--keep-leases')
        self.leased()
        daemon.kill(signal.SIGTERM)
        daemon.wait()
        done = self.restore_if_stopping('unix:path=/nonexistent')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('nothing put back', done.stderr)
        self.assertEqual(read(BALANCING), '0')
        self.assertEqual(self.restore().returncode, 0)
        self.assertEqual(snapshot(), self.before)

    def test_holders_are_put_into_the_store_and_taken_out_again(self):
        path = f'{self.runtime_dir}/notify'
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(harness.PATIENCE)
            self.start_daemon('--keep-leases', prefix=('env', f'NOTIFY_SOCKET={path}'))
            workload = self.leased()

            def notice(wanted):
                """The first notice that says so, and the PIDs behind the descriptors that came with it."""
                while True:
                    text, control, _, _ = manager.recvmsg(4096, 256)
                    fds = array.array('i')
                    for _, _, data in control:
                        fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
                    infos = [pathlib.Path(f'/proc/self/fdinfo/{fd}').read_text() for fd in fds]
                    for fd in fds:
                        os.close(fd)
                    if wanted in text.decode():
                        return text.decode(), [line.split()[1] for info in infos for line in info.splitlines()
                                               if line.startswith('Pid:')]

            text, pids = notice('FDSTORE=1')
            self.assertEqual(pids, [str(workload.pid)])
            self.assertIn('FDPOLL=0', text)
            name = text.split('FDNAME=')[1].strip()
            self.assertTrue(name.startswith(f'holder-{workload.pid}-'), name)
            workload.kill()
            self.assertIn(name, notice('FDSTOREREMOVE=1')[0])


if __name__ == '__main__':
    harness.main()
