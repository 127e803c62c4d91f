"""Exceptions that are no ``Exception``, and objects that die at the wrong time."""

from __future__ import annotations

import gc
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hostile import Act, Node, survives
from pams_parallel import snapshot
from pams_parallel._core import (
    Decoder,
    Encoder,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
@pytest.mark.parametrize("side", ["out", "back"])
def test_base_exceptions(error: type[BaseException], side: str) -> None:
    graph = [Node(a=[1]), {"k": (Act(), [2])}]
    data = snapshot.dumps(graph)

    def fail(obj: Any) -> None:
        raise error

    setattr(Act, side, fail)
    for use in (
        (lambda: snapshot.dumps(graph), lambda: Encoder().add(graph))
        if side == "out"
        else (
            lambda: snapshot.loads(data),
            lambda: Decoder(data),
        )
    ):
        with pytest.raises(error):
            use()
    setattr(Act, side, None)
    assert snapshot.loads(snapshot.dumps(graph))[0].a == [1]


class Dying:
    """Runs code when it dies."""

    died: Callable[[Any], Any] | None = None

    def __init__(self, label: Any = None) -> None:
        self.label = label

    def __del__(self) -> None:
        if Dying.died is not None:
            Dying.died(self)


def test_objects_that_die_while_loading_fails() -> None:
    deaths = []

    def died(obj: Any) -> None:
        deaths.append(obj.label)
        snapshot.loads(snapshot.dumps([1, Node(a=2)]))
        gc.collect()

    data = snapshot.dumps([Dying("first"), [Dying("second")], Act(), Dying("third")])

    def fail(obj: Any) -> None:
        raise ValueError("no")

    Act.back = fail
    Dying.died = died
    try:
        with pytest.raises(ValueError, match="no"):
            snapshot.loads(data)
        gc.collect()
        assert sorted(deaths) == ["first", "second"]
    finally:
        Dying.died = None


def test_objects_that_die_while_encoding_fails() -> None:
    class Fresh:
        """Its state is a new object, which only the encoder keeps."""

        def __reduce__(self) -> Any:
            return Node, (), {"dying": Dying("fresh")}

    deaths = []

    def died(obj: Any) -> None:
        deaths.append(obj.label)
        for encoder in encoders:
            survives(lambda encoder=encoder: encoder.add([1]))
            survives(lambda encoder=encoder: encoder.finish())

    encoders = [Encoder()]
    Dying.died = died
    try:
        with pytest.raises(TypeError):
            encoders[0].add([Fresh(), {}.keys()])
        encoders.clear()
        gc.collect()
        assert deaths == ["fresh"]
    finally:
        Dying.died = None


def test_objects_that_die_when_a_decoder_is_closed() -> None:
    decoder = Decoder(snapshot.dumps([Dying("a"), Dying("b"), [Dying("c")]]))
    deaths = []

    def died(obj: Any) -> None:
        deaths.append(obj.label)
        decoder.close()
        survives(lambda: decoder.roots)
        survives(lambda: decoder.objects(struct.pack("<I", 0)))

    Dying.died = died
    try:
        decoder.close()
        gc.collect()
        assert sorted(deaths) == ["a", "b", "c"]
    finally:
        Dying.died = None


def test_resurrection() -> None:
    saved = []
    Dying.died = saved.append
    try:
        decoder = Decoder(snapshot.dumps([Dying("a")]))
        del decoder
        gc.collect()
        assert saved[0].label == "a"
    finally:
        Dying.died = None
