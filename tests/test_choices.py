"""The rule by which `use("auto")` chooses: the nearest shape of those that were measured (`ops/choices.py`)."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from triport.ops import choices, registry, tuning

SIZE = st.integers(1, 1 << 17)
LINES = st.lists(st.tuples(st.tuples(SIZE, SIZE, SIZE), st.booleans()), min_size=1, max_size=6)


def doublings(a, b) -> float:
    return sum(math.log2(x / y)**2 for x, y in zip(a, b))**0.5


@given(lines=LINES, sizes=st.tuples(SIZE, SIZE, SIZE), times=st.integers(1, 5), which=st.integers(0, 2))
def test_the_nearest_decides(lines, sizes, times, which):
    got = choices.nearest(lines, sizes)
    best = min(doublings(sizes, other) for other, _ in lines)
    says = [faster for other, faster in lines if doublings(sizes, other) <= best + 1e-6]
    if abs(best - choices.REACH) > 1e-6 and (all(says) or not any(says)):
        assert got == (best <= choices.REACH and says[0])
    assert choices.nearest(lines[::-1], sizes) == got, "the order of the table says nothing"
    assert choices.nearest([(other, True) for other, _ in lines], sizes) >= got
    assert not choices.nearest([(other, False) for other, _ in lines], sizes)

    def scaled(s):
        return tuple(x << times if k == which else x for k, x in enumerate(s))

    assert choices.nearest([(scaled(other), faster) for other, faster in lines], scaled(sizes)) == got, "ratios alone count"


@given(lines=LINES, faster=st.booleans())
def test_a_measured_shape_has_its_own_answer(lines, faster):
    sizes = (300, 7, 5)
    others = [line for line in lines if line[0] != sizes]
    assert choices.nearest([*others, (sizes, faster)], sizes) == faster


def test_ties_go_to_triton():
    assert choices.nearest([((64,), True), ((256,), False)], (128,)) is False
    assert choices.nearest([((64,), True), ((256,), True)], (128,)) is True
    assert choices.nearest([((64,), True), ((256,), False)], (127,)) is True
    assert choices.nearest([], (128,)) is False and choices.nearest([((64, 64), True)], (64,)) is False


@pytest.mark.parametrize("triton, cuda, noise, faster", [(5.0, 4.0, 0.0, True), (5.0, 4.0, 0.3, False), (5.0, 5.0, 0.0, False), (5.05, 5.0, 0.0, False),
                                                         (5.2, 5.0, 0.0, True), (5.2, 5.0, 0.05, False), (4.0, 5.0, 0.0, False), (5.0, None, 0.0, False),
                                                         (None, 5.0, 0.0, False)])
def test_what_is_no_more_than_noise_goes_to_triton(triton, cuda, noise, faster):
    assert choices.faster(triton, cuda, noise) is faster


def like(name, *args):
    return choices.LIKE[name](*args)


def test_kinds_of_shapes():
    half, wide = torch.empty(24, 40, dtype=torch.float16), torch.empty(24, 42)
    assert like("square", half) == ("elements", (960,)) and like("square", half[1:]) == ("elements", (920,)) and like("gelu", half.view(-1)[1:]) is None
    assert like("add_relu", half, half[0]) == ("rows", (24, 40)) and like("add_mul_act", wide, wide, wide[0], 0.5, "relu") == ("rows, unaligned", (24, 42))
    assert like("add_relu", torch.empty(2, 3, 8), None) == ("rows", (6, 8)) and like("add_relu", torch.tensor(1.0), None) is None
    assert like("softmax", half, -1) == ("rows", (24, 40, 1)) and like("softmax", half, 0) == ("columns", (1, 24, 40))
    assert like("softmax", wide, 1) == ("rows, unaligned", (24, 42, 1)) and like("softmax", wide, -2) == ("columns, unaligned", (1, 24, 42))
    assert like("softmax", torch.empty(3, 5, 8), 1) == ("columns", (3, 5, 8)) and like("softmax", half, 2) is None and like("softmax", half[:0], 0) is None
    a, b = torch.empty(24, 40), torch.empty(40, 8)
    assert like("matmul", a, b) == ("nn", (24, 8, 40)) and like("matmul", a, torch.empty(8, 40).T) == ("nt", (24, 8, 40))
    assert like("matmul", torch.empty(40, 24).T, b) == ("tn", (24, 8, 40)) and like("matmul", torch.empty(24, 42)[:, :40], b) == ("nn, unaligned", (24, 8, 40))
    assert like("matmul_softmax", a, b, -1) == ("rows nn", (24, 8, 40)) and like("matmul_softmax", a, b, -2) == ("columns nn", (24, 8, 40))
    assert like("matmul", a[:, ::2], b[:20]) is None and like("matmul", a, b[0]) is None and like("matmul", a[:0], b) is None


def test_the_products_own_table_can_be_read():
    for kind, entry in tuning.load(tuning.FILE).items():
        for op, dtype, name in choices.read(entry, kind):
            assert op in choices.LIKE and dtype in registry.get(op).dtypes and isinstance(name, str)
