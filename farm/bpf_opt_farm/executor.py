"""Who carries calls out: threads of this process, or Ray's workers. The driver knows only `Executor`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import FarmError


@dataclass(frozen=True)
class Outcome:
    """What became of a call: its value, or why there is none. `may_retry`: its worker has died, not its work."""

    key: int
    value: Any = None
    error: BaseException | None = None
    may_retry: bool = False


class Executor(Protocol):
    """Carries out calls that may run anywhere, in any order."""

    def slots(self) -> int:
        """How many calls run at once now."""

    def submit(self, key: int, label: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Begins a call some time; `label` is for people."""

    def finished(self, timeout: float) -> Iterable[Outcome]:
        """Calls that have ended since, waited for so many seconds at most."""

    def close(self, wait_for_all: bool) -> None:
        """Gives back what it holds."""


class Threads:
    """Threads of this process: the work is done by processes that they wait for."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="farm")
        self._open: dict[Future[Any], int] = {}

    def slots(self) -> int:
        return self._count

    def submit(self, key: int, label: str, call: Callable[..., Any], *arguments: Any) -> None:
        self._open[self._pool.submit(call, *arguments)] = key

    def finished(self, timeout: float) -> Iterable[Outcome]:
        done, _ = wait(self._open, timeout, return_when=FIRST_COMPLETED)
        for future in done:
            key = self._open.pop(future)
            error = future.exception()
            yield Outcome(key, error=error) if error is not None else Outcome(key, future.result())

    def close(self, wait_for_all: bool) -> None:
        self._pool.shutdown(wait=wait_for_all, cancel_futures=True)


class OnRay:
    """Workers of a Ray cluster, one processor each. Ray begins a call again when its worker or node dies."""

    # Times that Ray begins a call again by itself; the driver does it beyond.
    RETRIES = 5

    def __init__(self, address: str | None) -> None:
        try:
            import ray
        except ImportError as e:
            raise FarmError("Ray is not installed", "pip install ray; or --threads N for this machine alone") from e
        self._ray: Any = ray
        self._was_there = ray.is_initialized()
        self._url: str | None = None
        if not self._was_there:
            try:
                self._url = self._ray.init(
                    address=address, log_to_driver=False, logging_level=logging.WARNING
                ).dashboard_url
            except (ConnectionError, ValueError) as e:
                raise FarmError(f"{address}: {e}", "`ray start --head` begins a cluster; its address is printed") from e
        self._remote: dict[Callable[..., Any], Any] = {}
        # What does not change from call to call is sent once.
        self._sent: dict[Any, Any] = {}
        self._open: dict[Any, int] = {}

    @property
    def dashboard(self) -> str:
        """Where Ray shows the work."""
        return self._url or "without a dashboard"

    def machines(self) -> int:
        """How many nodes there are."""
        return len({node["NodeManagerHostname"] for node in self._ray.nodes() if node["Alive"]})

    def slots(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, key: int, label: str, call: Callable[..., Any], *arguments: Any) -> None:
        remote = self._remote.get(call)
        if remote is None:
            remote = self._remote[call] = self._ray.remote(num_cpus=1, max_retries=self.RETRIES)(call)
        first, *rest = arguments
        sent = self._sent.get(first)
        if sent is None:
            sent = self._sent[first] = self._ray.put(first)
        self._open[remote.options(name=label).remote(sent, *rest)] = key

    def finished(self, timeout: float) -> Iterable[Outcome]:
        if not self._open:
            return
        handles = list(self._open)
        done, _ = self._ray.wait(handles, num_returns=1, timeout=timeout)
        if done:
            done, _ = self._ray.wait(handles, num_returns=len(handles), timeout=0)
        for handle in done:
            key = self._open.pop(handle)
            try:
                yield Outcome(key, self._ray.get(handle))
            except self._ray.exceptions.RayTaskError as e:
                yield Outcome(key, error=e.cause if isinstance(e.cause, FarmError) else e)
            except self._ray.exceptions.RayError as e:
                yield Outcome(key, error=e, may_retry=True)

    def close(self, wait_for_all: bool) -> None:
        for handle in self._open:
            self._ray.cancel(handle, force=not wait_for_all)
        if not self._was_there:
            self._ray.shutdown()
