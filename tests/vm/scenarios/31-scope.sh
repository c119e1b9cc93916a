#!/bin/bash
# A lease from a login session: a scope inside the user's slice, with the user's limits, entered later by exec.
# timeout: 600
source "$(dirname "$0")/lib.sh"

slice=/sys/fs/cgroup/user.slice/user-0.slice

echo "── the scope, and what bound the user still does"
as_root true
systemctl set-property --runtime user-0.slice TasksMax=200 MemoryMax=1G
# shellcheck disable=SC2016
as_root "$ctl" run --node 2 --memory 100M -- sh -c 'cut -d: -f3 /proc/self/cgroup; ulimit -l; sleep 1000' >/tmp/scope &
has_two_lines() { [[ $(wc -l </tmp/scope) == 2 ]]; }
wait_for 120 has_two_lines
cat /tmp/scope
scope=/sys/fs/cgroup$(head -n 1 /tmp/scope)
unit=${scope##*/}
lease=${unit#numalease-} lease=${lease%.scope}
assert_eq "${scope%/*}" $slice "where the scope is"
assert_eq "$(cat "$scope/cpuset.cpus.effective" "$scope/cpuset.mems.effective" | tr '\n' ' ')" "4-5 2 " "in force"
assert test "$(sed -n 2p /tmp/scope)" -ge 102400 # KiB that may be locked
assert_eq "$(cat $slice/pids.max)" 200 "the user's tasks"
assert_eq "$(cat $slice/memory.max)" $((1 << 30)) "the user's memory"
echo "MemoryMax of the scope: $(systemctl show -P MemoryMax "$unit"), in force $(cat "$scope/memory.max")"
assert test "$(cat "$scope/memory.max")" -le $(((100 << 20) * 9 / 8 + (256 << 20)))

echo "── no ancestor is narrowed (case 51)"
for above in "$slice" "${slice%/*}"; do
    assert_eq "$(cat "$above/cpuset.cpus" "$above/cpuset.mems" | tr -d '\n')" "" "cpuset of $above"
    assert_eq "$(cat "$above/cpuset.cpus.effective" "$above/cpuset.mems.effective" | tr '\n' ' ')" "0-7 0-3 " "in force in $above"
done

echo "── exec enters it, from another session"
# shellcheck disable=SC2016
got=$(as_root "$ctl" exec "$lease" -- sh -c 'cut -d: -f3 /proc/self/cgroup; sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/self/status')
assert_eq "$(tr '\n' ' ' <<<"$got")" "${scope#/sys/fs/cgroup} 4-5 " "the process that entered"

echo "── daemon-reload changes nothing"
facts() { cat "$scope"/{cpuset.cpus.effective,cpuset.mems.effective,memory.max,cgroup.procs}; }
before=$(facts)
systemctl daemon-reload
assert_eq "$(facts)" "$before" "the scope after a reload"

echo "── a lease that cannot be leaves its caller where it was"
scopes() { systemctl --no-legend list-units 'numalease-*.scope' | sort; }
before=$(scopes)
assert_rc 75 as_root "$ctl" run --no-wait --node 2 -- true
assert_eq "$(scopes)" "$before" "the scopes after a refusal"

echo "── its end"
# shellcheck disable=SC2046
kill $(cat "$scope/cgroup.procs")
wait_for 30 test ! -e "$scope"
gone() { [[ -z $(systemctl --no-legend list-units 'numalease-*.scope') ]]; }
wait_for 30 gone
rm -r /run/systemd/system.control/user-0.slice.d
systemctl daemon-reload
logged_out() { ! systemctl --quiet is-active user-0.slice; }
wait_for 60 logged_out
