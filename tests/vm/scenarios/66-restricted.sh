#!/bin/bash
# Where not everything is allowed: each says what is missing and does the rest.
# set: full
# timeout: 300
source "$(dirname "$0")/lib.sh"

# try COMMAND...: its output in $said, its exit status in $rc.
try() {
    rc=0
    said=$("$@" 2>&1) || rc=$?
    echo "$said"
}
unit=(systemd-run --quiet --wait --collect --pipe)
# shellcheck disable=SC2016 # for the shell in the lease
inside='echo "lease $NUMA_LEASE_CPUS $NUMA_LEASE_NODES"; grep -E "^(Cpus|Mems)_allowed_list" /proc/self/status | tr -s "\t\n" " "'
before=$(mktemp)
snapshot >"$before"

echo "── a caller in a cgroup of its own, below a unit that was delegated to it, with CPUs 4-7 and nodes 2-3"
make_box
boxed=("${unit[@]}" -p Delegate=yes -p AllowedCPUs=4-7 -p AllowedMemoryNodes=2-3 bash /run/in-a-box)
try "${boxed[@]}" "$ctl" run --cores 2 -- sh -c "$inside"
assert_eq $rc 0 "exit status"
assert grep -Eqx 'lease (4-5 2|6-7 3)' <<<"$said"
assert grep -Eq 'Cpus_allowed_list: (4-5|6-7) ' <<<"$said"
assert grep -q "is not systemd's to confine: affinity only" <<<"$said"
try "${boxed[@]}" "$ctl" run --node 0 --no-wait -- true
assert_eq $rc 78 "exit status for a node outside"
assert grep -Eq 'node 0.*(2-3|allowed)' <<<"$said"

echo "── set_mempolicy forbidden by seccomp"
filtered=("${unit[@]}" -p "SystemCallFilter=~set_mempolicy" -p SystemCallErrorNumber=EPERM)
try "${filtered[@]}" "$ctl" run --node 1 --numa-balancing off -- sh -c "$inside; cat /proc/sys/kernel/numa_balancing"
assert_eq $rc 0 "exit status"
assert grep -q 'set_mempolicy.*CAP_SYS_NICE' <<<"$said"
assert grep -q 'Cpus_allowed_list: 2-3 Mems_allowed_list: 1 0$' <<<"$said"
# Typed is required.
try "${filtered[@]}" "$ctl" run --node 1 --mempolicy bind -- echo not reached
refute grep -qx 'not reached' <<<"$said"
assert_eq $rc 78 "exit status where it was asked for"
assert grep -q 'set_mempolicy(bind).*CAP_SYS_NICE.*asked nodes 1, allowed' <<<"$said"
wait_for 20 no_leases

echo "── a daemon that may not write /proc/sys"
mkdir -p /run/systemd/system/numa-leased.service.d
printf '[Service]\nReadOnlyPaths=/proc/sys\n' >/run/systemd/system/numa-leased.service.d/50-scenario.conf
systemctl daemon-reload
systemctl restart numa-leased.service
try "$ctl" run --node 1 --numa-balancing off --no-wait -- echo not reached
refute grep -qx 'not reached' <<<"$said"
assert_eq $rc 125 "exit status of what was typed"
assert grep -q 'numa_balancing.*Read-only file system' <<<"$said"
try "$ctl" run --node 1 --numa-balancing off --best-effort --hugepages 2M=16M -- sh -c "$inside; cat /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
assert_eq $rc 0 "exit status of best effort"
assert grep -q 'numa_balancing.*Read-only file system' <<<"$said"
assert grep -q 'Cpus_allowed_list: 2-3 Mems_allowed_list: 1 8$' <<<"$said"
wait_for 20 no_leases
rm -r /run/systemd/system/numa-leased.service.d
systemctl daemon-reload
systemctl restart numa-leased.service
assert_as_before "$before"
