"""What workers do: list functions, make their results, put objects together. No Ray here: functions from values to
values.

Each call reads its input from the store and leaves what is finished there, entry by entry. So a worker may die at
any moment, and a call may be made twice: the second finds what the first has left, or writes the same once more.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .errors import INTERNAL, INTERRUPTED, FarmError
from .job import Job
from .rules import Rules

# Words in a report's `gate` (docs/json.md) that say that the kernel was not asked, and may be another time: no rights, no time, no
# means.
OPEN = ("bpf() is not permitted", "not judged: time", "Too many open files", "Cannot allocate memory")

# Loaded before any fork.
_LIBC = ctypes.CDLL(None)
# linux/prctl.h
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Function:
    """A function of an object, and the name of its result; `None` if nothing can be done with it."""

    name: str
    slots: int
    part: str | None


@dataclass(frozen=True)
class Plan:
    """The functions of an object; or why it cannot be read."""

    digest: str
    functions: tuple[Function, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Unit:
    """Functions of one object that one process works on: it reads the object once."""

    digest: str
    functions: tuple[Function, ...]


@dataclass
class Made:
    """What became of units: names of results, and what went wrong by name of result."""

    parts: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    bytes_written: int = 0
    seconds: float = 0.0
    tool_seconds: float = 0.0
    rules_sent: int = 0
    rule_bytes: int = 0


@dataclass(frozen=True)
class Assembly:
    """An object whose functions are done."""

    digest: str
    name: str
    parts: tuple[str, ...]


def plan(job: Job, digests: list[str]) -> list[Plan]:
    """Lists the functions of objects, and keeps the lists."""
    with tempfile.TemporaryDirectory(prefix="bpf-opt-farm-") as folder:
        inputs = _inputs(job, digests, Path(folder))
        # Whether rules are used is part of the names; which ones there are is not.
        cache = ["--cache", str(Path(folder, "rules"))] if job.share_rules else ["--no-cache"]
        run = _run(job, [*map(str, inputs.values()), "--list-parts", *cache])
        lines = {}
        for text in run.stdout.splitlines():
            line = json.loads(text)
            lines[Path(line["input"]).stem] = line
        plans = []
        for digest in digests:
            line = lines.get(digest)
            if line is None:
                # One object alone: its error is that of the command.
                plans.append(Plan(digest, error=_said(run)))
                continue
            functions = tuple(Function(f["function"], f["slots"], f["part"]) for f in line["functions"])
            plans.append(Plan(digest, functions, line["error"]))
    for made in plans:
        if run.returncode in (INTERNAL, INTERRUPTED) or run.returncode < 0:
            continue
        job.store.put(plan_entry(job, made.digest), plan_to_json(made))
    return plans


def make(job: Job, units: list[Unit]) -> Made:
    """Makes results of functions. Each is in the store as soon as its process ends."""
    started = time.monotonic()
    done = Made()
    folder = part_folder(job)
    with tempfile.TemporaryDirectory(prefix="bpf-opt-farm-") as temporary:
        inputs = _inputs(job, [unit.digest for unit in units], Path(temporary))
        for unit in units:
            # When a call is begun again, the one before may have come as far as here.
            there = {f.part for f in unit.functions if f.part and job.store.has(f"{folder}/{f.part}.json")}
            done.parts += sorted(there)
            unit = Unit(unit.digest, tuple(f for f in unit.functions if f.part and f.part not in there))
            if not unit.functions:
                continue
            _trace("begin", unit)
            parts = Path(temporary, "parts")
            rules = Rules.of(job) if job.share_rules else None
            if rules is not None:
                rules.pull()
            names = [word for function in unit.functions for word in ("--program", function.name)]
            cache = rules.arguments if rules is not None else ["--no-cache"]
            begun = time.monotonic()
            run = _run(job, [str(inputs[unit.digest]), *names, "--make-parts", "--parts", str(parts), "-q", *cache])
            done.tool_seconds += time.monotonic() - begun
            for function in unit.functions:
                assert function.part is not None
                file = parts / f"{function.part}.json"
                if not file.exists():
                    done.failed[function.part] = f"{function.name}: {_said(run)}"
                    continue
                data = file.read_bytes()
                job.store.put(f"{folder}/{function.part}.json", data)
                done.parts.append(function.part)
                done.bytes_written += len(data)
            _trace("end", unit)
            if rules is not None:
                sent = rules.push()
                done.rules_sent += sent.rules
                done.rule_bytes += sent.size
    done.seconds = time.monotonic() - started
    return done


def assemble(job: Job, kernel: str, objects: list[Assembly]) -> list[dict[str, object]]:
    """Puts objects together from the results of their functions. The entry of the journal comes last."""
    if job.asks_kernel and os.uname().release != kernel:
        raise FarmError(
            f"{os.uname().nodename}: runs Linux {os.uname().release}, and the driver {kernel}",
            "results depend on the kernel's verdicts: the same kernel everywhere, or --no-kernel",
        )
    entries = []
    folder = part_folder(job)
    with tempfile.TemporaryDirectory(prefix="bpf-opt-farm-") as temporary:
        inputs = _inputs(job, [o.digest for o in objects], Path(temporary))
        wanted = {part for o in objects for part in o.parts}
        parts = Path(temporary, "parts")
        parts.mkdir()
        for name, data in job.store.get_all(f"{folder}/{part}.json" for part in sorted(wanted)).items():
            (parts / name.rsplit("/", 1)[-1]).write_bytes(data)
        for o in objects:
            begun = time.monotonic()
            out, report = Path(temporary, "out.o"), Path(temporary, "report.json")
            out.unlink(missing_ok=True)
            report.unlink(missing_ok=True)
            cache = Rules.of(job).arguments if job.share_rules else ["--no-cache"]
            words = [str(inputs[o.digest]), "-o", str(out), "--parts", str(parts), "--json", str(report), "-q", *cache]
            run = _run(job, words)
            entry: dict[str, object] = {"name": o.name, "input": o.digest, "error": None, "host": os.uname().nodename}
            if run.returncode == 0 and out.exists():
                entry.update(_told(json.loads(report.read_bytes())))
                job.store.put(f"{object_folder(job)}/{o.name}.o", out.read_bytes())
            else:
                entry["error"] = _said(run)
            entry["seconds"] = round(time.monotonic() - begun, 4)
            # What a signal or a full disk has ended is no result, nor is what the kernel should have judged and was not asked about: the
            # next run asks it.
            if run.returncode in (0, 2) and not (job.asks_kernel and _is_open(entry)):
                job.store.put(f"{object_folder(job)}/{o.name}.json", json.dumps(entry).encode())
            entries.append(entry)
    return entries


def part_folder(job: Job) -> str:
    """Where results of functions lie in the store."""
    return f"{job.folder}/parts"


def object_folder(job: Job) -> str:
    """Where objects and the entries of the journal lie in the store."""
    return f"{job.folder}/objects"


def plan_entry(job: Job, digest: str) -> str:
    """Where the list of an object's functions lies in the store."""
    return f"{job.folder}/plans/{job.plan_name(digest)}.json"


