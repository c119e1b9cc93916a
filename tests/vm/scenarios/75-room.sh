#!/bin/bash
# Room for models: two that do not fit together, and a node that is full of page cache.
# set: full
# timeout: 900
source "$(dirname "$0")/lib.sh"

engine=$SHARE/engine/bin/llama-cli
model=$SHARE/large.gguf
# -c: what the KV cache takes is said. Read, not mapped, so that all of it is the process's own.
command=("$engine" -m "$model" -c 512 -t 2 -n 4 --load-mode none --no-repack)
memory=$(("$(stat -c %s "$model")" / 1024))

# holds PID: its weights are in memory.
holds() { (($(sed -n 's/^RssAnon:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$1/status") > memory)); }
# share PID NODE: per cent of its own pages that are there.
share() {
    awk -v key="N$2=" '
        / anon=/ && !/ file=/ {
            for (i = 3; i <= NF; i++)
                if ($i ~ /^N[0-9]+=/) {
                    split($i, pages, "=")
                    all += pages[2]
                    if (index($i, key) == 1) here += pages[2]
                }
        }
        END { printf "%d\n", 100 * here / all }' "/proc/$1/numa_maps"
}

began=$(date +%s)
echo "── what it needs"
"$ctl" model "$model" -- "${command[@]}"

echo "── two models that do not fit together (case 25)"
"$ctl" run --node 1 --share -- "${command[@]}" --front-hold 45 >/run/room.first 2>&1 &
first=$!
wait_for 90 holds $first
rc=0
message=$("$ctl" run --node 1 --share --no-wait -- "${command[@]}" 2>&1) || rc=$?
echo "$message"
assert_eq $rc 75 "the second, not waiting"
assert grep -Eq 'available: node 1 [0-9.]+M of' <<<"$message"
"$ctl" run --node 1 --share --wait=5min -- "${command[@]}" >/run/room.second 2>&1 &
second=$!
wait_for 30 grep -q 'is queued: no room now' /run/room.second
assert kill -0 $first
assert wait $first
assert wait $second
cat /run/room.second
refute journalctl --since "@$began" --quiet -k --grep 'Out of memory|oom-kill'

echo "── a node full of page cache"
fill() { numactl -m 1 dd if=/dev/zero of=/var/tmp/filler bs=1M count=560 status=none && sync; }
free() { sed -n "s/.*MemFree:[[:space:]]*\([0-9]*\) kB/\1/p" /sys/devices/system/node/node1/meminfo; }
fill
echo "node 1 has $(free) KiB free of the $memory KiB that the weights take"
assert test "$(free)" -lt "$memory"
numactl -N 1 "${command[@]}" --front-hold 20 >/dev/null 2>&1 &
bare=$!
wait_for 90 holds $bare
echo "without a lease, numactl -N 1: $(share $bare 1) % on node 1"
kill $bare
wait $bare || true
rm /var/tmp/filler && fill
"$ctl" run --node 1 -- "${command[@]}" --front-hold 20 >/dev/null 2>&1 &
leased=$!
wait_for 90 holds $leased
here=$(share $leased 1)
echo "in a lease of node 1: $here % on node 1"
kill $leased
wait $leased || true
# What was there before the engine's own first page is the shell's.
assert test "$here" -ge 99
rm /var/tmp/filler
wait_for 30 no_leases
