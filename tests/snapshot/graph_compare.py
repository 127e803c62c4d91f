"""Exact comparison of two Python object graphs.

Neither ``==`` nor pickle nor anything under test is used: both graphs are turned into labelled
nodes and edges by looking at the objects through their base types, then a bijection between the
nodes is searched that keeps labels and edges. It compares

* exact types and values (bits of floats, so ``nan`` payloads and the sign of zero count),
* aliasing of every object that pickle memoises, cycles included,
* order of lists, dicts, instance dicts and ordered dicts; sets are compared as sets,
* unset slots, ``maxlen``, default factories, PRNG states,
* data types, layout and flags of arrays.

Everything is iterative, so depth does not matter. A type that is not understood raises
``TypeError`` instead of passing.

What has no identity under pickle is an *atom* and is compared by value only: exact ``int``,
``float``, ``bool``, ``None``, the empty tuple, strings that CPython shares anyway, names of
attributes (pickle interns them); classes, functions, modules and enum members have to be the
same object on both sides.
"""

from __future__ import annotations

import collections
from typing import Any

from graph_describe import InstanceDict, Layout, atom_key, describe, describe_instance_dict


class _Node:
    __slots__ = ("incoming", "label", "obj", "ordered", "parent", "unordered")

    def __init__(self, obj: object, parent: tuple[int, str] | None) -> None:
        self.obj = obj  # a reference, so that the identity is not given to another object
        self.parent = parent
        self.label: tuple[Any, ...] = ()
        self.ordered: list[tuple[str, Any]] = []
        self.unordered: list[Any] = []
        self.incoming: list[tuple[str, int]] = []


class Graph:
    """Labelled nodes and edges of everything reachable from one object.

    An edge ends at the index of a node (``int``) or at an atom (``tuple``).
    """

    def __init__(self, root: object) -> None:
        self.nodes: list[_Node] = []
        self._index: dict[int, int] = {}
        self._pending: list[tuple[int, bool]] = []
        self.root = self._refer(root, None)
        while self._pending:
            index, is_instance_dict = self._pending.pop()
            node = self.nodes[index]
            found = (
                describe_instance_dict(node.obj)  # type: ignore[arg-type]
                if is_instance_dict
                else describe(node.obj)
            )
            node.label = found.label
            node.ordered = [(edge, self._refer(c, (index, edge))) for edge, c in found.ordered]
            node.unordered = [self._refer(c, (index, ".<element>")) for c in found.unordered]

    def _refer(self, obj: object, parent: tuple[int, str] | None) -> Any:
        is_instance_dict = type(obj) is InstanceDict
        if is_instance_dict:
            obj = obj.dictionary  # type: ignore[attr-defined]
        else:
            atom = atom_key(obj)
            if atom is not None:
                return atom
        index = self._index.get(id(obj))
        if index is None:
            index = self._index[id(obj)] = len(self.nodes)
            self.nodes.append(_Node(obj, parent))
            self._pending.append((index, is_instance_dict))
        if parent is not None:
            self.nodes[index].incoming.append((parent[1], parent[0]))
        return index

    def path(self, reference: Any) -> str:
        """Path by which a node was first reached."""
        if isinstance(reference, tuple):
            return repr(reference)
        edges = []
        parent = self.nodes[reference].parent
        while parent is not None:
            edges.append(str(parent[1]))
            parent = self.nodes[parent[0]].parent
        if len(edges) > 40:
            edges[20:-20] = [f"...({len(edges) - 40} more)..."]
        return "obj" + "".join(reversed(edges)).replace(".__dict__.", ".")


class Mismatch(Exception):
    """The graphs differ."""


