"""What workers do, with a program in the place of bpf-opt; and once with bpf-opt itself."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bpf_opt_farm import work
from bpf_opt_farm.cli import main
from bpf_opt_farm.errors import FarmError
from bpf_opt_farm.job import Job, Tool
from bpf_opt_farm.store import Store

EXAMPLES = Path(__file__).parents[2] / "examples"


def put(job: Job, text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    job.store.put(f"inputs/{digest}.o", text.encode())
    return digest


def test_plan_make_and_assemble(tmp_path: Path, stub: str) -> None:
    job = Job(Tool.find(stub), Store(str(tmp_path / "s")), ("--no-kernel",))
    digests = [put(job, "f 3\nbad 4\n"), put(job, "! no"), put(job, "g 5\n")]
    plans = work.plan(job, digests)
    assert [p.error is None for p in plans] == [True, False, True]
    kept = job.store.get(work.plan_entry(job, digests[0]))
    assert kept is not None and work.plan_from_json(kept) == plans[0]
    made = work.make(job, [work.Unit(p.digest, p.functions) for p in plans if p.error is None])
    assert len(made.parts) == 2 and len(made.failed) == 1 and made.bytes_written > 0
    parts = tuple(f.part for f in plans[2].functions if f.part)
    entry = work.assemble(job, "any", [work.Assembly(digests[2], "name", parts)])[0]
    assert entry["error"] is None and (entry["slots_before"], entry["slots_after"]) == (5, 4)
    assert job.store.get(f"{work.object_folder(job)}/name.o") == b"better g 5\n"
    assert json.loads(job.store.get(f"{work.object_folder(job)}/name.json") or b"")["functions"] == 1


@pytest.mark.parametrize(
    ("gate", "is_kept"),
    [
        ("skipped: bpf() is not permitted here: Operation not permitted", False),
        ("accepted; not judged: time: xdp", False),
        ("accepted; not judged: xdp (Too many open files)", False),
        ("accepted", True),
        ("skipped: no program type goes with the section name", True),
    ],
)
def test_what_the_kernel_was_not_asked_about_is_no_result(
    tmp_path: Path, stub: str, monkeypatch: pytest.MonkeyPatch, gate: str, is_kept: bool
) -> None:
    monkeypatch.setenv("STUB_GATE", gate)
    for options in [(), ("--no-kernel",)]:
        job = Job(Tool.find(stub), Store(str(tmp_path / "s")), options)
        digest = put(job, "g 5\n")
        plan = work.plan(job, [digest])[0]
        work.make(job, [work.Unit(plan.digest, plan.functions)])
        parts = tuple(f.part for f in plan.functions if f.part)
        entry = work.assemble(job, os.uname().release, [work.Assembly(digest, "-".join(("n", *options)), parts)])[0]
        assert entry["error"] is None and entry["gate"] == gate
        kept = job.store.get(f"{work.object_folder(job)}/{entry['name']}.json")
        # Who asks no kernel has a result in any case.
        assert (kept is not None) == (is_kept or bool(options)), (gate, options)


def test_another_kernel_is_refused(tmp_path: Path, stub: str) -> None:
    job = Job(Tool.find(stub), Store(str(tmp_path / "s")))
    with pytest.raises(FarmError, match="runs Linux"):
        work.assemble(job, "2.4.0", [])


def test_another_build_of_the_program_is_refused(tmp_path: Path, stub: str) -> None:
    job = Job(Tool(stub, "f" * 64), Store(str(tmp_path / "s")))
    with pytest.raises(FarmError, match="is not here"):
        work.plan(job, [put(job, "f 3\n")])


def test_a_store_that_a_machine_does_not_reach_is_named(tmp_path: Path, stub: str) -> None:
    job = Job(Tool.find(stub), Store(str(tmp_path / "s")))
    with pytest.raises(FarmError, match="does not find 1 inputs"):
        work.plan(job, ["0" * 64])


def test_the_command_from_outside(tmp_path: Path, stub: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.o").write_text("f 3\n")
    (folder / "b.o").write_text("f 3\ng 4\n")
    out, report = str(tmp_path / "out"), str(tmp_path / "r.json")
    words = [str(folder), "-d", out, "--threads", "2", "--bpf-opt", stub, "--json", report]
    assert main([*words, "--", "--no-kernel"]) == 0
    read = json.loads(Path(report).read_text())
    assert read["totals"]["slots_before"] == 10 and read["costs"][0]["functions"] == 2
    assert (tmp_path / "out/b.o").read_text() == "better f 3\nbetter g 4\n"
    (folder / "c.o").write_text("!")
    assert main([*words, "--csv", "-", "--", "--no-kernel"]) == 2
    told = capsys.readouterr()
    assert "c.o" in told.err and "is no object" in told.err and told.out.count("\n") == 4


def test_a_store_behind_a_url_does_the_same(tmp_path: Path, stub: str) -> None:
    (tmp_path / "a.o").write_text("f 3\ng 4\n")
    words = [
        str(tmp_path / "a.o"),
        "-d",
        str(tmp_path / "out"),
        "--threads",
        "2",
        "--bpf-opt",
        stub,
        "--store",
        f"memory://{tmp_path.name}",
    ]
    report = tmp_path / "r.json"
    for there in (0, 1):
        assert main([*words, "--json", str(report), "--", "--no-kernel"]) == 0
        assert json.loads(report.read_text())["costs"][0]["objects_there"] == there
        assert (tmp_path / "out/a.o").read_text() == "better f 3\nbetter g 4\n"


WRONG = [
    [],
    ["none.o", "-d", "x"],
    ["-d", "x", "--threads", "0"],
    ["--campaign", "none.toml"],
    ["--campaign", "c", "-d", "x"],
]


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_exits_with_2(words: list[str], stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPF_OPT", stub)
    assert main(words) == 2


def test_without_ray_the_message_says_what_to_do(
    tmp_path: Path, stub: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "a.o").write_text("f 3\n")
    assert main([str(tmp_path / "a.o"), "-d", str(tmp_path / "out"), "--bpf-opt", stub]) == 2
    assert "pip install ray; or --threads N" in capsys.readouterr().err


def test_help_teaches() -> None:
    run = subprocess.run([sys.executable, "-m", "bpf_opt_farm", "--help"], capture_output=True, text=True, check=True)
    for word in ("--share-rules", "examples:", "exit codes:", "--by-function", "--store"):
        assert word in run.stdout


def test_with_shared_rules_the_results_are_there_and_right(tmp_path: Path, real: str) -> None:
    out, report = tmp_path / "out", tmp_path / "r.json"
    inputs = [str(EXAMPLES / name) for name in ("subprogs.o", "globals.o")]
    words = [
        *inputs,
        "-d",
        str(out),
        "--threads",
        "1",
        "--rounds",
        "1",
        "--share-rules",
        "--bpf-opt",
        real,
        "--json",
        str(report),
    ]
    assert main([*words, "-q", "--", "--no-kernel"]) == 0
    read = json.loads(report.read_text())
    assert read["costs"][0]["part_bytes"] > 0 and all(row["taken"] > 0 for row in read["objects"])
    for path in inputs:
        subprocess.run([real, "verify", path, str(out / Path(path).name)], check=True, capture_output=True)


def test_bpf_opt_itself_writes_the_bytes_of_one_process(tmp_path: Path, real: str) -> None:
    out, one = tmp_path / "out", tmp_path / "one.o"
    names = ["subprogs.o", "globals.o"]
    inputs = [str(EXAMPLES / name) for name in names]
    assert (
        main([*inputs, "-d", str(out), "--threads", "2", "--rounds", "1", "--bpf-opt", real, "-q", "--", "--no-kernel"])
        == 0
    )
    for name in names:
        command = [
            real,
            "opt",
            str(EXAMPLES / name),
            "-o",
            str(one),
            "--rounds",
            "1",
            "--by-function",
            "--no-cache",
            "--no-kernel",
            "-q",
        ]
        subprocess.run(command, check=True, capture_output=True)
        assert one.read_bytes() == (out / name).read_bytes(), name
