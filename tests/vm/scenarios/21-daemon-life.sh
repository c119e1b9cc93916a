#!/bin/bash
# The daemon under systemd: restarts keep leases, a stop puts the kernel back, deaths are survived or mended.
# set: full
# timeout: 900
source "$(dirname "$0")/lib.sh"

balancing=/proc/sys/kernel/numa_balancing
dropins=/run/systemd/system/numa-leased.service.d
pool=/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages

active() { numa-leasectl --json list --all | grep -q '"state": "active"'; }
# lease: starts a workload in a lease with kernel state; sets `job` and `id`.
lease() {
    numa-leasectl run --node 1 --numa-balancing off --hugepages 2M=32M -- "${workload[@]}" &
    job=$!
    wait_for 60 reads "/proc/$job/comm" python3
    wait_for 60 active
    wait_for 60 settled "$job"
    id=$(lease_of "$job")
    assert_eq "$(cat $balancing $pool | tr '\n' ' ')" "0 16 " "kernel state of the lease"
}
# A change of the unit that does not outlive this scenario.
with_setting() {
    mkdir -p "$dropins"
    printf %b "$1" >"$dropins/50-scenario.conf"
    systemctl daemon-reload
}
without_setting() {
    rm -rf "$dropins"
    systemctl daemon-reload
    systemctl reset-failed numa-leased || true
}
trap 'without_setting; systemctl start numa-leased' EXIT
is_as_before() {
    [[ $(cat $balancing $pool | tr '\n' ' ') == "1 0 " ]]
}

wait_for 60 systemctl --quiet is-active numa-leased.service
lease
before=$(as_it_was "$job" "$id")
echo "$before"

moved=$(migrated)
echo "── restarted five times: nothing changes"
for _ in 1 2 3 4 5; do
    daemon=$(main_pid)
    assert systemctl restart numa-leased
    refute test "$(main_pid)" = "$daemon"
    assert_eq "$(as_it_was "$job" "$id")" "$before" "the lease after a restart"
done
assert_eq "$(systemctl show -P NFileDescriptorStore numa-leased)" 1 "descriptors that systemd keeps"
echo "$(($(migrated) - moved)) pages of the machine migrated meanwhile, the workload has 16384"
assert test $(($(migrated) - moved)) -lt 1000

echo "── SIGKILL, SIGTERM without a job, a watchdog: the next daemon takes over"
for signal in KILL TERM; do
    daemon=$(main_pid)
    assert systemctl kill --kill-whom=main --signal=$signal numa-leased
    wait_for 60 new_daemon "$daemon"
    assert_eq "$(as_it_was "$job" "$id")" "$before" "the lease after SIG$signal"
done
with_setting '[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\n'
assert systemctl restart numa-leased
daemon=$(main_pid)
kill -STOP "$daemon"
wait_for 60 new_daemon "$daemon"
without_setting
assert systemctl restart numa-leased
assert_eq "$(as_it_was "$job" "$id")" "$before" "the lease after the watchdog"

echo "── polkit restarts; a request that waits keeps its place over a restart, and over kill -9"
assert systemctl restart polkit
assert as_user alice numa-leasectl list
numa-leasectl run --node 1 --wait=forever -- true 2>/run/waiting &
waiting=$!
wait_for 30 eval 'numa-leasectl --json list --all | grep -q "\"state\": \"queued\""'
assert systemctl restart numa-leased
queued=$(numa-leasectl --json list --all | sed -n '/"state": "queued"/,$p' | grep -c '"state": "queued"')
assert_eq "$queued" 1 "what waits after a restart"
daemon=$(main_pid)
kill -9 "$daemon"
wait_for 60 new_daemon "$daemon"
wait_for 30 eval 'numa-leasectl --json list --all | grep -q "\"state\": \"queued\""'
assert kill -0 "$waiting"
assert_eq "$(as_it_was "$job" "$id")" "$before" "the lease meanwhile"
kill "$waiting"
wait "$waiting" || true
wait_for 30 eval '! numa-leasectl --json list --all | grep -q "\"state\": \"queued\""'

echo "── a second daemon on this kernel is refused, from a mount namespace of its own too (case 59)"
rc=0
message=$(/usr/libexec/numa-leased --bus none --runtime-dir /run/second 2>&1) || rc=$?
echo "$rc $message"
refute test $rc = 0
assert grep -q 'one numa-leased serves a kernel' <<<"$message"
rc=0
message=$(unshare --mount sh -c 'mount -t tmpfs none /run && /usr/libexec/numa-leased --bus none' 2>&1) || rc=$?
echo "$rc $message"
refute test $rc = 0
assert grep -q 'one numa-leased serves a kernel' <<<"$message"

echo "── stopped: the kernel as before, the workload goes on"
assert systemctl stop numa-leased
assert is_as_before
assert_eq "$(cpus_of "$job")" 0-7 "CPUs of the workload"
assert kill -0 "$job"
assert_eq "$(systemctl show -P NFileDescriptorStore numa-leased)" 0 "descriptors that systemd keeps"
kill "$job"

echo "── a journal of another boot: its kernel state is gone, so nothing is put back"
python3 - <<'PYTHON'
import zlib
line = '1 row numa_balancing prior=2 written=1'
with open('/run/numa-lease/journal', 'w') as file:
    file.write(f'numa-lease-journal 1 boot=6f9e5f68-bb15-4221-ab3f-7f114ca762c8\n{zlib.crc32(line.encode()):08x} {line}\n')
PYTHON
echo "── the socket starts it"
assert numa-leasectl --bus none list
assert systemctl --quiet is-active numa-leased
assert_eq "$(cat $balancing)" 1 "balancing"

echo "── it cannot be started any more: the restore unit puts the kernel back"
lease
with_setting '[Service]\nExecStartPre=false\n[Unit]\nStartLimitBurst=3\n'
assert systemctl kill --kill-whom=main --signal=KILL numa-leased
wait_for 60 systemctl --quiet is-failed numa-leased
wait_for 60 is_as_before
assert kill -0 "$job"
is_restored() { [[ $(systemctl show -P ActiveState numa-leased-restore) == inactive ]]; }
wait_for 30 is_restored
assert_eq "$(systemctl show -P Result numa-leased-restore)" success "result of the restore unit"
kill "$job"
without_setting
assert systemctl start numa-leased

echo "── the log, by field"
lease
journalctl --sync
journalctl -t numa-leased -o verbose -n 3 --no-pager
assert grep -q 'is active' <(journalctl -t numa-leased LEASE="$id" -o cat)
assert grep -q "^    MESSAGE_ID=" <(journalctl -t numa-leased -o verbose LEASE="$id")
assert grep -q numa_balancing <(journalctl -t numa-leased -o json LEASE="$id")
assert grep -q "Lease $id is active" <(journalctl -t numa-leased LEASE="$id" -x -o short)
kill "$job"
wait_for 30 is_as_before