class _Matcher:
    """Searches the bijection between the nodes of two graphs."""

    def __init__(self, left: Graph, right: Graph, layout: bool) -> None:
        self.left = left
        self.right = right
        self.layout = layout
        self.forward: dict[int, int] = {}
        self.backward: dict[int, int] = {}
        self._queue: collections.deque[tuple[int, int]] = collections.deque()
        self._sets: collections.deque[tuple[int, int]] = collections.deque()
        self._colors: tuple[list[int], list[int]] | None = None

    def run(self) -> None:
        self._bind(self.left.root, self.right.root, None)
        self._follow()
        while self._sets:
            # Sets come last: by then most of their elements are known from elsewhere.
            self._match_elements(*self._sets.popleft())
            self._follow()

    def _label(self, label: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.layout:
            return label
        return tuple(part for part in label if type(part) is not Layout)

    def _bind(self, a: Any, b: Any, edge: tuple[int, str] | None) -> None:
        if isinstance(a, tuple) or isinstance(b, tuple):
            if a != b:
                raise self._mismatch(edge, self._show(self.left, a), self._show(self.right, b))
            return
        if self.forward.get(a, b) != b or self.backward.get(b, a) != a:
            raise self._mismatch(
                edge,
                f"object first met at {self.left.path(a)}",
                f"object first met at {self.right.path(b)}",
            )
        if a in self.forward:
            return
        label_a = self._label(self.left.nodes[a].label)
        label_b = self._label(self.right.nodes[b].label)
        if label_a != label_b:
            raise self._mismatch(edge, _clip(label_a), _clip(label_b))
        self.forward[a] = b
        self.backward[b] = a
        self._queue.append((a, b))

    def _mismatch(self, edge: tuple[int, str] | None, left: str, right: str) -> Mismatch:
        where = "obj" if edge is None else self.left.path(edge[0]) + edge[1]
        return Mismatch(f"{where.replace('.__dict__.', '.')}: {left} != {right}")

    def _show(self, graph: Graph, reference: Any) -> str:
        return _clip(reference if isinstance(reference, tuple) else graph.nodes[reference].label)

    def _follow(self) -> None:
        while self._queue:
            a, b = self._queue.popleft()
            node_a, node_b = self.left.nodes[a], self.right.nodes[b]
            names_a = [edge for edge, _ in node_a.ordered]
            names_b = [edge for edge, _ in node_b.ordered]
            if names_a != names_b:
                raise self._mismatch((a, ""), f"parts {_clip(names_a)}", _clip(names_b))
            for (edge, child_a), (_, child_b) in zip(node_a.ordered, node_b.ordered, strict=True):
                self._bind(child_a, child_b, (a, edge))
            if node_a.unordered or node_b.unordered:
                self._sets.append((a, b))

    def _match_elements(self, a: int, b: int) -> None:
        left = self.left.nodes[a].unordered
        right = self.right.nodes[b].unordered
        edge = (a, ".<element>")
        atoms = [
            collections.Counter(ref for ref in side if isinstance(ref, tuple))
            for side in (left, right)
        ]
        if len(left) != len(right) or atoms[0] != atoms[1]:
            raise self._mismatch(edge, _clip(left), _clip(right))
        nodes_left = [ref for ref in left if not isinstance(ref, tuple)]
        nodes_right = [ref for ref in right if not isinstance(ref, tuple)]
        known_left = {self.forward[ref] for ref in nodes_left if ref in self.forward}
        known_right = {ref for ref in nodes_right if ref in self.backward}
        if known_left != known_right:
            raise self._mismatch(edge, "elements met before", "other elements met before")
        open_left = [ref for ref in nodes_left if ref not in self.forward]
        open_right = [ref for ref in nodes_right if ref not in self.backward]
        if not open_left:
            return
        colors = self._refined_colors()
        by_color: dict[int, list[int]] = {}
        for reference in reversed(open_right):
            by_color.setdefault(colors[1][reference], []).append(reference)
        for reference in open_left:
            candidates = by_color.get(colors[0][reference])
            if not candidates:
                raise self._mismatch(edge, self._show(self.left, reference), "no counterpart")
            # Elements of one colour look alike from everywhere in the graph, so any choice
            # does; a wrong one could only report a difference, never hide one.
            self._bind(reference, candidates.pop(), edge)

    def _refined_colors(self) -> tuple[list[int], list[int]]:
        """Colours of all nodes, refined by those of children and parents until stable."""
        if self._colors is None:
            graphs = (self.left, self.right)
            atoms: dict[Any, int] = {}
            numbers: dict[Any, int] = {}
            colors = [
                [numbers.setdefault(self._label(n.label), len(numbers)) for n in graph.nodes]
                for graph in graphs
            ]
            n_colors = -1
            while n_colors != len(numbers):
                n_colors = len(numbers)
                numbers = {}
                colors = [
                    [
                        numbers.setdefault(_signature(node, own, known, atoms), len(numbers))
                        for node, own in zip(graph.nodes, known, strict=True)
                    ]
                    for graph, known in zip(graphs, colors, strict=True)
                ]
            self._colors = (colors[0], colors[1])
        return self._colors


def _signature(node: _Node, own: int, colors: list[int], atoms: dict[Any, int]) -> tuple[Any, ...]:
    def color(reference: Any) -> int:
        if isinstance(reference, tuple):
            return atoms.setdefault(reference, -1 - len(atoms))
        return colors[reference]

    return (
        own,
        tuple((edge, color(child)) for edge, child in node.ordered),
        tuple(sorted(color(child) for child in node.unordered)),
        tuple(sorted((edge, colors[parent]) for edge, parent in node.incoming)),
    )


def _clip(value: object) -> str:
    if isinstance(value, tuple) and any(type(part) is int for part in value):
        # repr refuses integers of more than 4300 digits.
        value = tuple(hex(part) if type(part) is int else part for part in value)
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"


def match(left: object, right: object, *, layout: bool = True) -> list[tuple[str, Any]]:
    """Pairs of counterparts in two equal graphs.

    Args:
        left: one root.
        right: the other root.
        layout: whether strides and flags of arrays count, not only shapes and values.

    Returns:
        Every object of ``left`` that is not an atom with its counterpart in ``right``.

    Raises:
        Mismatch: the graphs differ; the message says where.
    """
    matcher = _Matcher(Graph(left), Graph(right), layout)
    matcher.run()
    return [
        (matcher.left.nodes[a].obj, matcher.right.nodes[b].obj) for a, b in matcher.forward.items()
    ]


def difference(left: object, right: object, *, layout: bool = True) -> str | None:
    """First difference between two graphs as text, ``None`` if there is none."""
    try:
        match(left, right, layout=layout)
    except Mismatch as error:
        return str(error)
    return None


def assert_same(left: object, right: object, *, layout: bool = True) -> None:
    """Fail with the first difference between two graphs."""
    found = difference(left, right, layout=layout)
    assert found is None, found
