"""What is judged by boxes, runs and lines of marks against what a few lines of Python say of each lane."""

import itertools
import random

import pytest
import torch
import triton
import triton.language as tl
from triport import checking
from triport.backends.cpu.emit.checks import boxes


@triton.jit(do_not_specialize=["pm", "pn", "sm", "sn", "lo_m", "hi_m", "lo_n", "hi_n", "base"])
def tile(ptr, pm, pn, sm, sn, lo_m, hi_m, lo_n, hi_n, base, BM: tl.constexpr, BN: tl.constexpr, WALK: tl.constexpr):
    """Writes rows [lo_m, hi_m), columns [lo_n, hi_n) of each program's tile."""
    r, c = tl.arange(0, BM), tl.arange(0, BN)
    inside = (r >= lo_m)[:, None] & (r < hi_m)[:, None] & (c >= lo_n)[None, :] & (c < hi_n)[None, :]
    at = base + tl.program_id(0) * pm + tl.program_id(1) * pn + r[:, None] * sm + c[None, :] * sn
    tl.store(ptr + at, tl.zeros((BM, BN), ptr.dtype.element_ty), mask=inside)


@triton.jit
def spans(ptr, starts_ptr, ends_ptr, N: tl.constexpr, READ: tl.constexpr):
    """Program p touches elements [starts[p], ends[p]): it writes them, or adds to what is there."""
    p = tl.program_id(0)
    start, end = tl.load(starts_ptr + p), tl.load(ends_ptr + p)
    i = start + tl.arange(0, N)
    x = tl.load(ptr + i, mask=i < end) if READ else tl.zeros((N,), ptr.dtype.element_ty)
    tl.store(ptr + i, x, mask=i < end)


@triton.jit
def anywhere(ptr, index_ptr, N: tl.constexpr):
    i = tl.load(index_ptr + tl.program_id(0) * N + tl.arange(0, N))
    tl.store(ptr + i, tl.zeros((N,), ptr.dtype.element_ty), mask=i >= 0)


def counts(run) -> dict[str, int]:
    """How often each kind was found."""
    try:
        run()
    except checking.CheckError as error:
        return {kind: sum(r.count for r in error.reports if r.kind == kind) for kind in {r.kind for r in error.reports}}
    return {}


def raced(touched) -> int:
    """Elements at which a program finds another one's write, of programs one after the other; touched: each one's writes, in order."""
    last: dict[int, int] = {}
    found = 0
    for p, elements in enumerate(touched):
        found += sum(last.get(e, p) != p for e in set(elements))
        last.update(dict.fromkeys(elements, p))
    return found


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.float64])
def test_boxes_find_what_lanes_find(seed, monkeypatch, dtype):
    pick = random.Random(seed)
    real = boxes.of
    said = []
    for _ in range(25):
        bm, bn = pick.choice([(4, 16), (8, 8), (2, 64), (16, 4)])
        sm, sn = pick.choice([(bn, 1), (bn + pick.randint(0, 9), 1), (1, bm), (1, bm + 3), (-bn, 1), (bn, -1), (0, 1), (2 * bn, 2), (3, 0)])
        lo_m, lo_n = pick.choice([0, 0, pick.randint(0, bm)]), pick.choice([0, 0, pick.randint(0, bn)])
        hi_m, hi_n = pick.choice([bm, bm + 5, pick.randint(0, bm)]), pick.choice([bn, pick.randint(0, bn)])
        pm, pn = pick.choice([(bm * bn, 0), (bn, bm * bn * 3), (pick.randint(0, 80), pick.randint(0, 40))])
        grid, size, base = (pick.randint(1, 3), pick.randint(1, 2)), pick.randint(60, 400), pick.randint(-20, 160)
        wanted, outside = [], 0
        for b, a in itertools.product(range(grid[1]), range(grid[0])):
            at = [base + a * pm + b * pn + r * sm + c * sn for r in range(max(lo_m, 0), min(hi_m, bm)) for c in range(max(lo_n, 0), min(hi_n, bn))]
            outside += sum(not 0 <= e < size for e in at)
            wanted.append(at)
        x = torch.zeros(size, dtype=dtype)
        found = {}
        for walk in (0, 1):
            monkeypatch.setattr(boxes, "of", (lambda nest, site: None) if walk else real)
            for kind in ("bounds", "bounds,race"):
                found[walk, kind] = counts(lambda: tile[grid](x, pm, pn, sm, sn, lo_m, hi_m, lo_n, hi_n, base, BM=bm, BN=bn, WALK=walk, check=kind))
        said.append(found)
        assert found[0, "bounds"] == found[1, "bounds"] and bool(found[0, "bounds"]) == bool(outside)
        assert found[0, "bounds,race"] == found[1, "bounds,race"] and (outside or bool(found[0, "bounds,race"]) == bool(raced(wanted)))
    assert any(f[0, "bounds"] for f in said) and any(f[0, "bounds,race"] for f in said) and any(not f[0, "bounds,race"] for f in said)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.int64])
