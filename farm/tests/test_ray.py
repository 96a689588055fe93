"""On Ray: two nodes as processes of this machine, one of which is killed in the middle."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

try:
    import ray  # noqa: F401
except ImportError:
    pytest.skip("Ray is not installed: pip install ray", allow_module_level=True)

from conftest import Silent

from bpf_opt_farm import campaign, work
from bpf_opt_farm.executor import OnRay
from bpf_opt_farm.farm import Farm
from bpf_opt_farm.job import Job, Tool
from bpf_opt_farm.store import Store


def test_a_killed_node_loses_no_finished_result(tmp_path: Path, stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster

    trace = tmp_path / "trace"
    trace.mkdir()
    monkeypatch.setenv("BPF_OPT_FARM_TRACE", str(trace))
    monkeypatch.setenv("STUB_SECONDS", "0.1")
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(40):
        (folder / f"o{n}.o").write_text(f"all 300\nown{n} 500\n")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    store = Store(str(tmp_path / "store"))
    job = Job(Tool.find(stub), store, ("--no-kernel",))
    killed = threading.Event()

    def kill_when_there_is_something() -> None:
        while len(store.names(work.part_folder(job))) < 8:
            time.sleep(0.05)
        cluster.remove_node(other, allow_graceful=False)
        killed.set()

    try:
        executor = OnRay(cluster.address)
        threading.Thread(target=kill_when_there_is_something, daemon=True).start()
        items = campaign.gather([str(folder)], [], tmp_path / "out")
        result = Farm(job, executor, Silent()).run(items)
        executor.close(wait_for_all=True)
    finally:
        cluster.shutdown()
    assert killed.is_set() and result.code == 0 and len(result.rows) == 40
    assert all((tmp_path / f"out/o{n}.o").read_text() == f"better all 300\nbetter own{n} 500\n" for n in range(40))
    ended = [
        line.split()[2] for file in os.scandir(trace) for line in Path(file).read_text().splitlines() if " end " in line
    ]
    assert len(ended) - len(set(ended)) <= 1, "twice only what was in flight"
