"""The kernels of `lora_linear` on GPUs (see lora_gpu.py, which chooses and launches them): x w + t b in one pass with t = s x a, t itself by parts of
K, and the gradients of a and b.

fp32 is multiplied by tensor cores, each number as two of TF32 ("tf32x3": errors like fp32's own). Numbers that two of TF32 do
not hold are looked for beforehand; where there is one, all products are plain fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .product import beyond, tile_of_program

#: the bits of 2^127: rounding to TF32 may make infinity of a number from there on
MOST = tl.constexpr(0x7F000000)
#: counters that are cleared at once
CLEARED = 128


@triton.jit
def eights(n, SURE: tl.constexpr):
    """n; where it is SURE to be a multiple of 8 so that the compiler sees it."""
    return n // 8 * 8 if SURE else n


@triton.jit
def add_part(t, parts_ptr, part, m, r, rows, ranks):
    at = (part * tl.cast(m, tl.int64) + rows)[:, None] * r + ranks[None, :]
    return t + tl.load(parts_ptr + at, mask=(rows[:, None] < m) & (ranks[None, :] < r), other=0.0)


@triton.jit
def add_parts(t, parts_ptr, m, r, rows, ranks, SPLITS: tl.constexpr, TOGETHER: tl.constexpr):
    """t + the sum of the parts of x @ a, which are all fetched TOGETHER: where registers are many."""
    if TOGETHER:
        for part in tl.static_range(SPLITS):
            t = add_part(t, parts_ptr, part, m, r, rows, ranks)
    else:
        for part in tl.range(0, SPLITS, num_stages=1):
            t = add_part(t, parts_ptr, part, m, r, rows, ranks)
    return t


@triton.jit
def keep_low(t, t_ptr, m, r, rows, ranks):
    tl.store(t_ptr + rows.to(tl.int64)[:, None] * r + ranks[None, :], t.to(t_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (ranks[None, :] < r))


@triton.jit
def keep_sum(acc, t, b_ptr, out_ptr, m, n, r, stride_br, stride_bn, rows, cols, ranks, SWAP: tl.constexpr, PRECISION: tl.constexpr):
    """out = acc + t @ b, acc transposed where it is to SWAP."""
    b_ptrs = b_ptr + ranks[:, None] * stride_br + cols.to(tl.int64)[None, :] * stride_bn
    b = tl.load(b_ptrs, mask=(ranks[:, None] < r) & (cols[None, :] < n), other=0.0)
    t = t.to(b.dtype)
    if SWAP:
        acc = tl.trans(tl.dot(tl.trans(b), tl.trans(t), acc, input_precision=PRECISION))
    else:
        acc = tl.dot(t, b, acc, input_precision=PRECISION)
    out = out_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


@triton.jit
def both_products(x_ptr, w_ptr, a_ptr, m, n, k, r, stride_xm, stride_xk, stride_wk, stride_wn, stride_ak, stride_ar, rows, cols, ranks,
                  BK: tl.constexpr, EVEN: tl.constexpr, LOW: tl.constexpr, SWAP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr):
    """(rows x cols of x @ w, transposed where it is to SWAP; rows of x @ a, zeros without LOW). EVEN: tiles cover m, n and k without a rest."""
    ks = tl.arange(0, BK)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * stride_xm + ks[None, :] * stride_xk
    w_ptrs = w_ptr + ks[:, None] * stride_wk + cols.to(tl.int64)[None, :] * stride_wn
    a_ptrs = a_ptr + ks[:, None] * stride_ak + ranks[None, :] * stride_ar
    acc = tl.zeros((cols.shape[0], rows.shape[0]) if SWAP else (rows.shape[0], cols.shape[0]), dtype=tl.float32)
    low = tl.zeros((rows.shape[0], ranks.shape[0]), dtype=tl.float32)
    for start in tl.range(0, k, BK, num_stages=STAGES):
        if EVEN:
            x = tl.load(x_ptrs)
            w = tl.load(w_ptrs)
        else:
            x = tl.load(x_ptrs, mask=(rows[:, None] < m) & (ks[None, :] < k - start), other=0.0)
            w = tl.load(w_ptrs, mask=(ks[:, None] < k - start) & (cols[None, :] < n), other=0.0)
        if SWAP:
            acc = tl.dot(tl.trans(w), tl.trans(x), acc, input_precision=PRECISION)
        else:
            acc = tl.dot(x, w, acc, input_precision=PRECISION)
        if LOW:
            a = tl.load(a_ptrs, mask=(ks[:, None] < k - start) & (ranks[None, :] < r), other=0.0)
            low = tl.dot(x, a, low, input_precision=PRECISION)
            a_ptrs += BK * stride_ak
        x_ptrs += BK * stride_xk
        w_ptrs += BK * stride_wk
    return acc, low


@triton.jit
def clear(done_ptr, done, DONE: tl.constexpr):
    """The first program of a launch sets `done` counters to 0, for the launch behind it."""
    if DONE:
        if tl.program_id(0) == 0:
            for start in range(0, done, DONE):
                at = start + tl.arange(0, DONE)
                tl.store(done_ptr + at, tl.zeros((DONE,), tl.int32), mask=at < done)


@triton.jit(do_not_specialize=["flags", "done"])
def lora_kernel(x_ptr, w_ptr, a_ptr, b_ptr, out_ptr, t_ptr, parts_ptr, flags_ptr, done_ptr, m, n, k, r, scale: tl.float64, flags, done,
                stride_xm, stride_xk, stride_wk, stride_wn, stride_ak, stride_ar, stride_br, stride_bn, BM: tl.constexpr, BN: tl.constexpr,
                BK: tl.constexpr, BR: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, BY_EIGHT: tl.constexpr, EVEN: tl.constexpr,
                KEEP: tl.constexpr, SWAP: tl.constexpr, PRECISION: tl.constexpr, FLAGS: tl.constexpr, DONE: tl.constexpr, STAGES: tl.constexpr):
    """out = x @ w + t @ b, t = scale * x @ a. SPLITS: into how many parts x @ a was computed before; 0: it is computed here. KEEP: t is stored, too.
    FLAGS: so many of the `flags` are read at once; where one is set, or t is `beyond`, products are plain fp32. DONE: as many of `done` (`clear`)."""
    tile_m, tile_n = tile_of_program(tl.program_id(0), m, n, BM, BN, GROUP)
    rows, cols, ranks = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN), tl.arange(0, BR)
    r, stride_ak, stride_bn = eights(r, BY_EIGHT & 1), eights(stride_ak, BY_EIGHT & 2), eights(stride_bn, BY_EIGHT & 4)
    clear(done_ptr, done, DONE)
    fast = True
    if FLAGS:
        met = tl.zeros((FLAGS,), tl.int32)
        for start in range(0, flags, FLAGS):
            at = start + tl.arange(0, FLAGS)
            met |= tl.load(flags_ptr + at, mask=at < flags, other=0)
        factor = add_parts(tl.zeros((BM, BR), tl.float32), parts_ptr, m, r, rows, ranks, SPLITS, False) * tl.cast(scale, tl.float32)
        fast = (tl.max(met, axis=0) | tl.max(tl.max(beyond(factor, MOST), axis=1), axis=0)) == 0  # t is a factor, too
    if fast:
        acc, t = both_products(x_ptr, w_ptr, a_ptr, m, n, k, r, stride_xm, stride_xk, stride_wk, stride_wn, stride_ak, stride_ar, rows, cols, ranks,
                               BK, EVEN, SPLITS == 0, SWAP, PRECISION, STAGES)
        t = add_parts(t, parts_ptr, m, r, rows, ranks, SPLITS, False) * tl.cast(scale, tl.float32)
        if KEEP:
            if tile_n == 0:
                keep_low(t, t_ptr, m, r, rows, ranks)
        keep_sum(acc, t, b_ptr, out_ptr, m, n, r, stride_br, stride_bn, rows, cols, ranks, SWAP, PRECISION)
    elif FLAGS:
        sure, low = both_products(x_ptr, w_ptr, a_ptr, m, n, k, r, stride_xm, stride_xk, stride_wk, stride_wn, stride_ak, stride_ar, rows, cols,
                                  ranks, 16, False, SPLITS == 0, False, "ieee", 1)
        low = add_parts(low, parts_ptr, m, r, rows, ranks, SPLITS, False) * tl.cast(scale, tl.float32)
        if KEEP:
            if tile_n == 0:
                keep_low(low, t_ptr, m, r, rows, ranks)
        keep_sum(sure, low, b_ptr, out_ptr, m, n, r, stride_br, stride_bn, rows, cols, ranks, False, "ieee")


@triton.jit(do_not_specialize=["done"])
def lora_tma_kernel(out_ptr, t_ptr, parts_ptr, done_ptr, x, w, a, b, m, n, k, r, scale: tl.float64, done, TURNED: tl.constexpr, BM: tl.constexpr,
                    BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, BY_EIGHT: tl.constexpr,
                    KEEP: tl.constexpr, DONE: tl.constexpr):
    """As `lora_kernel`, of 16-bit numbers. x, w, a, b: descriptors of the matrices, but where TURNED of the transposes of w, a and b."""
    tile_m, tile_n = tile_of_program(tl.program_id(0), m, n, BM, BN, GROUP)
    row, col = tile_m * BM, tile_n * BN
    rows, cols, ranks = row + tl.arange(0, BM), col + tl.arange(0, BN), tl.arange(0, BR)
    r = eights(r, BY_EIGHT & 1)
    clear(done_ptr, done, DONE)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    t = tl.zeros((BM, BR), dtype=tl.float32)
    for at in range(0, k, BK):
        left = x.load([row, at])
        right = w.load([col, at]).T if TURNED else w.load([at, col])
        acc = tl.dot(left, right, acc)
        if SPLITS == 0:
            low = a.load([0, at]).T if TURNED else a.load([at, 0])
            t = tl.dot(left, low, t)
    t = add_parts(t, parts_ptr, m, r, rows, ranks, SPLITS, False) * tl.cast(scale, tl.float32)
    if KEEP:
        if tile_n == 0:
            keep_low(t, t_ptr, m, r, rows, ranks)
    up = b.load([col, 0]).T if TURNED else b.load([0, col])
    acc = tl.dot(t.to(up.dtype), up, acc)
    out = out_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


@triton.jit
def lora_parts_kernel(x_ptr, a_ptr, parts_ptr, w_ptr, b_ptr, flags_ptr, m, k, r, w_lines, w_line, w_stride, b_lines, b_line, b_stride, stride_xm,
                      stride_xk, stride_ak, stride_ar, BM: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr,
                      SCANS: tl.constexpr, BY_EIGHT: tl.constexpr):
    """parts[s] = x @ a over the s-th part of K, fp32. SCANS: so many more programs look through w and b, given by their contiguous lines, and every
    program sets its flag where it met a number `beyond` what two of TF32 hold."""
    pid = tl.program_id(0)
    r, stride_ak = eights(r, BY_EIGHT & 1), eights(stride_ak, BY_EIGHT & 2)
    work = tl.cdiv(m, BM) * SPLITS
    bad = tl.zeros((BM, BK), dtype=tl.int32)
    if pid < work:
        part = pid % SPLITS
        rows = pid // SPLITS * BM + tl.arange(0, BM)
        ks, ranks = tl.arange(0, BK), tl.arange(0, BR)
        begin = part * tl.cdiv(tl.cdiv(k, BK), SPLITS) * BK
        end = min(k, begin + tl.cdiv(tl.cdiv(k, BK), SPLITS) * BK)
        x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * stride_xm + (begin + ks).to(tl.int64)[None, :] * stride_xk
        a_ptrs = a_ptr + (begin + ks).to(tl.int64)[:, None] * stride_ak + ranks[None, :] * stride_ar
        low = tl.zeros((BM, BR), dtype=tl.float32)
        bad_a = tl.zeros((BK, BR), dtype=tl.int32)
        for start in range(begin, end, BK):
            if EVEN:
                x = tl.load(x_ptrs)
            else:
                x = tl.load(x_ptrs, mask=(rows[:, None] < m) & (ks[None, :] < end - start), other=0.0)
            a = tl.load(a_ptrs, mask=(ks[:, None] < end - start) & (ranks[None, :] < r), other=0.0)
            low = tl.dot(x, a, low, input_precision="ieee")
            if SCANS:
                bad |= beyond(x, MOST)
                bad_a |= beyond(a, MOST)
            x_ptrs += BK * stride_xk
            a_ptrs += BK * stride_ak
        at = (part * tl.cast(m, tl.int64) + rows)[:, None] * r + ranks[None, :]
        tl.store(parts_ptr + at, low, mask=(rows[:, None] < m) & (ranks[None, :] < r))
        if SCANS:
            tl.store(flags_ptr + pid, tl.max(tl.max(bad, axis=1), axis=0) | tl.max(tl.max(bad_a, axis=1), axis=0))
    elif SCANS:
        across_w, across_b = tl.cdiv(w_line, BK), tl.cdiv(b_line, BK)
        of_w = tl.cdiv(w_lines, BM) * across_w
        for block in range(pid - work, of_w + tl.cdiv(b_lines, BM) * across_b, SCANS):
            is_w = block < of_w
            at = block if is_w else block - of_w
            across = across_w if is_w else across_b
            lines = w_lines if is_w else b_lines
            line = w_line if is_w else b_line
            stride = w_stride if is_w else b_stride
            ptr = w_ptr if is_w else b_ptr
            outer, inner = at // across * BM + tl.arange(0, BM), at % across * BK + tl.arange(0, BK)
            ptrs = ptr + outer.to(tl.int64)[:, None] * stride + inner[None, :]
            bad |= beyond(tl.load(ptrs, mask=(outer[:, None] < lines) & (inner[None, :] < line), other=0.0), MOST)
        tl.store(flags_ptr + pid, tl.max(tl.max(bad, axis=1), axis=0))


@triton.jit
def lora_gradients_kernel(x_ptr, u_ptr, ga_ptr, g_ptr, t_ptr, gb_ptr, parts_ptr, done_ptr, m, k, n, r, stride_x, stride_g, BM: tl.constexpr,
                          BC: tl.constexpr, BR: tl.constexpr, SPLITS: tl.constexpr, GA: tl.constexpr, GB: tl.constexpr,
                          BY_EIGHT: tl.constexpr):
    """ga = x^T u (K x R) with GA, gb = t^T g (R x N) with GB; lines of x and g are contiguous. SPLITS programs, each with its part of the rows, for
    each tile of columns; the last to finish, by the counters `done`, adds the parts in their order, so that results do not depend on who that is."""
    pid = tl.program_id(0)
    r = eights(r, BY_EIGHT)
    tile, part = pid // SPLITS, pid % SPLITS
    tiles_a = tl.cdiv(k, BC) if GA else 0
    is_a = tile < tiles_a
    left_ptr = x_ptr if is_a else g_ptr
    right_ptr = u_ptr if is_a else t_ptr
    stride = stride_x if is_a else stride_g
    size = k if is_a else n
    cols = (tile if is_a else tile - tiles_a) * BC + tl.arange(0, BC)
    ranks, rows = tl.arange(0, BR), tl.arange(0, BM)
    begin = part * tl.cdiv(tl.cdiv(m, BM), SPLITS) * BM
    end = min(m, begin + tl.cdiv(tl.cdiv(m, BM), SPLITS) * BM)
    acc = tl.zeros((BC, BR), dtype=tl.float32)
    for start in range(begin, end, BM):
        at = (start + rows).to(tl.int64)[:, None]
        left = tl.load(left_ptr + at * stride + cols[None, :], mask=(at < end) & (cols[None, :] < size), other=0.0)
        right = tl.load(right_ptr + at * r + ranks[None, :], mask=(at < end) & (ranks[None, :] < r), other=0.0)
        acc = tl.dot(tl.trans(left), right, acc, input_precision="ieee")
    last = True
    if SPLITS > 1:
        mine = parts_ptr + (tile.to(tl.int64) * SPLITS * BC + tl.arange(0, BC))[:, None] * BR + ranks[None, :]
        tl.store(mine + part * (BC * BR), acc)
        tl.debug_barrier()  # all threads have stored before one says so
        last = tl.atomic_add(done_ptr + tile, 1, sem="acq_rel") == SPLITS - 1
        if last:
            tl.debug_barrier()
            acc = tl.load(mine, cache_modifier=".cg")
            for other in range(1, SPLITS):
                acc += tl.load(mine + other * (BC * BR), cache_modifier=".cg")
    if last:
        if is_a:
            tl.store(ga_ptr + cols.to(tl.int64)[:, None] * r + ranks[None, :], acc.to(ga_ptr.dtype.element_ty),
                     mask=(cols[:, None] < size) & (ranks[None, :] < r))
        else:
            tl.store(gb_ptr + ranks[:, None] * tl.cast(n, tl.int64) + cols[None, :], tl.trans(acc).to(gb_ptr.dtype.element_ty),
                     mask=(ranks[:, None] < r) & (cols[None, :] < size))
