"""Snapshots made here and loaded elsewhere, and the other way round."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import pytest
from graph_compare import assert_same
from other_process import check_files, make_graph, round_trip
from pams_parallel import snapshot

HERE = pathlib.Path(__file__).parent


def run_python(code: str, *args: str, hash_seed: str = "random") -> str:
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("hash_seed", ["random", "1", "2"])
def test_loaded_in_a_fresh_process(tmp_path: pathlib.Path, hash_seed: str) -> None:
    """Sets and dicts of strings are filled under another hash seed there."""
    graph = make_graph()
    data, pickled = tmp_path / "snapshot", tmp_path / "pickle"
    data.write_bytes(snapshot.dumps(graph))
    pickled.write_bytes(pickle.dumps(graph, protocol=5))
    out = run_python(
        "import sys, other_process; other_process.check_files(*sys.argv[1:])",
        str(data),
        str(pickled),
        hash_seed=hash_seed,
    )
    assert out == "the same\n"


def test_made_in_a_fresh_process(tmp_path: pathlib.Path) -> None:
    data = tmp_path / "snapshot"
    run_python("import sys, other_process; other_process.write(sys.argv[1])", str(data))
    assert_same(make_graph(), snapshot.loads(data.read_bytes()), layout=False)


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_there_and_back(method: str, tmp_path: pathlib.Path) -> None:
    graph = make_graph()
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        back = executor.submit(round_trip, snapshot.dumps(graph)).result(timeout=240)
    assert_same(graph, snapshot.loads(back), layout=False)


def test_names_of_attributes_are_interned_in_a_fresh_process(tmp_path: pathlib.Path) -> None:
    """Attribute lookups compare identities first, so a copy is as fast as the original."""
    data = tmp_path / "snapshot"
    data.write_bytes(snapshot.dumps(make_graph()))
    out = run_python(
        "import sys, other_process; other_process.check_interned(sys.argv[1])", str(data)
    )
    assert out == "interned\n"


def test_classes_are_imported_where_the_snapshot_is_loaded(tmp_path: pathlib.Path) -> None:
    data = tmp_path / "snapshot"
    data.write_bytes(snapshot.dumps(make_graph()))
    code = (
        "import sys, pathlib\n"
        "from pams_parallel import snapshot\n"
        "assert 'sample_types' not in sys.modules\n"
        "snapshot.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print('sample_types' in sys.modules)\n"
    )
    assert run_python(code, str(data)) == "True\n"


def test_a_module_that_is_missing_there(tmp_path: pathlib.Path) -> None:
    """Type and message are those of pickle."""
    (tmp_path / "module_of_this_test.py").write_text("class Lost:\n    pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import module_of_this_test  # type: ignore[import-not-found]

        graph: Any = [module_of_this_test.Lost()]
        data, pickled = snapshot.dumps(graph), pickle.dumps(graph, protocol=5)
        for change in ("missing class", "missing module"):
            if change == "missing class":
                del module_of_this_test.Lost
            else:
                del sys.modules["module_of_this_test"]
                (tmp_path / "module_of_this_test.py").unlink()
            with pytest.raises((ImportError, AttributeError)) as expected:
                pickle.loads(pickled)
            with pytest.raises((ImportError, AttributeError)) as actual:
                snapshot.loads(data)
            assert type(actual.value) is type(expected.value)
            assert "module_of_this_test" in str(actual.value)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("module_of_this_test", None)


def test_checks_of_this_module_can_fail(tmp_path: pathlib.Path) -> None:
    data, pickled = tmp_path / "snapshot", tmp_path / "pickle"
    data.write_bytes(snapshot.dumps([1, 2]))
    pickled.write_bytes(pickle.dumps([2, 1], protocol=5))
    with pytest.raises(AssertionError):
        check_files(str(data), str(pickled))
