"""Loads damaged snapshots in a process of its own, with little memory.

Run as ``python damage_worker.py GRAPH KIND SEED AMOUNT``; prints what happened how often as JSON.
"""

from __future__ import annotations

import collections
import faulthandler
import gc
import json
import random
import resource
import struct
import sys
import zlib
from typing import TYPE_CHECKING, Any

from pams_parallel import snapshot
from pams_parallel._core import Decoder, Encoder, RandomStatePacker, RandomStates

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER_BYTES = 24
COUNT_AT = 16  # the number of objects, which the checksum does not vouch for either
PICKLE = b"\x30"  # what an embedded pickle begins with
EXTRA_MEMORY = 300 << 20


class Node:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("left", "right")


class Hashed:
    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.key == other.key


class Reduced:
    def __init__(self, *args: Any) -> None:
        self.args = args

    def append(self, item: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __reduce__(self) -> Any:
        return Reduced, (1, "a"), [1], iter([2]), iter([("k", 3)]), set_state


def set_state(obj: Any, state: Any) -> None:
    obj.state = state


def make_natives() -> Any:
    """What is decoded without user code and without pickle, so sizes must not be believed."""
    recursive: list[Any] = []
    recursive.append((recursive,))
    shared = ["shared"]
    return [
        recursive,
        {"a": shared, 2: (shared, 1.5), None: True},
        {1, "ab", frozenset([2, (3, "c")])},
        (1, 2, 3, 4, "é\ud800", b"xy", bytearray(b"z"), 10**25, -(2**40), False, ()),
    ]


def make_graph() -> Any:
    """Every kind of instruction, in few bytes; nothing that takes a size."""
    node = Node(a=1, b=[2.5, 10**20, -7])
    node.itself = node
    slots = Slots()
    slots.left = node
    home: dict[Any, Any] = {}
    key = Hashed("k")
    key.home = home
    home[key] = {"x"}
    recursive: list[Any] = []
    recursive.append((recursive,))
    return [
        node,
        Node(a=2, b=3),
        slots,
        home,
        recursive,
        {1, "ab", frozenset([2])},
        {key},
        Reduced(),
        collections.OrderedDict(a=1),
        collections.deque([1], 3),
        (1, 2, 3, 4, "é\ud800", b"xy", bytearray(b"z"), 1 + 2j, None, True),
        Node.__init__,
        len,
        b"",
    ]


def reseal(data: bytes) -> bytes:
    """Give a damaged snapshot the right length and checksum, so that the decoder reads on."""
    body = data[HEADER_BYTES:]
    head = data[:8] + struct.pack("<Q", len(body)) + data[COUNT_AT : COUNT_AT + 4]
    return head + struct.pack("<I", zlib.crc32(head, zlib.crc32(body))) + body


def with_random() -> bytes:
    return snapshot.dumps([random.Random(1), [random.Random(2), "text"]])


def flips(data: bytes) -> Iterator[bytes]:
    for position in range(len(data)):
        for mask in (0x01, 0x02, 0x80, 0xFF):
            yield data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]


def every_value(data: bytes) -> Iterator[bytes]:
    for position in range(COUNT_AT, len(data)):
        for value in range(256):
            yield data[:position] + bytes([value]) + data[position + 1 :]


def cuts(data: bytes) -> Iterator[bytes]:
    for length in range(len(data)):
        yield data[:length]


def removals(data: bytes) -> Iterator[bytes]:
    for length in (1, 2, 4, 8, 20):
        for position in range(HEADER_BYTES, len(data) - length):
            yield data[:position] + data[position + length :]


def repetitions(data: bytes) -> Iterator[bytes]:
    for length in (1, 3, 9, 30):
        for position in range(HEADER_BYTES, len(data) - length):
            piece = data[position : position + length]
            yield data[:position] + piece * 3 + data[position + length :]


