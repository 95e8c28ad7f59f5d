"""Kernels compiled for SpacemiT's IME: no CPU here has it, so they run under QEMU around a micro-kernel that LLVM made, which does what `test_ime.py` proves
IME's to do; and the check that keeps a core without it from running into it."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from spine_boards import on
from triport.backends.base import CompileError, Error
from triport.backends.cpu.emit.product import ime
from triport.backends.cpu.llvm import compile as llvm
from triport.backends.cpu.llvm import riscv_words as rv
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.llvm.ir import Module, define, i64
from triport.backends.cpu.run import elf
from triport.backends.spine import bundle, features, machine, runner, user

K1 = "qemu:riscv64?vlen=256"


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, m, n, k, am, ak, bk, bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.int32)
    for start in range(0, k, BK):
        here = start + rk
        a = tl.load(a_ptr + rm[:, None] * am + here[None, :] * ak, mask=(rm[:, None] < m) & (here[None, :] < k), other=0)
        b = tl.load(b_ptr + here[:, None] * bk + rn[None, :] * bn, mask=(here[:, None] < k) & (rn[None, :] < n), other=0)
        acc = tl.dot(a, b, acc)
    tl.store(out_ptr + rm[:, None] * n + rn[None, :], acc, mask=(rm[:, None] < m) & (rn[None, :] < n))


def _product(a, b, rows: int, columns: int, depth: int):
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=torch.int32)
    product_kernel[(triton.cdiv(m, rows), triton.cdiv(n, columns))](a, b, out, m, n, k, *a.stride(), *b.stride(), BM=rows, BN=columns, BK=depth)
    return out


def product(a, b):
    return _product(a, b, 32, 32, 64)


def small_product(a, b):
    return _product(a, b, 4, 8, 8)


def wide_product(a, b):
    return _product(a, b, 8, 64, 16)


def product_of_pieces(a, b):
    return _product(a, b, 64, 64, 32)


def turned_product(a, b):
    return product(a.t(), b.t())


@triton.jit
def computed_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rm, rn, rk = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
    b = tl.load(b_ptr + rk[:, None] * N + rn[None, :])
    first = tl.dot((a // 2 + 1).to(tl.int8), tl.where(b > 0, b, -b // 3).to(tl.int8))
    tl.store(out_ptr + rm[:, None] * N + rn[None, :], tl.dot(a, b, first * 3) - first)


def computed(a, b):
    out = torch.empty((a.shape[0], b.shape[1]), dtype=torch.int32)
    computed_kernel[(1,)](a, b, out, M=16, N=32, K=64)
    return out


@triton.jit
def batch_kernel(a_ptr, b_ptr, out_ptr, P: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    p, rm, rn, rk = tl.arange(0, P)[:, None, None], tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + p * M * K + rm[None, :, None] * K + rk[None, None, :])
    b = tl.load(b_ptr + p * K * N + rk[None, :, None] * N + rn[None, None, :])
    tl.store(out_ptr + p * M * N + rm[None, :, None] * N + rn[None, None, :], tl.dot(a, b))


def batches(a, b):
    out = torch.empty((4, 8, 16), dtype=torch.int32)
    batch_kernel[(1,)](a, b, out, P=4, M=8, N=16, K=32)
    return out


def made_of(function, target: str, a: str = "20,30", b: str = "30,40"):
    return bundle.make(user.calls(function, Path(__file__), sys.modules[__name__], [f"a=int8[{a}], b=int8[{b}]"]), targets.get(target), cases=False)


def plain_kernel(down: int, across: int) -> bytes:
    """What a micro-kernel is to do, as LLVM makes it of scalar IR for the same calling convention."""
    m = Module("plain", targets.get("rv64gc").triple)
    b = define(m, "f", "void", c="ptr", a="ptr", b="ptr", steps="i64", a_step="i64", b_step="i64", offsets="ptr", c_step="i64")
    c, a, cols, steps, a_step, b_step, offsets, c_step = b.fn.args
    with b.loop(i64(0), i64(4 * down)) as i, b.loop(i64(0), i64(4 * across)) as j:
        pair = b.load("i64", b.gep("i64", offsets, b.add(b.mul(b.and_(i, i64(3)), i64(2)), b.and_(b.lshr(j, 1), i64(1)))))
        at = b.add(b.add(b.mul(b.lshr(i, 2), c_step), b.mul(b.lshr(j, 2), i64(16))), b.add(pair, b.mul(b.and_(j, i64(1)), i64(4))))
        place = b.gep("i8", c, at)
        with b.loop(i64(0), steps) as q, b.loop(i64(0), i64(8)) as t:
            x = b.load("i8", b.gep("i8", a, b.add(b.mul(q, a_step), b.add(b.mul(i, i64(8)), t))))
            y = b.load("i8", b.gep("i8", cols, b.add(b.mul(q, b_step), b.add(b.mul(j, i64(8)), t))))
            b.store(b.add(b.load("i32", place), b.mul(b.cast("sext", x, "i32"), b.cast("sext", y, "i32"))), place)
    b.ret()
    row = targets.get("rv64gc")
    obj = llvm.emit_object(llvm.optimise(m.render(), row), row)
    text, = (s for s in elf.sections(obj) if s.flags & elf.EXEC and s.size)
    assert not any(s.name.startswith(".rela.text") for s in elf.sections(obj))
    return obj[text.offset:text.offset + text.size]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """What is compiled here is nobody else's."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))  # before the variable, by which the folder to come back to would be this one
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.first(2)
@pytest.mark.parametrize("board", [on(K1)])
@pytest.mark.parametrize("function", [product, small_product, wide_product, product_of_pieces])
def test_operands_are_laid_as_the_micro_kernel_reads_them(function, board, seed, kept, monkeypatch):
    """Compiled for IME, but for a micro-kernel that LLVM made: right for odd sizes."""
    asked = []
    monkeypatch.setattr(ime, "kernel", lambda down, across, signs="": asked.append((down, across)) or plain_kernel(down, across))
    made = made_of(function, "spacemit-x60:ime")
    assert set(asked) == {{"product": (2, 4), "small_product": (1, 2), "wide_product": (2, 4), "product_of_pieces": (2, 4)}[function.__name__]}
    f = made.manifest["functions"][0]
    torch.manual_seed(seed)
    for m, n, k in ((1, 1, 1), (33, 47, 65), (70, 31, 100), (4, 8, 8), (3, 65, 17), (64, 64, 128)):
        a, b = torch.randint(-128, 128, (m, k), dtype=torch.int8), torch.randint(-128, 128, (k, n), dtype=torch.int8)
        (got,), _ = runner.get(board).call(made, f["name"], [a, b])
        assert torch.equal(got.long(), a.long() @ b.long()), (m, n, k)


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


