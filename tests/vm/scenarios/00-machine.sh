#!/bin/bash
# The machine is the one that the other scenarios expect.
# timeout: 200
# variant: default memonly offline
source "$(dirname "$0")/lib.sh"

sys=/sys/devices/system

case $VARIANT in
default)
    assert_eq "$(cat $sys/node/online)" 0-3 "nodes"
    assert_eq "$(cat $sys/cpu/online)" 0-7 "processors"
    ;;
memonly)
    assert_eq "$(cat $sys/node/online)" 0-4 "nodes"
    assert_eq "$(cat $sys/node/has_cpu)" 0-3 "nodes with processors"
    assert_eq "$(cat $sys/node/has_memory)" 0-4 "nodes with memory"
    assert_eq "$(cat $sys/node/node4/cpulist)" "" "processors of node 4"
    ;;
offline)
    assert_eq "$(cat $sys/node/online)" 0-3 "nodes"
    assert_eq "$(cat $sys/cpu/present)" 0-7 "processors present"
    assert_eq "$(cat $sys/cpu/online)" 0-2,4-5 "processors online"
    assert_eq "$(cat $sys/node/node3/cpulist)" "" "processors of node 3"
    ;;
esac
for node in 0 1 2 3; do
    [[ $VARIANT == offline ]] || assert_eq "$(cat $sys/node/node$node/cpulist)" "$((2 * node))-$((2 * node + 1))" "processors of node $node"
done
distances=$(cat $sys/node/node0/distance)
[[ $VARIANT == memonly ]] && distances=${distances% *}
assert_eq "$distances" "10 12 21 21" "distances of node 0"
assert_eq "$(cut -d' ' -f1-4 $sys/node/node3/distance)" "21 21 12 10" "distances of node 3"
assert_eq "$(cat $sys/cpu/cpu0/topology/physical_package_id) $(cat $sys/cpu/cpu5/topology/physical_package_id)" "0 1" "sockets"

displays=''
for device in /sys/bus/pci/devices/*; do
    [[ $(cat "$device/class") != 0x03* ]] || displays+="$(cat "$device/numa_node") "
done
assert_eq "$displays" "2 1 3 " "nodes of the display devices"

assert_eq "$(stat -f -c %T /sys/fs/cgroup)" cgroup2fs "cgroup"
assert grep -qw cpuset /sys/fs/cgroup/cgroup.controllers
for node in 0 3; do
    pool=$sys/node/node$node/hugepages/hugepages-2048kB/nr_hugepages
    assert_eq "$(cat $pool)" 0 "huge pages of node $node"
    echo 4 >$pool
    assert reads $pool 4
    echo 0 >$pool
    assert reads $pool 0
done
assert_eq "$(cat /proc/sys/kernel/numa_balancing)" 1 "kernel.numa_balancing"

wait_for 60 systemctl --quiet is-active multi-user.target
assert busctl --quiet call org.freedesktop.DBus /org/freedesktop/DBus org.freedesktop.DBus GetId
assert busctl --quiet call org.freedesktop.PolicyKit1 /org/freedesktop/PolicyKit1/Authority \
    org.freedesktop.DBus.Peer Ping
# shellcheck disable=SC2016 # for the shell there
session=$(as_user alice sh -c 'echo $XDG_SESSION_ID; loginctl --no-legend')
echo "$session"
assert grep -Eq "^ *$(head -n1 <<<"$session") +1001 +alice " <<<"$session"
assert_eq "$(as_user bob sh -c 'cut -d: -f3 /proc/self/cgroup | cut -d/ -f1-3')" /user.slice/user-1002.slice "bob's slice"
# shellcheck disable=SC2016
assert_eq "$(as_user alice printf '%s|' 'two words' '$x')" 'two words|$x|' "words over SSH"

refute systemctl --quiet is-failed '*'
numactl --hardware
lstopo-no-graphics --no-io --no-caches --of console
