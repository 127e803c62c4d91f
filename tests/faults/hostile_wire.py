"""The bytes of frames, as far as tests that damage them or make them up have to know."""

from __future__ import annotations

import struct
import zlib

HEADER_BYTES = 24
PREFACE_BYTES = 18
COUNT_AT = 16  # the number of new objects, which the checksum does not vouch for either
PICKLE = b"\x30"  # what an embedded pickle begins with
NO_NUMBER = 0xFFFF_FFFF

# Operands that are dangerous as lengths, counts and numbers.
LEB128_BOMBS = [
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x01",
    b"\x80\x80\x80\x80\x80\x80\x10",
    b"\x80" * 10,
    b"\x80\x80\x80\x08",
    b"\xff\x7f",
]


def seal(body: bytes, n_objects: int) -> bytes:
    """A frame of these instructions with the right length and checksum."""
    head = b"PPSN" + struct.pack("<HHQI", 2, 0, len(body), n_objects)
    return head + struct.pack("<I", zlib.crc32(head, zlib.crc32(body))) + body


def reseal(frame: bytes) -> bytes:
    return seal(frame[HEADER_BYTES:], struct.unpack_from("<I", frame, COUNT_AT)[0])


def leb(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def signed(number: int) -> bytes:
    return leb((number << 1 ^ number >> 63) & 0xFFFF_FFFF_FFFF_FFFF)


def counted(data: bytes) -> bytes:
    return leb(len(data)) + data
