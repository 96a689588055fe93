"""What goes wrong, in words for the user, with the exit codes of bpf-opt."""

from __future__ import annotations

OK = 0
BAD = 2
INTERNAL = 70
INTERRUPTED = 130


class FarmError(Exception):
    """Wrong usage, or something that cannot be read or written; `hint` says what to do."""

    def __init__(self, message: str, hint: str | None = None, code: int = BAD) -> None:
        super().__init__(message, hint, code)
        self.message = message
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"
