#!/bin/bash
# The machine is rebooted under live leases: everything is put back on the way down, and the next boot starts clean. The
# runner comes here twice.
# set: full
# variant: reboot
source "$(dirname "$0")/lib.sh"

balancing=/proc/sys/kernel/numa_balancing
kept=/var/lib/before-reboot
pools() { echo "$(pool 2) $(pool 3)"; }

if [[ ! -e $kept ]]; then
    mkdir $kept
    numa-leasectl run --node 1 --numa-balancing off -- sleep 1000 &
    as_root numa-leasectl run --node 2 --hugepages 2M=16M -- sleep 1000 >/dev/null &
    mkdir -p /etc/numa-lease/leases
    echo 'node: 3' >/etc/numa-lease/leases/box.yaml
    systemd-run --quiet --unit=joined -p Slice=numalease-box.slice -p Requires=numa-lease@box.service \
        -p After=numa-lease@box.service sleep 1000
    held() { [[ $("$ctl" list | grep -c ' active') == 3 ]]; }
    wait_for 60 held
    assert reads $balancing 0
    wait_for 20 test "$(pools)" = "8 0"
    cat /proc/sys/kernel/random/boot_id >$kept/boot
    # Stopped after the daemon: it sees what that has left.
    cat >/run/systemd/system/last-look.service <<EOF
[Unit]
Before=numa-leased.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=true
ExecStop=/bin/sh -c 'cat $balancing >$kept/balancing; cat /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages >$kept/pools; journalctl --boot -o cat -u numa-leased -n 40 >$kept/journal; sync'
EOF
    # The runner's end is not to power the machine off this time.
    mkdir /run/systemd/system/vm-scenarios.service.d
    printf '[Service]\nExecStopPost=\n' >/run/systemd/system/vm-scenarios.service.d/reboot.conf
    systemctl daemon-reload
    systemctl start last-look.service
    systemctl reboot
    sleep 250
    fail "the machine did not go down"
fi

echo "── on the way down"
cat $kept/journal
refute reads $kept/boot "$(cat /proc/sys/kernel/random/boot_id)"
assert reads $kept/balancing 1
assert_eq "$(tr '\n' ' ' <$kept/pools)" "0 0 0 0 "

echo "── a clean start"
wait_for 60 systemctl --quiet is-active numa-leased.service
assert no_leases
assert reads $balancing 1
assert_eq "$(pools)" "0 0"
refute journalctl --boot --quiet -u numa-leased --grep 'put back|recovered|taken over'
assert_eq "$(find /etc/systemd/system.control /run/systemd/system.control -name '*.conf' 2>/dev/null | wc -l)" 0 "drop-ins"
assert_eq "$("$ctl" run --node 1 --numa-balancing off -- cat $balancing)" 0
wait_for 10 reads $balancing 1
# Everybody's ids go on from the beginning: nothing of the last boot counts.
assert grep -q '^c' <<<"$("$ctl" run --node 1 -- printenv NUMA_LEASE_ID)"
