"""Small simulations, one per kind of agent, and what is needed to run them."""

from __future__ import annotations

import copy
import random
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from . import (
    copying,
    lost_changes,
    references,
    scripted_agents,
    special_objects,
    trading_agents,
)
from .loggers import RowLogger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pams.logs import Logger
    from pams.runners import Runner

    RunnerT = TypeVar("RunnerT", bound=Runner)

_MODULES = [copying, lost_changes, references, scripted_agents, special_objects, trading_agents]
CLASSES = [
    value
    for module in _MODULES
    for value in list(vars(module).values())
    if isinstance(value, type) and value.__module__ == module.__name__
]

_EXPECTED_WARNINGS = (
    ".* is experimental",
    ".*the maximum number of parallel agents is limited by max_normal_orders",
    "order price does not accord to the tick size",
)


@contextmanager
def expected_warnings_ignored() -> Iterator[None]:
    """Hide the warnings that every run gives; tests of these warnings do without."""
    with warnings.catch_warnings():
        for message in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        yield


class InOrder(random.Random):
    """Generator for a runner that asks the agents, and handles orders, in their given order."""

    def sample(self, population: Sequence[Any], k: int, **kwargs: Any) -> list[Any]:
        super().sample(population, k)  # draws as always
        return list(population)[:k]


def session(name: str, quota: int, steps: int, **settings: Any) -> dict[str, Any]:
    """Settings of one session in which ``quota`` normal agents may submit per step."""
    return {
        "sessionName": name,
        "iterationSteps": steps,
        "withOrderPlacement": True,
        "withOrderExecution": True,
        "withPrint": False,
        "maxNormalOrders": quota,
        "maxHighFrequencyOrders": 2,
        "highFrequencySubmitRate": 0.5,
        **settings,
    }


# Quotas all, 1, 3 and 0, then sessions in which less happens.
SESSIONS = [
    session("everybody", 1000, 3),
    session("one", 1, 3),
    session("three", 3, 3),
    session("nobody", 0, 1),
    session("no execution", 2, 2, withOrderExecution=False),
    session("closed", 1000, 1, withOrderPlacement=False),
    session("everybody again", 1000, 2),
]

_SPOT = {
    "class": "Market",
    "numMarkets": 2,
    "tickSize": 0.01,
    "marketPrice": 300.0,
    "fundamentalVolatility": 0.005,
    "fundamentalDrift": 0.0001,
    "outstandingShares": 25000,
}
_INDEX = {
    "class": "IndexMarket",
    "tickSize": 0.01,
    "marketPrice": 300.0,
    "markets": ["Spot-0", "Spot-1"],
    "outstandingShares": 25000,
}
_FCN = {
    "fundamentalWeight": {"expon": [1.0]},
    "chartWeight": {"expon": [0.2]},
    "noiseWeight": {"expon": [1.0]},
    "noiseScale": 0.01,
    "timeWindowSize": [3, 8],
    "orderMargin": [0.0, 0.05],
}
_EVENTS = {
    "Shock": {
        "class": "FundamentalPriceShock",
        "target": "Spot-0",
        "triggerTime": 2,
        "priceChangeRate": -0.1,
        "shockTimeLength": 2,
    },
    "Mistake": {
        "class": "OrderMistakeShock",
        "target": "Spot-1",
        "triggerTime": 1,
        "priceChangeRate": -0.2,
        "orderVolume": 30,
        "orderTimeLength": 5,
    },
    "Halt": {
        "class": "TradingHaltRule",
        "targetMarkets": ["Spot-0"],
        "triggerChangeRate": 0.005,
        "haltingTimeLength": 1,
    },
    "Limit": {
        "class": "PriceLimitRule",
        "targetMarkets": ["Spot-0", "Spot-1", "Index"],
        "triggerChangeRate": 0.02,
    },
    "Recorder": {"class": "RecordingEvent"},
    "Replacer": {"class": "ReplacingEvent"},
}


def agent_group(cls: str, number: int, **settings: Any) -> dict[str, Any]:
    """Settings of ``number`` agents of a class."""
    return {
        "class": cls,
        "numAgents": number,
        "markets": ["Spot", "Index"],
        "assetVolume": 50,
        "cashAmount": 10000,
        **settings,
    }


def _settings(groups: dict[str, dict[str, Any]], events: bool = False) -> dict[str, Any]:
    sessions = copy.deepcopy(SESSIONS)
    if events:
        sessions[0]["events"] = ["Shock", "Mistake", "Halt", "Limit", "Recorder"]
    return {
        "simulation": {
            "markets": ["Spot", "Index"],
            "agents": list(groups),
            "sessions": sessions,
            "fundamentalCorrelations": {"pairwise": [["Spot-0", "Spot-1", 0.5]]},
        },
        "Spot": copy.deepcopy(_SPOT),
        "Index": copy.deepcopy(_INDEX),
        **copy.deepcopy(_EVENTS),
        **groups,
    }


_ARBITRAGE = {"orderVolume": 1, "orderThresholdPrice": 0.1}


