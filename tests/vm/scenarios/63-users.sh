#!/bin/bash
# Two users in sessions of their own: nobody's CPUs overlap, nobody ends another's lease, whoever waits is granted.
# set: full
# timeout: 600
source "$(dirname "$0")/lib.sh"

before=$(mktemp)
members ""
snapshot >"$before"

# denied USER COMMAND...: says so with 77; prints the message.
denied() {
    local rc=0 message
    message=$(as_user "$@" 2>&1) || rc=$?
    echo "$message"
    assert_eq $rc 77 "exit status of $*"
}
state_of() { "$ctl" list | awk -v id="$1" '$1 == id { print $2; exit }'; }
lease_of() { "$ctl" list | awk -v user="$1" '$3 == user { print $1; exit }'; }
is_state() { [[ $(state_of "$1") == "$2" ]]; }
has_lease() { [[ -n $(lease_of "$1") ]]; }

echo "── no agent, not in the group: the action and the way out"
message=$(denied alice "$ctl" run --node 1 -- true)
echo "$message"
assert grep -q 'org\.numalease1\.acquire' <<<"$message"
assert grep -q 'usermod -aG numa-lease alice' <<<"$message"
members alice,bob

echo "── the second waits, may not end the first's, and is granted when it ends"
as_user alice "$ctl" run --node 1 -- sleep 2000 &
wait_for 60 pgrep -fx 'sleep 2000'
first=$(lease_of alice)
as_user bob "$ctl" run --node 1 --wait=forever -- sleep 2001 &
wait_for 60 has_lease bob
second=$(lease_of bob)
wait_for 10 is_state "$second" queued
"$ctl" list
assert grep -q "^$second waits: .*$first" <("$ctl" list)
for verb in release stop; do
    message=$(denied bob "$ctl" "$verb" "$first")
    echo "$message"
    assert grep -q 'org\.numalease1\.manage' <<<"$message"
done
message=$(denied bob "$ctl" exec "$first" -- true)
assert is_state "$first" active
assert pgrep -fx 'sleep 2000'
assert as_user alice "$ctl" stop "$first"
wait_for 30 is_state "$second" active
wait_for 30 pgrep -fx 'sleep 2001'
assert_eq "$(cpus_of "$(pgrep -fx 'sleep 2001')")" 2-3 "CPUs of the second"
assert "$ctl" stop "$second" # an administrator may
wait_for 30 no_leases
wait

echo "── forty exclusive leases of both: no CPU is ever two people's"
rm -rf /run/held
install -m 1777 -d /run/held
# shellcheck disable=SC2016 # for the shell in the lease
holding='log=/run/held/$NUMA_LEASE_ID; echo "$(date +%s%N) + $NUMA_LEASE_CPUS" >$log; sleep 0.$(($$ % 9)); echo "$(date +%s%N) -" >>$log'
# All at once: of a user's calls 16 wait for polkit, and the others for those.
# shellcheck disable=SC2016 # for the shell there
many='seq 20 | xargs -P 20 -I @@ sh -c "exec numa-leasectl run -q --cores \$((@@ % 3 + 1)) --wait=forever -- sh -c \"\$1\"" start "$1"'
start=$SECONDS
as_user alice sh -c "$many" many "$holding" &
as_user bob sh -c "$many" many "$holding" &
wait
took=$((SECONDS - start))
python3 - /run/held <<'PYTHON' || fail "two leases held a CPU at once"
import os, sys
events, leases, users = [], 0, set()
def expand(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
for entry in os.scandir(sys.argv[1]):
    (begin, _, cpus), (end, _) = [line.split() for line in open(entry)]
    leases, users = leases + 1, users | {entry.stat().st_uid}
    for cpu in expand(cpus): events += [(int(begin), 1, cpu), (int(end), 0, cpu)]
held = set()
for when, begins, cpu in sorted(events):
    if begins and cpu in held: sys.exit(f"CPU {cpu} twice at {when}")
    (held.add if begins else held.discard)(cpu)
most = 0
for when, begins, cpu in sorted(events):
    (held.add if begins else held.discard)(cpu)
    most = max(most, len(held))
print(f"{leases} leases of {len(users)} users, up to {most} CPUs at once")
sys.exit(leases != 40 or len(users) != 2 or most < 4)
PYTHON
echo "40 leases in $took s"
wait_for 30 no_leases
members ""
assert_as_before "$before"
