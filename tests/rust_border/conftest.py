"""Fixtures of the tests of the border between Python and Rust."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from hostile import Act, HashAct

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _objects_of_other_tests_are_out_of_sight() -> Iterator[None]:
    """The collector would look at all of them, again and again."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_action_is_left() -> Iterator[None]:
    yield
    Act.out = Act.back = None
    HashAct.hashed = HashAct.compared = None
