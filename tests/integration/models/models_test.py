"""Sizes of models beside what llama.cpp itself says: sparse files shaped as real ones, which nothing loads."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import shapes

BIN, ENGINE = None, None
TOLERANCE = 0.05


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f'{words[0]}: {done.stderr[-2000:]}')
    return json.loads(done.stdout)


def engine_says(file, *options, folder='bin'):
    # Repacked weights are in a buffer that llama.cpp does not count there.
    return run(ENGINE / folder / 'llama-memory', '-m', file, '--no-repack', *options)


def we_say(file, *options):
    return run(BIN / 'numa-leasectl', '--json', 'model', file, '--', 'llama-server', '-m', file, *options)


class Sizes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix='numalease-models-')
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def near(self, ours, engines, what):
        self.assertGreater(engines, 0, what)
        self.assertLess(abs(ours / engines - 1), TOLERANCE, f'{what}: {ours} beside {engines}')

    def compare(self, name, file):
        for options in ((), ('-c', '8192'), ('-c', '8192', '-np', '3'), ('-c', '30000', '-np', '2', '-kvu'),
                        ('-c', '40000', '-ctk', 'q8_0', '-ctv', 'q8_0'), ('-c', '16384', '--swa-full', '-ub', '1024')):
            ours, engines = we_say(file, *options)['need'], engine_says(file, *options)
            ratios = [ours[a] / engines[b] for a, b in (('weights', 'model'), ('kv_cache', 'context'),
                                                        ('compute_allowance', 'compute'))]
            print(f'{name:24} {" ".join(options):36} weights x{ratios[0]:.3f}  cache x{ratios[1]:.3f}  '
                  f'allowance x{ratios[2]:.2f}', flush=True)
            self.near(ours['weights'], engines['model'], f'weights of {name} {options}')
            self.near(ours['kv_cache'], engines['context'], f'cache of {name} {options}')

    def test_every_kind_of_model(self):
        for make in shapes.ALL:
            with self.subTest(make.__name__):
                it = make()
                self.compare(make.__name__, shapes.write(self.folder / f'{make.__name__}.gguf', it.metadata, it.tensors))

    def test_what_is_on_a_gpu(self):
        """A real llama.cpp decides what goes to its GPU; that this one is in software changes nothing of it."""
        os.environ['GGML_VK_VISIBLE_DEVICES'] = '0'  # those in software are used only where they are asked for
        for make in shapes.FOR_GPU:
            it = make()
            file = shapes.write(self.folder / f'{make.__name__}.gguf', it.metadata, it.tensors)
            for words in ('-ngl 0', '-ngl 5', '-ngl 99', '-ngl all -nkvo', '-ngl 99 --cpu-moe', '-ngl 99 --n-cpu-moe 4',
                          r'-ngl 99 -ot blk\.[0-3]\.=CPU', '-ngl 3 -ot ffn_.*=CPU', '-ngl 99 -np 3 -ctk q8_0',
                          r'-ngl 99 -ot \.ffn_down=CPU,\.attn_q=CPU'):
                options = ('-c', '8192', '-fit', 'off', *words.split())
                with self.subTest(model=make.__name__, options=words):
                    ours, engines = we_say(file, *options)['need'], engine_says(file, *options, folder='gpu')
                    print(f'{make.__name__:16} {words:38} on the host: weights {ours["weights"]} beside {engines["model"]}, '
                          f'cache {ours["kv_cache"]} beside {engines["context"]}; '
                          f'on the GPU {ours["on_gpu"]} beside {engines["gpu"]["model"]}', flush=True)
                    self.near(ours['weights'], engines['model'], 'weights')
                    for mine, theirs in ((ours['kv_cache'], engines['context']), (ours['on_gpu'], engines['gpu']['model'])):
                        self.assertLessEqual(abs(mine - theirs), TOLERANCE * theirs)
                    self.assertEqual(engines['gpu']['model'] > 0, words != '-ngl 0', 'llama.cpp found no GPU')

    def test_a_split_model(self):
        it = shapes.experts()
        names = shapes.write_split(str(self.folder / 'split'), it.metadata, it.tensors, 7)
        self.compare('split', names[0])

    def test_a_loaded_model_logs_the_same(self):
        """Not only what it would take: a model that is really loaded."""
        file = ENGINE / 'big.gguf'
        done = subprocess.run([ENGINE / 'bin/llama-cli', '-m', file, '-t', '1', '-n', '1', '-c', '4096', '--no-repack', '-v'],
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        logged = [line for line in done.stderr.splitlines() if 'buffer size' in line and ' 0.00 MiB' not in line]
        size = lambda what: sum(float(line.split('=')[1].split()[0]) for line in logged if what in line) * (1 << 20)
        ours = we_say(file, '-c', '4096')['need']
        self.near(ours['weights'], size('model buffer size'), 'weights')
        self.near(ours['kv_cache'], size('KV buffer size'), 'cache')

    def test_types_are_as_wide_as_the_engines(self):
        import ctypes
        base = ctypes.CDLL(str(ENGINE / 'bin/libggml-base.so'))
        base.ggml_blck_size.restype = ctypes.c_int64
        base.ggml_type_size.restype = ctypes.c_size_t
        tested = 0
        for kind in range(64):
            block = base.ggml_blck_size(kind) if kind < 43 else 0
            if block == 0:
                continue
            size = base.ggml_type_size(kind)
            shapes.BLOCKS[kind] = (block, size)
            # The second tensor makes a size that is not known show: it would reach to the end of the file.
            file = shapes.write(self.folder / 'type.gguf', {'general.architecture': 'x', 'x.block_count': 1},
                                [('a', (block * 7, 3), kind), ('b', (32,), 0)])
            self.assertEqual(we_say(file)['need']['weights'], size * 21 + 128, f'type {kind}')
            tested += 1
        self.assertGreater(tested, 30)

    def test_ten_thousand_tensors_in_a_hundred_parts(self):
        metadata = {**shapes.dense().metadata, 'tokenizer.ggml.tokens': [f'token{i}' for i in range(150000)]}
        tensors = [(f'blk.{i % 32}.ffn_up_{i}.weight', (256, 256), shapes.Q4_K) for i in range(10000)]
        names = shapes.write_split(str(self.folder / 'many'), metadata, tensors, 100)
        best = min(self.timed(names[0]) for _ in range(5))
        nothing = min(self.timed() for _ in range(5))
        print(f'10,000 tensors in 100 parts, 150,000 tokens: {1000 * (best - nothing):.0f} ms '
              f'({1000 * best:.0f} ms with the program\'s start)', flush=True)
        self.assertEqual(we_say(names[0])['tensors'], 10000)

    def timed(self, *file):
        words = ('model', *file) if file else ('--version',)
        start = time.monotonic()
        subprocess.run([BIN / 'numa-leasectl', *words], check=True, capture_output=True)
        return time.monotonic() - start


if __name__ == '__main__':
    BIN, ENGINE = pathlib.Path(sys.argv.pop(1)), pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
