"""Who may: polkit where it is on the bus, else root and the members of a group."""

import grp
import pwd

import bed
from bed import NOBODY


class Polkit(bed.Case):
    def setUp(self):
        super().setUp()
        self.bed.start_polkit()
        self.bed.start_daemon()
        self.client = self.bed.connect(user=NOBODY, group=NOBODY, extra_groups=[])
        self.user = pwd.getpwuid(NOBODY).pw_name

    def asked(self, count=0):
        """What polkit was asked so far; its lines come by a pipe, so so many of them are waited for."""
        def lines():
            return [line.split() for line in self.bed.polkit.lines if line and line != 'ready']
        bed.eventually(lambda: len(lines()) >= count, f'{count} questions')
        return lines()

    def test_grants_what_polkit_authorises_and_asks_about_the_connection(self):
        self.bed.decide(acquire='yes')
        self.assertEqual(self.client.active(cores='1')['state'], 'active')
        self.assertEqual(self.asked(1), [['org.numalease1.acquire', 'system-bus-name', self.client.name, '0']])

    def test_asks_for_kernel_state_and_for_dropping_caches_on_their_own(self):
        self.bed.decide(acquire='yes', acquire_kernel_state='yes')
        with self.fails('Denied', 'org.numalease1.drop-caches'):
            self.client.acquire(cores='1', numa_balancing='off', page_cache='drop')
        self.assertEqual([line[0] for line in self.asked(3)],
                         ['org.numalease1.acquire', 'org.numalease1.acquire-kernel-state',
                          'org.numalease1.drop-caches'])
        self.assertEqual(self.bed.balancing(), '1')
        self.assertEqual(self.client.active(cores='1', numa_balancing='off')['state'], 'active')
        self.assertEqual(self.bed.balancing(), '0')

    def test_a_denial_names_the_action_and_the_way_out(self):
        with self.fails('Denied', 'org.numalease1.acquire', f'usermod -aG numa-lease {self.user}'):
            self.client.acquire(cores='1')
        self.assertEqual(self.client.call('ListLeases')[0], [])

    def test_a_challenge_that_nobody_can_meet_is_said(self):
        self.bed.decide(acquire='challenge')
        with self.fails('Denied', 'without a password', 'usermod -aG'):
            self.client.acquire(cores='1')

    def test_asks_a_person_only_where_the_caller_allows_it(self):
        self.bed.decide(acquire='yes')
        self.client.call('Acquire', 'a{sv}', {'cores': '1'}, interactive=True)
        self.client.call('Acquire', 'a{sv}', {'cores': '1'})
        self.assertEqual([line[3] for line in self.asked(2)], ['1', '0'])

    def test_root_is_not_asked_about(self):
        self.assertEqual(self.bed.connect().active(cores='1', numa_balancing='off')['state'], 'active')
        self.assertEqual(self.asked(), [])

    def test_looking_needs_nobodys_leave(self):
        for member in ('GetStatus', 'GetTopology', 'GetKnobs', 'ListLeases'):
            self.client.call(member)
        self.client.call('Plan', 'a{sv}', {'cores': '1'})
        self.assertEqual(self.asked(), [])

    def test_a_polkit_that_dies_with_the_question_is_a_denial(self):
        self.bed.decide(acquire='silent')
        question = self.client.send('Acquire', 'a{sv}', {'cores': '1'})
        self.bed.polkit.expect(lambda line: 'acquire' in line, 'the question')
        self.bed.polkit.kill()
        with self.fails('Denied', 'org.numalease1.acquire'):
            self.client.answer(question)

    def test_of_a_user_sixteen_calls_are_asked_about_and_others_wait(self):
        self.bed.decide(acquire='silent')
        questions = [self.client.send('Acquire', 'a{sv}', {'cores': '1'}) for _ in range(17)]
        self.assertEqual(self.bed.connect().active(cores='1')['state'], 'active')  # others go on
        self.assertEqual(len(self.asked(16)), 16)
        self.bed.polkit.kill()
        for question in questions:
            with self.fails('Denied', 'org.numalease1.acquire'):
                self.client.answer(question)

    def test_a_user_has_a_bounded_number_of_calls_that_wait(self):
        self.bed.decide(acquire='silent')
        # A connection has no more than 128 replies outstanding.
        for client in (self.bed.connect(user=NOBODY, group=NOBODY, extra_groups=[]) for _ in range(4)):
            for _ in range((16 + 256) // 4):
                client.send('Acquire', 'a{sv}', {'cores': '1'})
            client.call('GetStatus')  # the others are there when this is answered
        with self.fails('Quota', '256 calls that wait for polkit', self.user):
            self.client.acquire(cores='1')

    def test_who_leaves_while_polkit_thinks_gets_nothing(self):
        self.bed.decide(acquire='silent')
        self.client.send('Acquire', 'a{sv}', {'cores': '1'})
        self.bed.polkit.expect(lambda line: 'acquire' in line, 'the question')
        self.client.kill()
        other = self.bed.connect()
        self.assertEqual(other.call('ListLeases')[0], [])


class Group(bed.Case):
    def setUp(self):
        super().setUp()
        # An account of every Debian with a group of its own; no account of this machine is changed.
        self.member = pwd.getpwnam('daemon')
        (self.bed.top / 'site.yaml').write_text(f'group: {grp.getgrgid(self.member.pw_gid).gr_name}\n')
        self.bed.start_daemon()

    def connect(self, uid):
        return self.bed.connect(user=uid, group=NOBODY, extra_groups=[])

    def test_without_polkit_root_may_do_all(self):
        lease = self.bed.connect().active(cores='1', numa_balancing='off')
        self.assertEqual(lease['state'], 'active')

    def test_without_polkit_a_member_by_the_account_may_acquire(self):
        lease = self.connect(self.member.pw_uid).active(cores='1', numa_balancing='off')
        self.assertEqual(lease['state'], 'active')
        self.assertEqual(self.bed.balancing(), '0')

    def test_without_polkit_a_member_may_not_drop_caches_or_end_what_is_anothers(self):
        member = self.connect(self.member.pw_uid)
        with self.fails('Denied', 'org.numalease1.drop-caches'):
            member.acquire(cores='1', page_cache='drop')
        other = self.bed.connect().active(cores='1')['id']
        with self.fails('Denied', 'org.numalease1.manage'):
            member.call('Release', 's', other)

    def test_without_polkit_a_stranger_may_only_look(self):
        stranger = self.connect(NOBODY)
        group = grp.getgrgid(self.member.pw_gid).gr_name
        with self.fails('Denied', 'org.numalease1.acquire', f'usermod -aG {group} {pwd.getpwuid(NOBODY).pw_name}'):
            stranger.acquire(cores='1')
        self.assertEqual(stranger.call('ListLeases')[0], [])


if __name__ == '__main__':
    bed.main()
