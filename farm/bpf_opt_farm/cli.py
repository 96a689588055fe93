"""The command: what is to be done, by whom, and what is told of it."""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import __version__, campaign
from .errors import BAD, INTERNAL, INTERRUPTED, FarmError
from .executor import Executor, OnRay, Threads
from .farm import Farm, Result
from .job import Job, Tool, options_of
from .progress import Lines, Quiet, Terminal
from .store import Store, write_whole

ABOUT = """\
Optimizes many objects with bpf-opt on many machines.

The unit of work is a function with a fixed budget (--rounds), named by the hash of all that its result depends on.
What is finished lies in a store; the same command begun again goes on where the first ended, whoever was killed.
Functions that are the same in many objects are worked on once. Without --share-rules the objects are, to the byte,
those of one process:

    bpf-opt opt IN.o -o OUT.o --rounds N --by-function --no-cache
"""

EXAMPLES = """\
examples:
  bpf-opt-farm build/ -d out/ --threads 4                 this machine, without Ray; the store is out/.farm
  bpf-opt-farm build/ -d out/                             on the Ray cluster that runs here, or one for this run
  bpf-opt-farm build/ -d out/ --address 10.0.0.1:6379 --store s3://bucket/farm
  bpf-opt-farm --list objects.txt -d out/ --rounds 20 -- --no-kernel --cpu v2
  bpf-opt-farm --campaign nightly.toml --store /shared/farm --share-rules

Behind `--` stand options of `bpf-opt opt` for every object: --goal size|latency, --seed, --cpu, --min-kernel, --passes,
--type, --max-verifier-growth, --strict-shared-memory, --keep-debug, --no-kernel, --no-run-check. Without --no-kernel
every machine asks its own kernel, so all must run the same release.

A campaign is a TOML or JSON file: `[[job]]` with inputs, list, directory, rounds, options (docs/cluster.md).

exit codes: 0 all done; 2 wrong usage, or an object that could not be read or worked on (all others are done); 70 an
internal error; 130 interrupted. What is finished stays in the store in all cases.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        "bpf-opt-farm", description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="bpf-opt-farm [OPTIONS] IN.o|FOLDER… -d DIR [-- OPTIONS OF bpf-opt opt]",
    )  # fmt: skip
    p.add_argument("inputs", nargs="*", metavar="IN.o", help="objects, and folders: all .o files in them")
    what = p.add_argument_group("what")
    what.add_argument(
        "-d", "--directory", metavar="DIR", help="where results go: those of a folder keep their paths in it"
    )
    what.add_argument(
        "--list",
        action="append",
        default=[],
        metavar="FILE",
        help="also the objects that this file names (`-`: standard input)",
    )
    what.add_argument("--campaign", metavar="FILE", help="jobs of a TOML or JSON file, in place of inputs and -d")
    what.add_argument(
        "--rounds", type=int, metavar="N", help="the budget of each function: rounds of search [default: 5]"
    )
    what.add_argument(
        "--share-rules",
        action="store_true",
        help="workers tell each other what they learn; results then depend on who was first",
    )
    where = p.add_argument_group("where")
    where.add_argument(
        "--store",
        metavar="URL",
        help="where results and journal lie: a folder, or a URL for fsspec [default: DIR/.farm]",
    )
    where.add_argument(
        "--address", metavar="HOST:PORT", help="the Ray cluster [default: the one running here, else one for this run]"
    )
    where.add_argument("--threads", type=int, metavar="N", help="no Ray: so many processes on this machine")
    where.add_argument(
        "--bpf-opt",
        metavar="PATH",
        help="the program [default: $BPF_OPT, or bpf-opt on the path]; the same build everywhere",
    )
    told = p.add_argument_group("what is told")
    told.add_argument(
        "--json", metavar="FILE", help="write totals, costs and a row for each object (`-`: standard output)"
    )
    told.add_argument("--csv", metavar="FILE", help="write a row for each object (`-`: standard output)")
    told.add_argument("-q", "--quiet", action="store_true", help="nothing but warnings and errors")
    p.add_argument("--version", action="version", version=f"bpf-opt-farm {__version__}")
    return p


def main(argv: list[str] | None = None) -> int:
    """Runs the command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        at = words.index("--") if "--" in words else len(words)
        return run(parser().parse_args(words[:at]), words[at + 1 :])
    except FarmError as e:
        print(f"bpf-opt-farm: {e}", file=sys.stderr)
        return e.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BAD
    except Exception:
        traceback.print_exc()
        print("bpf-opt-farm: an internal error, please report it; what is finished stays in the store", file=sys.stderr)
        return INTERNAL


