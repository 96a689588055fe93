"""What workers tell each other: replacements only, and nothing that would have to be believed."""

from __future__ import annotations

from pathlib import Path

from bpf_opt_farm.job import Job, Tool
from bpf_opt_farm.rules import Rules, replacements
from bpf_opt_farm.store import Store

GOOD = """rule cpu v3 goal size
  assume r0: number unsigned 0x0..0xffffffff
  code
    r0 <<= 0x20
    r0 >>= 0x20
  live r0
  becomes
    nothing
  by enumerate, effort 120, excluded up to 1
end
"""
UNSOLVED = """rule cpu v3 goal size
  code
    r0 = 0x5
  live r0
  unsolved
  by nobody, effort 999999999, excluded up to 40
end
"""


def test_only_replacements_are_shared_and_no_claims_of_effort() -> None:
    found = replacements(UNSOLVED + "\n" + GOOD + "\nrubbish\n" + GOOD)
    assert len(found) == 1
    assert "by enumerate, effort 0\n" in found[0] and "excluded" not in found[0] and "999" not in found[0]
    assert replacements("rule without end\n  becomes\n") == [] and replacements("\0\xff") == []


def test_a_batch_that_cannot_be_read_costs_nothing_but_itself(tmp_path: Path, real: str) -> None:
    job = Job(Tool.find(real), Store(str(tmp_path / "s")), share_rules=True)
    folder = f"{job.folder}/rules"
    bad = GOOD.replace("r0 <<= 0x20", "r0 becomes a pumpkin")
    wrong = GOOD.replace("r0 >>= 0x20", "r0 >>= 0x21")
    job.store.put(f"{folder}/1.txt", (bad + "\n" + GOOD).encode())
    job.store.put(f"{folder}/2.txt", b"\xff\xfe\0")
    job.store.put(f"{folder}/3.txt", (UNSOLVED + "\n" + wrong).encode())
    rules = Rules(job)
    rules.pull()
    text = rules._run("export", "-").stdout
    assert rules.refused == 1
    assert "r0 >>= 0x20" in text and "pumpkin" not in text and "unsolved" not in text
    # What others have sent is not sent again.
    rules._sent = float("-inf")
    assert rules.push() == (0, 0)


def test_what_is_learnt_is_sent_in_batches_and_reaches_others(tmp_path: Path, real: str) -> None:
    job = Job(Tool.find(real), Store(str(tmp_path / "s")), share_rules=True)
    one, other = Rules(job), Rules(job)
    assert one._take(GOOD)
    assert one.push() == (0, 0), "not yet"
    one._sent = float("-inf")
    sent = one.push()
    assert sent.rules == 1 and sent.size > 0
    other.pull()
    assert "r0 >>= 0x20" in other._run("export", "-").stdout
    other._sent = float("-inf")
    assert other.push() == (0, 0)
