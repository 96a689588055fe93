"""Which objects, with which options, and where results go.

A campaign is a file (TOML or JSON) with a table for each job, in the order in which they are run:

    store = "s3://bucket/farm"          # these may also stand on the command line

    [[job]]
    inputs = ["build/", "more.o"]       # folders and objects; `list = "FILE"` for a file that names them
    directory = "out/size"
    rounds = 20
    options = ["--goal", "size"]        # of `bpf-opt opt`

Paths are relative to the file's folder. Where results go is what `bpf-opt opt … -d DIR` does: what is in a folder
keeps its path below that folder, a file goes by its name.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import FarmError


@dataclass(frozen=True)
class Item:
    """An object, and where its result goes."""

    path: Path
    target: Path


@dataclass(frozen=True)
class JobFile:
    """One job as the user describes it."""

    items: tuple[Item, ...]
    directory: Path
    rounds: int
    options: tuple[str, ...]


def gather(inputs: list[str], lists: list[str], directory: Path, base: Path = Path()) -> tuple[Item, ...]:
    """The objects that are named, and all `.o` files in the folders that are; two for one place are refused."""
    words = [base / word for word in inputs]
    for name in lists:
        try:
            text = sys.stdin.read() if name == "-" else (base / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise FarmError(f"{name}: {e}") from e
        lines = (line.strip() for line in text.splitlines())
        words += [base / line for line in lines if line and not line.startswith("#")]
    items: list[Item] = []
    out = directory.resolve()
    for word in words:
        if word.is_dir():
            below = sorted(_objects(word, out))
            items += [Item(path, directory / path.relative_to(word)) for path in below]
        elif word.exists():
            items.append(Item(word, directory / word.name))
        else:
            raise FarmError(f"{word}: is not there")
    if not items:
        raise FarmError("no objects", "name objects, folders with .o files in them, or a list of them (--list)")
    seen: dict[Path, Path] = {}
    paths = {item.path.resolve() for item in items}
    for item in items:
        other = seen.setdefault(item.target, item.path)
        if other != item.path:
            raise FarmError(f"{item.path} and {other} would both go to {item.target}")
        target = item.target.resolve()
        if target in paths and target != item.path.resolve():
            raise FarmError(f"{item.target}: the result of {item.path} would overwrite another input")
    return tuple(dict.fromkeys(items))


def _objects(folder: Path, out: Path) -> list[Path]:
    """All `.o` files below a folder, but for those in `out`, if that is another one."""
    found = []
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [f for f in folders if (here / f).resolve() != out]
        found += [here / f for f in files if f.endswith(".o")]
    return found


def read(path: str) -> tuple[str | None, list[JobFile]]:
    """A campaign's store, if it names one, and its jobs."""
    file = Path(path)
    try:
        data = _parse(file)
    except (OSError, ValueError) as e:
        raise FarmError(f"{path}: {e}") from e
    _known(path, data, {"store": str, "job": list})
    jobs = []
    fields = {"inputs": list, "list": str, "directory": str, "rounds": int, "options": list}
    for number, job in enumerate(data.get("job", []), 1):
        where = f"{path}: job {number}"
        if not isinstance(job, dict):
            raise FarmError(f"{where}: is no table")
        _known(where, job, fields)
        if "directory" not in job or not ({"inputs", "list"} & job.keys()):
            raise FarmError(f"{where}: needs `directory`, and `inputs` or `list`")
        directory = file.parent / job["directory"]
        lists = [job["list"]] if "list" in job else []
        items = gather([str(i) for i in job.get("inputs", [])], lists, directory, file.parent)
        jobs.append(JobFile(items, directory, job.get("rounds", 5), tuple(str(o) for o in job.get("options", []))))
    if not jobs:
        raise FarmError(f"{path}: has no [[job]]")
    return data.get("store"), jobs


def _parse(file: Path) -> dict[str, Any]:
    data: Any
    if file.suffix == ".json":
        data = json.loads(file.read_text(encoding="utf-8"))
    else:
        try:
            import tomllib
        except ImportError:
            import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError("is no table")
    return data


def _known(where: str, table: dict[str, Any], fields: dict[str, type]) -> None:
    for name, value in table.items():
        if name not in fields:
            raise FarmError(f"{where}: `{name}` is not known", f"there are {', '.join(fields)}")
        if not isinstance(value, fields[name]) or isinstance(value, bool):
            raise FarmError(f"{where}: `{name}` must be a {fields[name].__name__}")
