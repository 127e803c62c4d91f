"""Graphs made to deceive a source or a replica: hidden, shared and disguised parts."""

from __future__ import annotations

import copyreg
import random
import struct
from typing import TYPE_CHECKING, Any

import pytest
from checks import having
from delta_support import UNKNOWN, Chain, numbers_of
from pams_parallel._core import RandomStatePacker, RandomStates, positions_with
from pams_parallel.snapshot import Encoder, Replica, Source, loads
from reducers import reduce_agent, reduce_random
from sample_types import MyDict, MyList, Plain

if TYPE_CHECKING:
    from collections.abc import Callable

# ------------------------------------------------------------ dicts of instances, and rolling back


class Strange(dict):  # type: ignore[type-arg]
    """A dict of which nobody knows what else it does."""


def share_dict(root: Any) -> None:
    root[0].__dict__ = root[1].__dict__


def share_last_dict(root: Any) -> None:
    root[1].__dict__ = root[0].__dict__


def use_dict_of_graph(root: Any) -> None:
    root[0].__dict__ = root[1]


def use_strange_dict(root: Any) -> None:
    root[0].__dict__ = Strange(root[0].__dict__)


def use_strange_dict_after_a_draw(root: Any) -> None:
    root[0].random()
    use_strange_dict(root)


def instances_with_same_values() -> list[Any]:
    value = [1]
    return [Plain(value=value), Plain(value=value)]


# Root, and what happens to the copy; all items are the same objects as before.
SAME_ITEMS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "shared, empty": (lambda: [Plain(), Plain()], share_dict),
    "shared, empty, the other way round": (lambda: [Plain(), Plain()], share_last_dict),
    "shared, same values": (instances_with_same_values, share_dict),
    "shared by generators": (lambda: [random.Random(1), random.Random(2)], share_dict),
    "shared by generators, the other way round": (
        lambda: [random.Random(1), random.Random(2)],
        share_last_dict,
    ),
    "shared by lists": (lambda: [MyList([1]), MyList([2])], share_dict),
    "shared by dicts": (lambda: [MyDict(a=1), MyDict(b=2)], share_dict),
    "dict of the graph": (lambda: [Plain(), {}], use_dict_of_graph),
    "subclass": (lambda: [Plain(value=[1])], use_strange_dict),
    "subclass, empty": (lambda: [Plain()], use_strange_dict),
    "subclass, of a generator": (lambda: [random.Random(1)], use_strange_dict),
    "subclass, of a generator, which is used": (
        lambda: [random.Random(1)],
        use_strange_dict_after_a_draw,
    ),
    "subclass, of a list": (lambda: [having(MyList([1]), value=[1])], use_strange_dict),
}


def mark(obj: Any) -> None:
    """Change an attribute of an object, if it can have one that is copied."""
    if type(obj) is random.Random:
        obj.gauss_next = 0.5
    elif type(obj) is not dict:
        obj.mark = "changed"


@pytest.mark.parametrize("kind", SAME_ITEMS)
def test_another_dict_with_the_same_items(kind: str) -> None:
    make, attack = SAME_ITEMS[kind]
    root = make()
    chain = Chain(root)
    chain.step()
    for _ in range(2):
        attack(chain.replica.roots[0])
        chain.roll_back()
        assert not any(isinstance(vars(obj), Strange) for obj in instances(chain))
    # Whatever is done to one of them from now on happens to it alone, on both sides.
    for index in range(len(root)):
        mark(chain.replica.roots[0][index])
        assert [has_mark(obj) for obj in instances(chain)].count(True) <= 1
        chain.roll_back()
    mark(root[0])
    chain.step()


def instances(chain: Chain) -> list[Any]:
    return [obj for obj in chain.replica.roots[0] if type(obj) is not dict]


def has_mark(obj: Any) -> bool:
    return "mark" in vars(obj) or vars(obj).get("gauss_next") is not None


# ------------------------------------------------------------------------------------- finalizers


class Final:
    """Leaves a message when it goes."""

    def __init__(self, message: Any, home: Any) -> None:
        self.message = message
        self.home = home

    def __del__(self) -> None:
        self.message(self)


def append(final: Final) -> None:
    final.home.letters.append("gone")


def revive(final: Final) -> None:
    final.home.letters.append(final)


def assign(final: Final) -> None:
    final.home.letters = None


def add_key(final: Final) -> None:
    final.home.addresses["gone"] = 1


def draw(final: Final) -> None:
    final.home.prng.gauss(0, 1)


def wipe_out(final: Final) -> None:
    vars(final.home).clear()


