"""Which attributes an agent assigned or deleted, against the rule written out in Python."""

from __future__ import annotations

import decimal
import fractions
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pams_parallel._core import changed_attributes
from sample_types import Level, MyDict, MyFloat, MyInt, MyStr, MyTuple, Pair, Plain

VALUE_TYPES = (str, bytes, int, float, complex, bool, type(None))


def is_same(before: Any, after: Any) -> bool:
    """Whether ``after`` does not count as a change."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if type(before) is tuple:
        return len(before) == len(after) and all(map(is_same, before, after))
    if type(before) in VALUE_TYPES or isinstance(before, np.number | np.bool_):
        return bool(before == after) and signs(before) == signs(after)
    return False


def signs(value: Any) -> list[bool]:
    if isinstance(value, complex | np.complexfloating):
        return [bool(np.signbit(value.real)), bool(np.signbit(value.imag))]
    if isinstance(value, float | np.floating):
        return [bool(np.signbit(value))]
    return []


def expected(before: dict[Any, Any], after: dict[Any, Any]) -> set[Any]:
    added_or_deleted = before.keys() ^ after.keys()
    common = before.keys() & after.keys()
    return added_or_deleted | {key for key in common if not is_same(before[key], after[key])}


def fresh(value: Any) -> Any:
    """An equal object of the same type that is not the same."""
    if type(value) is str:
        return "".join(list(value))
    if type(value) is bytes:
        return bytes(bytearray(value))
    if type(value) is float:
        return struct.unpack("<d", struct.pack("<d", value))[0]
    if type(value) is int:
        return int(str(value))
    if type(value) is complex:
        return complex(fresh(value.real), fresh(value.imag))
    if type(value) is tuple:
        return tuple([fresh(part) for part in value])
    if isinstance(value, np.generic):
        return np.frombuffer(value.tobytes(), value.dtype)[0]
    return value


shared_list: list[Any] = []
UNCHANGED: list[tuple[Any, Any]] = [
    *[
        (value, fresh(value))
        for value in (
            "some text",
            "",
            b"some bytes",
            10**30,
            -5,
            1.5,
            -0.0,
            math.inf,
            1 + 2j,
            complex(-0.0, 0.0),
            True,
            None,
            (),
            (1.5, "text", (10**30, None)),
            np.float64(1.5),
            np.float64(-0.0),
            np.float32(0.1),
            np.int8(3),
            np.complex64(1 + 2j),
            np.bool_(True),
            np.longdouble("0.1"),
            (np.float64(1.5), "text"),
        )
    ],
    (shared_list, shared_list),
    ((1, shared_list), (1, shared_list)),
    (math.nan, math.nan),
    ((math.nan,), (math.nan,)),
]
CHANGED: list[tuple[Any, Any]] = [
    (0.0, -0.0),
    (-0.0, 0.0),
    (complex(0.0, 0.0), complex(-0.0, 0.0)),
    (complex(0.0, 0.0), complex(0.0, -0.0)),
    (np.float64(0.0), np.float64(-0.0)),
    (np.float32(0.0), np.float32(-0.0)),
    (np.complex128(complex(0.0, 0.0)), np.complex128(complex(0.0, -0.0))),
    (np.longdouble(0.0), np.longdouble(-0.0)),
    (float("nan"), float("nan")),
    (np.float64("nan"), np.float64("nan")),
    (complex(math.nan, 0), complex(math.nan, 0)),
    (1, 1.0),
    (1, True),
    (0, False),
    (1.0, 1 + 0j),
    (1.0, np.float64(1.0)),
    (np.float64(1.0), np.float32(1.0)),
    (np.int64(1), np.int32(1)),
    ("text", b"text"),
    ("text", "other"),
    (10**30, 10**30 + 1),
    ("text", MyStr("text")),
    (MyStr("text"), MyStr("text")),
    (5, MyInt(5)),
    (MyInt(5), MyInt(5)),
    (MyFloat(1), MyFloat(1)),
    (1, Level.LOW),
    ([], []),
    ({}, {}),
    ((1, []), (1, [])),
    ((0.0,), (-0.0,)),
    (((1,),), ((True,),)),
    ((1, 2), (1, 2, 3)),
    ((), (1,)),
    (Pair(1, 2), Pair(1, 2)),
    ((1, 2), Pair(1, 2)),
    (MyTuple([1]), MyTuple([1])),
    (Plain(), Plain()),
    (frozenset([1]), frozenset([1, 2])),
    (decimal.Decimal(1), decimal.Decimal(1)),
    (fractions.Fraction(1), fractions.Fraction(1)),
    (range(3), range(3)),
    (bytearray(b"a"), bytearray(b"a")),
    (np.zeros(1), np.zeros(1)),
    (np.str_("a text"), np.str_("a text")),
    (np.datetime64("2024-01-01"), np.datetime64("2024-01-02")),
    (None, 0),
    (None, False),
]


@pytest.mark.parametrize(("before", "after"), UNCHANGED, ids=repr)
def test_unchanged(before: Any, after: Any) -> None:
    assert changed_attributes({"a": before}, {"a": after}) == []
    assert changed_attributes({"a": (1, before)}, {"a": (1, after)}) == []
    assert changed_attributes({"a": 1, "b": before}, {"b": after, "a": 1}) == []


def text_of(value: Any) -> str:
    """A description without an address."""
    return type(value).__name__ if isinstance(value, Plain) else repr(value)


@pytest.mark.parametrize(("before", "after"), CHANGED, ids=text_of)
def test_changed(before: Any, after: Any) -> None:
    assert changed_attributes({"a": before}, {"a": after}) == ["a"]
    assert changed_attributes({"a": after}, {"a": before}) == ["a"]
    assert changed_attributes({"a": (1, (before,))}, {"a": (1, (after,))}) == ["a"]
    assert changed_attributes({"b": 1, "a": before}, {"a": after, "b": 1}) == ["a"]


def test_added_and_deleted() -> None:
    assert changed_attributes({}, {}) == []
    assert changed_attributes({"a": 1}, {}) == ["a"]
    assert changed_attributes({}, {"a": 1}) == ["a"]
    assert sorted(changed_attributes({"a": 1, "b": 2}, {"b": 2, "c": 3})) == ["a", "c"]
    assert changed_attributes({"a": None}, {}) == ["a"]
    assert changed_attributes({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []


def test_keys_of_any_type() -> None:
    assert changed_attributes({1: 1}, {1: 2}) == [1]
    assert changed_attributes({(1, "a"): 1}, {}) == [(1, "a")]
    name = MyStr("name")
    (found,) = changed_attributes({}, {name: 1})
    assert found is name
    assert changed_attributes({"name": 1}, {MyStr("name"): 1}) == []


def test_subclasses_of_dict() -> None:
    assert changed_attributes({"a": 1}, MyDict(a=2)) == ["a"]
    assert changed_attributes(MyDict(a=1), {"a": 1}) == []


def test_in_place_changes_do_not_count() -> None:
    values = [1]
    before = {"a": values}
    values.append(2)
    assert changed_attributes(before, {"a": values}) == []


def test_nothing_of_the_user_is_compared() -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    class HostileText(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = str.__hash__

    for make in (Hostile, lambda: HostileText("a")):
        one = make()
        assert changed_attributes({"a": one}, {"a": one}) == []
        assert changed_attributes({"a": one}, {"a": make()}) == ["a"]
        assert changed_attributes({"a": (one,)}, {"a": (make(),)}) == ["a"]


def test_deep_and_recursive_tuples() -> None:
    deep_before: Any = ()
    deep_after: Any = ()
    for _ in range(50_000):
        deep_before, deep_after = (deep_before, 1), (deep_after, 1)
    assert changed_attributes({"a": deep_before}, {"a": deep_after}) in ([], ["a"])
    inner: list[Any] = []
    recursive = (inner,)
    inner.append(recursive)
    assert changed_attributes({"a": recursive}, {"a": (inner,)}) == []


def test_wide_shared_tuples_end() -> None:
    """Tuples that share their parts: each level has two references to the one below."""
    before: Any = ("end",)
    after: Any = (fresh("end"),)
    for _ in range(60):
        before, after = (before, before), (after, after)
    assert changed_attributes({"a": before}, {"a": after}) == []


VALUES = st.one_of(
    st.sampled_from([0, 1, -1, 0.0, -0.0, 1.0, True, False, None, "", "a", b"", math.nan, 2**70]),
    st.sampled_from([np.float64(0.0), np.float64(-0.0), np.float32(1), np.int64(1), np.bool_(1)]),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.builds(list),
    st.sampled_from([MyInt(1), MyStr("a"), Level.LOW, shared_list]),
)
NESTED = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdef"), NESTED, max_size=5),
    st.dictionaries(st.sampled_from("abcdef"), NESTED, max_size=3),
    st.sets(st.sampled_from("abcdef"), max_size=3),
)
def test_against_the_rule(
    before: dict[str, Any], assigned: dict[str, Any], deleted: set[str]
) -> None:
    after = {key: fresh(value) for key, value in before.items() if key not in deleted}
    after.update(assigned)
    found = changed_attributes(before, after)
    assert len(found) == len(set(found))
    assert set(found) == expected(before, after)
