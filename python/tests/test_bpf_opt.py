"""The package as users have it: `make wheel-test` runs this in a fresh virtual environment."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import bpf_opt

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def example(name):
    return (EXAMPLES / name).read_bytes()


def test_an_object_is_optimized_and_proven_equal():
    lines = []
    done = bpf_opt.optimize(example("xdp_count.o"), level=1, kernel=False, run_check=False, progress=lines.append)
    assert done.slots_after < done.slots_before and lines
    assert done.report["functions"][0]["name"] == "xdp_count"
    assert bpf_opt.verify(example("xdp_count.o"), done.object, kernel=False).equal
    assert not bpf_opt.verify(example("xdp_count.o"), example("subprogs.o"), kernel=False).equal


def test_filters_and_checks():
    assert [c.verdict for c in bpf_opt.check(bpf_opt.filter("tcp port 80"))] == ["safe"]
    for wrong in (lambda: bpf_opt.filter("tcp prot 80"), lambda: bpf_opt.optimize(b"no object"),
                  lambda: bpf_opt.optimize(example("xdp_count.o"), goal="beauty")):
        try:
            wrong()
        except ValueError as e:
            assert str(e)
        else:
            raise AssertionError("no exception")


def test_an_exception_of_progress_ends_it():
    def no(_):
        raise KeyError("enough")

    try:
        bpf_opt.optimize(example("xdp_count.o"), kernel=False, progress=no)
    except KeyError:
        return
    raise AssertionError("no exception")


def test_other_threads_run_meanwhile():
    turns = []
    thread = threading.Thread(target=lambda: bpf_opt.optimize(example("subprogs.o"), level=4, time_limit=2, kernel=False))
    thread.start()
    while thread.is_alive():
        turns.append(1)
        time.sleep(0.01)
    assert len(turns) > 3


def big():
    """An object with which each call takes longer than the test waits, where it is there."""
    return next((p for p in [EXAMPLES.parent.parent / "shared/bench/k2/19-xdp-balancer.o"] if p.exists()), EXAMPLES / "subprogs.o")


def interrupted(call):
    """Seconds from SIGINT to the end of a process that is in `call`, with `data` the bytes of an object, and what it says."""
    code = f"import bpf_opt, sys; data = open(sys.argv[1], 'rb').read(); print('on', flush=True); {call}"
    child = subprocess.Popen([sys.executable, "-c", code, str(big())], cwd=EXAMPLES, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.stdout.readline()
    time.sleep(0.3)
    sent = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=10)
    return time.monotonic() - sent, err


def test_ctrl_c_ends_it_within_half_a_second():
    took, err = interrupted("bpf_opt.optimize(data, level=4, time_limit=60, kernel=False)")
    assert took < 0.5, took
    assert "KeyboardInterrupt" in err, err


def test_ctrl_c_ends_verifying_within_half_a_second():
    took, err = interrupted("[bpf_opt.verify(data, data[:], time_limit=60, kernel=False) for _ in range(1000)]")
    assert took < 0.5, took
    assert "KeyboardInterrupt" in err, err


if __name__ == "__main__":
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"{name}: ok")