def pop_item(world: Any) -> None:
    world.items.pop()


def replace_item(world: Any) -> None:
    world.items[0] = [2]


def replace_list(world: Any) -> None:
    world.items = [3]


def delete_attribute(world: Any) -> None:
    del world.items


def move_away(world: Any) -> None:
    world.items = [Plain(inner=world.other)]


def bare(obj: Any) -> Any:
    return obj


def in_others(obj: Any) -> Any:
    return (Plain(inner=[obj]),)


MESSAGES = (append, revive, assign, add_key, draw, wipe_out)
DROPS = (pop_item, replace_item, replace_list, delete_attribute, move_away)


@pytest.mark.parametrize("drop", DROPS, ids=lambda drop: drop.__name__)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
@pytest.mark.parametrize("wrap", [bare, in_others], ids=lambda wrap: wrap.__name__)
def test_finalizer(message: Any, drop: Any, wrap: Any) -> None:
    """The copy is right when the frame has been applied, before anything else happens."""
    home = Plain(letters=["first"], addresses={}, prng=random.Random(1))
    final = Final(message, home)
    world = Plain(home=home, items=[wrap(final)], other=[4])
    chain = Chain(world)
    chain.step()
    drop(world)
    chain.step()  # compares; `final` lives on here
    home.letters.append("second")
    chain.step()
    final.message = type  # says nothing any more


# ------------------------------------------------------- words of generators with the same digest

# Words of the secret that XXH3 has by default, next to which these words are multiplied by 0.
FACTORS = {32: 0xE96D_D4DE, 48: 0xA4A4_4072}


def first_of_pair() -> random.Random:
    """A generator whose words have the same digest, without a key, as after :func:`forge`."""
    prng = random.Random(1)
    set_words(prng, FACTORS)
    return prng


def forge(prng: random.Random) -> None:
    words = prng.getstate()[1]
    set_words(prng, {33: (words[33] + 1) % 2**32, 49: (words[49] - 1) % 2**32})


def set_words(prng: random.Random, changed: dict[int, int]) -> None:
    version, words, gauss_next = prng.getstate()
    prng.setstate((version, tuple(changed.get(i, w) for i, w in enumerate(words)), gauss_next))


def test_generator_with_the_same_digest() -> None:
    prng = first_of_pair()
    chain = Chain([prng])
    chain.step()
    before = prng.getstate()
    forge(prng)
    chain.step()
    copied = chain.replica.roots[0][0]
    assert copied.getstate() == prng.getstate() != before


def test_generator_with_the_same_digest_is_rolled_back() -> None:
    prng = first_of_pair()
    chain = Chain([prng])
    chain.step()
    forge(chain.replica.roots[0][0])
    chain.roll_back()
    assert chain.replica.roots[0][0].getstate() == prng.getstate()


# ----------------------------------------------------------------- states of agents' generators


class OwnPrng:
    """An ordinary agent."""

    def __init__(self, seed: int) -> None:
        self.prng: Any = random.Random(seed)


class TwoPrngs:
    """What its attribute gives is not what its ``__dict__`` has under that name."""

    def __init__(self, seed: int) -> None:
        self.__dict__["prng"] = random.Random(seed)
        self.real = random.Random(-seed)

    @property
    def prng(self) -> random.Random:
        return self.real


class Disguise:
    """A data descriptor."""

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else obj.real

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__["prng"] = value


class Disguised(TwoPrngs):
    prng: Any = Disguise()


class Reduced(OwnPrng):
    """A test registers a reducer for it."""


class States(Chain):
    """A chain whose first root are agents."""

    def prngs(self) -> bytes:
        return self.source.prngs_of(self.source.numbers_of(self.roots[0]))

    def exchange(
        self, replica: Replica, use: Callable[[random.Random], Any]
    ) -> tuple[RandomStates, list[Any]]:
        """Use and pack the copies' generators, as a worker does.

        Returns:
            The states, and what they have to be: ``None`` for generators that are not ordinary.
        """
        prngs = self.prngs()
        packer = replica.random_state_packer(prngs)
        expected = []
        for agent in replica.objects(self.source.numbers_of(self.roots[0])):
            use(agent.prng)
            is_ordinary = vars(agent.prng).keys() == {"gauss_next"}
            assert packer.add(agent.prng) == is_ordinary
            expected.append(agent.prng.getstate() if is_ordinary else None)
        states = self.source.random_states(packer.finish(), prngs)
        assert [states.getstate(index) for index in range(len(expected))] == expected
        return states, expected


def gauss(prng: random.Random) -> None:
    prng.gauss(0, 1)


