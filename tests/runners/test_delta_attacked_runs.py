"""Whole runs in which hidden, shared and disguised objects deceive deltas and replicas."""

from __future__ import annotations

import abc
import copyreg
import random
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pams.agents import Agent
from pams.order import Cancel
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from reducers import reduce_agent, reduce_random
from runner_support.comparison import outcome
from runner_support.scenarios import (
    InOrder,
    build,
    collect,
    expected_warnings_ignored,
    scripted_settings,
)
from runner_support.scripts import limit_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:Changes to attributes not listed")

MODES = ("full", "delta")
FORK = {"startMethod": "fork", "numParallel": 2}


class Dealer(Agent):
    """Uses its generator in every way, and submits orders that tell of it."""

    def submit_orders(self, markets: Any) -> Any:
        prng = self.prng
        if prng.random() < 0.5:
            return []
        prng.getrandbits(prng.choice([32, 700 * 32, 1500 * 32]))
        price = round(300.0 + prng.gauss(0, 1), 2)
        return [limit_order(self, price, is_buy=prng.random() < 0.5)]


def changing(runner_class: type[Any], changes: dict[int, Callable[[Any], None]]) -> type[Any]:
    """Runner class whose main process changes the simulation before some of the steps."""

    class Changing(runner_class):  # type: ignore[misc]
        n_steps = 0

        def _collect_orders_from_normal_agents(self, session: Any) -> Any:
            changes.get(self.n_steps, lambda simulator: None)(self.simulator)
            self.n_steps += 1
            return super()._collect_orders_from_normal_agents(session)

    return Changing


class Case(NamedTuple):
    """A simulation."""

    cls: type[Any] = Dealer
    changes: dict[int, Callable[[Any], None]] = {}  # noqa: RUF012
    number: int = 4
    steps: int = 4


def ready(runner_class: type[Any], case: Case, **keys: Any) -> Any:
    """A runner that has been set up."""
    config = scripted_settings(case.number, steps=case.steps, cls=case.cls.__name__)
    runner = build(changing(runner_class, case.changes), config, seed=InOrder(1), **keys)
    runner.class_register(case.cls)
    with expected_warnings_ignored():
        runner._setup()
    return runner


def finished(runner_class: type[Any], case: Case, **keys: Any) -> Any:
    """A runner that has come to the end."""
    runner = ready(runner_class, case, **keys)
    with expected_warnings_ignored():
        runner._run()
    if "snapshotMode" in keys:
        kinds = {record.frame_kind for record in runner.batch_records}
        assert ("keyframe" in kinds) == (keys["snapshotMode"] == "delta")
    return runner


def in_both_modes(case: Case, modes: tuple[str, ...] = MODES, **keys: Any) -> Iterator[Any]:
    """Runners that have come to the end, with whole snapshots and with deltas."""
    for mode in modes:
        merged = {**FORK, **keys, "snapshotMode": mode}
        yield finished(MultiProcessAgentParallelRunner, case, **merged)


def assert_sequential(case: Case, **keys: Any) -> None:
    """All modes have the outcome of the sequential runner."""
    expected = outcome(finished(SequentialRunner, case))
    for runner in in_both_modes(case, **keys):
        assert outcome(runner) == expected


# ---------------------------------------- generators and agents that are copied through a reducer


class Reduced(Dealer):
    """A test registers a reducer for it."""


def label_one(simulator: Any) -> None:
    simulator.agents[1].prng.label = "mine"


def label_all(simulator: Any) -> None:
    for agent in simulator.agents:
        agent.prng.label = "mine"


def remove_labels(simulator: Any) -> None:
    for agent in simulator.agents:
        vars(agent.prng).pop("label", None)


LABELS = {
    "one": {0: label_one},
    "all": {0: label_all},
    "one later": {2: label_one},
    "all later": {2: label_all},
    "for one step": {1: label_one, 2: remove_labels},
    "until the second step": {0: label_all, 1: remove_labels},
}


@pytest.mark.parametrize("kind", LABELS)
def test_generators_with_an_extra_attribute(kind: str) -> None:
    assert_sequential(Case(changes=LABELS[kind]))


def test_generators_with_an_extra_attribute_in_spawned_workers() -> None:
    case = Case(changes=LABELS["one later"], number=2)
    assert_sequential(case, modes=("delta",), startMethod="spawn", numParallel=1)


