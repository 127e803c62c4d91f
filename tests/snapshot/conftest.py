"""Fixtures of the snapshot tests."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import pytest
import sample_types

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def new_class() -> Iterator[Any]:
    """Makes classes that pickle finds in a module, for one test."""
    made: list[str] = []

    def make(
        namespace: dict[str, Any],
        bases: tuple[type, ...] = (object,),
        metaclass: type = type,
    ) -> Any:
        name = f"Made{len(made)}"
        keywords = {} if metaclass is type else {"metaclass": metaclass}
        cls = types.new_class(name, bases, keywords, lambda ns: ns.update(namespace))
        cls.__module__ = sample_types.__name__
        cls.__qualname__ = name
        setattr(sample_types, name, cls)
        made.append(name)
        return cls

    yield make
    for name in made:
        delattr(sample_types, name)
