"""A polkit that never answers. Takes the two minutes that a person has for a password."""

import bed
from bed import NOBODY


class Silence(bed.Case):
    def test_is_a_denial_after_the_time_for_a_password_and_keeps_nobody_waiting_meanwhile(self):
        self.bed.start_polkit(acquire='silent')
        self.bed.start_daemon()
        client = self.bed.connect(user=NOBODY, group=NOBODY, extra_groups=[])
        question = client.send('Acquire', 'a{sv}', {'cores': '1'})
        self.bed.polkit.expect(lambda line: 'acquire' in line, 'the question')
        self.assertEqual(self.bed.connect().active(cores='1', share='yes')['state'], 'active')
        with self.fails('Denied', 'polkit could not decide org.numalease1.acquire'):
            client.answer(question, patience=150)
        self.assertEqual(len(client.call('ListLeases')[0]), 1)


if __name__ == '__main__':
    bed.main()
