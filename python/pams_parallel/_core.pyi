"""Rust core of pams-parallel.

The classes here take resolved, positional values; names, defaults, warnings and
messages for users live in the Python modules that call them.

A snapshot is a sequence of object graphs ("roots") that share one numbering: every
object with an identity worth keeping (containers, instances, strings, ...) gets the
next *number* when it is first met, on the encoding and on the decoding side alike.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, final

from typing_extensions import Buffer

__all__ = [
    "Decoder",
    "Encoder",
    "ForeignReferenceError",
    "RandomStatePacker",
    "RandomStates",
    "Replica",
    "SnapshotDecodeError",
    "Source",
    "Watch",
    "__version__",
    "changed_attributes",
    "chunk_bounds",
    "end_with_process",
    "index_of",
    "loads",
    "positions_with",
    "process_start_time",
    "slow_path",
]

__version__: Final[str]

class ForeignReferenceError(RuntimeError):
    """An object that :class:`Encoder` was told to refuse has been met."""

class SnapshotDecodeError(ValueError):
    """The bytes are not an undamaged snapshot of this version."""

@final
class Encoder:
    """Encodes object graphs into one snapshot.

    Args:
        externals: objects that are written as references to their index in this
            sequence; the decoder gets its own counterparts in the same order. An object
            that stands in it twice has its first index.
        foreign: objects that must not be met, unless they are external as well.
        reducers: additional reducers by exact type, consulted before ``copyreg``.
        sink: binary file opened for writing with ``write`` and ``seek``; a snapshot
            larger than ``spill_bytes`` goes there in pieces instead of into memory.
        spill_bytes: size of the buffer.
    """

    def __new__(
        cls,
        externals: Iterable[object] | None = None,
        foreign: Iterable[object] | None = None,
        reducers: Mapping[type, Callable[[Any], Any]] | None = None,
        sink: Any = None,
        spill_bytes: int = 262144,
    ) -> Encoder: ...
    def add(self, obj: object, name: str | tuple[str, ...] | None = None) -> None:
        """Append ``obj`` as the next root.

        Objects that earlier roots contain are referred to, so aliasing between roots is
        kept. If anything fails, the encoder is closed.

        Args:
            obj: any object that pickle (protocol 5) can copy.
            name: what error messages call ``obj`` (``"obj"`` by default); a tuple names the
                items of ``obj``, which then has to be a tuple of the same length.

        Raises:
            ForeignReferenceError: one of ``foreign`` has been met.
            ValueError: the encoder is finished or closed by an earlier failure.
            Exception: what pickle raises for an object that it cannot copy, with the
                path from the root to the culprit added to the message.
        """
    def finish(self) -> bytes | None:
        """Complete the snapshot; no more roots can be added.

        Returns:
            The snapshot, or ``None`` if it went to ``sink`` (it starts at offset 0
            there and is :attr:`size` bytes long).
        """
    @property
    def size(self) -> int:
        """Bytes of the snapshot so far, header included."""
    @property
    def object_count(self) -> int:
        """How many objects of the snapshot have a number so far: all but simple values."""
    def numbers_of(self, objs: Iterable[object], /) -> bytes:
        """Numbers of ``objs`` in the snapshot, as little-endian ``uint32``.

        ``0xFFFFFFFF`` stands for an object that is not in it. Callable before and after
        :meth:`finish`.
        """
    def random_offsets(self, prngs: Iterable[object], /) -> bytes:
        """Where the states of ``prngs`` stand in the snapshot, as little-endian ``uint64``.

        All bits set stand for an object that is not in it as a native ``random.Random``.
        """

@final
class Decoder:
    """Decodes a snapshot; the graphs are built by the constructor.

    Args:
        data: the snapshot. Bytes after its end are ignored, nothing of ``data`` is
            referred to afterwards.
        externals: counterparts of the encoder's externals.

    Raises:
        SnapshotDecodeError: damaged, truncated or foreign data, or fewer externals
            than the snapshot refers to.
        Exception: whatever the reconstruction of an object raises.
    """

    def __new__(cls, data: Buffer, externals: Iterable[object] | None = None) -> Decoder: ...
    @property
    def roots(self) -> list[Any]:
        """The roots, in the order in which they were added."""
    def objects(self, numbers: Buffer, /) -> list[Any]:
        """The objects with these numbers (little-endian ``uint32``).

        Raises:
            ValueError: a number that no object of the snapshot has.
        """
    def random_offsets(self, prngs: Iterable[object], /) -> bytes:
        """As :meth:`Encoder.random_offsets`, for the decoded objects."""
    def close(self) -> None:
        """Drop the references to the decoded objects."""

@final
class Source:
    """Gives frames of an object graph: first a *keyframe*, then *deltas* with what has changed.

    A frame is for a :class:`Replica`, which follows the frames of one source. A frame contains
    everything that can be reached from its roots: what :class:`Encoder` would copy. The source
    compares the graph with what it has recorded of it at the latest frame, and changes nothing
    in it. It holds strong references to all of it until :meth:`close`, and takes no part in
    garbage collection, so it must not be reachable from the graph.

    Args:
        externals: objects of which the replica has counterparts of its own.
        reducers: reducer by exact type, in addition to :mod:`copyreg`; they win over it.
    """

    def __new__(
        cls,
        externals: Iterable[object] | None = None,
        reducers: Mapping[type, Callable[[Any], Any]] | None = None,
    ) -> Source: ...
    def frame(
        self,
        roots: tuple[object, ...],
        *,
        names: tuple[str, ...] | None = None,
        keyframe: bool = False,
    ) -> bytes:
        """The next frame.

        Args:
            roots: any objects; they may be others than those of the frame before.
            names: what error messages call them.
            keyframe: whether the frame has to be a keyframe. It is one anyway if something has
                changed that a delta cannot express, see :attr:`is_keyframe`.

        Raises:
            ValueError: the source is closed.
            Exception: what pickle raises for an object that it cannot copy, with the path from
                the root to the culprit added to the message. The next frame is a keyframe then.
        """
    def checkpoint(
        self, roots: tuple[object, ...], *, names: tuple[str, ...] | None = None
    ) -> bytes | None:
        """A keyframe of the graph at the latest frame, followed by the same deltas as that one.

        A new replica can begin with it, and needs none of the frames before. Replicas that have
        followed the source so far go on with the next delta.

        Args:
            roots: the roots of the latest frame.
            names: what error messages call them.

        Returns:
            The keyframe; :attr:`sequence` stays as it is. ``None`` if something has changed
            since the latest frame, or deltas cannot follow.

        Raises:
            ValueError: there is no frame.
            Exception: what pickle raises for an object that it cannot copy.
        """
    @property
    def is_keyframe(self) -> bool:
        """Whether the latest frame is a keyframe."""
    @property
    def is_trackable(self) -> bool:
        """Whether the next frame can be a delta.

        It cannot if there is an instance of a Python class with hooks of its own for pickle, e.g.
        ``__setstate__``: there may be more to such an object than pickle gets to see.
        """
    @property
    def sequence(self) -> int:
        """Sequence number of the latest frame; the first one has 0."""
    def numbers_of(self, objs: Iterable[object], /) -> bytes:
        """Numbers of ``objs`` in the latest frame, as little-endian ``uint32``.

        ``0xFFFFFFFF`` stands for an object that is not in it.
        """
    def objects(self, numbers: Buffer, /) -> list[Any]:
        """The objects with these numbers (little-endian ``uint32``).

        Raises:
            ValueError: a number that no object of the latest frame has.
        """
    def positions_with(self, numbers: Buffer, name: str, /) -> list[int]:
        """As the function :func:`positions_with`, for objects as they were at the latest frame.

        Args:
            numbers: their numbers (little-endian ``uint32``).
            name: name of the attribute.
        """
    def prngs_of(self, agents: Buffer, /) -> bytes:
        """Numbers of what agents have as ``prng`` in the latest frame (little-endian ``uint32``).

        0xFFFFFFFF if it is not a native ``random.Random``, or not an entry of the ``__dict__``.

        Args:
            agents: numbers of the agents (little-endian ``uint32``).
        """
    def random_states(self, packed: Buffer, prngs: Buffer, /) -> RandomStates:
        """Unpack what :meth:`Replica.random_state_packer` of the latest frame has packed.

        Args:
            packed: the packed states.
            prngs: the same numbers in the same order.

        Raises:
            SnapshotDecodeError: ``packed`` is damaged or does not fit.
        """
    def close(self) -> None:
        """Drop every reference to the graph; there are no more frames."""

@final
class Replica:
    """A copy of an object graph that follows the frames of a :class:`Source`.

    Args:
        externals: counterparts of the source's externals.
        reducers: reducer by exact type, used to compare objects that have no native form.
    """

    def __new__(
        cls,
        externals: Iterable[object] | None = None,
        reducers: Mapping[type, Callable[[Any], Any]] | None = None,
    ) -> Replica: ...
    def apply(self, frame: Buffer, /) -> None:
        """Update the copy. Objects that the frame does not replace keep their identity.

        Whatever was done to the copy since the frame before has to be rolled back first. After
        any error :attr:`sequence` is ``None``.

        Raises:
            SnapshotDecodeError: damaged data, or a delta that does not follow the latest frame
                of this replica.
            Exception: whatever the reconstruction of an object raises.
        """
    def roll_back(self) -> bool:
        """Undo everything that has been done to the copy since the latest frame.

        Contents are put back in place, so that all objects keep their identity.

        Returns:
            Whether that was possible. Otherwise :attr:`sequence` is ``None``: the latest keyframe
            and the deltas after it have to be applied again.
        """
    @property
    def sequence(self) -> int | None:
        """Sequence number of the latest frame, ``None`` if a keyframe is needed."""
    @property
    def roots(self) -> list[Any]:
        """The roots of the latest frame."""
    def numbers_of(self, objs: Iterable[object], /) -> bytes:
        """As :meth:`Source.numbers_of`; counterparts have the same numbers."""
    def objects(self, numbers: Buffer, /) -> list[Any]:
        """As :meth:`Source.objects`."""
    def prngs_of(self, agents: Buffer, /) -> bytes:
        """As :meth:`Source.prngs_of`: what agents had at the latest frame."""
    def random_state_packer(self, prngs: Buffer, /) -> RandomStatePacker:
        """A packer of generators' states relative to those at the latest frame.

        Args:
            prngs: from :meth:`Source.prngs_of`, in the order of packing.
        """
    def owns_any(self, objs: Iterable[object], /) -> bool:
        """Whether any of ``objs`` is part of the copy, immutable objects apart."""
    def are_unchanged(self, objs: Iterable[object], /) -> bool:
        """Whether all of ``objs`` are part of the copy, and hold the same objects as then."""
    def close(self) -> None:
        """Drop the copy; a keyframe is needed afterwards."""

def loads(data: Buffer, /) -> Any:
    """Decode a snapshot of one root and return the root.

    Raises:
        SnapshotDecodeError: as :class:`Decoder`, or the snapshot has not exactly one root.
        Exception: whatever the reconstruction of an object raises.
    """

@final
class RandomStatePacker:
    """Packs the states of pseudo random number generators relative to a snapshot.

    A generator whose 624 words equal those in ``frame`` (or those after up to four twists of
    them) takes a few bytes, any other 2.5 kB.

    Args:
        frame: the snapshot.
        offsets: from :meth:`Decoder.random_offsets` before the generators were used.
    """

    def __new__(cls, frame: Buffer, offsets: Buffer) -> RandomStatePacker: ...
    def add(self, prng: object, /) -> bool:
        """Pack the state of the next generator, in the order of the offsets.

        Returns:
            Whether the state was packed: ``False``, and a mark of its absence, for what is not
            an exact ``random.Random`` with nothing but a ``gauss_next`` of ``None`` or an exact
            ``float`` in its ``__dict__``.

        Raises:
            ValueError: there are no more offsets, or the packer is closed.
        """
    def finish(self) -> bytes:
        """The packed states of the generators added so far."""
    def close(self) -> None:
        """Release ``frame``; nothing can be added afterwards."""

@final
class RandomStates:
    """Unpacks what :class:`RandomStatePacker` made.

    Args:
        packed: the packed states.
        frame: the same snapshot.
        offsets: offsets into ``frame`` in the same order.

    Raises:
        SnapshotDecodeError: ``packed`` is damaged or does not fit ``offsets``.
    """

    def __new__(cls, packed: Buffer, frame: Buffer, offsets: Buffer) -> RandomStates: ...
    def __len__(self) -> int: ...
    def getstate(self, index: int, /) -> tuple[Any, ...] | None:
        """State as ``random.Random.getstate`` gives it, ``None`` if marked as absent."""
    def apply(self, index: int, prng: object, /) -> bool:
        """Set the state of ``prng`` if it is an exact ``random.Random``.

        Returns:
            Whether it was set: ``False`` for another type, one with a ``setstate`` of its own,
            or a state marked as absent.
        """
    def apply_recorded(self, start: int, stop: int, /) -> int:
        """Set the states from ``start`` to before ``stop`` of the agents' generators.

        Possible for states from :meth:`Source.random_states`: the source knows the generators.

        Returns:
            The first index whose state was not set: :meth:`apply` would return ``False``, or the
            generator is not known.
        """
    def close(self) -> None:
        """Release ``frame``."""

@final
class Watch:
    """Watches agents while they are asked one after the other, for a worker.

    Args:
        agents: the agents.
        packer: packer for the states of their generators.
        replica: replica that the agents belong to, if they do.
        numbers: their numbers in it (little-endian ``uint32``).
        mark: writable and aligned, 4 bytes, in native byte order: the position of the agent that
            is being asked plus 2, for whoever maps the same memory.

    Raises:
        ValueError: ``mark`` is something else.
    """

    def __new__(
        cls,
        agents: list[Any],
        packer: RandomStatePacker,
        replica: Replica | None = None,
        numbers: Buffer | None = None,
        mark: Buffer | None = None,
    ) -> Watch: ...
    @property
    def changed(self) -> list[Any]:
        """As :func:`changed_attributes`, of the latest agent."""
    @property
    def is_packed(self) -> bool:
        """Whether the state of the latest agent's ``prng`` was packed."""
    def begin(self) -> None:
        """Take note of the attributes of the next agent, which is about to be asked.

        Raises:
            IndexError: all agents have been asked.
        """
    def end(self, orders: object, /) -> bool:
        """Look at the agent after it was asked, and pack the state of its generator.

        Args:
            orders: what it has submitted.

        Returns:
            Whether there is nothing to tell: ``orders`` is an empty list, no attribute was
            assigned or deleted, and the state was packed.
        """

