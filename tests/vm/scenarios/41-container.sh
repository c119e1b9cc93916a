#!/bin/bash
# A container as runc starts it: a scope in numalease-NAME.slice, which fetches the lease (CASES 56). `systemd-run
# --scope` makes the same call, waits for the same job, and only then becomes the command.
# set: full
# timeout: 900
source "$(dirname "$0")/lib.sh"

balancing=/proc/sys/kernel/numa_balancing
mkdir -p /etc/numa-lease/leases
printf '%s\n' 'node: 3' 'numa-balancing: off' 'grace: 60s' >/etc/numa-lease/leases/box.yaml
printf '%s\n' 'node: 3' >/etc/numa-lease/leases/late.yaml
printf '%s\n' 'node: 17' >/etc/numa-lease/leases/never.yaml

# container NAME SLICE: runs until killed; what it saw first is in /run/NAME.
container() {
    # shellcheck disable=SC2016
    exec systemd-run --quiet --scope --unit "docker-$1.scope" --slice "$2" -p Delegate=yes --collect \
        sh -c 'sed -n "s/^\(Cpus\|Mems\)_allowed_list:[[:space:]]*//p" /proc/self/status >/run/$0.new
            mv /run/$0.new /run/$0; exec sleep 1000' "$1"
}
is_gone() { [[ $(systemctl show -P ActiveState "$1") == inactive ]]; }

rm -f /run/one /run/two
echo "── confined before its first instruction"
container one numalease-box.slice &
one=$!
wait_for 60 test -s /run/one
assert_eq "$(tr '\n' ' ' </run/one)" "6-7 3 " "what it saw first"
assert_eq "$(cat $balancing)" 0 "balancing"
granted=$(lease_line box)

echo "── not started where the lease is refused, at once or after 20 s"
for name in never late; do
    SECONDS=0
    (container "$name" "numalease-$name.slice") && fail "$name was started"
    echo "FIGURE $name refused after $SECONDS s (runc waits 30)"
    ((SECONDS < 30)) || fail "runc would have given up"
    refute test -e "/run/$name"
    [[ $name != late ]] || ((SECONDS >= 15)) || fail "late did not wait"
done
assert grep -q "node 17: not on this machine" <(journalctl --no-pager -o cat -u numa-lease@never.service)
assert_eq "$(lease_line box)" "$granted" "the other lease"

echo "── a restart within the grace keeps its lease"
kill $one
wait_for 30 is_parked box
wait_for 30 is_gone numalease-box.slice
container two numalease-box.slice &
two=$!
wait_for 60 test -s /run/two
assert_eq "$(tr '\n' ' ' </run/two)" "6-7 3 " "what it saw first"
assert_eq "$(lease_line box)" "$granted" "its lease"

echo "── its end gives the machine back"
kill $two
wait_for 30 is_parked box
SECONDS=0
wait_for 90 reads $balancing 1
echo "FIGURE restored ${SECONDS} s after it was parked, of a grace of 60"
((SECONDS >= 50)) || fail "the grace was cut short"
wait_for 60 no_leases
refute ls -d /run/systemd/system.control/numalease-*
refute test -e /sys/fs/cgroup/numalease.slice/numalease-box.slice

echo "── a container's client under the launcher is refused with the lines to use (case 56)"
message=$(numa-leasectl run -- docker run image 2>&1) && fail "docker run was started"
assert grep -q -- "--cgroup-parent=numalease-NAME.slice" <<<"$message"