def nothing(prng: random.Random) -> None:
    pass


def label(agents: list[Any]) -> None:
    agents[1].prng.label = "mine"


def register(cls: type[Any], reducer: Any) -> Any:
    def attack(agents: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(copyreg.dispatch_table, cls, reducer)

    return attack


def patch_seed(agents: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = random.Random.seed

    def seed(self: random.Random, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)

    monkeypatch.setattr(random.Random, "seed", seed)


# Class of the middle one of three agents, what is done to them, and who is known to have an
# ordinary generator of its own.
ODD_AGENTS: dict[str, tuple[Any, Any, list[bool]]] = {
    "property": (TwoPrngs, None, [True, False, True]),
    "descriptor": (Disguised, None, [True, False, True]),
    "extra attribute": (OwnPrng, lambda agents, _: label(agents), [True, False, True]),
    "reducer of agents": (Reduced, register(Reduced, reduce_agent), [True, False, True]),
    "reducer of generators": (OwnPrng, register(random.Random, reduce_random), [False] * 3),
    "another seed": (OwnPrng, patch_seed, [False] * 3),
}


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        (kind, when)
        for kind, (_, attack, _) in ODD_AGENTS.items()
        for when in (0, 1)
        if attack or not when
    ],
)
def test_generators_of_agents(kind: str, when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cls, attack, are_known = ODD_AGENTS[kind]
    agents = [OwnPrng(1), cls(2), OwnPrng(3)]
    prngs = [agent.prng for agent in agents]
    chain = States(agents)
    for step in range(3):
        if attack is not None and step == when:
            attack(agents, monkeypatch)
        chain.send()
        replica = Replica()
        chain.catch_up(replica)
        if step >= when:
            own = numbers_of(chain.source, prngs)
            known = [own[i] if is_known else UNKNOWN for i, is_known in enumerate(are_known)]
            assert list(struct.unpack("<3I", chain.prngs())) == known
        states, expected = chain.exchange(replica, gauss)
        index = 0
        while (index := states.apply_recorded(index, 3)) < 3:
            assert states.apply(index, prngs[index]) == (expected[index] is not None)
            index += 1
        for prng, state in zip(prngs, expected, strict=True):
            assert state is None or prng.getstate() == state


def used(seed: int) -> random.Random:
    """A generator that is somewhere among its words."""
    prng = random.Random(seed)
    prng.random()
    return prng


def test_generator_whose_late_words_have_changed() -> None:
    """The first words are those of the frame."""
    agents = [OwnPrng(1)]
    agents[0].prng = prng = used(1)
    chain = States(agents)
    chain.step()
    states, (expected,) = chain.exchange(chain.replica, gauss)
    set_words(prng, {600: 1})
    assert states.apply(0, prng)
    assert prng.getstate() == expected


def test_generator_whose_late_words_have_changed_and_a_whole_snapshot() -> None:
    prng = used(1)
    encoder = Encoder()
    encoder.add(prng)
    offsets = encoder.random_offsets([prng])
    frame = encoder.finish()
    assert frame is not None
    twin = loads(frame)
    twin.random()
    packer = RandomStatePacker(frame, offsets)
    assert packer.add(twin)
    states = RandomStates(packer.finish(), frame, offsets)
    set_words(prng, {600: 1})
    assert states.apply(0, prng)
    assert prng.getstate() == twin.getstate()


def test_generator_that_is_set_for_another_agent_first() -> None:
    """Its index is as recorded then, but not its ``gauss_next``."""
    first, second = TwoPrngs(1), OwnPrng(2)
    first.real = second.prng = used(2)
    chain = States([first, second])
    chain.step()
    before = second.prng.getstate()
    later_states, _ = chain.exchange(chain.replica, nothing)  # of another worker
    states, (expected, _) = chain.exchange(chain.replica, gauss)
    assert states.apply(0, first.prng)
    assert second.prng.getstate() == expected != before
    assert later_states.apply_recorded(1, 2) == 2
    assert second.prng.getstate() == before


# --------------------------------------------------------- attributes that a metaclass keeps secret


class Secretive(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "listed":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Hidden(metaclass=Secretive):
    listed = ("a",)


class HeirOfHidden(Hidden):
    pass


def test_attributes_that_a_metaclass_hides() -> None:
    objs = [Plain(), Hidden(), Plain(listed=()), HeirOfHidden(), Plain()]
    assert positions_with(objs, "listed") == [1, 2, 3]
    source = Source()
    source.frame((objs,))
    assert source.positions_with(source.numbers_of(objs), "listed") == [1, 2, 3]
