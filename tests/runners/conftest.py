"""Fixtures for the tests of the runners."""

from __future__ import annotations

import pytest
from runner_support import initializers, scripts
from runner_support.executors import CountingPool
from runner_support.fixtures import scripted

__all__ = ["scripted"]


@pytest.fixture(autouse=True)
def _fresh_process_state() -> None:
    """Forked workers inherit the main process's module variables, so they start empty."""
    scripts.CALLS.clear()
    initializers.STATE.clear()
    initializers._models.clear()
    CountingPool.made.clear()
