#!/bin/bash
# Clients that vanish, forge a PID, or whose PID another process takes: no lease is left, nobody else's is touched.
# set: full
# timeout: 300
source "$(dirname "$0")/lib.sh"

wait_for 60 no_leases
before=$(mktemp)
snapshot >"$before"
balancing=/proc/sys/kernel/numa_balancing

as_root "$ctl" run --node 0 -- sleep 4000 & # keeps the daemon, and is somebody else's
wait_for 60 pgrep -fx 'sleep 4000'
other=$(pgrep -fx 'sleep 4000')
leases_but_one() { [[ $("$ctl" list | grep -cE '^c[0-9]+ +(queued|preparing|active|ending) ') == 1 ]]; }

echo "── gone between the call and the answer, twenty times at other instants"
for ((i = 0; i < 20; i++)); do
    "$ctl" run -q --node 1 --numa-balancing off --hugepages 2M=32M -- sleep 4001 &
    job=$!
    sleep "0.$((i / 4))$((i * 25 % 100))"
    kill -9 $job
    wait $job 2>/dev/null || true
done
"$ctl" list
wait_for 30 leases_but_one
wait_for 10 reads $balancing 1
wait_for 10 reads /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages 0

echo "── gone without reading the answer, and PIDs in a message"
python3 - "$SHARE" "$other" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
from wire import BusError, Variant, Wire
path, victim = "/run/numa-lease/socket", int(sys.argv[2])
for _ in range(10):
    wire = Wire(path)
    wire.send("Acquire", "a{sv}", {"node": "2", "numa-balancing": "off"})
    wire.close()
for name in "pid", "process", "uid", "caller", "holders", "cgroup":
    for value in str(victim), Variant("u", victim):
        try:
            with Wire(path) as wire: wire.call("Acquire", "a{sv}", {"node": "2", name: value})
            sys.exit(f"{name} was taken")
        except BusError as error:
            assert error.name == "InvalidRequest" and name in error.text, error
print("six names of somebody else refused")
PYTHON
wait_for 30 leases_but_one
assert reads $balancing 1
assert_eq "$(cpus_of "$other")" 0-1 "CPUs of somebody else"

echo "── a PID that another process has by now"
# In a cgroup that is not systemd's, so that the PID is all there is to go by.
make_box
systemd-run --quiet --collect --unit=box -p Delegate=yes bash /run/in-a-box "$ctl" run --node 3 --numa-balancing off -- sleep 4002
wait_for 60 pgrep -fx 'sleep 4002'
old=$(pgrep -fx 'sleep 4002')
assert reads $balancing 0
# The daemon looks away while it happens, and then starts anew.
systemctl kill --kill-whom=main --signal=STOP numa-leased
kill -9 "$old"
wait_for 10 test ! -e "/proc/$old"
until [[ ${new:-} == "$old" ]]; do
    [[ -z ${new:-} ]] || kill "$new"
    echo $((old - 1)) >/proc/sys/kernel/ns_last_pid
    setsid sleep 4003 &
    new=$!
done
systemctl kill --kill-whom=main --signal=KILL numa-leased
wait_for 30 leases_but_one
wait_for 10 reads $balancing 1
assert_eq "$(cat "/proc/$new/comm") $(cpus_of "$new")" "sleep 0-7" "the new process with the old PID $old"
kill "$new"
assert_eq "$(cpus_of "$other")" 0-1 "CPUs of somebody else"

kill "$other"
wait_for 30 no_leases
assert_as_before "$before"
