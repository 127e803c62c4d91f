"""Frames: keyframes and deltas, roots, numbers, externals, other processes."""

from __future__ import annotations

import copy
import gc
import os
import pathlib
import pickle
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks import pickled_copy
from delta_kinds import KINDS
from delta_support import (
    UNKNOWN,
    Chain,
    numbers_of,
    objects,
)
from graph_compare import assert_same
from pams_parallel.snapshot import Replica, SnapshotDecodeError, Source
from sample_types import (
    Plain,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = pathlib.Path(__file__).parent

# --- kinds of frames --------------------------------------------------------------------------


def test_a_keyframe_then_deltas() -> None:
    chain = Chain([1])
    for sequence in range(5):
        chain.step()
        assert chain.source.sequence == chain.replica.sequence == sequence
        assert chain.source.is_keyframe == (sequence == 0)
        chain.roots[0].append(sequence)


def test_a_keyframe_on_demand() -> None:
    chain = Chain([1])
    chain.step(keyframe=False)
    chain.roots[0].append(2)
    chain.step(keyframe=True)
    assert chain.source.is_keyframe
    assert chain.source.sequence == 1
    chain.roots[0].append(3)
    chain.delta()
    chain.step(keyframe=True)
    assert chain.source.is_keyframe
    fresh = Replica()
    chain.catch_up(fresh)
    chain.check(fresh)


def test_a_replica_starts_empty() -> None:
    replica = Replica()
    assert replica.sequence is None
    assert numbers_of(replica, [replica, "text"]) == [UNKNOWN, UNKNOWN]


def test_a_replica_that_skipped_frames_catches_up() -> None:
    chain = Chain([0], Plain())
    late = Replica()
    for step in range(20):
        chain.roots[0].append([step])
        chain.roots[1].step = [step]
        chain.step()
        if step % 6 == 5:
            chain.catch_up(late)
            chain.check(late)


def test_replicas_are_independent() -> None:
    chain = Chain([[1]])
    chain.step()
    other = Replica()
    chain.catch_up(other)
    assert other.roots[0] is not chain.replica.roots[0]
    other.roots[0][0].append("vandalism")
    chain.check()
    chain.roots[0].append(2)
    chain.delta()


def test_a_keyframe_for_a_replica_that_is_in_use() -> None:
    chain = Chain([1], Plain(a=[2]))
    chain.step()
    chain.roots[0].append(chain.roots[1])
    chain.step(keyframe=True)
    chain.roots[1].a.append(3)
    chain.delta()


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_frames_in_any_buffer(wrap: Callable[[bytes], Any]) -> None:
    source, replica, root = Source(), Replica(), [["a text of its own"], b"some bytes"]
    for step in range(3):
        root.append(f"text {step}")
        frame = wrap(source.frame((root,)))
        replica.apply(frame)
        if wrap is bytearray:
            frame[:] = bytes(len(frame))  # nothing refers to it
        assert_same(pickled_copy([root]), replica.roots)


# --- roots ------------------------------------------------------------------------------------


def test_roots_change() -> None:
    shared = ["shared"]
    a, b, c = Plain(a=shared), [shared], {"c": shared}
    chain = Chain(a, b)
    chain.step()
    for roots in (
        (b, a),
        (a,),
        (a, b, c),
        (),
        (shared,),
        (c, c, c),
        (1, "text", None, Plain, (), 1.5),
        (a, [a, b, c]),
        (Plain(), Plain()),
        ([],),
    ):
        chain.roots = roots
        chain.step()
        assert len(chain.replica.roots) == len(roots)


def test_an_object_stays_the_same_in_other_roots() -> None:
    kept = Plain(a=[1])
    chain = Chain([kept])
    chain.step()
    twin = chain.twin(kept)
    chain.roots = (1, {"key": kept})
    chain.delta()
    assert chain.replica.roots[1]["key"] is twin


@pytest.mark.parametrize("roots", [None, 1, "text", [[1]], {}])
def test_roots_have_to_be_a_tuple(roots: Any) -> None:
    source = Source()
    with pytest.raises(TypeError):
        source.frame(roots)
    assert source.frame(([1],))


# --- numbers ----------------------------------------------------------------------------------


def test_numbers() -> None:
    inner, text, pair = [1], "".join(["te", "xt"]), (1, [2])
    root = Plain(inner=inner, text=text, pair=pair)
    chain = Chain(root)
    chain.step()
    objs = [root, inner, text, pair, pair[1]]
    numbers = numbers_of(chain.source, objs)
    assert len(set(numbers)) == 5
    assert all(a is b for a, b in zip(objects(chain.source, numbers), objs, strict=True))
    twins = objects(chain.replica, numbers)
    found = chain.replica.roots[0]
    expected = [found, found.inner, found.text, found.pair, found.pair[1]]
    assert all(a is b for a, b in zip(twins, expected, strict=True))
    assert numbers_of(chain.replica, twins) == numbers


def test_numbers_of_strangers() -> None:
    chain = Chain([[1]])
    chain.step()
    strangers = [[], Plain(), Plain, chain]
    for side in (chain.source, chain.replica):
        assert numbers_of(side, []) == []
        assert numbers_of(side, strangers) == [UNKNOWN] * 4
        assert numbers_of(side, iter(strangers)) == [UNKNOWN] * 4
    assert numbers_of(chain.source, chain.replica.roots) == [UNKNOWN]
    assert numbers_of(chain.replica, chain.roots) == [UNKNOWN]


def test_numbers_that_nobody_has() -> None:
    chain = Chain([[1]])
    chain.step()
    for side in (chain.source, chain.replica):
        assert objects(side, []) == []
        for number in (UNKNOWN, 1_000_000):
            with pytest.raises(ValueError, match="number"):
                objects(side, [number])
        with pytest.raises(ValueError, match=r"4|four|uint32|length|size"):
            side.objects(b"abc")


def test_numbers_of_objects_that_are_gone() -> None:
    gone, kept = [1], [2]
    chain = Chain([gone, kept])
    chain.step()
    number, twin = numbers_of(chain.source, [gone])[0], chain.twin(gone)
    chain.roots[0].remove(gone)
    for _ in range(3):  # it need not be at once
        chain.delta()
    assert numbers_of(chain.source, [gone]) == [UNKNOWN]
    assert numbers_of(chain.replica, [twin]) == [UNKNOWN]
    for side in (chain.source, chain.replica):
        with pytest.raises(ValueError, match="number"):
            objects(side, [number])
    assert numbers_of(chain.source, [kept])[0] != UNKNOWN


def test_numbers_stay_the_same() -> None:
    kept = [Plain(), [1], {"a": 1}, "a text", random.Random(1)]
    chain = Chain([kept])
    chain.step()
    numbers = numbers_of(chain.source, kept)
    for step in range(10):
        chain.roots[0].append([step])
        if step % 3 == 0:
            del chain.roots[0][1:]
        chain.delta()
        assert numbers_of(chain.source, kept) == numbers


# --- externals --------------------------------------------------------------------------------


def test_externals() -> None:
    ours, theirs = [Plain(a=1), ["large"]], [Plain(mine=1), ["small"]]
    source, replica = Source(externals=ours), Replica(externals=theirs)
    root: list[Any] = [ours[0], {"k": ours[1]}]

    def send() -> bytes:
        frame = source.frame((root,))
        replica.apply(frame)
        return frame

    send()
    assert replica.roots[0][0] is theirs[0]
    assert replica.roots[0][1]["k"] is theirs[1]
    ours[1].extend(range(10_000))
    root.append(ours[1])
    assert len(send()) < 1000
    assert not source.is_keyframe
    assert replica.roots[0][2] is theirs[1]
    theirs[1].append("not vandalism")
    replica.roots[0].append("vandalism")
    assert replica.roll_back()
    assert replica.roots[0][2] is theirs[1]
    assert theirs[1] == ["small", "not vandalism"]
    assert len(replica.roots[0]) == 3


def test_externals_that_the_replica_lacks() -> None:
    external = Plain()
    source = Source(externals=[external])
    frame = source.frame(([external],))
    replica = Replica()
    with pytest.raises(SnapshotDecodeError):
        replica.apply(frame)
    assert replica.sequence is None


# --- the original is left alone ---------------------------------------------------------------


def test_the_original_carries_no_trace() -> None:
    # The copy module knows no state setters.
    graph = [make() for kind, make in KINDS.items() if kind != "reducer"]
    plain = Plain(graph=graph)
    graph.append(plain)
    before = pickle.dumps(graph, protocol=5)
    references = [sys.getrefcount(obj) for obj in graph]
    chain = Chain(graph)
    for _ in range(3):
        chain.send()
    assert pickle.dumps(graph, protocol=5) == before
    assert list(vars(plain)) == ["graph"]
    copied = copy.deepcopy(graph)
    assert type(copied[-1]) is Plain
    assert copied[-1].graph is copied
    chain.source.close()
    gc.collect()
    assert [sys.getrefcount(obj) for obj in graph] == references


def test_frames_are_not_affected_by_other_copies() -> None:
    graph = [Plain(a=[1]), random.Random(1), {"k": np.arange(3.0)}]
    chain = Chain(graph)
    chain.step()
    copy.deepcopy(graph)
    pickle.dumps(graph)
    repr(vars(graph[0]))
    gc.collect()
    assert len(chain.delta()) < 1000


# --- other processes --------------------------------------------------------------------------

FOLLOW = """
import pathlib, pickle, sys
from delta_support import assert_graphs_replicate
from pams_parallel.snapshot import Replica
replica = Replica()
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.frame")):
    replica.apply(path.read_bytes())
    expected = pickle.loads(path.with_suffix(".pickle").read_bytes())
    assert_graphs_replicate(expected, tuple(replica.roots))
    roots = replica.roots
    roots[0]["names"].add("vandalism")
    roots[0]["agents"][0].vandalism = roots[0]["by name"].popitem()
    if replica.roll_back():
        assert_graphs_replicate(expected, tuple(replica.roots))
    else:
        replica = Replica()
        for earlier in sorted(pathlib.Path(sys.argv[1]).glob("*.frame")):
            replica.apply(earlier.read_bytes())
            if earlier == path:
                break
print("the same")
"""


@pytest.mark.parametrize("hash_seed", ["0", "random"])
def test_another_process_follows(tmp_path: pathlib.Path, hash_seed: str) -> None:
    """Sets and dicts of strings are filled under another hash seed there."""
    from other_process import make_graph

    graph = make_graph()
    del graph["keys"]  # pickle cannot load them
    chain = Chain(graph)
    for step in range(8):
        graph["names"].add(f"new name {step}")
        graph["names"].discard(f"name {step}")
        graph["agents"][step % 5].step = [step]
        graph["agents"][step % 5].prng.gauss(0, 1)
        graph["by name"].pop(f"name {step}")
        graph[f"key {step}"] = frozenset([f"name {step}", "text"])
        chain.send()
        stem = tmp_path / f"{step}"
        stem.with_suffix(".frame").write_bytes(chain.frames[-1][1])
        stem.with_suffix(".pickle").write_bytes(pickle.dumps(chain.roots, protocol=5))
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(HERE), "PYTHONHASHSEED": hash_seed},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the same\n"
