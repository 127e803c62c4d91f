"""A simulation that user code on the main process changes all the time, and agents that notice.

What the agents do depends on everything that is changed, so that a copy that is not up to date
changes the outcome.
"""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

from pams.events import EventABC, EventHook

from .comparison import describe, digest
from .delta_damage import change_graph
from .scenarios import scripted_settings, session
from .trading_agents import Canceller, Sometimes, Trader
from .vandalism import Treasure

if TYPE_CHECKING:
    from pams import Market


def number_of(obj: Any) -> int:
    """A number below 2**16 that depends on everything below ``obj``."""
    return int(digest(describe(obj))[:4], 16)


class Observer(Sometimes):
    """Its prices depend on the playground, and its orders hold objects."""

    synced_attributes = ("seen", "last", "friends")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[int] = []
        self.friends: dict[str, Any] = {}

    def submit_orders(self, markets: list[Market]) -> Any:
        number = number_of(self.simulator.playground)
        self.seen.append(number)
        self.friends = {"next": self.simulator.agents[-1], "market": markets[0]}
        orders = super().submit_orders(markets)
        for order in orders:
            order.price = round(order.price + number / 2**16, 4)
            order.notes = ["because", number, (markets[0], self)]
            self.last = order
        return orders


class Sharing(Trader):
    """All agents of this class have one model, which callbacks train on the main process."""

    model: dict[str, Any]

    def executed_order(self, log: Any) -> None:
        self.model["weights"][log.volume % 3] += log.price
        self.model["history"].append((log.time, self))
        if len(self.model["history"]) > 4:
            self.model["history"] = self.model["history"][-2:]

    def submit_orders(self, markets: list[Market]) -> Any:
        if self.prng.random() < 0.3:
            return []
        order = self.limit_order(self.random_market(markets))
        order.volume = 1 + (int(sum(self.model["weights"])) + len(self.model["history"])) % 4
        return [order]


class Meddling(EventABC):
    """Changes the simulation in every step: the playground, and what pams itself holds."""

    def hook_registration(self) -> list[EventHook]:
        return [EventHook(event=self, hook_type="market", is_before=True)]

    def hooked_before_step_for_market(self, simulator: Any, market: Market) -> None:
        if market is not simulator.markets[0]:
            return
        step = market.get_time()
        change_playground(simulator, self.prng, 0.2)
        change_simulation(simulator, self.prng, step)


def change_playground(simulator: Any, prng: random.Random, share: float) -> None:
    """Change a random part of the playground; make a new one when hardly anything is left."""
    if change_graph(simulator.playground, prng, share, []) < 10:
        simulator.playground = make_playground()
    if len(describe(simulator.playground)) > 2_000:
        simulator.playground = make_playground()


def change_simulation(simulator: Any, prng: random.Random, step: int) -> None:
    """One change after the other to objects and containers of pams."""
    market = simulator.markets[0]
    agents = simulator.normal_frequency_agents
    (
        lambda: agents.append(agents.pop(0)),
        lambda: setattr(market, "_market_prices", list(market._market_prices)),
        lambda: _replace_agent(simulator, prng),
        lambda: _replace_market(simulator),
        lambda: setattr(prng.choice(agents), "prng", random.Random(prng.getrandbits(30))),
        lambda: prng.choice(agents).prng.gauss(0.0, 1.0),
        lambda: _swap_classes(agents),
        lambda: setattr(agents[0], "asset_volumes", dict(agents[0].asset_volumes)),
        lambda: simulator.fundamentals._np_prng.normal(),
        lambda: agents[-1].__dict__.update(mood=[step, market]),
        lambda: agents[-1].__dict__.pop("mood", None),
        lambda: simulator.name2agent.update(alias=agents[0]),
    )[step % 12]()


def _swap_classes(agents: list[Any]) -> None:
    for agent in agents:
        if type(agent) is Trader:
            agent.__class__ = Canceller
        elif type(agent) is Canceller:
            agent.__class__ = Trader


def _replace_agent(simulator: Any, prng: random.Random) -> None:
    """Put a new object in the place of an agent, in the containers that pams asks from."""
    old = prng.choice([a for a in simulator.normal_frequency_agents if type(a) is not Sharing])
    new = copy.copy(old)
    new.prng = random.Random(prng.getrandbits(30))
    for agents in (simulator.agents, simulator.normal_frequency_agents):
        agents[:] = [new if agent is old else agent for agent in agents]
    simulator.id2agent[new.agent_id] = simulator.name2agent[new.name] = new


def _replace_market(simulator: Any) -> None:
    """Put a new object in the place of the last market."""
    old = simulator.markets[-1]
    new = copy.copy(old)
    simulator.markets[-1] = simulator.id2market[old.market_id] = new
    simulator.name2market[old.name] = new
    for book in (new.buy_order_book, new.sell_order_book):
        book.priority_queue = list(book.priority_queue)


def make_playground() -> list[Any]:
    shared = Treasure()
    return [trackable(Treasure()), trackable(shared), {"shared": shared.list}, shared.random]


def trackable(treasure: Treasure) -> Treasure:
    """Without what makes every frame a whole one."""
    del treasure.frozen  # dataclass() gives a class with slots a __setstate__
    del treasure.objects  # a NumPy array of objects is opaque
    return treasure


CLASSES = (Observer, Sharing, Meddling)


def settings(steps: int = 6) -> dict[str, Any]:
    """Settings of a simulation with quotas that make few or many batches of a step."""
    config = scripted_settings(3, cls="Observer")
    simulation = config["simulation"]
    simulation["markets"] = ["Market", "Other"]
    simulation["agents"] = ["Agents", "Sharers", "Traders"]
    simulation["sessions"] = [
        session("everybody", 1000, steps, events=["Meddling"]),
        session("two", 2, steps),
        session("one", 1, steps),
    ]
    config["Other"] = config["Market"]
    config["Agents"]["markets"] = ["Market", "Other"]
    config["Sharers"] = {**config["Agents"], "class": "Sharing"}
    config["Traders"] = {**config["Agents"], "class": "Trader"}
    config["Meddling"] = {"class": "Meddling"}
    return config


def furnish(runner: Any) -> None:
    """Give a runner that has been set up its playground and the shared model."""
    simulator = runner.simulator
    simulator.playground = make_playground()
    model = {"weights": [0.0] * 3, "history": []}
    for agent in simulator.agents:
        if isinstance(agent, Sharing):
            agent.model = model
