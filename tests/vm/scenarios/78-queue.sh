#!/bin/bash
# Two users and their limits on four nodes: who waits gets what it was told, what is over in time goes ahead, over a
# kill -9 of the daemon and a clock that jumps by an hour.
# set: full
# timeout: 600
source "$(dirname "$0")/lib.sh"

site=/etc/numa-lease/numa-lease.yaml
before=$(mktemp)
cp -p $site /run/queue.site
# The boot clock goes on whatever is done to the other one: what is between them now is put back at the end.
clock_offset=$(python3 -c 'import time; print(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))')
set_clock() { # HOURS: so far from where it belongs
    local now="time.clock_gettime(time.CLOCK_BOOTTIME) + $clock_offset"
    date -s "@$(python3 -c "import time; print(int($now + 3600 * $1))")"
}
put_back() {
    set_clock 0
    cp -p /run/queue.site $site
    systemctl reset-failed numa-leased 2>/dev/null || true
    systemctl reload numa-leased
}
trap put_back EXIT
members alice,bob
wait_for 60 systemctl --quiet is-active numa-leased.service
wait_for 60 no_leases
snapshot >"$before"

# id_of TEXT: of the lease whose command ends in that; leases that are over are not in the list.
id_of() {
    "$ctl" list | awk -v text="$1" '
        $1 ~ /^c[0-9]+$/ && $2 != "waits:" && substr($0, length($0) - length(text) + 1) == text { print $1; exit }'
}
has_id() { [[ -n $(id_of "$1") ]]; }
state_of() { "$ctl" list | awk -v id="$1" '$1 == id && $2 != "waits:" { print $2; exit }'; }
is_state() { [[ $(state_of "$1") == "$2" ]]; }
# number ID KEY: of the lease, as it is now. past ID KEY: of the history.
number() { "$ctl" --json show "$1" | sed -n "s/^ *\"$2\": \([0-9]*\),*$/\1/p" | head -n 1; }
past() {
    "$ctl" --json history | awk -v id="$1" -v key="$2" '
        /^  \{/ { found = ""; ours = 0 }
        { line = $0; sub(/^ *"[a-z_]+": "?/, "", line); sub(/"?,?$/, "", line) }
        $1 == "\"" key "\":" { found = line }
        $1 == "\"id\":" && line == id { ours = 1 }
        /^  \}/ && ours { print found; exit }'
}
# in_line ID TEXT: what `list` says of its turn.
in_line() { grep -q "^$1 waits: $2" <("$ctl" list); }
status_says() { grep -q "$1" <("$ctl" status); }
last_was() { grep -q "$1" <("$ctl" history --last 1); }
# used UID: the last record of it, without its checksum and number.
used() { grep " usage $1 " /run/numa-lease/journal | tail -n 1 | cut -d' ' -f3-; }

echo "── limits: a good file is in force, a broken one fails to be loaded and leaves it so"
cat >$site <<'YAML'
limits: {queued: 2, time: 10min}
users:
  alice: {weight: 1}
  bob: {time: 5min}
YAML
assert systemctl reload numa-leased
wait_for 10 status_says "limits: from $site"
cp $site /run/queue.good
sed -i 's/5min/soon/' $site
refute systemctl reload numa-leased
wait_for 10 status_says "$site:4:.*the former stays in force"
rc=0
message=$(as_user bob "$ctl" run --node 1 --time 9min -- true 2>&1) || rc=$?
echo "$message"
assert_eq $rc 77 "exit status of who asks for more than the former file allows"
assert grep -q 'at most 5min' <<<"$message"
cp /run/queue.good $site
assert systemctl reload numa-leased
refute status_says 'stays in force'

