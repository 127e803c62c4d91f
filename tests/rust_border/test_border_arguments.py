"""Wrong arguments of everything in ``_core`` are ordinary exceptions."""

from __future__ import annotations

import array
import copy
import importlib.metadata
import io
import pickle
import random
import struct
from typing import Any

import pytest
from pams_parallel import _core, snapshot
from pams_parallel._core import (
    Decoder,
    Encoder,
    ForeignReferenceError,
    RandomStatePacker,
    RandomStates,
    SnapshotDecodeError,
    changed_attributes,
    chunk_bounds,
    index_of,
)

ABSENT = struct.pack("<Q", 2**64 - 1)


def pack(frame: Any, offsets: Any, prngs: Any) -> bytes:
    packer = RandomStatePacker(frame, offsets)
    for prng in prngs:
        packer.add(prng)
    return packer.finish()


def frame() -> bytes:
    return snapshot.dumps([random.Random(1), "text"])


def test_version() -> None:
    assert _core.__version__ == importlib.metadata.version("pams-parallel")


def test_exceptions() -> None:
    assert issubclass(SnapshotDecodeError, ValueError)
    assert issubclass(ForeignReferenceError, RuntimeError)
    assert snapshot.SnapshotDecodeError is SnapshotDecodeError
    for error in (SnapshotDecodeError("text"), ForeignReferenceError("text")):
        copied = pickle.loads(pickle.dumps(error))
        assert type(copied) is type(error)
        assert copied.args == ("text",)


@pytest.mark.parametrize("cls", [Encoder, Decoder, RandomStatePacker, RandomStates])
def test_classes_are_closed(cls: Any) -> None:
    with pytest.raises(TypeError):
        type("Derived", (cls,), {})
    made = {
        Encoder: lambda: Encoder(),
        Decoder: lambda: Decoder(frame()),
        RandomStatePacker: lambda: RandomStatePacker(frame(), b""),
        RandomStates: lambda: RandomStates(pack(frame(), b"", []), frame(), b""),
    }[cls]()
    with pytest.raises(AttributeError):
        made.new_attribute = 1
    for copier in (pickle.dumps, copy.copy, copy.deepcopy, snapshot.dumps):
        with pytest.raises(Exception):  # noqa: B017, PT011
            copier(made)
    assert cls.__module__ in ("pams_parallel._core", "builtins")


def test_everything_has_a_docstring() -> None:
    for name in _core.__all__:
        if callable(getattr(_core, name)):
            assert getattr(_core, name).__doc__, name