def _population(*names: str, number: int = 5, events: bool = False) -> dict[str, Any]:
    """Settings with ``number`` agents of each of the named groups."""
    groups: dict[str, dict[str, Any]] = {
        "FCNAgent": agent_group("FCNAgent", number, **_FCN),
        "NormalMargin": agent_group(
            "FCNAgent", number, **{**_FCN, "marginType": "normal", "orderMargin": 1.0}
        ),
        "MarketShareFCNAgent": agent_group("MarketShareFCNAgent", number, **_FCN),
        "SkewedFCNAgent": agent_group("SkewedFCNAgent", number, **_FCN),
        "Arbitrage": agent_group("CountingArbitrageAgent", 3, **_ARBITRAGE),
        "Maker": agent_group("MarketMakerAgent", 1, targetMarket="Spot-0", netInterestSpread=0.01),
    }
    return _settings(
        {name: groups.get(name) or agent_group(name, number) for name in names}, events
    )


_FCN_KINDS = ("FCNAgent", "NormalMargin", "MarketShareFCNAgent", "SkewedFCNAgent")
_ORDER_KINDS = ("Trader", "TupleReturner", "MarketOrderTrader", "Silent", "Sometimes")
_CANCEL_KINDS = ("Canceller", "CancelKeeper", "OrderKeeper")
_STATE_KINDS = ("Learner", "NumpyTrader", "SlotTrader", "CallbackTrader", "StrategyTrader")
_PRNG_KINDS = ("OwnPrngTrader", "PrngReplacer")
_OTHER_KINDS = ("KeywordTrader", "Unhashable")

# One kind of agent each.
KINDS = {
    name: _population(name)
    for name in (
        *(*_FCN_KINDS, *_ORDER_KINDS, *_CANCEL_KINDS),
        *(*_STATE_KINDS, *_PRNG_KINDS, *_OTHER_KINDS),
    )
}
KINDS["HeavyDrawer"] = _population("HeavyDrawer", number=14)
# Populations in which every kind occurs; fewer runs than one per kind, for the large matrix.
POPULATIONS = {
    "FCN agents": _population(*_FCN_KINDS, number=2),
    "orders": _population(*_ORDER_KINDS, *_OTHER_KINDS, number=2),
    "cancels": _population(*_CANCEL_KINDS, number=2),
    "state": _population(*_STATE_KINDS, number=2),
    "generators": _population(*_PRNG_KINDS, number=3),
    "ModelTrader": _population("ModelTrader"),
    "arbitrage and market maker": _population("FCNAgent", "Arbitrage", "Maker"),
    "events": _population("FCNAgent", "Canceller", number=4, events=True),
    "mixed": _population(
        *(*_FCN_KINDS, *_ORDER_KINDS, *_CANCEL_KINDS, *_STATE_KINDS, *_PRNG_KINDS),
        *(*_OTHER_KINDS, "HeavyDrawer", "Arbitrage"),
        number=1,
        events=True,
    ),
}


def build(
    runner_class: type[RunnerT],
    settings: dict[str, Any],
    seed: int | random.Random = 1,
    logger: Logger | None = None,
    **simulation: Any,
) -> RunnerT:
    """A runner that knows the classes of this package, not yet set up.

    Args:
        runner_class: its class.
        settings: the configuration; it is copied.
        seed: seed of the runner's generator, or the generator.
        logger: logger; a :class:`RowLogger` by default.
        **simulation: more keys for ``settings["simulation"]``.
    """
    settings = copy.deepcopy(settings)
    settings["simulation"].update(simulation)
    prng = seed if isinstance(seed, random.Random) else random.Random(seed)
    with expected_warnings_ignored():
        runner = runner_class(settings, prng=prng, logger=logger or RowLogger())
    for cls in CLASSES:
        runner.class_register(cls)
    return runner


def run(runner: RunnerT) -> RunnerT:
    """Set the runner up and run it to the end."""
    with expected_warnings_ignored():
        runner._setup()
        runner._run()
    return runner


def scripted_settings(
    number: int, quota: int = 1000, steps: int = 1, cls: str = "Scripted"
) -> dict[str, Any]:
    """Settings of a simulation of ``number`` scripted agents on one market."""
    return {
        "simulation": {
            "markets": ["Market"],
            "agents": ["Agents"],
            "sessions": [session("session", quota, steps)],
        },
        "Market": {"class": "Market", "tickSize": 0.01, "marketPrice": 300.0},
        "Agents": {
            "class": cls,
            "numAgents": number,
            "markets": ["Market"],
            "assetVolume": 50,
            "cashAmount": 10000,
        },
    }


def give_scripts(
    runner: RunnerT, scripts: Sequence[Any], listed: Sequence[str] | None = None
) -> RunnerT:
    """Give each agent of a runner that has been set up its script and its listed names."""
    for agent, script in zip(runner.simulator.agents, scripts, strict=True):
        agent.script = script
        if listed is not None:
            agent.synced_attributes = tuple(listed)
    return runner


def collect(runner: Runner) -> list[list[Any]]:
    """One collect phase at the first step, without handling of the orders."""
    simulator = runner.simulator
    simulator.current_session = simulator.sessions[0]
    if simulator.markets[0].time < 0:
        simulator._update_times_on_markets(simulator.markets)
    with expected_warnings_ignored():
        orders: list[list[Any]] = runner._collect_orders_from_normal_agents(
            session=simulator.current_session
        )
    return orders
