#!/bin/bash
# Named leases: units that only join are confined from their first instruction, and the lease is parked for those that
# come back (CASES 44, 46, 55).
# timeout: 900
source "$(dirname "$0")/lib.sh"

balancing=/proc/sys/kernel/numa_balancing
units=/run/systemd/system
slice=/sys/fs/cgroup/numalease.slice/numalease-web.slice
# shellcheck disable=SC2016 # for the shell in the unit
inside='sed -n "s/^\(Cpus\|Mems\)_allowed_list:[[:space:]]*//p" /proc/self/status >/run/seen-$1; exec sleep 1000'

# start_waiter NODE: somebody is queued for what others hold, until `wait $waiter`.
start_waiter() {
    numa-leasectl run --node "$1" --wait=forever -- true >/run/waiter 2>&1 &
    waiter=$!
    wait_for 30 grep -q "is queued" /run/waiter
}
state_is() { [[ $(systemctl show -P ActiveState "$1") == "$2" ]]; }
ran_twice() { [[ $(wc -l </run/ids) == 2 ]]; }
runs_again() { [[ $(main_pid "$1") -gt 1 && $(main_pid "$1") != "$2" ]]; }

mkdir -p /etc/numa-lease/leases
printf '%s\n' 'node: 1' 'numa-balancing: off' 'grace: 60s' 'engine: llama.cpp' >/etc/numa-lease/leases/web.yaml
printf '%s\n' '[Unit]' 'BindsTo=numa-lease@web.service' 'After=numa-lease@web.service' '[Service]' \
    'Slice=numalease-web.slice' 'EnvironmentFile=/run/numa-lease/env/web' 'Restart=on-failure' 'RestartSec=1' \
    "ExecStart=/bin/sh -c '$inside' sh bound" >$units/bound.service
printf '%s\n' '[Service]' 'Slice=numalease-web.slice' "ExecStart=/bin/sh -c '$inside' sh joined" >$units/joined.service
sed -i "s/\\\$1/\$\$1/g" $units/{bound,joined}.service
systemctl daemon-reload

echo "── names (case 55)"
message=$(numa-leasectl hold web-2 --node 1 2>&1) && fail "a dash was taken"
assert grep -q "inside another lease" <<<"$message"
assert_rc 66 numa-leasectl hold nothing
echo 'nodes: 1' >/etc/numa-lease/leases/typo.yaml
message=$(numa-leasectl hold typo 2>&1) && fail "an unknown key was taken"
assert grep -q "typo.yaml:1:1: unknown key 'nodes'" <<<"$message"

echo "── two units join, one of them by its slice alone"
assert systemctl start joined.service bound.service
for unit in joined bound; do
    wait_for 20 test -s /run/seen-$unit
    assert_eq "$(tr '\n' ' ' </run/seen-$unit)" "2-3 1 " "the first instruction of $unit"
done
assert_eq "$(cat $balancing)" 0 "balancing"
assert_eq "$(cat $slice/cpuset.cpus.effective) $(cat $slice/cpuset.mems.effective)" "2-3 1" "the slice"
assert_eq "$(cat /sys/fs/cgroup/numalease.slice/cpuset.cpus.effective)" 0-7 "the slice above it"
assert grep -qx LLAMA_ARG_THREADS=2 /run/numa-lease/env/web
granted=$(lease_line web)
assert grep -Eq '^c[0-9]+ active [0-9]+$' <<<"$granted"
assert_eq "$(numa-leasectl show web --as env)" "$(cat /run/numa-lease/env/web)" "--as env"
assert grep -q "numalease-web.slice --env-file=/run/numa-lease/env/web" <<<"$(numa-leasectl show web --as docker)"
assert grep -q "^hold\|numa-leasectl" /proc/"$(main_pid numa-lease@web)"/comm
refute grep -q numalease "/proc/$(main_pid numa-lease@web)/cgroup"

echo "── a unit that fails is started again in the same lease, before whoever waits"
start_waiter 1
before=$(main_pid bound)
kill -9 "$before"
wait_for 30 runs_again bound "$before"
assert_eq "$(lease_line web)" "$granted" "its lease"
assert kill -0 $waiter

echo "── hold is killed: what is in the slice keeps the lease"
kill -9 "$(main_pid numa-lease@web)"
wait_for 30 state_is bound.service inactive
assert state_is joined.service active
assert_eq "$(lease_line web)" "$granted" "the lease"

echo "── the last one ends: parked, over a kill of the daemon, and taken up again"
systemctl stop joined.service
wait_for 20 is_parked web
assert_eq "$(cat $balancing)" 0 "balancing while it is parked"
assert grep -q "is parked until" <<<"$(numa-leasectl list)"
systemctl kill --signal=KILL numa-leased.service
wait_for 60 is_parked web
assert kill -0 $waiter
assert_eq "$(lease_line web)" "$granted parked" "the parked lease"
assert systemctl start bound.service
assert_eq "$(lease_line web)" "$granted" "taken up"
assert kill -0 $waiter
assert_eq "$(cpus_of "$(main_pid bound)")" 2-3 "its unit"

echo "── nobody comes back: it ends, the waiter is granted, and nothing is left"
systemctl stop bound.service
wait_for 20 is_parked web
wait_for 20 state_is numa-lease@web.service inactive
SECONDS=0
wait $waiter || fail "the waiter: $?"
echo "FIGURE parked for ${SECONDS} s of a grace of 60"
((SECONDS >= 50)) || fail "the grace was cut short"
wait_for 10 reads $balancing 1
refute test -e /run/numa-lease/env/web
no_dropins() { ! ls /run/systemd/system.control/numalease-web.slice.d 2>/dev/null; }
wait_for 20 no_dropins
assert_eq "$(systemctl show -P AllowedCPUs numalease-web.slice)" "" "AllowedCPUs= of the slice"

echo "── a unit with a lease of its own: kept while it restarts, given back at once when it is stopped"
printf '%s\n' '[Service]' 'Restart=on-failure' 'RestartSec=1' \
    "ExecStart=$(command -v numa-leasectl) run --node 2 --grace 120s -- sh -c 'echo \$NUMA_LEASE_ID >>/run/ids; exec sleep 1000'" \
    >$units/own.service
sed -i 's/\$NUMA/$$NUMA/' $units/own.service
systemctl daemon-reload
assert systemctl start own.service
wait_for 30 test -s /run/ids
start_waiter 2
kill -9 "$(main_pid own)"
wait_for 60 ran_twice
assert_eq "$(uniq </run/ids | wc -l)" 1 "leases over two runs"
assert_eq "$(cpus_of "$(main_pid own)")" 4-5 "the second run"
assert kill -0 $waiter
SECONDS=0
systemctl stop own.service
wait $waiter || fail "the waiter: $?"
echo "FIGURE waiter granted ${SECONDS} s after the unit was stopped, of a grace of 120"
((SECONDS < 60)) || fail "a stopped unit kept its lease for ${SECONDS} s"
wait_for 60 no_leases