def test_lines_of_marks_count_what_elements_do(seed, dtype, read):
    """Spans of a few elements to many lines, some of which meet."""
    pick = random.Random(seed)
    for _ in range(30):
        n, programs = 3000, pick.randint(2, 9)
        if pick.random() < 0.5:  # side by side
            cuts = sorted(pick.sample(range(n), programs + 1))
            starts, ends = cuts[:-1], [min(b, a + 1024) for a, b in zip(cuts, cuts[1:])]
            if pick.random() < 0.5:
                ends[pick.randrange(programs)] += pick.choice([1, 2, 16, 40])
        else:
            starts = [pick.randint(0, n - 1100) for _ in range(programs)]
            ends = [s + pick.choice([1, 7, 16, 64, 300, 1000]) for s in starts]
        wanted = raced([list(range(s, min(e, s + 1024))) for s, e in zip(starts, ends)])
        x = torch.zeros(n + 200, dtype=dtype)[pick.randint(0, 30):]
        got = counts(lambda: spans[(programs,)](x, torch.tensor(starts), torch.tensor(ends), N=1024, READ=read, check="race"))
        if read:
            assert bool(got) == bool(wanted)
        else:
            assert got.get("race", 0) == wanted, (starts, ends)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.float64])
def test_scattered_lanes_count_what_elements_do(seed, dtype):
    pick = random.Random(seed)
    for _ in range(30):
        programs, n = pick.randint(1, 6), pick.choice([64, 400, 2000])
        index = torch.tensor([pick.randint(-n // 4, n - 1) for _ in range(32 * programs)])
        if pick.random() < 0.4 and n >= 400:
            index = torch.tensor(pick.sample(range(n), 32 * programs))
        wanted = raced([[int(e) for e in index[32 * p:32 * p + 32] if e >= 0] for p in range(programs)])
        x = torch.zeros(n, dtype=dtype)
        assert counts(lambda: anywhere[(programs,)](x, index, N=32, check="race")).get("race", 0) == wanted
        index[pick.randrange(len(index))] = n
        assert counts(lambda: anywhere[(programs,)](x, index, N=32, check="bounds")) == {"bounds": 1}


def test_a_launchs_marks_do_not_reach_the_next_one():
    """The same memory holds the marks of other tensors then, of other elements."""
    for dtype, n in ((torch.int8, 1000), (torch.float64, 3000), (torch.float16, 70000), (torch.float32, 200)):
        x = torch.zeros(n + 1024, dtype=dtype)
        starts = torch.arange(0, n, 500)
        for shift in (0, 7, 250):
            spans[(len(starts),)](x[shift:], starts, starts + 500, N=512, READ=True, check="race")
            spans[(1,)](x[shift:], starts, starts + 500, N=512, READ=True, check="race")


@triton.jit
def corner(x_ptr, out_ptr, m, n, B: tl.constexpr):
    """Of a box what is below its diagonal: of some rows all lanes are known to be active."""
    r, c = tl.arange(0, B)[:, None], tl.arange(0, 2 * B)[None, :]
    tl.store(out_ptr + r * 2 * B + c, tl.load(x_ptr + r * 2 * B + c, mask=(r < m) & (c < n) & (c <= r), other=7))


@pytest.mark.parametrize("kind", ["bounds", "race", "uninit", "bounds,race,uninit"])
def test_boxes_cut_by_a_diagonal(kind, seed):
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(seed))
    for m, n in ((9, 20), (16, 5), (16, 32), (3, 1)):
        out = torch.empty(16, 32)
        corner[(1,)](x, out, m, n, B=16, check=kind)
        r, c = torch.arange(16)[:, None], torch.arange(32)
        assert torch.equal(out, torch.where((r < m) & (c < n) & (c <= r), x, 7))
    short = torch.randn(8 * 32 + 3)  # of row 8 three elements
    assert counts(lambda: corner[(1,)](short, out, 9, 20, B=16, check="bounds")) == {"bounds": 6}, "columns 3 to 8 of row 8"
