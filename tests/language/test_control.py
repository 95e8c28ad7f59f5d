"""Functions, branches, tuples, pointers to pointers, tensor descriptors, prints and assertions."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from conftest import HANGS
from triport.backends.base import CompileError, Error
from triton.backends.compiler import GPUTarget
from values import random

ROOT = Path(__file__).resolve().parents[2]


@triton.jit(noinline=True)
def halve_or_double(x, y):
    if y > 3:
        return x
    return x * 2


@triton.jit(noinline=True)
def nested(x, y):
    return halve_or_double(x, y) + halve_or_double(y.to(tl.float32), y)


@triton.jit
def call_kernel(x_ptr, out_ptr, n):
    x = tl.load(x_ptr)
    for i in range(n):
        x = halve_or_double(x, i)
    tl.store(out_ptr, x)
    tl.store(out_ptr + 1, nested(x, n))


@pytest.mark.parametrize("n", [0, 2, 4, 7])
def test_functions_that_are_not_inlined(n):
    out = torch.zeros(2)
    call_kernel[(1,)](torch.tensor([1.5]), out, n)
    x = 1.5 * 2**min(n, 4)
    twice = 1 if n > 3 else 2
    assert out.tolist() == [x, x * twice + n * twice]


@triton.jit
def early_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.exp(x) + tl.sum(x)
    if n == 1:
        tl.store(x_ptr + i, x * 0)
        tl.store(out_ptr + i, y)
        return
    elif n == 2:
        tl.store(out_ptr + i, y + 1)
        return
    tl.store(x_ptr + i, x * 2)
    tl.store(out_ptr + i, y + 2 + tl.load(x_ptr + i))


@pytest.mark.parametrize("n", range(4))
def test_values_across_early_returns(n, seed):
    """What one path put into scratch, another does not find there; a load stays before the stores that follow it."""
    x = random("float32", 64, seed, small=True)
    before, out = x.clone(), torch.empty(64)
    early_kernel[(1,)](x, out, n, 64)
    y = before.double().exp() + before.double().sum()
    want = {1: y, 2: y + 1}.get(n, y + 2 + 2 * before)
    torch.testing.assert_close(out.double(), want.double(), rtol=1e-5, atol=1e-4)
    assert torch.equal(x, {1: before * 0, 2: before}.get(n, before * 2))


@triton.jit
def branch_tensors(x_ptr, out_ptr, k, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if k == 0:
        x += 1
    else:
        if k == 1:
            x *= 2
        else:
            x = tl.where(i > 3, x, -x)
    s = 0.0
    while s < k:
        s += 1
        x = x + s
    tl.store(out_ptr + i, x)


@pytest.mark.parametrize("k", range(4))
def test_nested_branches(k, seed):
    x, out = random("float32", 16, seed, small=True), torch.empty(16)
    branch_tensors[(1,)](x, out, k, 16)
    want = x + 1 if k == 0 else x * 2 if k == 1 else torch.where(torch.arange(16) > 3, x, -x)
    for s in range(1, k + 1):
        want = want + s
    torch.testing.assert_close(out, want)


@triton.jit
def range_kernel(out_ptr, low, high, STEP: tl.constexpr):
    total = 0
    total = total.to(tl.int64)
    for i in range(low, high, STEP):
        total += i
    tl.store(out_ptr, total)


@pytest.mark.parametrize("low,high,step", [(2**35, 2**35 + 20, 3), (15, -16, -1), (15, -16, -3), (22, 18, -1), (5, 5, 1), (-7, 9, 4)])
def test_ranges(low, high, step):
    """64-bit bounds, negative steps, no trips at all."""
    out = torch.zeros(1, dtype=torch.int64)
    range_kernel[(1,)](out, low, high, step)
    assert out.item() == sum(range(low, high, step))


@triton.jit
def tuple_kernel(t, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(t[0] + i) + t[1] + t[2][0] * t[2][1])


def test_tuples_as_arguments(seed):
    x, out = random("float32", 16, seed, small=True), torch.empty(16)
    tuple_kernel[(1,)]((x, 3, (4, 5)), out, 16)
    torch.testing.assert_close(out, x + 23)


@triton.jit
def pointers_kernel(table_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    for k in range(n):
        p = tl.load(table_ptr + k).to(tl.pointer_type(tl.float32))
        tl.store(out_ptr + k * N + i, tl.load(p + i) * 2)
    q = tl.load(table_ptr + i % n).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + n * N + i, tl.load(q + i))


def test_pointers_to_pointers(seed):
    rows = [random("float32", 32, seed + k, small=True) for k in range(3)]
    table, out = torch.tensor([r.data_ptr() for r in rows]), torch.empty(4, 32)
    pointers_kernel[(1,)](table, out, 3, 32)
    assert torch.equal(out[:3], torch.stack(rows) * 2)
    assert torch.equal(out[3], torch.stack([rows[k % 3][k] for k in range(32)]))


@triton.jit
def long_chain(x_ptr, out_ptr, N: tl.constexpr, STEPS: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    for k in tl.static_range(STEPS):
        x = x * 0.5 + k
    tl.store(out_ptr + i, x)


def test_an_expression_of_thousands_of_operations(seed):
    """An unrolled loop is walked however deep it is."""
    x, out = random("float32", 32, seed, small=True), torch.empty(32)
    long_chain[(1,)](x, out, 32, 1200)
    want = x.double()
    for k in range(1200):
        want = want * 0.5 + k
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


@triton.jit
def last_program(out_ptr):
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(out_ptr, tl.program_id(0))


def test_the_largest_grid():
    out = torch.zeros(1, dtype=torch.int32)
    last_program[(2**31 - 1,)](out)
    assert out.item() == 2**31 - 2


# --- tensor descriptors ----------------------------------------------------------------------------------------------


@triton.jit
def copy_block(source, x_ptr, out_ptr, M, N, PADDING: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    x = source.load([tl.program_id(0) * A, 5])
    target = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [A, B], padding_option=PADDING)
    target.store([tl.program_id(0) * A, 2], x * 2)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors_from_host_and_device(padding, seed):
    descriptor = pytest.importorskip("triton.tools.tensor_descriptor")
    x = random("float32", 40 * 48, seed, small=True).reshape(40, 48)
    try:
        source = descriptor.TensorDescriptor.from_tensor(x, [16, 32], padding=padding)
    except TypeError:
        source = descriptor.TensorDescriptor.from_tensor(x, [16, 32])  # before padding was a choice
    out = torch.full((40, 48), -1.0)
    copy_block[(3,)](source, x, out, 40, 48, padding, 16, 32)
    want = torch.full((40, 48), -1.0)
    want[:, 2:34] = x[:, 5:37] * 2
    assert torch.equal(out, want)


@triton.jit
def outside_kernel(x_ptr, out_ptr, M, N, PADDING: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [8, 16], padding_option=PADDING)
    x = source.load([-2, N - 8])
    tl.store(out_ptr + tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :], x)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptor_padding(padding, seed):
    x, out = random("float32", 20 * 24, seed, small=True).reshape(20, 24), torch.empty(8, 16)
    outside_kernel[(1,)](x, out, 20, 24, padding)
    want = torch.full((8, 16), float("nan") if padding == "nan" else 0.0)
    want[2:, :8] = x[:6, 16:]
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)


@triton.jit
def rows_kernel(x_ptr, out_ptr, i_ptr, M, N, K: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [1, 16])
    rows = tl.load(i_ptr + tl.arange(0, K))
    x = source.gather(rows, 4)
    target = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [1, 16])
    target.scatter(x + 1, rows, 0)
    block = tl.make_tensor_descriptor(out_ptr + M * N, [M, N], [N, 1], [8, 16])
    block.atomic_add([0, 0], tl.full((8, 16), 2.0, tl.float32))
    block.atomic_add([4, 8], tl.full((8, 16), 3.0, tl.float32))


def test_descriptor_gather_scatter_reduce(seed):
    x = random("float32", 20 * 24, seed, small=True).reshape(20, 24)
    rows = torch.randperm(20, generator=torch.Generator().manual_seed(seed))[:8].int()
    out = torch.zeros(2, 20, 24)
    rows_kernel[(1,)](x, out, rows, 20, 24, 8)
    want = torch.zeros(2, 20, 24)
    want[0, rows.long(), :16] = x[rows.long(), 4:20] + 1
    want[1, :8, :16] += 2
    want[1, 4:12, 8:24] += 3
    assert torch.equal(out, want)


@triton.jit
def block_pointer_kernel(x_ptr, out_ptr, M, N, A: tl.constexpr, B: tl.constexpr):
    x = tl.make_block_ptr(x_ptr, (M, N), (N, 1), (tl.program_id(0) * A, 0), (A, B), (1, 0))
    out = tl.make_block_ptr(out_ptr, (M, N), (N, 1), (tl.program_id(0) * A, 0), (A, B), (1, 0))
    for _ in range(0, N, B):
        tl.store(out, tl.load(x, boundary_check=(0, 1), padding_option="zero") * 2, boundary_check=(0, 1))
        x = tl.advance(x, (0, B))
        out = tl.advance(out, (0, B))


@pytest.mark.skipif(triton.__version__ >= "3.9", reason="Triton 3.9 has no block pointers")
def test_block_pointers(seed):
    x, out = random("float32", 20 * 50, seed, small=True).reshape(20, 50), torch.empty(20, 50)
    block_pointer_kernel[(3,)](x, out, 20, 50, 8, 16)
    assert torch.equal(out, x * 2)


# --- prints and assertions -------------------------------------------------------------------------------------------

PRINTS = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.device_print("x", x)
    tl.device_print("pair", i, n)
    tl.device_print("100% done")
    tl.device_print("hex", n, hex=True)
    tl.device_print("grid", x.to(tl.int32)[:, None] - i[None, :])

kernel[(1,)](torch.tensor([1.0, 2.5]), 255, 2)
"""


