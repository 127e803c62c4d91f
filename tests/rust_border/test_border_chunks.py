"""Bounds of chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pams_parallel._core import chunk_bounds


@pytest.mark.parametrize(
    ("n_items", "n_chunks", "bounds"),
    [
        (0, 1, []),
        (0, 5, []),
        (1, 1, [(0, 1)]),
        (1, 5, [(0, 1)]),
        (10, 3, [(0, 4), (4, 7), (7, 10)]),
        (9, 3, [(0, 3), (3, 6), (6, 9)]),
        (5, 10, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
        (11, 4, [(0, 3), (3, 6), (6, 9), (9, 11)]),
    ],
)
def test_examples(n_items: int, n_chunks: int, bounds: list[tuple[int, int]]) -> None:
    assert chunk_bounds(n_items, n_chunks) == bounds


@given(st.integers(0, 3000), st.integers(1, 200))
def test_chunks(n_items: int, n_chunks: int) -> None:
    bounds = chunk_bounds(n_items, n_chunks)
    assert [i for start, stop in bounds for i in range(start, stop)] == list(range(n_items))
    sizes = [stop - start for start, stop in bounds]
    assert len(sizes) == min(n_items, n_chunks)
    assert sizes == sorted(sizes, reverse=True)
    assert all(size > 0 for size in sizes)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_types_of_the_result() -> None:
    bounds = chunk_bounds(3, 2)
    assert type(bounds) is list
    assert all(type(pair) is tuple and all(type(n) is int for n in pair) for pair in bounds)


@pytest.mark.parametrize(("n_items", "n_chunks"), [(-1, 1), (1, 0), (1, -1), (-5, -5), (0, 0)])
def test_out_of_range(n_items: int, n_chunks: int) -> None:
    with pytest.raises(ValueError, match=r"n_items|n_chunks|negative|least"):
        chunk_bounds(n_items, n_chunks)


def test_huge_numbers() -> None:
    assert chunk_bounds(3, 2**62) == [(0, 1), (1, 2), (2, 3)]
    assert chunk_bounds(2**62, 2) == [(0, 2**61), (2**61, 2**62)]
    for arguments in ((2**70, 2), (2, 2**70), (-(2**70), 2), (2, -(2**70))):
        try:
            bounds = chunk_bounds(*arguments)
        except (OverflowError, ValueError):
            continue
        assert bounds == [(0, 1), (1, 2)]
        assert arguments == (2, 2**70)
