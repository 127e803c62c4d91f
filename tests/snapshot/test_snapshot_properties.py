"""Any graph that hypothesis can think of, against pickle and against the original."""

from __future__ import annotations

from typing import Any

import pytest
from checks import assert_copied_at_least, copy_of
from graph_compare import assert_same, match
from graph_strategies import LEAVES, graphs
from hypothesis import HealthCheck, given, settings

_QUICK = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_LONG = settings(_QUICK, max_examples=5000)


def _check_lookups(copied: Any) -> None:
    """Every key and every element of the copy is found by its hash."""
    for obj, _ in match(copied, copied):
        if type(obj) in (dict, set):
            for key in list(obj):
                assert key in obj


@_QUICK
@given(LEAVES)
def test_leaves(leaf: Any) -> None:
    assert_copied_at_least([leaf, leaf])


@_QUICK
@given(graphs())
def test_graphs(graph: Any) -> None:
    assert_copied_at_least(graph)


@_QUICK
@given(graphs(custom_hashes=True))
def test_graphs_with_hashes_of_unfinished_objects(graph: Any) -> None:
    copied = copy_of(graph)
    assert_same(graph, copied, layout=False)
    _check_lookups(copied)


@_QUICK
@given(graphs(most=6))
def test_copy_of_a_copy(graph: Any) -> None:
    copied = copy_of(graph)
    assert_same(copied, copy_of(copied), layout=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@_LONG
@given(graphs(most=25))
def test_many_large_graphs(graph: Any) -> None:
    assert_copied_at_least(graph)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@_LONG
@given(graphs(most=25, custom_hashes=True))
def test_many_graphs_with_hashes_of_unfinished_objects(graph: Any) -> None:
    copied = copy_of(graph)
    assert_same(graph, copied, layout=False)
    _check_lookups(copied)
