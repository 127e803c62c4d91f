"""Marks of how far tasks are."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import pytest
from pams_parallel import _core, marks, snapshot
from pams_parallel.marks import Mark, Marks, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def three() -> Iterator[Marks]:
    made = Marks(3)
    yield made
    made.close()
    marks._latest = None


def watch(mark: Any, n_agents: int = 3) -> _core.Watch:
    class Agent:
        pass

    frame = snapshot.dumps(None)
    packer = _core.RandomStatePacker(frame, b"\xff" * 8 * n_agents)
    return _core.Watch([Agent() for _ in range(n_agents)], packer, mark=mark)


def test_phases_of_a_task(three: Marks) -> None:
    assert [three.read(number) for number in range(3)] == [None] * 3
    mark = marks.begin(three.place(1))
    assert mark is not None
    pid = os.getpid()
    assert three.read(1) == Mark(pid, Phase.READING, None)
    watched = watch(mark.state)
    for position in range(3):
        watched.begin()
        assert three.read(1) == Mark(pid, Phase.ASKING, position)
        watched.end([])
        assert three.read(1) == Mark(pid, Phase.ASKING, position)
    mark.returning()
    assert three.read(1) == Mark(pid, Phase.RETURNING, None)
    assert three.read(0) is None
    assert three.read(2) is None
    three.clear(3)
    assert three.read(1) is None


def begin_and_die(place: marks.MarkPlace) -> None:
    mark = marks.begin(place)
    assert mark is not None
    watched = watch(mark.state)
    watched.begin()
    watched.end([])
    watched.begin()
    os._exit(1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_mark_of_a_process_that_has_died(three: Marks, method: str) -> None:
    process = multiprocessing.get_context(method).Process(
        target=begin_and_die, args=(three.place(2),)
    )
    process.start()
    process.join()
    assert three.read(2) == Mark(process.pid, Phase.ASKING, 1)
    process.close()


def test_place_that_is_gone() -> None:
    """Then there is no mark, but the worker goes on."""
    gone = Marks(1)
    place = gone.place(0)
    gone.close()
    assert marks.begin(place._replace(path="/nowhere/marks")) is None
    assert marks.begin(None) is None


@pytest.mark.parametrize("mark", [b"1234", bytearray(3), memoryview(bytearray(9))[1:]])
def test_memory_that_cannot_be_a_mark(mark: Any) -> None:
    with pytest.raises(ValueError, match="mark must be"):
        watch(mark)


@pytest.mark.parametrize("mark", [1, "text"])
def test_what_cannot_be_a_mark(mark: Any) -> None:
    with pytest.raises(TypeError):
        watch(mark)
