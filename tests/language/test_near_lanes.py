"""Lanes a few elements apart, forwards and backwards: loads of all that lies between them and shuffles, where a gather or scatter would take a cycle an element."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies as st
from test_decisions import compiled
from test_masks import fenced

STEPS = [*range(-9, 0), *range(1, 10)]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool, torch.float16]


@triton.jit
def apart_kernel(x_ptr, out_ptr, first, to, n, FROM: tl.constexpr, TO: tl.constexpr, B: tl.constexpr):
    """out[to + i TO] = x[first + i FROM] of n numbers; n = 0: of whole blocks, without a mask."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    if n == 0:
        tl.store(out_ptr + to + i * TO, tl.load(x_ptr + first + i * FROM))
    else:
        tl.store(out_ptr + to + i * TO, tl.load(x_ptr + first + i * FROM, mask=i < n), mask=i < n)


@triton.jit
def rows_kernel(x_ptr, out_ptr, rows, cols, pitch, FROM: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Every FROM-th number of rows, some of which are not there, and those from one row up; -1 where there is none."""
    r, c = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    inside = (r > 0) & (r <= rows) & (c < cols)
    x = tl.load(x_ptr + (r - 1) * pitch + c * FROM, mask=inside, other=-1)
    tl.store(out_ptr + r * C + c, x)


@triton.jit
def pairs_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, half, H: tl.constexpr):
    """Pairs of neighbours turned by an angle each, as rotary embeddings of GPT-J are."""
    row, i = tl.program_id(0), tl.arange(0, H)
    a = tl.load(x_ptr + row * 2 * half + 2 * i, mask=i < half)
    b = tl.load(x_ptr + row * 2 * half + 2 * i + 1, mask=i < half)
    cos, sin = tl.load(cos_ptr + i, mask=i < half), tl.load(sin_ptr + i, mask=i < half)
    tl.store(out_ptr + row * 2 * half + 2 * i, a * cos - b * sin, mask=i < half)
    tl.store(out_ptr + row * 2 * half + 2 * i + 1, a * sin + b * cos, mask=i < half)


@triton.jit
def flat_kernel(x_ptr, out_ptr, n, first, pitch, STEP: tl.constexpr, COLS: tl.constexpr, B: tl.constexpr):
    """out[i] = x[first + (i // COLS) pitch + (i % COLS) STEP] + 1, as Inductor writes what goes over rows: no piece need be a whole vector."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + first + (i // COLS) * pitch + (i % COLS) * STEP, mask=i < n)
    tl.store(out_ptr + i, x + 1, mask=i < n)


def numbers(dtype: torch.dtype, n: int) -> torch.Tensor:
    return torch.randint(0, 2, (n,)).bool() if dtype == torch.bool else torch.randint(-100, 100, (n,)).to(dtype)


def moved(x: torch.Tensor, out: torch.Tensor, source: int, to: int, n: int, blocks: int, block: int, masked: bool) -> torch.Tensor:
    """`apart_kernel` on them; what is to come of `out`, else left as it is."""
    begin, end = (-(step) * (n - 1) if step < 0 else 0 for step in (source, to))
    want = out.clone()
    at = torch.arange(n)
    want[end + at * to] = x[begin + at * source]
    apart_kernel[(blocks,)](x, out, begin, end, n if masked else 0, source, to, block)
    return want


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_loaded_and_stored(dtype, step, seed):
    """Blocks of one vector and of several, whole and not, up to pages that may not be touched on either side."""
    torch.manual_seed(seed)
    for block, blocks, missing in ((1, 1, 0), (2, 3, 0), (16, 1, 0), (16, 2, 5), (64, 1, 0), (64, 2, 0), (128, 2, 1), (256, 1, 200)):
        n = block * blocks - missing
        for at_end in (False, True):
            far, near = numbers(dtype, abs(step) * (n - 1) + 1), numbers(dtype, n)
            for source, to in ((step, 1), (1, step)):
                x, out = (far, near) if source == step else (near, far)
                x, out = fenced(x, at_end, writable=False), fenced(out, at_end)
                want = moved(x, out, source, to, n, blocks, block, missing > 0)
                assert torch.equal(out, want), (source, to, block, blocks, missing, at_end)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(STEPS), st.sampled_from(STEPS), st.integers(1, 300), st.sampled_from([1, 4, 32, 128]), st.sampled_from(DTYPES), st.integers(0, 1 << 30))
def test_from_any_step_to_any(source, to, n, block, dtype, drawn):
    torch.manual_seed(drawn)
    x, out = numbers(dtype, abs(source) * (n - 1) + 1), numbers(dtype, abs(to) * (n - 1) + 1)
    want = moved(x, out, source, to, n, triton.cdiv(n, block), block, True)
    assert torch.equal(out, want)


@pytest.mark.parametrize("step", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_rows_that_are_not_there(dtype, step, seed):
    """A mask that is the same for all lanes, known as the kernel runs: nothing is read of a row that is masked out."""
    torch.manual_seed(seed)
    for rows, cols in ((0, 64), (1, 64), (3, 64), (2, 61), (7, 1)):
        x = numbers(dtype, max(1, rows * cols * step - step + 1))
        given = fenced(x, True, writable=False)
        out = torch.empty(8, 64, dtype=dtype)
        rows_kernel[(1,)](given, out, rows, cols, cols * step, step, 8, 64)
        want = torch.full((8, 64), -1, dtype=dtype)
        if rows:
            want[1:rows + 1, :cols] = torch.nn.functional.pad(x, (0, step - 1)).view(rows, cols, step)[:, :, 0]
        assert torch.equal(out, want), (rows, cols)


@pytest.mark.parametrize("cols", [1, 19, 57, 131])
@pytest.mark.parametrize("step", [-8, -2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_flat_indices(dtype, step, cols, seed):
    """Rows whose last vector is not whole, up to pages that may not be touched on either side."""
    torch.manual_seed(seed)
    for rows, block in ((2, 128), (13, 128)):
        pitch, n = abs(step) * (cols - 1) + 1, rows * cols
        for at_end in (False, True):
            x = numbers(dtype, rows * pitch)
            given, out = fenced(x, at_end, writable=False), fenced(torch.zeros(n, dtype=dtype), at_end)
            flat_kernel[(triton.cdiv(n, block),)](given, out, n, pitch - 1 if step < 0 else 0, pitch, step, cols, block)
            rows_of = x.view(rows, pitch)
            want = (rows_of.flip(1) if step < 0 else rows_of)[:, ::abs(step)].reshape(-1) + 1
            assert torch.equal(out, want), (rows, block, at_end)


@pytest.mark.parametrize("half", [1, 16, 31, 64])
def test_rotary_embeddings(half, seed):
    torch.manual_seed(seed)
    x, angle = torch.randn(5, half, 2), torch.randn(half)
    out = torch.empty_like(x)
    pairs_kernel[(5,)](x, angle.cos(), angle.sin(), out, half, triton.next_power_of_2(half))
    want = torch.view_as_complex(x.double()) * torch.polar(torch.ones(half, dtype=torch.float64), angle.double())
    torch.testing.assert_close(out.double(), torch.view_as_real(want), rtol=1e-5, atol=1e-6)


def words(target: str, source: int, to: int) -> str:
    """LLVM IR of whole blocks, moved from one step to another."""
    return compiled(apart_kernel, target, n=0, FROM=source, TO=to, B=256).asm["llir"]


@pytest.mark.parametrize("target,most", [("x86-64-v4", 8), ("x86-64-v3", 7), ("x86-64-v2", 3), ("neoverse-v2", 3), ("aarch64", 3), ("rv64gcv", 0), ("spacemit-x60", 0)])
def test_which_are_not_gathered(target, most):
    """fp32 as far apart as a vector has lanes, and at most 32 bytes. RISC-V has loads with a stride, which LLVM makes of gathers."""
    for step in (*range(-9, 0), *range(2, 10)):
        assert ("gather" not in words(target, step, 1)) == (abs(step) <= most), step


@pytest.mark.parametrize("target,most", [("x86-64-v4", 8), ("x86-64-v3", 7), ("x86-64-v2", 0), ("neoverse-v2", 0), ("rv64gcv", 0)])
def test_which_are_not_gathered_under_a_mask(target, most):
    """Where an instruction loads a vector under a mask: at a row's end, and of flat indices at each piece's."""
    for step in (*range(-9, 0), *range(2, 10)):
        for kernel, constants in ((apart_kernel, {"FROM": step, "TO": 1}), (flat_kernel, {"STEP": step, "COLS": 50})):
            ir = compiled(kernel, target, B=256, **constants).asm["llir"]
            assert ("gather" not in ir) == (abs(step) <= most), (step, kernel)


@pytest.mark.parametrize("target,most", [("x86-64-v4", 4), ("x86-64-v3", 4), ("x86-64-v2", 1), ("neoverse-v2", 1), ("rv64gcv", 0)])
def test_which_are_not_scattered(target, most):
    """Backwards by whole vectors anywhere; further apart where an instruction stores a vector of eight numbers or more under a mask."""
    for step in (*range(-6, 0), *range(2, 7)):
        assert ("scatter" not in words(target, 1, step)) == (abs(step) <= most), step


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_two_shuffles_and_stores_under_masks(target):
    asm = compiled(apart_kernel, target, n=0, FROM=1, TO=2, B=256).asm["asm"]
    code = [line for line in asm.splitlines() if line.startswith("\tv")]
    assert not any(op in line for line in code for op in ("vextract", "vmovss", "vpextr", "scatter"))
    assert sum("{%k" in line and line.rstrip().endswith("{%k" + line.rsplit("{%k")[-1]) or "vmaskmov" in line for line in code) >= 2


def test_two_loads_and_a_shuffle():
    """What that is in AVX-512, of a loop that is unrolled four times: no instruction for each lane, and no other load."""
    asm = compiled(apart_kernel, "x86-64-v4", n=0, FROM=2, TO=1, B=256).asm["asm"]
    code = [line.split() for line in asm.splitlines() if line.startswith("\tv")]
    assert [op for op, *_ in code if not op.startswith(("vmov", "vzero"))] == ["vpermt2ps"] * 4
    assert sum("(" in line for line in asm.splitlines() if line.startswith(("\tvperm", "\tvmovups"))) == 12
