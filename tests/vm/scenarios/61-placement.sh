#!/bin/bash
# Where leases land, and where the pages of what runs in them really are.
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

# assert_share GOT WANTED: within 5 % of it.
assert_share() {
    (($1 * 20 >= $2 * 19 && $1 * 20 <= $2 * 21)) || fail "$1 pages, wanted $2 within 5 %"
}

echo "── near the display"
for device in /sys/bus/pci/devices/*; do
    [[ $(<"$device/class") != 0x03* ]] || display=${device##*/}
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
for node in 2 3; do
    assert_share "$(pages_on $node "${got[0]}")" 6144
done
assert_eq "$(pages_on 0 "${got[*]}")$(pages_on 1 "${got[*]}")" "" "pages outside"

echo "── bind: nothing elsewhere, from the first page on"
mapfile -t got < <("${run[@]}" --node 3 --mempolicy bind -- python3 -c "$touch_pages")
printf '%s\n' "${got[@]}"
assert grep -Eqx "N3=122[89][0-9]" <<<"${got[0]}"
assert_eq "$(sed 's/=.*//' <<<"${got[1]}")" N3 "nodes of every other anonymous page"

echo "── both nodes of a list are used"
mapfile -t got < <("${run[@]}" --node 1,2 --mempolicy interleave -- python3 -c "$touch_pages")
printf '%s\n' "${got[@]}"
assert_share "$(pages_on 1 "${got[0]}")" 6144
assert_share "$(pages_on 2 "${got[0]}")" 6144

echo "── weighted interleave"
weights=/sys/kernel/mm/mempolicy/weighted_interleave
if [[ -e $weights ]]; then
    mapfile -t got < <("${run[@]}" --socket 0 --mempolicy weighted --weights 0=3,1=1 -- python3 -c "$touch_pages")
    printf '%s\n' "${got[@]}"
    assert_share "$(pages_on 0 "${got[0]}")" 9216
    assert_share "$(pages_on 1 "${got[0]}")" 3072
else
    rc=0
    message=$("$ctl" run --socket 0 --mempolicy weighted --weights 0=3,1=1 -- true 2>&1) || rc=$?
    echo "$message"
    assert_eq $rc 78 "weights on a kernel without"
fi
assert_as_before "$before"
