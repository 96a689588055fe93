"""The farm's promises, tried out on a thousand objects and two Ray nodes that are processes of this machine.

One node is killed in the middle, then the driver, which is begun again. The results are compared with those of one
process. Then the same with shared rules, and one worker against two. Figures go to standard output, as
docs/cluster.md has them.

    experiment.py BPF_OPT --bench DIR [--debian DIR] [--objects 1000] [--rounds 1] [--work DIR] [--only PART,PART]

Exit status: 0 if what is promised holds, 1 if objects differ from those of one process, a function was ended twice or
begun more often than the two kills explain, or shared rules make the objects larger. Times are printed beside what is
wanted of them, and fail nothing: they are those of the machine, too.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Wanted: milliseconds for a function beside the work itself, and how much faster two workers are than one.
MOST_OVERHEAD, LEAST_SCALING = 5.0, 1.7
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def mutated(data: bytes, seed: int) -> bytes | None:
    """The object with another immediate in one ALU instruction without a relocation; `None` if it has none."""
    ok, section_at = data[:4] == b"\x7fELF" and data[4] == 2 and data[5] == 1, struct.unpack_from("<Q", data, 40)[0]
    if not ok:
        return None
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_at + n * size) for n in range(count)]
    patched: dict[int, set[int]] = collections.defaultdict(set)
    for _, kind, _, _, at, length, _, info, _, entry in sections:
        if kind == 9 and entry:
            patched[info] |= {struct.unpack_from("<Q", data, at + n)[0] for n in range(0, length, entry)}
    places = []
    for number, (_, kind, flags, _, at, length, *_) in enumerate(sections):
        if kind != 1 or not flags & 4:
            continue
        slot = 0
        while slot < length:
            code = data[at + slot]
            # BPF_ALU or BPF_ALU64 with an immediate: add, or, and, xor, mov; shifts have a range.
            is_alu = code & 7 in (4, 7) and not code & 8 and code >> 4 in (0x0, 0x4, 0x5, 0xA, 0xB)
            if is_alu and slot not in patched[number] and data[at + slot + 1] & 15 != 10:
                places.append(at + slot + 4)
            slot += 16 if code == 0x18 else 8
    if not places:
        return None
    chosen = random.Random(seed)
    place = chosen.choice(places)
    value = (struct.unpack_from("<i", data, place)[0] ^ chosen.choice([1, 2, 4, 8, 16, 64, 256])) & 0xFFFFFFFF
    return data[:place] + struct.pack("<I", value) + data[place + 4 :]


def make_objects(sources: list[Path], folder: Path, count: int, small: list[Path]) -> int:
    """So many different objects: the sources, then mutated ones of those that are not large."""
    folder.mkdir(parents=True)
    seen: set[str] = set()

    def keep(data: bytes, name: str) -> None:
        digest = hashlib.sha256(data).hexdigest()
        if digest not in seen:
            seen.add(digest)
            (folder / name).write_bytes(data)

    for source in sources:
        keep(source.read_bytes(), f"{source.stem}.o")
    originals = len(seen)
    seed = 0
    while len(seen) < count and seed < 100 * count:
        source = small[seed % len(small)]
        data = mutated(source.read_bytes(), seed)
        if data is not None:
            keep(data, f"{source.stem}.m{seed:05}.o")
        seed += 1
    return originals


def places(out: Path, store: Path, cluster: Cluster, told: Path) -> list[str]:
    """Words that say where results, store and report go, and who does the work."""
    return ["-d", str(out), "--store", str(store), "--address", cluster.address, "--json", str(told)]


def farm(words: list[str], wait: bool = True) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", "bpf_opt_farm", *words], env=ENVIRONMENT)
    if wait and process.wait() not in (0, 2):
        raise SystemExit(f"the farm ended with {process.returncode}")
    return process


def costs(path: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(path.read_text())["costs"][0]
    return found


def overhead(cost: dict[str, float]) -> str:
    """Of a function: the driver's processor time, and the workers' time beside bpf-opt's processes."""
    functions = max(1.0, cost["functions"])
    driver = 1000 * cost["driver_seconds"] / functions
    worker = 1000 * (cost["make_seconds"] - cost["make_tool_seconds"]) / functions
    wanted = f"at most {MOST_OVERHEAD:g} ms: {met(driver + worker <= MOST_OVERHEAD)}"
    return f"a function costs {driver + worker:.1f} ms ({driver:.1f} driver, {worker:.1f} worker); {wanted}"


