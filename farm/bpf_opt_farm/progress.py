"""How far the work is: a line in the terminal that is drawn anew, or lines now and then where there is none."""

from __future__ import annotations

import sys
import time
from typing import Any


class Terminal:
    """A bar of functions, with objects behind it."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._bar: Any = tqdm(total=0, unit="function", dynamic_ncols=True, smoothing=0.05)
        self._objects = self._all = 0

    def total(self, functions: int, objects: int) -> None:
        self._bar.total, self._all = functions, objects
        self._show(0)

    def done(self, functions: int, objects: int) -> None:
        self._objects += objects
        self._show(functions)

    def _show(self, more: int) -> None:
        self._bar.set_postfix_str(f"{self._objects} of {self._all} objects", refresh=False)
        self._bar.update(more)
        self._bar.refresh()

    def say(self, line: str) -> None:
        self._bar.write(line, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


class Lines:
    """For logs: a line every half minute."""

    EVERY = 30.0

    def __init__(self) -> None:
        self._functions = self._objects = 0
        self._all = (0, 0)
        self._last = time.monotonic()

    def total(self, functions: int, objects: int) -> None:
        self._all = (functions, objects)

    def done(self, functions: int, objects: int) -> None:
        self._functions += functions
        self._objects += objects
        if time.monotonic() - self._last >= self.EVERY:
            self._last = time.monotonic()
            self.say(f"{self._functions} of {self._all[0]} functions, {self._objects} of {self._all[1]} objects")

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Quiet(Lines):
    """Warnings only."""

    EVERY = float("inf")
