"""The tests of the JAX runner, which need JAX and Flax.

The folder is not called ``jax``: pytest puts ``tests`` on the path, where such a folder would be
found by ``import jax`` when JAX is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests last: once JAX is initialised, the other tests cannot fork safely."""
    items.sort(key=lambda item: HERE in item.path.parents)


@pytest.fixture(autouse=True, scope="session")
def _jax_initialized() -> None:
    """Initialise JAX on the main process, as agents that create their models do."""
    if importlib.util.find_spec("jax") is not None:
        import jax

        jax.devices()


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in a folder of its own, as a user does."""

    def run(
        text: str, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "simulation_script.py"
        path.write_text(text)
        return subprocess.run(
            [sys.executable, str(path), *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run
