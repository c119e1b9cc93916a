#!/bin/bash
# A system service that runs its command in a lease: it stays in its unit, and the unit comes back as it was.
# timeout: 900
source "$(dirname "$0")/lib.sh"

unit=lt.service
files() { find /etc/systemd /run/systemd/system.control /run/systemd/transient -path "*$unit*" -type f -exec sha256sum {} + 2>/dev/null | sort; }
properties() {
    systemctl show "$unit" -p MemoryMax -p TasksMax -p CPUQuotaPerSecUSec -p DevicePolicy -p IPAddressDeny -p KillMode \
        -p NotifyAccess -p AllowedCPUs -p AllowedMemoryNodes -p NeedDaemonReload -p DropInPaths
}
main_pid() { systemctl show -P MainPID "$unit"; }
runs() { # COMM CPUS: what the unit's main process is, and may use
    local pid
    pid=$(main_pid)
    [[ $pid != 0 && $(cat "/proc/$pid/comm") == "$1" && $(cpus_of "$pid") == "$2" ]]
}
no_lease() { ! "$ctl" --json list --all | grep -Eq '"state": "(active|ending|preparing)"'; }
# as_before FILES PROPERTIES
as_before() { [[ $(files) == "$1" && $(properties) == "$2" ]]; }
check_as_before() {
    wait_for 30 no_lease
    (wait_for 20 as_before "$1" "$2") >/dev/null || true # what differs is said next
    assert_eq "$(files)" "$1" "files"
    assert_eq "$(properties)" "$2" "properties"
}
make() { # LINES of [Service]
    printf '[Service]\n%s\n' "$*" >/etc/systemd/system/$unit
    systemctl daemon-reload
}

echo "── with limits of its own, a child, and an administrator's drop-in with the very name of ours (cases 48, 50)"
mkdir -p /etc/systemd/system/$unit.d
printf '[Service]\nCPUWeight=50\n' >/etc/systemd/system/$unit.d/50-AllowedCPUs.conf
cat >/run/lt <<EOF
#!/bin/sh
[ ! -e /run/lt.without ] || exec sleep 1000
exec $ctl run --node 1 -- sh -c 'echo seen inside; sleep 1001 & exec sleep 1000'
EOF
make "ExecStart=/bin/sh /run/lt
MemoryMax=300M
TasksMax=50
CPUQuota=150%
DevicePolicy=closed
IPAddressDeny=10.0.0.0/8
Restart=on-failure
RestartSec=0"
systemctl start $unit # so that it stays loaded when it ends
wait_for 90 runs sleep 2-3
systemctl stop $unit
wait_for 30 no_lease
files=$(files) before=$(properties)
systemctl start $unit
wait_for 90 runs sleep 2-3
pid=$(main_pid)
assert_eq "$(cgroup_of "$pid")" /sys/fs/cgroup/system.slice/$unit "its cgroup"
assert_eq "$(properties | grep -v '^\(Allowed\|DropIn\|NeedDaemon\)')" "$(grep -v '^\(Allowed\|DropIn\|NeedDaemon\)' <<<"$before")" "limits"
assert_eq "$(mems_of "$pid")" 1 "memory nodes"
assert grep -q "seen inside" <(journalctl -u $unit)
child=$(pgrep -x -f 'sleep 1001')
systemctl stop $unit
refute test -e "/proc/$child"
check_as_before "$files" "$before"

echo "── killed and started again at once: the same lease, and it does not queue again"
lease() { "$ctl" --json list --all | sed -n 's/.*"id": "\(c[0-9]*\)".*/\1/p' | tail -n 1; }
systemctl start $unit
wait_for 90 runs sleep 2-3
pid=$(main_pid) before_kill=$(lease)
kill -9 "$pid"
again() { [[ $(main_pid) != "$pid" ]] && runs sleep 2-3; }
wait_for 90 again
assert_eq "$(lease)" "$before_kill" "its lease"

echo "── killed, and its next run asks for no lease: nothing binds that one (case 58)"
touch /run/lt.without
kill -9 "$(main_pid)"
wait_for 90 runs sleep 0-7
rm /run/lt.without
check_as_before "$files" "$before"
systemctl stop $unit

echo "── a runtime prior is written back into its own file (case 48)"
systemctl set-property --runtime $unit AllowedCPUs=0-5 MemoryMax=2G
prior_files=$(files) prior=$(properties)
systemctl start $unit
wait_for 90 runs sleep 2-3
echo "MemoryMax in the lease: $(systemctl show -P MemoryMax $unit)"
assert test "$(systemctl show -P MemoryMax $unit)" -lt $((2 << 30))
systemctl stop $unit
check_as_before "$prior_files" "$prior"
rm -r /run/systemd/system.control/$unit.d
systemctl daemon-reload

echo "── a setting in a file of the administrator's is not overridden"
printf '[Service]\nAllowedCPUs=0-3\n' >/etc/systemd/system/$unit.d/60-own.conf
systemctl daemon-reload
own_files=$(files) own=$(properties)
systemctl start $unit
wait_for 90 runs sleep 2-3
assert_eq "$(files)" "$own_files" "files in the lease"
assert_eq "$(properties)" "$own" "properties in the lease"
assert grep -q 'AllowedCPUs=0-3 of its own' <("$ctl" --json list --all)
systemctl stop $unit
check_as_before "$own_files" "$own"
rm /etc/systemd/system/$unit.d/60-own.conf

echo "── the pages of a large unit are not made to move (case 57)"
make "ExecStart=sh -c 'head -c 300M /dev/zero >/dev/shm/large && exec $ctl run --node 1 -- sleep 1000'"
systemctl start $unit
wait_for 120 runs sleep 2-3
assert_eq "$(systemctl show -P AllowedMemoryNodes $unit)" "" "memory nodes"
assert test "$(systemctl show -P MemoryMax $unit)" -gt $((300 << 20))
systemctl stop $unit
rm /dev/shm/large
wait_for 30 no_lease

echo "── a service waits only with Type=notify, for longer than its start may take"
"$ctl" run --node 1 -- sleep 1000 &
holder=$!
wait_for 90 reads /proc/$holder/comm sleep
make "Type=exec
ExecStart=$ctl run --node 1 --wait=1h -- sleep 1000"
systemctl start $unit || true
ended() { [[ $(systemctl show -P ExecMainStatus $unit) == 64 ]]; }
wait_for 60 ended
assert grep -q 'a service waits only with Type=notify' <(journalctl -u $unit)
make "Type=notify
NotifyAccess=all
TimeoutStartSec=15
ExecStart=$ctl run --node 1 --wait=1h -- sh -c 'systemd-notify --ready; exec sleep 1000'"
systemctl start --no-block $unit
status() { [[ -n $(systemctl show -P StatusText $unit) ]]; }
wait_for 60 status
systemctl show $unit -p ActiveState -p StatusText
sleep 20 # longer than the start timeout: that it does not come is what is shown
assert_eq "$(systemctl show -P ActiveState $unit)" activating "while it waits"
kill "$holder"
is_up_or_over() { [[ $(systemctl show -P ActiveState $unit) != activating ]]; }
is_up() { systemctl --quiet is-active $unit; }
show_unit() { systemctl status --no-pager $unit || true; journalctl -u $unit -u numa-leased -n 30 --no-pager; }
wait_for 60 is_up_or_over
is_up || show_unit
assert runs sleep 2-3
systemctl stop $unit
wait_for 30 no_lease
rm -r /etc/systemd/system/$unit /etc/systemd/system/$unit.d
systemctl daemon-reload
