# shellcheck shell=bash
# What scenarios share. Sourced first: source "$(dirname "$0")/lib.sh"
# Set for every scenario: SHARE (the folder given to boot --share), RELEASE, VARIANT.

set -euo pipefail
shopt -s inherit_errexit

fail() {
    echo "FAILED (line ${BASH_LINENO[-2]}): $*"
    exit 1
}

# assert COMMAND...: it succeeds.
assert() {
    "$@" || fail "$*"
}

# refute COMMAND...: it fails.
refute() {
    ! "$@" || fail "not expected to succeed: $*"
}

# assert_eq GOT WANTED [WHAT]
assert_eq() {
    [[ $1 == "$2" ]] || fail "${3:-value}: got '$1', wanted '$2'"
}

# assert_rc RC COMMAND...: its exit status is RC.
assert_rc() {
    local wanted=$1 rc=0
    shift
    "$@" || rc=$?
    assert_eq "$rc" "$wanted" "exit status of $*"
}

# wait_for SECONDS COMMAND...: it succeeds before the deadline; tried ten times a second.
wait_for() {
    local deadline=$((${EPOCHREALTIME/./} + $1 * 1000000)) limit=$1
    shift
    until "$@"; do
        ((${EPOCHREALTIME/./} < deadline)) || fail "not within $limit s: $*"
        sleep 0.1
    done
}

# reads FILE TEXT: the file holds exactly this line, for use with assert and wait_for.
reads() {
    [[ $(cat "$1" 2>/dev/null) == "$2" ]]
}

# as_user USER COMMAND...: in a login session of its own, over SSH; the words arrive as they are.
as_user() {
    local user=$1
    shift
    # shellcheck disable=SC2029 # quoted here, for the shell there
    ssh "$user@localhost" "$(printf '%q ' "$@")"
}

# members LIST: exactly these users are in the group.
members() { gpasswd --members "$1" numa-lease; }

# cgroup_of PID: its folder below /sys/fs/cgroup.
cgroup_of() {
    sed -n 's|^0::|/sys/fs/cgroup|p' "/proc/$1/cgroup"
}

# cpus_of PID, mems_of PID: what its kernel task may use, as the kernel writes it.
cpus_of() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status"; }
# has_cpus PID LIST: for wait_for, which would look only once through "$(cpus_of ...)".
has_cpus() { [[ $(cpus_of "$1") == "$2" ]]; }
mems_of() { sed -n 's/^Mems_allowed_list:[[:space:]]*//p' "/proc/$1/status"; }

# The installed client; SHARE holds one beside its daemon, for what no package is to be needed.
# shellcheck disable=SC2034 # for scenarios
ctl=/usr/bin/numa-leasectl

no_leases() { [[ $("$ctl" list) == "no leases" ]]; }

# As root in a login session over SSH: a scope of its own for each lease.
as_root() {
    grep -qsFf /root/.ssh/id_ed25519.pub /root/.ssh/authorized_keys ||
        cat /root/.ssh/id_ed25519.pub >>/root/.ssh/authorized_keys
    as_user root "$@"
}

# pool NODE [FILE]: a count of the node's 2 MiB pages; nr_hugepages by default.
pool() { cat "/sys/devices/system/node/node$1/hugepages/hugepages-2048kB/${2:-nr_hugepages}"; }

# snapshot: what a lease may change, a line each: knobs, page counts, properties and files of units, partitions, and the
# masks of every thread that is not the kernel's.
snapshot() {
    local file
    for file in /proc/sys/kernel/numa_balancing /proc/sys/vm/zone_reclaim_mode \
        /sys/kernel/mm/transparent_hugepage/{enabled,defrag} /sys/kernel/mm/mempolicy/weighted_interleave/* \
        /sys/devices/system/node/node*/hugepages/hugepages-*/{nr,surplus}_hugepages; do
        [[ ! -r $file ]] || printf 'knob %s: %s\n' "$file" "$(<"$file")"
    done
    find /run/systemd/system.control /run/systemd/transient /etc/systemd/system.control -type f 2>/dev/null |
        grep -Ev 'session-.*scope|numa-lease-keeper-' | sort | sed 's/^/file /' || true
    systemctl show --property=Id,AllowedCPUs,AllowedMemoryNodes,MemoryMax '*.service' '*.slice' |
        awk 'BEGIN { RS = ""; FS = "\n" } { gsub("\n", " "); print "unit " $0 }' |
        grep -E '(AllowedCPUs|AllowedMemoryNodes|MemoryMax)=[0-9]' | grep -v numa-lease-keeper- | sort || true
    find /sys/fs/cgroup -name cpuset.cpus.partition -exec grep -Hv '^member' {} + | sort || true
    for file in /proc/[0-9]*/task/[0-9]*/status; do
        awk -v task="${file%/status}" '
            /^Name:/ { name = $2 }
            /^VmSize:/ { user = 1 }
            /^Cpus_allowed_list:/ { cpus = $2 }
            /^Mems_allowed_list:/ { mems = $2 }
            END { if (user) print "task", task, name, cpus, mems }' "$file" 2>/dev/null || true
    done
}

