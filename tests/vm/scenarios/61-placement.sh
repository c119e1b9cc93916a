#!/bin/bash
# Where leases land, and where the pages of what runs in them really are.
# set: full
# timeout: 300
source "$(dirname "$0")/lib.sh"

# Prints the pages of 48 MiB that it touches, by node: "N0=6144 N1=6144"; then its other anonymous pages in the same way.
touch_pages='
import re
block = bytearray(b"x") * (48 << 20)
own, other = {}, {}
for line in open("/proc/self/numa_maps"):
    if "file=" in line: continue
    nodes = {n: int(c) for n, c in re.findall(r" N(\d+)=(\d+)", line)}
    into = own if sum(nodes.values()) >= 12000 else other
    for n, c in nodes.items(): into[n] = into.get(n, 0) + c
for part in own, other: print(" ".join(f"N{n}={part[n]}" for n in sorted(part)))
'
run=("$ctl" run -q --thp never) # by single pages
nodes='echo "$NUMA_LEASE_NODES"'
before=$(mktemp)
snapshot >"$before"

# pages_on NODE "N0=1 N1=2"
pages_on() { sed -n "s/.*N$1=\([0-9]*\).*/\1/p" <<<"$2"; }

# assert_shares "N0=1 N1=2" NODE:WEIGHT...: within 5 % of the weights.
assert_shares() {
    local pages=$1 total=0 weights=0 node share
    shift
    for node; do
        total=$((total + $(pages_on "${node%:*}" "$pages"))) weights=$((weights + ${node#*:}))
    done
    for node; do
        share=$((100 * $(pages_on "${node%:*}" "$pages") * weights / total / ${node#*:}))
        ((share >= 95 && share <= 105)) || fail "node ${node%:*} has $share % of its share of $pages"
    done
}

echo "── near the display"
for device in /sys/bus/pci/devices/*; do
    [[ $(<"$device/class") != 0x03* || $(<"$device/numa_node") != 2 ]] || display=${device##*/}
done
got=$("$ctl" run --near "pci:$display" -- sh -c "$nodes")
assert_eq "$got" 2 "node near $display"

echo "── as many nodes as hold the memory, of one socket"
got=$("$ctl" run --memory 300M -- sh -c "$nodes")
echo "300M: $got"
assert_eq "${#got}" 1 "one node's name"
got=$("$ctl" run --memory 700M -- sh -c "$nodes")
echo "700M: $got"
assert grep -Eqx '0-1|2-3' <<<"$got"
got=$("$ctl" run --memory 700M --near "pci:$display" -- sh -c "$nodes")
assert_eq "$got" 2-3 "700M near $display"
rc=0
message=$("$ctl" run --memory 64G -- true 2>&1) || rc=$?
echo "$message"
assert_eq $rc 78 "more than the machine has"

echo "── interleave, within 5 % of even"
mapfile -t got < <("${run[@]}" --socket 1 --interleave on -- python3 -c "$touch_pages")
printf '%s\n' "${got[@]}"
assert_shares "${got[0]}" 2:1 3:1
assert_eq "$(pages_on 0 "${got[*]}")$(pages_on 1 "${got[*]}")" "" "pages outside"

echo "── bind: nothing elsewhere, from the first page on"
mapfile -t got < <("${run[@]}" --node 3 --mempolicy bind -- python3 -c "$touch_pages")
printf '%s\n' "${got[@]}"
assert grep -Eqx "N3=12[0-9]{3}" <<<"${got[0]}"
assert_eq "$(sed 's/=.*//' <<<"${got[1]}")" N3 "nodes of every other anonymous page"

echo "── both nodes of a list are used"
mapfile -t got < <("${run[@]}" --node 1,2 --mempolicy interleave -- python3 -c "$touch_pages")
printf '%s\n' "${got[@]}"
assert_shares "${got[0]}" 1:1 2:1

echo "── weighted interleave"
weights=/sys/kernel/mm/mempolicy/weighted_interleave
if [[ -e $weights ]]; then
    mapfile -t got < <("${run[@]}" --socket 0 --mempolicy weighted --weights 0=3,1=1 -- python3 -c "$touch_pages")
    printf '%s\n' "${got[@]}"
    assert_shares "${got[0]}" 0:3 1:1
else
    rc=0
    message=$("$ctl" run --socket 0 --mempolicy weighted --weights 0=3,1=1 -- true 2>&1) || rc=$?
    echo "$message"
    assert_eq $rc 78 "weights on a kernel without"
fi
assert_as_before "$before"
