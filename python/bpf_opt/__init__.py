"""Optimizes eBPF objects; every change is proven equal, and checked by the kernel's verifier.

>>> done = bpf_opt.optimize(open("prog.o", "rb").read())
>>> done.slots_before, done.slots_after
(120, 97)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from . import _bpf_opt
from ._bpf_opt import Error

__all__ = ["Checked", "Error", "Optimized", "Verified", "check", "filter", "optimize", "verify"]


@dataclass(frozen=True)
class Optimized:
    """An optimized object, and what became of each function (the fields of ``bpf-opt opt --json``)."""

    object: bytes = field(repr=False)
    report: dict[str, Any] = field(repr=False)
    slots_before: int
    slots_after: int


@dataclass(frozen=True)
class Verified:
    """Whether two objects are equal: proven (``equal``), shown to differ (``different``), or neither."""

    equal: bool
    different: bool
    report: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Checked:
    """How safe a program is: ``verdict`` is ``safe``, ``violation`` or ``unknown``."""

    name: str
    verdict: str
    problem: Optional[str]


def optimize(
    object: bytes,
    *,
    goal: str = "size",
    level: int = 2,
    time_limit: float = 10.0,
    seed: int = 1,
    jobs: int = 1,
    kernel: bool = True,
    run_check: bool = True,
    progress: Optional[Callable[[str], None]] = None,
) -> Optimized:
    """Optimizes an object.

    ``goal`` is ``size``, ``latency`` or ``verifier``; ``level``, from 1 to 4, is that of ``bpf-opt opt -O``; ``time_limit`` is in
    seconds. ``progress`` is called with a line of text whenever something new begins; an exception that it raises ends the work.
    Raises :class:`Error` for what is no BPF object.
    """
    code, report, before, after = _bpf_opt.optimize(
        object, goal, level, time_limit, seed, jobs, kernel, run_check, progress
    )
    return Optimized(code, json.loads(report), before, after)


def verify(a: bytes, b: bytes, *, time_limit: float = 60.0, kernel: bool = True) -> Verified:
    """Proves that two objects behave the same, or finds an input on which they do not."""
    equal, different, report = _bpf_opt.verify(a, b, time_limit, kernel)
    return Verified(equal, different, json.loads(report))


def check(object: bytes, *, program_type: Optional[str] = None) -> list[Checked]:
    """Judges the safety of all programs as the kernel's verifier does, without asking it."""
    return [Checked(**c) for c in json.loads(_bpf_opt.check(object, program_type))]


def filter(text: str, *, hook: str = "xdp") -> bytes:
    """Compiles a filter of tcpdump's language to an object that lets pass what matches and drops the rest.

    ``hook`` is ``xdp``, ``tc``, ``cgroup-skb`` or ``socket``.
    """
    return _bpf_opt.filter(text, hook)
