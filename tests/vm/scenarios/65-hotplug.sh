#!/bin/bash
# A CPU goes offline and comes back under a live lease: degraded, said so, and whole again.
# set: full
# timeout: 300
source "$(dirname "$0")/lib.sh"

online() { echo "$2" >"/sys/devices/system/cpu/cpu$1/online"; }
trap 'online 3 1; online 2 1' EXIT

# What list, show and the journal say of a lease that lacks CPUs, and that it is whole again.
is_degraded() {
    "$ctl" list | grep -qF "$id is degraded: $1" && "$ctl" show "$id" | grep -q "^degraded *$1" && journal_has "degraded: $1"
}
is_whole() {
    ! "$ctl" show "$id" | grep -q degraded && journal_has "whole again"
}
journal_has() { journalctl -qt numa-leased -o cat --since "@$since" | grep -qF "lease $id is $1"; }

# around_hotplug PROCESS: with a lease on CPUs 2-3.
around_hotplug() {
    local process=$1 group id since
    group=$(cgroup_of "$process")
    id=$("$ctl" list | sed -n 's/^\(c[0-9]*\) *active.*/\1/p')
    since=$(date +%s)
    assert_eq "$(cpus_of "$process")" 2-3 "CPUs of the workload"

    online 3 0
    wait_for 10 is_degraded "of its CPUs 2-3 these are offline: 3"
    assert_eq "$(cpus_of "$process") $(cat "$group/cpuset.cpus.effective")" "2 2" "what is left"

    online 2 0
    wait_for 10 is_degraded "all its CPUs (2-3) are offline"
    online 2 1
    wait_for 5 reads "$group/cpuset.cpus.effective" 2
    online 3 1
    wait_for 5 reads "$group/cpuset.cpus.effective" 2-3
    wait_for 10 is_whole
    assert_eq "$(cpus_of "$process")" 2-3 "CPUs of the workload afterwards"
}

before=$(mktemp)
snapshot >"$before"

echo "── a scope"
as_root "$ctl" run --node 1 -- sleep 1000 &
job=$!
wait_for 60 pgrep -fx 'sleep 1000'
around_hotplug "$(pgrep -fx 'sleep 1000')"
kill "$(pgrep -fx 'sleep 1000')"
wait $job || true
wait_for 10 no_leases

echo "── a service's own unit"
"$ctl" run --node 1 -- sleep 1001 &
job=$!
wait_for 60 pgrep -fx 'sleep 1001'
around_hotplug $job
kill $job
wait $job || true
wait_for 20 no_leases
assert_as_before "$before"

echo "── a lease that ends while a CPU is offline"
for place in as_root env; do # a session's and this service's own
    $place "$ctl" run --node 1 -- sleep 1002 &
    job=$!
    wait_for 60 pgrep -fx 'sleep 1002'
    online 3 0
    kill "$(pgrep -fx 'sleep 1002')"
    wait $job || true
    wait_for 20 no_leases
    online 3 1
    wait_for 5 has_cpus $$ 0-7
    assert_as_before "$before"
done

echo "── nobody gets an offline CPU"
online 3 0
got=$("$ctl" run --node 1 -- sh -c 'echo "$NUMA_LEASE_CPUS $NUMA_LEASE_THREADS"')
assert_eq "$got" "2 1" "what is leased of node 1"
