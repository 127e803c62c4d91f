"""Lists whose items go to other places, as those of the heaps of order books do."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from delta_support import Chain
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_types import Plain


class Entry(Plain):
    """Has an order, as orders have."""

    def __lt__(self, other: Entry) -> bool:
        return self.key < other.key  # type: ignore[attr-defined]


def entries(n: int) -> list[Any]:
    return [Entry(key=(i * 7919) % 1009) for i in range(n)]


# What happens to a list, by the places that are drawn for it.
def swap(items: list[Any], i: int, j: int) -> None:
    items[i], items[j] = items[j], items[i]


def move(items: list[Any], i: int, j: int) -> None:
    items.insert(j, items.pop(i))


def turn(items: list[Any], i: int, j: int) -> None:
    low, high = sorted((i, j))
    items[low : high + 1] = reversed(items[low : high + 1])


def rotate(items: list[Any], i: int, j: int) -> None:
    items[:] = items[i:] + items[:i]


def drop(items: list[Any], i: int, j: int) -> None:
    if len(items) > 5:
        del items[i]


def add(items: list[Any], i: int, j: int) -> None:
    items.insert(i, Entry(key=j))


def double(items: list[Any], i: int, j: int) -> None:
    items.insert(i, items[j])


def change(items: list[Any], i: int, j: int) -> None:
    if isinstance(items[i], Entry):
        items[i].key = j


ACTIONS = [swap, move, turn, rotate, drop, add, double, change]
EDITS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000), st.integers(0, 1000)),
    min_size=1,
    max_size=12,
)


def edit(items: list[Any], edits: list[Any]) -> None:
    for action, i, j in edits:
        action(items, i % len(items), j % len(items))


@given(st.lists(EDITS, min_size=1, max_size=4), st.booleans())
@settings(deadline=None, max_examples=100)
def test_any_moves(steps: list[Any], is_rebound: bool) -> None:
    """In place, and in a list that takes the place of the one before."""
    holder = Plain(items=entries(40))
    chain = Chain(holder)
    chain.step()
    for edits in steps:
        if is_rebound:
            holder.items = list(holder.items)  # type: ignore[attr-defined]
        edit(holder.items, edits)  # type: ignore[attr-defined]
        chain.delta()
        assert chain.roll_back()


@given(EDITS, EDITS, st.integers(0, 39), st.integers(0, 39))
@settings(deadline=None, max_examples=100)
def test_moves_in_a_list_that_is_put_into_another_one(
    inner_edits: list[Any], outer_edits: list[Any], first: int, second: int
) -> None:
    """Changes of the inner lists are written among those of the outer one."""
    outer, inner, other = entries(40), entries(30), entries(30)
    chain = Chain(outer, [inner, other])
    chain.step()
    edit(inner, inner_edits)
    edit(other, list(reversed(inner_edits)))
    edit(outer, outer_edits)
    outer.insert(first, inner)
    inner.insert(0, other)
    outer.insert(second, Plain(items=other))
    chain.delta()
    assert chain.roll_back()
    edit(outer, outer_edits)
    edit(inner, inner_edits)
    chain.delta()


@pytest.mark.parametrize("n", [60, 300])
def test_a_heap_that_is_made_anew_takes_few_bytes(n: int) -> None:
    """As pams does it after an order has been executed."""
    holder = Plain(heap=sorted(entries(n)))
    chain = Chain(holder)
    chain.step()
    for _ in range(5):
        heap = [entry for entry in holder.heap if entry.key % 10]  # type: ignore[attr-defined]
        heap.reverse()
        heapq.heapify(heap)
        heapq.heappush(heap, Entry(key=3))
        holder.heap = heap
        assert len(chain.delta()) < 400 + 5 * n


def test_attributes_of_the_same_name_and_items() -> None:
    """One attribute each, of objects with other changes in between."""
    shared = Plain(deep=Plain(x=0))
    objs: list[Any] = [Plain(x=i, y=i) for i in range(6)]
    dicts = [{"k": i, "n": i} for i in range(6)]
    chain = Chain(objs, dicts, shared)
    chain.step()
    for i, obj in enumerate(objs):
        setattr(obj, "xyxyxx"[i], Plain(x=shared) if i % 2 else i + 0.5)
        dicts[i]["k"] = shared if i % 3 else i + 1
    shared.deep.x = objs  # type: ignore[attr-defined]
    objs[2].new = Plain(x=Plain(x=1), y=2)
    chain.delta()
    assert chain.roll_back()
