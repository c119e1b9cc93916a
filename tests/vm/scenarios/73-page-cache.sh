#!/bin/bash
# A model that is cached on the wrong node: what is said of it, and what brings it where the lease is, under a real
# llama.cpp that maps it (cases 15-17, 32). Under numactl alone it stays where it is.
# set: full
# timeout: 900
source "$(dirname "$0")/lib.sh"

unit=cached.service
file=/var/tmp/cached.gguf
engine=("$SHARE/engine/bin/llama-cli" -m "$file" -n 8 --front-hold 600)
before=$(mktemp)
snapshot >"$before"

# misplace NODE: the model is in the page cache there, and on the disk.
misplace() {
    rm -f $file
    numactl --membind="$1" cp "$SHARE/tiny.gguf" $file
    sync $file
}

# cached: where, as the daemon has it. cached_is TEXT
cached() { "$ctl" model $file | sed -n 's/^cached *//p'; }
cached_is() { grep -Eqx "$1" <<<"$(cached)" || fail "cached: '$(cached)', wanted '$1'"; }

# mapped: the model's pages that the unit's engine has, by node: "N1=416".
mapped() {
    { grep -sF " file=$file " "/proc/$(main_pid $unit)/numa_maps" || true; } | { grep -o ' N[0-9]*=[0-9]*' || true; } |
        awk -F '[N=]' '{ sum[$2] += $3 } END { for (n in sum) print "N" n "=" sum[n] }' | sort
}
# Half of the model: the engine drops its mapping of what is no tensor, and reads of the token table what it needs.
loaded() {
    [[ $(cat "/proc/$(main_pid $unit)/comm" 2>/dev/null) == llama-cli ]] &&
        (($(mapped | awk -F = '{ sum += $2 } END { print sum * 4096 * 2 }') >= $(stat -c %s $file)))
}

# start WORDS...: as the unit, until the engine in it holds its model; what it says is in /run/cached.err.
start() {
    rm -f /run/cached.err
    # Again where PID 1 stands still for longer than a lease waits for it, as on a busy host with Linux 6.1.
    systemd-run --quiet --unit=$unit -p StandardError=file:/run/cached.err -p Restart=on-failure -p RestartSec=5 "$@"
    wait_for 400 loaded
    grep '^numa-leasectl:' /run/cached.err || true
}
end() {
    systemctl stop $unit
    systemctl reset-failed $unit 2>/dev/null || true
    wait_for 90 no_leases # a unit's is kept for a while
}

# assert_mapped NODE: all that the engine has of its model is there.
assert_mapped() {
    local got
    got=$(mapped)
    echo "mapped: $got"
    assert grep -Eqx "N$1=[0-9]+" <<<"$got"
}
said() { grep -Eq "$1" /run/cached.err || fail "not said: $1"; }

echo "── under numactl alone the pages stay where they are"
misplace 3
cached_is '1\.[0-9]M on node 3'
start numactl --cpunodebind=1 --membind=1 "${engine[@]}"
assert_mapped 3
cached_is "1\.[0-9]M on node 3, mapped by llama-cli \(PID $(main_pid $unit)\)"
end

echo "── a lease that keeps them says so"
start "$ctl" run --policy single-node --node 1 -- "${engine[@]}"
said "100 % of cached.gguf is cached on node 3, outside the lease: --page-cache evict moves it"
assert_mapped 3

echo "── evict leaves what another process maps, and names it"
pid=$(main_pid $unit)
"$ctl" run --node 0 --model $file --memory 64M --page-cache evict -- true 2>&1 | tee /run/cached.err
said "cached.gguf had 0 on node 0 and 1\.[0-9]M on node 3; evicted .*; [0-9.]+[KM] stays, mapped by llama-cli \(PID $pid\)"
end

echo "── evict brings all of it to the leased node"
misplace 3
start "$ctl" run --policy single-node --node 1 --page-cache evict -- "${engine[@]}"
said "page cache: cached.gguf had 0 on node 1 and 1\.[0-9]M on node 3; evicted 1\.[0-9]M, which is read again"
assert_mapped 1
cached_is "[0-9.]+[KM] on node 1, mapped by llama-cli \(PID $(main_pid $unit)\)"
end

echo "── who may not lease is told nothing of it"
members "" # also where a scenario before this one failed half-way
said=$(as_user alice numa-leasectl model $file)
assert grep -Eq '^cached +not known: .*org.numalease1.acquire' <<<"$said"

echo "── reclaim: where the kernel has it, else what else there is"
rc=0
message=$("$ctl" run --node 1 --page-cache reclaim -- true 2>&1) || rc=$?
echo "$message"
if [[ -e /sys/devices/system/node/node1/reclaim ]]; then
    assert_eq $rc 0 reclaim
    assert grep -q 'node 1: .* reclaimed' <<<"$message"
    sleep 61 # the limit counts from here
else
    assert_eq $rc 78 "reclaim on a kernel without"
    assert grep -q 'no per-node reclaim; use --page-cache evict' <<<"$message"
fi

echo "── drop: what came of it, and once a minute"
message=$("$ctl" run --node 1 --page-cache drop -- true 2>&1)
echo "$message"
assert grep -Eq 'page cache dropped: .* freed of .*; .* stays; mapped by processes: ' <<<"$message"
rc=0
message=$("$ctl" run --node 1 --page-cache drop --no-wait -- true 2>&1) || rc=$?
echo "$message"
assert_eq $rc 75 "the second within a minute"
assert grep -q 'once a minute is the limit' <<<"$message"

rm -f $file
assert_as_before "$before"
