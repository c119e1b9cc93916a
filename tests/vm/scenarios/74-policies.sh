#!/bin/bash
# Every shipped policy with a real llama.cpp on four nodes: where its memory and threads are, against what was leased. And
# what a supervisor stays for: one instance on each node, and a model whose pages are spread by who touches them.
# set: full
# timeout: 1800
source "$(dirname "$0")/lib.sh"

server=$SHARE/engine/bin/llama-server
model=/var/tmp/policies.gguf
cp "$SHARE/small.gguf" $model
sync $model
size=$(($(stat -c %s $model) >> 20))
echo "model: $size MiB"
unit=policies.service
log=/run/policies.log
before=$(mktemp)
snapshot >"$before"

# mapped PID NODE PATTERN: KiB of the mappings whose line has the pattern, as numa_maps shows them on a node.
mapped() {
    awk -v key="N$2=" -v pattern="$3" '
        $0 ~ pattern {
            pages = 0; size = 0
            for (i = 3; i <= NF; i++) {
                if (index($i, key) == 1) pages = substr($i, length(key) + 1)
                if (index($i, "kernelpagesize_kB=") == 1) size = substr($i, 19)
            }
            sum += pages * size
        }
        END { print sum + 0 }' "/proc/$1/numa_maps"
}
# by_node PID PATTERN: "10 20 0 0" MiB.
by_node() {
    local node out=()
    for node in 0 1 2 3; do out+=($(($(mapped "$1" $node "$2") >> 10))); done
    echo "${out[*]}"
}

engines() { pgrep -x llama-server || true; }
# shellcheck disable=SC2016 # for the shell that has a limit
is_ready() {
    timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/$0 && printf "GET /health HTTP/1.0\r\n\r\n" >&3 && grep -q " 200 " <&3' "$1" 2>/dev/null
}
has_said() { grep -q "$1" $log; }

# verified LEASE: what the daemon found when its engine was ready: in the list, in the log of the run and in the journal,
# all of it on the leased nodes and nothing amiss.
verified() {
    local json inside total
    json=$("$ctl" --json show "$1")
    assert grep -q '"verified": {' <<<"$json"
    # Sorted and indented: its own members are two deeper than the lease's.
    inside=$(awk '/^  "verified": \{/ { at = 1 } at && $1 == "\"inside\":" { sub(",", "", $2); print $2; exit }' <<<"$json")
    total=$(awk '/^  "verified": \{/ { at = 1 } at && /^    "total":/ { sub(",", "", $2); print $2; exit }' <<<"$json")
    echo "verified: $((inside >> 20)) of $((total >> 20)) MiB are on leased nodes"
    assert_eq $((total >> 20 >= size)) 1 "MiB it is charged for: $((total >> 20)) with a model of $size"
    assert_eq $((inside * 100 >= total * 99)) 1 "inside: $inside of $total"
    assert grep -q '"warnings": \[\]' <<<"$json"
    assert grep -q "lease $1: .* of it on leased nodes" $log
    assert grep -q "the memory of lease $1: .* of it on leased nodes" <<<"$(journalctl --quiet --no-pager -o cat \
        MESSAGE_ID=8f7a3c1e5b2d4f60a9c4e8d17b3f6a0f LEASE="$1")"
}

# start TYPE POLICY WORDS...: a server as a unit of that type, with `options` for its lease.
options=()
start() {
    local type=$1 policy=$2
    shift 2
    dd if=$model iflag=nocache count=0 status=none # what is cached of it would decide where it is
    : >$log
    systemd-run --quiet --unit=$unit -p Type="$type" -p TimeoutStartSec=20min -p StandardOutput=append:$log \
        -p StandardError=append:$log "$ctl" run --policy "$policy" "${options[@]}" --grace 1s -- "$server" -m $model -c 512 "$@"
}
# over STATUS: its unit has ended with that, and its lease with it.
is_over() { [[ $(systemctl show -P ActiveState $unit) =~ ^(inactive|failed)$ ]]; }
over() {
    wait_for 90 is_over
    assert_eq "$(engines)" "" "who is left"
    [[ $1 == any ]] || assert_eq "$(systemctl show -P ExecMainStatus $unit)" "$1" "exit status"
    systemctl reset-failed $unit 2>/dev/null || true
    wait_for 90 no_leases
}
end() {
    systemctl stop $unit
    over any
}

printf '%-14s %-8s %-22s %-22s %-7s %s\n' policy leased "file-mapped MiB" "other MiB" threads load >/run/table
# row POLICY PID
row() {
    local leased threads load=read
    leased=$(tr '\0' '\n' <"/proc/$2/environ" | sed -n 's/^NUMA_LEASE_NODES=//p')
    threads=$(tr '\0' '\n' <"/proc/$2/environ" | sed -n 's/^LLAMA_ARG_THREADS=//p')
    grep -q 'policies.gguf' "/proc/$2/maps" && load=mapped
    printf '%-14s %-8s %-22s %-22s %-7s %s\n' "$1" "$leased" "$(by_node "$2" 'policies.gguf')" "$(by_node "$2" 'anon=')" \
        "$threads" "$load" >>/run/table
}
# outside PID NODES...: MiB that are on other nodes than these; a few of libraries do not count.
outside() {
    local node sum=0 pid=$1
    shift
    for node in 0 1 2 3; do
        grep -qw $node <<<"$*" || sum=$((sum + $(mapped "$pid" $node '(anon=|policies.gguf)')))
    done
    echo $((sum >> 10))
}

