"""Panels of B that the first strip of A's rows reads where they lie, and puts into their places for the others."""

import re

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled
from test_kept_panels import KEPT, TOLERANCE, assert_right, one_thread, run, walk_kernel
from triport.bench import check

BY_THE_CPU = True  # plain kernels, beside a GPU, too
WOVEN = "whole panels by the first strip of A's rows, which reads them where they lie"


@pytest.mark.parametrize("target,woven", [("x86-64-v3", False), ("x86-64-v4", True), ("neoverse-v2", True), ("x86-64-v2", False), ("rv64gcv", False), ("spacemit-x60", False)])
def test_who_weaves(target, woven):
    """Where rows of B are loaded as a panel has them, on cores that do not wait for each load and have registers enough, in tiles of more rows than are multiplied by B where it lies, and terms enough."""
    given = dict(M=64, N=64, K=512, ROWS=4, HOW="", stride_n=1)
    plan = compiled(walk_kernel, target, **given).asm["plan"]
    assert (WOVEN in plan) == woven and (f"{WOVEN}, {KEPT}" in plan) == woven
    for other in (dict(M=32), dict(K=64), dict(stride_n=2), dict(stride_k=1, stride_n=64)):
        assert WOVEN not in compiled(walk_kernel, target, **{**given, **other}).asm["plan"]


def test_the_first_strip_puts_what_it_loads():
    """A loop of multiply-adds that stores vectors as well, and fetches rows ahead."""
    asm = compiled(walk_kernel, "x86-64-v4", M=64, N=64, K=128, ROWS=4, HOW="", stride_n=1).asm["asm"]
    loops = [block for block in re.split(r"\n\.LBB", asm) if block.count("vfmadd") >= 24 and "prefetch" in block]
    assert loops and all(re.search(r"vmov[au]ps\s+%zmm\d+, .*\(", block) for block in loops)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tile", [(64, 64, 128), (64, 32, 256), (128, 128, 128), (64, 16, 512)])
@pytest.mark.parametrize("m,n,k", [(1500, 130, 128), (1600, 100, 250), (900, 33, 70), (1030, 64, 300), (700, 200, 129), (2, 63, 131), (1, 1, 1), (1029, 65, 512), (64, 300, 1000)])
def test_right_whatever_is_left_over(m, n, k, tile, dtype, seed):
    run(256, 256, 512, dtype, seed, tile=tile)  # numbers where panels are kept
    got, want, plan = run(m, n, k, dtype, seed, tile=tile)
    assert_right(got, want, dtype)


@triton.jit
def edges_kernel(a_ptr, b_ptr, out_ptr, m, n, k, seen, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HOW: tl.constexpr):
    """Programs go down a column of tiles of a @ b. HOW: "" all masks; "rows" of A are all there, "terms" are; "wide": of each second program more columns are seen than b has, which are zeros."""
    pid = tl.program_id(0)
    rows, cols, ks = pid * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    is_row, is_term, is_col = (rows < m)[:, None], ks < k, (cols < n)[None, :]
    if HOW == "rows":
        a = tl.load(a_ptr + rows[:, None] * k + ks[None, :], mask=is_term[None, :], other=0.0)
    elif HOW == "terms":
        a = tl.load(a_ptr + rows[:, None] * K + ks[None, :], mask=is_row, other=0.0)
    else:
        a = tl.load(a_ptr + rows[:, None] * k + ks[None, :], mask=is_row & is_term[None, :], other=0.0)
    if HOW == "terms":
        b = tl.load(b_ptr + ks[:, None] * n + cols[None, :], mask=is_col, other=0.0)
    else:
        b = tl.load(b_ptr + ks[:, None] * n + cols[None, :], mask=is_term[:, None] & is_col, other=0.0)
    more = (pid % 2) * seen if HOW == "wide" else 0
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], tl.dot(a, b, input_precision="ieee"), mask=is_row & (cols < n + more)[None, :])


@pytest.mark.parametrize("how", ["", "rows", "terms", "wide"])
@pytest.mark.parametrize("special", [None, float("inf"), float("nan")])
@pytest.mark.parametrize("m,n,k", [(2560, 64, 128), (2500, 60, 100), (2530, 33, 127), (2570, 128, 66), (2500, 64, 99)])
def test_what_is_not_there_is_zero(m, n, k, special, how, seed):
    """Also where an infinity is multiplied by it, and where panels stay for programs that see more of them."""
    torch.manual_seed(seed)
    rows, depth, tile = -(-m // 64) * 64, 128 if how == "terms" else k, dict(M=64, N=128, K=128)
    a, b = torch.randn(rows, depth), torch.randn(depth, n)
    if special is not None:
        a[65::128, depth // 2] = special  # in each second program, whose thread has panels of the one before
    got, whole = check.guarded((rows, 128), torch.float32)
    got.fill_(7.0)
    with one_thread():
        nan = torch.full((256, 128), float("nan"))
        edges_kernel[(4,)](nan, nan, torch.empty(256, 128), 256, 128, 128, 0, HOW=how, **tile)  # what a thread's panels hold before
        made = edges_kernel[(rows // 64,)](a, b, got, m, n, k, 3, HOW=how, **tile)
    assert WOVEN in made.asm["plan"] and KEPT in made.asm["plan"] and check.guards_hold(whole)
    product = a[:m].double() @ torch.nn.functional.pad(b, (0, 128 - n)).double()
    seen = (n + (3 * (torch.arange(m) // 64 % 2) if how == "wide" else torch.zeros(m))).clamp(max=128)
    want = torch.full((rows, 128), 7.0, dtype=torch.float64)
    want[:m] = torch.where(torch.arange(128) < seen[:, None], product, 7.0)
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
    finite = want.isfinite()
    assert (got[finite] - want[finite]).abs().max() <= TOLERANCE[torch.float32] * want[finite].abs().max()