def overwrites(data: bytes) -> Iterator[bytes]:
    """Values that are dangerous as lengths, counts and indices."""
    values = [
        b"\xff" * 4,
        b"\xff" * 8,
        struct.pack("<I", 2**31),
        struct.pack("<I", 2**31 - 1),
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 2**40),
        b"\xff\xff\xff\xff\x0f",
        b"\xff" * 9 + b"\x01",
        b"\x80" * 10,
        bytes(8),
    ]
    for value in values:
        for position in (COUNT_AT, *range(HEADER_BYTES, len(data))):
            yield data[:position] + value + data[position + len(value) :]


def insertions(data: bytes) -> Iterator[bytes]:
    for value in (b"\x00", b"\xff", b"\xff" * 5, b"\x80\x80\x80\x80\x08", bytes(16)):
        for position in range(HEADER_BYTES, len(data)):
            yield data[:position] + value + data[position:]


def splices(data: bytes) -> Iterator[bytes]:
    others = [with_random(), snapshot.dumps({"a": [1, (2, "b")]}), snapshot.dumps("x" * 50), data]
    for other in others:
        for position in range(HEADER_BYTES, len(data), 3):
            for start in range(HEADER_BYTES, min(len(other), 200), 17):
                yield data[:position] + other[start:]


def random_changes(data: bytes, seed: int, amount: int) -> Iterator[bytes]:
    prng = random.Random(seed)
    for _ in range(amount):
        damaged = bytearray(data)
        for _ in range(prng.randint(1, 6)):
            position = prng.randrange(HEADER_BYTES, len(damaged))
            how = prng.randrange(5)
            if how == 0:
                damaged[position] ^= 1 << prng.randrange(8)
            elif how == 1:
                damaged[position] = prng.randrange(256)
            elif how == 2:
                del damaged[position : position + prng.randint(1, 9)]
            elif how == 3:
                other = prng.randrange(HEADER_BYTES, len(data))
                damaged[position:position] = data[other : other + prng.randint(1, 40)]
            else:
                damaged[position : position + 4] = prng.randbytes(4)
            if len(damaged) <= HEADER_BYTES:
                break
        yield bytes(damaged)


def random_bytes(data: bytes, seed: int, amount: int) -> Iterator[bytes]:
    prng = random.Random(seed)
    used = sorted(set(data[HEADER_BYTES:]))
    for _ in range(amount):
        n = prng.randrange(200)
        body = prng.randbytes(n) if prng.random() < 0.5 else bytes(prng.choices(used, k=n))
        yield data[:HEADER_BYTES] + body


class Watch:
    """Counts outcomes; anything but an ordinary exception ends the process with an error."""

    def __init__(self) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.sizes_are_checked = True

    def __call__(self, use: Any) -> None:
        try:
            result = use()
        except Exception as error:
            if isinstance(error, MemoryError) and self.sizes_are_checked:
                raise AssertionError("a size was believed") from error
            self.outcomes[type(error).__name__] += 1
        else:
            self.outcomes["loaded"] += 1
            touch(result)


def touch(root: Any) -> None:
    """Look at everything that is reachable: a broken object would show."""
    seen: dict[int, Any] = {}
    pending = [root]
    while pending and len(seen) < 5000:
        obj = pending.pop()
        if id(obj) in seen or type(obj) is type or callable(obj) or type(obj) is type(sys):
            continue
        seen[id(obj)] = obj
        try:
            repr(obj)
        except RecursionError:
            pass
        except Exception as error:
            # Objects of user classes may be incomplete; that is what was in the data.
            if type(error) not in (AttributeError, TypeError, ValueError):
                raise
        pending += gc.get_referents(obj)


def try_all(candidates: Iterator[bytes], watch: Watch, seal: bool) -> None:
    for number, damaged in enumerate(candidates):
        data = reseal(damaged) if seal and len(damaged) >= HEADER_BYTES else damaged
        # Globals travel as pickles, and pickle itself believes sizes.
        watch.sizes_are_checked = PICKLE not in data[HEADER_BYTES:]
        watch(lambda data=data: snapshot.loads(data))
        if number % 7 == 0:
            watch(lambda data=data: use_decoder(data))
        if number % 500 == 0:
            gc.collect()


def pack(frame: bytes, offsets: bytes, prngs: list[Any]) -> bytes:
    packer = RandomStatePacker(frame, offsets)
    for prng in prngs:
        packer.add(prng)
    return packer.finish()


