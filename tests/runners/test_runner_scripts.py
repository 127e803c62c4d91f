"""Scripts as users write them: the classes stand in the main module, one import changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import json
import random
import sys
import warnings

from pams.agents import Agent
from pams.logs import MarketStepSaver
from pams.order import LIMIT_ORDER, Order
from {package} import {runner}

warnings.filterwarnings("ignore", message=".*is experimental")
warnings.filterwarnings("ignore", message=".*use of fork")  # NumPy may have threads


class ZeroIntelligence(Agent):
    synced_attributes = ("history",)

    def setup(self, settings, accessible_markets_ids, *args, **kwargs):
        super().setup(settings, accessible_markets_ids, *args, **kwargs)
        self.history = []

    def submit_orders(self, markets):
        market = markets[0]
        price = market.get_market_price() * (1 + self.prng.gauss(0, 0.01))
        self.history.append((market.get_time(), round(price, 3)))
        if self.prng.random() < 0.5:
            return []
        return [
            Order(
                agent_id=self.agent_id,
                market_id=market.market_id,
                is_buy=self.prng.random() < 0.5,
                kind=LIMIT_ORDER,
                volume=1,
                price=round(price, 2),
                ttl=5,
            )
        ]


def main(start_method):
    config = {{
        "simulation": {{
            "markets": ["Market"],
            "agents": ["Agents"],
            "sessions": [
                {{
                    "sessionName": 0,
                    "iterationSteps": 5,
                    "withOrderPlacement": True,
                    "withOrderExecution": True,
                    "withPrint": False,
                    "maxNormalOrders": 3,
                }}
            ],
            "numParallel": 2,
        }},
        "Market": {{"class": "Market", "tickSize": 0.01, "marketPrice": 300.0}},
        "Agents": {{
            "class": "ZeroIntelligence",
            "numAgents": 10,
            "markets": ["Market"],
            "assetVolume": 50,
            "cashAmount": 10000,
        }},
    }}
    if start_method is not None:
        config["simulation"]["startMethod"] = start_method
    saver = MarketStepSaver()
    runner = {runner}(config, prng=random.Random(42), logger=saver)
    runner.class_register(ZeroIntelligence)
    runner.main()
    histories = [agent.history for agent in runner.simulator.agents]
    cash = [agent.cash_amount for agent in runner.simulator.agents]
    print(json.dumps([saver.market_step_logs, histories, cash]))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
"""


def run_script(directory: Path, package: str, runner: str, *arguments: str) -> list[object]:
    path = directory / "simulation_script.py"
    path.write_text(SCRIPT.format(package=package, runner=runner))
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result: list[object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return run_script(tmp_path_factory.mktemp("script"), "pams.runners", "SequentialRunner")


@pytest.mark.parametrize("arguments", [[], ["fork"], ["spawn"], ["forkserver"]])
def test_script(tmp_path: Path, sequential: list[object], arguments: list[str]) -> None:
    runner = "MultiProcessAgentParallelRunner"
    found = run_script(tmp_path, "pams_parallel", runner, *arguments)
    assert found == sequential
    histories = found[1]
    assert isinstance(histories, list)
    assert all(histories)
