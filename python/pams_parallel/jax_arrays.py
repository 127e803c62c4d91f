"""Copies of the arrays of JAX that are weakly typed.

A weakly typed array (``jax.numpy.asarray(2.0)``) takes the type of what it is combined with. JAX
keeps that in two places, and in some versions (0.4.30 and 0.7.1 do it, 0.12.0 does not) the copy
that pickle makes has it in only one. Then a compiled function takes the copy for an ordinary
array, and gives the type that the first of two such calls decides on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_PROTOCOL = 5


def array_reducers() -> dict[type, Callable[[Any], Any]]:
    """Reducers for the arrays of JAX. JAX is not imported.

    Returns:
        Reducer by exact type, none if this process has no such arrays.
    """
    cls = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
    return {cls: _reduce} if isinstance(cls, type) else {}


def _reduce(array: Any) -> tuple[Any, ...]:
    reduced: tuple[Any, ...] = array.__reduce_ex__(_PROTOCOL)
    if len(reduced) == 2 and array.weak_type:
        return _rebuild_weakly_typed, reduced
    return reduced


def _rebuild_weakly_typed(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    array = function(*args)
    try:
        # The constructor knows of both places.
        return type(array)(array.aval, array.sharding, [array], committed=False)
    except TypeError:  # the constructor of a version to come
        return array
