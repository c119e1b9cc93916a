#!/bin/bash
# A lease that outgrows its nodes is killed itself, and said so; a bystander with memory on the same node lives.
# set: full
# timeout: 600
source "$(dirname "$0")/lib.sh"

message=8f7a3c1e5b2d4f60a9c4e8d17b3f6a0a
told() { journalctl -q MESSAGE_ID=$message -o cat; }
has_told() { (($(told | wc -l) >= $1)); }

# 100 MiB on node 1, and the first that the kernel would choose.
systemd-run --quiet --unit=bystander -p NUMAPolicy=bind -p NUMAMask=1 -p OOMScoreAdjust=900 \
    sh -c 'head -c 100M /dev/zero | tail | sleep 1000'
grown() { (($(cat /sys/fs/cgroup/system.slice/bystander.service/memory.current) > 100 << 20)); }
wait_for 60 grown
bystander=$(cat /sys/fs/cgroup/system.slice/bystander.service/cgroup.procs)

echo "── a unit that grows for ever"
rc=0
systemd-run --quiet --wait --unit=hog "$ctl" run --node 1 --mempolicy bind -- tail /dev/zero || rc=$?
echo "exit status $rc, $(systemctl show -P Result hog)"
refute test $rc = 0
wait_for 20 has_told 1
told
"$ctl" list || true

echo "── a scope, with a limit typed"
got=$(as_root sh -c "$ctl run --node 1 --memory-max 100M -- tail /dev/zero; echo \$?")
assert_eq "$got" 137 "exit status"
wait_for 20 has_told 2
told
assert grep -q "limit of 100M" <(told)
assert grep -q '"reason": "out of memory: 1 process killed at the lease' <("$ctl" --json list --all)

echo "── the bystander (case 52)"
assert_eq "$(cat /sys/fs/cgroup/system.slice/bystander.service/cgroup.procs)" "$bystander" "its processes"
assert grep -qx 'oom_kill 0' /sys/fs/cgroup/system.slice/bystander.service/memory.events

echo "── the same without a lease: it is the bystander that the kernel takes"
systemd-run --quiet --wait --unit=hog2 -p AllowedMemoryNodes=1 -p MemorySwapMax=0 tail /dev/zero || true
assert test "$(cat /sys/fs/cgroup/system.slice/bystander.service/cgroup.procs 2>/dev/null)" != "$bystander"
systemctl stop bystander
systemctl reset-failed hog hog2 2>/dev/null || true
