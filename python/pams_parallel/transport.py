"""How frames get from the main process to the workers.

Workers of a :class:`concurrent.futures.ProcessPoolExecutor` run on the same machine, so they map
large frames from one file: on Linux a ``memfd``, which has no name that could be left behind and
does not depend on the size of ``/dev/shm``, elsewhere a file in a private directory.

A whole snapshot (:class:`Transport`) takes the place of the one of the batch before, so it must
not outlive the tasks of its batch. Small ones, and those for any other executor, travel inside
the tasks. A keyframe and the deltas after it (:class:`FrameLog`) stay in their file until they have
become longer than another keyframe, so that a worker that is new or behind can catch up.
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
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

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


class Segment(NamedTuple):
    """Frames that lie one behind the other in one file.

    Attributes:
        token: bytes that no other segment has. Paths are used again.
        path: the file.
        first: sequence number of the first frame, a keyframe.
        ends: offsets of their ends (``uint64``).
    """

    token: bytes
    path: str
    first: int
    ends: bytes

    @property
    def last(self) -> int:
        """Sequence number of the last frame."""
        return self.first + len(self.ends) // 8 - 1


class Chain(NamedTuple):
    """Where a task finds the frames that lead to its batch.

    Attributes:
        token: bytes that no chain with another numbering of objects has.
        segments: each begins with a checkpoint of where the one before it ends; see
            :meth:`pams_parallel.snapshot.Source.checkpoint`.
    """

    token: bytes
    segments: tuple[Segment, ...]


class FrameLog:
    """Keeps the frames of a source for the workers.

    They begin with the latest keyframe or checkpoint. The frames that a checkpoint has made
    needless for new workers are kept for a while, for workers that are only a bit behind.
    """

    # Frames after a checkpoint for which those before it are kept.
    _GRACE = 64

    def __init__(self) -> None:
        self._store: _Store | None = None
        self._chain_token = b""
        self._token = b""
        self._first = 0
        self._ends: array[int] = array("Q")
        self._former: tuple[_Store, Segment] | None = None
        # Stores that only tasks of the latest batch still need.
        self._expired: list[_Store] = []

    def append(self, frame: bytes, sequence: int, *, is_keyframe: bool) -> Chain:
        """Add a frame.

        Args:
            frame: the frame. A keyframe takes the place of all before it.
            sequence: its sequence number.
            is_keyframe: whether it is one.

        Returns:
            The chain that ends with it.

        Raises:
            OSError: there is no room for it.
        """
        self._close_expired()
        if is_keyframe or self._store is None:
            self.close()
            self._chain_token = uuid.uuid4().bytes
            self._begin(sequence)
        elif len(self._ends) > self._GRACE:
            self._expire_former()
            self._close_expired()
        segment = self._write(frame)
        segments = (segment,) if self._former is None else (self._former[1], segment)
        return Chain(self._chain_token, segments)

    def begin_with(self, checkpoint: bytes, sequence: int) -> None:
        """Begin anew with a checkpoint of the latest frame.

        Args:
            checkpoint: the checkpoint.
            sequence: sequence number of both.

        Raises:
            OSError: there is no room for it.
        """
        assert self._store is not None
        self._expire_former()
        former = self._store, self._segment()
        self._begin(sequence)
        self._write(checkpoint)
        self._former = former

    def _begin(self, sequence: int) -> None:
        self._store = _Store()
        self._token = uuid.uuid4().bytes
        self._first = sequence
        self._ends = array("Q")

    def _write(self, frame: bytes) -> Segment:
        assert self._store is not None
        file = self._store.file
        file.write(frame)
        file.flush()
        self._ends.append(self.size + len(frame))
        return self._segment()

    def _segment(self) -> Segment:
        assert self._store is not None
        return Segment(self._token, self._store.path, self._first, self._ends.tobytes())

    @property
    def size(self) -> int:
        """Bytes of all frames since the latest keyframe or checkpoint, together."""
        return self._ends[-1] if self._ends else 0

    @property
    def keyframe_size(self) -> int:
        """Bytes of the latest keyframe or checkpoint."""
        return self._ends[0] if self._ends else 0

    def _expire_former(self) -> None:
        if self._former is not None:
            self._expired.append(self._former[0])
            self._former = None

    def _close_expired(self) -> None:
        for store in self._expired:
            store.close()
        self._expired.clear()

    def close(self) -> None:
        """Release the files."""
        self._expire_former()
        self._close_expired()
        if self._store is not None:
            self._store.close()
            self._store = None
        self._ends = array("Q")


class ChainReader:
    """Reads frames in a worker process, and keeps the latest file open."""

    def __init__(self) -> None:
        self._token = b""
        self._descriptor = -1

    def frames_after(self, chain: Chain, sequence: int | None) -> Iterator[bytes]:
        """Read the frames that lead to the end of a chain.

        Args:
            chain: the chain.
            sequence: sequence number of the latest frame that is known, if there is one.

        Yields:
            Frames.

        Raises:
            OSError: a file is gone.
        """
        segments = chain.segments
        for index, segment in enumerate(segments):
            if sequence is not None and segment.first <= sequence <= segment.last:
                yield from self._read(segment, sequence - segment.first + 1)
                for later in segments[index + 1 :]:
                    yield from self._read(later, 1)  # 0 is where the one before has ended
                return
        yield from self._read(segments[-1], 0)

    def _read(self, segment: Segment, known: int) -> Iterator[bytes]:
        ends = array("Q", segment.ends)
        if known < len(ends) and segment.token != self._token:
            self.close()
            self._descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            self._token = segment.token
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
        self._token = b""


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
