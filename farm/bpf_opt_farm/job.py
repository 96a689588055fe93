"""What is asked of every object of a job, as a value that workers get and names are made of."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import FarmError
from .store import Store

# Options of `bpf-opt opt` that say what is done to an object, and not where things lie or what is printed.
ALLOWED = {
    "--goal": 1, "--seed": 1, "--cpu": 1, "--min-kernel": 1, "--passes": 1, "--type": 1, "--max-verifier-growth": 1,
    "--strict-shared-memory": 0, "--keep-debug": 0, "--no-kernel": 0, "--no-run-check": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Tool:
    """A bpf-opt program. Two builds may give different bytes, so its hash is part of all names."""

    path: str
    digest: str

    @staticmethod
    def find(path: str | None) -> Tool:
        """The one that is named, that `BPF_OPT` names, or that is on the path."""
        named = path or os.environ.get("BPF_OPT") or "bpf-opt"
        found = shutil.which(named)
        if found is None:
            raise FarmError(f"{named}: no such program", "`make build` makes it; --bpf-opt PATH or BPF_OPT names it")
        found = os.path.abspath(found)
        help_ = subprocess.run([found, "opt", "--help"], capture_output=True, text=True, check=False).stdout
        if "--make-parts" not in help_:
            raise FarmError(f"{found}: is too old for the farm", "it must know `opt --by-function`")
        return Tool(found, hashlib.sha256(Path(found).read_bytes()).hexdigest())

    def here(self) -> str:
        """The same program on the machine that this runs on: at the same place, where `BPF_OPT` says, on the path."""
        seen = _HERE.get(self.digest)
        if seen is None:
            for place in (self.path, os.environ.get("BPF_OPT"), shutil.which("bpf-opt")):
                if (
                    place
                    and os.path.exists(place)
                    and hashlib.sha256(Path(place).read_bytes()).hexdigest() == self.digest
                ):
                    seen = _HERE[self.digest] = place
                    break
            else:
                raise FarmError(
                    f"{os.uname().nodename}: the driver's bpf-opt ({self.digest[:12]}) is not here",
                    "install the same build on every machine, at the same place, or name it in BPF_OPT",
                )
        return seen


_HERE: dict[str, str] = {}


@dataclass(frozen=True)
class Job:
    """What is asked of every object of a job: the program, its options, the budget, and where results lie."""

    tool: Tool
    store: Store
    options: tuple[str, ...] = ()
    rounds: int = 5
    time_limit: float = 3600.0
    share_rules: bool = False

    @property
    def asks_kernel(self) -> bool:
        """Whether results depend on the verdicts of the running kernel."""
        return "--no-kernel" not in self.options

    @property
    def arguments(self) -> list[str]:
        """For `bpf-opt opt`: one thread, since the farm has as many workers as there are processors."""
        budget = ["--rounds", str(self.rounds), "--by-function", "--time-limit", f"{self.time_limit:g}", "--jobs", "1"]
        return [*self.options, *budget]

    @property
    def folder(self) -> str:
        """Where what this build of the program has made lies in the store."""
        return self.tool.digest[:16]

    def object_name(self, digest: str, kernel: str) -> str:
        """The name of what becomes of an object: all that it depends on."""
        what = [digest, *self.options, f"rounds {self.rounds}", f"rules {self.share_rules}"]
        if self.asks_kernel:
            what.append(f"kernel {kernel}")
        return hashlib.sha256("\0".join(what).encode()).hexdigest()[:32]

    def plan_name(self, digest: str) -> str:
        """The name of the list of an object's functions."""
        what = [digest, *self.options, f"rounds {self.rounds}", f"rules {self.share_rules}"]
        return hashlib.sha256("\0".join(what).encode()).hexdigest()[:32]


def options_of(words: list[str]) -> tuple[str, ...]:
    """Options for `bpf-opt opt` as the user gives them, in one order; those that are not for the farm are refused."""
    taken: list[tuple[str, ...]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, is_joined, value = word.partition("=")
        if name not in ALLOWED:
            known = ", ".join(ALLOWED)
            raise FarmError(f"{word}: is no option that the farm hands on", f"it knows {known}")
        if ALLOWED[name] == 0:
            taken.append((name,))
            continue
        if not is_joined:
            if not rest:
                raise FarmError(f"{name}: its value is missing")
            value = rest.pop(0)
        taken.append((name, value))
    return tuple(word for option in sorted(taken) for word in option)