@pytest.mark.parametrize("board", [on(K1)])
def test_operands_in_any_layout(board, seed, kept, monkeypatch):
    """Operands that lie the other way round, that are computed, of batches; accumulators that others read."""
    asked = []
    monkeypatch.setattr(ime, "kernel", lambda down, across, signs="": asked.append((down, across)) or plain_kernel(down, across))
    torch.manual_seed(seed)
    r = runner.get(board)

    def said(function, a, b):
        made = made_of(function, "spacemit-x60:ime", *(",".join(map(str, x.shape)) for x in (a, b)))
        return r.call(made, made.manifest["functions"][0]["name"], [a, b])[0][0].long()

    a, b = int8(65, 33), int8(47, 65)
    assert torch.equal(said(turned_product, a, b), a.t().long() @ b.t().long())
    a, b = int8(16, 64), int8(64, 32)
    half, other = torch.div(a, 2, rounding_mode="trunc") + 1, torch.where(b > 0, b, torch.div(-b, 3, rounding_mode="trunc"))
    first = half.long() @ other.long()
    assert torch.equal(said(computed, a, b), a.long() @ b.long() + 2 * first)
    a, b = int8(4, 8, 32), int8(4, 32, 16)
    assert torch.equal(said(batches, a, b), a.long() @ b.long())
    assert asked == [(2, 4)] * 3


def compiled(target: str, **sizes) -> object:
    names = list(product_kernel.arg_names)
    kinds = {"a_ptr": "*i8", "b_ptr": "*i8", "out_ptr": "*i32"}
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    source = ASTSource(fn=product_kernel, signature={n: "constexpr" if n in sizes else kinds.get(n, "i32") for n in names},
                       constexprs={(names.index(n),): v for n, v in sizes.items()})
    return triton.compile(source, target=GPUTarget("cpu", target, 0))


def test_it_is_off_unless_it_is_asked_for():
    for row in targets.TARGETS.values():
        assert not any(p.blocks for p in row.products), row.name
    sizes = dict(BM=32, BN=32, BK=64)
    plain, asked = compiled("spacemit-x60", **sizes), compiled("spacemit-x60:ime", **sizes)
    code = ime.kernel(2, 4)
    assert code in asked.asm["obj"] and code not in plain.asm["obj"]
    assert "IME's blocks of i8" in asked.asm["plan"] and "A is put into blocks along K" in asked.asm["plan"] and "IME" not in plain.asm["plan"]
    assert len(re.findall(r"\tcall\tproduct_kernel\.vmadot2x4\n", asked.asm["asm"])) == 1


def test_pieces_along_k_are_blocks_of_one_operand():
    assert "product 64x64 by 64x64, 2 pieces of K at once: 8 rows x 1 vectors of 2 registers, IME's blocks of i8" in compiled(
        "spacemit-x60:ime", BM=64, BN=64, BK=32).asm["plan"]


