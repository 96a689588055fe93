"""What searches have learnt, shared by all workers: batches of rules as entries of the store.

A worker keeps the rules that it knows in a file of its own, as bpf-opt does on one machine. Before a unit it takes
the batches that others have sent since, after it it sends what is new. A batch is text that anybody may have
written, so nothing of it is trusted: bpf-opt proves each replacement where it applies it; and only replacements are
taken, without the effort that their finder claims, because that nothing better was found is a claim that nobody
could prove. A batch that cannot be read is left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from .job import Job

# How often a worker takes what others have learnt, and sends what it has, in seconds: each costs a process that reads
# all it knows.
EVERY = float(os.environ.get("BPF_OPT_FARM_RULES_EVERY", "5"))


# What a worker has sent.
class Sent(NamedTuple):
    rules: int
    size: int


_BY = re.compile(r"^  by (.*?), effort \d+(, excluded up to \d+)?$", re.MULTILINE)
_RULE = re.compile(r"^(?:rule|general)\b.*?^end$", re.MULTILINE | re.DOTALL)


def replacements(text: str) -> list[str]:
    """The rules in a text that say what a window becomes, each as a text of its own, without claims of effort."""
    rules = (match.group(0) for match in _RULE.finditer(text))
    found = (_BY.sub(r"  by \1, effort 0", rule) for rule in rules if re.search(r"^  becomes$", rule, re.MULTILINE))
    return list(dict.fromkeys(found))


class Rules:
    """The rules that this process knows, for one job."""

    _known: dict[tuple[str, str], Rules] = {}

    def __init__(self, job: Job) -> None:
        self.job = job
        self._folder = tempfile.TemporaryDirectory(prefix="bpf-opt-farm-rules-")
        self.cache = Path(self._folder.name, "rules.redb")
        self.arguments = ["--cache", str(self.cache)]
        self.refused = 0
        self._batches: set[str] = set()
        self._texts: set[str] = set()
        self._asked = float("-inf")
        self._sent = time.monotonic()

    @staticmethod
    def of(job: Job) -> Rules:
        """Those of this process."""
        key = (job.store.url, job.folder)
        if key not in Rules._known:
            Rules._known[key] = Rules(job)
        return Rules._known[key]

    def pull(self) -> None:
        """Takes what others have sent, if it was not asked for just now."""
        now = time.monotonic()
        if now - self._asked < EVERY:
            return
        self._asked = now
        folder = f"{self.job.folder}/rules"
        new = sorted(self.job.store.names(folder) - self._batches)
        for name, data in sorted(self.job.store.get_all(f"{folder}/{n}" for n in new).items()):
            self._batches.add(name.rsplit("/", 1)[-1])
            rules = [rule for rule in replacements(data.decode(errors="replace")) if rule not in self._texts]
            self._texts.update(rules)
            if rules and not self._take("\n\n".join(rules) + "\n"):
                # One that cannot be read must not keep the others out.
                self.refused += sum(not self._take(rule + "\n") for rule in rules)

    def _take(self, text: str) -> bool:
        file = Path(self._folder.name, "batch.txt")
        file.write_text(text, encoding="utf-8")
        return self._run("import", str(file)).returncode == 0

    def push(self) -> Sent:
        """Sends what is new, if nothing was sent just now."""
        nothing = Sent(0, 0)
        if time.monotonic() - self._sent < EVERY or not self.cache.exists():
            return nothing
        self._sent = time.monotonic()
        run = self._run("export", "-")
        new = [rule for rule in replacements(run.stdout) if rule not in self._texts] if run.returncode == 0 else []
        if not new:
            return nothing
        self._texts.update(new)
        data = ("\n\n".join(new) + "\n").encode()
        name = hashlib.sha256(data).hexdigest()[:32] + ".txt"
        self._batches.add(name)
        self.job.store.put(f"{self.job.folder}/rules/{name}", data)
        return Sent(len(new), len(data))

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [self.job.tool.here(), "rules", *words, "--cache", str(self.cache)]
        return subprocess.run(command, capture_output=True, text=True, check=False)
