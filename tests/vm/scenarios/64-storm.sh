#!/bin/bash
# Fifty times, at a random instant and under load, SIGKILL of the daemon, the client, the workload, or all three; in a
# session, in a unit, and behind a shield. At the end the machine is as it was.
# set: full
# timeout: 2400
source "$(dirname "$0")/lib.sh"

rounds=50 seed=$(($(date +%s) % 32768))
RANDOM=$seed
echo "seed $seed"
wait_for 60 no_leases
before=$(mktemp)
snapshot >"$before"
for _ in 1 2; do
    nice sh -c 'while :; do :; done' &
done

# shellcheck disable=SC2046 # words are wanted; there may be none, or one that has just ended
kill_all() { kill -9 $(pgrep "$@") 2>/dev/null || true; }
kill_daemon() { systemctl kill --kill-whom=main --signal=KILL numa-leased 2>/dev/null || true; }

# As after the last lease, and nobody is on his way to one.
is_quiet() {
    ! kill -0 $job 2>/dev/null && ! pgrep -x numa-leasectl >/dev/null && no_leases && reads /proc/sys/kernel/numa_balancing 1 && [[ $(pool 2) == 0 && $(pool 3) == 0 ]]
}

# Or over already: a lease may be refused at once.
under_way() { pgrep -x numa-leasectl >/dev/null || pgrep -fx 'sleep 3000' >/dev/null || ! kill -0 $job 2>/dev/null; }

hits=''
for ((round = 1; round <= rounds; round++)); do
    places=(session unit shield)
    place=${places[RANDOM % 3]} shield=()
    [[ $place != shield ]] || shield=(--shield)
    lease=("$ctl" run -q --node $((round % 2 + 2)) "${shield[@]}" --numa-balancing off --hugepages 2M=16M --no-wait -- sleep 3000)
    if [[ $place == unit ]]; then
        systemd-run --quiet --collect --unit="storm-$round" "${lease[@]}" 2>/dev/null &
    else
        as_root "${lease[@]}" >/dev/null 2>&1 &
    fi
    job=$!
    # Mostly from when it is under way: to log in takes longest by far.
    ((RANDOM % 5 == 0)) || wait_for 120 under_way
    pause=$((RANDOM % 2500))
    sleep "$((pause / 1000)).$(printf %03d $((pause % 1000)))"
    running=''
    ! pgrep -x numa-leasectl >/dev/null || running+=client
    ! pgrep -fx 'sleep 3000' >/dev/null || running+=workload
    case $((RANDOM % 4)) in
    0) whom=daemon && kill_daemon ;;
    1) whom=client && kill_all -x numa-leasectl ;;
    2) whom=workload && kill_all -fx 'sleep 3000' ;;
    3) whom=all && kill_all -x numa-leasectl && kill_all -fx 'sleep 3000' && kill_daemon ;;
    esac
    hits+="$whom@$place/${running:-nobody} "
    # Whoever is left may only now become the workload.
    deadline=$((SECONDS + 180)) # PID 1 may stall on a cpuset for a minute where the host is busy, seen with 6.1
    until is_quiet; do
        kill_all -fx 'sleep 3000'
        ((SECONDS < deadline)) || {
            "$ctl" list
            "$ctl" knobs
            journalctl -qt numa-leased -n 30 --no-pager
            fail "round $round, $whom ($place) after $pause ms: not as before within 180 s"
        }
        sleep 0.1
    done
    systemctl reset-failed numa-leased 2>/dev/null || true # its limit of starts is for real troubles
done
tr ' ' '\n' <<<"$hits" | sort | uniq -c
# Where the emulator is so slow, or so fast, that all kills land before or after the same step, nothing was shown.
for kind in client workload; do
    (($(tr ' ' '\n' <<<"$hits" | grep -c "/.*$kind") >= 5)) || fail "fewer than five kills met a $kind"
done
wait_for 30 is_quiet
assert_as_before "$before"
