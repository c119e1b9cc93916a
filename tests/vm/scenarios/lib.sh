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

# cgroup_of PID: its folder below /sys/fs/cgroup.
cgroup_of() {
    sed -n 's|^0::|/sys/fs/cgroup|p' "/proc/$1/cgroup"
}

# cpus_of PID, mems_of PID: what its kernel task may use, as the kernel writes it.
cpus_of() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status"; }
mems_of() { sed -n 's/^Mems_allowed_list:[[:space:]]*//p' "/proc/$1/status"; }

# as_it_was PID: what may not change under a lease while something happens to its daemon: start time and masks of every
# thread, where the memory of the process's own is, and what is listed with its state and start.
as_it_was() {
    local task
    for task in "/proc/$1/task"/*; do
        echo "${task##*/} $(sed 's/.*) //' "$task/stat" | cut -d' ' -f20) $(cpus_of "$1/task/${task##*/}") $(mems_of "$1/task/${task##*/}")"
    done
    awk '/ anon=/ { for (i = 1; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, a, "="); pages[a[1]] += a[2] } }
        END { for (node in pages) print node, pages[node] }' "/proc/$1/numa_maps"
    numa-leasectl --json list | sed -n '/"started": {/,/}/p; /"id": /p; /"state": /p'
}

# migrated: pages that the kernel has moved between nodes or for compaction since boot.
migrated() { sed -n 's/^pgmigrate_success //p' /proc/vmstat; }

# workload: what to run in a lease where memory matters: holds 64 MiB (16384 pages) and waits.
# shellcheck disable=SC2034 # for scenarios
workload=(python3 -c 'import time; held = bytearray(b"x") * (64 << 20); time.sleep(1000)')
# settled PID: it waits, with its memory filled.
settled() {
    [[ $(sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$1/status") -gt 65536 && $(sed 's/.*) //' "/proc/$1/stat") == S* ]]
}
