#!/bin/bash
# The worked examples: systemd loads each without a word, and each runs, with stand-ins for engines and containers.
# timeout: 900
# set: full
source "$(dirname "$0")/lib.sh"

examples=/usr/share/numa-lease/examples
units=/etc/systemd/system

# An engine that only lives, and shows what it was given.
cat >/usr/local/bin/llama-server <<'X'
#!/bin/sh
exec sleep 1000
X
cp /usr/local/bin/llama-server /usr/local/bin/llama-swap
cp /usr/local/bin/llama-server /usr/local/bin/ollama
# `docker run`: as dockerd and runc would, the container is a scope below --cgroup-parent.
cat >/usr/bin/docker <<'X'
#!/bin/sh
[ "$1" = run ] || exit 0
for word; do case $word in --cgroup-parent=*) parent=${word#*=} ;; esac; done
exec systemd-run --quiet --scope --collect --unit=docker-stand-in.scope --slice="$parent" sleep 1000
X
# `podman run --cgroups=split`: the container stays below the unit.
cat >/usr/bin/podman <<'X'
#!/bin/sh
exec sleep 1000
X
chmod +x /usr/local/bin/{llama-server,llama-swap,ollama} /usr/bin/{docker,podman}

mkdir -p /etc/numa-lease/leases $units/ollama.service.d
cp $examples/leases/llama.yaml /etc/numa-lease/leases/
cp $examples/*.service $units/
cp $examples/ollama.service.d/lease.conf $units/ollama.service.d/
printf '%s\n' '[Service]' 'ExecStart=/usr/local/bin/ollama serve' >$units/ollama.service
printf '%s\n' '[Service]' 'ExecStart=/bin/sleep infinity' >$units/docker.service
# What Podman's generator makes of a Quadlet, as far as leases are concerned.
{
    sed '/^\[Container\]/,/^\[Service\]/{/^\[Service\]/!d}' $examples/llama.container
    printf '%s\n' '[Service]' "$(grep ^EnvironmentFile= $examples/llama.container)" \
        'ExecStart=/usr/bin/podman run --cgroups=split --rm image'
} >$units/llama.service
systemctl daemon-reload

echo "── each is loaded"
for unit in $units/{llama-server,llama-server-run,llama-swap,llama-docker,llama,ollama}.service \
    "$(systemctl show -P FragmentPath numa-lease@llama.service)"; do
    message=$(systemd-analyze verify --man=no "$unit" 2>&1) || fail "$unit: $message"
    name=${unit##*/}
    assert_eq "$(grep -E "${name%.service}|numa-?lease" <<<"$message" || true)" "" "what systemd says of $unit"
done
assert grep -qw numa-lease@llama.service <<<"$(systemctl show -P Requires numalease-llama.slice)"
assert grep -qw numa-lease@llama.service <<<"$(systemctl show -P BindsTo ollama.service)"

is_sleep() { [[ $(cat "/proc/$(main_pid "$1")/comm" 2>/dev/null) == sleep ]]; }

echo "── each runs in the lease"
for unit in llama-server llama-swap ollama llama; do
    assert systemctl start "$unit.service"
    wait_for 30 is_sleep "$unit"
    pid=$(main_pid "$unit")
    assert grep -q "numalease-llama.slice/$unit.service" "/proc/$pid/cgroup"
    [[ $(cpus_of "$pid") != 0-7 && $(mems_of "$pid") == ? ]] || fail "$unit: CPUs $(cpus_of "$pid")"
    assert grep -qz ^LLAMA_ARG_THREADS=2 "/proc/$pid/environ"
    echo "$unit: CPUs $(cpus_of "$pid"), node $(mems_of "$pid")"
    systemctl stop "$unit.service"
done

assert systemctl start llama-docker.service
wait_for 60 systemctl --quiet is-active docker-stand-in.scope
pid=$(head -n 1 /sys/fs/cgroup/numalease.slice/numalease-llama.slice/docker-stand-in.scope/cgroup.procs)
[[ $(cpus_of "$pid") != 0-7 ]] || fail "the container: CPUs $(cpus_of "$pid")"
systemctl stop llama-docker.service docker-stand-in.scope || true
wait_for 30 numa-leasectl release llama
wait_for 60 no_leases

assert systemctl start llama-server-run.service
wait_for 30 is_sleep llama-server-run
pid=$(main_pid llama-server-run)
assert grep -q /system.slice/llama-server-run.service "/proc/$pid/cgroup"
[[ $(cpus_of "$pid") != 0-7 ]] || fail "llama-server-run: CPUs $(cpus_of "$pid")"
systemctl stop llama-server-run.service
wait_for 60 no_leases
