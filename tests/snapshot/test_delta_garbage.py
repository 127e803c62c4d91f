"""Nothing is kept that should be gone, and nothing goes that should be kept."""

from __future__ import annotations

import collections
import gc
import weakref
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from delta_support import (
    Chain,
    numbers_of,
)
from pams_parallel.snapshot import Replica, Source
from sample_types import (
    Plain,
)

if TYPE_CHECKING:
    pass


def test_close_of_a_source() -> None:
    root = Plain(a=[1], me=None)
    root.me = root
    source = Source()
    source.frame((root,))
    reference = weakref.ref(root)
    source.close()
    source.close()
    with pytest.raises(ValueError, match="closed"):
        source.frame(([1],))
    del root
    gc.collect()
    assert reference() is None
    with pytest.raises(ValueError, match="closed"):
        source.frame(([1],), keyframe=True)


def test_close_of_a_replica() -> None:
    chain = Chain(Plain(a=[1]))
    chain.step()
    reference = weakref.ref(chain.replica.roots[0])
    chain.replica.close()
    chain.replica.close()
    gc.collect()
    assert reference() is None
    assert chain.replica.sequence is None
    other = Replica()
    chain.catch_up(other)
    chain.check(other)


def test_sides_that_are_not_closed() -> None:
    chain = Chain(Plain(a=[1]))
    chain.step()
    references = [weakref.ref(chain.roots[0]), weakref.ref(chain.replica.roots[0])]
    del chain
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def steps_until_gone(chain: Chain, references: list[weakref.ref[Any]]) -> int:
    for step in range(10):
        chain.step()
        gc.collect()
        if all(reference() is None for reference in references):
            return step
    raise AssertionError(f"alive: {[reference() for reference in references]}")


@pytest.mark.parametrize("cyclic", [False, True])
def test_objects_that_left_the_graph_are_released(cyclic: bool) -> None:
    agents = [Plain(number=n) for n in range(10)]
    if cyclic:
        for agent in agents:
            agent.me = [agent]
    chain = Chain(agents, {"agents": agents}, {agents[3]: 1}, collections.deque([agents[3]]))
    chain.step()
    references = [weakref.ref(agents[3]), weakref.ref(chain.replica.roots[0][3])]
    del agents[3]
    chain.roots[2].clear()
    chain.roots[3].clear()
    assert steps_until_gone(chain, references) <= 5
    # Nothing else is released.
    assert all(agent in agents for agent in chain.roots[1]["agents"])
    chain.check()


def test_roots_that_are_not_given_again_are_released() -> None:
    first, second = Plain(a=[1]), Plain(b=2)
    chain = Chain(first, second)
    chain.step()
    references = [weakref.ref(first), weakref.ref(chain.replica.roots[0])]
    chain.roots = (second,)
    del first
    assert steps_until_gone(chain, references) <= 5


def test_attributes_that_were_replaced_are_released() -> None:
    agent = Plain(order=Plain())
    chain = Chain(agent)
    for _ in range(3):
        chain.step()
        references = [weakref.ref(agent.order), weakref.ref(chain.replica.roots[0].order)]
        agent.order = Plain()
        assert steps_until_gone(chain, references) <= 5


def test_temporary_objects_of_user_code_are_released() -> None:
    """A state that is made anew for every frame."""
    references: list[weakref.ref[Any]] = []

    class Temporary(Plain):
        pass

    def getstate(self: Any) -> Any:
        made = Plain(values=[1.5])
        references.append(weakref.ref(made))
        return {"made": made}

    Temporary.__getstate__ = getstate  # type: ignore[attr-defined]
    Temporary.__qualname__ = "Temporary"
    globals()["Temporary"] = Temporary
    try:
        chain = Chain([Temporary()])
        for _ in range(30):
            chain.step()
        gc.collect()
        assert sum(reference() is not None for reference in references) < 20
        chain.source.close()
        gc.collect()
        assert all(reference() is None for reference in references)
    finally:
        del globals()["Temporary"]


def unique_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_full_info().uss


@pytest.mark.parametrize("cyclic", [False, True])
def test_many_frames_that_add_and_drop_objects(cyclic: bool) -> None:
    """Memory and numbers are bounded: what is gone makes room."""
    kept = [Plain(n=n) for n in range(10)]
    chain = Chain(kept, [], {}, Plain())
    sizes = []
    for step in range(300):
        chain.roots[1][:] = [Plain(step=step, data=bytearray(100_000)), [float(step)] * 10_000]
        if cyclic:
            chain.roots[1][0].me = (chain.roots[1], chain.roots[1][0])
            chain.roots[1][1].append(chain.roots[1][1])
        chain.roots[2].clear()
        chain.roots[2][f"key {step}"] = (step, f"text {step} " * 1000, [step])
        chain.roots[3].__dict__ = {f"name_{step % 50}": {step}}
        if step % 3 == 0:
            kept[step % 10] = Plain(n=step)
        chain.send()
        chain.catch_up(chain.replica)
        del chain.frames[:-1]
        if step % 25 == 0:
            chain.check()
            sizes.append(unique_bytes())
    reachable = [*kept, *chain.roots[1], chain.roots[1][0].data, *chain.roots[2].values()]
    assert max(numbers_of(chain.source, reachable)) < 1000
    assert sizes[-1] - sizes[2] < 40_000_000  # 300 times 0.4 MB on each side would be 240 MB


@pytest.mark.parametrize("cyclic", [False, True])
def test_numbers_are_bounded(cyclic: bool) -> None:
    holder: list[Any] = []
    chain = Chain(holder)
    chain.step()
    for step in range(300):
        holder[:] = [Plain(step=step, text=f"text {step}", more=[step, (step, [step])])]
        if cyclic:
            holder[0].me = holder[0]
        chain.send()
        assert not chain.source.is_keyframe
        chain.catch_up(chain.replica)
    chain.check()
    assert max(numbers_of(chain.source, [holder, *holder, holder[0].more])) < 200


class Pair(tuple):
    """A tuple that can have attributes."""


class Bag(frozenset):
    """A frozenset that can have attributes."""


@pytest.mark.parametrize("cls", [Pair, Bag, tuple, frozenset])
def test_parts_of_immutable_containers_stay(cls: type[Any]) -> None:
    part = Plain(a=[1])
    chain = Chain([cls((part,))])
    chain.step()
    part.a.append(2)
    chain.step()
    part.b = 2
    chain.step()
    for _ in range(3):
        part.a.append(3)
        chain.delta()
