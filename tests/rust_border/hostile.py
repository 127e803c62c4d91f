"""User code that the tests of the border run in the middle of encoding and decoding."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Node:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Act:
    """Calls the current action from its hooks."""

    out: Callable[[Any], Any] | None = None
    back: Callable[[Any], Any] | None = None

    def __init__(self, label: Any = None) -> None:
        self.label = label

    def __getstate__(self) -> Any:
        if Act.out is not None:
            Act.out(self)
        return {"label": self.label}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        if Act.back is not None:
            Act.back(self)


class HashAct:
    """Calls the current action when it is hashed or compared."""

    hashed: Callable[[Any], Any] | None = None
    compared: Callable[[Any, Any], Any] | None = None

    def __init__(self, key: Any = 0) -> None:
        self.key = key

    def __hash__(self) -> int:
        if HashAct.hashed is not None:
            HashAct.hashed(self)
        return 7

    def __eq__(self, other: object) -> bool:
        if HashAct.compared is not None:
            HashAct.compared(self, other)
        return isinstance(other, HashAct) and self.key == other.key


def survives(use: Callable[[], Any]) -> Any:
    """The result of ``use`` or ``None`` if it raised an ordinary exception."""
    try:
        result = use()
    except Exception:  # a panic of Rust is none
        return None
    finally:
        gc.collect()
    repr(result)
    return result
