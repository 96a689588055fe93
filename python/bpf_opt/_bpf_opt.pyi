from typing import Callable, Optional

class Error(ValueError): ...

def optimize(
    object: bytes,
    goal: str,
    level: int,
    time_limit: float,
    seed: int,
    jobs: int,
    kernel: bool,
    run_check: bool,
    progress: Optional[Callable[[str], None]],
) -> tuple[bytes, str, int, int]: ...
def verify(a: bytes, b: bytes, time_limit: float, kernel: bool) -> tuple[bool, bool, str]: ...
def check(object: bytes, program_type: Optional[str]) -> str: ...
def filter(text: str, hook: str) -> bytes: ...