def test_device_print(tmp_path):
    path = tmp_path / "prints.py"
    path.write_text(PRINTS)
    env = dict(os.environ, TRITON_CACHE_DIR=str(tmp_path / "cache"), CUDA_VISIBLE_DEVICES="")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=env, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    p = "pid (0, 0, 0)"
    assert done.stdout.splitlines() == [
        f"{p} idx (0) x: 1.000000", f"{p} idx (1) x: 2.500000", f"{p} idx (0) pair: (operand 0) 0",
        f"{p} idx (1) pair: (operand 0) 1", f"{p} idx () pair: (operand 1) 255", f"{p} 100% done",
        f"{p} idx () hex: 0x000000ff", f"{p} idx (0, 0) grid: 1", f"{p} idx (0, 1) grid: 0", f"{p} idx (1, 0) grid: 2",
        f"{p} idx (1, 1) grid: 1"]


@triton.jit(debug=True)
def assert_kernel(x_ptr, limit, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(1) * N + i)
    tl.device_assert(x < limit, "größer als erlaubt: x – 数")
    tl.store(x_ptr + tl.program_id(1) * N + i, x + 1)


def test_device_assert():
    x = torch.arange(64.0)
    assert_kernel[(1, 4)](x, 100, 16)
    assert torch.equal(x, torch.arange(64.0) + 1)
    line = assert_kernel.starting_line_number + 4
    with pytest.raises(Error, match=rf"test_control.py:{line} in program \(0, 3, 0\): größer als erlaubt: x – 数"):
        assert_kernel[(1, 4)](x, 60, 16)
    assert x[63] == 64, "the program stops where the assertion fails"
    assert_kernel[(1, 4)](x, 100, 16)  # and the next launch is none the worse


@triton.jit
def unchecked_kernel(x_ptr, N: tl.constexpr):
    tl.device_assert(tl.load(x_ptr + tl.arange(0, N)) < 0)
    tl.static_assert(N == 16)


