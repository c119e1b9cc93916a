"""What of a file is cached, told by the daemon for an open file: the truth, also for who does not own it, and whatever
is handed over."""

import grp
import json
import mmap
import os
import pwd
import subprocess
import tempfile
import threading

import bed
from bed import NOBODY, eventually

MIB = 1 << 20
PAGE = os.sysconf('SC_PAGESIZE')
SIZE = 24 * MIB


class Residency(bed.Case):
    def setUp(self):
        super().setUp()
        self.member = pwd.getpwnam('daemon')
        (self.bed.top / 'site.yaml').write_text(f'group: {grp.getgrgid(self.member.pw_gid).gr_name}\n')
        self.bed.start_daemon()
        # On a disk: what is in memory only cannot be evicted.
        self.folder = tempfile.TemporaryDirectory(dir=bed.OPTIONS.bin)
        self.addCleanup(self.folder.cleanup)
        os.chmod(self.folder.name, 0o755)
        self.file = f'{self.folder.name}/m.bin'
        with open(self.file, 'wb') as file:
            file.write(os.urandom(MIB) * (SIZE // MIB))
            os.fsync(file.fileno())
        os.chmod(self.file, 0o644)
        self.evict()

    def evict(self, first=0, size=0):
        with open(self.file, 'rb') as file:
            os.posix_fadvise(file.fileno(), first, size, os.POSIX_FADV_DONTNEED)

    def read(self, first, size):
        """Brings just this into the cache."""
        with open(self.file, 'rb') as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(file.fileno(), size, first)

    def connect(self, uid=0):
        return self.bed.connect(**({'user': uid, 'group': NOBODY, 'extra_groups': []} if uid else {}))

    def ask(self, client, path=None, flags=os.O_RDONLY):
        return client.call('CacheResidency', 'h', [path or self.file, flags])[0]

    def nodes(self, found):
        return sum(it['bytes'] for it in found['nodes'])

    def test_counts_each_page_and_leaves_the_rest_on_the_disk(self):
        client = self.connect()
        self.assertEqual(self.ask(client)['resident'], 0)
        self.read(4 * MIB, 2 * MIB)
        found = self.ask(client)
        # A large folio may reach a little beyond.
        self.assertGreaterEqual(found['resident'], 2 * MIB)
        self.assertLess(found['resident'], 4 * MIB)
        self.assertEqual((found['size'], found['sampled'], self.nodes(found)), (SIZE, False, found['resident']))
        self.assertEqual(self.ask(client), found)

    def test_tells_a_member_that_does_not_own_it_the_truth(self):
        member = self.connect(self.member.pw_uid)
        self.assertEqual(self.ask(member)['resident'], 0)
        self.read(0, SIZE)
        self.assertEqual(self.ask(member)['resident'], SIZE)

    def test_tells_nothing_to_who_may_not_lease(self):
        with self.fails('Denied', 'org.numalease1.acquire'):
            self.ask(self.connect(NOBODY))

    def test_names_who_maps_it(self):
        self.read(0, SIZE)
        with open(self.file, 'rb') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as held:
            held[0]
            found = self.ask(self.connect(self.member.pw_uid))
        self.assertEqual([it['pid'] for it in found['mapped_by']], [os.getpid()])
        self.assertEqual(self.ask(self.connect())['mapped_by'], [])

    def test_a_sparse_file_and_an_empty_one(self):
        client = self.connect()
        for size in (0, 1 << 36):
            with open(self.file, 'wb') as file:
                file.truncate(size)
            found = self.ask(client)
            self.assertEqual((found['size'], found['resident'], found['nodes']), (size, 0, []))

    def test_refuses_what_has_no_pages_of_its_own(self):
        client = self.connect()
        fifo = f'{self.folder.name}/fifo'
        os.mkfifo(fifo)
        for path, flags, name, text in ((fifo, os.O_RDONLY, 'InvalidRequest', 'not a regular file'),
                                        (self.folder.name, os.O_RDONLY, 'InvalidRequest', 'not a regular file'),
                                        ('/dev/null', os.O_RDONLY, 'InvalidRequest', 'not a regular file'),
                                        (self.file, os.O_WRONLY, 'InvalidRequest', 'not open for reading'),
                                        (self.file, os.O_PATH, 'InvalidRequest', 'not open for reading'),
                                        ('/proc/self/maps', os.O_RDONLY, 'Unsupported', 'only of local file systems')):
            with self.subTest(path=path, flags=flags), self.fails(name, text):
                self.ask(client, path, flags)

    def test_a_path_is_never_opened(self):
        with self.fails('InvalidArgs'):
            self.connect().call('CacheResidency', 's', self.file)

    def test_a_file_that_is_cut_short_all_the_time_does_it_no_harm(self):
        client = self.connect()
        over = threading.Event()

        def cut():
            with open(self.file, 'r+b') as file:
                while not over.is_set():
                    file.truncate(0)
                    file.seek(0)
                    file.write(bytes(SIZE))

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            for _ in range(50):
                try:
                    self.assertLessEqual(self.ask(client)['resident'], SIZE)
                except bed.BusError as error:
                    self.assertEqual((error.name, error.text), ('NotNow', 'the file was cut short meanwhile'))
        finally:
            over.set()
            cutter.join()
        self.assertEqual(self.ask(client)['size'], os.path.getsize(self.file))

    def test_so_many_at_a_time(self):
        """Of a file so long that nobody counts it to its end."""
        with open(self.file, 'wb') as file:
            file.truncate(1 << 43)
        member = self.connect(self.member.pw_uid)
        asked = [member.send('CacheResidency', 'h', [self.file, os.O_RDONLY]) for _ in range(4)]
        with self.fails('Quota', 'ask again'):
            self.ask(member)
        self.assertEqual(self.connect().call('GetStatus')[0]['mode'], 'daemon')  # it answers others
        with self.fails('NotNow', 'not counted within 20s'):
            member.answer(asked[0], patience=40)
        for number in asked[1:]:
            with self.fails('NotNow'):
                member.answer(number)
        with open(self.file, 'wb') as file:
            file.truncate(MIB)
        eventually(lambda: self.children() == [], 'the children are gone')
        self.assertEqual(self.ask(member)['resident'], 0)

    def children(self):
        return bed.text_of(f'/proc/{self.bed.daemon.pid}/task/{self.bed.daemon.pid}/children').split()

    # ── numa-leasectl ───────────────────────────────────────────────────────────────────────────────────────────

    def ctl(self, *words):
        return subprocess.run([f'{bed.OPTIONS.bin}/numa-leasectl', '--bus', self.bed.address, *words],
                              capture_output=True, text=True, timeout=bed.PATIENCE, check=False)

    def run_with(self, *options):
        return self.ctl('run', '--cores', '1', '--memory', '1M', *options, '--', 'true')

    def test_evict_drops_the_models_pages_before_the_command_and_says_so(self):
        self.read(0, SIZE)
        report = f'{self.folder.name}/r.json'
        done = self.run_with('--page-cache', 'evict', '--model', self.file, '--report', report)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('page cache: m.bin had 24M on node 0; evicted 24M, which is read again\n', done.stderr)
        self.assertEqual(self.ask(self.connect())['resident'], 0)
        cache = json.loads(bed.text_of(report))['page_cache']
        self.assertEqual((cache['action'], cache['before']['resident'], cache['after']['resident']), ('evict', SIZE, 0))

    def test_evict_leaves_what_is_mapped_and_names_by_whom(self):
        self.read(0, SIZE)
        with open(self.file, 'rb') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as held:
            for page in range(0, MIB, PAGE):
                held[page]
            done = self.run_with('--page-cache', 'evict', '--model', self.file)
        self.assertIn(f'(PID {os.getpid()})', done.stderr)
        self.assertIn(' stays, mapped by ', done.stderr)
        self.assertGreaterEqual(self.ask(self.connect())['resident'], MIB)

    def test_evict_takes_what_was_just_written(self):
        with open(self.file, 'wb') as file:
            file.write(bytes(SIZE))
        self.assertIn('; evicted 24M', self.run_with('--page-cache', 'evict', '--model', self.file).stderr)
        self.assertEqual(self.ask(self.connect())['resident'], 0)

    def test_an_eviction_that_is_not_required_leaves_what_is_on_the_leased_node(self):
        self.read(0, SIZE)
        done = self.run_with('--page-cache', 'evict', '--best-effort', '--model', self.file)
        self.assertIn('m.bin is not evicted: no more than a tenth of it is cached elsewhere', done.stderr)
        self.assertEqual(self.ask(self.connect())['resident'], SIZE)

    def test_evict_without_a_model_is_refused_with_the_way_out(self):
        done = self.run_with('--page-cache', 'evict')
        self.assertEqual(done.returncode, 64)
        self.assertIn('--model FILE', done.stderr)

    def test_model_shows_what_is_cached_where_a_daemon_runs(self):
        self.read(0, SIZE)
        said = self.ctl('--json', 'model', self.file)
        self.assertEqual(json.loads(said.stdout or '{}').get('page_cache', {}).get('resident'), SIZE, said.stderr)
        over_socket = subprocess.run([f'{bed.OPTIONS.bin}/numa-leasectl', '--daemon-socket', f'{self.bed.runtime}/socket',
                                      'model', self.file], capture_output=True, text=True, check=False)
        self.assertIn('24M on node 0', over_socket.stdout)
        self.bed.daemon.kill()
        self.assertNotIn('page_cache', json.loads(self.ctl('--json', 'model', self.file).stdout))


if __name__ == '__main__':
    bed.main()
