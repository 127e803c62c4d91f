"""NumPy: arrays of every kind and layout, scalars, data types."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from checks import assert_copied, assert_like_pickle, assert_outcome_of_pickle, copy_of
from pams_parallel import snapshot
from sample_types import MyArray, Plain, Side

DTYPES = [
    "?",
    "i1",
    "u1",
    "i2",
    "i4",
    "u4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    "g",
    "c8",
    "c16",
    ">i4",
    ">f8",
    ">c8",
    "S1",
    "S7",
    "U1",
    "U5",
    ">U3",
    "V6",
    "M8[s]",
    "M8[ns]",
    "m8[D]",
    ">M8[us]",
]
STRUCTURED = {
    "packed": np.dtype([("price", "f8"), ("volume", "i4"), ("name", "S3")]),
    "aligned": np.dtype([("flag", "?"), ("price", "f8")], align=True),
    "offsets": np.dtype({"names": ["b", "a"], "formats": ["i2", "i4"], "offsets": [8, 0]}),
    "titles": np.dtype([(("A title", "a"), "i4")]),
    "nested": np.dtype([("inner", [("x", ">f4"), ("y", "i1")]), ("pair", "i2", (2, 3))]),
    "no fields": np.dtype([]),
    "big-endian": np.dtype([("a", ">i4")]),
}


def filled(dtype: Any, shape: Any) -> np.ndarray[Any, Any]:
    dtype = np.dtype(dtype)
    values = np.zeros(shape, dtype)
    raw = np.frombuffer(bytes(range(1, 64)) * 64, "u1")
    if dtype.kind == "U":
        values[...] = "añ"
    elif dtype.kind == "b":
        values[...] = np.arange(values.size).reshape(shape) % 2
    elif dtype.itemsize and not dtype.hasobject:
        flat = values.reshape(-1).view("u1") if values.size else values.reshape(-1)
        if values.size:
            flat[...] = raw[: flat.size]
    return values


LAYOUTS: dict[str, Any] = {
    "C": lambda a: a,
    "Fortran": np.asfortranarray,
    "transposed": lambda a: a.T,
    "every second": lambda a: a[::2],
    "inner part": lambda a: a[:, 1:2],
    "reversed": lambda a: a[:, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "swapped axes": lambda a: a.reshape(2, 3, 2).swapaxes(0, 2),
    "no items": lambda a: a[:0],
    "no items inside": lambda a: a[:, :0],
    "one": lambda a: a[:1, :1],
    "0-d": lambda a: a[0, 0:1].reshape(()),
    "new axis": lambda a: a[:, None],
    "five dimensions": lambda a: a.reshape(1, 2, 3, 1, 2),
    "Fortran in the last axes": lambda a: np.asfortranarray(a.reshape(3, 4))[None],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*DTYPES, *STRUCTURED])
def test_array(dtype: str, layout: str) -> None:
    values = LAYOUTS[layout](filled(STRUCTURED.get(dtype, dtype), (4, 3)))
    read_only = values.view()
    read_only.flags.writeable = False
    assert_copied(values)
    assert_copied(read_only)
    copied = assert_copied([values, read_only, values, Plain(a=read_only)])
    assert copied[0] is copied[2]
    assert copied[1] is not copied[0]


@pytest.mark.parametrize("n_items", [0, 1, 7, 100, 10_000, 1_000_000])
def test_writability_whatever_the_size(n_items: int) -> None:
    values = np.arange(n_items, dtype="i4")
    copied = copy_of(values)
    assert copied.flags.writeable
    if n_items:
        copied[0] = 77
        assert values[0] == 0
    values.flags.writeable = False
    assert not copy_of(values).flags.writeable


def test_the_data_is_not_shared_with_the_snapshot() -> None:
    data = bytearray(snapshot.dumps(np.arange(1000)))
    copied = snapshot.loads(data)
    data[:] = bytes(len(data))
    assert copied.tolist() == list(range(1000))
    data.clear()  # would be refused while the array holds on to the buffer


def test_arrays_that_are_views_of_each_other() -> None:
    """Pickle makes them independent."""
    base = np.arange(12.0).reshape(3, 4)
    copied = assert_copied([base, base[1], base.T, base.reshape(-1)])
    copied[0][1, 0] = 77
    assert copied[1][0] == 4


def test_objects_in_arrays() -> None:
    shared = Plain(a=1)
    values = np.empty((2, 2), object)
    values[0, 0], values[0, 1], values[1, 0] = shared, [shared, Side.BUY], "text"
    values[1, 1] = values
    for layout in (values, values.T, values[:, ::-1], np.asfortranarray(values), values[:0]):
        assert_copied([layout, shared, values])
    zero = np.empty((), object)
    zero[()] = [zero, shared]
    assert_copied([zero, shared])
    inner = np.empty(2, object)
    inner[0] = np.arange(3)
    inner[1] = inner[0]
    copied = assert_copied(inner)
    assert copied[0] is copied[1]


def test_objects_in_records() -> None:
    values = np.zeros((2,), [("number", "i4"), ("anything", object), ("inner", [("o", object)])])
    values["anything"] = [[1], "text"]
    values["inner"]["o"][0] = values["anything"][0]
    assert_copied(values)
    assert_copied(values[::-1])
    assert_copied(values[0])


@pytest.mark.parametrize("dtype", [*DTYPES, *STRUCTURED])
def test_scalar(dtype: str) -> None:
    scalar = filled(STRUCTURED.get(dtype, dtype), (2,))[1]
    assert_copied([scalar, scalar, {"k": scalar}])


def test_scalars_of_special_value() -> None:
    for value in (
        np.float64("nan"),
        np.float64("-0.0"),
        np.float32("inf"),
        np.datetime64("NaT"),
        np.timedelta64("NaT", "s"),
        np.bool_(True),
        np.bool_(False),
        np.str_("\ud800"),
        np.bytes_(b"a\x00b"),
        np.longdouble("1e-4000"),
        np.int64(-1),
        np.intc(1),
    ):
        copied = assert_copied([value, value])
        assert type(copied[0]) is type(value)
    assert copy_of(np.bool_(True)) is np.True_
    assert_like_pickle(np.longlong(2))  # the same bits, but not everywhere the same type


@pytest.mark.parametrize("name", STRUCTURED)
def test_dtype(name: str) -> None:
    dtype = STRUCTURED[name]
    assert_like_pickle([dtype, dtype, np.zeros(1, dtype)])


def test_dtype_with_metadata() -> None:
    dtype = np.dtype("i4", metadata={"unit": "yen"})
    assert_like_pickle([dtype, np.dtype("M8[s]"), np.dtype(object), np.dtype("U5")])


def test_array_classes() -> None:
    mine = np.arange(6).reshape(2, 3).view(MyArray)
    mine.note = "not pickled by NumPy"  # type: ignore[attr-defined]
    assert_like_pickle(mine)
    assert_like_pickle(mine.T)
    assert_like_pickle(np.matrix([[1, 2]]))
    assert_like_pickle(np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]))
    assert_like_pickle(np.ma.masked_array([1, 2, 3], mask=[0, 1, 0], fill_value=7))
    assert_outcome_of_pickle(np.ma.masked)
    assert_like_pickle(np.poly1d([1, 2]))
    assert_outcome_of_pickle(np.nditer(np.zeros(2)))
    assert_outcome_of_pickle(np.zeros(2).flat)


def test_memory_map(tmp_path: pathlib.Path) -> None:
    mapped = np.memmap(tmp_path / "values", dtype="f8", mode="w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    copied = copy_of([mapped])[0]
    mapped[0] = 5
    assert copied.tolist() == [1, 2, 3]
    assert type(copied) is np.memmap


def test_large_array() -> None:
    values = np.random.default_rng(1).integers(0, 255, 3_000_000, dtype="u1")
    assert np.array_equal(copy_of([values, 1])[0], values)


def test_unaligned_array() -> None:
    values = np.frombuffer(bytearray(17), "u1")[1:].view("f8")
    assert not values.flags.aligned or values.ctypes.data % 8 == 0
    assert_copied(values)
