#!/bin/bash
# `where` on four nodes: its numbers beside numa_maps, and whether its words name what was put in the wrong place.
# set: full
# timeout: 900
source "$(dirname "$0")/lib.sh"

unit=hog.service
# start WORDS...: a shell line as the unit; what it prints (memhog: dots) is nobody's. From a file: systemd has its own
# meaning for a dollar.
start() {
    echo "$* >/dev/null" >/run/where-unit
    systemd-run --quiet --unit=$unit sh /run/where-unit
}
end() {
    systemctl stop $unit
    systemctl reset-failed $unit 2>/dev/null || true
    wait_for 90 no_leases # a unit's is kept for a while
}

# holds PID KIB: its resident memory has grown to that. freeze PID KIB: and stays as it is.
holds() { [[ $(cat "/proc/$1/comm" 2>/dev/null) == memhog && $(sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$1/status") -ge $2 ]]; }
main_holds() { holds "$(main_pid $unit)" "$1"; }
freeze() {
    wait_for 120 holds "$1" "$2"
    kill -STOP "$1"
}
freeze_main() {
    wait_for 120 main_holds "$1"
    pid=$(main_pid $unit)
    freeze "$pid" "$1"
    lease=$(lease_of "$pid")
}

# mapped PID NODE: KiB that numa_maps shows of it there.
mapped() {
    awk -v key="N$2=" '
        { pages = 0; size = 0
          for (i = 3; i <= NF; i++) {
              if (index($i, key) == 1) pages = substr($i, length(key) + 1)
              if (index($i, "kernelpagesize_kB=") == 1) size = substr($i, 19)
          }
          sum += pages * size }
        END { print sum + 0 }' "/proc/$1/numa_maps"
}

# told FIELD NODE: what the JSON on standard input says of a node, 0 where it does not name it. It is sorted and indented.
told() {
    awk -v field="\"$1\":" -v node="$2" '
        /^  "nodes": \[/ { inside = 1 }
        /^  \]/ { inside = 0 }
        inside { text = $2; sub(",", "", text) }
        inside && $1 == field { value = text }
        inside && $1 == "\"node\":" { at = text }
        inside && /^    }/ && at == node { found = value }
        END { print found == "" ? 0 : found }'
}

# assert_mapped PID: the total of each node is what numa_maps has, within 1 MiB (the kernel may fill huge pages meanwhile).
assert_mapped() {
    local json node got wanted
    json=$("$ctl" --json where "$1")
    for node in 0 1 2 3; do
        got=$(($(told total "$node" <<<"$json") / 1024)) wanted=$(mapped "$1" "$node")
        echo "node $node: $got KiB, numa_maps $wanted KiB"
        ((got - wanted <= 1024 && wanted - got <= 1024)) || fail "node $node of $1"
    done
}

# show TARGET: what is said about it. says PATTERN: one of its lines. says_not PATTERN: nor a part of one.
show() {
    said=$("$ctl" where "$@")
    echo "$said"
}
says() { grep -Eq "^$1\$" <<<"$said" || fail "not said: $1"; }
says_not() { refute grep -Eq "$1" <<<"$said"; }

file=/var/tmp/where.gguf

echo "── a model in the page cache of another node (case 16)"
numactl --membind=3 head -c 72M /dev/zero >$file
start exec "$ctl" run --node 1 -- memhog -r1000000 -f$file 72m
freeze_main 73728
assert_mapped "$pid"
show "$lease"
says "memhog \(pid $pid\) in lease $lease: node 1, CPUs 2-3"
says "amiss: 7[0-9.]+M \([0-9]+ %\) is on node 3, outside of the lease: 7[0-9.]+M file-mapped"
says "amiss: the model $file is file-mapped: 72M, on node 3; 100 % is outside of the lease"
says "ok: all of 1 thread may run on the lease's CPUs 2-3 only"
show "$pid"
says "memhog \(pid $pid\) in lease $lease: node 1, CPUs 2-3"
assert_eq "$("$ctl" --json where "$lease" | told threads 1)" 1 "threads on node 1"
end
rm $file

echo "── memory that was bound to another node before the unit had a lease (cases 26, 27)"
current=/sys/fs/cgroup/system.slice/$unit/memory.current
start "memhog -H -r1000000 300m membind 2 >/dev/null & until [ \$(cat $current) -gt \$((280 << 20)) ]; do sleep 0.2; done;" \
    exec "$ctl" run --node 1 -- memhog -H -r1000000 100m
freeze_main 102400
other=$(grep -vx "$pid" "${current%/*}/cgroup.procs")
freeze "$other" 307200
assert_mapped "$pid"
assert_mapped "$other"
show "$lease"
says "2 processes in lease $lease: node 1, CPUs 2-3"
says "ok: 1[0-9]{2}(\.[0-9])?M \(2[4-9] %\) is on node 1, as leased"
says "amiss: 30[0-9](\.[0-9])?M \(7[0-9] %\) is on node 2, outside of the lease: 300(\.[0-9])?M anonymous.*"
says "$other +[0-9a-f]+ +anonymous +300M +bind:2 +on node 2"
says "$pid +[0-9a-f]+ +anonymous +100M +.* +on node 1"
# The kernel's own count of the unit, which says the same.
says "anonymous +40[0-9](\.[0-9])?M +7[0-9] % on node 2, 2[0-9] % on node 1.*"
end

echo "── interleave: even, and then no longer"
start exec "$ctl" run --node 0,1 --mempolicy interleave -- memhog -H -r1000000 128m
freeze_main 131072
assert_mapped "$pid"
show "$lease"
says "ok: balanced: .* (49|50|51) % of 2 nodes' anonymous memory \(interleave wants 50 %\)"
json=$("$ctl" --json where --sample "$lease")
for node in 0 1; do
    # By evenly spaced pages it would be all or nothing.
    got=$(($(told anonymous $node <<<"$json") >> 20))
    ((got >= 61 && got <= 69)) || fail "node $node has $got MiB of a sample of 128 MiB"
done
assert grep -q '"sampled": [1-9]' <<<"$json"
migratepages "$pid" 0 1
assert_mapped "$pid"
show "$lease"
says "amiss: imbalance: node 1 has 100 % of 2 nodes' anonymous memory \(interleave wants 50 %\)"
end

echo "── only the first of two leased nodes is used (case 31)"
start exec "$ctl" run --node 0,1 -- memhog -H -r1000000 160m membind 0
freeze_main 163840
show "$lease"
says "amiss: of the leased nodes 0-1, node 1 holds next to nothing"
says_not "when it was ready"
echo "── and the daemon, told that it is ready, keeps that, shows it and logs it"
idle="of its nodes 0-1, node 1 holds next to nothing"
answer=$(busctl call org.numalease1 /org/numalease1 org.numalease1.Manager Verify s "$lease")
echo "$answer"
assert grep -qF "$idle" <<<"$answer"
assert grep -qF "$lease when it was ready: $idle" <<<"$("$ctl" list)"
json=$("$ctl" --json list --all)
assert grep -q '"verified": {' <<<"$json"
assert grep -qF "$idle" <<<"$json"
show "$lease"
says "when it was ready: 1[67][0-9](\.[0-9])?M, .* of it on leased nodes \(node 0: .*"
says "amiss then: $idle"
verified=8f7a3c1e5b2d4f60a9c4e8d17b3f6a0f
logged() { journalctl --quiet --no-pager -o cat MESSAGE_ID=$verified LEASE="$lease" PRIORITY="$1"; }
was_logged() { [[ $(logged 4) == *"$idle"* ]]; }
wait_for 30 was_logged
logged 4
assert_eq "$(logged 6)" "" "without a warning"
echo "── another user has no say in it, and the next daemon still knows"
refute as_user alice busctl call org.numalease1 /org/numalease1 org.numalease1.Manager Verify s "$lease"
systemctl restart numa-leased
assert grep -qF "$lease when it was ready: $idle" <<<"$("$ctl" list)"
end

echo "── without a lease: memory away from its threads; another user sees none of it"
numactl --cpunodebind=0 --membind=3 memhog -H -r1000000 96m >/dev/null &
pid=$!
freeze $pid 98304
assert_mapped $pid
show $pid
says "memhog \(pid $pid\), in no lease; it may use nodes 0-3"
says "amiss: 9[0-9.]+M \([0-9>]+ %\) is on node 3, where none of its threads last ran"
says_not "outside of"
rc=0
message=$(as_user alice numa-leasectl where $pid 2>&1) || rc=$?
echo "$message"
assert_eq $rc 77 "alice's"
assert grep -q "numa-leasectl where needs root for it" <<<"$message"
kill -KILL $pid
