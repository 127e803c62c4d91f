"""Signals are handled while much is copied, not only when all of it is."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from pams_parallel import snapshot
from pams_parallel.snapshot import Replica, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals of POSIX")

N_OBJECTS = 600_000


class Interrupted(BaseException):
    """Raised by the handler of the signal."""


def interrupt(*_: Any) -> None:
    raise Interrupted


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """A function that has a signal come in a moment."""
    former = signal.signal(signal.SIGALRM, interrupt)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.002) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


@pytest.fixture(scope="module")
def graph() -> list[Any]:
    return [[i] for i in range(N_OBJECTS)]


def calls_until_interrupt(alarm: Any, function: Callable[[Any], Any], argument: Any) -> int:
    """How many calls in a row end normally. No Python code runs between them."""
    ended: list[Any] = []
    alarm()
    with pytest.raises(Interrupted):
        ended.extend(map(bool, map(function, [argument] * 3)))
    return len(ended)


@pytest.mark.parametrize("kind", ["dumps", "loads", "frame", "apply"])
def test_interrupt_while_much_is_copied(alarm: Any, graph: list[Any], kind: str) -> None:
    source, replica = Source(), Replica()
    function, argument = {
        "dumps": lambda: (snapshot.dumps, graph),
        "loads": lambda: (snapshot.loads, snapshot.dumps(graph)),
        "frame": lambda: (source.frame, (graph,)),
        "apply": lambda: (replica.apply, Source().frame((graph,))),
    }[kind]()
    assert calls_until_interrupt(alarm, function, argument) == 0
    source.close()
    replica.close()


def test_source_and_replica_after_an_interrupt(alarm: Any, graph: list[Any]) -> None:
    """The next frame is a keyframe, and the replica asks for one."""
    source, replica = Source(), Replica()
    assert calls_until_interrupt(alarm, source.frame, (graph,)) == 0
    frame = source.frame((graph,))
    assert source.is_keyframe
    assert calls_until_interrupt(alarm, replica.apply, frame) == 0
    assert replica.sequence is None
    replica.apply(frame)
    assert replica.roots == [graph]
    source.close()
    replica.close()
