"""Memory that the main process and its workers share, and how frames get to the workers through it.

Workers of a :class:`concurrent.futures.ProcessPoolExecutor` run on the same machine, so they map
large frames from one file: on Linux a ``memfd``, which has no name that could be left behind and
does not depend on the size of ``/dev/shm``, elsewhere a file in a private directory. The name of
the directory is fixed before there is any file in it, so that workers, who are told it when they
start, can delete it if the main process is killed.

A whole snapshot (:class:`Transport`) takes the place of the one of the batch before, so it must
not outlive the tasks of its batch. Small ones, and those for any other executor, travel inside
the tasks. A keyframe and the deltas after it (:class:`FrameLog`) stay in their file until they have
become longer than another keyframe, so that a worker that is new or behind can catch up.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import threading
import uuid
import weakref
from array import array
from collections.abc import Iterator
from io import FileIO
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Largest frame, in bytes, that travels inside a task.
INLINE_LIMIT = 64 * 1024

# Else workers must not keep a file open that the main process will delete.
_OPEN_FILES_CAN_BE_DELETED = os.name != "nt"


class Store:
    """A file that workers can open, as long as this object lives.

    Nobody can make it shorter, where the system allows that: reading mapped memory that is gone
    kills a process.

    Args:
        name: what a ``memfd`` is called where open files are listed.

    Attributes:
        file: the file, which can be mapped for reading and writing.
        path: where processes of the same user find it.

    Raises:
        OSError: there is neither a ``memfd`` nor a temporary directory.
    """

    def __init__(self, name: str) -> None:
        try:
            self.file, self.path, is_named = _open_memfd(name) or _open_temporary_file()
        except OSError as error:
            raise no_memory(error) from error
        named = self.path if is_named else None
        self._finalizer = weakref.finalize(self, _discard, self.file, named, os.getpid())

    def close(self) -> None:
        """Release the file. Mappings of it stay readable."""
        self._finalizer()


def private_directory() -> str | None:
    """Directory in which files of this process lie, if there are any.

    Returns:
        Its path; ``None`` if there is no directory for temporary files.
    """
    try:
        place = os.getpid(), tempfile.gettempdir()
    except OSError:
        return None
    # Nobody can guess the name, so nobody else can have made the directory.
    name = f"pams-parallel-{uuid.uuid4().hex}"
    return _directories.setdefault(place, os.path.join(place[1], name))


# By the process, as a forked child inherits the dict, and the place for temporary files.
_directories: dict[tuple[int, str], str] = {}


def no_memory(error: OSError) -> OSError:
    """Say what to do if there is no room for a file of :class:`Store`.

    Args:
        error: what the system says.
    """
    try:
        place = f"in {tempfile.gettempdir()!r}"
    except OSError:
        place = "in the directory for temporary files, which there is none"
    return OSError(
        error.errno or errno.ENOSPC,
        f"{error.strerror or error}: there is no room for the copy of the simulation that workers "
        "read. It lies in anonymous memory (memfd) where the system has that, else in a file "
        f"{place}. Raise the limits of memory, size of files (ulimit -f) and open files "
        "(ulimit -n), or let TMPDIR name a directory with enough room",
    )


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
        self._store: Store | None = None

    def sink(self) -> BinaryIO | None:
        """File for the frame of the next batch, for ``Encoder``; ``None`` if there is none."""
        if self.mapped and self._store is None:
            self._store = Store("pams-parallel")
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
        try:
            self._store.file.flush()
        except OSError as error:
            raise no_memory(error) from error
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
        self._store: Store | None = None
        self._chain_token = b""
        self._token = b""
        self._first = 0
        self._ends: array[int] = array("Q")
        self._former: tuple[Store, Segment] | None = None
        # Stores that only tasks of the latest batch still need.
        self._expired: list[Store] = []

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
        self._store = Store("pams-parallel")
        self._token = uuid.uuid4().bytes
        self._first = sequence
        self._ends = array("Q")

    def _write(self, frame: bytes) -> Segment:
        assert self._store is not None
        file = self._store.file
        try:
            file.write(frame)
            file.flush()
        except OSError as error:
            raise no_memory(error) from error
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
        self._file: FileIO | None = None

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
            self._file = FileIO(segment.path)
            self._token = segment.token
        for index in range(known, len(ends)):
            assert self._file is not None
            start = ends[index - 1] if index else 0
            self._file.seek(start)
            frame = bytearray()
            while len(frame) < ends[index] - start:
                piece = self._file.read(ends[index] - start - len(frame))
                if not piece:
                    raise OSError("the file with the frames of the simulation has been cut")
                frame += piece
            yield bytes(frame)
        if not _OPEN_FILES_CAN_BE_DELETED:
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._token = b""


def _open_memfd(name: str) -> tuple[BinaryIO, str, bool] | None:
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
    _forbid_to_shrink(descriptor)
    return open(descriptor, "wb"), path, False


def _forbid_to_shrink(descriptor: int) -> None:
    import fcntl

    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def _open_temporary_file() -> tuple[BinaryIO, str, bool]:
    directory = private_directory()
    if directory is None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory")
    path = os.path.join(directory, uuid.uuid4().hex)
    # Readable for mapping, too.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    with _directory_lock:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        file = open(path, "wb", opener=lambda name, _: os.open(name, flags, 0o600))  # noqa: SIM115
    return file, path, True


# Held while a file is made in the directory or removed from it, so that the directory does not
# vanish in between.
_directory_lock = threading.Lock()


def _renew_lock() -> None:
    # Another thread can have held it when this process was forked.
    global _directory_lock
    _directory_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _discard(file: BinaryIO, path: str | None, owner: int) -> None:
    # What a full disk kept from being written is of no use any more.
    with contextlib.suppress(OSError):
        file.close()
    # A forked child has a copy of the finalizer, but the file is its parent's.
    if path is not None and os.getpid() == owner:
        with _directory_lock:
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):  # others are in it
                os.rmdir(os.path.dirname(path))