echo "── policies that only place"
port=8100
for policy in auto single-node single-socket fit-model all-nodes; do
    port=$((port + 1))
    start exec $policy --port $port
    wait_for 240 is_ready $port
    pid=$(engines)
    row $policy "$pid"
    "$ctl" where "$pid"
    leased=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^NUMA_LEASE_NODES=//p')
    case $policy in
        single-socket) assert grep -Eqx '0-1|2-3' <<<"$leased" ;;
        all-nodes) assert_eq "$leased" 0-3 "nodes of $policy" ;;
        *) assert grep -Eqx '[0-3]' <<<"$leased" ;;
    esac
    # shellcheck disable=SC2046 # a list
    others=$(outside "$pid" $(seq "${leased%-*}" "${leased#*-}"))
    assert_eq $((others <= 4)) 1 "$policy on $leased: $others MiB elsewhere"
    end
done

echo "── first-touch: announced when it is warm, mapped, and spread over the nodes by the threads that touch it"
# A core of each node: with more threads than the emulator has processors, one token takes minutes.
options=(--cores 4)
start notify first-touch --port 8110 # returns with READY=1
options=()
cat $log
assert has_said 'first-touch: ready: port 8110'
assert has_said 'first-touch: warm: round'
assert is_ready 8110
pid=$(engines)
row first-touch "$pid"
"$ctl" where "$pid"
assert_eq "$(ps -o ppid= -p "$pid" | tr -d ' ')" "$(main_pid $unit)" "its parent"
assert_eq "$(cat /proc/sys/kernel/numa_balancing)" 0 "balancing"
read -ra got <<<"$(by_node "$pid" 'policies.gguf')"
sum=$((got[0] + got[1] + got[2] + got[3]))
assert_eq $((sum * 100 >= size * 90)) 1 "resident: $sum of $size MiB"
# An even part would be a quarter: none has less than a tenth of that.
for node in 0 1 2 3; do assert_eq $((got[node] * 40 >= size)) 1 "MiB of the model by node: ${got[*]}"; done
verified "$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^NUMA_LEASE_ID=//p')"
echo "── its unit is stopped: systemd tells every process, and the server ends in order"
systemctl stop $unit
over 0
assert reads /proc/sys/kernel/numa_balancing 1

echo "── per-node: one instance on each, with its memory bound there, on ports of their own"
rc=0
message=$("$ctl" run --policy per-node -- "$server" -m $model --port 9000 2>&1) || rc=$?
echo "$message"
assert_eq $rc 64 "with one port for all"
# shellcheck disable=SC2016
assert grep -qF '${9000+index}' <<<"$message"
start notify per-node
cat $log
assert has_said 'per-node: ready: port 8080, 8081, 8082, 8083'
mapfile -t pids < <(engines)
assert_eq ${#pids[@]} 4 instances
seen=
for pid in "${pids[@]}"; do
    row per-node "$pid"
    environment=$(tr '\0' '\n' <"/proc/$pid/environ")
    node=$(sed -n 's/^NUMA_LEASE_NODES=//p' <<<"$environment")
    assert grep -qx "LLAMA_ARG_PORT=$((8080 + node))" <<<"$environment"
    assert_eq "$(cpus_of "$pid")" "$((2 * node))-$((2 * node + 1))" "CPUs of the instance on node $node"
    assert_eq "$(ps -o ppid= -p "$pid" | tr -d ' ')" "$(main_pid $unit)" "its parent"
    others=$(outside "$pid" "$node")
    assert_eq $((others <= 4)) 1 "node $node: $others MiB elsewhere"
    read -ra got <<<"$(by_node "$pid" 'anon=')"
    assert_eq $((got[node] * 100 >= size * 90)) 1 "MiB on node $node: ${got[*]}"
    seen+="$node"$'\n'
done
assert_eq "$(sort -n <<<"${seen%$'\n'}" | tr -d '\n')" 0123 "a node each"
assert_eq "$("$ctl" list | grep -c ' active ')" 5 "the whole lease, and one in it for each"
# The whole one is verified: the first that was granted.
verified "$("$ctl" list | awk '$2 == "active" { sub("c", "", $1); print $1 }' | sort -n | sed -n '1s/^/c/p')"
echo "── one that dies ends the others, and its status is the unit's"
kill -KILL "${pids[2]}"
over 137

echo "── the supervisor hands a signal on, and ends with nought"
start notify per-node
kill -TERM "$(main_pid $unit)"
over 0

echo "── weighted, by free memory"
if [[ -e /sys/kernel/mm/mempolicy/weighted_interleave ]]; then
    was=$(cat /sys/kernel/mm/mempolicy/weighted_interleave/node{0,1})
    message=$("$ctl" run --node 0-1 --mempolicy weighted -- \
        sh -c 'grep -m 1 " weighted interleave:0-1" /proc/self/numa_maps' 2>&1)
    assert grep -Eq 'weights: 0=[0-9]+,1=[0-9]+, by free memory' <<<"$message"
    assert grep -q ' weighted interleave:0-1' <<<"$message"
    assert_eq "$(cat /sys/kernel/mm/mempolicy/weighted_interleave/node{0,1})" "$was" "weights put back"
else
    message=$("$ctl" run --node 0-1 --mempolicy weighted -- sh -c 'grep -m 1 " interleave:0-1" /proc/self/numa_maps' 2>&1)
    assert grep -q 'Linux 6.9' <<<"$message"
    assert grep -q ' interleave:0-1' <<<"$message"
fi
echo "$message"

echo
cat /run/table
rm $model
assert_as_before "$before"
