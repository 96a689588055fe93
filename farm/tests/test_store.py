"""Entries are there as a whole, or not at all, wherever they lie."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from bpf_opt_farm.errors import FarmError
from bpf_opt_farm.store import Store, write_whole


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path / "s") if request.param == "folder" else f"memory://{tmp_path.name}")


def test_entries_come_back(store: Store) -> None:
    assert store.get("a/b") is None and store.names("a") == set() and not store.has("a/b")
    store.put("a/b", b"1")
    store.put("a/c", b"2")
    store.put("a/b", b"3")
    assert store.get("a/b") == b"3" and store.names("a") == {"b", "c"} and store.has("a/b")
    assert store.get_all(["a/b", "a/c", "a/d"]) == {"a/b": b"3", "a/c": b"2"}
    assert store.get_all(["a/b"]) == {"a/b": b"3"} and store.get_all([]) == {}


def test_a_store_goes_to_workers_as_its_url(store: Store) -> None:
    store.put("a", b"1")
    assert pickle.loads(pickle.dumps(store)).get("a") == b"1"


def test_what_fails_while_it_is_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, None)  # type: ignore[arg-type]
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["x"]


def test_half_written_files_are_no_entries(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.put("parts/a", b"1")
    (tmp_path / "parts/.tmp123").write_bytes(b"half")
    assert store.names("parts") == {"a"}


def test_a_url_that_nobody_knows_says_what_to_do() -> None:
    with pytest.raises(FarmError) as e:
        Store("nonsense://x").put("a", b"")
    assert "fsspec" in str(e.value)
