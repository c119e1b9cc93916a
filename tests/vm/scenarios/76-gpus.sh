#!/bin/bash
# GPUs: three display devices stand in for cards, on nodes 2, 1 and 3 in bus order; a fixture says their UUIDs, as
# NVIDIA's driver would. What is not seen here: a real card, its driver, and whether CUDA or ROCm obeys the variables.
# set: full
# timeout: 600
source "$(dirname "$0")/lib.sh"

fixture=/run/gpu-fixture
dropins=/run/systemd/system/numa-leased.service.d
before=$(mktemp)
snapshot >"$before"
mapfile -t cards < <(grep -l '^0x03' /sys/bus/pci/devices/*/class | cut -d/ -f6 | sort)
assert_eq "${#cards[@]}" 3 "display devices"
# shellcheck disable=SC2016 # for the shell in the lease
told='echo "$NUMA_LEASE_GPUS ${CUDA_VISIBLE_DEVICES-unset} ${CUDA_DEVICE_ORDER-unset} $NUMA_LEASE_NODES"'
leased() { as_root "$ctl" run -q --cores 1 "$@" -- sh -c "$told" 2>&1; }
# hold_gpus USER SECONDS OPTIONS...: in the background, until `"$ctl" stop` of its lease.
hold_gpus() {
    local user=$1 seconds=$2
    shift 2
    as_user "$user" "$ctl" run -q --cores 1 "$@" -- sleep "$seconds" &
    wait_for 60 pgrep -fx "sleep $seconds"
}
# gpus_of SECONDS: what the one that sleeps so long was told.
gpus_of() { tr '\0' '\n' <"/proc/$(pgrep -fx "sleep $1")/environ" | sed -n 's/^NUMA_LEASE_GPUS=//p'; }
stop_sleeper() {
    assert "$ctl" stop "$(lease_of "$(pgrep -fx "sleep $1")")"
}
as_root true # its key is there

echo "── found by class, in bus order, on the nodes that the firmware says"
"$ctl" topology
"$ctl" topology | awk '$1 ~ /^gpu:/ { print $1, $2, $3 }' >/run/gpus
assert_eq "$(cat /run/gpus)" "gpu:0 ${cards[0]} 2
gpu:1 ${cards[1]} 1
gpu:2 ${cards[2]} 3" "GPUs"

echo "── no driver says a UUID: the address is told, and never an index (case 35)"
message=$(leased --gpu 1)
echo "$message"
assert grep -q "GPU ${cards[1]}: .*no variable chooses it" <<<"$message"
assert_eq "$(tail -n1 <<<"$message")" "${cards[1]} unset unset 1" "told"

echo "── with UUIDs from a fixture, for a daemon that is started again"
for number in 0 1 2; do
    mkdir -p "$fixture/proc/driver/nvidia/gpus/${cards[number]}"
    printf 'Model: \t\t Stand-in\nGPU UUID: \t GPU-0000000%d-aaaa-bbbb-cccc-dddddddddddd\nGPU Excluded:\t No\n' "$number" \
        >"$fixture/proc/driver/nvidia/gpus/${cards[number]}/information"
done
uuid() { echo "GPU-0000000$1-aaaa-bbbb-cccc-dddddddddddd"; }
mkdir -p $dropins
{
    printf '[Service]\nExecStart=\n'
    sed -n 's/^ExecStart=.*/& --gpu-root \/run\/gpu-fixture/p' "$(systemctl show -P FragmentPath numa-leased)"
} >$dropins/50-gpus.conf
systemctl daemon-reload
assert systemctl restart numa-leased
"$ctl" topology | grep '^gpu:'
assert_eq "$(leased --gpu 0)" "${cards[0]} $(uuid 0) PCI_BUS_ID 2" "by number"
assert_eq "$(leased --gpu "$(uuid 2)")" "${cards[2]} $(uuid 2) PCI_BUS_ID 3" "by UUID"
assert_eq "$(leased --gpu "${cards[1]#0000:}")" "${cards[1]} $(uuid 1) PCI_BUS_ID 1" "by address"
assert_eq "$(leased --gpu 0 --node 1)" "${cards[0]} $(uuid 0) PCI_BUS_ID 1" "a node that is named"

echo "── any two are of one socket, three span and that is said"
assert_eq "$(leased --gpu any:2 | cut -d' ' -f1)" "${cards[0]},${cards[2]}" "any two"
plan=$("$ctl" plan --cores 1 --gpu any:2 -- true)
echo "$plan"
assert grep -q '2 GPUs: all on socket 1' <<<"$plan"
plan=$("$ctl" plan --cores 1 --gpu any:3 -- true)
assert grep -q '3 GPUs: they span sockets 0-1' <<<"$plan"
assert_rc 78 "$ctl" plan --gpu any:4 -- true
assert_rc 78 "$ctl" plan --gpu 3 -- true

echo "── exclusive between users, and over a daemon that is killed"
members alice,bob
hold_gpus alice 3000 --gpu 0
assert_eq "$(gpus_of 3000)" "${cards[0]}" "alice's"
rc=0
message=$(as_user bob "$ctl" run -q --cores 1 --gpu "$(uuid 0)" --no-wait -- true 2>&1) || rc=$?
echo "$message"
assert_eq $rc 75 "bob's"
assert grep -q "GPU ${cards[0]} is leased" <<<"$message"
assert grep -q -- '--gpu any:1' <<<"$message"
old=$(main_pid)
kill -9 "$old"
wait_for 60 new_daemon "$old"
assert_rc 75 as_user bob "$ctl" run -q --cores 1 --gpu 0 --no-wait -- true
hold_gpus bob 3001 --gpu any:1
refute test "$(gpus_of 3001)" = "${cards[0]}"
"$ctl" list
assert grep -q "${cards[0]}" <("$ctl" list)

echo "── who waits for a card gets it when its holder ends"
as_user bob "$ctl" run -q --cores 1 --gpu 0 --wait=forever -- sleep 3002 &
queued() { "$ctl" list | grep -q "waits: .*GPU ${cards[0]}"; }
wait_for 60 queued
stop_sleeper 3000
wait_for 60 pgrep -fx 'sleep 3002'
assert_eq "$(gpus_of 3002)" "${cards[0]}" "bob's at last"
stop_sleeper 3001
stop_sleeper 3002
wait_for 60 no_leases
wait

echo "── shared by as many as say so"
hold_gpus alice 3003 --gpu 1 --gpu-share 2
hold_gpus bob 3004 --gpu 1 --gpu-share 2
assert_rc 75 as_root "$ctl" run -q --cores 1 --gpu 1 --gpu-share 2 --no-wait -- true
assert_rc 75 as_root "$ctl" run -q --cores 1 --gpu 1 --no-wait -- true
stop_sleeper 3003
stop_sleeper 3004
wait_for 60 no_leases
wait

echo "── a lease inside of a lease has some of its GPUs"
inner="$ctl run -q --cores 1 --gpu 2 -- sh -c 'echo \$CUDA_VISIBLE_DEVICES'"
assert_eq "$(as_root "$ctl" run -q --cores 2 --gpu 0,2 -- sh -c "$inner")" "$(uuid 2)" "inside"
inner="$ctl run -q --cores 1 --gpu 1 -- true"
assert_rc 78 as_root "$ctl" run -q --cores 2 --gpu 0,2 -- sh -c "$inner"

echo "── a container is given it by UUID"
"$ctl" hold gpus --cores 1 --gpu 2 &
holder=$!
wait_for 60 test -e /run/numa-lease/env/gpus
assert grep -qx "CUDA_VISIBLE_DEVICES=$(uuid 2)" /run/numa-lease/env/gpus
assert grep -q -- "--gpus '\"device=$(uuid 2)\"'" <("$ctl" show gpus --as docker)
assert grep -qx "AddDevice=nvidia.com/gpu=$(uuid 2)" <("$ctl" show gpus --as quadlet)
kill $holder
wait $holder || true
assert "$ctl" release gpus
wait_for 60 no_leases

members ""
rm -r $dropins "$fixture"
systemctl daemon-reload
assert systemctl restart numa-leased
assert_as_before "$before"
