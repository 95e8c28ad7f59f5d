"""What one store's nest keeps in scratch for another, where the masks of both are off: nobody writes it, and no address may come from it."""

import pytest
import torch
import triton
import triton.language as tl
from test_decisions import compiled

LEFT_OUT = "not where its readers' masks are off"


@triton.jit
def litter_kernel(x_ptr, out_ptr, B: tl.constexpr):
    """Leaves ones in all bits of a thread's scratch."""
    at = tl.arange(0, B)
    tl.store(out_ptr + at, tl.flip(tl.sort(tl.load(x_ptr + at)), 0))


@triton.jit
def windows_kernel(x_ptr, most_ptr, where_ptr, size, D: tl.constexpr, Y: tl.constexpr, X: tl.constexpr):
    """The largest of D elements, and which: stored along rows and along columns. Which elements there are is dear, and kept."""
    y, x = tl.arange(0, Y)[:, None], tl.arange(0, X)[None, :]
    rows, columns = y < 6, x < 8
    half, odd = y // 2, y % 2
    first, pitch = (15 * odd) // 2, (size - 5) // 2
    most = tl.full([Y, X], float("-inf"), tl.float32)
    where = tl.full([Y, X], 0, tl.int64)
    for j in tl.static_range(D):
        there = (half + j >= 0) & (half + j < 3 + size // 9) & (first + j < (15 * odd + 23) // 2) & (first + j >= 0)
        v = tl.load(x_ptr + (8 * j + x + 8 * first + 16 * half + 16 * half * pitch), there & columns & rows, other=float("-inf"))
        where = tl.where(v > most, (j + 30 * half + first).to(tl.int64), where)
        most = tl.maximum(most, v)
    tl.store(most_ptr + x + 8 * y, most, columns & rows)
    tl.store(where_ptr + y + 6 * x, where, columns & rows)


def _windows(x, size, d):
    most, where = torch.full((6, 8), float("-inf")), torch.zeros(8, 6, dtype=torch.int64)
    for y in range(6):
        half, odd = y // 2, y % 2
        first = 15 * odd // 2
        for j in range(d):
            if half + j < 3 + size // 9 and first + j < (15 * odd + 23) // 2:
                v = x[8 * j + 8 * first + 16 * half + 16 * half * ((size - 5) // 2) + torch.arange(8)]
                larger = v > most[y]
                where[larger, y], most[y, larger] = j + 30 * half + first, v[larger]
    return most, where


@pytest.mark.parametrize("d", [2, 4, 8])
def test_a_mask_that_another_store_keeps_is_written_where_it_is_read(d, seed):
    torch.manual_seed(seed)
    ones = torch.full((1 << 13,), -1, dtype=torch.int64)
    for _ in range(2):
        litter_kernel[(1,)](ones, torch.empty_like(ones), B=1 << 12)
        x, most, where = torch.randn(4096), torch.empty(6, 8), torch.empty(8, 6, dtype=torch.int64)
        windows_kernel[(1,)](x, most, where, 33, D=d, Y=8, X=8)
        for got, want in zip((most, where), _windows(x, 33, d)):
            assert torch.equal(got, want)


@triton.jit
def gated_kernel(x_ptr, out_ptr, turned_ptr, m, k, Y: tl.constexpr, X: tl.constexpr, HOW: tl.constexpr):
    """Two stores under one mask, along rows and along columns, of numbers from a dear one: of a number, "offset" of an address, "mask" of a load's mask, "stored" of the store's mask itself."""
    y, x = tl.arange(0, Y)[:, None], tl.arange(0, X)[None, :]
    inside = (y < m) & (x < X - 1)
    dear = ((y * 7 + x * 5) // k % 13 + (y * 3 + x) % k // 2 + (y + 11 * x) // (k + 1) % 7) % 64
    if HOW == "number":
        first, second = dear, dear + 1
        both = inside
    elif HOW == "offset":
        first = tl.load(x_ptr + dear)
        second = tl.load(x_ptr + dear + 1)
        both = inside
    elif HOW == "mask":
        first = tl.load(x_ptr + y * X + x, mask=inside & (dear % 3 > 0), other=0)
        second = tl.load(x_ptr + y * X + x + 1, mask=inside & (dear % 3 > 0), other=0)
        both = inside
    else:
        first, second = y * X + x, y * X + x + 1
        both = inside & (dear % 3 > 0)
    tl.store(out_ptr + y * X + x, first, both)
    tl.store(turned_ptr + y + Y * x, second, both)


@pytest.mark.parametrize("how", ["number", "offset", "mask", "stored"])
@pytest.mark.parametrize("m", [1, 5, 11, 16])
def test_numbers_that_decide_what_is_accessed(how, m, seed):
    torch.manual_seed(seed)
    rows, columns, k = 16, 16, 3
    ones = torch.full((1 << 13,), -1, dtype=torch.int64)
    litter_kernel[(1,)](ones, torch.empty_like(ones), B=1 << 12)
    x = torch.randint(-9, 9, (1024,), dtype=torch.int32)
    out, turned = torch.full((rows + 1, columns), 77, dtype=torch.int32), torch.full((columns + 1, rows), 77, dtype=torch.int32)
    gated_kernel[(1,)](x, out, turned, m, k, Y=rows, X=columns, HOW=how)
    y, c = torch.arange(rows)[:, None], torch.arange(columns)[None]
    dear = ((y * 7 + c * 5) // k % 13 + (y * 3 + c) % k // 2 + (y + 11 * c) // (k + 1) % 7) % 64
    inside, at = (y < m) & (c < columns - 1), y * columns + c
    if how == "number":
        first, second = dear, dear + 1
    elif how == "offset":
        first, second = x[dear], x[dear + 1]
    elif how == "mask":
        first, second = x[at] * (dear % 3 > 0), x[at + 1] * (dear % 3 > 0)
    else:
        first, second, inside = at, at + 1, inside & (dear % 3 > 0)
    assert torch.equal(out[:rows], torch.where(inside, first, 77).int()) and (out[rows] == 77).all()
    assert torch.equal(turned[:columns].T, torch.where(inside, second, 77).int()) and (turned[columns] == 77).all()


def test_who_is_left_out():
    """A number that is only stored need not be written where the stores' masks are off; one that decides what is accessed is."""
    plans = {how: compiled(gated_kernel, "x86-64-v4", Y=16, X=16, HOW=how).asm["plan"] for how in ("number", "offset", "mask", "stored")}
    kept = {how: [line for line in plan.splitlines() if "keeps" in line] for how, plan in plans.items()}
    assert all(kept.values())
    assert all(LEFT_OUT in line for line in kept["number"])
    assert not any(LEFT_OUT in line for how in ("offset", "mask", "stored") for line in kept[how])
