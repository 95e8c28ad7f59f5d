"""Blocks, dominators and loops of functions."""

import random

import pytest
from triport.tools.inspector import flow
from triport.tools.inspector.schema import Block


def test_dominators_are_a_graph_librarys(seed):
    """On random graphs, with blocks that nothing reaches and loops of one block."""
    nx = pytest.importorskip("networkx", reason="networkx is not installed")
    for n in range(300):
        r = random.Random(seed + n)
        size = r.randint(1, 14)
        found = [Block(k, k + 1, "", sorted({r.randrange(size) for _ in range(r.randint(0, 3))})) for k in range(size)]
        edges = [(k, s) for k, b in enumerate(found) for s in b.successors]
        before = [[k for k, s in edges if s == node] for node in range(size)]
        graph = nx.DiGraph(edges)
        graph.add_nodes_from(range(size))
        assert flow._dominators(found, before) == {**nx.immediate_dominators(graph, 0), 0: 0}, (seed, n)
