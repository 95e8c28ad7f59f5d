"""Loops keep the X60's pace, as llvm-mca's model has it (`x60_pace.py`). A model's cycles, the same on every machine."""

import pytest
import x60_pace as pace

SLACK = 1.02


@pytest.mark.skipif(pace.mca() is None, reason="no llvm-mca with the X60's model (apt: llvm-22)")
@pytest.mark.parametrize("name,dtype", [(name, dtype) for name, (*_, bars) in pace.PACE.items() for dtype in bars])
def test_pace(name, dtype):
    loop = pace.found(name, dtype)
    assert not loop.has(r"v[ls][1248]re?\d*\.v"), "whole registers are moved to and from memory"
    bar = pace.PACE[name][-1][dtype]
    if loop.products and name.startswith("matmul"):
        assert 2 * loop.products / loop.cycles * SLACK >= bar, f"{2 * loop.products / loop.cycles:.2f} flop/cycle for {bar}"
    else:
        assert loop.cycles / loop.elements <= bar * SLACK, f"{loop.cycles / loop.elements:.2f} cycles an element for {bar}"
