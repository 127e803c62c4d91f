"""Which cases of a large table are run by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def slow_unless(is_kept: Callable[..., bool], cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Parameter sets; those that are not kept are marked as slow."""
    return [pytest.param(*case, marks=() if is_kept(*case) else pytest.mark.slow) for case in cases]
