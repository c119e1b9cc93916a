#!/bin/bash
# The main job without any set-up: root runs a command in a lease, with no daemon installed, and the machine comes back.
# timeout: 400
source "$(dirname "$0")/lib.sh"

# Where the package is installed, as if it were not.
units=(numa-leased.socket numa-leased.service)
if systemctl cat "${units[@]}" >/dev/null 2>&1; then
    systemctl --quiet --runtime --now mask "${units[@]}"
    trap 'systemctl --quiet --runtime unmask "${units[@]}"; systemctl start "${units[@]}"' EXIT
fi

ctl=$SHARE/bin/numa-leasectl
balancing=/proc/sys/kernel/numa_balancing
pool=/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
me=$(cgroup_of $$)

# shellcheck disable=SC2016 # for the shell in the lease
inside='echo "$NUMA_LEASE_CPUS $NUMA_LEASE_NODES $NUMA_LEASE_THREADS"
    sed -n "s/^Cpus_allowed_list:[[:space:]]*//p; s/^Mems_allowed_list:[[:space:]]*//p" /proc/self/status
    cat /proc/sys/kernel/numa_balancing /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
    cut -d: -f3 /proc/self/cgroup'

echo "── from a system service: it stays in its unit"
got=$("$ctl" run --node 1 --numa-balancing off --hugepages 2M=32M -- sh -c "$inside")
echo "$got"
assert_eq "$(head -n 4 <<<"$got" | tr '\n' ' ')" "2-3 1 2 2-3 1 0 " "the lease seen from inside"
assert_eq "$(sed -n 5,6p <<<"$got" | tr '\n' ' ')" "16 ${me#/sys/fs/cgroup} " "pages, and the caller's own cgroup"
wait_for 5 reads $balancing 1
wait_for 5 reads $pool 0
wait_for 5 has_cpus $$ 0-7
refute ls /run/systemd/system.control/*.service.d

echo "── exit status, and SIGKILL of the command"
assert_rc 37 "$ctl" run --node 1 -- sh -c 'exit 37'
# shellcheck disable=SC2016
assert_rc 137 "$ctl" run --node 1 --numa-balancing off -- sh -c 'kill -9 $$'
wait_for 5 reads $balancing 1
wait_for 5 has_cpus $$ 0-7

echo "── SIGKILL of the daemon: systemd starts it again, and the live lease is kept"
"$ctl" run --node 1 --numa-balancing off -- sleep 1000 &
job=$!
wait_for 60 reads /proc/$job/comm sleep
assert_eq "$(cat $balancing)" 0 "balancing in the lease"
daemon=$(main_pid numa-leased-on-demand)
assert systemctl kill --signal=KILL numa-leased-on-demand.service
wait_for 60 new_daemon "$daemon" numa-leased-on-demand # before a client could start one
assert grep -q '"state": "active"' <(wait_for 60 "$ctl" --json list --all)
assert_eq "$(cat $balancing)" 0 "balancing under the live lease"
kill -9 $job
wait_for 10 reads $balancing 1
wait_for 5 has_cpus $$ 0-7

refute test -e /run/numa-lease/log # systemd's daemon logs to the journal; none was started beside it

echo "── from a login session: a scope inside the user's own slice"
if session=$(as_root "$ctl" run --node 2 --mempolicy bind -- sh -c "$inside"); then
    echo "$session"
    assert_eq "$(head -n 3 <<<"$session" | tr '\n' ' ')" "4-5 2 2 4-5 2 " "the lease seen from inside"
    assert grep -Eq '^/user.slice/user-0.slice/numalease-c[0-9]+\.scope$' <<<"$session"
else
    fail "root's session: exit status $?"
fi
rc=0
message=$(as_user alice "$ctl" run --node 0 -- true 2>&1) || rc=$?
echo "$message"
assert_eq $rc 69 "a user without a daemon"

echo "── nothing is left"
wait_for 20 test ! -e /run/numa-lease/socket
refute systemctl --quiet is-active numa-leased-on-demand.service
assert_eq "$(systemctl --no-legend list-units 'numalease-*' | wc -l)" 0 "units left"
