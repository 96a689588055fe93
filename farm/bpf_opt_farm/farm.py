"""What the driver does: which calls are open, and what follows from those that have ended.

Objects go through three kinds of calls. *plan* lists the functions of an object with the names of their results.
*make* makes results of functions, each name once, whatever the number of objects that hold the function. *assemble*
puts an object together when all its results are there. The driver keeps no state that matters: before each call it
knows from the store what is there already. So a driver that is begun again goes on where the other ended.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import work
from .campaign import Item
from .errors import BAD, INTERNAL, OK, FarmError
from .executor import Executor, Outcome
from .job import Job
from .store import write_whole
from .work import Assembly, Function, Made, Plan, Unit

# Objects in a call of each kind, at most: a call costs the driver some milliseconds, and what is in it waits for the
# slowest.
PLANS = 32
ASSEMBLIES = 16
# Functions and slots in a call that makes results, at most: what a killed worker loses. Towards the end calls have down to a
# quarter of the slots, so that all workers end together.
FUNCTIONS = 16
SLOTS = 1200
# Calls that wait for each worker: enough that none is idle, few enough that little is in flight.
AHEAD = 2
# Times that the driver begins a call again whose worker has died, when whoever carries it out has given up.
RETRIES = 3


class Watch(Protocol):
    """Shows how far the work is."""

    def total(self, functions: int, objects: int) -> None:
        """So many there are, as far as it is known."""

    def done(self, functions: int, objects: int) -> None:
        """So many are done."""

    def say(self, line: str) -> None:
        """For people."""


@dataclass
class Row:
    """What became of one object."""

    path: str
    target: str
    entry: dict[str, Any]
    resumed: bool


@dataclass
class Costs:
    """What the work took beside the work itself."""

    functions: int = 0
    functions_there: int = 0
    objects: int = 0
    objects_there: int = 0
    calls: int = 0
    calls_again: int = 0
    driver_seconds: float = 0.0
    seconds: float = 0.0
    make_seconds: float = 0.0
    make_tool_seconds: float = 0.0
    assemble_seconds: float = 0.0
    part_bytes: int = 0
    rules: int = 0
    rule_bytes: int = 0


@dataclass
class Result:
    """All rows, in the order of the objects, and what it took."""

    rows: list[Row]
    costs: Costs
    interrupted: bool = False

    @property
    def code(self) -> int:
        """As bpf-opt's of many objects."""
        return BAD if any(row.entry.get("error") for row in self.rows) else OK


@dataclass
class _Call:
    label: str
    call: Any
    arguments: tuple[Any, ...]
    tries: int = 0


@dataclass
class _Object:
    digest: str
    name: str
    paths: list[Item]
    waits_for: set[str] = field(default_factory=set)
    parts: tuple[str, ...] = ()