def use_decoder(data: bytes) -> Any:
    decoder = Decoder(data, [Node(), "external"])
    roots = decoder.roots
    for number in range(30):
        try:
            decoder.objects(struct.pack("<I", number))
        except ValueError:
            break
    offsets = decoder.random_offsets([random.Random(1), *roots])
    pack(data, offsets, [random.Random(1), *roots])
    decoder.close()
    return roots


def damaged_states(seed: int, amount: int, watch: Watch) -> None:
    """Damaged packed states, frames and offsets."""
    prngs = [random.Random(n) for n in range(4)]
    encoder = Encoder()
    encoder.add(prngs)
    offsets = encoder.random_offsets(prngs)
    frame = encoder.finish()
    assert frame is not None
    copies = Decoder(frame).roots[0]
    copies[1].random()
    for _ in range(400):
        copies[2].random()
    packed = pack(frame, offsets, copies)

    def use(packed: bytes, frame: bytes, offsets: bytes) -> Any:
        states = RandomStates(packed, frame, offsets)
        found = []
        for index in range(len(states)):
            found.append(states.getstate(index))
            prng = random.Random()
            states.apply(index, prng)
            prng.random()  # an index beyond the words would show here
            prng.getrandbits(20000)
        return found

    copies[3].seed(7)
    with_full_state = pack(frame, offsets, copies)
    prng = random.Random(seed)
    for intact in (packed, with_full_state):
        for length in range(0, len(intact), 1 if len(intact) < 300 else 37):
            watch(lambda length=length, p=intact: use(p[:length], frame, offsets))
        for position in (*range(min(len(intact), 120)), *range(120, len(intact), 101)):
            for mask in (0x01, 0x80, 0xFF):
                flipped = bytearray(intact)
                flipped[position] ^= mask
                watch(lambda f=bytes(flipped): use(f, frame, offsets))
        for _ in range(amount):
            changed = bytearray(intact)
            for _ in range(prng.randint(1, 4)):
                changed[prng.randrange(min(len(changed), 60))] = prng.randrange(256)
            watch(lambda c=bytes(changed): use(c, frame, offsets))
        for length in range(0, len(frame), 97):
            watch(lambda length=length, p=intact: use(p, frame[:length], offsets))
        for position in range(len(offsets)):
            wrong = bytearray(offsets)
            wrong[position] ^= 0xFF
            watch(lambda w=bytes(wrong), p=intact: use(p, frame, w))
            watch(lambda w=bytes(wrong): pack(frame, w, copies))
    for n in range(200):
        watch(lambda n=n: use(prng.randbytes(n), frame, offsets))


def main(graph: str, kind: str, seed: int, amount: int) -> None:
    faulthandler.enable()
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            in_use = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + EXTRA_MEMORY,) * 2)
    data = snapshot.dumps(make_natives() if graph == "natives" else make_graph())
    assert reseal(data) == data, "the header is not what this test believes it to be"
    watch = Watch()
    if kind == "header":
        # Sealed again or not, nothing of the header may be believed.
        try_all(flips(data), watch, seal=False)
        try_all(cuts(data), watch, seal=False)
        try_all(iter([b"", b"PPSN", bytes(24), bytes(1000), b"\xff" * 1000]), watch, seal=False)
        assert set(watch.outcomes) == {"SnapshotDecodeError"}, watch.outcomes
    elif kind == "states":
        damaged_states(seed, amount, watch)
    elif kind == "random":
        try_all(random_changes(data, seed, amount), watch, seal=True)
        try_all(random_bytes(data, seed, amount), watch, seal=True)
        try_all(random_changes(with_random(), seed, amount // 4), watch, seal=True)
    else:
        damages: dict[str, Any] = {
            "flips": flips,
            "every_value": every_value,
            "cuts": cuts,
            "removals": removals,
            "repetitions": repetitions,
            "overwrites": overwrites,
            "insertions": insertions,
            "splices": splices,
        }
        try_all(damages[kind](data), watch, seal=True)
    print(json.dumps(watch.outcomes))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