def plan_to_json(made: Plan) -> bytes:
    """A list of functions as an entry."""
    functions = [[f.name, f.slots, f.part] for f in made.functions]
    return json.dumps({"input": made.digest, "functions": functions, "error": made.error}).encode()


def plan_from_json(data: bytes) -> Plan:
    """And back."""
    read = json.loads(data)
    return Plan(read["input"], tuple(Function(*f) for f in read["functions"]), read["error"])


def _inputs(job: Job, digests: list[str], folder: Path) -> dict[str, Path]:
    """Inputs as files of this machine."""
    names = {f"inputs/{digest}.o": digest for digest in digests}
    files = {}
    for name, data in job.store.get_all(names).items():
        path = folder / f"{names[name]}.o"
        path.write_bytes(data)
        files[names[name]] = path
    missing = set(digests) - files.keys()
    if missing:
        raise FarmError(
            f"{job.store.url}: {os.uname().nodename} does not find {len(missing)} inputs there",
            "a store that all machines reach: a shared folder, or the URL of an object store",
        )
    return files


def _run(job: Job, words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [job.tool.here(), "opt", *words, *job.arguments]
    # A worker that is killed takes its process along.
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=_die_with_parent)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _said(run: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("bpf-opt: ") and not line.startswith("bpf-opt: warning"):
            return line.removeprefix("bpf-opt: ").strip()
    if run.returncode == 0:
        return "has no result within the time limit"
    return lines[-1].strip() if lines else f"bpf-opt ended with {run.returncode}"


def _told(report: dict[str, object]) -> dict[str, object]:
    """What the journal keeps of a report."""
    totals, parts = report.get("totals") or {}, report.get("parts") or {}
    assert isinstance(totals, dict) and isinstance(parts, dict)
    names = ("functions", "changed", "slots_before", "slots_after", "verified_before", "verified_after")
    told: dict[str, object] = {name: totals.get(name) for name in names}
    told.update(gate=report.get("gate"), taken=parts.get("taken"), again=parts.get("again", False))
    return told


def _is_open(entry: dict[str, object]) -> bool:
    """Whether the kernel was not asked about an object, or about some program of it, though another time it may be."""
    gate = entry.get("gate")
    return isinstance(gate, str) and any(word in gate for word in OPEN)


def _trace(what: str, unit: Unit) -> None:
    """For experiments: who began and ended what, a line for each in a file of each process."""
    folder = os.environ.get("BPF_OPT_FARM_TRACE")
    if folder:
        with open(Path(folder, f"{os.uname().nodename}-{os.getpid()}"), "a", encoding="utf-8") as file:
            for function in unit.functions:
                file.write(f"{time.time():.6f} {what} {function.part}\n")
