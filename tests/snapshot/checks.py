"""What the snapshot tests assert: copies and errors are those of pickle."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest
from graph_compare import assert_same
from pams_parallel import snapshot


def having(obj: Any, **attributes: Any) -> Any:
    """The object itself, with more attributes."""
    for name, value in attributes.items():
        setattr(obj, name, value)
    return obj


def nan(payload: int, negative: bool = False) -> float:
    """A nan with chosen bits."""
    bits = 0x7FF8_0000_0000_0000 | payload | (negative << 63)
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def pickled_copy(obj: Any) -> Any:
    """The oracle."""
    return pickle.loads(pickle.dumps(obj, protocol=5))


def copy_of(obj: Any) -> Any:
    return snapshot.loads(snapshot.dumps(obj))


def assert_like_pickle(obj: Any) -> Any:
    """The copy equals the one that pickle makes, in every detail; returns it."""
    # Ours comes first: pickle and the comparison materialise the dicts of instances.
    copied = copy_of(obj)
    assert_same(pickled_copy(obj), copied)
    return copied


def assert_copied(obj: Any) -> Any:
    """The copy equals the one that pickle makes, and the original; returns it."""
    copied = assert_like_pickle(obj)
    assert_same(obj, copied, layout=False)
    return copied


def assert_copied_at_least(obj: Any) -> Any:
    """The copy equals the original, and the one that pickle makes unless pickle fails."""
    copied = copy_of(obj)
    try:
        expected = pickled_copy(obj)
    except Exception:
        pass
    else:
        assert_same(expected, copied)
    assert_same(obj, copied, layout=False)
    return copied


def assert_error_of_pickle(obj: Any, *parts: str) -> BaseException:
    """Type and message are those of pickle, and the message has each of ``parts`` as well.

    Returns:
        The error.
    """
    with pytest.raises(BaseException) as expected:  # noqa: PT011  (any error is the point)
        pickle.dumps(obj, protocol=5)
    with pytest.raises(BaseException) as actual:  # noqa: PT011
        snapshot.dumps(obj)
    assert type(actual.value) is type(expected.value)
    message = str(actual.value)
    assert str(expected.value) in message
    for part in parts:
        assert part in message
    return actual.value


def assert_loading_error_of_pickle(obj: Any) -> BaseException:
    """Copying works on the way out and fails on the way back, as under pickle."""
    pickled = pickle.dumps(obj, protocol=5)
    data = snapshot.dumps(obj)
    with pytest.raises(BaseException) as expected:  # noqa: PT011
        pickle.loads(pickled)
    with pytest.raises(BaseException) as actual:  # noqa: PT011
        snapshot.loads(data)
    assert type(actual.value) is type(expected.value)
    assert str(expected.value) in str(actual.value)
    return actual.value


def assert_outcome_of_pickle(obj: Any) -> None:
    """Equal copies, or equal errors on the way out or on the way back."""
    try:
        pickled = pickle.dumps(obj, protocol=5)
    except BaseException:
        assert_error_of_pickle(obj)
        return
    try:
        expected = pickle.loads(pickled)
    except BaseException:
        assert_loading_error_of_pickle(obj)
        return
    assert_same(expected, copy_of(obj))
