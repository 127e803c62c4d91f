"""Gives hostile frames to replicas, in a process of its own with little memory.

Run as ``python hostile_frames.py KIND SEED AMOUNT [FILE]``; prints what happened how often as
JSON. ``FILE`` gets the frames that are being tried, so that a crash can be looked into.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import gc
import json
import os
import pathlib
import pickle
import random
import resource
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from hostile_chains import CHAINS, Chain, Node, Slots, odd_chain, small_chain
from hostile_composer import Composer
from hostile_wire import (
    COUNT_AT,
    HEADER_BYTES,
    LEB128_BOMBS,
    NO_NUMBER,
    PICKLE,
    PREFACE_BYTES,
    counted,
    leb,
    reseal,
    seal,
    signed,
)
from pams_parallel._core import Decoder, Encoder, Watch
from pams_parallel.snapshot import Replica, SnapshotDecodeError, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

EXTRA_MEMORY = 300 << 20


def damaged(prng: random.Random, frame: bytes, others: Sequence[bytes], first: int) -> bytes:
    """A frame with a few changes behind position ``first``."""
    data = bytearray(frame)
    for _ in range(prng.choice((1, 1, 1, 2, 3, 6))):
        if len(data) <= first:
            break
        at = prng.randrange(first, len(data))
        how = prng.randrange(9)
        if how == 0:
            data[at] ^= 1 << prng.randrange(8)
        elif how == 1:
            data[at] = prng.randrange(256)
        elif how == 2:
            del data[at : at + prng.randint(1, 12)]
        elif how == 3:
            start = prng.randrange(first, len(data))
            data[at:at] = data[start : start + prng.randint(1, 40)] * prng.choice((1, 1, 2, 5))
        elif how == 4:
            other = prng.choice(others)
            start = prng.randrange(HEADER_BYTES, len(other))
            data[at:at] = other[start : start + prng.randint(1, 60)]
        elif how == 5:
            other = prng.choice(others)
            data[at:] = other[prng.randrange(HEADER_BYTES, len(other)) :]
        elif how == 6:
            data[at : at + prng.randint(0, 4)] = prng.choice(LEB128_BOMBS)
        elif how == 7:
            data[at : at + 4] = prng.randbytes(4)
        else:
            # An instruction of those that only frames have.
            data[at] = prng.randrange(0x40, 0x50)
    if prng.random() < 0.5:
        # So that the count of new objects does not stop what was read to the end.
        struct.pack_into("<I", data, COUNT_AT, prng.randrange(64))
    return reseal(bytes(data))


class Outcomes:
    """Counts outcomes; anything but an ordinary exception ends the process with an error."""

    def __init__(self, keep_in: pathlib.Path | None) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._keep_in = keep_in

    def keep(self, frames: Sequence[bytes]) -> None:
        if self._keep_in is not None:
            self._keep_in.write_bytes(pickle.dumps(list(frames)))

    def attempt(self, use: Callable[[], Any], *, believes_sizes: bool = False) -> bool:
        try:
            use()
        except Exception as error:
            if isinstance(error, MemoryError) and not believes_sizes:
                raise AssertionError("a size was believed") from error
            self.counts[type(error).__name__] += 1
            return False
        self.counts["accepted"] += 1
        return True


def touch(root: Any) -> None:
    """Look at everything that is reachable: a broken object would show."""
    seen: dict[int, Any] = {}
    pending = [root]
    while pending and len(seen) < 2000:
        obj = pending.pop()
        if id(obj) in seen or isinstance(obj, type) or callable(obj) or type(obj) is type(sys):
            continue
        seen[id(obj)] = obj
        # Objects may be incomplete; that is what was in the data.
        with contextlib.suppress(Exception):
            repr(obj)
        if type(obj) is random.Random:
            with contextlib.suppress(Exception):
                obj.random()  # an index beyond the words would show here
                obj.getrandbits(20000)
        pending += gc.get_referents(obj)


def use_replica(replica: Replica, prng: random.Random, outcomes: Outcomes) -> None:
    """Everything that one can do with a replica, which has accepted a damaged frame."""
    roots = replica.roots
    numbers = struct.pack("<8I", *(prng.randrange(70) for _ in range(7)), NO_NUMBER)
    all_numbers = struct.pack("<80I", *range(80))
    found: list[Any] = []
    for number in range(80):
        with contextlib.suppress(ValueError):
            found += replica.objects(struct.pack("<I", number))
    replica.numbers_of([roots, *found])
    replica.owns_any(found)
    replica.are_unchanged(found)
    with replica_packer(replica, all_numbers) as packer:
        for obj in [roots, *found][:80]:
            packer.add(obj)
        packer.finish()
    with replica_packer(replica, numbers) as packer:
        watch = Watch(found, packer, replica, all_numbers)

        def ask() -> None:
            watch.begin()
            watch.end([])

        for _ in range(8):
            outcomes.attempt(ask)
    if prng.random() < 0.5:
        touch([roots, found])
    if prng.random() < 0.5:
        for obj in found:
            with contextlib.suppress(Exception):
                if type(obj) is list or type(obj) is bytearray:
                    obj.clear()
                elif isinstance(obj, Node):
                    obj.__dict__.clear()
                elif type(obj) is random.Random:
                    obj.seed(1)


def replica_packer(replica: Replica, numbers: bytes) -> Any:
    return contextlib.closing(replica.random_state_packer(numbers))


EXTERNALS = (Node(external=1), ["external"])


def follow(
    frames: Sequence[bytes],
    damaged_at: int,
    good: Sequence[bytes],
    prng: random.Random,
    outcomes: Outcomes,
    believes_sizes: bool | None = None,
) -> None:
    """Apply frames of which one is damaged, and go on in one way or another."""
    outcomes.keep(frames)
    replica = Replica(EXTERNALS)
    for frame in frames[:damaged_at]:
        replica.apply(frame)
    if believes_sizes is None:
        # Globals travel as pickles, and pickle itself believes sizes.
        believes_sizes = PICKLE in frames[damaged_at][HEADER_BYTES:]
    accepted = outcomes.attempt(
        lambda: replica.apply(frames[damaged_at]), believes_sizes=believes_sizes
    )
    if not accepted:
        check_refused(replica, good)
    elif prng.random() < 0.9:
        assert replica.sequence is not None
        use_replica(replica, prng, outcomes)
        is_restored = False

        def roll_back() -> None:
            nonlocal is_restored
            is_restored = replica.roll_back()

        outcomes.attempt(roll_back, believes_sizes=believes_sizes)
        assert is_restored == (replica.sequence is not None)
    # Whether the next ones fit depends on what was changed.
    for frame in frames[damaged_at + 1 :]:
        if not outcomes.attempt(lambda f=frame: replica.apply(f), believes_sizes=believes_sizes):
            check_refused(replica, good)
    if prng.random() < 0.2:
        replica.apply(good[0])
        assert replica.sequence == 0
        assert replica.roll_back() or b"Stated" in good[0]


def check_refused(replica: Replica, good: Sequence[bytes]) -> None:
    """After an error a replica has nothing and takes nothing but a keyframe."""
    assert replica.sequence is None
    assert replica.roots == []
    assert replica.roll_back() is False
    for number in (0, 5):
        try:
            replica.objects(struct.pack("<I", number))
        except ValueError:
            continue
        raise AssertionError("an object is left of a damaged frame")
    if len(good) > 1:
        try:
            replica.apply(good[1])
        except SnapshotDecodeError:
            assert replica.sequence is None
        else:
            assert b"Stated" in good[1]
            replica.close()


# --- kinds of tests -------------------------------------------------------------------------------


def try_headers(prng: random.Random, amount: int, outcomes: Outcomes) -> None:
    """The checksum sees every change."""
    for make in (small_chain, odd_chain):
        frames = make().frames
        for at in (0, 1):
            for _ in range(amount):
                data = bytearray(frames[at])
                if prng.random() < 0.3:
                    del data[prng.randrange(len(data)) :]
                else:
                    data[prng.randrange(len(data))] ^= 1 << prng.randrange(8)
                replica = Replica(EXTERNALS)
                for frame in frames[:at]:
                    replica.apply(frame)
                outcomes.attempt(lambda r=replica, d=data: r.apply(d))
                check_refused(replica, frames)
    assert set(outcomes.counts) == {"SnapshotDecodeError"}, outcomes.counts


def try_damage(
    chain: Chain, others: Sequence[bytes], prng: random.Random, amount: int, outcomes: Outcomes
) -> None:
    good = chain.frames
    for number in range(amount):
        frames = list(good[: prng.randint(1, len(good))])
        at = prng.randrange(len(frames))
        # Mostly behind the preface, which says whether the frame fits at all.
        first = HEADER_BYTES + (PREFACE_BYTES if prng.random() < 0.9 else 0)
        frames[at] = damaged(prng, frames[at], others, first)
        follow(frames[: at + 3], at, good, prng, outcomes)
        if number % 200 == 0:
            gc.collect()


def try_sequences(chain: Chain, prng: random.Random, amount: int, outcomes: Outcomes) -> None:
    """Undamaged frames in any order: only the next one of the same source is accepted."""
    others = [small_chain().frames, odd_chain().frames]
    own = [(chain.frames, at) for at in range(len(chain.frames))]
    foreign = [(frames, at) for frames in others for at in range(len(frames))]
    for _ in range(amount):
        replica = Replica(EXTERNALS)
        latest: tuple[Any, int] | None = None
        for _ in range(8):
            frames, at = prng.choice(own if prng.random() < 0.8 else foreign)
            if latest is not None and prng.random() < 0.5:
                frames, at = latest[0], min(latest[1] + 1, len(latest[0]) - 1)
            fits = at == 0 or (latest is not None and latest == (frames, at - 1))
            accepted = outcomes.attempt(lambda f=frames[at], r=replica: r.apply(f))
            assert accepted == fits
            assert replica.sequence == (at if fits else None)
            latest = (frames, at) if fits else None
    assert set(outcomes.counts) == {"SnapshotDecodeError", "accepted"}


def kinds_in(frame: bytes) -> tuple[dict[str, list[int]], int]:
    """Numbers of the objects of a keyframe by the names of their classes, and their count."""
    decoded = Replica(EXTERNALS)
    decoded.apply(frame)
    (n_objects,) = struct.unpack_from("<I", frame, COUNT_AT)
    kinds: dict[str, list[int]] = collections.defaultdict(list)
    for number in range(n_objects):
        with contextlib.suppress(ValueError):
            (obj,) = decoded.objects(struct.pack("<I", number))
            kinds[type(obj).__name__].append(number)
    return kinds, n_objects


def try_composed(chain: Chain, prng: random.Random, amount: int, outcomes: Outcomes) -> None:
    """Instructions that nobody has written, but that mostly fit."""
    good = chain.frames
    kinds, n_objects = kinds_in(good[0])
    composer = Composer(prng, kinds, n_objects)
    (source,) = struct.unpack_from("<Q", good[0], HEADER_BYTES + 1)
    for number in range(amount):
        body, n_new = composer.compose()
        is_keyframe = prng.random() < 0.1
        sequence = prng.choice((0, 2**64 - 1)) if is_keyframe else 1
        preface = b"\x40" + struct.pack("<QQB", source, sequence, is_keyframe)
        frames = [*good[:1], seal(preface + body, n_new)]
        body, n_new = composer.compose()
        sequence = (sequence + 1) % 2**64
        frames.append(seal(b"\x40" + struct.pack("<QQB", source, sequence, False) + body, n_new))
        # Calls can be of anything and with anything.
        follow(frames, 1, good, prng, outcomes, believes_sizes=True)
        if number % 200 == 0:
            gc.collect()


def try_numbers(prng: random.Random, amount: int, outcomes: Outcomes) -> None:
    """Numbers of objects that do not exist, or bytes that are no numbers."""
    chain = odd_chain()
    small = small_chain()
    replica = Replica(EXTERNALS)
    replica.apply(small.frames[0])
    source = small.source
    for _ in range(amount):
        n = prng.choice((0, 1, 2, 5, 300))
        data = b"".join(
            struct.pack("<I", prng.choice((prng.randrange(60), NO_NUMBER, prng.getrandbits(32))))
            for _ in range(n)
        ) + prng.randbytes(prng.choice((0, 0, 0, 1, 2, 3)))
        wrapped = prng.choice((bytes, bytearray, memoryview))(data)
        for side in (source, chain.source, replica):
            outcomes.attempt(lambda s=side, w=wrapped: touch(s.objects(w)))
        for side in (source, chain.source):
            outcomes.attempt(lambda s=side, w=wrapped: s.prngs_of(w))
            outcomes.attempt(lambda s=side, w=wrapped: s.positions_with(w, "prng"))
            outcomes.attempt(lambda s=side, w=wrapped: s.random_states(b"", w))

        def pack(numbers: Any = wrapped) -> None:
            with replica_packer(replica, numbers) as packer:
                for obj in (random.Random(5), replica.roots[0][6], None, *replica.roots):
                    packer.add(obj)
                packer.finish()

        outcomes.attempt(pack)

        def ask(numbers: Any = wrapped) -> None:
            agents = [replica.roots[1], Node(prng=None), replica.roots[0], Slots()]
            prng.shuffle(agents)
            with replica_packer(replica, numbers) as packer:
                watch = Watch(agents, packer, replica, numbers)
                for _ in range(5):
                    watch.begin()
                    watch.end([])

        outcomes.attempt(ask)
        assert replica.roll_back()
    assert set(outcomes.counts) <= {
        "accepted",
        "AttributeError",
        "IndexError",
        "SnapshotDecodeError",
        "ValueError",
    }, outcomes.counts


def try_states(prng: random.Random, amount: int, outcomes: Outcomes) -> None:
    """Damaged states of generators, relative to what a source has recorded."""
    generators = [random.Random(n) for n in range(6)]
    agents = [Node(prng=generator) for generator in generators]
    source = Source()
    frame = source.frame((agents,))
    numbers = source.prngs_of(source.numbers_of(agents))
    replica = Replica()
    replica.apply(frame)
    copies = [agent.prng for agent in replica.roots[0]]
    copies[1].random()
    copies[2].gauss(0.0, 1.0)
    for _ in range(700):
        copies[3].random()
    copies[4].seed(9)
    with replica_packer(replica, numbers) as packer:
        for copy in copies:
            packer.add(copy)
        packer.add(None) if len(copies) < 6 else None
        packed = packer.finish()
    for _ in range(amount):
        data = bytearray(packed)
        for _ in range(prng.randint(0, 4)):
            if not data:
                break
            at = (
                prng.randrange(min(len(data), 60))
                if prng.random() < 0.8
                else prng.randrange(len(data))
            )
            how = prng.randrange(4)
            if how == 0:
                data[at] = prng.randrange(256)
            elif how == 1:
                del data[at : at + prng.randint(1, 5)]
            elif how == 2:
                data[at:at] = prng.choice(LEB128_BOMBS)
            else:
                del data[at:]
        chosen = numbers
        if prng.random() < 0.3:
            wrong = list(struct.unpack(f"<{len(numbers) // 4}I", numbers))
            wrong[prng.randrange(len(wrong))] = prng.choice((0, 1, NO_NUMBER, 2**31, 10**6))
            chosen = struct.pack(f"<{len(wrong)}I", *wrong)

        def use(packed: bytes = bytes(data), numbers: bytes = chosen) -> None:
            states = source.random_states(packed, numbers)
            n = len(states)
            states.apply_recorded(0, n)
            for start in (0, 3, n, n + 5, 2**40):
                with contextlib.suppress(IndexError):
                    states.apply_recorded(start, prng.choice((0, n, n + 3)))
            for index in range(n + 2):
                with contextlib.suppress(IndexError):
                    states.getstate(index)
                    states.apply(index, prng.choice(generators))
            states.close()
            for generator in generators:
                generator.random()  # an index beyond the words would show here
                generator.getrandbits(700)

        outcomes.attempt(use)
        if prng.random() < 0.1:
            # Frames of what the generators have become.
            assert source.frame((agents,))
            numbers = source.prngs_of(source.numbers_of(agents))
    assert set(outcomes.counts) == {"accepted", "SnapshotDecodeError"}, outcomes.counts


def try_results(prng: random.Random, amount: int, outcomes: Outcomes) -> None:
    """Damaged results: snapshots that refer to objects of the main process."""
    known: list[Any] = [Node(market=1), Node(agent=2), ["book"], {"orders": 3}]
    before = repr([vars(known[0]), vars(known[1]), known[2:]])
    snapshots = []
    for _ in range(3):
        encoder = Encoder(known)
        for n in range(3):
            orders = [Node(price=1.5 + n, market=known[0], owner=known[1], book=known[2])]
            encoder.add((orders, (random.Random(n).getstate(),), ("seen",), [orders[0], known[3]]))
        data = encoder.finish()
        assert data is not None
        snapshots.append(data)
    for number in range(amount):
        data = damaged(prng, prng.choice(snapshots), snapshots, HEADER_BYTES)
        externals = list(known[: prng.choice((0, 2, 4, 4, 4))])

        def use(data: bytes = data, externals: list[Any] = externals) -> None:
            decoder = Decoder(data, externals)
            touch(decoder.roots)
            decoder.random_offsets(decoder.roots)
            decoder.close()

        outcomes.attempt(use, believes_sizes=PICKLE in data[HEADER_BYTES:])
        if number % 500 == 0:
            gc.collect()
    assert len(before) > 10


def try_single(prng: random.Random, amount: int, outcomes: Outcomes) -> None:
    """Frames that would do harm if what they say was believed."""
    graph: Any = [random.Random(1), Node(a=1), Node, [0] * 200_000, {"k": 1}, b"x", 5.0]
    graph.append(np.arange(3.0))
    source = Source()
    keyframe = source.frame((graph,))
    replica = Replica()
    replica.apply(keyframe)
    (identity,) = struct.unpack_from("<Q", keyframe, HEADER_BYTES + 1)

    def update(obj: Any) -> bytes:
        return b"\x41" + signed(struct.unpack("<I", source.numbers_of([obj]))[0])

    (generator,) = struct.unpack("<I", source.numbers_of([graph[0]]))
    moved = leb(generator << 1 | 1) + b"\x08"
    (long,) = struct.unpack("<I", source.numbers_of([graph[3]]))
    bodies = {
        "one generator changed very often": b"\x47" + leb(2**40) + moved + leb(2**40 - 1),
        "one generator twisted very often": (
            b"\x47" + leb(2**40) + leb(generator << 1 | 1) + b"\x0b\x04" + leb(2**40 - 1)
        ),
        "the same generator again and again": b"\x47\x03" + moved + b"\x01" + b"\x01\x08\x00",
        "more generators than objects": b"\x47" + leb(2**63) + b"\x03\x08" + leb(2**63 - 1),
        "the same number freed twice": b"\x49\x02" + leb(generator) + b"\x00",
        "a number freed again": (b"\x49\x01" + leb(generator)) * 2,
        "many numbers freed": b"\x49" + leb(2**62) + b"\x01" * 4,
        "no attributes for a class": update(Node) + b"\x43",
        "other attributes for a class": update(Node) + b"\x08\x01a\x81\x45\x01",
        "fewer attributes for a class": update(Node) + b"\x08\x08__init__\x44\x01",
        "attributes for the built-in class": b"\x30" + counted(pickle.dumps(dict)) + b"\x43",
        "many floats": b"\x07" + leb(2**61),
        "very many floats": b"\x07" + leb(2**64 - 1),
        "many names": b"\x30" + counted(pickle.dumps(Node)) + b"\x20" + leb(2**62),
        "a long text": b"\x08" + leb(2**62) + b"x",
        "a long bytearray": b"\x0b" + leb(2**40) + b"x",
        "long contents": update(graph[5]) + b"\x46" + leb(2**62),
        "a long tuple": b"\x1a" + leb(2**62),
        "many pairs": update(graph[4]) + b"\x14" + leb(2**63),
        "a stretch of everything": update(graph[3]) + b"\x42\x01" + leb(2**64 - 1) + b"\x00",
        "a stretch behind the end": update(graph[3]) + b"\x42" + leb(2**62) + b"\x00\x00",
        "bytes behind an array": update(graph[-1]) + b"\x4b" + counted(leb(2**63) + b"\x01x"),
        "a number before the first": b"\x41" + signed(-1),
        "a number far before the first": b"\x41" + signed(-(2**63)),
        "a large change of a number": (b"\x41" + signed(2**31 - 1) + b"\x4d") * 2,
    }
    for name, body in bodies.items():
        frame = seal(b"\x40" + struct.pack("<QQB", identity, 1, False) + body + b"\x4d\x00", 9)
        outcomes.keep([keyframe, frame])
        replica.apply(keyframe)
        outcomes.attempt(lambda f=frame: replica.apply(f))
        assert outcomes.counts["accepted"] == 0, name
        check_refused(replica, [keyframe, frame])
    assert set(outcomes.counts) == {"SnapshotDecodeError"}, outcomes.counts

    # Clones are made of what is there: memory can run out, and that is an error.
    clones = (b"\x48" + leb(long) + b"\x34\x01") * 300
    frame = seal(b"\x40" + struct.pack("<QQB", identity, 1, False) + clones + b"\x00", 300)
    replica.apply(keyframe)
    assert len(frame) < 2000
    if not outcomes.attempt(lambda: replica.apply(frame), believes_sizes=True):
        assert outcomes.counts["MemoryError"] == 1, outcomes.counts
        check_refused(replica, [keyframe, frame])

    # The last sequence number has no next one.
    last = bytearray(keyframe)
    struct.pack_into("<Q", last, HEADER_BYTES + 9, 2**64 - 1)
    replica.apply(reseal(bytes(last)))
    assert replica.sequence == 2**64 - 1
    next_one = seal(b"\x40" + struct.pack("<QQB", identity, 0, False) + b"\x00", 0)
    assert not outcomes.attempt(lambda: replica.apply(next_one))
    check_refused(replica, [keyframe, next_one])


def limit_memory() -> None:
    # Valgrind needs a lot of its own, and cannot be told apart.
    if sys.platform == "linux" and "HOSTILE_FRAMES_UNLIMITED" not in os.environ:
        in_use = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        limit = in_use * resource.getpagesize() + EXTRA_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def kinds_of_tests() -> Iterator[tuple[str, Callable[[random.Random, int, Outcomes], None]]]:
    yield "single", try_single
    yield "headers", try_headers
    yield "numbers", try_numbers
    yield "states", try_states
    yield "results", try_results
    for name, make in CHAINS.items():

        def damage(prng: random.Random, amount: int, outcomes: Outcomes, make: Any = make) -> None:
            others = [frame for other in (small_chain, odd_chain) for frame in other().frames]
            try_damage(make(), others, prng, amount, outcomes)

        def order(prng: random.Random, amount: int, outcomes: Outcomes, make: Any = make) -> None:
            try_sequences(make(), prng, amount, outcomes)

        def compose(prng: random.Random, amount: int, outcomes: Outcomes, make: Any = make) -> None:
            try_composed(make(), prng, amount, outcomes)

        yield f"damage {name}", damage
        yield f"compose {name}", compose
        if name != "stated":
            yield f"order {name}", order


def main(kind: str, seed: int, amount: int, keep_in: pathlib.Path | None) -> None:
    faulthandler.enable()
    np.zeros(1)
    limit_memory()
    outcomes = Outcomes(keep_in)
    dict(kinds_of_tests())[kind](random.Random(seed), amount, outcomes)
    print(json.dumps(outcomes.counts))


if __name__ == "__main__":
    main(
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 else None,
    )