@pytest.mark.parametrize(
    ("cls", "reducer"), [(Reduced, reduce_agent), (random.Random, reduce_random)]
)
@pytest.mark.parametrize("registry", ["copyreg", "multiprocessing"])
def test_reducers(
    registry: str, cls: type[Any], reducer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reducers: Any = copyreg.dispatch_table
    if registry == "multiprocessing":
        reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    monkeypatch.setitem(reducers, cls, reducer)
    assert_sequential(Case(Reduced))


def test_generators_that_are_seeded_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = random.Random.seed

    def seed(self: random.Random, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)

    monkeypatch.setattr(random.Random, "seed", seed)
    assert_sequential(Case())


# ------------------------------------------------------------------ agents with two generators


class TwoPrngs(Dealer):
    """What it draws from is not what its ``__dict__`` has as ``prng``."""

    @property
    def prng(self) -> Any:
        return self.real

    @prng.setter
    def prng(self, value: Any) -> None:
        self.__dict__["prng"] = value
        self.real = random.Random(7)


class Disguise:
    """A data descriptor."""

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else obj.real

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__["prng"] = value
        obj.real = random.Random(7)


class Disguised(Dealer):
    prng: Any = Disguise()


@pytest.mark.parametrize("cls", [TwoPrngs, Disguised])
@pytest.mark.parametrize("workers", [1, 2])
def test_agents_with_two_generators(cls: type[Any], workers: int) -> None:
    assert_sequential(Case(cls), numParallel=workers)


# -------------------------------------------------- generators that come back in several chunks


class Lender(Agent):
    def submit_orders(self, markets: Any) -> Any:
        self.prng.random()
        return []


class Borrower(Agent):
    """Its generator belongs to another agent."""

    @property
    def prng(self) -> Any:
        return self.lender.prng

    def submit_orders(self, markets: Any) -> Any:
        self.prng.gauss(0, 1)
        return []


class Meddler(Lender):
    """Setting its listed attribute on the main process uses another agent's generator."""

    synced_attributes = ("level",)

    @property
    def level(self) -> int:
        return 1

    @level.setter
    def level(self, value: int) -> None:
        self.lender.prng.gauss(0, 1)


def warm_up(simulator: Any) -> None:
    """No generator needs new words in the next step."""
    for agent in simulator.agents:
        agent.prng.random()


def with_first_agent(cls: type[Any]) -> Callable[[Any], None]:
    def change(simulator: Any) -> None:
        warm_up(simulator)
        first, second = simulator.agents
        if cls is Borrower:
            del first.prng
        first.__class__ = cls
        first.lender = second

    return change


@pytest.mark.parametrize("cls", [Borrower, Meddler])
def test_generator_that_has_been_used_before_its_own_state_comes_back(cls: type[Any]) -> None:
    """What counts is the state that comes back last."""
    honest = finished(SequentialRunner, Case(Lender, {0: warm_up}, number=2, steps=1))
    expected = honest.simulator.agents[1].prng.getstate()
    case = Case(Lender, {0: with_first_agent(cls)}, number=2, steps=1)
    for runner in in_both_modes(case):
        assert runner.simulator.agents[1].prng.getstate() == expected


class Setter(Lender):
    """The first of them changes one of the last words."""

    def submit_orders(self, markets: Any) -> Any:
        if self.agent_id == 0:
            set_words(self.prng, {600: 1})
        return super().submit_orders(markets)


def set_words(prng: random.Random, changed: dict[int, int]) -> None:
    version, words, gauss_next = prng.getstate()
    prng.setstate((version, tuple(changed.get(i, w) for i, w in enumerate(words)), gauss_next))


def share_generator(simulator: Any) -> None:
    warm_up(simulator)
    for agent in simulator.agents:
        agent.prng = simulator.agents[0].prng


@pytest.mark.parametrize("workers", [2, 4])
def test_shared_generator_with_another_late_word(workers: int) -> None:
    """It has the state of the last chunk, which had the words from before."""
    draws = Case(Lender, {0: share_generator}, number=4 // workers, steps=1)
    expected = finished(SequentialRunner, draws).simulator.agents[0].prng.getstate()
    for runner in in_both_modes(Case(Setter, {0: share_generator}, steps=1), numParallel=workers):
        assert runner.simulator.agents[3].prng.getstate() == expected


# ------------------------------------------------------------------- copies that vandals disguise


class Note:
    """Something small."""


class Strange(dict):  # type: ignore[type-arg]
    """A dict of which nobody knows what else it does."""


class Vandal(Dealer):
    """Vandalises the copy in the first step, and looks at it in all."""

    synced_attributes = ("seen",)

    def submit_orders(self, markets: Any) -> Any:
        agents = self.simulator.agents
        if self is agents[0]:
            self.note.mark = 1
        dicts = vars(self.note), vars(self.prng)
        self.seen = (*self.seen, *dicts[0], *(type(each).__name__ for each in dicts))
        if self is agents[-1]:
            del agents[0].note.mark
        if markets[0].get_time() > 0:
            return super().submit_orders(markets)
        if self is agents[-1] and self.simulator.attack is not None:
            self.simulator.attack(agents)
        return []


def share_dicts_of_notes(agents: Any) -> None:
    agents[0].note.__dict__ = agents[1].note.__dict__


def share_dicts_of_generators(agents: Any) -> None:
    agents[0].prng.__dict__ = agents[1].prng.__dict__


def disguise_dict_of_note(agents: Any) -> None:
    agents[1].note.__dict__ = Strange(vars(agents[1].note))


def disguise_dict_of_generator(agents: Any) -> None:
    agents[1].prng.__dict__ = Strange(vars(agents[1].prng))


ATTACKS = (
    share_dicts_of_notes,
    share_dicts_of_generators,
    disguise_dict_of_note,
    disguise_dict_of_generator,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_disguised_copies(attack: Any) -> None:
    """All is as without an attack."""

    def furnish(simulator: Any) -> None:
        simulator.attack = None
        for agent in simulator.agents:
            agent.note, agent.seen = Note(), ()

    def furnish_attacked(simulator: Any) -> None:
        furnish(simulator)
        simulator.attack = attack

    expected = outcome(finished(SequentialRunner, Case(Vandal, {0: furnish})))
    for runner in in_both_modes(Case(Vandal, {0: furnish_attacked}), numParallel=1):
        assert outcome(runner) == expected


# ------------------------------------------------------------------------------------- finalizers


class Final:
    """Leaves a message when it goes."""

    def __init__(self, home: list[str]) -> None:
        self.home = home

    def __del__(self) -> None:
        self.home.append("gone")


class Reader(Lender):
    """Notes what messages there are."""

    synced_attributes = ("seen",)

    def submit_orders(self, markets: Any) -> Any:
        self.seen = (*self.seen, *self.simulator.home)
        return super().submit_orders(markets)


@pytest.mark.parametrize("workers", [1, 2])
def test_finalizers_of_what_has_been_dropped(workers: int) -> None:
    """They run in a worker while those of the main process live on."""
    kept: list[Any] = []

    def furnish(simulator: Any) -> None:
        simulator.home = []
        simulator.finals = [Final(simulator.home) for _ in range(3)]
        for agent in simulator.agents:
            agent.seen = ()

    def drop(simulator: Any) -> None:
        kept.append(simulator.finals.pop())

    assert_sequential(Case(Reader, {0: furnish, 1: drop, 2: drop, 3: drop}), numParallel=workers)
    assert len(kept) == 9


# ----------------------------------------------------------------------------------------- results


class Capturing(MultiProcessAgentParallelRunner):
    """Keeps what comes back as it is, and goes on without it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.received: list[Any] = []

    def _receive_orders_from_worker(self, agent: Any, orders: Any, prng_state: Any) -> Any:
        self.received.append(orders)
        return []


class Returning(Agent):
    """Returns what its function makes."""

    def submit_orders(self, markets: Any) -> Any:
        return self.simulator.make(self, markets[0])


def cancel_three_times(agent: Any, market: Any) -> Any:
    return [Cancel(market.buy_order_book.priority_queue[0])] * 3


def return_one_list(agent: Any, market: Any) -> Any:
    if not market.spare_dict:
        market.spare_dict["orders"] = [Cancel(market.buy_order_book.priority_queue[0])]
    return market.spare_dict["orders"]


def tag_with_list(agent: Any, market: Any) -> Any:
    order = limit_order(agent, 290.0)
    order.tag = market.spare_list
    return [order] * 2


def tag_with_dict(agent: Any, market: Any) -> Any:
    order = limit_order(agent, 290.0)
    order.tag = market.spare_dict
    return [order] * 2


def return_list_of_market(agent: Any, market: Any) -> Any:
    market.spare_list.append(limit_order(agent, 290.0))
    return market.spare_list


def steal_generator(agent: Any, market: Any) -> Any:
    """The generator of the other agent, which does not have it any more."""
    (victim,) = [other for other in agent.simulator.agents if other is not agent]
    if victim.prng is None or agent.agent_id:
        return []
    order = limit_order(agent, 290.0)
    order.tag, order.owner = victim.prng, victim
    victim.prng = None
    return [order]


def assert_generator(market: Any, received: Any) -> None:
    (order,) = [order for orders in received for order in orders]
    assert order.tag is order.owner.prng is not None


def assert_cancels(market: Any, received: Any) -> None:
    for orders in received:
        assert all(cancel.order is market.buy_order_book.priority_queue[0] for cancel in orders)


def assert_tags(market: Any, received: Any) -> None:
    ((order, again),) = received
    assert order is again
    assert order.tag is market.spare_list or order.tag is market.spare_dict


def assert_list_of_market(market: Any, received: Any) -> None:
    assert received[0] is market.spare_list


# What agents return, how many there are of them, and what comes back.
RESULTS = [
    (cancel_three_times, 1, assert_cancels),
    (return_one_list, 2, assert_cancels),
    (tag_with_list, 1, assert_tags),
    (tag_with_dict, 1, assert_tags),
    (return_list_of_market, 1, assert_list_of_market),
    (steal_generator, 2, assert_generator),
]


@pytest.mark.parametrize(
    ("make", "number", "check"), RESULTS, ids=[make.__name__ for make, *_ in RESULTS]
)
def test_results_that_refer_to_the_simulation(make: Any, number: int, check: Any) -> None:
    """What occurs twice does not hide it."""
    for mode in MODES:
        case = Case(Returning, number=number)
        runner = ready(Capturing, case, **{**FORK, "snapshotMode": mode, "numParallel": 1})
        simulator = runner.simulator
        market = simulator.markets[0]
        market.spare_list, market.spare_dict = [], {}
        simulator.make = make
        simulator._update_times_on_markets([market])
        market._add_order(limit_order(simulator.agents[0], 290.0))
        try:
            for _ in range(2):
                collect(runner)
                assert len(runner.received) == number
                check(market, runner.received)
                runner.received.clear()
        finally:
            runner._shutdown_executor()


# -------------------------------------------- generators whose new words have the digest of the old

# Words of the secret that XXH3 has by default, next to which these words are multiplied by 0.
FACTORS = {32: 0xE96D_D4DE, 48: 0xA4A4_4072}


class Drawer(Agent):
    """Draws a few numbers in each step."""

    def submit_orders(self, markets: Any) -> Any:
        numbers = [self.prng.getrandbits(32) for _ in range(20)]
        return [limit_order(self, round(200.0 + sum(numbers) / 2**32, 2))]


def prepare_words(simulator: Any) -> None:
    for agent in simulator.agents:
        set_words(agent.prng, {**FACTORS, 624: 0})


def forge_words(simulator: Any) -> None:
    for agent in simulator.agents:
        words = agent.prng.getstate()[1]
        forged = {33: (words[33] + 2**24) % 2**32, 49: (words[49] - 2**24) % 2**32}
        set_words(agent.prng, forged)


def test_generators_with_words_of_the_same_digest() -> None:
    assert_sequential(Case(Drawer, {0: prepare_words, 1: forge_words}))


# --------------------------------------------------------- attributes that a metaclass keeps secret


class Secretive(abc.ABCMeta):
    def __getattribute__(cls, name: str) -> Any:
        if name == "synced_attributes":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Hidden(Dealer, metaclass=Secretive):
    synced_attributes = ("count",)
    count = 0

    def submit_orders(self, markets: Any) -> Any:
        self.count += 1
        return super().submit_orders(markets)


def test_attributes_that_a_metaclass_hides() -> None:
    assert_sequential(Case(Hidden))
