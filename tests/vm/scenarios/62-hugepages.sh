#!/bin/bash
# Huge pages per node, on the real kernel: uneven, too many, fragmented, shared, pinned, and beside somebody's surplus.
# set: full
# timeout: 900
source "$(dirname "$0")/lib.sh"

pools_are() { [[ $(pools) == "$1" ]]; }
pools() { for node in 0 1 2 3; do printf '%s ' "$(pool $node)"; done; }
# With what is reserved in the lease: pages by node.
shown='for n in 0 1 2 3; do printf "%s " "$(cat /sys/devices/system/node/node$n/hugepages/hugepages-2048kB/nr_hugepages)"; done'
# A failure leaves nothing in the way of others.
clean_up() {
    umount /run/fragments /run/held /run/huge || true
    echo 0 >/proc/sys/vm/nr_overcommit_hugepages
    for node in 0 1 2 3; do echo 0 >/sys/devices/system/node/node$node/hugepages/hugepages-2048kB/nr_hugepages; done
} 2>/dev/null
trap clean_up EXIT
before=$(mktemp)
snapshot >"$before"

echo "── uneven over the nodes"
got=$("$ctl" run --node 0-2 --hugepages 2M=64M@0,2M=16M@1,2M=100M@2 -- sh -c "$shown")
assert_eq "$got" "32 8 50 0 " "pages by node in the lease"
wait_for 10 pools_are "0 0 0 0 "

echo "── more than the node can ever hold, and more than it has now: refused with the numbers, everything given back"
echo 3 >/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
# refused RC AMOUNT TEXT
refused() {
    local rc=0 message
    message=$("$ctl" run --node 1 --numa-balancing off --hugepages "2M=$2@1" --no-wait -- true 2>&1) || rc=$?
    echo "$message"
    assert_eq $rc "$1" "exit status"
    assert grep -Eq "$3" <<<"$message"
    wait_for 20 pools_are "0 3 0 0 "
    assert reads /proc/sys/kernel/numa_balancing 1
}
# Held by somebody: so much that the node cannot have it all, and not so much that it never could.
mkdir -p /run/held
mount -t tmpfs -o size=100%,mpol=bind:1 none /run/held
fallocate -l 300M /run/held/file
refused 78 4000M 'node1: 2000 pages asked, node 1 has room for [0-9]+'
refused 75 680M 'node1.*340.*[0-9]+'

echo "── the same as best effort: got and asked, then everything given back"
# Node 0 is for the workload: nothing is left for it on node 1.
message=$("$ctl" run --node 0-1 --hugepages 2M=2M..680M@1 -- sh -c "$shown" 2>&1) || fail "exit status $?: $message"
echo "$message"
assert grep -Eq '[1-9][0-9]+ of 340 pages' <<<"$message"
wait_for 20 pools_are "0 3 0 0 "

umount /run/held

echo "── a fragmented node: compacted, or said to fall short"
# Every second page of most of it stays in use: 3 is FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 285 fallocate(2).
mkdir -p /run/fragments
mount -t tmpfs -o size=100%,mpol=bind:1 none /run/fragments
fill=$(($(sed -n 's/^Node 1 MemFree: *\([0-9]*\) kB/\1/p' /sys/devices/system/node/node1/meminfo) / 1024 - 60))
fallocate -l ${fill}M /run/fragments/file
perl -e 'open my $file, "+<", shift or die $!;
    my $end = shift() << 20;
    for (my $at = 0; $at < $end; $at += 8192) { syscall(285, fileno $file, 3, $at, 4096) == 0 or die $! }' \
    /run/fragments/file $fill
# Free blocks of 2 MiB and more, in pages of 2 MiB.
whole=$(awk '/^Node 1,/ { for (i = 14; i <= NF; i++) sum += $i * 2 ^ (i - 14) } END { print sum + 0 }' /proc/buddyinfo)
message=$("$ctl" run --node 0-1 --hugepages 2M=2M..200M@1 -- sh -c "$shown" 2>&1) || fail "exit status $?: $message"
echo "$message"
got=$(sed -n 's/.*: \([0-9]*\) of 100 pages.*/\1/p' <<<"$message")
echo "$whole whole pages of 2 MiB were free on the node, $got could be had"
assert test "$got" -gt "$whole" -o "$got" -lt 100
wait_for 20 pools_are "0 3 0 0 "
umount /run/fragments
echo 0 >/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages

echo "── two leases on one node, and only the first one's pages go with it"
as_root "$ctl" run --node 2 --cores 1 --hugepages 2M=20M -- sleep 1000 &
first=$!
wait_for 60 pgrep -fx 'sleep 1000'
as_root "$ctl" run --node 2 --cores 1 --hugepages 2M=12M -- sleep 1001 &
second=$!
wait_for 60 pgrep -fx 'sleep 1001'
assert_eq "$(pool 2)" 16 "pages of both"
kill "$(pgrep -fx 'sleep 1000')"
wait $first || true
wait_for 10 reads /sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages 6
kill "$(pgrep -fx 'sleep 1001')"
wait $second || true
wait_for 10 pools_are "0 0 0 0 "

echo "── pages that outlive the workload: shown, kept in the ledger, given back when they are free"
mkdir -p /run/huge
mount -t hugetlbfs none /run/huge
as_root "$ctl" run --node 3 --hugepages 2M=16M -- fallocate -l 6M /run/huge/file
wait_for 10 reads /sys/devices/system/node/node3/hugepages/hugepages-2048kB/nr_hugepages 3
"$ctl" knobs | tee /run/knobs
assert grep -Eq "hugepages.*3 .*(in use|pinned|still)" /run/knobs
rm /run/huge/file
wait_for 60 pools_are "0 0 0 0 "

echo "── a bystander's surplus pages stay surplus (case 53)"
echo 16 >/proc/sys/vm/nr_overcommit_hugepages
numactl --membind=2 fallocate -l 16M /run/huge/bystander
assert_eq "$(pool 2) $(pool 2 surplus_hugepages)" "8 8" "pages and surplus of node 2"
got=$("$ctl" run --node 2 --hugepages 2M=10M -- sh -c 'cat /sys/devices/system/node/node2/hugepages/hugepages-2048kB/free_hugepages')
assert_eq "$got" 5 "free pages in the lease"
back() { [[ "$(pool 2) $(pool 2 surplus_hugepages)" == "8 8" ]]; }
wait_for 10 back
rm /run/huge/bystander
wait_for 10 pools_are "0 0 0 0 "
echo 0 >/proc/sys/vm/nr_overcommit_hugepages
umount /run/huge

echo "── signals while the pool grows: nothing is cut short (case 54)"
"$ctl" run --node 0 --hugepages 2M=300M -- sleep 1002 &
job=$!
while ! reads /proc/$job/comm sleep; do
    kill -HUP "$(main_pid)" 2>/dev/null || true
    [[ -e /proc/$job ]] || fail "refused"
done
assert_eq "$(pool 0)" 150 "pages under a hail of signals"
kill $job
wait $job || true
wait_for 20 pools_are "0 0 0 0 "
wait_for 20 no_leases
assert_as_before "$before"
