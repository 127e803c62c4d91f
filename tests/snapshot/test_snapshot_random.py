"""Pseudo random number generators, in snapshots and as packed states relative to one."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from checks import (
    assert_copied,
    assert_error_of_pickle,
    assert_like_pickle,
    assert_outcome_of_pickle,
    copy_of,
    pickled_copy,
)
from graph_compare import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from pams_parallel import snapshot
from pams_parallel._core import RandomStatePacker, RandomStates
from sample_types import MyRandom, Plain

FULL_SIZE = 624 * 4
SMALL = 64

ABSENT = struct.pack("<Q", 2**64 - 1)


def pack(frame: bytes, offsets: bytes, prngs: list[Any]) -> bytes:
    packer = RandomStatePacker(frame, offsets)
    for prng in prngs:
        packer.add(prng)
    return packer.finish()


def with_gauss(seed: int = 1) -> random.Random:
    prng = random.Random(seed)
    prng.gauss(0, 1)
    return prng


def state(index: int = 624, gauss: Any = None, seed: int = 1) -> tuple[Any, ...]:
    words = list(random.Random(seed).getstate()[1][:624])
    return (3, (*words, index), gauss)


def with_state(made: tuple[Any, ...]) -> random.Random:
    prng = random.Random()
    prng.setstate(made)
    return prng


def drawn(prng: random.Random) -> list[Any]:
    return [prng.random(), prng.gauss(0, 1), prng.getrandbits(100), prng.choice("abc")]


def test_random() -> None:
    for prng in (
        random.Random(1),
        with_gauss(),
        with_state(state(0)),
        with_state(state(1, -0.0)),
        with_state(state(623, float("nan"))),
        with_state(state(624, float("inf"))),
        with_state((3, (0,) * 624 + (624,), None)),
        with_state((3, (0xFFFFFFFF,) * 624 + (7,), 5e-324)),
    ):
        copied = assert_copied([prng, prng, Plain(prng=prng)])
        assert copied[0] is copied[2].prng
        assert copied[0].getstate()[1] == prng.getstate()[1]
        assert drawn(copied[0]) == drawn(pickled_copy(prng)) or prng.gauss_next is not None
        alone = copy_of(prng)
        assert drawn(alone)[0] == drawn(prng)[0]


def test_copy_is_independent() -> None:
    prng = random.Random(5)
    copied = copy_of(prng)
    before = prng.getstate()
    copied.random()
    assert prng.getstate() == before


def test_methods_of_a_generator() -> None:
    prng = random.Random(3)
    copied = copy_of([prng.gauss, prng.random, prng])
    assert copied[0].__self__ is copied[1].__self__ is copied[2]
    assert copied[1]() == prng.random()
    assert_like_pickle(random.Random(1).random)


def test_subclasses() -> None:
    prng = MyRandom(1)
    prng.gauss(0, 1)
    prng.note = "pickle drops it"  # type: ignore[attr-defined]
    assert_like_pickle([prng, prng])

    assert_like_pickle(Overriding(1))


class Overriding(random.Random):
    """Has a state of its own."""

    def getstate(self) -> tuple[Any, ...]:
        return ("own state", super().getstate())

    def setstate(self, state: tuple[Any, ...]) -> None:
        super().setstate(state[1])
        self.restored_from = state[0]


def test_attributes_of_an_exact_random_are_dropped() -> None:
    prng = with_gauss()
    prng.note = [1]  # type: ignore[attr-defined]
    copied = assert_like_pickle([prng, prng])
    assert list(vars(copied[0])) == ["gauss_next"]


def test_random_in_a_cycle_with_its_attributes() -> None:
    prng = random.Random(1)
    prng.owner = Plain(prng=prng)  # type: ignore[attr-defined]
    assert_like_pickle([prng, prng.owner])  # type: ignore[attr-defined]


@pytest.mark.parametrize("gauss", [1, "text", [1], True, np.float64(1.5), complex(1)])
def test_gauss_next_of_an_odd_type(gauss: Any) -> None:
    prng = random.Random(1)
    prng.gauss_next = gauss
    assert_like_pickle([prng, gauss])


def test_gauss_next_that_is_shared_or_cyclic() -> None:
    prng = random.Random(1)
    prng.gauss_next = [prng]  # type: ignore[assignment]
    assert_outcome_of_pickle(prng)
    assert_outcome_of_pickle([prng.gauss_next, prng])


def test_gauss_next_that_is_missing() -> None:
    prng = random.Random(1)
    del prng.gauss_next
    assert_error_of_pickle([Plain(prng=prng)], "obj[0].prng")


def test_hooks_on_one_generator() -> None:
    prng = random.Random(1)
    prng.__reduce_ex__ = lambda protocol: (list, ((protocol,),))  # type: ignore[method-assign, misc]
    assert_like_pickle([prng, random.Random(2)])
    other = random.Random(1)
    other.getstate = lambda: (3, random.Random(9).getstate()[1], 0.5)  # type: ignore[method-assign]
    assert_like_pickle([other, random.Random(2)])
    third = random.Random(1)
    third.__reduce__ = lambda: (list, ())  # type: ignore[method-assign]
    assert_like_pickle(third)


@pytest.mark.parametrize("hook", ["getstate", "__reduce__", "__getstate__", "setstate"])
def test_hooks_patched_into_the_class(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    getstate, setstate = random.Random.getstate, random.Random.setstate
    hooks: dict[str, Any] = {
        "getstate": lambda self: (3, getstate(random.Random(9))[1], 0.25),
        "setstate": lambda self, state: setstate(self, (3, state[1], 0.75)),
        "__reduce__": lambda self: (Plain, (), {"note": "patched"}),
        "__getstate__": lambda self: getstate(random.Random(9)),
    }
    graph = [random.Random(1), Plain(prng=with_gauss())]
    assert_copied(graph)
    monkeypatch.setattr(random.Random, hook, hooks[hook])
    assert_like_pickle(graph)
    monkeypatch.undo()
    assert_copied(graph)


def test_system_random() -> None:
    system = random.SystemRandom()
    error = assert_error_of_pickle([Plain(prng=system)], "obj[0].prng")
    assert isinstance(error, NotImplementedError)


def test_the_module_level_generator() -> None:
    assert_copied([random._inst])
    assert_like_pickle(random.random)


def test_numpy_generators() -> None:
    for bits in (np.random.PCG64, np.random.MT19937, np.random.SFC64, np.random.Philox):
        generator = np.random.Generator(bits(5))
        generator.integers(0, 5, 3, dtype="u2")
        copied = assert_copied([generator, generator, Plain(g=generator)])
        assert copied[0].random() == generator.random()
        assert_copied(bits(3))
    legacy = np.random.RandomState(5)
    legacy.normal()
    copied = assert_copied([legacy, legacy])
    assert copied[0].normal() == legacy.normal()
    assert_like_pickle(np.random.SeedSequence(5).entropy)


def test_generators_that_share_their_bits() -> None:
    bits = np.random.PCG64(1)
    assert_like_pickle([np.random.Generator(bits), np.random.Generator(bits), bits])


# ---------------------------------------------------------------------------
# Packed states.


def frame_of(prngs: list[Any]) -> tuple[bytes, bytes, list[Any]]:
    """Snapshot of the generators, where their states stand in it, and the decoded ones."""
    encoder = snapshot.Encoder()
    encoder.add([Plain(prng=prng) for prng in prngs])
    offsets = encoder.random_offsets(prngs)
    frame = encoder.finish()
    assert frame is not None
    assert encoder.random_offsets(prngs) == offsets
    decoder = snapshot.Decoder(frame)
    copies = [holder.prng for holder in decoder.roots[0]]
    assert decoder.random_offsets(copies) == offsets
    return frame, offsets, copies


def unpack(packed: bytes, frame: Any, offsets: bytes) -> RandomStates:
    states = RandomStates(packed, frame, offsets)
    assert len(states) == len(offsets) // 8
    return states


def assert_state(actual: Any, prng: random.Random) -> None:
    """Exactly what ``getstate`` gives, bits of the gauss value included."""
    assert_same(list(prng.getstate()), list(actual))


def test_unchanged_states_take_a_few_bytes() -> None:
    prngs: list[Any] = [random.Random(seed) for seed in range(50)]
    frame, offsets, copies = frame_of(prngs)
    packed = pack(frame, offsets, copies)
    assert len(packed) < 50 * SMALL
    states = unpack(packed, frame, offsets)
    for index, prng in enumerate(prngs):
        assert_state(states.getstate(index), prng)


@pytest.mark.parametrize("draws", [1, 2, 311, 312, 313, 624, 1247, 1248])
def test_states_after_a_few_twists_take_a_few_bytes(draws: int) -> None:
    """One ``random()`` takes two words, so 312 of them use up the 624 words."""
    prngs: list[Any] = [random.Random(seed) for seed in range(5)]
    frame, offsets, copies = frame_of(prngs)
    for prng in copies:
        for _ in range(draws):
            prng.random()
    packed = pack(frame, offsets, copies)
    assert len(packed) < 5 * SMALL
    states = unpack(packed, frame, offsets)
    for index, prng in enumerate(copies):
        assert_state(states.getstate(index), prng)


def test_states_that_have_nothing_to_do_with_the_frame() -> None:
    prngs: list[Any] = [random.Random(seed) for seed in range(5)]
    frame, offsets, copies = frame_of(prngs)
    for number, prng in enumerate(copies):
        prng.seed(1000 + number)
    packed = pack(frame, offsets, copies)
    assert 5 * FULL_SIZE <= len(packed) < 5 * (FULL_SIZE + SMALL)
    states = unpack(packed, frame, offsets)
    for index, prng in enumerate(copies):
        assert_state(states.getstate(index), prng)


def test_one_changed_word_is_seen() -> None:
    for position in (0, 1, 300, 396, 397, 623):
        frame, offsets, (prng,) = frame_of([random.Random(1)])
        words = list(prng.getstate()[1])
        words[position] ^= 1
        prng.setstate((3, tuple(words), None))
        states = unpack(pack(frame, offsets, [prng]), frame, offsets)
        assert_state(states.getstate(0), prng)


def test_which_generators_are_packed() -> None:
    prngs: list[Any] = [
        random.Random(1),
        MyRandom(2),
        random.SystemRandom,
        np.random.default_rng(3),
        random.Random(4),
        None,
        random.Random(5),
    ]
    frame, offsets, copies = frame_of(prngs)
    present = [offsets[i : i + 8] != ABSENT for i in range(0, len(offsets), 8)]
    assert present == [True, False, False, False, True, False, True]
    copies[4].gauss_next = "odd"
    copies.append(random.Random(6))  # not in the frame at all
    del copies[6].gauss_next
    offsets += ABSENT
    states = unpack(pack(frame, offsets, copies), frame, offsets)
    assert [states.getstate(index) is not None for index in range(8)] == [
        True,
        False,
        False,
        False,
        False,
        False,
        False,
        True,
    ]
    assert_state(states.getstate(7), copies[7])


def test_apply() -> None:
    frame, offsets, copies = frame_of([random.Random(1), MyRandom(2), with_gauss(3)])
    copies[0].random()
    copies[2].gauss(0, 1)
    copies[2].gauss(0, 1)
    states = unpack(pack(frame, offsets, copies), frame, offsets)
    target = random.Random(99)
    target.note = "stays"  # type: ignore[attr-defined]
    assert states.apply(0, target) is True
    assert_state(copies[0].getstate(), target)
    assert target.note == "stays"  # type: ignore[attr-defined]
    assert states.apply(2, target) is True
    assert_state(copies[2].getstate(), target)
    before = target.getstate()
    assert states.apply(1, target) is False
    for other in (MyRandom(5), random.SystemRandom(), None, 5, Plain()):
        assert states.apply(0, other) is False
    assert target.getstate() == before
    assert states.apply(0, target) is True
    assert states.apply(0, target) is True
    assert drawn(target) == drawn(copies[0])


def test_apply_to_a_generator_without_gauss_next() -> None:
    frame, offsets, copies = frame_of([random.Random(1)])
    states = unpack(pack(frame, offsets, copies), frame, offsets)
    target = random.Random(2)
    del target.gauss_next
    assert states.apply(0, target) is True
    assert_state(copies[0].getstate(), target)


def test_indices_out_of_range_and_closing() -> None:
    frame, offsets, copies = frame_of([random.Random(1)])
    states = unpack(pack(frame, offsets, copies), frame, offsets)
    for index in (-1, 1, 2**40):
        with pytest.raises((IndexError, OverflowError)):
            states.getstate(index)
        with pytest.raises((IndexError, OverflowError)):
            states.apply(index, random.Random())
    states.close()
    states.close()
    with pytest.raises(ValueError, match="closed"):
        states.getstate(0)


def test_frame_is_released_when_closed() -> None:
    frame, offsets, copies = frame_of([random.Random(1)])
    buffer = bytearray(frame)
    packer = RandomStatePacker(buffer, offsets)
    packer.add(copies[0])
    packed = packer.finish()
    with pytest.raises(BufferError):
        buffer.clear()
    packer.close()
    packer.close()
    with pytest.raises(ValueError, match=r"closed|offsets"):
        packer.add(copies[0])
    states = unpack(packed, buffer, offsets)
    assert states.getstate(0) is not None
    with pytest.raises(BufferError):
        buffer.clear()
    states.close()
    buffer.clear()


def test_packer_takes_one_generator_per_offset() -> None:
    frame, offsets, copies = frame_of([random.Random(1), MyRandom(2), with_gauss(3)])
    packer = RandomStatePacker(frame, offsets)
    assert [packer.add(prng) for prng in copies] == [True, False, True]
    with pytest.raises(ValueError, match="offsets"):
        packer.add(random.Random())
    states = unpack(packer.finish(), frame, offsets)
    assert_state(states.getstate(0), copies[0])
    assert states.getstate(1) is None
    assert_state(states.getstate(2), copies[2])


def test_states_are_packed_as_they_are_when_added() -> None:
    """A generator that a later agent of the task uses again does not change what was packed."""
    frame, offsets, copies = frame_of([random.Random(1), random.Random(2)])
    packer = RandomStatePacker(frame, offsets)
    copies[0].random()
    before = copies[0].getstate()
    packer.add(copies[0])
    copies[0].random()
    packer.add(copies[1])
    states = unpack(packer.finish(), frame, offsets)
    assert_same(list(before), list(states.getstate(0)))


def test_fewer_generators_than_offsets() -> None:
    frame, offsets, copies = frame_of([random.Random(1), random.Random(2)])
    packer = RandomStatePacker(frame, offsets)
    packer.add(copies[0])
    packed = packer.finish()
    with pytest.raises(snapshot.SnapshotDecodeError):
        RandomStates(packed, frame, offsets)
    assert_state(unpack(packed, frame, offsets[:8]).getstate(0), copies[0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(0, 1700),
            st.sampled_from(["random", "gauss", "getrandbits", "seed", "words", "index"]),
            st.integers(0, 2000),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_states_are_restored(histories: list[tuple[int, int, str, int]]) -> None:
    prngs = []
    for seed, draws, _, _ in histories:
        prng = random.Random(seed)
        for _ in range(draws):
            prng.getrandbits(32)
        prngs.append(prng)
    frame, offsets, copies = frame_of(prngs)
    for prng, (_, _, how, amount) in zip(copies, histories, strict=True):
        if how == "seed":
            prng.seed(amount)
        elif how == "words":
            words = list(prng.getstate()[1])
            words[amount % 624] = amount
            prng.setstate((3, tuple(words), float(amount)))
        elif how == "index":
            words = list(prng.getstate()[1])
            words[624] = amount % 625
            prng.setstate((3, tuple(words), None))
        else:
            for _ in range(amount):
                prng.getrandbits(32) if how == "getrandbits" else getattr(prng, how)(
                    *(() if how == "random" else (0, 1))
                )
    packed = pack(frame, offsets, copies)
    states = unpack(packed, frame, offsets)
    for index, prng in enumerate(copies):
        assert_state(states.getstate(index), prng)
        target = random.Random()
        assert states.apply(index, target) is True
        assert_state(target.getstate(), prng)
        assert target.random() == prng.random()
