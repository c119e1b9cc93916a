#!/bin/bash
# The package: what it installs, who may lease, an upgrade under a live lease, removal and purge.
# timeout: 900
source "$(dirname "$0")/lib.sh"

assert compgen -G "$SHARE/numa-lease_*.deb"
balancing=/proc/sys/kernel/numa_balancing
pool=/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
export DEBIAN_FRONTEND=noninteractive

echo "── installed"
assert dpkg --verify numa-lease
assert systemctl --quiet is-enabled numa-leased.service numa-leased.socket
wait_for 60 systemctl --quiet is-active numa-leased.service
assert systemctl --quiet is-active numa-leased.socket
assert_eq "$(stat -c '%a %U' /run/numa-lease/socket)" "600 root" "mode and owner of the socket"
assert getent group numa-lease
assert systemd-analyze verify --man=no numa-leased.service numa-leased.socket numa-leased-restore.service
systemd-analyze security --no-pager numa-leased.service | tail -n 1
assert systemd-analyze security --threshold=30 --no-pager numa-leased.service >/dev/null
assert systemd-analyze security --threshold=30 --no-pager numa-leased-restore.service >/dev/null
for action in acquire acquire-kernel-state shield drop-caches manage; do
    assert pkaction --action-id "org.numalease1.$action"
done
for page in man1/numa-leasectl.1 man5/numa-lease.yaml.5 man7/numa-lease-request.7 man8/numa-leased.8; do
    # The guest's dpkg may be told to leave documentation out.
    assert dpkg-query -S "/usr/share/man/$page.gz"
done
assert grep -q 'numa-balancing' <(numa-leasectl run --help)
# shellcheck disable=SC1091
(source /usr/share/bash-completion/completions/numa-leasectl && assert grep -qx -e --hugepages <(_numa_leasectl_words run) &&
    assert grep -qx run <(_numa_leasectl_words))
refute grep -q 'configuration not used' <(numa-leasectl --json status)

echo "── on the bus: activated, and refused with a way out"
assert systemctl stop numa-leased.service
assert grep -q '"mode": "daemon"' <(numa-leasectl --json status)
assert systemctl --quiet is-active numa-leased.service
rc=0
members ""
message=$(as_user alice numa-leasectl run --node 0 -- true 2>&1) || rc=$?
echo "$message"
assert_eq "$rc" 77 "exit status of a stranger"
assert grep -q 'org.numalease1.acquire.*usermod -aG numa-lease alice' <<<"$message"
assert as_user alice numa-leasectl list
members alice
assert_eq "$(as_user alice numa-leasectl run --node 1 --numa-balancing off -- cat $balancing)" 0 "balancing in a member's lease"
wait_for 10 reads $balancing 1
rc=0
message=$(as_user alice numa-leasectl run --node 0 --page-cache drop -- true 2>&1) || rc=$?
echo "$message"
assert_eq "$rc" 77 "exit status of a member who would drop caches"
assert grep -q org.numalease1.drop-caches <<<"$message"
# A system unit of a member's: nobody there to ask for a password.
assert systemd-run --quiet --wait --collect -p User=alice numa-leasectl run --node 0 --numa-balancing off -- true
# systemd has forgotten that unit by now: there is nothing to put back, and that is no failure.
no_leases() { ! numa-leasectl list | grep -Eq ' (active|ending) '; }
wait_for 10 no_leases
wait_for 10 reads $balancing 1
rc=0
systemd-run --quiet --wait --collect -p User=bob numa-leasectl run --node 0 -- true || rc=$?
assert_eq "$rc" 77 "exit status of a stranger's unit"

