"""How a frame gets from the main process to the workers.

Workers of a :class:`concurrent.futures.ProcessPoolExecutor` run on the same machine, so they map
large frames from one file: on Linux a ``memfd``, which has no name that could be left behind and
does not depend on the size of ``/dev/shm``, elsewhere a file in a private directory. The file
is used again for every batch, so frames must not outlive the tasks of their batch. Small frames,
and frames for any other executor, travel inside the tasks.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Largest frame, in bytes, that travels inside a task.
INLINE_LIMIT = 64 * 1024


class Frame:
    """Where a task finds the snapshot of its batch. Picklable."""

    __slots__ = ("_data", "_path", "_size")

    def __init__(self, data: bytes | None, path: str, size: int) -> None:
        self._data = data
        self._path = path
        self._size = size

    def __reduce__(self) -> tuple[type[Frame], tuple[bytes | None, str, int]]:
        return Frame, (self._data, self._path, self._size)

    @contextlib.contextmanager
    def open(self) -> Iterator[Buffer]:
        """Give access to the bytes of the snapshot, until the context is left."""
        if self._data is not None:
            yield self._data
            return
        with open(self._path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ)
        with mapped:
            yield mapped


class Transport:
    """Holds the file of the frames of one executor, if it needs one.

    Args:
        mapped: whether the workers can open a file of this machine.
    """

    def __init__(self, *, mapped: bool) -> None:
        self.mapped = mapped
        self._path = ""
        self._file: BinaryIO | None = None
        self._finalizer: weakref.finalize[..., Transport] | None = None

    def sink(self) -> BinaryIO | None:
        """File for the frame of the next batch, for ``Encoder``; ``None`` if there is none."""
        if self.mapped and self._file is None:
            self._file, self._path, directory = _open_memfd() or _open_temporary_file()
            self._finalizer = weakref.finalize(self, _discard, self._file, directory, os.getpid())
        return self._file

    def frame(self, data: bytes | None, size: int) -> Frame:
        """Describe the frame that has just been encoded.

        Args:
            data: the snapshot, ``None`` if it went to the sink.
            size: its size in bytes.
        """
        if data is None:
            assert self._file is not None
            self._file.flush()
        return Frame(data, self._path if data is None else "", size)

    def close(self) -> None:
        """Release the file. Mappings that workers still have stay readable."""
        if self._finalizer is not None:
            self._finalizer()
        self._file = None
        self._finalizer = None


def _open_memfd() -> tuple[BinaryIO, str, None] | None:
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create("pams-parallel")
    except OSError:
        return None
    process = f"/proc/{os.getpid()}"
    path = f"{process}/fd/{descriptor}"
    try:
        # /proc can be missing or show another PID namespace, and the entries of a process that
        # must not be dumped belong to root: then workers could not open the file.
        reachable = os.path.samestat(os.stat(path), os.fstat(descriptor))
        reachable = reachable and os.stat(process).st_uid == os.geteuid()
    except OSError:
        reachable = False
    if not reachable:
        os.close(descriptor)
        return None
    return open(descriptor, "wb"), path, None


def _open_temporary_file() -> tuple[BinaryIO, str, str]:
    directory = tempfile.mkdtemp(prefix="pams-parallel-")
    path = os.path.join(directory, "frame")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return open(path, "wb", opener=lambda name, _: os.open(name, flags, 0o600)), path, directory


def _discard(file: BinaryIO, directory: str | None, owner: int) -> None:
    # What a full disk kept from being written is of no use any more.
    with contextlib.suppress(OSError):
        file.close()
    # A forked child has a copy of the finalizer, but the file is its parent's.
    if directory is not None and os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