# assert_as_before BEFORE: a snapshot taken now says the same, apart from tasks that came or went.
assert_as_before() {
    local before=$1 after
    after=$(mktemp)
    snapshot >"$after"
    # Only tasks that both saw, under the same name.
    awk 'FNR == 1 { part++ }
        $1 != "task" { if (part == 1) was[$0]; else { if (!($0 in was)) { print "new: " $0; bad = 1 } delete was[$0] } next }
        part == 1 { mask[$2 " " $3] = $4 " " $5; next }
        ($2 " " $3) in mask && mask[$2 " " $3] != $4 " " $5 { print $2, $3 ": " $4, $5 ", was " mask[$2 " " $3]; bad = 1 }
        END { for (line in was) { print "gone: " line; bad = 1 } exit bad }' "$before" "$after" ||
        fail "the machine is not as it was"
}

# Writes /run/in-a-box: it runs a command in a cgroup of its own below a unit that was delegated, as a container runtime
# would; run it with bash. A file, because systemd takes `$$` in an argument for an escaped dollar.
make_box() {
    cat >/run/in-a-box <<'EOF'
#!/bin/bash
group=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/inner
mkdir "$group" && echo $$ >"$group/cgroup.procs" && exec "$@"
EOF
}

# as_it_was PID [LEASE...]: what may not change under leases while something happens to the daemon: start time and masks
# of every thread, the nodes where the memory of the process's own is (not how much: khugepaged fills holes), and state and
# start of the leases, as listed.
as_it_was() {
    local task pid=$1 id
    shift
    for task in "/proc/$pid/task"/*; do
        task=${task#/proc/}
        echo "${task##*/} $(sed 's/.*) //' "/proc/$task/stat" | cut -d' ' -f20) $(cpus_of "$task") $(mems_of "$task")"
    done
    grep ' anon=' "/proc/$pid/numa_maps" | grep -o ' N[0-9]*=' | sort -u | tr -d ' =\n'
    for id; do
        numa-leasectl --json show "$id" | sed -n '/"started": {/,/}/p; /"id": /p; /^ *"state": /p'
    done
}
# lease_of PID: the id of the lease that it was given.
lease_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^NUMA_LEASE_ID=//p'; }

# lease_line NAME: its id, state, when it started, and "parked" where nobody holds it.
lease_line() {
    numa-leasectl --json show "$1" | awk '
        { value = $2; gsub(/[",]/, "", value) }
        $1 == "\"id\":" && id == "" { id = value }
        $1 == "\"state\":" { state = value }
        $1 == "\"started\":" { inside = 1 }
        inside && $1 == "\"real\":" { started = value; inside = 0 }
        $1 == "\"parked\":" { parked = " parked" }
        END { print id, state, started parked }'
}
is_parked() { [[ $(lease_line "$1") == *parked ]]; }

# migrated: pages that the kernel has moved between nodes or for compaction since boot.
migrated() { sed -n 's/^pgmigrate_success //p' /proc/vmstat; }

# workload: what to run in a lease where memory matters: holds 64 MiB (16384 pages) and waits.
# shellcheck disable=SC2034 # for scenarios
workload=(python3 -c 'import time; held = bytearray(b"x") * (64 << 20); time.sleep(1000)')
# settled PID: it waits, with its memory filled.
settled() {
    [[ $(sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$1/status") -gt 65536 && $(sed 's/.*) //' "/proc/$1/stat") == S* ]]
}

# main_pid [UNIT]: of the daemon, or of UNIT; 0 while there is none. new_daemon PID [UNIT]: another one has taken over.
main_pid() { systemctl show -P MainPID "${1-numa-leased}"; }
new_daemon() { [[ $(main_pid "${@:2}") != "$1" && $(main_pid "${@:2}") != 0 ]] && systemctl --quiet is-active "${2-numa-leased}"; }
