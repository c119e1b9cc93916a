#!/bin/bash
# A shield: nobody else's thread runs on the leased CPUs. However it ends, masks, files and partitions are as before.
# set: full
# timeout: 1500
source "$(dirname "$0")/lib.sh"

fs=/sys/fs/cgroup
members alice
wait_for 60 systemctl --quiet is-active numa-leased.service
[[ -e $fs/cpuset.cpus.isolated ]] && older='' || older=yes # below Linux 6.7: one slice for all shields

field() { numa-leasectl --json list --all | sed -n "s/^ *\"$1\": \"\?\([^\",]*\)\"\?,\?$/\1/p"; }
says() { numa-leasectl show "$1" | grep -q "$2"; }
idle() { ! numa-leasectl --json list --all | grep -Eq '"state": "(queued|preparing|active|ending)"'; }
partition() { [[ $(cat "$shield/cpuset.cpus.partition" 2>/dev/null) == "$1"* ]]; }
# overlaps LIST FIRST LAST: has a CPU list one of FIRST to LAST?
overlaps() {
    local part
    for part in ${1//,/ }; do
        ((${part%-*} <= $3 && ${part#*-} >= $2)) && return 0
    done
    return 1
}
# tasks: "kernel|user PID ALLOWED NAME" of every thread outside the lease. A kernel thread has no memory.
tasks() {
    grep -hE '^(Name|Pid|VmSize|Cpus_allowed_list):' /proc/[0-9]*/task/[0-9]*/status 2>/dev/null | awk '
        $1 == "Name:" { name = $2; kind = "kernel" } $1 == "Pid:" { pid = $2 } $1 == "VmSize:" { kind = "user" }
        $1 == "Cpus_allowed_list:" { print kind, pid, $2, name }' || true
}
# strangers KIND: who of them may run on CPUs 4-5.
strangers() {
    local kind pid allowed name
    while read -r kind pid allowed name; do
        [[ $kind == "$1" && $pid != "$job" ]] && overlaps "$allowed" 4 5 && echo "$name:$allowed"
    done < <(tasks) || true
}
movable='kthreadd|kswapd|kcompactd|khugepaged|jbd2|oom_reaper|kauditd'
# as_at_boot: every mask, file and partition that a shield could change.
as_at_boot() {
    local pid file
    for pid in $bystanders 1; do
        echo "$(<"/proc/$pid/comm") $(cpus_of "$pid")"
    done
    echo "kernel $(tasks | grep -E "^kernel [0-9]+ [^ ]+ ($movable)" | cut -d' ' -f3 | sort -u)"
    find $fs -name 'cpuset.cpus.partition' -o -name 'cpuset.cpus.exclusive' | while read -r file; do
        grep -HvE '^(member)?$' "$file" 2>/dev/null || true
    done
    ls -d $fs/numaleaseshield.slice /run/systemd/transient/numalease* /run/systemd/system.control/* 2>/dev/null || true
}
is_as_at_boot() { idle && [[ $(as_at_boot) == "$boot" ]]; }
# back SECONDS: everything is as at boot before that.
back() {
    local deadline=$((SECONDS + $1))
    until is_as_at_boot; do
        ((SECONDS < deadline)) || {
            diff <(echo "$boot") <(as_at_boot) || true
            fail "not as at boot within $1 s"
        }
        sleep 0.2
    done
}
# shielded_job: a lease of alice's session; sets `job` and `shield`.
shielded_job() {
    rm -f /tmp/job
    # shellcheck disable=SC2016 # for the shell in the lease
    as_user alice numa-leasectl run --no-wait --node 2 --shield -- sh -c 'echo $$ >/tmp/job; exec sleep 1000' &
    session=$!
    wait_for 60 test -s /tmp/job
    job=$(</tmp/job)
    wait_for 10 reads "/proc/$job/comm" sleep
    shield=$(cgroup_of "$job")
    [[ -z $older ]] || shield=$fs/numaleaseshield.slice
}

systemd-run --quiet --unit own-mask --property=CPUAffinity=4 sleep infinity
systemd-run --quiet --unit no-mask sleep infinity
systemd-run --quiet --unit tasksets taskset -c 3-6 sleep infinity
bystanders=
for unit in own-mask no-mask tasksets; do
    wait_for 10 reads "/proc/$(systemctl show -P MainPID $unit)/comm" sleep
    bystanders+=" $(systemctl show -P MainPID $unit)"
done
boot=$(as_at_boot)
echo "$boot"

echo "── refused, with the reason"
assert_rc 64 numa-leasectl run --shield --share -- true
assert_rc 78 as_user alice numa-leasectl run --cores 8 --shield -- true
rc=0
message=$(as_user bob numa-leasectl run --node 2 --shield -- true 2>&1) || rc=$?
echo "$message"
assert_eq $rc 77 "somebody who is no member"
if [[ $older ]]; then
    assert_rc 78 numa-leasectl run --node 2 --shield -- true # a service stays in its unit
    systemctl set-property --runtime user-1001.slice MemoryHigh=2G
    assert_rc 78 as_user alice numa-leasectl run --node 2 --shield -- true
    systemctl revert user-1001.slice
fi
back 5

echo "── of a login session"
shielded_job
id=$(field id | tail -n 1)
assert_eq "$(cat "$shield/cpuset.cpus.partition")" root "$shield"
assert_eq "$(cpus_of "$job")" 4-5 "the job"
assert_eq "$(strangers user)" "" "threads of others that may run there"
assert_eq "$(strangers kernel | grep -E "^($movable)" || true)" "" "kernel threads that could have been moved"
numa-leasectl show "$id" | grep -E 'confinement|note'
assert says "$id" 'nobody else runs on its CPUs'
assert says "$id" 'still run on CPUs 4-5: kernel threads'
if [[ $older ]]; then
    assert_eq "$(cat "$(cgroup_of "$job")/pids.max")" "$(cat $fs/user.slice/user-1001.slice/pids.max)" "TasksMax"
fi
for busy in 1 2 3 4 5 6; do systemd-run --quiet --unit "busy-$busy" sh -c 'while :; do :; done'; done
seen=
for _ in 1 2 3; do
    # Field 39 of stat: where it ran last.
    seen+=$({ cat /proc/[0-9]*/stat 2>/dev/null || true; } | sed -n 's/^[0-9]* (sh) R //p' | cut -d' ' -f36 | tr '\n' ' ')
done
systemctl stop 'busy-*'
echo "busy processes ran on: $seen"
assert test -n "$seen"
refute grep -q '[45]' <<<"$seen"

echo "── a daemon-reload, new units and logins change nothing"
systemctl daemon-reload
systemd-run --quiet --wait true
as_user bob true
assert partition root
assert_eq "$(strangers user)" "" "threads of others that may run there"

echo "── the daemon is killed and adopts it"
daemon=$(main_pid)
systemctl kill --kill-whom=main --signal=KILL numa-leased
wait_for 60 says "$id" 'nobody else runs on its CPUs'
refute test "$(main_pid)" = "$daemon"
assert partition root

echo "── somebody takes its CPUs for a sibling"
if [[ $older ]]; then
    sibling=other.slice
    systemd-run --quiet --unit grabs --slice=$sibling sleep infinity
    systemctl set-property --runtime $sibling AllowedCPUs=4-7
else
    sibling='user-1001.slice'
    systemd-run --quiet --scope --unit grabs --slice=$sibling --property=AllowedCPUs=4-5 sleep infinity &
fi
wait_for 20 says "$id" 'does not hold'
numa-leasectl show "$id" | grep -E 'reason|confinement'
journalctl --sync
assert grep -q 'is degraded: its shield does not hold' <(journalctl -t numa-leased -o cat)
systemctl stop grabs.service grabs.scope 2>/dev/null || true
[[ -z $older ]] || systemctl stop $sibling
[[ -z $older ]] || systemctl revert $sibling
wait_for 40 says "$id" 'holds again'
assert partition root

echo "── its end"
kill "$job"
wait "$session" || true
back 30

if [[ -z $older ]]; then
    echo "── of a system service: it stays in its unit"
    me=$(cgroup_of $$)
    # shellcheck disable=SC2016
    got=$(numa-leasectl run --node 2 --shield -- sh -c 'cut -d: -f3 /proc/self/cgroup; cat "/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/cpuset.cpus.partition"')
    assert_eq "$got" "${me#"$fs"}"$'\n'root "its cgroup and partition"
    back 30
fi

echo "── two at once, which end one after the other"
shielded_job
first=$job
rm -f /tmp/second
# shellcheck disable=SC2016
as_user alice numa-leasectl run --no-wait --node 3 --shield -- sh -c 'echo $$ >/tmp/second; exec sleep 1000' &
wait_for 60 test -s /tmp/second
assert_eq "$(cat $fs/cpuset.cpus.effective)" 0-3 "what is left for everybody else"
kill "$first"
wait_for 30 reads $fs/cpuset.cpus.effective 0-5
kill "$(</tmp/second)"
back 30

echo "── stopped under a live job: the shield comes down, the job lives"
shielded_job
systemctl stop numa-leased.socket numa-leased
assert reads "/proc/$job/comm" sleep
assert_eq "$(cat $fs/cpuset.cpus.effective)" 0-7 "CPUs of everybody"
kill "$job"
wait "$session" || true
systemctl start numa-leased.socket numa-leased
back 30

echo "── kill -9 of the daemon at random instants, between the set and the unset and elsewhere"
for round in $(seq 10); do
    as_user alice numa-leasectl run --no-wait --node 2 --shield -- sleep 1.5 >/dev/null 2>&1 &
    session=$!
    for _ in 1 2; do
        sleep "$((RANDOM % 3)).$((RANDOM % 1000))"
        systemctl kill --kill-whom=main --signal=KILL numa-leased || true
    done
    wait "$session" || true
    back 60
    echo "round $round: as at boot"
done
systemctl stop own-mask no-mask tasksets
