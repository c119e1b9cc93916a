#!/bin/bash
# Pages of 1 GiB, on nodes that have room for some.
# set: full
# node-memory: 4608
source "$(dirname "$0")/lib.sh"

gigantic() { cat "/sys/devices/system/node/node$1/hugepages/hugepages-1048576kB/nr_hugepages"; }
gigantic_is() { [[ $(gigantic "$1") == "$2" ]]; }
before=$(mktemp)
snapshot >"$before"

start=$SECONDS
got=$("$ctl" run --node 1 --hugepages 1G=2G -- cat /sys/devices/system/node/node{0,1,2,3}/hugepages/hugepages-1048576kB/nr_hugepages)
assert_eq "$(tr '\n' ' ' <<<"$got")" "0 2 0 0 " "pages by node"
wait_for 20 gigantic_is 1 0
echo "two pages of 1 GiB lent and given back in $((SECONDS - start)) s"

rc=0
message=$("$ctl" run --node 1 --hugepages 1G=9G --no-wait -- true 2>&1) || rc=$?
echo "$message"
assert test $rc = 75 -o $rc = 78
assert grep -Eq 'node 1' <<<"$message"
wait_for 20 gigantic_is 1 0
assert_as_before "$before"