def changed_attributes(before: dict[Any, Any], after: dict[Any, Any], /) -> list[Any]:
    """Keys that were added, deleted or assigned another object.

    A new object of the same exact type ``str``, ``bytes``, ``int``, ``float``,
    ``complex``, ``bool``, ``NoneType``, a NumPy number, or a tuple of such, that is equal
    to the old one, sign of zero included, does not count.

    Args:
        before: shallow copy of an instance's ``__dict__``.
        after: the ``__dict__`` now.
    """

def chunk_bounds(n_items: int, n_chunks: int, /) -> list[tuple[int, int]]:
    """Bounds ``(start, stop)`` of consecutive chunks whose sizes differ by at most one.

    Longer chunks come first and no chunk is empty, e.g. 10 items in 3 chunks have sizes
    4, 3 and 3.

    Args:
        n_items: number of items, at least 0.
        n_chunks: largest number of chunks, at least 1.

    Raises:
        ValueError: ``n_items`` is negative or ``n_chunks`` is less than 1.
    """

def end_with_process(pid: int, start_time: int | None, directory: str | None, /) -> bool:
    """Have this process end when another one is gone, whatever it is doing then.

    If the other one is gone already, this process ends at once. A thread that needs no GIL
    sees to it; a forked child does not inherit it.

    Args:
        pid: number of the other process.
        start_time: its :func:`process_start_time`, since numbers are given again.
        directory: what is deleted first, if it exists.

    Returns:
        Whether this platform can do that.

    Raises:
        OSError: the thread cannot be started.
    """

