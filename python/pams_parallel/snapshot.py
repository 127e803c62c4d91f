"""Copies of object graphs: what pickle gives, about ten times faster.

:func:`dumps` and :func:`loads` copy any graph that :mod:`pickle` (protocol 5) can copy, with
the same types, values, aliasing, cycles and container order. They are usable without pams::

    from pams_parallel import snapshot

    data = snapshot.dumps({"prices": [300.0, 301.5]})
    assert snapshot.loads(data) == {"prices": [300.0, 301.5]}

Differences from pickle: graphs of any depth work, an object may have a custom ``__hash__``
and be an element of its own set or a key of its own dict, and the error for an object that
cannot be copied names the path to it.

Like a pickle, a snapshot can run any code when it is loaded: load only what you made yourself.
The format is private to one version of this package and not meant for storage.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ._core import (
    Decoder,
    Encoder,
    ForeignReferenceError,
    Replica,
    SnapshotDecodeError,
    Source,
)
from ._core import loads as _loads
from ._core import slow_path as _slow_path
from .jax_arrays import array_reducers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import Buffer

__all__ = [
    "Decoder",
    "Encoder",
    "ForeignReferenceError",
    "Replica",
    "SlowPath",
    "SnapshotDecodeError",
    "Source",
    "dumps",
    "library_reducers",
    "loads",
    "slow_path",
]

# Libraries whose ForkingPickler reducers share memory between processes instead of copying it.
# A snapshot is a copy, so their own __reduce_ex__ is the right one.
_MEMORY_SHARING_LIBRARIES = frozenset({"torch"})


class SlowPath(NamedTuple):
    """Objects of one class that go through a reducer, see :func:`slow_path`.

    Attributes:
        class_name: module and qualified name of the class.
        path: where the first of them is, e.g. ``simulator.agents[3].rule``.
        n_objects: how many there are.
        n_bytes: bytes that they take in a copy, with all that was met inside them first. What is
            inside several of them counts once.
        seconds: time that their reducers and encoding them took, counted in the same way.
        tracking: how :class:`Source` finds out whether such an object has changed.

            * ``"native"``: its parts are compared as those of ordinary objects are, or it never
              changes. Only its first copy goes through the reducer.
            * ``"reducer"``: its reducer is called for every frame. If it has changed, the frame is
              a keyframe.
            * ``"none"``: not at all, because its class is written in Python and has a hook for
              pickle, e.g. ``__setstate__``, behind which there may be more than pickle gets to
              see. One such object is enough for every frame to be a keyframe.
    """

    class_name: str
    path: str
    n_objects: int
    n_bytes: int
    seconds: float
    tracking: Literal["native", "reducer", "none"]


def library_reducers() -> dict[type, Callable[[Any], Any]]:
    """Reducers that libraries registered for sending objects between processes.

    They are what :class:`concurrent.futures.ProcessPoolExecutor` would use in addition to
    :mod:`copyreg`. Reducers of PyTorch are left out: they share memory, a snapshot copies. For
    arrays of JAX there is one of ours, see :mod:`pams_parallel.jax_arrays`.

    Returns:
        Reducer by exact type.
    """
    registered: dict[type, Callable[[Any], Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return array_reducers() | {
        cls: reducer
        for cls, reducer in registered.items()
        if cls.__module__.partition(".")[0] not in _MEMORY_SHARING_LIBRARIES
    }


def dumps(obj: object) -> bytes:
    """Copy an object graph into bytes.

    Args:
        obj: any object that ``pickle.dumps(obj, protocol=5)`` accepts.

    Returns:
        The snapshot, for :func:`loads`.

    Raises:
        Exception: what pickle raises for an object that cannot be copied (``TypeError``,
            ``AttributeError``, :class:`pickle.PicklingError`, ...), with the path from
            ``obj`` to the culprit, e.g. ``obj.agents[3].rule``, added to the message.
    """
    encoder = Encoder()
    encoder.add(obj)
    data = encoder.finish()
    assert data is not None  # only an encoder with a sink returns None
    return data


def loads(data: Buffer) -> Any:
    """Build the copy.

    Args:
        data: a snapshot; any object with the buffer protocol.

    Returns:
        A new object graph that shares nothing with ``data``.

    Raises:
        SnapshotDecodeError: ``data`` is damaged or not a snapshot (a ``ValueError``).
        Exception: whatever the reconstruction of an object raises.
    """
    return _loads(data)


def slow_path(
    obj: object,
    *,
    name: str = "obj",
    externals: Iterable[object] | None = None,
    reducers: Mapping[type, Callable[[Any], Any]] | None = None,
) -> list[SlowPath]:
    """Tell which objects of a graph are slow to copy because they go through a reducer.

    Built-in containers, instances of ordinary Python classes and :class:`random.Random` are not
    listed: they are copied without any user code. The graph is encoded once for this, in memory,
    and not changed.

    Args:
        obj: root of the graph.
        name: what paths call it.
        externals: objects that are not copied, as for :class:`Encoder`.
        reducers: reducer by exact type, as for :class:`Encoder`; runners use
            :func:`library_reducers`.

    Returns:
        An entry for each class, and for each kind of tracking if its objects differ in that;
        those that took most time come first. An object inside another counts for the classes
        of both, so the sums over all entries mean nothing.

    Raises:
        Exception: as :func:`dumps`.
    """
    entries = [
        SlowPath(f"{row[0].__module__}.{row[0].__qualname__}", *row[1:])
        for row in _slow_path(obj, name, externals, reducers)
    ]
    return sorted(entries, key=attrgetter("seconds"), reverse=True)
