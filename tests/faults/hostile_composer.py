"""Frames that no source has made: instructions that mostly fit the objects of a replica."""

from __future__ import annotations

import collections
import itertools
import pickle
import random
import struct
from typing import Any

import numpy as np
from hostile_chains import Finalized, Keyed, MyList, Node, Other, Slots, Stated, identity
from hostile_wire import NO_NUMBER, PICKLE, counted, leb, signed

# What frames have as pickles: classes and functions, and values that no instruction makes.
GLOBALS: list[Any] = [
    Node, Other, Slots, Keyed, Stated, MyList, Finalized, identity, list, dict, set, tuple, object,
    random.Random, collections.deque, collections.OrderedDict, collections.defaultdict, np.ndarray,
    np.zeros, len, 1 + 2j, np.dtype("f8"), np.arange(3.0),
]  # fmt: skip


class Composer:
    """Makes up frames of instructions that mostly fit the objects that a replica has."""

    def __init__(self, prng: random.Random, kinds: dict[str, list[int]], n_objects: int) -> None:
        self.prng = prng
        self.kinds = kinds
        self.n_known = n_objects
        self.pickles = [pickle.dumps(obj, 5) for obj in GLOBALS]

    def compose(self) -> tuple[bytes, int]:
        """Instructions, and how many new objects they make if all goes well."""
        self.noise = self.prng.choice((0.0, 0.0, 0.05, 0.3))
        self.n_new = 0
        self.n_shapes = 3
        self.last_updated = 0
        out = bytearray()
        for _ in range(self.prng.randint(1, 12)):
            out += self.statement()
        for _ in range(self.prng.choice((0, 1, 1, 2))):
            out += self.value(0) + b"\x35"  # ROOT
        if not self.is_odd():
            out.append(0)  # END
        return bytes(out), self.prng.randrange(9) if self.is_odd() else self.n_new

    def is_odd(self) -> bool:
        """Whether to do something that does not fit."""
        return self.prng.random() < self.noise

    def number(self, *kinds: str) -> int:
        prng = self.prng
        if kinds and not self.is_odd():
            numbers = [number for kind in kinds for number in self.kinds.get(kind, ())]
            if numbers:
                return prng.choice(numbers)
        if not self.is_odd():
            return prng.randrange(self.n_known)
        near = prng.randrange(self.n_known + self.n_new + 2)
        return prng.choice((near, near, 0, NO_NUMBER, 2**31, prng.getrandbits(32)))

    def count(self, usual: int) -> int:
        if not self.is_odd():
            return usual
        return self.prng.choice((0, usual + 1, usual + 5, 2**31, 2**32, 2**62, 2**63, 2**64 - 1))

    def new(self, code: int, operands: bytes = b"") -> bytes:
        self.n_new += 1
        return bytes([code]) + operands

    def text(self) -> bytes:
        texts = ("a", "b", "prng", "gauss_next", "__class__", "__dict__", "__setstate__", "é", "")
        return self.prng.choice(texts).encode()

    def float(self) -> bytes:
        return struct.pack("<d", self.prng.choice((0.0, -0.0, 1.5, float("nan"), float("inf"))))

    def value(self, depth: int = 0) -> bytes:
        prng = self.prng
        how = prng.randrange(10 if depth > 3 else 22)
        if how == 0:
            return bytes([prng.choice((1, 2, 3))])
        if how == 1:
            return bytes([prng.randrange(0x80, 0x100)])
        if how == 2:
            code, size = prng.choice(((4, 8), (0xE, 4), (0xF, 2), (6, 8)))
            return bytes([code]) + prng.randbytes(size)
        if how == 3:
            return self.new(8, counted(self.text()))
        if how == 4:
            return b"\x0c" + leb(self.number())
        if how == 5:
            return b"\x0d" + leb(prng.randrange(2 + 2 * self.is_odd()))
        if how == 6:
            return self.new(prng.choice((9, 10, 11)), counted(prng.randbytes(prng.randrange(6))))
        if how == 7:
            return b"\x05" + counted(prng.randbytes(prng.randrange(12)))
        if how == 8:
            return b"\x4e" + self.float()
        if how == 9:
            return b"\x4e" + self.float() + b"\x4f" + leb(self.count(0)) + b"\x34\x01"
        if how == 10:
            n = prng.randrange(4)
            items = b"".join(self.value(depth + 1) for _ in range(n))
            return self.new(prng.choice((0x12, 0x1A, 0x1B)), b"").join((items, leb(self.count(n))))
        if how == 11:
            n = prng.randint(1, 3)
            items = b"".join(self.value(depth + 1) for _ in range(n))
            return items + self.new(0x50 + n - 1 + self.is_odd())
        if how == 12:
            return self.new(0x10) + self.items(depth)
        if how == 13:
            return self.new(0x13) + self.pairs(depth, prng.choice((0x14, 0x15)))
        if how == 14:
            return self.new(0x16) + self.items(depth, prng.choice((0x17, 0x18)))
        if how == 15:
            return self.new(0x48, leb(self.number("list")))
        if how == 16:
            return self.random()
        if how == 17:
            return self.new(PICKLE[0], counted(prng.choice(self.pickles)))
        if how == 18:
            return self.instance(depth)
        if how == 19:
            callable_ = self.new(PICKLE[0], counted(prng.choice(self.pickles)))
            arguments = self.value(depth + 1) if self.is_odd() else b"\x19"
            reduced = callable_ + arguments + self.new(0x31)
            return reduced + self.state(depth) if prng.random() < 0.5 else reduced
        if how == 20:
            n = prng.randrange(5)
            floats = b"\x07" + leb(self.count(n)) + b"".join(self.float() for _ in range(n))
            return floats + self.new(0x12, leb(n))
        return b"\x19"

    def items(self, depth: int, code: int = 0x11) -> bytes:
        n = self.prng.randrange(4)
        items = b"".join(self.value(depth + 1) for _ in range(n))
        return items + bytes([code]) + leb(self.count(n))

    def pairs(self, depth: int, code: int) -> bytes:
        n = self.prng.randrange(3)
        key = self.value if self.is_odd() else lambda: self.new(8, counted(self.text()))
        items = b"".join(key() + self.value(depth + 1) for _ in range(n))
        return items + bytes([code]) + leb(self.count(n))

    def random(self) -> bytes:
        prng = self.prng
        gauss = prng.choice((b"\0", b"\1" + self.float()))
        index = prng.choice((0, 1, 623, 624))
        words = prng.choice((bytes(2496), prng.randbytes(2496)))
        if self.is_odd():
            gauss, index = b"\2", prng.choice((625, 2**31, NO_NUMBER))
        return self.new(0x24, gauss + struct.pack("<I", index) + words)

    def instance(self, depth: int) -> bytes:
        prng = self.prng
        out = b""
        if prng.random() < 0.4:
            n = prng.randrange(3)
            names = b"".join(counted(self.text()) for _ in range(n))
            out += self.new(PICKLE[0], counted(prng.choice(self.pickles)))
            out += b"\x20" + leb(self.count(n)) + names
            self.n_shapes += 1
        out += self.new(0x21, leb(prng.randrange(self.n_shapes + 1)))
        if prng.random() < 0.5:
            out += b"".join(self.value(depth + 1) for _ in range(prng.randrange(5)))
            return out + b"\x22" + leb(prng.randrange(self.n_shapes + 1))
        return out + self.pairs(depth, 0x23)

    def state(self, depth: int) -> bytes:
        state = self.value(depth + 1) if self.is_odd() else self.new(0x13) + self.pairs(2, 0x14)
        if self.is_odd():
            setter = self.new(PICKLE[0], counted(self.prng.choice(self.pickles)))
            return setter + state + b"\x33"
        return state + b"\x32"

    def update(self, *kinds: str) -> bytes:
        number = self.number(*kinds)
        step, self.last_updated = number - self.last_updated, number
        if self.noise and self.prng.random() < 0.02:
            step = self.prng.choice((-(2**63), 2**63 - 1, -1))
        return b"\x41" + signed(step)

    def statement(self) -> bytes:
        prng = self.prng
        how = prng.randrange(17)
        end = b"" if self.is_odd() else b"\x4d"
        if how == 0:
            n = prng.randrange(4)
            items = b"".join(self.value(2) for _ in range(n))
            splice = leb(self.count(0)) + leb(self.count(prng.randrange(2)))
            return self.update("list") + items + b"\x42" + splice + leb(self.count(n)) + end
        if how == 1:
            return self.update("list", "dict", "set", "Node") + b"\x43" + end
        if how == 2:
            return self.update("dict", "set", "Node") + self.items(2, 0x44) + end
        if how == 3:
            return self.update("Node", "Other") + self.pairs(1, 0x45) + end
        if how == 4:
            data = counted(prng.randbytes(prng.randrange(30)))
            return self.update("bytearray") + b"\x46" + data + end
        if how in (5, 6):
            return self.random_states()
        if how == 7:
            n = prng.randrange(4)
            numbers = sorted(self.number() for _ in range(n))
            steps = [b - a for a, b in itertools.pairwise([0, *numbers])]
            return b"\x49" + leb(self.count(n)) + b"".join(map(leb, steps))
        if how == 8:
            return self.update("Slots", "deque", "OrderedDict", "MyList") + self.parts() + end
        if how == 9:
            patch = leb(self.count(prng.randrange(50))) + counted(prng.randbytes(8))
            return self.update("ndarray") + b"\x4b" + counted(patch * prng.randrange(3)) + end
        if how == 10:
            return self.update("Generator", "RandomState") + self.value(1) + b"\x4c" + end
        if how == 11:
            return self.update("dict") + self.pairs(1, prng.choice((0x14, 0x15))) + end
        if how == 12:
            return self.update("set") + self.items(2, prng.choice((0x17, 0x18))) + end
        if how == 13:
            return self.update("Node", "Other", "Stated") + self.state(1) + end
        if how == 14:
            return self.value() + b"\x34" + leb(self.count(1))
        if how == 15 and self.is_odd():
            return prng.randbytes(prng.randrange(1, 4))
        return self.update("list", "deque", "MyList") + self.items(1) + end

    def parts(self) -> bytes:
        """What ``ASSEMBLE`` takes: slots, attributes, items and a setting."""
        prng = self.prng
        tuples = b""
        for _ in range(2):
            n = prng.randrange(4)
            tuples += b"".join(self.value(2) for _ in range(n))
            tuples += self.new(0x1A, leb(n)) if n else b"\x19"
        state = self.new(0x13) + self.pairs(2, 0x14) + tuples + self.value(3)
        n = 4 if prng.random() < 0.9 else prng.randint(1, 3)
        return state + self.new(0x1A, leb(n)) + b"\x4a"

    def random_states(self) -> bytes:
        prng = self.prng
        entries = b""
        total = last = 0
        for number in sorted(self.number("Random") for _ in range(prng.randint(1, 4))):
            repeats = self.count(0)
            entries += leb((number - last) << 1 | (repeats > 0)) + self.change()
            entries += leb(repeats) if repeats else b""
            total += 1 + repeats
            last = number
        return b"\x47" + leb(min(self.count(total), 2**64 - 1)) + entries

    def change(self) -> bytes:
        prng = self.prng
        source, gauss = prng.randrange(4), prng.choice((0, 4, 8, 8, 8))
        step = prng.choice((0, 1, 2, 0, 1, 2, 500, 1023))
        if self.is_odd():
            gauss, step = 12, prng.choice((1024, 2**59))
        out = leb(step << 4 | gauss | source)
        if gauss == 4:
            out += self.float()
        if source == 3:
            twists = prng.choice((0, 1, 4, 4 + self.is_odd()))
            out += bytes([twists]) + (prng.randbytes(2496) if twists == 0 else b"")
        return out
