"""Hooks that re-enter the encoder and the decoder, or pull things from under them.

Whatever it does, the outcome is an ordinary exception or a usable result.
"""

from __future__ import annotations

import collections
import gc
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hostile import Act, HashAct, Node, survives
from pams_parallel import snapshot
from pams_parallel._core import (
    Decoder,
    Encoder,
)

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize(
    "method",
    [
        lambda encoder: encoder.add([1]),
        lambda encoder: encoder.finish(),
        lambda encoder: encoder.size,
        lambda encoder: encoder.numbers_of([encoder]),
        lambda encoder: encoder.random_offsets([random.Random()]),
        lambda encoder: gc.collect(),
        lambda encoder: sys.getsizeof(encoder),
        lambda encoder: repr(encoder),
    ],
)
@pytest.mark.parametrize("swallow", [True, False])
def test_methods_called_from_within_add(method: Any, swallow: bool) -> None:
    encoder = Encoder(externals=[Node()])

    def act(obj: Any) -> None:
        try:
            method(encoder)
        except Exception:
            if not swallow:
                raise

    Act.out = act
    survives(lambda: encoder.add([Act(), [1]]))
    Act.out = None
    # Closed or as good as new, but not torn.
    data = survives(lambda: (encoder.add([2]), encoder.finish())[1])
    if isinstance(data, bytes):
        assert Decoder(data, [None]).roots[-1] == [2]


def test_dumps_and_loads_within_dumps_and_loads() -> None:
    inner = snapshot.dumps([Node(a=1), [2]])
    seen = []

    def nested(obj: Any) -> None:
        Act.out = None
        seen.append(snapshot.loads(snapshot.dumps([obj, inner])))
        Act.out = nested

    Act.out = nested
    data = snapshot.dumps([Act(), Node(b=Act())])
    Act.out = None
    assert len(seen) == 2
    Act.back = lambda obj: seen.append(snapshot.loads(inner))
    copied = snapshot.loads(data)
    assert len(seen) == 4
    assert type(copied[1].b) is Act


def test_the_encoder_within_its_own_graph() -> None:
    encoder = Encoder()
    with pytest.raises(TypeError):
        encoder.add([encoder])
    external = Encoder()
    other = Encoder(externals=[external])
    other.add([external])
    data = other.finish()
    assert data is not None
    assert Decoder(data, [5]).roots == [[5]]


def test_externals_change_while_decoding() -> None:
    external = Node()
    encoder = Encoder(externals=[external, [1]])
    encoder.add([external, Act(), external, (external, Act()), {external: 1}])
    data = encoder.finish()
    assert data is not None
    counterparts: list[Any] = [Node(a=1), Node(b=2)]
    Act.back = lambda obj: (counterparts.clear(), gc.collect())
    result = survives(lambda: Decoder(data, counterparts).roots[0])
    if result is not None:
        assert type(result[0]) is Node


def test_the_data_changes_while_decoding() -> None:
    original = [Act(), ["text " * 20, 1.5, 10**50], Act(), {"k": (1, 2)}, random.Random(1)]
    data = bytearray(snapshot.dumps(original))

    def overwrite(obj: Any) -> None:
        data[20:] = bytes(reversed(data[20:]))

    def zero(obj: Any) -> None:
        data[:] = bytes(len(data))

    def shrink(obj: Any) -> None:
        data.clear()

    pristine = bytes(data)
    for action in (overwrite, zero, shrink):
        data[:] = pristine
        Act.back = action
        survives(lambda: snapshot.loads(data))
        survives(lambda: Decoder(data).roots)
        survives(lambda: snapshot.loads(memoryview(data)))
        data[:] = pristine
    Act.back = None
    assert snapshot.loads(data)[3] == {"k": (1, 2)}


def test_everything_reachable_is_torn_apart_while_decoding() -> None:
    """The objects that are being built, found through the collector, are emptied."""
    original = [[Act(), [1]], {"k": Act(), "l": [2]}, Node(a=Act()), (Act(), [3]), {Act()}]
    data = snapshot.dumps(original)

    def tear(obj: Any) -> None:
        for found in gc.get_objects():
            if type(found) is Node:
                found.__dict__.clear()
        for referrer in gc.get_referrers(obj):
            if type(referrer) in (list, set) and referrer is not original:
                referrer.clear()

    Act.back = tear
    survives(lambda: snapshot.loads(data))


def test_hash_that_changes_the_container_being_filled() -> None:
    for make in (
        lambda: {HashAct(n) for n in range(5)},
        lambda: {HashAct(n): n for n in range(5)},
        lambda: frozenset(HashAct(n) for n in range(5)),
        lambda: collections.OrderedDict((HashAct(n), n) for n in range(5)),
        lambda: collections.Counter(HashAct(n) for n in range(5)),
    ):
        data = snapshot.dumps([make(), [1]])

        def empty(*args: Any) -> None:
            for found in gc.get_objects():
                if type(found) in (set, dict) and any(type(k) is HashAct for k in list(found)):
                    hashed, HashAct.hashed = HashAct.hashed, None
                    compared, HashAct.compared = HashAct.compared, None
                    found.clear()
                    HashAct.hashed, HashAct.compared = hashed, compared

        HashAct.hashed = empty
        survives(lambda data=data: snapshot.loads(data))
        HashAct.hashed = None
        HashAct.compared = empty
        survives(lambda data=data: snapshot.loads(data))
        HashAct.compared = None


def test_hash_that_re_enters() -> None:
    data = snapshot.dumps([{HashAct(n): n for n in range(3)}, {HashAct(5)}])
    depth = 0

    def load_again(obj: Any) -> None:
        nonlocal depth
        if depth < 5:
            depth += 1
            snapshot.loads(data)
            depth -= 1

    HashAct.hashed = load_again
    assert len(snapshot.loads(data)[0]) == 3


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("hook", ["hashed", "compared"])
def test_hash_and_eq_that_fail(error: BaseException, hook: str) -> None:
    data = snapshot.dumps([{HashAct(n) for n in range(3)}, {HashAct(n): n for n in range(3)}])

    def fail(*args: Any) -> None:
        raise error

    setattr(HashAct, hook, fail)
    with pytest.raises(type(error)):
        snapshot.loads(data)
    with pytest.raises(type(error)):
        Decoder(data)
    setattr(HashAct, hook, None)
    assert len(snapshot.loads(data)[1]) == 3


def test_nothing_is_hashed_while_encoding() -> None:
    graph = [{HashAct(n) for n in range(3)}, {HashAct(n): n for n in range(3)}]

    def fail(*args: Any) -> None:
        raise AssertionError

    HashAct.hashed = HashAct.compared = fail
    encoder = Encoder(externals=[HashAct()], foreign=[HashAct()])
    encoder.add(graph)
    assert encoder.numbers_of(graph)
    assert encoder.finish()
