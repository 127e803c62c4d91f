"""Copies of the arrays of JAX that are weakly typed, or have 64 bits.

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

# Arrays of these types exist where ``jax_enable_x64`` is off if they were made in a context in
# which it was on. What pickle rebuilds there has 32 bits, silently.
_WIDE_TYPES = frozenset({"int64", "uint64", "float64", "complex128"})


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
        reduced = _rebuild_weakly_typed, reduced
    if len(reduced) == 2 and array.dtype.name in _WIDE_TYPES:
        reduced = _rebuild_wide, reduced
    return reduced


def _rebuild_wide(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    import jax
    import jax.experimental

    # Older versions have it elsewhere.
    home = jax if hasattr(jax, "enable_x64") else jax.experimental
    with home.enable_x64(True):
        return function(*args)


def _rebuild_weakly_typed(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    array = function(*args)
    try:
        # The constructor knows of both places.
        return type(array)(array.aval, array.sharding, [array], committed=False)
    except TypeError:  # the constructor of a version to come
        return array
