"""PyTorch tensors and JAX arrays, where they are installed."""

from __future__ import annotations

from typing import Any

import pytest
from checks import copy_of
from pams_parallel import snapshot
from sample_types import Plain


def test_torch_tensors_travel_by_value() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0).reshape(2, 3)
    shared = tensor[0]
    parameter = torch.nn.Parameter(torch.ones(2))
    model = torch.nn.Linear(2, 1)
    graph = [tensor, shared, Plain(tensor=tensor), parameter, model, torch.Generator()]
    encoder = snapshot.Encoder(reducers=snapshot.library_reducers())
    encoder.add(graph)
    data = encoder.finish()
    assert data is not None
    for copied in (copy_of(graph), snapshot.loads(data)):
        assert torch.equal(copied[0], tensor)
        assert copied[0] is copied[2].tensor
        assert copied[3].requires_grad
        assert torch.equal(copied[4].weight, model.weight)
        copied[0][0, 0] = 77
        assert tensor[0, 0] == 0  # no memory is shared with the original
        assert copied[1][0] == 77  # but between views of one tensor, as pickle does it
        assert not copied[0].is_shared()


def test_jax_arrays() -> None:
    jax = pytest.importorskip("jax")
    array = jax.numpy.arange(3.0)
    key = jax.random.PRNGKey(1)
    copied = copy_of([array, {"params": array}, key])
    assert isinstance(copied[0], jax.Array)
    assert copied[0].tolist() == [0.0, 1.0, 2.0]
    assert copied[0] is copied[1]["params"]
    assert jax.random.uniform(copied[2]) == jax.random.uniform(key)


@pytest.mark.parametrize("library", ["pandas", "scipy.sparse", "flax"])
def test_objects_of_other_libraries(library: str) -> None:
    module: Any = pytest.importorskip(library)
    if library == "pandas":
        frame = module.DataFrame({"price": [1.0, 2.0], "name": ["a", "b"]})
        assert copy_of([frame, frame])[0].equals(frame)
    elif library == "scipy.sparse":
        matrix = module.csr_matrix([[0, 1], [2, 0]])
        assert (copy_of(matrix) != matrix).nnz == 0
    else:
        frozen = module.core.freeze({"a": {"b": 1}})
        assert copy_of(frozen) == frozen