def run(args: argparse.Namespace, options: list[str]) -> int:
    """Does all jobs, one after the other."""
    if args.campaign:
        if args.inputs or args.list or args.directory or args.rounds is not None:
            raise FarmError("--campaign says which objects, where to, and how many rounds; leave the others out")
        url, jobs = campaign.read(args.campaign)
        url = args.store or url
    else:
        if not args.directory:
            raise FarmError("-d DIR is missing: where results go", "bpf-opt-farm --help shows examples")
        directory = Path(args.directory)
        items = campaign.gather(args.inputs, args.list, directory)
        rounds = 5 if args.rounds is None else args.rounds
        jobs, url = [campaign.JobFile(items, directory, rounds, ())], args.store
    if any(job.rounds < 0 for job in jobs):
        raise FarmError("--rounds: a number that is not negative")
    if args.threads is not None and args.threads < 1:
        raise FarmError("--threads: a number from 1")
    tool = Tool.find(args.bpf_opt)
    made = [
        Job(
            tool,
            _store(url, job.directory),
            options_of([*job.options, *options]),
            job.rounds,
            share_rules=args.share_rules,
        )
        for job in jobs
    ]
    executor: Executor = Threads(args.threads) if args.threads else OnRay(args.address)
    if isinstance(executor, OnRay):
        if not args.quiet:
            print(f"Ray: {executor.slots()} processors, {executor.dashboard}", file=sys.stderr)
        local = [job.store.url for job in made if job.store.is_local]
        if local and executor.machines() > 1 and not args.quiet:
            print(f"note: {local[0]} must be a folder that all machines share", file=sys.stderr)
    watch = Quiet() if args.quiet else Terminal() if sys.stderr.isatty() else Lines()
    results: list[Result] = []
    try:
        for job, file in zip(made, jobs, strict=True):
            results.append(Farm(job, executor, watch).run(file.items))
            if results[-1].interrupted:
                break
    finally:
        watch.close()
        executor.close(wait_for_all=bool(results) and not results[-1].interrupted)
    _tell(args, results)
    if any(result.interrupted for result in results):
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    return max(result.code for result in results)


def _store(url: str | None, directory: Path) -> Store:
    if url is None:
        return Store(os.path.abspath(directory / ".farm"))
    return Store(url if "://" in url else os.path.abspath(url))


def _tell(args: argparse.Namespace, results: list[Result]) -> None:
    rows = [
        {
            "object": row.path,
            "output": row.target,
            "resumed": row.resumed,
            **{k: v for k, v in row.entry.items() if k != "name"},
        }
        for result in results
        for row in result.rows
    ]
    failed = [row for row in rows if row.get("error")]
    for row in failed:
        print(f"bpf-opt-farm: {row['object']}: {row['error']}", file=sys.stderr)
    totals: dict[str, Any] = {"objects": len(rows), "failed": len(failed)}
    for name in ("functions", "changed", "slots_before", "slots_after"):
        totals[name] = sum(row.get(name) or 0 for row in rows)
    costs = [asdict(result.costs) for result in results]
    if args.json:
        text = json.dumps(
            {"tool": "bpf-opt-farm", "version": __version__, "totals": totals, "costs": costs, "objects": rows},
            indent=1,
        )
        _write(args.json, text + "\n")
    if args.csv:
        _write_csv(args.csv, rows)
    if args.quiet:
        return
    before, after = totals["slots_before"], totals["slots_after"]
    saved = 100 * (before - after) / before if before else 0.0
    again = sum(1 for row in rows if row.get("again"))
    made, there = sum(c["functions"] for c in costs), sum(c["functions_there"] for c in costs)
    seconds, driver = sum(c["seconds"] for c in costs), sum(c["driver_seconds"] for c in costs)
    print(
        f"{len(rows)} objects, {totals['functions']} functions: {before} -> {after} slots ({saved:.1f} % saved), "
        f"{len(failed)} failed\n"
        f"functions: {made} worked on, {there} there already, the others twins of these; "
        f"{again} objects made again for a verdict\n"
        f"{seconds:.1f} s; driver {driver:.1f} s of processor time, {sum(c['calls'] for c in costs)} calls",
        file=sys.stderr,
    )


def _write(path: str, text: str) -> None:
    if path == "-":
        print(text, end="")
        return
    try:
        write_whole(Path(path), text.encode())
    except OSError as e:
        raise FarmError(f"{path}: {e}") from e


def _write_csv(path: str, rows: list[dict[str, Any]]) -> None:
    import io

    columns = ("object", "functions", "changed", "slots_before", "slots_after", "verified_before", "verified_after",
               "gate", "again", "seconds", "host", "resumed", "output", "error")  # fmt: skip
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _write(path, out.getvalue())


if __name__ == "__main__":
    sys.exit(main())
