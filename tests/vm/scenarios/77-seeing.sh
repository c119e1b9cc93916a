#!/bin/bash
# Two users see each other: how busy a lease is, a line to the terminal of who holds it, who is there without one, what was.
# set: full
# timeout: 600
source "$(dirname "$0")/lib.sh"

before=$(mktemp)
snapshot >"$before"
members alice,bob
wait_for 60 systemctl --quiet is-active numa-leased.service

lease_of_user() { "$ctl" list | awk -v user="$1" '$3 == user { print $1; exit }'; }
has_lease() { [[ -n $(lease_of_user "$1") ]]; }
# number ID KEY: of the lease.
number() { "$ctl" --json show "$1" | sed -n "s/^ *\"$2\": \([0-9]*\),*$/\1/p" | head -n 1; }
is_busy() { (($(number "$1" busy_permille) >= $2)); }
shows() { grep -q "$1" "$2"; }

echo "── a lease at a terminal of alice's, busy with one of its two CPUs"
in=/run/seeing.in out=/run/seeing.out
rm -f $in
mkfifo $in
exec 7<>$in # the session's input, open until it is over
# shellcheck disable=SC2029 # quoted here, for the shell there
ssh -tt alice@localhost "$(printf '%q ' "$ctl" run --node 1 -- sh -c 'while :; do :; done')" <&7 >$out 2>&1 &
session=$!
wait_for 60 has_lease alice
id=$(lease_of_user alice)
holder=$(number "$id" pid)
wait_for 60 is_busy "$id" 250
"$ctl" list
"$ctl" show "$id"
assert grep -Eq '^state +active for .*% busy' <("$ctl" show "$id")
assert test "$(number "$id" busy_permille)" -le 600

echo "── bob asks, and it is on that terminal and in the journal"
tty=$(readlink "/proc/$holder/fd/0")
assert grep -q '^/dev/pts/' <<<"$tty"
said=$(as_user bob "$ctl" ask "$id" 'are you done? I need node 1')
echo "$said"
assert grep -q "through: journal, terminal ${tty#/dev/}" <<<"$said"
wait_for 10 shows "Message from bob about your lease $id (numa-leasectl ask): are you done? I need node 1" $out
assert grep -q 'are you done?' <(journalctl -t numa-leased LEASE="$id" ASKED_BY=bob -o cat)
# On a slow machine ten seconds may be over before the next one is asked.
refused() { ! message=$(as_user bob "$ctl" ask "$id" 'now?' 2>&1); }
wait_for 120 refused
echo "$message"
assert grep -q '10 s' <<<"$message"
chmod g-w "$tty"
said=$("$ctl" ask "$id" 'an administrator, to whom you said mesg n')
echo "$said"
assert grep -q 'mesg n' <<<"$said"
refute grep -q administrator $out

echo "── who is busy there without a lease (case 39)"
taskset -c 3 sh -c 'while :; do :; done' &
squatter=$!
names_squatter() { "$ctl" status | grep -q "(pid $squatter, root) without a lease on CPUs 3 of $id"; }
wait_for 30 names_squatter
taskset -pc 6 $squatter
as_user bob "$ctl" run --node 3 -- sleep 2002 &
wait_for 60 has_lease bob
second=$(lease_of_user bob)
noted() { "$ctl" show "$second" | grep -q "busy on its CPUs without a lease: .*pid $squatter, root"; }
wait_for 30 noted
assert grep -q "pid $squatter" <(journalctl -t numa-leased LEASE="$second" -o cat)
kill $squatter

echo "── top, once and on a terminal"
as_user bob "$ctl" top --once | tee /run/seeing.top
assert grep -Eq "^$id +alice +active +1 " /run/seeing.top
refute grep -Eq '.{81}' /run/seeing.top
(sleep 5 && printf q) | ssh -tt bob@localhost "$ctl top --interval 1s" >/run/seeing.top 2>&1
assert grep -q $'\e\[?1049h' /run/seeing.top
assert grep -q $'\e\[?1049l' /run/seeing.top
(sleep 1000 & echo $! >/run/seeing.sleep; wait) | ssh -tt bob@localhost "$ctl top --interval 1s" >/run/seeing.top 2>&1 &
wait_for 30 pgrep -u bob -fx "$ctl top --interval 1s"
wait_for 30 shows NODE /run/seeing.top
kill "$(pgrep -u bob -fx "$ctl top --interval 1s")"
wait_for 30 shows $'\e\[?1049l' /run/seeing.top
kill "$(cat /run/seeing.sleep)"

echo "── what was, across a restart, a kill and a stop"
as_user alice "$ctl" stop "$id"
"$ctl" stop "$second"
wait_for 30 no_leases
exec 7>&-
wait $session || true
has_past() { "$ctl" history | grep -Eq "^$id +alice +normal +2 +1 .*%.*sh"; }
wait_for 10 has_past
"$ctl" history
past=$("$ctl" --json history)
assert grep -q '"busy_permille"' <<<"$past"
assert systemctl restart numa-leased
assert_eq "$("$ctl" --json history)" "$past" "the history after a restart"
daemon=$(main_pid)
systemctl kill --kill-whom=main --signal=KILL numa-leased
wait_for 60 new_daemon "$daemon"
assert_eq "$("$ctl" --json history)" "$past" "the history after a kill"
as_user bob "$ctl" run --node 2 -- sleep 2003 &
wait_for 60 has_lease bob
third=$(lease_of_user bob)
assert systemctl stop numa-leased # its leases end with ExecStopPost=
assert systemctl start numa-leased
pkill -u bob -fx 'sleep 2003' || true
assert grep -Eq "^$third +bob " <("$ctl" history --last 1)
assert_eq "$(stat -c '%U %a' /var/lib/numa-lease/history)" "root 644" "the file"
assert_eq "$(as_user bob "$ctl" --json history --last 1)" "$("$ctl" --json history --last 1)" "what bob sees of it"

wait
members ""
assert_as_before "$before"
