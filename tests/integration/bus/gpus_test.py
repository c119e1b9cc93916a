"""GPUs: found below the daemon's root, leased, and told to the command by UUID. No real card is needed, or seen."""

import json
import subprocess

import bed

FIRST, SECOND = '0000:81:00.0', '0000:c1:00.0'


class Gpus(bed.Case):
    """Two cards of NVIDIA's. Its driver knows the second; the first it learns about only while the daemon runs."""

    def setUp(self):
        super().setUp()
        for pci in (FIRST, SECOND):
            path = f'sys/bus/pci/devices/{pci}/'
            for name, text in (('class', '0x030200'), ('vendor', '0x10de'), ('device', '0x20b0'), ('numa_node', '0')):
                self.bed.put(path + name, text)
        self.know(SECOND, 'GPU-c1c1')
        self.bed.start_systemd()
        self.bed.start_daemon()

    def know(self, pci, uuid):
        self.bed.put(f'proc/driver/nvidia/gpus/{pci}/information', f'Model: \t NVIDIA X\nGPU UUID: \t {uuid}')

    def words(self, *verb):
        return [f'{bed.OPTIONS.bin}/numa-leasectl', '--bus', self.bed.address, *verb]

    def ctl(self, *verb):
        return subprocess.run(self.words(*verb), capture_output=True, text=True, timeout=bed.PATIENCE, check=False)

    def run_with(self, *options):
        """What the command is told; it then waits."""
        command = self.bed.start(
            self.words('run', '--cores', '1', *options, '--', 'sh', '-c',
                       'echo "gpus=$NUMA_LEASE_GPUS cuda=$CUDA_VISIBLE_DEVICES order=$CUDA_DEVICE_ORDER"; read line'),
            stderr=subprocess.STDOUT, cgroup=self.bed.session())
        return command, command.expect(lambda line: line.startswith('gpus='), 'the command')

    def test_are_told_by_uuid_and_kept_from_others(self):
        command, told = self.run_with('--gpu', '1')
        self.assertEqual(told, f'gpus={SECOND} cuda=GPU-c1c1 order=PCI_BUS_ID')
        refused = self.ctl('run', '--cores', '1', '--gpu', 'GPU-c1c1', '--no-wait', '--', 'true')
        self.assertEqual(refused.returncode, 75)
        self.assertIn(SECOND, refused.stderr)
        self.assertIn('--gpu any:1', refused.stderr)
        self.assertIn(SECOND, self.ctl('list').stdout)
        lease, = json.loads(self.ctl('list', '--json').stdout)
        self.assertEqual([(it['pci'], it['uuid']) for it in lease['placement']['gpus']], [(SECOND, 'GPU-c1c1')])
        looks = self.bed.connect()
        self.assertEqual(looks.get(f'{bed.PATH}/lease/{lease["id"]}', bed.LEASE, 'Gpus'), SECOND)
        command.process.stdin.write('go\n')
        command.process.stdin.flush()
        self.assertEqual(command.process.wait(bed.PATIENCE), 0)
        self.run_with('--gpu', 'GPU-c1c1')

    def test_are_shared_by_as_many_as_say_so(self):
        for _ in range(2):
            _, told = self.run_with('--gpu', '1', '--gpu-share', '2')
            self.assertIn('cuda=GPU-c1c1', told)
        self.assertEqual(self.ctl('run', '--cores', '1', '--gpu', '1', '--gpu-share', '2', '--no-wait', '--',
                                  'true').returncode, 75)

    def test_any_is_one_that_the_command_can_be_told_of(self):
        self.assertEqual(self.run_with('--gpu', 'any:1')[1], f'gpus={SECOND} cuda=GPU-c1c1 order=PCI_BUS_ID')
        command, told = self.run_with('--gpu', 'any:1')
        self.assertEqual(told, f'gpus={FIRST} cuda= order=PCI_BUS_ID', 'never an index')
        command.expect(lambda line: 'does not say its UUID' in line, 'why not')

    def test_a_uuid_that_the_driver_learns_later_is_found(self):
        self.know(FIRST, 'GPU-????????-????-????-????-????????????')
        self.assertIn('gpu:0', self.ctl('topology').stdout)
        self.assertNotIn('?', self.ctl('topology').stdout)
        self.know(FIRST, 'GPU-8181')
        self.assertIn('cuda=GPU-8181 ', self.run_with('--gpu', '0')[1])

    def test_one_that_does_not_exist_is_never_had(self):
        refused = self.ctl('run', '--gpu', '2', '--wait=forever', '--', 'true')
        self.assertEqual(refused.returncode, 78)
        self.assertIn(f'gpu:0 ({FIRST})', refused.stderr)


class Elsewhere(bed.Case):
    def test_what_drivers_say_can_be_read_below_another_folder(self):
        """For stand-ins: a display that is no GPU, and a fixture for its UUID."""
        for name, text in (('class', '0x038000'), ('vendor', '0x1234'), ('device', '0x1111'), ('numa_node', '-1')):
            self.bed.put(f'sys/bus/pci/devices/{FIRST}/{name}', text)
        fixture = self.bed.top / 'fixture'
        (fixture / f'proc/driver/nvidia/gpus/{FIRST}').mkdir(parents=True)
        (fixture / f'proc/driver/nvidia/gpus/{FIRST}/information').write_text('GPU UUID: GPU-8181\n')
        self.bed.start_daemon('--gpu-root', str(fixture))
        device, = self.bed.connect().call('GetTopology')[0]['devices']
        self.assertEqual((device['kind'], device['uuid'], device['vendor']), ('gpu', 'GPU-8181', 'nvidia'))


if __name__ == '__main__':
    bed.main()