echo "── upgraded under live leases"
numa-leasectl run --node 1 --numa-balancing off --hugepages 2M=32M -- "${workload[@]}" &
job=$!
as_user alice numa-leasectl run --node 2 -- sleep 1000 &
wait_for 60 eval 'numa-leasectl --json list --all | grep -c "\"state\": \"active\"" | grep -qx 2'
wait_for 60 reads /proc/$job/comm python3
wait_for 60 settled "$job"
mapfile -t leases < <(numa-leasectl --json list --all | sed -n 's/^ *"id": "\(.*\)",*/\1/p' | tail -n 2)
assert_eq "${leases[0]}" "$(lease_of "$job")" "the first of two leases"
before=$(as_it_was "$job" "${leases[@]}")
moved=$(migrated)
daemon=$(systemctl show -P MainPID numa-leased)
version() { dpkg-query -W -f '${Version}' numa-lease; }
old=$(version)
assert apt-get -qq -y install "$SHARE"/next/numa-lease_*.deb
refute test "$(version)" = "$old"
refute test "$(systemctl show -P MainPID numa-leased)" = "$daemon"
assert systemctl --quiet is-active numa-leased.service
assert_eq "$(as_it_was "$job" "${leases[@]}")" "$before" "the lease after the upgrade"
echo "── a configuration in force, and a wrong one that fails to be reloaded and leaves it so"
daemon=$(systemctl show -P MainPID numa-leased)
echo 'limits: {leases: 9}' >/etc/numa-lease/numa-lease.yaml
assert systemctl reload numa-leased
wait_for 10 eval 'numa-leasectl status | grep -q "limits: from /etc/numa-lease/numa-lease.yaml"'
assert numa-leasectl policy check /etc/numa-lease/numa-lease.yaml
echo 'limits: [' >/etc/numa-lease/numa-lease.yaml
refute systemctl reload numa-leased
wait_for 10 eval 'numa-leasectl status | grep -q "numa-lease.yaml:[0-9:]*.*the former stays in force"'
assert systemctl --quiet is-active numa-leased.service
assert_eq "$(systemctl show -P MainPID numa-leased)" "$daemon" "the daemon after a failed reload"
echo "── upgraded with a broken configuration, and with the journal of the version before"
assert apt-get -qq -y --allow-downgrades install "$SHARE"/numa-lease_*.deb
assert_eq "$(version)" "$old" "version"
assert_eq "$(as_it_was "$job" "${leases[@]}")" "$before" "the lease after the second upgrade"
echo "$(($(migrated) - moved)) pages of the machine migrated during both, the workload has 16384"
assert test $(($(migrated) - moved)) -lt 2000
assert grep -q 'numa-lease.yaml:[0-9]' <(numa-leasectl status)
assert grep -q 'limits' /etc/numa-lease/numa-lease.yaml

echo "── removed: the kernel as before, the workloads go on"
assert apt-get -qq -y remove numa-lease
wait_for 10 reads $balancing 1
wait_for 10 reads $pool 0
assert kill -0 "$job"
is_wide() { [[ $(cpus_of "$job") == 0-7 ]]; }
wait_for 10 is_wide
refute systemctl --quiet is-active numa-leased.service
refute test -e /run/numa-lease/socket
assert test -e /etc/numa-lease/numa-lease.yaml
kill "$job"
pkill -u alice -x sleep
no_scopes() { [[ -z $(systemctl --no-legend list-units 'numalease-*.scope') ]]; }
wait_for 30 no_scopes

echo "── purged: nothing is left"
assert apt-get -qq -y purge numa-lease
for left in /etc/numa-lease /run/numa-lease /var/lib/numa-lease /usr/share/numa-lease /usr/libexec/numa-leased \
    /etc/systemd/system/multi-user.target.wants/numa-leased.service /var/lib/systemd/deb-systemd-helper-enabled/numa-leased.service.dsh-also \
    /etc/systemd/system/numa-leased.service; do
    refute test -e "$left" -o -L "$left"
done
refute getent group numa-lease
# But for the image's own (how its initrd was made), and below Linux 6.2 what keeps the cpuset controller in use: were that
# stopped, every thread would lose its own affinity. It is a transient unit, gone with the next boot.
assert_eq "$(find /etc /usr /var/lib/systemd /run ! -path '/etc/initramfs-tools/*' \( -name '*numa-lease*' -o -name '*numalease*' \) | grep -v 'numa-lease-keeper-' || true)" "" "files left"
assert_eq "$(systemctl --no-legend list-units --all 'numa*' | grep -v 'numa-lease-keeper-' || true)" "" "units left"
echo "── installed again, over what the first version's journal says of a daemon that died"
echo 0 >$balancing
mkdir -m 755 /run/numa-lease
python3 - <<'PYTHON'
import zlib
boot = open('/proc/sys/kernel/random/boot_id').read().strip()
line = '1 row numa_balancing prior=1 written=0'
with open('/run/numa-lease/journal', 'w') as file:
    file.write(f'numa-lease-journal 1 boot={boot}\n{zlib.crc32(line.encode()):08x} {line}\n')
PYTHON
assert apt-get -qq -y install "$SHARE"/next/numa-lease_*.deb
wait_for 60 systemctl --quiet is-active numa-leased.service
wait_for 10 reads $balancing 1
