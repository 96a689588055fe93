"""Which objects, and where results go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bpf_opt_farm import campaign
from bpf_opt_farm.errors import FarmError
from bpf_opt_farm.job import options_of


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_folders_keep_their_paths_and_files_their_names(tmp_path: Path) -> None:
    touch(
        tmp_path / "in/net/a.o",
        tmp_path / "in/b.o",
        tmp_path / "in/c.txt",
        tmp_path / "x/d.o",
        tmp_path / "in/out/old.o",
    )
    out = tmp_path / "in/out"
    items = campaign.gather([str(tmp_path / "in"), str(tmp_path / "x/d.o")], [], out)
    assert {str(i.target.relative_to(out)) for i in items} == {"net/a.o", "b.o", "d.o"}


def test_two_objects_for_one_place_are_refused(tmp_path: Path) -> None:
    touch(tmp_path / "a/x.o", tmp_path / "b/x.o")
    with pytest.raises(FarmError, match="both go to"):
        campaign.gather([str(tmp_path / "a/x.o"), str(tmp_path / "b/x.o")], [], tmp_path / "out")
    touch(tmp_path / "d/sub/x.o", tmp_path / "e/sub/x.o")
    with pytest.raises(FarmError, match="overwrite"):
        campaign.gather([str(tmp_path / "d/sub/x.o"), str(tmp_path / "e")], [], tmp_path / "d")


def test_lists_have_remarks(tmp_path: Path) -> None:
    touch(tmp_path / "a.o")
    (tmp_path / "list").write_text("# remark\n\na.o\n")
    assert len(campaign.gather([], ["list"], tmp_path / "out", tmp_path)) == 1
    with pytest.raises(FarmError, match="no objects"):
        campaign.gather([], [], tmp_path / "out")
    with pytest.raises(FarmError, match="is not there"):
        campaign.gather(["none.o"], [], tmp_path / "out", tmp_path)


def test_a_campaign_has_jobs_with_options_of_their_own(tmp_path: Path) -> None:
    touch(tmp_path / "in/a.o")
    jobs = [
        {"inputs": ["in"], "directory": "out/1", "rounds": 2, "options": ["--goal", "size"]},
        {"inputs": ["in/a.o"], "directory": "o2"},
    ]
    (tmp_path / "c.json").write_text(json.dumps({"store": "s3://b/f", "job": jobs}))
    store, read = campaign.read(str(tmp_path / "c.json"))
    assert store == "s3://b/f" and [j.rounds for j in read] == [2, 5]
    assert read[0].items[0].target == tmp_path / "out/1/a.o" and read[0].options == ("--goal", "size")
    (tmp_path / "c.toml").write_text('[[job]]\ninputs = ["in"]\ndirectory = "out"\n')
    assert campaign.read(str(tmp_path / "c.toml"))[1][0].rounds == 5


@pytest.mark.parametrize("text", ["[", "{}", '{"job": [3]}', '{"job": [{"inputs": ["in"]}]}', '{"jobs": []}',
                                  '{"job": [{"inputs": "in", "directory": "o"}]}'])  # fmt: skip
def test_a_campaign_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(FarmError):
        campaign.read(str(tmp_path / "c.json"))


def test_options_have_one_order_and_unknown_ones_are_refused() -> None:
    assert options_of(["--seed", "3", "--goal=size"]) == options_of(["--goal", "size", "--seed=3"])
    for words in (["--json", "x"], ["--rounds", "3"], ["--goal"], ["x.o"]):
        with pytest.raises(FarmError):
            options_of(words)
