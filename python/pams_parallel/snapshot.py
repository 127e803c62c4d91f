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
from typing import TYPE_CHECKING, Any

from ._core import (
    Decoder,
    Encoder,
    ForeignReferenceError,
    Replica,
    SnapshotDecodeError,
    Source,
)
from ._core import loads as _loads
from .jax_arrays import array_reducers

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

__all__ = [
    "Decoder",
    "Encoder",
    "ForeignReferenceError",
    "Replica",
    "SnapshotDecodeError",
    "Source",
    "dumps",
    "library_reducers",
    "loads",
]

# Libraries whose ForkingPickler reducers share memory between processes instead of copying it.
# A snapshot is a copy, so their own __reduce_ex__ is the right one.
_MEMORY_SHARING_LIBRARIES = frozenset({"torch"})


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
