"""llama.cpp takes as many threads as its lease has cores, whatever it would take by itself; the user's word stands."""

import pathlib

import engine
from engine import EngineCase, model, numbers, program


class Threads(EngineCase):
    """In a lease of one core."""

    def typed(self, outcome):
        """What the engine was started with, after the program and what every test gives it."""
        return outcome.watch.command[7:]

    def assert_untold(self, outcome):
        self.assertNotIn('LLAMA_ARG_THREADS', outcome.watch.environment)

    def test_nothing_said(self):
        outcome = self.generate()
        self.assert_threads(outcome, 1)
        self.assert_inside(outcome)
        self.assertEqual(outcome.warnings(), [])
        self.assertEqual(self.typed(outcome), [])
        self.assertEqual(outcome.watch.environment['LLAMA_ARG_THREADS'], '1')
        self.assertTrue(any(line.startswith('llama.cpp: ') and 'LLAMA_ARG_THREADS=1' in line for line in outcome.ours),
                        outcome.err)

    def test_a_flag_that_fits(self):
        for words in (['-t', '1'], ['--threads', '1'], ['-t', '1', '-tb', '1']):
            with self.subTest(words):
                outcome = self.generate(*words)
                self.assert_threads(outcome, 1)
                self.assert_inside(outcome)
                self.assertEqual(outcome.warnings(), [])
                self.assertEqual(self.typed(outcome), words)
                self.assert_untold(outcome)

    def test_a_flag_that_asks_for_more_is_obeyed_and_warned_about(self):
        for words in (['-t', '2'], ['--threads', '2'], ['-t', '1', '-t', '2']):
            with self.subTest(words):
                outcome = self.generate(*words)
                self.assert_threads(outcome, 2)
                self.assert_inside(outcome)
                self.assertEqual(len(outcome.warnings()), 1, outcome.err)
                self.assertIn(f'{words[-2]} 2 asks for 2 threads, the lease has 1 core', outcome.warnings()[0])
                self.assertEqual(self.typed(outcome), words)
                self.assert_untold(outcome)

    def test_more_threads_for_the_prompt_are_warned_about(self):
        for flag in ('-tb', '--threads-batch', '--threads_batch'):
            with self.subTest(flag):
                outcome = self.generate(flag, '2')
                self.assertEqual((outcome.said['threads'], outcome.said['threads_batch']), (1, 2))
                self.assert_inside(outcome)
                self.assertEqual(len(outcome.warnings()), 1, outcome.err)
                self.assertIn(f'{flag} 2 asks for 2 threads', outcome.warnings()[0])
                self.assertEqual(self.typed(outcome), [flag, '2'])

    def test_a_flag_that_means_all_cpus_is_followed_by_ours(self):
        for value in ('-1', '0'):
            with self.subTest(value):
                outcome = self.generate('-t', value, '-c', '256')
                self.assert_threads(outcome, 1)
                self.assert_inside(outcome)
                self.assertEqual(len(outcome.warnings()), 1, outcome.err)
                self.assertIn(f'-t {value} makes llama.cpp size itself by the whole machine; told it -t 1 after it',
                              outcome.warnings()[0])
                self.assertEqual(self.typed(outcome), ['-t', value, '-t', '1', '-c', '256'])
                self.assert_untold(outcome)

    def test_the_users_variable(self):
        for value, computing, warning in (('1', 1, None), ('2', 2, 'LLAMA_ARG_THREADS=2 asks for 2 threads')):
            with self.subTest(value):
                outcome = self.generate(env={'LLAMA_ARG_THREADS': value})
                self.assert_threads(outcome, computing)
                self.assert_inside(outcome)
                self.assertEqual(len(outcome.warnings()), 1 if warning else 0, outcome.err)
                self.assertIn(warning or '', ''.join(outcome.warnings()))
                self.assertEqual(outcome.watch.environment['LLAMA_ARG_THREADS'], value)
                self.assertEqual(self.typed(outcome), [])

    def test_a_variable_that_means_all_cpus_is_answered_by_a_flag(self):
        outcome = self.generate(env={'LLAMA_ARG_THREADS': '-1'})
        self.assert_threads(outcome, 1)
        self.assertEqual(outcome.watch.environment['LLAMA_ARG_THREADS'], '-1')
        self.assertEqual(outcome.watch.command[1:3], ['-t', '1'])
        self.assertIn('LLAMA_ARG_THREADS=-1 makes llama.cpp size itself', ''.join(outcome.warnings()))

    def test_the_flag_beats_the_variable(self):
        outcome = self.generate('-t', '1', env={'LLAMA_ARG_THREADS': '2'})
        self.assert_threads(outcome, 1)
        self.assertEqual(outcome.warnings(), [])

    def test_a_form_that_llama_cpp_does_not_take_fails_by_its_own_words(self):
        process = self.start_in_lease([program('llama-cli'), '-m', model(), '--threads=2'])
        self.assertEqual(process.wait(), 1)
        self.assertIn('invalid argument: --threads=2', process.err)

    def test_behind_wrappers(self):
        for wrapper in (['env', 'X=1'], ['nice', '-n', '0', 'env', 'X=1'], ['env', 'X=1', 'LLAMA_ARG_THREADS=1']):
            with self.subTest(wrapper):
                outcome = self.generate(wrapper=wrapper)
                self.assert_threads(outcome, 1)
                self.assert_inside(outcome)
                self.assertEqual(outcome.warnings(), [])
                self.assertEqual(outcome.watch.environment['X'] if 'X=1' in wrapper else '1', '1')
                self.assertEqual(outcome.watch.pid, outcome.watch.process.pid)

    def test_a_wrapper_that_drops_the_environment_gets_a_flag(self):
        outcome = self.generate(wrapper=['env', '-i', 'X=1'])
        self.assert_threads(outcome, 1)
        self.assertLessEqual(outcome.watch.cpus, numbers(outcome.said['cpus_allowed']))
        self.assertEqual(outcome.watch.command[1:3], ['-t', '1'])

    def test_more_than_the_lease_behind_a_wrapper_is_warned_about(self):
        outcome = self.generate(wrapper=['env', 'LLAMA_ARG_THREADS=2'])
        self.assert_threads(outcome, 2)
        self.assertIn('LLAMA_ARG_THREADS=2 asks for 2 threads', ''.join(outcome.warnings()))

    def test_in_a_shell_script(self):
        script = f'{program("llama-cli")} -m {model()} --front-hold 0.5; exit $?'
        process = self.start_in_lease(['sh', '-c', script])
        watch = engine.Watch(process)
        self.assertEqual(process.wait(60), 0, process.err)
        outcome = engine.Outcome(process, watch)
        self.assert_threads(outcome, 1)
        self.assert_inside(outcome)
        self.assertNotEqual(watch.pid, process.pid)

    def test_a_lease_of_the_whole_machine_takes_all_its_cores(self):
        cores = self.json('plan', '--node', 'any:1')['placement']['cores']
        if cores < 2:
            self.skipTest('a node with one core')
        outcome = self.generate(options=('--node', 'any:1'))
        self.assert_threads(outcome, cores)
        self.assert_inside(outcome)


class Distribute(EngineCase):
    """`--numa distribute` pins threads over the whole machine (llama.cpp #17124)."""

    def test_typed_it_stays_is_contained_and_warned_about_where_it_does_anything(self):
        nodes = len(list(pathlib.Path('/sys/devices/system/node').glob('node[0-9]*')))
        outcome = self.generate('--numa', 'distribute')
        self.assertEqual(outcome.watch.command[7:], ['--numa', 'distribute'])
        self.assert_threads(outcome, 1)
        about_numa = [line for line in outcome.warnings() if '--numa distribute' in line]
        # On one node llama.cpp leaves affinity alone, and we have nothing to say.
        self.assertEqual(len(about_numa), 1 if nodes > 1 else 0, outcome.err)
        if nodes == 1 or 'the lease\'s cgroup holds them' in about_numa[0]:
            self.assert_inside(outcome)

    def test_not_typed_it_is_not_set_for_a_part_of_the_machine(self):
        outcome = self.generate()
        self.assertNotIn('distribute', outcome.watch.environment.get('LLAMA_ARG_NUMA', ''))


if __name__ == '__main__':
    engine.main()
