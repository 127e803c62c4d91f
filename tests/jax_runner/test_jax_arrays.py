"""JAX arrays of agents on their way to the workers and back."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("jax")

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from jax_support.array_scripts import (
    add_arrays,
    describe_arrays,
    draw_from_key,
    report_aliases,
    report_commitment,
    sums,
)
from jax_support.comparison import plain
from jax_support.running import jax_configured, run_scripted
from pams_parallel import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable


@jax.jit
def identity(x: Any) -> Any:
    return x


ARRAYS: dict[str, Callable[[], jax.Array]] = {
    "float32": lambda: jnp.asarray([1.5, -0.0, jnp.inf], jnp.float32),
    "nan": lambda: jnp.asarray([jnp.nan, 1.0]),
    "float16": lambda: jnp.asarray([1.0, 65504.0], jnp.float16),
    "bfloat16": lambda: jnp.asarray([[1.0, 3.1415926], [0.001, -2.0]], jnp.bfloat16),
    "float8": lambda: jnp.asarray([1.0, 0.5], jnp.float8_e4m3fn),
    "int8": lambda: jnp.arange(-4, 4, dtype=jnp.int8),
    "uint32": lambda: jnp.asarray([0, 2**32 - 1], jnp.uint32),
    "bool": lambda: jnp.asarray([True, False]),
    "complex64": lambda: jnp.asarray([1 + 2j, -0.0j], jnp.complex64),
    "zero size": lambda: jnp.zeros((0, 3), jnp.int8),
    "zero size bfloat16": lambda: jnp.zeros((2, 0), jnp.bfloat16),
    "scalar": lambda: jnp.asarray(np.float32(2.5)),
    "weakly typed float": lambda: jnp.asarray(1.5),
    "weakly typed int": lambda: jnp.asarray(3),
    "bool scalar": lambda: jnp.asarray(True),
    "weakly typed complex": lambda: jnp.asarray(1j),
    "weakly typed from jit": lambda: identity(2.5),
    "weakly typed array": lambda: jnp.full((2,), 1.0),
    "transposed": lambda: jnp.arange(6.0).reshape(2, 3).T,
    "large": lambda: jnp.arange(100_000.0),
    "old-style key": lambda: jax.random.PRNGKey(7),
    "old-style keys": lambda: jax.random.split(jax.random.PRNGKey(7), 3),
}
WIDE_ARRAYS: dict[str, Callable[[], jax.Array]] = {
    "float64": lambda: jnp.asarray([0.1, -0.0, jnp.nan]),
    "int64": lambda: jnp.asarray([2**62, -1]),
    "complex128": lambda: jnp.asarray([0.1 + 0.2j]),
    "float32": lambda: jnp.asarray([0.1], jnp.float32),
    "weakly typed float64": lambda: jnp.asarray(0.1),
}
TYPED_KEYS: dict[str, Callable[[], jax.Array]] = {
    "key": lambda: jax.random.key(7),
    "keys": lambda: jax.random.split(jax.random.key(7), 3),
    "key of another kind": lambda: jax.random.key(7, impl="rbg"),
}


def picklable(make: Callable[[], Any]) -> bool:
    """Whether the installed JAX can pickle it: typed keys, in some versions only."""
    try:
        pickle.loads(pickle.dumps(make(), protocol=5))
    except Exception:
        return False
    return True


def sent(makers: dict[str, Callable[[], jax.Array]]) -> tuple[dict[str, Any], Any, Any]:
    """Arrays of the main process; what a worker says of them; what comes back."""
    arrays = {name: make() for name, make in makers.items()}

    def prepare(agents: list[Any]) -> None:
        agents[0].arrays = arrays

    found = run_scripted([describe_arrays], listed=("report", "copies"), prepare=prepare)
    assert found.warnings == []
    (agent,) = found.agents
    return arrays, agent.report, agent.copies


@pytest.fixture(scope="module")
def narrow() -> tuple[dict[str, Any], Any, Any]:
    return sent({**ARRAYS, **{k: v for k, v in TYPED_KEYS.items() if picklable(v)}})


@pytest.fixture(scope="module")
def wide() -> tuple[dict[str, Any], Any, Any]:
    with jax_configured(jax_enable_x64=True):
        return sent(WIDE_ARRAYS)


def check(found: tuple[dict[str, Any], Any, Any], name: str) -> None:
    arrays, report, copies = found
    original, copy = arrays[name], copies[name]
    assert report[name] == (type(original).__name__, True, plain(original))
    assert isinstance(copy, jax.Array)
    assert plain(copy) == plain(original)


@pytest.mark.parametrize("name", ARRAYS)
def test_array(narrow: tuple[dict[str, Any], Any, Any], name: str) -> None:
    check(narrow, name)


@pytest.mark.parametrize("name", WIDE_ARRAYS)
def test_array_with_64_bits(wide: tuple[dict[str, Any], Any, Any], name: str) -> None:
    check(wide, name)


@pytest.mark.parametrize("name", TYPED_KEYS)
def test_typed_key(request: pytest.FixtureRequest, name: str) -> None:
    if picklable(TYPED_KEYS[name]):
        check(request.getfixturevalue("narrow"), name)
        return
    with pytest.raises(Exception, match=r"simulator\.agents\[0\]\.arrays"):
        sent({name: TYPED_KEYS[name]})


def test_names_say_what_the_arrays_are(
    narrow: tuple[dict[str, Any], Any, Any], wide: tuple[dict[str, Any], Any, Any]
) -> None:
    for name, array in {**narrow[0], **wide[0]}.items():
        assert getattr(array, "weak_type", False) == name.startswith("weakly typed")
    assert narrow[0]["bfloat16"].dtype == jnp.bfloat16
    assert wide[0]["float64"].dtype == np.float64
    assert narrow[0]["zero size"].size == 0


@pytest.fixture(scope="module")
def aliases() -> list[Any]:
    """Two agents of one task that share an array, with the main process and one another."""

    def prepare(agents: list[Any]) -> None:
        shared = jnp.arange(4.0)
        for agent in agents:
            agent.one, agent.nested = shared, {"deep": [shared, (shared,)]}
            agent.equal = jnp.arange(4.0)
        agents[0].simulator.forecast = shared

    found = run_scripted([report_aliases] * 2, listed=("report", "one", "again"), prepare=prepare)
    assert found.warnings == []
    return found.agents


def test_shared_array_stays_one_object(aliases: list[Any]) -> None:
    for agent in aliases:
        assert agent.report["is array"]
        assert agent.report["same as nested"]
        assert agent.report["same as other agent's"]
        assert agent.report["same as simulator's"]
        assert not agent.report["same as equal"]


def test_shared_array_stays_one_object_on_the_way_back(aliases: list[Any]) -> None:
    for agent in aliases:
        assert agent.again[0] is agent.one
        assert agent.again[1] is agent.one


def test_each_array_is_converted_once() -> None:
    """A thousand references are little more than one array."""
    array = jnp.arange(10_000.0)
    one = len(snapshot.dumps([array]))
    assert one > 40_000
    assert len(snapshot.dumps([{"params": array} for _ in range(1000)])) < one + 40_000


def operands() -> dict[str, jax.Array]:
    return {
        "bfloat16": jnp.ones(2, jnp.bfloat16),
        "weak": jnp.asarray(1.5),
        "strong": jnp.asarray(1.5, jnp.float32),
        "weak array": jnp.full((2,), 1.5),
        "strong array": jnp.full((2,), 1.5, jnp.float32),
    }


def test_weak_types_count_in_compiled_functions() -> None:
    """JAX keeps a weak type in two places; pickle restores only one of them in some versions.

    Then the first of two calls, one with a weakly typed argument, decides for both.
    """

    def prepare(agents: list[Any]) -> None:
        agents[0].arrays = operands()

    found = run_scripted([add_arrays], listed=("report", "arrays"), prepare=prepare)
    (agent,) = found.agents
    expected = [
        *(("weak", "bfloat16"), ("strong", "float32")),
        *(("strong array", "float32"), ("weak array", "bfloat16")),
    ]
    assert sums(operands()) == expected
    assert agent.report == expected
    # What comes back is used on the main process.
    assert sums(agent.arrays) == expected


def test_keys_can_be_used() -> None:
    def prepare(agents: list[Any]) -> None:
        agents[0].key = jax.random.PRNGKey(3)

    found = run_scripted([draw_from_key], prepare=prepare)
    assert found.agents[0].report == float(jax.random.normal(jax.random.PRNGKey(3)))


def test_64_bits_where_they_are_off() -> None:
    """Arrays made in a context keep their type, there and back, without being in one."""
    home = jax if hasattr(jax, "enable_x64") else jax.experimental
    with home.enable_x64(True):
        arrays = {name: make() for name, make in WIDE_ARRAYS.items()}

    def prepare(agents: list[Any]) -> None:
        agents[0].arrays = arrays

    found = run_scripted([describe_arrays], listed=("report", "copies"), prepare=prepare)
    (agent,) = found.agents
    for name, array in arrays.items():
        assert agent.report[name][2] == plain(array)
        assert plain(agent.copies[name]) == plain(array)


@pytest.mark.parametrize("weakly_typed", [True, False])
def test_device_commitment_does_not_survive(weakly_typed: bool) -> None:
    device = jax.devices()[0]
    array = jax.device_put(jnp.asarray(1.5, None if weakly_typed else jnp.float32), device)
    assert array.committed
    assert array.weak_type == weakly_typed

    def prepare(agents: list[Any]) -> None:
        agents[0].array = array

    found = run_scripted([report_commitment], listed=("report", "array"), prepare=prepare)
    assert found.agents[0].report is False
    assert not found.agents[0].array.committed
