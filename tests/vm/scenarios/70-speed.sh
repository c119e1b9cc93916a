#!/bin/bash
# What a lease costs beside its peers, in one run: `systemd-run --scope` and `numactl`. Figures, no verdict on them: the
# machine is emulated, so only the ratios say anything.
# set: full
# timeout: 1200
source "$(dirname "$0")/lib.sh"

cat >/run/speed.py <<'EOF'
import glob, os, re, signal, subprocess, sys, time

CTL = sys.argv[1]
BALANCING = "/proc/sys/kernel/numa_balancing"
RUN = [CTL, "run", "--quiet", "--node", "1"]
ROUNDS, LEASES = 15, 200


def median(figures):  # the minimal Python of the guest has no module for it
    return sorted(figures)[len(figures) // 2]


def text(path):
    with open(path) as file:
        return file.read().strip()


def until(what, seconds, condition):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.001)


def timed(command):
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return 1000 * (time.monotonic() - start)


def scope_of(pid):
    return "/sys/fs/cgroup" + text(f"/proc/{pid}/cgroup").split("::")[1]


def gone(command, marker, restored):
    """Milliseconds from SIGKILL of the last process to its scope removed and `restored()`."""
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until("the command runs", 60, lambda: text(f"/proc/{job.pid}/comm") == "sleep" and marker in scope_of(job.pid))
    scope = scope_of(job.pid)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    start = time.monotonic()
    until(f"{scope} is gone", 30, lambda: not os.path.exists(scope) and restored())
    return 1000 * (time.monotonic() - start)


def show(what, figures, peer=None):
    middle = median(figures)
    ratio = f"  x{middle / peer:.2f}" if peer else ""
    print(f"{what:44} median {middle:7.1f} ms, p95 {sorted(figures)[int(0.95 * len(figures))]:7.1f}{ratio}")
    return middle


keeper = subprocess.Popen([CTL, "run", "--quiet", "--share", "--node", "0", "--", "sleep", "1000"])
until("the first lease", 60, lambda: text(f"/proc/{keeper.pid}/comm") == "sleep")

figures = {"numactl": [], "systemd-run": [], "lease": [], "balancing": []}
for _ in range(ROUNDS):  # in turns, so that a slow moment of the machine meets all of them
    figures["numactl"].append(timed(["numactl", "-N", "1", "-m", "1", "true"]))
    figures["systemd-run"].append(timed(["systemd-run", "--quiet", "--scope", "-p", "AllowedCPUs=2-3", "-p",
                                         "AllowedMemoryNodes=1", "true"]))
    figures["lease"].append(timed(RUN + ["--", "true"]))
    figures["balancing"].append(timed(RUN + ["--numa-balancing", "off", "--", "true"]))
numactl = show("numactl -N 1 -m 1 true", figures["numactl"])
peer = show("systemd-run --scope -p AllowedCPUs= true", figures["systemd-run"])
show("numa-leasectl run --node 1 -- true", figures["lease"], peer)
show("the same, balancing off", figures["balancing"], peer)
print(f"{'':44} beside numactl x{median(figures['lease']) / numactl:.1f}")

ends = {"systemd-run": [], "lease": []}
before = text(BALANCING)
for _ in range(ROUNDS):
    ends["systemd-run"].append(gone(["systemd-run", "--quiet", "--scope", "-p", "AllowedCPUs=2-3", "sleep", "1000"],
                                    "/run-", lambda: True))
    ends["lease"].append(gone(RUN + ["--numa-balancing", "off", "--", "sleep", "1000"], "/numalease-",
                              lambda: text(BALANCING) == before))
peer = show("last process dead to scope gone: systemd-run", ends["systemd-run"])
show("the same for a lease, and balancing back", ends["lease"], peer)

start = time.monotonic()
jobs = [subprocess.Popen([CTL, "run", "--quiet", "--share", "--node", "1", "--", "sleep", "1000"])
        for _ in range(LEASES)]
for job in jobs:
    until("200 leases", 600, lambda: job.poll() is None and text(f"/proc/{job.pid}/comm") == "sleep")
granted = time.monotonic() - start
for job in jobs:
    if "/numalease-c" not in scope_of(job.pid) or text(f"/proc/{job.pid}/cgroup") == text(f"/proc/{jobs[0].pid}/cgroup") and job is not jobs[0]:
        sys.exit("a command is not in a scope of its own")
start = time.monotonic()
for job in jobs:
    job.kill()
for job in jobs:
    job.wait()
left = lambda: [scope for scope in glob.glob("/sys/fs/cgroup/user.slice/user-0.slice/numalease-*") if scope != scope_of(keeper.pid)]
until("the scopes are gone", 120, lambda: not left())
print(f"{LEASES} leases at once: all granted in {granted:.1f} s ({1000 * granted / LEASES:.0f} ms each), "
      f"all gone in {time.monotonic() - start:.1f} s")
daemon = next(pid for pid in os.listdir("/proc") if pid.isdigit() and text(f"/proc/{pid}/comm") == "numa-leased")
print("the daemon: " + re.search(r"VmRSS:\s*(.*)", text(f"/proc/{daemon}/status"))[1] + " resident")
keeper.kill()
keeper.wait()
EOF

as_root python3 /run/speed.py "$ctl"
assert_eq "$(cat /proc/sys/kernel/numa_balancing)" 1 "balancing afterwards"
