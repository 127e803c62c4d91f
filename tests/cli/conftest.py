"""The command as a user starts it, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = Path(sysconfig.get_path("scripts")) / "pams-parallel"
TIMEOUT = 120

AGENTS = '''
import multiprocessing
import os

from pams.agents import FCNAgent


class Quiet(FCNAgent):
    def submit_orders(self, markets):
        return super().submit_orders(markets)


class Chatty(FCNAgent):
    def submit_orders(self, markets):
        os.write(1, b"written by an agent\\n")
        print("printed by an agent", flush=True)
        return super().submit_orders(markets)


class Bound(FCNAgent):
    """Not deterministic given its generator: asks who runs it."""

    def submit_orders(self, markets):
        is_worker = multiprocessing.parent_process() is not None
        self.prng.seed(2 * self.agent_id + is_worker)
        return super().submit_orders(markets)


class Failing(FCNAgent):
    def submit_orders(self, markets):
        if markets[0].get_time() >= 2:
            raise LookupError("no more\\nideas")
        return super().submit_orders(markets)


class BadSetup(FCNAgent):
    def setup(self, settings, accessible_markets_ids, *args, **kwargs):
        raise KeyError("secret")


class Slow(FCNAgent):
    def submit_orders(self, markets):
        import time

        open("asked", "w").close()
        time.sleep(1.0)
        return []


NOT_A_CLASS = 1
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with agent classes in ``my_agents.py``."""
    (tmp_path / "my_agents.py").write_text(AGENTS)
    return tmp_path


@pytest.fixture
def config() -> dict[str, Any]:
    """A small simulation with one market and two sessions of 3 and 5 steps."""
    session = {
        "sessionName": "0",
        "iterationSteps": 3,
        "withOrderPlacement": True,
        "withOrderExecution": True,
        "withPrint": False,
        "maxNormalOrders": 6,
    }
    return {
        "simulation": {
            "markets": ["M"],
            "agents": ["A"],
            "numParallel": 2,
            "sessions": [session, {**session, "sessionName": "1", "iterationSteps": 5}],
        },
        "M": {"class": "Market", "tickSize": 0.01, "marketPrice": 300.0},
        "A": {
            "class": "FCNAgent",
            "numAgents": 8,
            "markets": ["M"],
            "assetVolume": 50,
            "cashAmount": 10000,
            "fundamentalWeight": {"expon": [1.0]},
            "chartWeight": {"expon": [0.1]},
            "noiseWeight": {"expon": [1.0]},
            "noiseScale": 0.01,
            "timeWindowSize": [10, 20],
            "orderMargin": [0.0, 0.1],
        },
    }


@pytest.fixture
def write_config(folder: Path, config: dict[str, Any]) -> Callable[..., str]:
    """Write the small simulation with another agent class as ``config.json``."""

    def write(agent_class: str = "FCNAgent") -> str:
        config["A"]["class"] = agent_class
        (folder / "config.json").write_text(json.dumps(config))
        return "config.json"

    return write


@pytest.fixture
def script() -> str:
    """The command's file."""
    return str(SCRIPT)


@pytest.fixture
def command(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``pams-parallel`` in :func:`folder`; ``as_module`` runs ``python -m``."""

    def run(*arguments: str, as_module: bool = False) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-m", "pams_parallel"] if as_module else [str(SCRIPT)]
        return subprocess.run(
            [*start, *arguments],
            cwd=folder,
            env={**os.environ, "COLUMNS": "80"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    return run
