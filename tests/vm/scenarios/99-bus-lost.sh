#!/bin/bash
# The message bus dies: the daemon comes back on the new one, and its leases stay. Last, since sessions may suffer from it.
# timeout: 300
# set: full
source "$(dirname "$0")/lib.sh"

balancing=/proc/sys/kernel/numa_balancing
wait_for 60 systemctl --quiet is-active numa-leased.service
numa-leasectl run --node 1 --numa-balancing off -- "${workload[@]}" &
job=$!
wait_for 60 reads "/proc/$job/comm" python3
wait_for 60 settled "$job"
id=$(lease_of "$job")
before=$(as_it_was "$job" "$id")
daemon=$(main_pid)

assert systemctl kill --signal=KILL dbus.service
wait_for 60 new_daemon "$daemon"
wait_for 60 busctl --quiet call org.numalease1 /org/numalease1 org.freedesktop.DBus.Peer Ping
assert_eq "$(as_it_was "$job" "$id")" "$before" "the lease on the new bus"
assert_eq "$(cat $balancing)" 0 "balancing"
kill "$job"
wait_for 10 reads $balancing 1