def test_assertions_cost_nothing_without_debug():
    unchecked_kernel[(1,)](torch.ones(16), 16)


# --- kernels that are written for a whole machine ----------------------------------------------------------------------


@triton.jit
def persistent_kernel(x_ptr, out_ptr, rows, N: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        i = tl.arange(0, N)
        x = tl.load(x_ptr + row * N + i)
        tl.store(out_ptr + row * N + i, tl.exp(x - tl.max(x, 0)))


def test_occupancy_can_be_counted(seed):
    """Registers, shared memory and multiprocessors have the keys, and values that can be divided by."""
    driver = triton.runtime.driver.active if triton.runtime.driver.active.get_current_target().backend == "cpu" else None
    if driver is None:
        from triport.backends.cpu.driver import CPUDriver
        driver = CPUDriver()
    properties = driver.utils.get_device_properties(None)
    x, out = random("float32", 100 * 64, seed, small=True).reshape(100, 64), torch.empty(100, 64)
    compiled = persistent_kernel.warmup(x, out, 100, 64, grid=(1,), num_warps=8)
    compiled._init_handles()
    occupancy = properties["max_num_regs"] // (compiled.n_regs * properties["warpSize"] * 8)
    occupancy = min(occupancy, properties["max_shared_mem"] // compiled.metadata.shared)
    programs = min(properties["multiprocessor_count"] * occupancy, 100)
    assert programs > 0
    persistent_kernel[(programs,)](x, out, 100, 64)
    torch.testing.assert_close(out, (x - x.amax(1, keepdim=True)).exp())


@triton.jit
def grouped_kernel(a_table, b_table, c_table, sizes_ptr, groups, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    last = 0
    for g in range(groups):
        m, n, k = tl.load(sizes_ptr + g * 3), tl.load(sizes_ptr + g * 3 + 1), tl.load(sizes_ptr + g * 3 + 2)
        columns = tl.cdiv(n, BLOCK)
        tiles = tl.cdiv(m, BLOCK) * columns
        while tile >= last and tile < last + tiles:
            a = tl.load(a_table + g).to(tl.pointer_type(tl.float16))
            b = tl.load(b_table + g).to(tl.pointer_type(tl.float16))
            c = tl.load(c_table + g).to(tl.pointer_type(tl.float16))
            rm = (tile - last) // columns * BLOCK + tl.arange(0, BLOCK)
            rn = (tile - last) % columns * BLOCK + tl.arange(0, BLOCK)
            rk = tl.arange(0, BLOCK)
            acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
            for kk in range(0, tl.cdiv(k, BLOCK)):
                x = tl.load(a + rm[:, None] * k + rk[None, :], mask=(rm[:, None] < m) & (rk[None, :] < k), other=0.0)
                y = tl.load(b + rk[:, None] * n + rn[None, :], mask=(rk[:, None] < k) & (rn[None, :] < n), other=0.0)
                acc += tl.dot(x, y)
                rk += BLOCK
            tl.store(c + rm[:, None] * n + rn[None, :], acc.to(tl.float16), mask=(rm[:, None] < m) & (rn[None, :] < n))
            tile += PROGRAMS
        last += tiles


def test_grouped_matrix_products(seed):
    """Pointers out of tables, tiles of several sizes shared out in a loop that carries its own position."""
    g = torch.Generator().manual_seed(seed)
    sizes = [(64, 48, 32), (33, 70, 65), (16, 16, 128)]
    a = [torch.randn(m, k, generator=g).half() for m, n, k in sizes]
    b = [torch.randn(k, n, generator=g).half() for m, n, k in sizes]
    c = [torch.zeros(m, n).half() for m, n, k in sizes]
    tables = [torch.tensor([t.data_ptr() for t in ts]) for ts in (a, b, c)]
    grouped_kernel[(3,)](*tables, torch.tensor(sizes, dtype=torch.int32), 3, 3, 32)
    for x, y, z in zip(a, b, c):
        torch.testing.assert_close(z.double(), x.double() @ y.double(), rtol=2e-3, atol=2e-2)


@triton.jit
def locked_sum_kernel(x_ptr, out_ptr, lock_ptr, rows, N: tl.constexpr, GROUPS: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + i)
    group = row % GROUPS
    lock, count = lock_ptr + group, lock_ptr + GROUPS + group
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        x += tl.load(out_ptr + group * N + i)
    tl.store(out_ptr + group * N + i, x)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def test_partial_sums_behind_locks(seed):
    x = torch.randint(-9, 10, (300, 64), generator=torch.Generator().manual_seed(seed)).float()
    out, locks = torch.full((4, 64), float("nan")), torch.zeros(8, dtype=torch.int32)
    locked_sum_kernel[(300,)](x, out, locks, 300, 64, 4)
    assert torch.equal(out, torch.stack([x[g::4].sum(0) for g in range(4)]))


# --- hooks and dumps -------------------------------------------------------------------------------------------------


@triton.jit
def plain_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i) + 1)


def test_compile_from_source_and_from_ttir(tmp_path):
    source = triton.compiler.ASTSource(plain_kernel, {"x_ptr": "*fp32", "out_ptr": "*fp32", "N": "constexpr"}, {(2,): 64})
    first = triton.compile(source, target=GPUTarget("cpu", "native", 0))
    assert set(first.asm) >= {"ttir", "llir", "asm", "obj"}
    path = tmp_path / "kernel.ttir"
    path.write_text(str(first.asm["ttir"]))
    again = triton.compile(str(path), target=GPUTarget("cpu", "native", 0))
    x, out = torch.ones(64), torch.zeros(64)
    again[(1, 1, 1)](x, out)
    assert torch.equal(out, x + 1)


def test_warmup_compiles_without_running():
    compiled = plain_kernel.warmup(torch.float32, torch.float32, N=32, grid=(1,))
    assert "plain_kernel" in compiled.asm["asm"]


def test_launch_hooks():
    from triton import knobs
    seen = []
    enter, leave = (lambda m: seen.append(m.get()["name"])), (lambda m: seen.append("out"))
    knobs.runtime.launch_enter_hook.add(enter)
    knobs.runtime.launch_exit_hook.add(leave)
    try:
        plain_kernel[(1,)](torch.ones(16), torch.zeros(16), 16)
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
        knobs.runtime.launch_exit_hook.remove(leave)
    assert seen == ["plain_kernel", "out"]


def test_dump_and_always_compile(tmp_path):
    """TRITON_KERNEL_DUMP writes every stage; TRITON_ALWAYS_COMPILE leaves the cache alone."""
    path = tmp_path / "dump.py"
    path.write_text(textwrap.dedent("""
        import torch, triton, triton.language as tl

        @triton.jit
        def dumped(x_ptr, N: tl.constexpr):
            i = tl.arange(0, N)
            tl.store(x_ptr + i, i)

        x = torch.zeros(16)
        dumped[(1,)](x, 16)
        assert x[15] == 15
    """))
    env = dict(os.environ, TRITON_CACHE_DIR=str(tmp_path / "cache"), TRITON_KERNEL_DUMP="1", TRITON_ALWAYS_COMPILE="1",
               TRITON_DUMP_DIR=str(tmp_path / "dumps"), CUDA_VISIBLE_DEVICES="")
    subprocess.run([sys.executable, str(path)], check=True, env=env, timeout=HANGS)
    assert {p.suffix for p in (tmp_path / "dumps").rglob("dumped.*")} >= {".ttir", ".llir", ".asm", ".obj"}


@triton.autotune(configs=[triton.Config({"BLOCK": b}, num_warps=w) for b in (16, 64) for w in (1, 4)], key=["n"],
                 reset_to_zero=["total_ptr"], restore_value=["x_ptr"],
                 prune_configs_by={"early_config_prune": lambda configs, *a, **k: configs[1:]})
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_kernel(x_ptr, total_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (i < n) | EVEN
    x = tl.load(x_ptr + i, mask=mask, other=0.0)
    tl.atomic_add(total_ptr, tl.sum(x))
    tl.store(x_ptr + i, x + 1, mask=mask)


def test_autotune_restores_and_resets():
    x, total = torch.arange(100.0), torch.zeros(1)
    tuned_kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, total, 100)
    assert torch.equal(x, torch.arange(100.0) + 1) and total.item() == 4950


# --- refusals --------------------------------------------------------------------------------------------------------


@triton.jit
def ptx_kernel(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.inline_asm_elementwise("shf.l.wrap.b32 $0, $1, $2, 7;", "=r,r,r", [i, i], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(x_ptr + i, y)


def test_a_ptx_program_is_refused_by_name():
    with pytest.raises(CompileError) as e:
        ptx_kernel[(1,)](torch.zeros(16, dtype=torch.int32), 16)
    text = str(e.value)
    assert "shf.l.wrap.b32" in text and f"test_control.py:{ptx_kernel.starting_line_number + 3}" in text
    assert "target native" in text and "tanh.approx.f32" in text


@triton.jit
def asm_of(x_ptr, out_ptr, TEXT: tl.constexpr, PACK: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.inline_asm_elementwise(TEXT, "=r,r", [tl.load(x_ptr + i)], dtype=out_ptr.dtype.element_ty, is_pure=True, pack=PACK)
    tl.store(out_ptr + i, y)


@pytest.mark.parametrize("text,dtype,out,pack,said", [
    ("mov.b32 $0, $1;", torch.float32, torch.float32, 1, "operands and results of f32, and it is taken of i32 alone"),
    ("popc.b32 $0, $1;", torch.int32, torch.int64, 1, "operands and results of i32 and i64, and it is taken of i32 alone"),
    ("ex2.approx.ftz.f32 $0, $1;", torch.float32, torch.float32, 2, r"\$1 has no value where it is used"),
    ("ex2.approx.ftz.f32 $0, $2;", torch.float32, torch.float32, 2, r"it gives \$1 no value"),
    ("ex2.approx.ftz.f32 $0, $2; lg2.approx.f32 $1, $3;", torch.float32, torch.float32, 2, "not each of its pack=2 elements is made in one way"),
    ("mov.f32 $0, $3; mov.f32 $1, $2;", torch.float32, torch.float32, 2, "with pack=2 an element of its result is made of others than its own"),
    ("mov.b32 $0, $1;", torch.uint8, torch.uint8, 4, "registers of several elements are taken where `mov` takes them apart"),
    ("{ .reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, $1; mov.b32 $0, {b, a, c, d}; }", torch.uint8, torch.uint8, 4, "is made of others than its own"),
    ("{ .reg .b8 a, b; mov.b16 {a, b}, $1; mov.b16 $0, {a, b}; }", torch.uint8, torch.uint8, 2, "where they fill registers of 32 bits"),
    ("{ .reg .b16 a, b, c; mov.b32 {a, b, c}, $1; mov.b32 $0, {a, b}; }", torch.int32, torch.int32, 1, "is not taken"),
    ("{ .reg .f32 a; ex2.approx.ftz.f32 a, $1; shf.l.wrap.b32 $0, $1, $2, 7; }", torch.float32, torch.float32, 4, "and 'shf.l.wrap.b32 ")])
def test_an_instruction_of_ours_in_another_form_is_told_why_not(text, dtype, out, pack, said):
    with pytest.raises(CompileError, match=said):
        asm_of[(1,)](torch.zeros(16, dtype=dtype), torch.zeros(16, dtype=out), text, pack, 16)


@triton.jit
def approximations(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + i, y)
    y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + N + i, y)
    y = tl.inline_asm_elementwise("{ rsqrt.approx.f32 $0, $1; }", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + 2 * N + i, y)
    y = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + 3 * N + i, y)
    y = tl.inline_asm_elementwise("div.full.f32 $0, $1, $2;", "=f,f,f", [x, x + 1], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + 4 * N + i, y)


def test_the_ptx_one_liners(seed):
    x, out = random("float32", 64, seed, small=True).abs() + 0.1, torch.empty(5, 64)
    approximations[(1,)](x, out, 64)
    v = x.double()
    want = torch.stack([v.tanh(), v.exp2(), v.rsqrt(), v.log2(), v / (v + 1)])
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


@triton.jit
def one_instruction(x_ptr, y_ptr, out_ptr, TEXT: tl.constexpr, REGS: tl.constexpr, TWO: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if TWO:
        out = tl.inline_asm_elementwise(TEXT, REGS, [tl.load(x_ptr + i), tl.load(y_ptr + i)], dtype=out_ptr.dtype.element_ty, is_pure=True, pack=1)
    else:
        out = tl.inline_asm_elementwise(TEXT, REGS, [tl.load(x_ptr + i)], dtype=out_ptr.dtype.element_ty, is_pure=True, pack=1)
    tl.store(out_ptr + i, out)


def unsigned(x):
    return x.long() & 0xFFFFFFFF


#: 32-bit integer instruction -> what it computes of int32, before its low 32 bits are taken
INTEGERS = {"mov.u32": lambda x: x, "mov.b32": lambda x: x, "not.b32": lambda x: ~x, "neg.s32": lambda x: -x.long(), "and.b32": lambda x, y: x & y,
            "or.b32": lambda x, y: x | y, "xor.b32": lambda x, y: x ^ y, "add.u32": lambda x, y: x.long() + y, "sub.s32": lambda x, y: x.long() - y,
            "mul.lo.s32": lambda x, y: x.long() * y, "max.s32": torch.maximum, "min.u32": lambda x, y: torch.minimum(unsigned(x), unsigned(y)),
            "max.u32": lambda x, y: torch.maximum(unsigned(x), unsigned(y)),
            "abs.s32": lambda x: x.long().abs(), "shr.b32": lambda x, y: torch.where(unsigned(y) > 31, 0, unsigned(x) >> (y & 31).long()), "shl.b32": lambda x, y: torch.where(unsigned(y) > 31, 0, x.long() << (y & 31).long()),
            "shr.u32": lambda x, y: torch.where(unsigned(y) > 31, 0, unsigned(x) >> (y & 31).long()), "shr.s32": lambda x, y: x >> torch.where(unsigned(y) > 31, 31, y),
            "popc.b32": lambda x: torch.tensor([bin(v & 0xFFFFFFFF).count("1") for v in x.tolist()])}


@pytest.mark.parametrize("name", INTEGERS)
def test_a_ptx_instruction_of_integers(name, seed):
    torch.manual_seed(seed)
    x, y, out = *torch.randint(-2**31, 2**31, (2, 64)).to(torch.int32), torch.zeros(64, dtype=torch.int32)
    two = name not in ("mov.u32", "mov.b32", "not.b32", "neg.s32", "abs.s32", "popc.b32")
    if name[:2] == "sh":
        y[:48] = torch.arange(48)  # 32 and more are 32
    one_instruction[(1,)](x, y, out, f"{name} $0, $1{', $2' * two};", "=r,r" + ",r" * two, two, 64)
    assert torch.equal(out, INTEGERS[name](*(x, y)[:1 + two]).long().to(torch.int32))


@triton.jit
def three_of_them(x_ptr, y_ptr, z_ptr, out_ptr, TEXT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.inline_asm_elementwise(TEXT, "=r,r,r,r", [tl.load(x_ptr + i), tl.load(y_ptr + i), tl.load(z_ptr + i)], dtype=tl.int32, is_pure=True, pack=1))


def permuted(x, y, selectors):
    """prmt as PTX defines it, byte by byte."""
    out = []
    for a, b, s in zip(x.tolist(), y.tolist(), selectors):
        eight, word = (a & 0xFFFFFFFF) | (b & 0xFFFFFFFF) << 32, 0
        for k in range(4):
            nibble = s >> 4 * k & 15
            byte = eight >> 8 * (nibble & 7) & 255
            word |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * k
        out.append(word - (word >> 31 << 32))
    return torch.tensor(out, dtype=torch.int32)


@pytest.mark.parametrize("selector", [0x0123, 0x7654, 0x3210, 0xFEDC, 0x8040, 0x5410, 0x9D2B])
def test_bytes_are_permuted(selector, seed):
    torch.manual_seed(seed)
    x, y, out = *torch.randint(-2**31, 2**31, (2, 64)).to(torch.int32), torch.zeros(64, dtype=torch.int32)
    three_of_them[(1,)](x, y, x, out, f"prmt.b32 $0, $1, $2, {selector:#x};", 64)
    assert torch.equal(out, permuted(x, y, [selector] * 64))


def test_bytes_are_permuted_by_a_register(seed):
    torch.manual_seed(seed)
    x, y, z, out = *torch.randint(-2**31, 2**31, (3, 64)).to(torch.int32), torch.zeros(64, dtype=torch.int32)
    three_of_them[(1,)](x, y, z, out, "prmt.b32 $0, $1, $2, $3;", 64)
    assert torch.equal(out, permuted(x, y, [v & 0xFFFF for v in z.tolist()]))


@pytest.mark.parametrize("table", [0x80, 0x96, 0xEA, 0xFE, 0xCA, 0x1B, 0x00, 0xFF, 0xF0, 0xCC, 0xAA])
def test_any_logic_of_three(table, seed):
    torch.manual_seed(seed)
    x, y, z, out = *torch.randint(-2**31, 2**31, (3, 64)).to(torch.int32), torch.zeros(64, dtype=torch.int32)
    three_of_them[(1,)](x, y, z, out, f"lop3.b32 $0, $1, $2, $3, {table:#x};", 64)
    bits = torch.arange(32)
    at = 4 * (x[:, None] >> bits & 1) + 2 * (y[:, None] >> bits & 1) + (z[:, None] >> bits & 1)
    want = ((torch.tensor(table) >> at & 1).long() << bits).sum(1)
    assert torch.equal(out.long() & 0xFFFFFFFF, want)


def test_a_product_and_a_sum_of_integers(seed):
    torch.manual_seed(seed)
    x, y, z, out = *torch.randint(-2**31, 2**31, (3, 64)).to(torch.int32), torch.zeros(64, dtype=torch.int32)
    three_of_them[(1,)](x, y, z, out, "mad.lo.s32 $0, $1, $2, $3;", 64)
    assert torch.equal(out, x * y + z)


@triton.jit
def several_results(x_ptr, bytes_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c = tl.inline_asm_elementwise("""{
        // $3 is what it is given /* as FBGEMM's packing of rows is */
        .reg .b32 input; /* one
        register */ mov.b32 input, $3;
        mov.b32 $0, input;
        shr.b32 $1, $3, 8; // the next byte
        xor.b32 $2, input, -1;
    }""", "=r,=r,=r,r", [tl.load(x_ptr + i)], dtype=(tl.uint8, tl.uint8, tl.int32), is_pure=True, pack=1)
    tl.store(bytes_ptr + i, a)
    tl.store(bytes_ptr + N + i, b)
    tl.store(out_ptr + i, c)


def test_several_results_of_types_of_their_own(seed):
    """Bytes are the lowest of a register of 32 bits; comments are none of it."""
    torch.manual_seed(seed)
    x, found, out = torch.randint(-2**31, 2**31, (64,)).to(torch.int32), torch.zeros(128, dtype=torch.uint8), torch.zeros(64, dtype=torch.int32)
    several_results[(1,)](x, found, out, 64)
    assert torch.equal(found, torch.cat([x & 255, x >> 8 & 255]).to(torch.uint8)) and torch.equal(out, ~x)


@triton.jit
def several_packed(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.inline_asm_elementwise("{ ex2.approx.ftz.f32 $0, $4; lg2.approx.f32 $2, $4; ex2.approx.ftz.f32 $1, $5; lg2.approx.f32 $3, $5; }", "=f,=f,=f,=f,f,f", [tl.load(x_ptr + i)],
                                     dtype=(tl.float32, tl.float32), is_pure=True, pack=2)
    tl.store(out_ptr + i, a)
    tl.store(out_ptr + N + i, b)


def test_several_results_of_a_pack(seed):
    x, out = random("float32", 64, seed, small=True).abs() + 0.1, torch.empty(2, 64)
    several_packed[(1,)](x, out, 64)
    torch.testing.assert_close(out.double(), torch.stack([x.double().exp2(), x.double().log2()]), rtol=1e-6, atol=1e-6)


@triton.jit
def after_a_barrier(x_ptr, out_ptr, TEXT: tl.constexpr, READ: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x)
    nothing = tl.inline_asm_elementwise(TEXT, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(out_ptr + i, tl.load(out_ptr + (i ^ 1)) + x + (nothing if READ else 0))


@pytest.mark.parametrize("text", ["bar.sync 0;", "bar.sync 1, 128;", "barrier.sync 0;", "barrier.cta.sync.aligned 0;", "membar.cta;", "fence.acq_rel.cta; bar.sync 0;"])
def test_what_orders_memory_between_threads_is_nothing_to_one(text, seed):
    torch.manual_seed(seed)
    x, out = torch.randint(-2**30, 2**30, (64,)).to(torch.int32), torch.zeros(64, dtype=torch.int32)
    after_a_barrier[(1,)](x, out, text, False, 64)
    assert torch.equal(out, x.view(-1, 2).flip(1).reshape(-1) + x)
    with pytest.raises(CompileError, match=r"it gives \$0 no value"):
        after_a_barrier[(1,)](x, out, text, True, 64)


@pytest.mark.parametrize("text", ["membar.gl;", "membar.sys;", "fence.acq_rel.gpu;", "fence.sc.sys; bar.sync 0;"])
def test_what_orders_memory_between_programs_is_refused(text):
    with pytest.raises(CompileError, match="is not taken"):
        after_a_barrier[(1,)](torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32), text, False, 64)


@triton.jit
def two_bytes(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    both = tl.inline_asm_elementwise("cvt.rn.satfinite.e4m3x2.f32 $0, $1, $2;", "=h,f,f", [tl.load(x_ptr + i), tl.load(y_ptr + i)], dtype=tl.int16, is_pure=True, pack=1)
    tl.store(out_ptr + i, both)


def test_two_numbers_of_eight_bits(seed):
    """The first is the higher one; what is larger than any is the largest, and NaN stays that."""
    torch.manual_seed(seed)
    x, y, out = *torch.randn(2, 64) * 100, torch.zeros(64, dtype=torch.int16)
    x[:8] = torch.tensor([0.0, -0.0, 448, 464, 1e9, -float("inf"), 2**-10, 2**-9])
    y[8] = float("nan")
    two_bytes[(1,)](x, y, out, 64)
    byte = lambda v: v.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).int()  # noqa: E731
    assert torch.equal(out.int() & 0xFFFF, byte(x) << 8 | byte(y))


def test_a_move_of_floats_and_a_result_of_another_type(seed):
    x, out = random("float32", 64, seed), torch.empty(64)
    one_instruction[(1,)](x, x, out, "mov.f32 $0, $1;", "=f,f", False, 64)
    assert torch.equal(out.view(torch.int32), x.view(torch.int32)), "bit by bit"
    with pytest.raises(CompileError, match="mov.f32"):
        one_instruction[(1,)](x, x, out.int(), "mov.f32 $0, $1;", "=r,f", False, 64)


@triton.jit
def one_of_one(x_ptr, out_ptr, TEXT: tl.constexpr, REGS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.inline_asm_elementwise(TEXT, REGS, [tl.load(x_ptr + i)], dtype=out_ptr.dtype.element_ty, is_pure=True, pack=1))


def half_bits(x):
    return x.half().view(torch.int16)


#: PTX of one operand -> (registers, the operand's dtype, the result's, what it computes)
PROGRAMS = {
    "mul.f32 $0, $1, $1;": ("=f,f", "f", torch.float32, lambda x: x * x),
    "fma.rn.f32 $0, $1, 2.5, 0f3F800000;": ("=f,f", "f", torch.float32, lambda x: (x.double() * 2.5 + 1).float()),
    "add.f32 $0, -1.5, $1;": ("=f,f", "f", torch.float32, lambda x: x - 1.5),
    "and.b32 $0, $1, 15;": ("=r,r", "i", torch.int32, lambda x: x & 15),
    "xor.b32 $0, $1, 0xFFFFFFFF;": ("=r,r", "i", torch.int32, lambda x: ~x),
    "add.s32 $0, $1, -7;": ("=r,r", "i", torch.int32, lambda x: x - 7),
    "{ .reg .f32 t, u; mul.f32 t, $1, $1; add.f32 u, t, 1.0; mul.f32 $0, u, t; }": ("=f,f", "f", torch.float32, lambda x: (x * x + 1) * (x * x)),
    "{ .reg .f32 r0, e2; mul.f32 r0, $1, $1; sub.ftz.f32 e2, 0f80000000, r0; fma.rn.f32 $0, r0, 0f40000000, e2; }": ("=f,f", "f", torch.float32, lambda x: x * x),
    "cvt.rzi.s32.f32 $0, $1;": ("=r,f", "f", torch.int32, lambda x: x.trunc().int()),
    "cvt.rni.s32.f32 $0, $1;": ("=r,f", "f", torch.int32, lambda x: x.round().int()),
    "cvt.rmi.s32.f32 $0, $1;": ("=r,f", "f", torch.int32, lambda x: x.floor().int()),
    "cvt.rpi.s32.f32 $0, $1;": ("=r,f", "f", torch.int32, lambda x: x.ceil().int()),
    "cvt.rn.f32.s32 $0, $1;": ("=f,r", "i", torch.float32, lambda x: x.float()),
    "cvt.rn.bf16.f32 $0, $1;": ("=h,f", "f", torch.int16, lambda x: x.bfloat16().view(torch.int16)),
    "cvt.rn.f16.f32 $0, $1;": ("=h,f", "f", torch.int16, half_bits),
    "{ .reg .b16 t; cvt.rn.bf16.f32 t, $1; cvt.u32.u16 $0, t; }": ("=r,f", "f", torch.int32, lambda x: x.bfloat16().view(torch.int16).int() & 0xFFFF),
}


def e2m1(x):
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, of two the one with an even number, and the sign."""
    sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    apart = (x.abs().clamp(max=6)[:, None] - sizes).abs()
    nearest = apart == apart.min(1, keepdim=True).values
    even = torch.where(nearest, torch.tensor([0.0, 1, 0, 1, 0, 1, 0, 1]), 2.0).argmin(1)
    return even + 8 * x.signbit()


#: PTX that takes a pack of elements -> (pack, its operands' dtype, the result's, what it computes of two)
PACKS = {
    """{
        .reg .b8 byte0, byte1, byte2, byte3;
        cvt.rn.satfinite.e2m1x2.f32 byte0, $5, $1;
        cvt.rn.satfinite.e2m1x2.f32 byte1, $6, $2;
        cvt.rn.satfinite.e2m1x2.f32 byte2, $7, $3;
        cvt.rn.satfinite.e2m1x2.f32 byte3, $8, $4;
        mov.b32 $0, {byte0, byte1, byte2, byte3};
    }""": (4, torch.float32, torch.uint8, lambda x, y: e2m1(y) * 16 + e2m1(x)),
    "{ .reg .f32 t; add.f32 t, $2, $4; mul.f32 $0, t, 0.5; add.f32 t, $3, $5; mul.f32 $1, t, 0.5; }": (2, torch.float32, torch.float32, lambda x, y: (x + y) * 0.5),
    "{ .reg .b8 a, b, c, d, e, f, g, h; .reg .u32 s, t; mov.b32 {a, b, c, d}, $4; mov.b32 {e, f, g, h}, $5; cvt.u32.u8 s, a; cvt.u32.u8 t, e; sub.u32 $0, s, t; cvt.u32.u8 s, b; cvt.u32.u8 t, f;"
    " sub.u32 $1, s, t; cvt.u32.u8 s, c; cvt.u32.u8 t, g; sub.u32 $2, s, t; cvt.u32.u8 s, d; cvt.u32.u8 t, h; sub.u32 $3, s, t; }": (
        4, torch.uint8, torch.int32, lambda x, y: x.int() - y.int()),
    "{ .reg .b16 a, b, c, d; .reg .f32 s, t; mov.b32 {a, b}, $1; mov.b32 {c, d}, $2; cvt.f32.f16 s, a; cvt.f32.f16 t, c; add.f32 s, s, t; cvt.rn.f16.f32 a, s; cvt.f32.f16 s, b; cvt.f32.f16 t, d;"
    " add.f32 s, s, t; cvt.rn.f16.f32 b, s; mov.b32 $0, {a, b}; }": (2, torch.float16, torch.float16, lambda x, y: x + y),
    "{ .reg .b16 low, high; mov.b32 {low, high}, $1; mov.b32 $0, {high, low}; }": (1, torch.int32, torch.int32, lambda x, y: (x << 16) | (x >> 16 & 0xFFFF)),
    "{ lg2.approx.f32 $1, $1; cvt.rpi.f32.f32 $1, $1; cvt.rzi.s32.f32 $0, $1; }": (1, torch.float32, torch.int32, lambda x, y: x.log2().ceil().nan_to_num(0, 2**31 - 1, -2**31).int()),
}


@triton.jit
def packed(x_ptr, y_ptr, out_ptr, n, TEXT: tl.constexpr, REGS: tl.constexpr, PACK: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    out = tl.inline_asm_elementwise(TEXT, REGS, [tl.load(x_ptr + i, mask=i < n), tl.load(y_ptr + i, mask=i < n)], dtype=out_ptr.dtype.element_ty, is_pure=True, pack=PACK)
    tl.store(out_ptr + i, out, mask=i < n)


@pytest.mark.parametrize("n", [64, 61, 3])
@pytest.mark.parametrize("text", PACKS)
def test_ptx_of_several_elements(text, n, seed):
    """Where each element of the result is made of its own alone, and all in one way: of any number of them."""
    pack, dtype, result, computes = PACKS[text]
    torch.manual_seed(seed)
    x, y = (torch.randn(2, 64) * 3 if dtype.is_floating_point else torch.randint(0, 200 if dtype == torch.uint8 else 1 << 30, (2, 64))).to(dtype)
    if dtype == torch.float32:
        x[:8] = torch.tensor([0.25, 0.75, -1.25, 2.5, 5.0, 100.0, -0.0, 3.5])
    if "lg2" in text:
        x = x.abs() + 0.3
    out = torch.full((64,), 7, dtype=result)
    packed[(1,)](x, y, out, n, text, "=r,r,r", pack, 64)
    torch.testing.assert_close(out[:n], computes(x, y)[:n].to(result), rtol=1e-6 if result == torch.float32 else 0, atol=0)
    assert (out[n:] == 7).all()


@pytest.mark.parametrize("text", PROGRAMS)
def test_ptx_with_numbers_and_registers_of_its_own(text, seed):
    registers, kind, dtype, computes = PROGRAMS[text]
    torch.manual_seed(seed)
    x = torch.randn(64) * 100 if kind == "f" else torch.randint(-2**31, 2**31, (64,)).to(torch.int32)
    x[:4] = torch.tensor([0.5, -1.5, 2.5, -0.0]) if kind == "f" else torch.tensor([0, -1, 2**31 - 1, -2**31])
    out = torch.zeros(64, dtype=dtype)
    one_of_one[(1,)](x, out, text, registers, 64)
    torch.testing.assert_close(out, computes(x), rtol=1e-6 if dtype == torch.float32 else 0, atol=0)


def test_ptx_of_integers_beyond_what_there_is():
    x, out = torch.tensor([3e9, -3e9, float("inf"), float("nan")]), torch.zeros(4, dtype=torch.int32)
    one_of_one[(1,)](x, out, "cvt.rzi.s32.f32 $0, $1;", "=r,f", 4)
    assert out.tolist() == [2**31 - 1, -2**31, 2**31 - 1, 0]


def test_ptx_that_makes_four_bits_of_floats():
    """NVFP4's: the nearest of eight numbers, ties to even, two to a byte, the first operand above."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    middles = (values[1:] + values[:-1]) / 2
    x = torch.cat([values, middles, middles + 1e-6, middles - 1e-6, torch.tensor([7.0, 1e30, float("inf")])])
    x = torch.cat([x, -x, torch.tensor([float("nan"), 0.1])])
    x = torch.cat([x, torch.zeros(128 - len(x))])
    code = torch.tensor([min(range(8), key=lambda k: (abs(float(values[k]) - abs(float(v))), k % 2)) if v == v else 7 for v in x.clamp(-6, 6)])
    code += torch.where(x.signbit() & ~x.isnan(), 8, 0)
    low = x.flip(0).contiguous()
    out = torch.zeros(128, dtype=torch.int32)
    one_instruction[(1,)](x, low, out, "{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, $1, $2; cvt.u32.u8 $0, t; }", "=r,f,f", True, 128)
    assert torch.equal(out, (code * 16 + code.flip(0)).int())


@pytest.mark.parametrize("text", ["mul.f32 t, $1, $1; mov.f32 $0, t;", "mul.f32 $0, $1;", "mul.f32 $0, $1, $2;", "mul.f32 $1, $1, $1;", "mul.f32 $0, $1, 1e;", "{ .reg .f64 t; mov.f32 $0, $1; }",
                                  "and.b32 $0, $1, 4294967296;", "{ .reg .f32 t; mul.f32 $0, t, $1; }", "", "mov.f32", "@p mov.f32 $0, $1;", "mul.f32 $0, $1, $1, $1;", "{ mov.f32 $0, $1;"])
def test_ptx_that_is_none_of_ours(text):
    with pytest.raises(CompileError, match="inline assembly"):
        one_of_one[(1,)](torch.zeros(16), torch.zeros(16), text, "=f,f", 16)


def test_what_of_ptx_is_not_taken_is_named():
    for text, why in (("add.f32 $0, $1, $1; shf.l.wrap.b32 $0, $0, $0, 7;", "'shf.l.wrap.b32 $0, $0, $0, 7' is not taken"), ("mul.f32 $1, $1, $1;", "it gives $0 no value"), ("mul.f32 $2, $1, $1;", "'mul.f32 $2, $1, $1' is not taken"),
                      ("{ .reg .f32 t; mul.f32 $0, t, $1; }", "t has no value where it is used"), ("mul.f32 $0, $1, 1e;", "'1e' is no operand of type f32"),
                      ("{ .reg .f32 t1; mov.f32 t1, $1; }", "it gives $0 no value")):
        with pytest.raises(CompileError, match=re.escape(why)):
            one_of_one[(1,)](torch.zeros(16), torch.zeros(16), text, "=f,f", 16)


@triton.jit
def branch_scratch_kernel(x_ptr, out_ptr, k, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    turned = tl.trans(tl.reshape(x, (N, M)))
    if k > 0:
        y = x - turned
    else:
        y = x + 1
    tl.store(out_ptr + i, y)
    tl.store(out_ptr + M * N + i, tl.maximum(x, turned))


@pytest.mark.parametrize("k", [0, 2])
def test_what_a_branch_puts_into_scratch_is_not_there_on_the_other_path(k, seed):
    x, out = random("float32", 256, seed, small=True).reshape(4, 64), torch.empty(2, 4, 64)
    branch_scratch_kernel[(1,)](x, out, k, 4, 64)
    turned = x.reshape(64, 4).t()
    assert torch.equal(out[0], x - turned if k else x + 1)
    assert torch.equal(out[1], torch.maximum(x, turned))
