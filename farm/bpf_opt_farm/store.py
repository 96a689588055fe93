"""Where inputs, results and the journal lie: a folder, or whatever fsspec can reach by a URL.

The one idea: every entry is one small file that is written once, whole, under a name made of what it depends on. So
entries need no locks, writing one twice does no harm, and what is listed is what is finished: the journal is the
list of names. A local folder gets a temporary file that is renamed; an object store makes an entry visible when its
single put ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import FarmError


class Store:
    """Entries by name (`parts/0a1b.json`). It can be sent to workers: they open the URL themselves."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs: Any = None
        self._root = ""

    def __getstate__(self) -> str:
        return self.url

    def __setstate__(self, url: str) -> None:
        self.__init__(url)  # type: ignore[misc]

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine (which may be shared with others)."""
        return "://" not in self.url or self.url.startswith("file://")

    def _open(self) -> Any:
        if self._fs is None:
            import fsspec

            try:
                self._fs, self._root = fsspec.core.url_to_fs(self.url)
            except (ImportError, ValueError) as e:
                raise FarmError(f"{self.url}: {e}", "pip install what fsspec needs for it: s3fs, gcsfs, adlfs …") from e
            self._root = self._root.rstrip("/")
        return self._fs

    def _path(self, name: str) -> str:
        self._open()
        return f"{self._root}/{name}"

    def put(self, name: str, data: bytes) -> None:
        """Writes an entry; nobody ever sees a part of it."""
        path = self._path(name)
        if not self.is_local:
            self._open().pipe_file(path, data)
            return
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        write_whole(Path(path), data)

    def get(self, name: str) -> bytes | None:
        """An entry; `None` if it is not there."""
        try:
            return bytes(self._open().cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def get_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Those of the entries that are there, asked for at once where that is quicker."""
        names = list(names)
        if self.is_local:
            found = {name: self.get(name) for name in names}
            return {name: data for name, data in found.items() if data is not None}
        paths = {self._path(name): name for name in names}
        if not paths:
            return {}
        read = self._open().cat(list(paths), on_error="omit")
        if isinstance(read, bytes):
            return {names[0]: read}
        return {paths.get(path) or paths["/" + path]: data for path, data in read.items()}

    def has(self, name: str) -> bool:
        """Whether an entry is there."""
        return bool(self._open().exists(self._path(name)))

    def names(self, folder: str) -> set[str]:
        """The last parts of the names of all entries in a folder."""
        fs = self._open()
        path = self._path(folder)
        if self.is_local:
            try:
                return {e.name for e in os.scandir(path) if not e.name.startswith(".")}
            except FileNotFoundError:
                return set()
        try:
            # What other processes have written since must be seen.
            fs.invalidate_cache(path)
            return {p.rsplit("/", 1)[-1] for p in fs.ls(path, detail=False)} - {""}
        except FileNotFoundError:
            return set()


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file of this machine: complete, or not touched."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
        raise
