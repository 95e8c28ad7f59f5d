"""Scratch: from when to when a buffer is needed, and where it is."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st
from test_plans import FOLDER, KERNELS, TARGETS
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.plan import scratch
from triport.backends.cpu.plan.product import Product
from triport.backends.cpu.plan.records import Body, Buffer, Copy, For, If, Piece, While
from triport.backends.cpu.plan.scratch import ALIGNMENT, NEVER, Life, lives, place
from triport.backends.cpu.ttir import reader


def overlap(a, b) -> bool:
    """Do two pairs (first, last) have a number in common?"""
    return a[0] <= b[1] and b[0] <= a[1]


# --- places ----------------------------------------------------------------------------------------------------------

SIZES = st.one_of(st.integers(0, 300), st.integers(1, 40000), st.sampled_from([64, 2048, 4096, 8192]))
LIVES = st.one_of(st.just(NEVER), st.builds(lambda first, more: Life(first, first + more), st.integers(0, 12), st.integers(0, 8)))


@given(st.lists(st.tuples(SIZES, LIVES), max_size=24))
def test_place(rooms):
    sizes, needed = [size for size, _ in rooms], [life for _, life in rooms]
    offsets, total = place(sizes, needed)
    assert (sizes, needed) == ([size for size, _ in rooms], [life for _, life in rooms]), "its arguments were changed"
    assert place(sizes, needed) == (offsets, total)
    assert all(offset >= 0 and offset % ALIGNMENT == 0 for offset in offsets)
    there = [(offset, size, life) for offset, size, life in zip(offsets, sizes, needed) if life != NEVER]
    assert all(offset + size <= total for offset, size, _ in there)
    for (a, n, x), (b, m, y) in itertools.combinations(there, 2):
        assert not overlap(x, y) or a + n <= b or b + m <= a, "two buffers that are needed at one time share bytes"
    large = [offset for offset, size in zip(offsets, sizes) if size >= 2048]
    wanted = [life for life, size in zip(needed, sizes) if size >= 2048]
    for n, (offset, life) in enumerate(zip(large, wanted), 1):
        assert life == NEVER or (offset + 64 * n) % 4096 == 0


def test_what_is_never_needed_at_one_time_shares_a_place():
    assert place([1000, 1000, 500], [Life(0, 1), Life(2, 3), Life(4, 4)]) == ([0, 0, 0], 1088)


# --- lifetimes -------------------------------------------------------------------------------------------------------


def at(n: int) -> Buffer:
    return Buffer(n, "f32", (4,), (1,), piece=n)


def move(to: int, source: int) -> Copy:
    return Copy(None, at(to), at(source))


def body(*steps) -> Body:
    return Body(None, ((None, steps),))


def test_from_the_first_to_the_last_step():
    assert lives(body(move(0, 1), move(2, 0), move(3, 2))) == {0: (0, 1), 1: (0, 0), 2: (1, 2), 3: (2, 2)}


LOOPS = {"for": lambda *steps: For(None, 0, (), steps), "while": lambda *steps: While(None, (), steps[:1], steps[1:]),
         "blocks": lambda *steps: Body(None, ((None, steps), (None, ())))}


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_loop_shares_with_what_is_round_it_is_needed_in_all_of_it(loop):
    """1 is of the loop alone; 0 is from before it, 4 is read behind it."""
    found = lives(body(move(0, 9), LOOPS[loop](move(1, 0), move(2, 1), move(4, 2)), move(5, 4)))
    assert overlap(found[0], found[2]) and overlap(found[0], found[4]) and overlap(found[4], found[1]), "the next turn would find something else"
    assert not overlap(found[9], found[1]) and not overlap(found[1], found[5]) and found[1] == (1, 2)


def test_a_loop_in_a_loop():
    inner = For(None, 0, (), (move(1, 0), move(2, 1)))
    found = lives(body(For(None, 1, (), (move(0, 7), inner, move(3, 8))), move(8, 3)))
    assert found[0] == (0, 3) and found[1] == (1, 2), "0 is of the outer loop, and is needed in all of the inner one; 1 is of that"
    assert found[3][0] == found[8][0] == 0, "both are needed in all of the outer loop"


def test_blocks_between_which_control_goes_to_and_fro():
    """1 is written in a block and read in another one, which may come before it in the text."""
    found = lives(Body(None, ((None, (move(0, 9),)), (None, (move(2, 1), move(3, 2))), (None, (move(1, 0),)))))
    assert overlap(found[1], found[2]) and overlap(found[1], found[0]) and found[2] == (1, 2)


def test_what_a_product_turns_is_needed_before_what_else_it_reads():
    """Its operands' buffers are written first, then what it adds to is put where it is wanted."""
    found = lives(body(move(0, 9), _product(kept=False)))
    assert overlap(found[1], found[0]) and overlap(found[1], found[3])


def _product(kept: bool) -> Product:
    """One that has B at 1 and adds to what lies at 3."""
    return Product(*[None] * 12, SimpleNamespace(packing=(), buffer=None), SimpleNamespace(packing=(), buffer=at(1), kept=kept, woven=None), (move(3, 0),), at(3), False, None)


def test_what_the_next_program_wants_shares_its_place_with_nothing():
    found = lives(body(move(7, 9), _product(kept=True), move(8, 9)))
    assert overlap(found[1], found[7]) and overlap(found[1], found[8])
    found = lives(body(move(7, 9), _product(kept=False), move(8, 9)))
    assert not overlap(found[1], found[7]) and not overlap(found[1], found[8])


def test_branches_may_share():
    found = lives(body(move(0, 9), If(None, (), ((move(1, 0),), (move(2, 0),)))))
    assert not overlap(found[1], found[2]) and overlap(found[0], found[2])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_plans(name, target):
    """In a plan no two pieces that are needed at one time share bytes, and all of them lie in scratch."""
    plan = lower_module(reader.parse((FOLDER / f"{name}.ttir").read_text()), targets.get(target)).plan
    pieces = [p for p in plan.places if isinstance(p, Piece) and p[2:] != NEVER]
    assert all(p.offset + p.size <= plan.scratch for p in pieces)
    for a, b in itertools.combinations(pieces, 2):
        assert not overlap(a[2:], b[2:]) or a.offset + a.size <= b.offset or b.offset + b.size <= a.offset


def test_a_plan_needs_the_same_scratch_twice(monkeypatch):
    """Placed by an order of its own, and not by what Python made of it."""
    text = (FOLDER / "matmul.ttir").read_text()
    first, again = (lower_module(reader.parse(text), targets.get("x86-64-v4")).plan for _ in range(2))
    assert first.places == again.places and scratch.lives(first.steps[0]) == scratch.lives(again.steps[0])