@pytest.mark.parametrize("sizes", [dict(BM=2, BN=32, BK=64), dict(BM=32, BN=4, BK=64), dict(BM=32, BN=32, BK=4)])
def test_blocks_that_are_too_small_go_another_way(sizes):
    assert "IME" not in compiled("spacemit-x60:ime", **sizes).asm["plan"]


def test_other_kernels_are_as_without():
    """The row differs in its products and cores alone."""
    from test_plans import FOLDER
    from triport.backends.cpu.emit.module import lower_module
    from triport.backends.cpu.ttir import reader
    for name in ("softmax_rows", "matmul"):
        with_ime, without = (lower_module(reader.parse((FOLDER / f"{name}.ttir").read_text()), targets.get(t)).text for t in ("spacemit-x60:ime", "spacemit-x60"))
        assert with_ime == without


@pytest.mark.parametrize("name", ["spacemit-x60:im", "spacemit-k3-x100:ime", "rv64gcv:ime", "spacemit-x60:ime:vlen512"])
def test_rows_that_do_not_have_it(name):
    with pytest.raises(CompileError, match="target"):
        targets.get(name)


def test_its_registers_have_one_length():
    with pytest.raises(CompileError, match="does not take a vector length"):
        targets.with_vlen("spacemit-x60:ime", 512)


# --- the feature's check -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("board", [on(K1)])
def test_a_core_without_it_is_refused(board):
    """Neither SIGILL nor a wrong result: a status, and its name."""
    made = made_of(product, "spacemit-x60:ime")
    f = made.manifest["functions"][0]
    assert "xsmtvdot" in f["needs"] and "xsmtvdot" in made.files[made.manifest["header"]].decode()
    with pytest.raises(Error, match=r"TRIPORT_WRONG_MACHINE \(6\): .*this CPU lacks xsmtvdot \("):
        runner.get(board).call(made, f["name"], [torch.ones(3, 5, dtype=torch.int8), torch.ones(5, 7, dtype=torch.int8)])


def only_on(cpu: int) -> str:
    """Machine code that a core executes if it is CPU number `cpu` of the machine, by getcpu; on others it is illegal."""
    sp, a7 = 2, 17
    load, ecall = sp << 15 | 2 << 12 | rv.T0 << 7 | 0x03, 0x73
    return rv.code([rv.addi(sp, sp, -16), rv.addi(rv.A0, sp, 0), rv.addi(11, 0, 0), rv.addi(12, 0, 0), rv.addi(a7, 0, 168), ecall, load, rv.addi(sp, sp, 16),
                    rv.addi(rv.T1, 0, cpu), rv.branch("beq", rv.T0, rv.T1, 8), 0, rv.ret()]).hex()


@pytest.mark.first(1)
@pytest.mark.parametrize("board", [on(K1)])
@pytest.mark.parametrize("everywhere", [False, True])
def test_each_cpu_that_the_process_may_run_on_is_asked(board, everywhere, kept, monkeypatch):
    """A machine of which one CPU alone has it, as four of a K1's eight: the function runs where the process keeps to that one, and nowhere else."""
    mine = os.sched_getaffinity(0)
    cpu = max(mine)
    if everywhere and len(mine) == 1:
        pytest.skip("this process may run on one CPU only: none is left that has not what the other has")
    monkeypatch.setitem(machine._CODE, "code_xsmtvdot", ("riscv64", {}, only_on(cpu)))
    monkeypatch.setattr(ime, "kernel", lambda down, across, signs="": plain_kernel(down, across) + rv.code([rv.vmadot(2, 4, 5)]))  # behind its return
    made = made_of(small_product, "spacemit-x60:ime")
    f = made.manifest["functions"][0]
    assert "xsmtvdot" in f["needs"]
    a, b = torch.full((5, 9), -3, dtype=torch.int8), torch.full((9, 11), 7, dtype=torch.int8)
    try:
        os.sched_setaffinity(0, mine if everywhere else {cpu})
        if everywhere:
            with pytest.raises(Error, match="this CPU lacks xsmtvdot"):
                runner.get(board).call(made, f["name"], [a, b])
        else:
            (got,), _ = runner.get(board).call(made, f["name"], [a, b])
            assert torch.equal(got.long(), a.long() @ b.long())
    finally:
        os.sched_setaffinity(0, mine)


def test_bundles_without_it_have_nothing_of_it():
    plain = targets.get("rv64gc")
    for needed in ([], ["zba"]):
        assert "xsmtvdot" not in machine.codes_ir(plain, needed) and "try_on" not in machine.machine_ir(plain, needed)
    assert "code_xsmtvdot" in machine.codes_ir(plain, ["xsmtvdot"]) and "@try_everywhere" in machine.machine_ir(plain, ["xsmtvdot"])
    assert features.RISCV["xsmtvdot"][0] is None
