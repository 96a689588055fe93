"""A world without Ray and without bpf-opt: objects are lines `function slots`, and what becomes of a function is
its text.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from bpf_opt_farm import work
from bpf_opt_farm.campaign import Item
from bpf_opt_farm.executor import Outcome
from bpf_opt_farm.farm import Farm, Result
from bpf_opt_farm.job import Job, Tool
from bpf_opt_farm.store import Store

STUB = Path(__file__).with_name("stub_bpf_opt.py")


def named(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Died(Exception):
    """The worker of a call has died."""


class World:
    """Carries calls out at once, in place of `work`, and counts what was done."""

    def __init__(self, slots: int = 2) -> None:
        self.made: Counter[str] = Counter()
        self.assembled: Counter[str] = Counter()
        self.most_open = 0
        self.calls = 0
        self.before: Callable[[int], None] = lambda number: None
        self._slots = slots
        self._open: list[tuple[int, Callable[..., Any], tuple[Any, ...]]] = []

    def slots(self) -> int:
        return self._slots

    def submit(self, key: int, label: str, call: Callable[..., Any], *arguments: Any) -> None:
        self._open.append((key, call, arguments))
        self.most_open = max(self.most_open, len(self._open))

    def finished(self, timeout: float) -> Iterable[Outcome]:
        if self._open:
            key, call, arguments = self._open.pop(0)
            self.calls += 1
            try:
                self.before(self.calls)
                doing = {work.plan: self.plan, work.make: self.make, work.assemble: self.assemble}[call]
                yield Outcome(key, doing(*arguments))
            except Died as e:
                yield Outcome(key, error=e, may_retry=True)

    def close(self, wait_for_all: bool) -> None:
        self._open.clear()

    def plan(self, job: Job, digests: list[str]) -> list[work.Plan]:
        plans = []
        for digest in digests:
            text = (job.store.get(f"inputs/{digest}.o") or b"").decode()
            error = "is no object" if text.startswith("!") else None
            lines = [line.split() for line in text.splitlines() if not error]
            functions = tuple(work.Function(name, int(slots), named(f"{name} {slots}")) for name, slots in lines)
            plans.append(work.Plan(digest, functions, error))
            job.store.put(work.plan_entry(job, digest), work.plan_to_json(plans[-1]))
        return plans

    def make(self, job: Job, units: list[work.Unit]) -> work.Made:
        made = work.Made()
        for function in (f for unit in units for f in unit.functions):
            assert function.part is not None
            self.made[function.part] += 1
            if function.name.startswith("bad"):
                made.failed[function.part] = "an internal error"
                continue
            job.store.put(f"{work.part_folder(job)}/{function.part}.json", function.name.encode())
            made.parts.append(function.part)
        return made

    def assemble(self, job: Job, kernel: str, objects: list[work.Assembly]) -> list[dict[str, object]]:
        entries = []
        for o in objects:
            self.assembled[o.name] += 1
            parts = [job.store.get(f"{work.part_folder(job)}/{part}.json") or b"missing" for part in o.parts]
            entry = {"name": o.name, "input": o.digest, "error": "broken" if b"missing" in parts else None}
            folder = work.object_folder(job)
            job.store.put(f"{folder}/{o.name}.o", b"+".join(parts))
            job.store.put(f"{folder}/{o.name}.json", json.dumps(entry).encode())
            entries.append(entry)
        return entries


class Silent:
    def __init__(self) -> None:
        self.said: list[str] = []

    def total(self, functions: int, objects: int) -> None:
        pass

    def done(self, functions: int, objects: int) -> None:
        pass

    def say(self, line: str) -> None:
        self.said.append(line)


class Bench:
    """A folder of objects, a store, and runs over both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(str(folder / "store"))
        self.job = Job(Tool("bpf-opt", "0" * 64), self.store)
        self.watch = Silent()

    def object(self, name: str, text: str) -> Item:
        path = self.folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return Item(path, self.folder / "out" / name)

    def run(self, world: World, items: Iterable[Item]) -> Result:
        return Farm(self.job, world, self.watch, kernel="6.18").run(tuple(items))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def stub(tmp_path: Path) -> str:
    """A program that takes the place of bpf-opt."""
    path = tmp_path / "bpf-opt"
    path.write_text(f"#!{sys.executable} -IS\n{STUB.read_text()}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def real() -> str:
    """bpf-opt itself, where it was built."""
    path = os.environ.get("BPF_OPT", "")
    if not path or not os.path.exists(path):
        pytest.skip("BPF_OPT names no program: bpf-opt is not built")
    return path
