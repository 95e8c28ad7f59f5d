"""What Inductor makes one kernel of, and what its launches ask, on the CPU through Triton."""

import pytest
import torch
import torch.nn.functional as F
from test_inductor import compiled, inductor
from triport.backends.cpu.plugin import apart, concat
from triport.backends.cpu.run import launch

pytestmark = pytest.mark.usefixtures("through_triton")


def launches(code: str) -> int:
    return code.count(".run(")


def embeddings(together, tables: int = 7):
    """A function of indices and tables that puts what it looks up side by side."""
    return lambda ids, *weights: together([F.embedding(ids[:, k], weights[k]) for k in range(tables)])


def given(dtype=torch.float32, tables: int = 7, width: int = 19, rows: int = 33):
    return (torch.randint(50, (rows, tables)), *(torch.randn(50, width, dtype=dtype) for _ in range(tables)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("together", [lambda parts: torch.cat(parts, 1), lambda parts: torch.stack(parts, 1), lambda parts: torch.cat(parts, 0)],
                         ids=["cat", "stack", "cat of rows"])
def test_what_is_put_side_by_side_is_one_kernel(together, dtype, seed):
    fn, args = embeddings(together), given(dtype)
    out, code = compiled(fn, *args)
    assert torch.equal(out, fn(*args)) and launches(code) == 1


def test_parts_of_two_tensors(seed):
    def fn(ids, x, *weights):
        looked_up = [F.embedding(ids[:, k], weights[k]) for k in range(3)]
        return torch.stack([x.relu(), *looked_up], 1), torch.cat([x.relu(), x.sin()], 1)

    ids, *weights = given(tables=3)
    args = ids, torch.randn(33, 19), *weights
    out, code = compiled(fn, *args)
    for a, b in zip(out, fn(*args)):
        torch.testing.assert_close(a, b)
    assert launches(code) == 1


def test_parts_that_read_nothing_together(seed):
    def fn(*parts):
        return torch.cat([F.embedding(ids, w) for ids, w in zip(parts[::2], parts[1::2])], 1)

    args = [x for _ in range(5) for x in (torch.randint(50, (33,)), torch.randn(50, 19))]
    out, code = compiled(fn, *args)
    assert torch.equal(out, fn(*args)) and launches(code) == 1


def test_parts_of_several_sizes_are_kernels_of_their_own(seed):
    def fn(ids, *weights):
        return torch.cat([F.embedding(ids[:, k], w) for k, w in enumerate(weights)], 1)

    args = torch.randint(50, (33, 4)), *(torch.randn(50, width) for width in (19, 19, 8, 8))
    out, code = compiled(fn, *args)
    assert torch.equal(out, fn(*args)) and launches(code) == 2


def test_without_it_each_part_is_a_kernel(seed, monkeypatch):
    monkeypatch.setattr(concat, "_parts", lambda node: set())
    fn, args = embeddings(lambda parts: torch.cat(parts, 1)), given()
    out, code = compiled(fn, *args)
    assert torch.equal(out, fn(*args)) and launches(code) == 7


def test_no_more_than_inductor_fuses(seed):
    fn, args = embeddings(lambda parts: torch.cat(parts, 1)), given()
    with inductor.patch(max_fusion_size=3):
        out, code = compiled(fn, *args)
    assert torch.equal(out, fn(*args)) and launches(code) == 3


def test_a_sum_is_no_part(seed):
    def fn(ids, *weights):
        return torch.stack([F.embedding(ids[:, k], weights[k]).sum(1) for k in range(3)], 1)

    args = given(tables=3)
    out, code = compiled(fn, *args)
    torch.testing.assert_close(out, fn(*args))


@pytest.fixture
def asked(monkeypatch):
    """The tensors that launches held against each other, as pairs of their numbers of elements."""
    pairs, overlap = [], launch._overlap

    def noted(p, q, x, y, same):
        pairs.append((x.numel(), y.numel()))
        return overlap(p, q, x, y, same)

    monkeypatch.setattr(launch, "_overlap", noted)
    return pairs


def test_a_launch_does_not_ask_about_what_it_fills(asked, seed):
    x, y = torch.randn(70), torch.randn(70)
    out, code = compiled(lambda x, y: (x + y).sigmoid() * y, x, y)
    torch.testing.assert_close(out, (x + y).sigmoid() * y)
    assert "'out_ptr0'" in code and not asked


def test_a_launch_asks_about_what_it_changes(asked, seed):
    x, y, own = torch.randn(70), torch.randn(70), torch.randn(70)
    expected = own * x + y
    _, code = compiled(lambda own, x, y: own.copy_(own * x + y), own, x, y)
    torch.testing.assert_close(own, expected)
    assert asked and "'mutated_arg_names': []" not in code


def test_a_launch_asks_for_users_kernels(asked, seed):
    import triton
    import triton.language as tl

    @triton.jit
    def twice(in_ptr0, out_ptr0, n, B: tl.constexpr):
        at = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(out_ptr0 + at, 2 * tl.load(in_ptr0 + at, mask=at < n), mask=at < n)

    def fn(x):
        out = torch.empty_like(x)
        twice[(2,)](x, out, x.numel(), B=64)
        return out

    x = torch.randn(70)
    out, _ = compiled(fn, x)
    assert torch.equal(out, 2 * x) and asked


@pytest.mark.parametrize("kind, custom, noted", [("POINTWISE", False, ["out_ptr0"]), ("REDUCTION", False, ["out_ptr0"]), ("TEMPLATE", False, None), ("USER_AUTOTUNE", True, None),
                                                 ("POINTWISE", True, None)])
def test_what_a_kernel_fills(kind, custom, noted):
    from torch._inductor.runtime.hints import HeuristicType

    class Tuner:
        def __init__(self):
            self.heuristic_type, self.custom_kernel, self.inductor_meta = HeuristicType[kind], custom, {}
            self.triton_meta, self.mutated_arg_names = {"signature": dict.fromkeys(("in_ptr0", "in_out_ptr0", "out_ptr0", "out_ptr1", "xnumel"))}, ["in_out_ptr0", "out_ptr1"]

    Tuner.__init__ = apart.noting(Tuner.__init__)
    assert Tuner().inductor_meta.get(apart._KEY) == noted
