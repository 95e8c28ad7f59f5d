"""Masked accesses reach what the mask lets through and nothing else: tensors lie against pages that nobody may touch."""

import ctypes
import functools
import mmap
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triport.backends.cpu.llvm import compile as llvm, masked, targets

HERE = Path(__file__).resolve()
PAGE = mmap.PAGESIZE
PAIRS = [("int64", "int32"), ("int64", "int8"), ("int32", "int16"), ("int8", "int64"), ("int32", "int32"), ("float64", "float32"),
         ("float32", "bfloat16"), ("float16", "float64")]


@triton.jit
def copy_kernel(x_ptr, out_ptr, lo, hi, B: tl.constexpr):
    r = tl.arange(0, B)
    mask = (r >= lo) & (r < hi)
    tl.store(out_ptr + r, tl.load(x_ptr + r, mask=mask).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def fixed_copy_kernel(x_ptr, out_ptr, LO: tl.constexpr, HI: tl.constexpr, B: tl.constexpr):
    r = tl.arange(0, B)
    mask = (r >= LO) & (r < HI)
    tl.store(out_ptr + r, tl.load(x_ptr + r, mask=mask).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def program_copy_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out_ptr + r, tl.load(x_ptr + r, mask=r < n).to(out_ptr.dtype.element_ty), mask=r < n)


@triton.jit
def strided_kernel(x_ptr, out_ptr, lo, hi, STEP: tl.constexpr, B: tl.constexpr):
    r = tl.arange(0, B)
    mask = (r >= lo) & (r < hi)
    tl.store(out_ptr + r * STEP, tl.load(x_ptr + r * STEP, mask=mask).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def block_kernel(x_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    mask = (i < m) & (j < n)
    x = tl.load(x_ptr + i * n + j, mask=mask, other=0)
    tl.store(out_ptr + i * n + j, x.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def sums_kernel(x_ptr, out_ptr, lo, hi, B: tl.constexpr):
    r = tl.arange(0, B)
    mask = (r >= lo) & (r < hi)
    x = tl.load(x_ptr + r, mask=mask, other=0)
    tl.atomic_add(out_ptr + r, x.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + lo, tl.sum(x, 0).to(out_ptr.dtype.element_ty), mask=lo < hi)


def fenced(values: torch.Tensor, at_end: bool, writable: bool = True) -> torch.Tensor:
    """A tensor of `values` whose last byte (or first) is the last (first) before a page that may not be touched."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = values.numel() * values.element_size()
    pages = -(-size // PAGE) + 2
    area = mmap.mmap(-1, pages * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    offset = (pages - 1) * PAGE - size if at_end else PAGE
    t = torch.frombuffer(area, dtype=torch.uint8, count=size, offset=offset).view(values.dtype) if size else values
    t.copy_(values)
    for page in (0, pages - 1):
        if libc.mprotect(ctypes.c_void_p(start + page * PAGE), PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    if not writable and libc.mprotect(ctypes.c_void_p(start + PAGE), (pages - 2) * PAGE, mmap.PROT_READ):
        raise OSError(ctypes.get_errno(), "mprotect")
    t.area = area
    return t


def small(dtype: str, n: int, g) -> torch.Tensor:
    """Numbers that every type of PAIRS holds."""
    return torch.randint(-100, 100, (n,), generator=g).to(getattr(torch, dtype))


def bounds(b: int):
    """Ranges within a block of b: one element at each end and in the middle, two across a vector's end, all but one, all, none."""
    pairs = {(0, 1), (1, 2), (b - 1, b), (b // 2, b // 2 + 1), (b // 2 - 1, b // 2 + 1), (1, b), (0, b - 1), (0, b), (0, 0), (b, b)}
    return sorted((lo, hi) for lo, hi in pairs if 0 <= lo <= hi <= b)


def in_fenced_tensors(kernel: str, source: str, to: str, seed: int):
    """Run in a process of its own, which a touched page ends."""
    g = torch.Generator().manual_seed(seed)

    def run(n_in, n_out, want, launch):
        x = small(source, n_in, g)
        before = small(to, n_out, g)
        for at_end in (True, False):
            a, out = fenced(x, at_end, writable=False), fenced(before, at_end)
            launch(a, out)
            expected = before.clone()
            want(x, expected)
            assert torch.equal(out, expected), (kernel, source, to, at_end, out, expected)

    def put(lo, hi, step=1):
        def fill(x, out):
            out[lo * step:hi * step:step] = x[lo * step:hi * step:step].to(out.dtype)
        return fill

    if kernel in ("copy", "fixed"):
        for b in (1, 2, 8, 32, 64):
            for lo, hi in bounds(b):
                # The tensors end where the mask does; in front they begin where the block does, or the mask's pages would be read.
                if kernel == "copy":
                    run(hi, hi, put(lo, hi), lambda a, out: copy_kernel[(1,)](a, out, lo, hi, B=b))
                elif b in (2, 32):
                    run(hi, hi, put(lo, hi), lambda a, out: fixed_copy_kernel[(1,)](a, out, LO=lo, HI=hi, B=b))
    elif kernel == "programs":
        for n in (1, 2, 3, 15, 16, 17, 31, 33, 100, 127, 129, 1001):
            for b in (2, 16, 128):
                run(n, n, put(0, n), lambda a, out: program_copy_kernel[(triton.cdiv(n, b),)](a, out, n, B=b))
    elif kernel == "strided":
        for b, step in ((4, 2), (32, 3)):
            for lo, hi in bounds(b):
                size = max(0, (hi - 1) * step + 1) if hi else 0
                run(size, size, put(lo, hi, step), lambda a, out: strided_kernel[(1,)](a, out, lo, hi, STEP=step, B=b))
    elif kernel == "blocks":
        for m, n in ((1, 1), (1, 16), (3, 5), (4, 17), (7, 33), (8, 31), (5, 64)):
            run(m * n, m * n, put(0, m * n), lambda a, out: block_kernel[(1,)](a, out, m, n, M=8, N=64))
    elif kernel == "sums":
        def total(lo, hi):
            def fill(x, out):
                out[lo:hi] += x[lo:hi].to(out.dtype)
                if lo < hi:
                    out[lo] = x[lo:hi].to(torch.int64).sum().to(out.dtype)
            return fill
        for b in (2, 8, 64):
            for lo, hi in bounds(b):
                run(hi, hi, total(lo, hi), lambda a, out: sums_kernel[(1,)](a, out, lo, hi, B=b))


@pytest.mark.first(1)
@pytest.mark.parametrize("kernel", ["copy", "fixed", "programs", "strided", "blocks", "sums"])
def test_nothing_beside_the_mask_is_touched(kernel, seed):
    pairs = [("int32", "int64"), ("int32", "int32")] if kernel == "sums" else PAIRS
    code = "import sys; import test_masks as t\nfor p in sys.argv[3].split(','): t.in_fenced_tensors(sys.argv[1], *p.split('>'), int(sys.argv[2]))"
    ran = subprocess.run([sys.executable, "-c", code, kernel, str(seed), ",".join(f"{a}>{b}" for a, b in pairs)], cwd=HERE.parent,
                         capture_output=True, text=True, timeout=1200)
    assert ran.returncode == 0, f"ended with {ran.returncode} (-11: a page beside a tensor was touched)\n{ran.stderr[-3000:]}"


def test_the_fence_is_felt():
    """A kernel whose mask is off by one does touch the page."""
    code = ("import torch; import test_masks as t; x = t.fenced(torch.zeros(16, dtype=torch.int32), True); "
            "t.copy_kernel[(1,)](x, x, 0, 17, B=32)")
    ran = subprocess.run([sys.executable, "-c", code], cwd=HERE.parent, capture_output=True, timeout=600)
    assert ran.returncode == -11


@triton.jit
def triangle_kernel(x_ptr, out_ptr, n, AXIS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i * 0 + j * 0, mask=i + j < n, other=1)
    y = tl.load(x_ptr + i * N + j, mask=i - j < n, other=3)
    z = tl.load(x_ptr + i + j * M, mask=j + 1 >= i + n, other=7)
    tl.store(out_ptr + tl.arange(0, N if AXIS == 0 else M), tl.sum(x, AXIS) + tl.sum(y, AXIS) + tl.xor_sum(z, AXIS))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("m,n", [(8, 4), (4, 8), (16, 16), (64, 2), (2, 64)])
def test_masks_of_two_indices_in_reductions(axis, m, n, seed):
    """Along whichever dimension the vectors lie: each of their lanes has an end of its own."""
    x = torch.randint(-50, 50, (m * n,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))
    i, j = torch.arange(m)[:, None], torch.arange(n)[None, :]
    for limit in (0, 1, 3, m, m + n):
        out = torch.zeros(n if axis == 0 else m, dtype=torch.int32)
        triangle_kernel[(1,)](x, out, limit, AXIS=axis, M=m, N=n)
        a = torch.where(i + j < limit, x[0], 1).sum(axis)
        b = torch.where(i - j < limit, x.view(m, n), 3).sum(axis)
        c = torch.where(j + 1 >= i + limit, x.view(n, m).T, 7)
        want = a + b + functools.reduce(torch.bitwise_xor, c.unbind(axis))
        assert torch.equal(out, want.to(torch.int32)), limit


# --- constant masks -----------------------------------------------------------------------------------------------------------

TRUNCATED = """
define void @f(<4 x i64> %v, ptr %p) {{
  %t = trunc <4 x i64> %v to <4 x i32>
  call void @llvm.masked.store.v4i32.p0(<4 x i32> %t, ptr {new}%p, {old}<4 x i1> <i1 {bits}>)
  ret void
}}
"""


@pytest.mark.parametrize("bits,runs", [("false, i1 true, i1 false, i1 false", ["i32"]), ("true, i1 true, i1 false, i1 true", ["<2 x i32>", "i32"]),
                                       ("false, i1 true, i1 true, i1 true", ["<3 x i32>"])])
@pytest.mark.parametrize("old", [False, True])
def test_a_constant_mask_becomes_plain_stores(bits, runs, old):
    """In the text of LLVM 22, and in that of LLVM up to 21."""
    text = TRUNCATED.format(new="" if old else "align 4 ", old="i32 4, " if old else "", bits=bits)
    plain = masked.as_plain_stores(text)
    assert "masked.store" not in plain
    assert re.findall(r"store (.*?) %triport.*align (\d+)", plain) == [(r, str(4)) for r in runs]
    llvm.verify(plain, targets.native())


def test_the_stores_of_a_mask_only_known_at_run_time_stay():
    text = "  call void @llvm.masked.store.v4i32.p0(<4 x i32> %t, ptr align 4 %p, <4 x i1> %m)"
    assert masked.as_plain_stores(text) == text


@pytest.mark.parametrize("name", sorted(targets.TARGETS))
def test_no_constant_mask_reaches_a_code_generator(name):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    src = ASTSource(fixed_copy_kernel, {"x_ptr": "*i64", "out_ptr": "*i16", "LO": "constexpr", "HI": "constexpr", "B": "constexpr"},
                    {"LO": 3, "HI": 37, "B": 64})
    made = triton.compile(src, target=GPUTarget("cpu", name, 0))
    assert not re.search(r"masked\.store.*<i1 ", made.asm["llir"])