echo "── the whole machine is waited for, and what would keep it waiting longer stays behind"
as_user alice "$ctl" run --node 1 --time 8min -- sleep 2100 &
wait_for 60 has_id 'sleep 2100'
first=$(id_of 'sleep 2100')
wait_for 60 is_state "$first" active
as_user bob "$ctl" run --node all --wait=forever -- sleep 2101 &
wait_for 60 has_id 'sleep 2101'
whole=$(id_of 'sleep 2101')
as_user alice "$ctl" run --node 2 --wait=forever -- sleep 2102 &
wait_for 60 has_id 'sleep 2102'
behind=$(id_of 'sleep 2102')
"$ctl" list
assert in_line "$whole" "number 1 in line, when $first (sleep 2100) ends, at the latest in [5678]min"
assert in_line "$behind" "number 2 in line, when $whole (sleep 2101) ends"
assert in_line "$behind" "behind $whole, which it would delay"

echo "── what is over in time goes ahead of both"
# shellcheck disable=SC2016 # for the shell there
said=$(as_user alice "$ctl" run --node 3 --time 20s --wait=forever -- \
    sh -c 'echo cpus "$NUMA_LEASE_CPUS"' 2>/run/queue.short)
cat /run/queue.short
assert_eq "$said" "cpus 6-7" "what went ahead"
assert is_state "$whole" queued
assert is_state "$behind" queued

echo "── kill -9: places, what was told, use and history are as before"
wait_for 10 last_was NUMA_LEASE_CPUS
history=$("$ctl" --json history)
use=$(used 1001)
echo "$use"
assert test -n "$use"
daemon=$(main_pid)
systemctl kill --kill-whom=main --signal=KILL numa-leased
wait_for 60 new_daemon "$daemon"
assert_eq "$("$ctl" --json history)" "$history" "the history"
assert_eq "$(used 1001)" "$use" "what alice has used"
wait_for 30 in_line "$whole" "number 1 in line, when $first (sleep 2100) ends"
wait_for 30 in_line "$behind" "number 2 in line"
assert is_state "$first" active

echo "── each starts when what it was told has ended"
assert "$ctl" stop "$first"
wait_for 30 is_state "$whole" active
wait_for 30 pgrep -fx 'sleep 2101'
assert_eq "$(cpus_of "$(pgrep -fx 'sleep 2101')")" 0-7 "CPUs of the whole machine"
assert is_state "$behind" queued
assert "$ctl" stop "$whole"
wait_for 30 is_state "$behind" active
wait_for 30 pgrep -fx 'sleep 2102'
assert_eq "$(cpus_of "$(pgrep -fx 'sleep 2102')")" 4-5 "CPUs of who was behind"
assert "$ctl" stop "$behind"
wait_for 30 no_leases
wait

echo "── a clock that jumps ends no lease and prolongs none; what ignores the end of its time is killed"
as_user alice "$ctl" run --node 1 --time 60s -- sleep 2103 &
as_user bob "$ctl" run --node 3 --time 60s -- sh -c 'trap "" TERM; while :; do sleep 1; done' deaf &
wait_for 60 has_id 'sleep 2103'
wait_for 60 has_id ' deaf'
good=$(id_of 'sleep 2103')
deaf=$(id_of ' deaf')
wait_for 30 is_state "$good" active
wait_for 30 is_state "$deaf" active
for hours in -1 1; do
    set_clock $hours
    for id in "$good" "$deaf"; do
        assert is_state "$id" active
        left=$(number "$id" left_usec)
        assert test "$left" -gt 0 -a "$left" -le 60000000
    done
done
set_clock 0
"$ctl" list
time_is_up() { grep -q '^reason *its time is up' <("$ctl" show "$1"); }
wait_for 90 time_is_up "$deaf"
assert is_state "$deaf" active # for its grace
wait_for 60 no_leases
wait || true
for id in "$good" "$deaf"; do
    assert_eq "$(past "$id" reason)" "its time is up" "how $id ended"
    echo "$id ran $(past "$id" ran_usec) us"
done
assert test "$(past "$good" ran_usec)" -ge 60000000 -a "$(past "$good" ran_usec)" -lt 80000000
assert test "$(past "$deaf" ran_usec)" -ge 70000000 -a "$(past "$deaf" ran_usec)" -lt 100000000

put_back
trap - EXIT
members ""
assert_as_before "$before"
