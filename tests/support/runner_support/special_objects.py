"""Simulation objects that say themselves how they are copied, as users write them."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

from pams import Market

from .loggers import RowLogger
from .scripted_agents import Scripted
from .scripts import limit_order

if TYPE_CHECKING:
    from pams.order import Order


class FileLogger(RowLogger):
    """Holds an open file, which it leaves out of its copies."""

    def __init__(self) -> None:
        super().__init__()
        self.file: Any = open(os.devnull, "w")  # noqa: SIM115

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.file = None

    def process(self, logs: list[Any]) -> None:
        super().process(logs)
        self.file.write("x")


def _new_market() -> ReducingMarket:
    return ReducingMarket.__new__(ReducingMarket)


class ReducingMarket(Market):
    """Has ``__reduce__``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_market, (), vars(self)


def _new_agent(cls: type[Any]) -> Any:
    return cls.__new__(cls)


class ReducingAgent(Scripted):
    """Has ``__reduce_ex__``."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new_agent, (type(self),), dict(vars(self))


def _new_prng(number: int) -> ReducingPrng:
    return ReducingPrng(0, number=number)


class ReducingPrng(random.Random):
    """Has ``__reduce__``, and a number of its own."""

    def __init__(self, seed: int | None = None, number: int = 0) -> None:
        super().__init__(seed)
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_prng, (self.number,), self.getstate()


def keep_everything(agent: Any, markets: list[Market]) -> list[Order]:
    """Refer to the special objects and use the generator."""
    simulator = agent.simulator
    other = simulator.agents[(agent.agent_id + 1) % len(simulator.agents)]
    agent.kept = [simulator.logger, markets[0], agent, other, agent.prng, other.prng]
    agent.alias = agent.prng
    agent.price = 280.0 + round(agent.alias.random() * 10)
    agent.others = [type(a).__name__ for a in simulator.agents]
    return [limit_order(agent, agent.price)]


KEPT = ("kept", "alias", "price", "others")