def index_of(items: list[Any], obj: object, /) -> int:
    """Index of the first item that *is* ``obj``, or -1. Never compares by value."""

def positions_with(objs: list[Any], name: str, /) -> list[int]:
    """Positions of the objects that may have an attribute, in ascending order.

    For ordinary classes that is exact and takes much less time than asking every object.

    Args:
        objs: objects.
        name: name of the attribute.
    """

def process_start_time(pid: int, /) -> int | None:
    """When a process started, in units that only this machine knows.

    ``None`` if there is no such process, or if this platform does not tell.
    """

def slow_path(
    obj: object,
    name: str,
    externals: Iterable[object] | None = None,
    reducers: Mapping[type, Callable[[Any], Any]] | None = None,
    /,
) -> list[tuple[type, str, int, int, float, Literal["native", "reducer", "none"]]]:
    """Encode a graph, and tell which of its objects went through reducers.

    Args:
        obj: root of the graph.
        name: what paths call it.
        externals: as for :class:`Encoder`.
        reducers: as for :class:`Encoder`.

    Returns:
        A row for each class and way of tracking, in the order in which the walk came to them:
        class, path of the first object, number of objects, bytes, seconds, and how a
        :class:`Source` finds out whether such an object has changed: by its parts
        (``"native"``), by what its reducer returns, or not at all.

    Raises:
        Exception: as :meth:`Encoder.add`.
    """
