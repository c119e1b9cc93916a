#!/bin/bash
# The recipe of two scripts, bind to a socket and switch balancing off, around a real llama.cpp that is told
# `--numa distribute`: nothing of it leaves the lease. Under numactl alone it does.
# timeout: 400
source "$(dirname "$0")/lib.sh"

balancing=/proc/sys/kernel/numa_balancing
engine=$SHARE/engine/bin/llama-cli
command=("$engine" -m "$SHARE/tiny.gguf" -n 8 --numa distribute --front-hold 6)
before=$(mktemp)
snapshot >"$before"

# What the engine reads is to be read anew, where the next one runs.
forget_pages() {
    local file
    for file in "$SHARE"/tiny.gguf "$SHARE"/engine/bin/*; do
        dd if="$file" iflag=nocache count=0 status=none
    done
}

# sample LAUNCHER: looks at the engine from its start to its end and prints, a line each: samples, the most threads, the
# CPUs that any thread might use, and pages by node: anonymous, the engine's own files, those it shares with the system.
sample() {
    python3 - "$SHARE" <<'PYTHON'
import os, re, sys, time
share = sys.argv[1]

def engine():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe").endswith("/llama-cli"): return pid
        except OSError: pass

def expand(text):
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)

deadline = time.time() + 60
while not (pid := engine()):
    if time.time() > deadline: sys.exit("no engine")
samples, most, cpus = 0, 0, set()
pages = {"anonymous": {}, "own files": {}, "shared files": {}}
while True:
    try:
        masks = [next(l for l in open(f"/proc/{pid}/task/{t}/status") if l.startswith("Cpus_allowed_list:"))
                 for t in os.listdir(f"/proc/{pid}/task")]
        maps = open(f"/proc/{pid}/numa_maps").read().splitlines()
    except (OSError, StopIteration):
        if os.path.exists(f"/proc/{pid}/maps") and engine() == pid: continue
        break
    if not maps: break
    samples, most = samples + 1, max(most, len(masks))
    for mask in masks: cpus |= set(expand(mask.split(":")[1]))
    for line in maps:
        kind = "anonymous" if "file=" not in line else "own files" if f"file={share}" in line else "shared files"
        for node, count in re.findall(r" N(\d+)=(\d+)", line):
            pages[kind][node] = max(pages[kind].get(node, 0), int(count))
print("samples", samples)
print("threads", most)
print("cpus", ",".join(map(str, sorted(cpus))))
for kind, by_node in pages.items():
    print(kind + ":", " ".join(f"N{n}" for n in sorted(by_node)))
PYTHON
}

field() { sed -n "s/^$1:\? //p" <<<"$2"; }

echo "── in a lease, from a login session"
forget_pages
as_root "$ctl" run --socket 0 --mode all --interleave on --numa-balancing off -- "${command[@]}" >/run/recipe.out 2>/run/recipe.err &
job=$!
leased=$(sample)
assert wait $job
echo "$leased"
cat /run/recipe.out
grep -Ev '^warning: pthread' /run/recipe.err
echo "pins refused by the lease: $(grep -c 'pthread_setaffinity_np() failed' /run/recipe.err)"
assert test "$(field samples "$leased")" -ge 5
assert_eq "$(field threads "$leased")" 5 "threads: one a CPU, and the log's"
assert_eq "$(field cpus "$leased")" 0,1,2,3 "CPUs that any thread might use"
assert_eq "$(field anonymous "$leased")" "N0 N1" "nodes of anonymous pages"
assert grep -Eqx 'own files: N0|own files: N1|own files: N0 N1' <<<"$leased"
# Threads meant for nodes 2 and 3 were refused there: the engine did distribute.
assert grep -q 'pthread_setaffinity_np() failed' /run/recipe.err
assert grep -q 'numa-leasectl: --numa distribute pins threads over all 4 nodes' /run/recipe.err
assert grep -q 'numa_balancing: 0, was 1' /run/recipe.err
refute grep -q 'numa_balancing is enabled' /run/recipe.err # the engine saw it off, too
assert grep -q '"tokens":' /run/recipe.out
wait_for 5 reads $balancing 1

echo "── under numactl alone"
forget_pages
as_root numactl --cpunodebind=0,1 --interleave=0,1 "${command[@]}" -t 4 >/run/recipe.out 2>/run/recipe.err &
job=$!
bare=$(sample)
assert wait $job
echo "$bare"
assert grep -q 'numa_balancing is enabled' /run/recipe.err
assert_eq "$(field cpus "$bare")" 0,1,2,3,4,5,6,7 "CPUs that any thread might use"

assert_as_before "$before"
