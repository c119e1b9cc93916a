#!/usr/bin/env python3
"""Figures that span processes, each beside a peer in the same run. Prints; asserts nothing: machines are noisy.

bench.py --bin build/release/bin [--engine DIR] [start] [restore] [daemon] [inference] [queue] [where]
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

KNOB = pathlib.Path("/proc/sys/kernel/numa_balancing")


class Daemon:
    """A numa-leased of our own in a temporary runtime directory."""

    def __init__(self, folder):
        # /run is a tmpfs on every systemd machine, and the journal is synced: a disk would be measured instead.
        self.dir = tempfile.mkdtemp(prefix="numalease-bench-", dir="/dev/shm")
        self.folder = folder
        ready, write = os.pipe()
        self.process = subprocess.Popen([folder / "numa-leased", "--bus", "none", "--runtime-dir", self.dir, "--ready-fd", str(write)],
                                        pass_fds=[write], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(write)
        os.read(ready, 1)
        os.close(ready)

    def ctl(self, *words):
        return [str(self.folder / "numa-leasectl"), "--daemon-socket", self.dir + "/socket", *words]

    def run(self, *words):
        return self.ctl("run", "--quiet", *words)

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        shutil.rmtree(self.dir)


def timed(words):
    begin = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
    return (time.perf_counter() - begin) * 1000


def show(title, rows):
    """rows: name → list of milliseconds; the first is the yardstick."""
    print(title)
    yardstick = statistics.median(next(iter(rows.values())))
    for name, times in rows.items():
        median = statistics.median(times)
        print(f"  {name:<34} median {median:8.2f} ms   p95 {sorted(times)[int(len(times) * 0.95)]:8.2f} ms"
              f"   ×{median / yardstick:.2f}   {median - yardstick:+.2f} ms")


def start(args):
    """From the launcher to the command's first instruction: /bin/true, in turn, so that noise hits all alike."""
    daemon = Daemon(args.bin)
    kinds = {"plain exec": ["/bin/true"], "numactl": ["numactl", "--cpunodebind=0", "--membind=0", "/bin/true"],
             "numa-leasectl run": daemon.run("--share", "--", "/bin/true"),
             "numa-leasectl run, balancing off": daemon.run("--share", "--numa-balancing", "off", "--", "/bin/true")}
    rows = {name: [] for name in kinds}
    for _ in range(args.rounds):
        for name, words in kinds.items():
            rows[name].append(timed(words))
    rows = {name: rows[name] for name in ("numactl", "plain exec", *list(kinds)[2:])}
    show(f"start: launcher to the end of /bin/true, {args.rounds} rounds", rows)
    daemon.close()


def restore(args):
    """From SIGKILL of the holder to the knob restored."""
    daemon = Daemon(args.bin)
    before = KNOB.read_text()
    KNOB.write_text("1")
    times = []
    for _ in range(args.rounds):
        holder = subprocess.Popen(daemon.run("--share", "--numa-balancing", "off", "--", "sh", "-c", "echo; exec sleep 60"),
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        holder.stdout.readline()
        begin = time.perf_counter()
        holder.kill()
        while KNOB.read_text() != "1\n" and time.perf_counter() - begin < 10:
            pass
        times.append((time.perf_counter() - begin) * 1000)
        holder.wait()
    KNOB.write_text(before)
    show(f"restore: SIGKILL of the holder to the knob restored, {args.rounds} rounds", {"numa-leased": times})
    daemon.close()


def daemon(args):
    """Memory and wake-ups of an idle daemon."""
    it = Daemon(args.bin)
    subprocess.run(it.run("--", "/bin/true"), check=True)
    time.sleep(1)
    status = lambda: dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{it.process.pid}/status").read_text().splitlines())
    switches = lambda: sum(int(status()[key]) for key in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"))
    first = switches()
    time.sleep(args.idle)
    print(f"daemon: resident {int(status()['VmRSS'].split()[0]) / 1024:.1f} MiB; "
          f"{switches() - first} context switches in {args.idle} s with no lease")
    it.close()


def engine(args):
    root = pathlib.Path(__file__).resolve().parents[1]
    folder = args.engine
    subprocess.run([root / "workload/fetch-engine", folder], check=True)
    subprocess.run([root / "workload/front/build-front", folder], check=True)
    model = folder / "bench.gguf"
    if not model.exists():
        subprocess.run([root / "workload/mkgguf.py", model, "--layers", "16", "--width", "1024", "--ffn", "4096"], check=True,
                       stdout=subprocess.DEVNULL)
    return [str(folder / "bin/llama-cli"), "-m", str(model), "-n", "96"]


def together(commands):
    """Runs all at once. Returns the tokens per second of each, and the seconds until the last one ended."""
    begin = time.perf_counter()
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for words in commands]
    speeds = [json.loads(it.communicate()[0].strip().splitlines()[-1])["tokens_per_second"] for it in running]
    return speeds, time.perf_counter() - begin


def inference(args):
    """Why anyone would want it: two generations at once with default threads, and each in a lease of one core."""
    job = engine(args)
    it = Daemon(args.bin)
    for round_ in range(3):
        free, _ = together([job] * 2)
        leased, _ = together([it.run("--cores", "1", "--", *job)] * 2)
        print(f"inference, round {round_ + 1}: two at once {sum(free):.1f} tokens/s together ({', '.join(f'{s:.1f}' for s in free)}); "
              f"each in a lease of one core {sum(leased):.1f} ({', '.join(f'{s:.1f}' for s in leased)}): ×{sum(leased) / sum(free):.1f}")
    it.close()


def queue(args):
    """Three jobs on this machine through the queue, and all at once."""
    job = engine(args)
    it = Daemon(args.bin)
    speeds, free = together([job] * 3)
    print(f"queue: three at once: {free:.1f} s, {sum(speeds):.1f} tokens/s together")
    speeds, queued = together([it.run("--wait=forever", "--cores", "1", "--", *job)] * 3)
    print(f"queue: three through the queue on one core each: {queued:.1f} s ({', '.join(f'{s:.1f}' for s in speeds)} tokens/s): "
          f"makespan ×{free / queued:.1f} shorter")
    it.close()


def where(args):
    """What a look at a process's memory takes, exact and sampled, beside numastat: by 4 KiB pages, the worst case."""
    size = "4g"
    with subprocess.Popen(["memhog", "-H", "-r1000000", size], stdout=subprocess.DEVNULL) as hog:
        resident = lambda: int(pathlib.Path(f"/proc/{hog.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        while resident() < 4 << 30:
            time.sleep(0.05)
        hog.send_signal(signal.SIGSTOP)
        ctl = [str(args.bin / "numa-leasectl"), "where", "--bus", "none", str(hog.pid)]
        kinds = {"numastat -p": ["numastat", "-p", str(hog.pid)], "numa-leasectl where": ctl,
                 "numa-leasectl where --exact": [*ctl, "--exact"], "numa-leasectl where --sample": [*ctl, "--sample"]}
        rows = {name: [] for name in kinds}
        for _ in range(min(args.rounds, 20)):
            for name, words in kinds.items():
                rows[name].append(timed(words))
        hog.kill()
    show(f"where: a process of {size}", rows)


PARTS = {"start": start, "restore": restore, "daemon": daemon, "inference": inference, "queue": queue, "where": where}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--engine", type=pathlib.Path, default=pathlib.Path.home() / ".cache/numa-lease/engine")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--idle", type=int, default=60)
    parser.add_argument("parts", nargs="*", default=[])
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench.py: kernel state is root's to change; run it as root")
    options.bin = options.bin.resolve()
    for part in options.parts or PARTS:
        PARTS[part](options)