class Farm:
    """One job on one executor."""

    def __init__(self, job: Job, executor: Executor, watch: Watch, kernel: str | None = None) -> None:
        self.job = job
        self.executor = executor
        self.watch = watch
        self.kernel = kernel or os.uname().release
        self.costs = Costs()
        self._keys = itertools.count()
        self._open: dict[int, _Call] = {}
        self._objects: dict[str, _Object] = {}
        self._to_plan: deque[str] = deque()
        self._to_make: deque[tuple[str, Function]] = deque()
        self._slots_to_make = 0
        self._to_assemble: deque[Assembly] = deque()
        self._parts_there: set[str] = set()
        self._parts_asked: set[str] = set()
        self._waiting: dict[str, list[str]] = {}
        self._rows: dict[str, Row] = {}

    def run(self, items: tuple[Item, ...]) -> Result:
        """Does what is not done yet, and writes results to their places as they come."""
        started, driver = time.monotonic(), time.process_time()
        try:
            self._begin(items)
            while self._open or self._to_plan or self._to_make or self._to_assemble:
                self._submit()
                for outcome in self.executor.finished(1.0):
                    self._ended(outcome)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        self.costs.seconds = time.monotonic() - started
        self.costs.driver_seconds = time.process_time() - driver
        rows = [self._rows[str(item.path)] for item in items if str(item.path) in self._rows]
        return Result(rows, self.costs, interrupted)

    def _begin(self, items: tuple[Item, ...]) -> None:
        store = self.job.store
        inputs = store.names("inputs")
        self._parts_there = {name.removesuffix(".json") for name in store.names(work.part_folder(self.job))}
        journal = store.names(work.object_folder(self.job))
        plans = store.names(f"{self.job.folder}/plans")
        for item in items:
            try:
                data = item.path.read_bytes()
            except OSError as e:
                self._rows[str(item.path)] = Row(str(item.path), str(item.target), {"error": str(e)}, False)
                continue
            digest = hashlib.sha256(data).hexdigest()
            known = self._objects.get(digest)
            if known is not None:
                known.paths.append(item)
                continue
            if f"{digest}.o" not in inputs:
                store.put(f"inputs/{digest}.o", data)
            self._objects[digest] = _Object(digest, self.job.object_name(digest, self.kernel), [item])
        folder = work.object_folder(self.job)
        finished = {o.digest: f"{folder}/{o.name}.json" for o in self._objects.values() if f"{o.name}.json" in journal}
        entries = store.get_all(finished.values())
        open_ = [o for o in self._objects.values() if finished.get(o.digest) not in entries]
        listed = {
            d: work.plan_entry(self.job, d) for o in open_ if f"{self.job.plan_name(d := o.digest)}.json" in plans
        }
        lists = store.get_all(listed.values())
        for o in self._objects.values():
            if (name := finished.get(o.digest)) in entries:
                self.costs.objects_there += 1
                self._finish(o, json.loads(entries[name]), resumed=True)
            elif (name := listed.get(o.digest)) in lists:
                self._planned(work.plan_from_json(lists[name]))
            else:
                self._to_plan.append(o.digest)
        self._show_total()

    def _submit(self) -> None:
        ahead = self.executor.slots() * AHEAD
        room = ahead - len(self._open)
        # What is nearest to its end goes first, so that results come early.
        while room > 0 and (self._to_assemble or self._to_plan or self._to_make):
            room -= 1
            # A call that is not full waits while there is other work.
            if len(self._to_assemble) >= ASSEMBLIES or not (self._to_plan or self._to_make):
                objects = _take(self._to_assemble, ASSEMBLIES)
                label = f"assemble {self._label(objects[0].digest, len(objects))}"
                self._begin_call(_Call(label, work.assemble, (self.job, self.kernel, objects)))
            elif self._to_plan:
                digests = _take(self._to_plan, PLANS)
                self._begin_call(_Call(f"plan {self._label(digests[0], len(digests))}", work.plan, (self.job, digests)))
            else:
                units = self._units(ahead)
                first = units[0]
                label = f"make {self._objects[first.digest].paths[0].path.name}: {first.functions[0].name}"
                self._begin_call(_Call(label, work.make, (self.job, units)))

    def _label(self, digest: str, count: int) -> str:
        name = self._objects[digest].paths[0].path.name
        return name if count == 1 else f"{name} and {count - 1} more"

    def _units(self, ahead: int) -> list[Unit]:
        """Functions for one call, those of an object together, if so many calls are open at once."""
        chosen: dict[str, list[Function]] = {}
        most = min(SLOTS, max(SLOTS // 4, self._slots_to_make // ahead))
        slots = count = 0
        while self._to_make and count < FUNCTIONS and (count == 0 or slots + self._to_make[0][1].slots <= most):
            digest, function = self._to_make.popleft()
            chosen.setdefault(digest, []).append(function)
            slots += function.slots
            count += 1
        self._slots_to_make -= slots
        return [Unit(digest, tuple(functions)) for digest, functions in chosen.items()]

    def _begin_call(self, call: _Call) -> None:
        key = next(self._keys)
        self._open[key] = call
        self.costs.calls += 1
        self.executor.submit(key, call.label, call.call, *call.arguments)

    def _ended(self, outcome: Outcome) -> None:
        call = self._open.pop(outcome.key)
        if outcome.error is None:
            if call.call is work.plan:
                self._have_plans(outcome.value)
            elif call.call is work.make:
                self._have_made(outcome.value)
            else:
                self._have_objects(outcome.value)
            return
        if isinstance(outcome.error, FarmError):
            raise outcome.error
        if not outcome.may_retry or call.tries >= RETRIES:
            raise FarmError(
                f"{call.label}: {outcome.error}", "what is finished stays in the store", INTERNAL
            ) from outcome.error
        self.costs.calls_again += 1
        call.tries += 1
        self._begin_call(call)

    def _have_plans(self, plans: list[Plan]) -> None:
        for plan in plans:
            self._planned(plan)
        self._show_total()

    def _planned(self, plan: Plan) -> None:
        o = self._objects[plan.digest]
        if plan.error is not None:
            self._finish(o, {"name": o.name, "input": o.digest, "error": plan.error}, resumed=False)
            return
        names = {f.part: f for f in plan.functions if f.part is not None}
        o.parts = tuple(names)
        for part, function in names.items():
            if part in self._parts_there:
                if part not in self._parts_asked:
                    self._parts_asked.add(part)
                    self.costs.functions_there += 1
                continue
            o.waits_for.add(part)
            self._waiting.setdefault(part, []).append(o.digest)
            if part not in self._parts_asked:
                self._parts_asked.add(part)
                self._to_make.append((o.digest, function))
                self._slots_to_make += function.slots
        if not o.waits_for:
            self._to_assemble.append(Assembly(o.digest, o.name, o.parts))

    def _have_made(self, made: Made) -> None:
        costs = self.costs
        costs.make_seconds += made.seconds
        costs.make_tool_seconds += made.tool_seconds
        costs.part_bytes += made.bytes_written
        costs.rules += made.rules_sent
        costs.rule_bytes += made.rule_bytes
        # A function that fails is left to its object, which then says why.
        for why in made.failed.values():
            self.watch.say(f"warning: {why}")
        for part in [*made.parts, *made.failed]:
            costs.functions += 1
            self._parts_there.add(part)
            for digest in self._waiting.pop(part, []):
                o = self._objects[digest]
                o.waits_for.discard(part)
                if not o.waits_for:
                    self._to_assemble.append(Assembly(o.digest, o.name, o.parts))
        self.watch.done(len(made.parts) + len(made.failed), 0)

    def _have_objects(self, entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            self.costs.assemble_seconds += float(entry.get("seconds") or 0.0)
            self._finish(self._objects[str(entry["input"])], entry, resumed=False)

    def _finish(self, o: _Object, entry: dict[str, Any], resumed: bool) -> None:
        data = None
        if entry.get("error") is None:
            data = self.job.store.get(f"{work.object_folder(self.job)}/{o.name}.o")
            if data is None:
                entry = {**entry, "error": "its result is no longer in the store"}
        for item in o.paths:
            if data is not None:
                item.target.parent.mkdir(parents=True, exist_ok=True)
                write_whole(item.target, data)
            self._rows[str(item.path)] = Row(str(item.path), str(item.target), entry, resumed)
        if not resumed:
            self.costs.objects += 1
        self.watch.done(0, len(o.paths))

    def _show_total(self) -> None:
        asked = len(self._parts_asked) - self.costs.functions_there
        self.watch.total(asked, sum(len(o.paths) for o in self._objects.values()))


def _take(queue: deque[Any], most: int) -> list[Any]:
    return [queue.popleft() for _ in range(min(most, len(queue)))]
