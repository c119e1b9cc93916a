#!/bin/bash
# Threads keep their own affinity through the first lease, the last one and in between, also where the kernel loses it.
# Before all other scenarios with leases: the first lease of a boot is what brings the cpuset controller.
# timeout: 600
source "$(dirname "$0")/lib.sh"

echo "kernel $(uname -r); cpuset at first: '$(cat /sys/fs/cgroup/{,system.slice/}cgroup.subtree_control | tr '\n' ' ')'"
rm -f /tmp/in

systemd-run --quiet --unit=mask-service -p CPUAffinity="5 6" sleep 1000
systemd-run --quiet --unit=mask-taskset taskset -c 1,7 sleep 1000
as_root taskset -c 3-4 sleep 1000 &
wait_for 60 pgrep -u root -f '^sleep 1000$'
session() { pgrep -f '^taskset -c 3-4|^sleep 1000$' | while read -r pid; do grep -l session- "/proc/$pid/cgroup" >/dev/null 2>&1 && echo "$pid"; done | tail -n 1; }
in_session() { local pid; pid=$(session) && [[ -n $pid && $(cat "/proc/$pid/comm") == sleep ]]; }
wait_for 60 in_session
pids=("$(systemctl show -P MainPID mask-service)" "$(systemctl show -P MainPID mask-taskset)" "$(session)")
masks() { for pid in "${pids[@]}"; do cpus_of "$pid"; done | tr '\n' ' '; }
assert_eq "$(masks)" "5-6 1,7 3-4 " "masks at first"
same() { [[ $(masks) == "5-6 1,7 3-4 " ]]; }

echo "── a scope comes and goes (case 49)"
as_root "$ctl" run --node 1 -- sh -c 'echo in >/tmp/in; sleep 1000' &
wait_for 120 test -e /tmp/in
assert_eq "$(masks)" "5-6 1,7 3-4 " "masks beside a scope"
echo "cpuset now: '$(cat /sys/fs/cgroup/cgroup.subtree_control)' '$(cat /sys/fs/cgroup/user.slice/cgroup.subtree_control)'"
kill "$(pgrep -f '^sh -c echo in')"
no_lease() { ! "$ctl" --json list --all | grep -Eq '"state": "(active|ending|preparing)"'; }
pkill -f '^sleep 1000$' -g "$(pgrep -f '^sh -c echo in' || echo 0)" 2>/dev/null || true
scopes() { systemctl --no-legend list-units 'numalease-*.scope' | awk '{print $1}'; }
for scope in $(scopes); do systemctl stop "$scope"; done
wait_for 30 no_lease
assert_eq "$(masks)" "5-6 1,7 3-4 " "masks after a scope"

echo "── a unit, with a thread of its own mask inside, and one without (cases 47, 49)"
cat >/run/unit-mask <<X
taskset -c 2,6 sleep 1002 &
$ctl run --node 1 -- sleep 4
sleep 1000
X
systemd-run --quiet --unit=mask-unit sh /run/unit-mask
inner() { pgrep -f '^sleep 1002$'; }
wait_for 60 inner
narrow() { [[ $(cpus_of "$(inner)") == 2 ]] || [[ $(cpus_of "$(inner)") == 2-3 ]]; }
wait_for 120 narrow
echo "inside: $(cpus_of "$(inner)")"
assert_eq "$(masks)" "5-6 1,7 3-4 " "masks beside a unit"
wait_for 60 no_lease
back() { [[ $(cpus_of "$(inner)") == 2,6 ]]; }
wait_for 20 back
assert same
assert_eq "$(cpus_of "$(systemctl show -P MainPID mask-unit)")" 0-7 "the unit's main process"
systemctl stop mask-unit

echo "── its user logs out, comes back and leases again"
members alice
for _ in 1 2; do
    as_user alice "$ctl" run -q --node 2 -- true
    assert_eq "$(masks)" "5-6 1,7 3-4 " "masks after the lease"
    systemctl stop user-1001.slice
    assert_eq "$(masks)" "5-6 1,7 3-4 " "masks after the logout"
done
members ""

echo "── the daemon is stopped and started"
systemctl restart numa-leased
wait_for 30 no_lease
systemctl stop numa-leased
assert_eq "$(masks)" "5-6 1,7 3-4 " "masks after all"
systemctl start numa-leased
systemctl stop mask-service mask-taskset
kill "${pids[2]}"