WRONG_CALLS: dict[str, Any] = {
    "Encoder: positional externals of type int": lambda: Encoder(5),
    "Encoder: foreign of type int": lambda: Encoder(foreign=5),
    "Encoder: reducers of type int": lambda: Encoder(reducers=5),
    "Encoder: reducers of type list": lambda: Encoder(reducers=[(int, str)]),
    "Encoder: unknown keyword": lambda: Encoder(unknown=1),
    "Encoder: too many": lambda: Encoder((), (), None, None, 1, 2),
    "Encoder: spill_bytes of type str": lambda: Encoder(spill_bytes="1"),
    "Encoder: spill_bytes of type float": lambda: Encoder(spill_bytes=1.5),
    "Encoder: spill_bytes None": lambda: Encoder(spill_bytes=None),
    "Encoder.add: nothing": lambda: Encoder().add(),
    "Encoder.add: too many": lambda: Encoder().add(1, "a", 2),
    "Encoder.add: name of type int": lambda: Encoder().add(1, 5),
    "Encoder.add: name of type bytes": lambda: Encoder().add(1, b"name"),
    "Encoder.add: names of type int": lambda: Encoder().add((1, 2), (1, 2)),
    "Encoder.add: names of type list": lambda: Encoder().add((1, 2), ["a", "b"]),
    "Encoder.finish: argument": lambda: Encoder().finish(1),
    "Encoder.numbers_of: int": lambda: Encoder().numbers_of(5),
    "Encoder.random_offsets: int": lambda: Encoder().random_offsets(5),
    "Decoder: nothing": lambda: Decoder(),
    "Decoder: str": lambda: Decoder("text"),
    "Decoder: int": lambda: Decoder(5),
    "Decoder: None": lambda: Decoder(None),
    "Decoder: list": lambda: Decoder([1]),
    "Decoder: externals of type int": lambda: Decoder(frame(), 5),
    "Decoder.objects: str": lambda: Decoder(frame()).objects("abcd"),
    "Decoder.objects: list": lambda: Decoder(frame()).objects([0]),
    "Decoder.random_offsets: int": lambda: Decoder(frame()).random_offsets(5),
    "loads: nothing": lambda: snapshot.loads(),
    "loads: str": lambda: snapshot.loads("text"),
    "loads: None": lambda: snapshot.loads(None),
    "RandomStatePacker: nothing": lambda: RandomStatePacker(),
    "RandomStatePacker: str": lambda: RandomStatePacker("", b""),
    "RandomStatePacker: offsets of type list": lambda: RandomStatePacker(b"", [0]),
    "RandomStatePacker.add: nothing": lambda: RandomStatePacker(b"", b"").add(),
    "RandomStates: nothing": lambda: RandomStates(),
    "RandomStates: str": lambda: RandomStates("", b"", b""),
    "RandomStates: frame None": lambda: RandomStates(b"", None, b""),
    "changed_attributes: lists": lambda: changed_attributes([], []),
    "changed_attributes: None": lambda: changed_attributes({}, None),
    "changed_attributes: one": lambda: changed_attributes({}),
    "chunk_bounds: str": lambda: chunk_bounds("1", 1),
    "chunk_bounds: float": lambda: chunk_bounds(1.0, 1),
    "chunk_bounds: None": lambda: chunk_bounds(1, None),
    "chunk_bounds: one": lambda: chunk_bounds(1),
    "index_of: tuple": lambda: index_of((1, 2), 1),
    "index_of: None": lambda: index_of(None, 1),
    "index_of: one": lambda: index_of([]),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_types(name: str) -> None:
    with pytest.raises(TypeError):
        WRONG_CALLS[name]()


@pytest.mark.parametrize("spill_bytes", [-1, -(2**70), 2**70])
def test_spill_bytes_out_of_range(spill_bytes: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        Encoder(spill_bytes=spill_bytes)


@pytest.mark.parametrize("spill_bytes", [0, 1, 2**40])
def test_odd_spill_bytes_work(spill_bytes: int) -> None:
    sink = io.BytesIO()
    encoder = Encoder(sink=sink, spill_bytes=spill_bytes)
    graph = [["text", number] for number in range(1000)]
    encoder.add(graph)
    data = encoder.finish()
    assert snapshot.loads(sink.getvalue() if data is None else data) == graph


class BadSequence:
    """Sequences that user code breaks."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        raise self.error

    def __getitem__(self, index: int) -> Any:
        raise self.error

    def __iter__(self) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_sequences_that_fail(error: BaseException) -> None:
    bad: Any = BadSequence(error)
    data = frame()
    for call in (
        lambda: Encoder(externals=bad),
        lambda: Encoder(foreign=bad),
        lambda: Encoder(reducers=bad),
        lambda: Encoder().numbers_of(bad),
        lambda: Encoder().random_offsets(bad),
        lambda: Decoder(data, bad),
        lambda: Decoder(data).random_offsets(bad),
    ):
        with pytest.raises((type(error), TypeError)):
            call()


class EndlessIterable:
    def __iter__(self) -> Any:
        yield []
        raise ValueError("in the middle")


def test_iterables_that_fail_in_the_middle() -> None:
    encoder = Encoder()
    for method in (encoder.numbers_of, encoder.random_offsets):
        with pytest.raises(ValueError, match="in the middle"):
            method(EndlessIterable())
    with pytest.raises(ValueError, match="in the middle"):
        Decoder(frame()).random_offsets(EndlessIterable())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda d: memoryview(d + d)[::2],
        lambda d: memoryview(d)[::-1],
    ],
)
def test_buffers_that_are_not_contiguous(wrap: Any) -> None:
    with pytest.raises((BufferError, TypeError, ValueError)):
        Decoder(wrap(frame()))
    with pytest.raises((BufferError, TypeError, ValueError)):
        snapshot.loads(wrap(frame()))


def test_buffers_of_other_formats() -> None:
    data = snapshot.dumps(["x" * 1000, 5])
    padded = data + bytes(-len(data) % 8)
    for buffer in (
        memoryview(padded).cast("Q"),
        memoryview(padded).cast("d"),
        array.array("i", padded),
        memoryview(padded).cast("b"),
    ):
        try:
            loaded = snapshot.loads(buffer)
        except (TypeError, BufferError, ValueError):
            continue
        assert loaded == ["x" * 1000, 5]


def test_random_states_of_other_sizes() -> None:
    data = frame()
    prng = snapshot.loads(data)[0]
    for offsets in (b"", b"\x00" * 7, b"\x00" * 9):
        with pytest.raises(ValueError):  # noqa: PT011
            pack(data, offsets, [prng, prng])
    packed = pack(data, ABSENT, [None])
    for offsets in (b"", ABSENT * 2, b"\x00" * 7):
        with pytest.raises(ValueError):  # noqa: PT011
            RandomStates(packed, data, offsets)
    empty = RandomStates(pack(data, b"", []), data, b"")
    assert len(empty) == 0


@pytest.mark.parametrize("offset", [0, 1, 10, 2**20, 2**63, 2**64 - 2, 2**64 - 2500])
def test_offsets_that_point_nowhere(offset: int) -> None:
    """Only the frame's own offsets make sense; others must not read beyond it."""
    data = frame()
    prng = random.Random(5)
    offsets = struct.pack("<Q", offset)
    for buffer in (data, b"", bytes(100)):
        try:
            packed = pack(buffer, offsets, [prng])
            states = RandomStates(packed, buffer, offsets)
            state = states.getstate(0)
        except ValueError:
            continue
        assert state in (None, prng.getstate())


# ---------------------------------------------------------------------------


def test_index_of() -> None:
    one, two = [1], [1]
    items = [two, one, one]
    assert index_of(items, one) == 1
    assert index_of(items, two) == 0
    assert index_of(items, [1]) == -1
    assert index_of([], None) == -1
    assert index_of([0, None], None) == 1


def test_index_of_never_compares() -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    items = [Hostile() for _ in range(5)]
    assert index_of(items, items[3]) == 3
    assert index_of(items, Hostile()) == -1
    nan = float("nan")
    assert index_of([nan], nan) == 0
    assert index_of([1], True) == -1
