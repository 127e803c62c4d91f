"""How frames get from the main process to the workers.

Workers of a :class:`concurrent.futures.ProcessPoolExecutor` run on the same machine, so they map
large frames from one file: on Linux a ``memfd``, which has no name that could be left behind and
does not depend on the size of ``/dev/shm``, elsewhere a file in a private directory.

A whole snapshot (:class:`Transport`) takes the place of the one of the batch before, so it must
not outlive the tasks of its batch. Small ones, and those for any other executor, travel inside
the tasks. A keyframe and the deltas after it (:class:`FrameLog`) stay in their file until the next
keyframe, so that a worker that is new or behind can catch up.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import uuid
import weakref
from array import array
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
        self._store: _Store | None = None

    def sink(self) -> BinaryIO | None:
        """File for the frame of the next batch, for ``Encoder``; ``None`` if there is none."""
        if self.mapped and self._store is None:
            self._store = _Store()
        return None if self._store is None else self._store.file

    def frame(self, data: bytes | None, size: int) -> Frame:
        """Describe the frame that has just been encoded.

        Args:
            data: the snapshot, ``None`` if it went to the sink.
            size: its size in bytes.
        """
        if data is not None:
            return Frame(data, "", size)
        assert self._store is not None
        self._store.file.flush()
        return Frame(None, self._store.path, size)

    def close(self) -> None:
        """Release the file. Mappings that workers still have stay readable."""
        if self._store is not None:
            self._store.close()
            self._store = None


class Chain:
    """Where a task finds a keyframe and the deltas that lead to its batch. Picklable.

    Attributes:
        token: bytes that no other chain has.
        path: file in which the frames lie one behind the other.
        ends: offsets of their ends.
    """

    __slots__ = ("ends", "path", "token")

    def __init__(self, token: bytes, path: str, ends: bytes) -> None:
        self.token = token
        self.path = path
        self.ends = ends

    def __reduce__(self) -> tuple[type[Chain], tuple[bytes, str, bytes]]:
        return Chain, (self.token, self.path, self.ends)


class FrameLog:
    """Keeps the frames of a source since the latest keyframe for the workers."""

    def __init__(self) -> None:
        self._store: _Store | None = None
        self._token = b""
        self._ends: array[int] = array("Q")

    def append(self, frame: bytes, *, is_keyframe: bool) -> Chain:
        """Add a frame.

        Args:
            frame: the frame. A keyframe takes the place of all before it.
            is_keyframe: whether it is one.

        Returns:
            The chain that ends with it.

        Raises:
            OSError: there is no room for it.
        """
        if is_keyframe or self._store is None:
            self.close()
            self._store = _Store()
            self._token = uuid.uuid4().bytes
        file = self._store.file
        file.write(frame)
        file.flush()
        self._ends.append(self.size + len(frame))
        return Chain(self._token, self._store.path, self._ends.tobytes())

    @property
    def size(self) -> int:
        """Bytes of all frames together."""
        return self._ends[-1] if self._ends else 0

    @property
    def keyframe_size(self) -> int:
        """Bytes of the keyframe."""
        return self._ends[0] if self._ends else 0

    def close(self) -> None:
        """Release the file."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self._ends = array("Q")


class ChainReader:
    """Reads the frames of one chain after the other in a worker process."""

    def __init__(self) -> None:
        self.token = b""
        self._descriptor = -1

    def frames_after(self, chain: Chain, known: int) -> Iterator[bytes]:
        """Read frames.

        Args:
            chain: the chain.
            known: how many frames of it to leave out.

        Yields:
            Frames.

        Raises:
            OSError: the file is gone.
        """
        if chain.token != self.token:
            self.close()
            self._descriptor = os.open(chain.path, os.O_RDONLY | os.O_CLOEXEC)
            self.token = chain.token
        ends = array("Q", chain.ends)
        for index in range(known, len(ends)):
            start = ends[index - 1] if index else 0
            frame = bytearray()
            while len(frame) < ends[index] - start:
                missing = ends[index] - start - len(frame)
                piece = os.pread(self._descriptor, missing, start + len(frame))
                if not piece:
                    raise OSError("the file with the frames of the simulation has been cut")
                frame += piece
            yield bytes(frame)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self.token = b""


class _Store:
    """A file that workers can open, as long as this object lives."""

    def __init__(self) -> None:
        self.file, self.path, directory = _open_memfd() or _open_temporary_file()
        self._finalizer = weakref.finalize(self, _discard, self.file, directory, os.getpid())

    def close(self) -> None:
        self._finalizer()


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