def met(holds: bool) -> str:
    return "met" if holds else "not met"


def totals(path: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads(path.read_text())["totals"]
    return found


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


class Cluster:
    """Two nodes with a processor each."""

    def __init__(self, nodes: int = 2) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self.cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1})
        self.others = [self.cluster.add_node(num_cpus=1) for _ in range(nodes - 1)]
        self.address = self.cluster.address

    def kill_a_node(self) -> None:
        self.cluster.remove_node(self.others.pop(), allow_graceful=False)

    def add_a_node(self) -> None:
        self.others.append(self.cluster.add_node(num_cpus=1))

    def close(self) -> None:
        self.cluster.shutdown()


def traced(folder: Path) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """How often each function was begun, and ended."""
    begun: collections.Counter[str] = collections.Counter()
    ended: collections.Counter[str] = collections.Counter()
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            _, what, part = line.split()
            (begun if what == "begin" else ended)[part] += 1
    return begun, ended


def lost(folder: Path) -> int:
    """Functions that were begun and not ended, each as often as that."""
    begun, ended = traced(folder)
    return sum((begun - ended).values())


def different(objects: Path, a: Path, b: Path) -> tuple[list[str], str]:
    """Objects of which the results differ, and that in words."""
    names = sorted(p.name for p in objects.glob("*.o"))
    read = lambda p: p.read_bytes() if p.exists() else None  # noqa: E731
    found = [n for n in names if read(a / n) != read(b / n)]
    written = sum((b / n).exists() for n in names)
    return found, f"{len(found)} of {len(names)}; {written} of the {len(names)} are written: {found}"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bpf_opt")
    p.add_argument("--bench", required=True, type=Path)
    p.add_argument("--debian", type=Path)
    p.add_argument("--objects", type=int, default=1000)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--most-slots", type=int, default=150, help="of objects that are mutated")
    p.add_argument("--leave-out", default="", help="originals with more slots than this", metavar="SLOTS")
    p.add_argument(
        "--not-mutated", default="infinite_loop", help="nor those whose names hold this: each takes half a minute"
    )
    p.add_argument("--scale-objects", type=int, default=200)
    p.add_argument("--work", type=Path, default=Path("target/farm-experiment"))
    p.add_argument(
        "--only",
        default="one,kill,rules,scale",
        help="parts of the experiment; `scale` needs processors that are free",
    )
    args = p.parse_args()
    tool, place = os.path.abspath(args.bpf_opt), args.work.absolute()
    parts = args.only.split(",")
    budget = ["--rounds", str(args.rounds)]
    objects = place / "objects"
    sources = [s for d in (args.bench / "k2", args.bench / "public", args.debian) if d for s in sorted(d.glob("*.o"))]
    by = ["--by-function", "--no-kernel", *budget]
    lines = _listed(tool, sources, by)
    slots_of = {Path(line["input"]): sum(f["slots"] for f in line["functions"]) for line in lines}
    if args.leave_out:
        sources = [s for s in sources if slots_of[s] <= int(args.leave_out)]
    if not objects.exists():
        shutil.rmtree(place, ignore_errors=True)
        small = [s for s in sources if slots_of[s] <= args.most_slots and args.not_mutated not in s.name]
        originals = make_objects(sources, objects, args.objects, small)
        print(f"{len(list(objects.iterdir()))} objects, {originals} of them originals, the others mutated", flush=True)
    base = ["--bpf-opt", tool, *budget]
    wrong: list[str] = []

    if "one" in parts:
        shutil.rmtree(place / "one", ignore_errors=True)
        began = time.monotonic()
        command = [
            tool,
            "opt",
            str(objects),
            "-d",
            str(place / "one"),
            *by,
            "--no-cache",
            "--time-limit",
            "3600",
            "-q",
            "--json",
            str(place / "one.json"),
        ]
        code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode
        print(f"one process: exit {code}, {time.monotonic() - began:.0f} s, {load()}", flush=True)

    if "kill" in parts:
        out, store, trace, told = place / "kill", place / "kill-store", place / "trace", place / "kill.json"
        for path in (out, store, trace):
            shutil.rmtree(path, ignore_errors=True)
        trace.mkdir(parents=True)
        os.environ["BPF_OPT_FARM_TRACE"] = ENVIRONMENT["BPF_OPT_FARM_TRACE"] = str(trace)
        cluster = Cluster()
        words = [str(objects), *places(out, store, cluster, told), *base]
        words += ["-q", "--", "--no-kernel"]
        began = time.monotonic()
        driver = farm(words, wait=False)
        count = lambda: sum(1 for d in store.glob("*/parts") for _ in os.scandir(d))  # noqa: E731
        wanted = len({f["part"] for n in _listed(tool, sorted(objects.glob("*.o")), by) for f in n["functions"] if f["part"]})
        for event, share in (("node", 1 / 3), ("driver", 2 / 3)):
            while count() < share * wanted and driver.poll() is None:
                time.sleep(0.1)
            print(
                f"the {event} is killed at {count()} of {wanted} functions, {lost(trace)} begun and not ended, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
            if event == "node":
                cluster.kill_a_node()
                time.sleep(5)
                cluster.add_a_node()
            else:
                driver.send_signal(signal.SIGKILL)
                driver.wait()
        # What was in flight at either kill, and is not done: nothing else may be begun again.
        allowed = lost(trace)
        driver = farm(words)
        seconds = time.monotonic() - began
        cluster.close()
        del os.environ["BPF_OPT_FARM_TRACE"], ENVIRONMENT["BPF_OPT_FARM_TRACE"]
        begun, ended = traced(trace)
        print(f"farm: exit {driver.returncode}, {seconds:.0f} s in all, {load()}")
        again, twice = sum(n - 1 for n in begun.values()), sum(n > 1 for n in ended.values())
        print(
            f"functions: {len(begun)} begun, {len(ended)} ended; begun again {again}, lost by the kills {allowed}; "
            f"ended twice {twice}"
        )
        print(f"second driver: {costs(told)}")
        print(overhead(costs(told)))
        others, told_of_them = different(objects, place / "one", out)
        print(f"objects that differ from those of one process: {told_of_them}", flush=True)
        if others:
            wrong.append(f"{len(others)} objects differ from those of one process")
        if twice:
            wrong.append(f"{twice} functions were ended twice")
        if again > allowed:
            wrong.append(f"functions were begun again {again} times, and {allowed} were lost by the kills")

    if "rules" in parts:
        out, store, told = place / "rules", place / "rules-store", place / "rules.json"
        for path in (out, store):
            shutil.rmtree(path, ignore_errors=True)
        cluster = Cluster()
        words = [str(objects), *places(out, store, cluster, told), *base]
        farm([*words, "-q", "--share-rules", "--", "--no-kernel"])
        cluster.close()
        alone = json.loads((place / "kill.json").read_text())["totals"]
        print(
            f"slots without shared rules {alone['slots_before']} -> {alone['slots_after']}, "
            f"with {totals(told)['slots_after']}; {load()}"
        )
        print(f"with shared rules: {costs(told)}")
        print(overhead(costs(told)), flush=True)
        if totals(told)["slots_after"] > alone["slots_after"]:
            wrong.append(f"with shared rules {totals(told)['slots_after'] - alone['slots_after']} slots more")

    if "scale" in parts:
        some = place / "some.txt"
        names = sorted(objects.glob("*.m?????.o"))[:: max(1, args.objects // args.scale_objects)]
        some.write_text("\n".join(map(str, names)) + "\n")
        times = {}
        for nodes in (1, 2):
            out, store, told = place / "scale", place / "scale-store", place / f"scale{nodes}.json"
            for path in (out, store):
                shutil.rmtree(path, ignore_errors=True)
            cluster = Cluster(nodes)
            before = load()
            words = ["--list", str(some), *places(out, store, cluster, told), *base]
            farm([*words, "-q", "--", "--no-kernel"])
            cluster.close()
            times[nodes] = costs(told)["seconds"]
            print(
                f"{nodes} workers: {times[nodes]:.1f} s for {totals(told)['functions']} functions; "
                f"{before}, then {load()}; {costs(told)}",
                flush=True,
            )
        faster = times[1] / times[2]
        wish = f"at least {LEAST_SCALING:g}: {met(faster >= LEAST_SCALING)}"
        print(f"1 to 2 workers: {faster:.2f} times as fast; {wish}", flush=True)

    for what in wrong:
        print(f"experiment.py: {what}", file=sys.stderr)
    return 1 if wrong else 0


def _listed(tool: str, objects: Iterable[Path], by: list[str]) -> list[dict[str, Any]]:
    """What `opt --list-parts` says of each object."""
    command = [tool, "opt", *map(str, objects), "--list-parts", *by]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
