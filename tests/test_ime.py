"""SpacemiT's IME (`vmadot`) for products of int8: no CPU here has it, so what is emitted is compared with LLVM's assembler, carried out by an interpreter of its
instructions (`ime_machine.py`), and what surrounds it runs under QEMU around a micro-kernel that LLVM made."""

import os
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from ime_machine import Illegal, Machine, Memory
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
SHAPES = [(down, across) for down in (1, 2) for across in (1, 2, 3, 4)]
SIGNED = {"": (True, True), "u": (False, False), "su": (True, False), "us": (False, True)}
assembler = pytest.mark.skipif(not shutil.which("llvm-mc-22"), reason="llvm-mc-22 is not installed (llvm-22): older ones do not know XSMTVDot")


# --- machine code ------------------------------------------------------------------------------------------------------


def assembled(lines: list[str]) -> list[int]:
    """What LLVM's assembler makes of assembly."""
    said = subprocess.run(["llvm-mc-22", "-triple=riscv64", "-mattr=+v,+xsmtvdot", "-show-encoding"], input="\n".join(lines), capture_output=True, text=True, check=True)
    return [int.from_bytes(bytes(int(x, 16) for x in found.split(",")), "little") for found in re.findall(r"encoding: \[(.*?)\]", said.stdout)]


@assembler
def test_each_instruction_is_encoded_as_llvm_does(seed):
    r = random.Random(seed)
    x, v = (lambda: r.randrange(32)), (lambda: r.randrange(32))
    lines, words = [], []

    def both(text: str, word: int):
        lines.append(text)
        words.append(word)

    for _ in range(40):
        rd, rs1, rs2, vd, vs = x(), x(), x(), v(), v()
        n, count = r.randrange(-2048, 2048), r.randrange(32)
        both(f"addi x{rd}, x{rs1}, {n}", rv.addi(rd, rs1, n))
        both(f"add x{rd}, x{rs1}, x{rs2}", rv.add(rd, rs1, rs2))
        both(f"{(what := r.choice(['beq', 'bne']))} x{rs1}, x{rs2}, {(to := 2 * r.randrange(-2048, 2048))}", rv.branch(what, rs1, rs2, to))
        sew, lmul = r.choice((8, 16, 32, 64)), r.choice((1, 2, 4, 8))
        both(f"vsetivli x{rd}, {count}, e{sew}, m{lmul}, ta, ma", rv.vsetivli(count, sew, lmul) | rd << 7)
        both(f"vsetvli x{rd}, x{rs1}, e{sew}, m{lmul}, ta, ma", rv.vsetvli(rd, rs1, sew, lmul))
        both(f"vle{sew}.v v{vd}, (x{rs1})", rv.vle(sew, vd, rs1))
        both(f"vluxei64.v v{vd}, (x{rs1}), v{vs}", rv.vluxei64(vd, rs1, vs))
        both(f"vsuxei64.v v{vd}, (x{rs1}), v{vs}", rv.vsuxei64(vd, rs1, vs))
        pair, vs1, vs2 = 2 * r.randrange(8), r.randrange(16, 32), r.randrange(16, 32)
        signs = r.choice(list(SIGNED))
        both(f"smt.vmadot{signs} v{pair}, v{vs1}, v{vs2}", rv.vmadot(pair, vs1, vs2, signs))
    both("jalr x0, 0(x1)", rv.ret())
    assert [hex(w) for w in assembled(lines)] == [hex(w) for w in words]


@assembler
@pytest.mark.parametrize("signs", SIGNED)
def test_a_micro_kernel_is_what_llvm_reads_in_it(signs):
    """Disassembled and assembled again it is the same, and LLVM finds an instruction for each pair of A's and B's registers."""
    for down, across in SHAPES:
        code = ime.kernel(down, across, signs)
        text = subprocess.run(["llvm-mc-22", "-triple=riscv64", "-mattr=+v,+xsmtvdot", "--disassemble"], input=" ".join(f"0x{byte:02x}" for byte in code),
                              capture_output=True, text=True, check=True)
        assert not text.stderr
        lines = text.stdout.split("\n")
        found = [re.findall(r"v\d+", line) for line in lines if f"smt.vmadot{signs}\t" in line]
        assert len(found) == down * across == len({tuple(regs[1:]) for regs in found}) == len({regs[0] for regs in found})
        words = assembled([line for line in lines if line])
        assert words == list(struct.unpack(f"<{len(code) // 4}I", code))


@pytest.mark.parametrize("vd,vs1,vs2", [(1, 4, 5), (2, 3, 4), (2, 4, 2)])
def test_registers_that_the_manual_forbids(vd, vs1, vs2):
    with pytest.raises(ValueError, match="the first is even"):
        rv.vmadot(vd, vs1, vs2)


# --- arithmetic --------------------------------------------------------------------------------------------------------


def test_the_interpreter_has_the_manuals_example():
    """SpacemiT AI Matrix Extension Instruction Set 0.6, 5.1.6."""
    a = [[*range(n, n + 8)] for n in (0, 1, 2, 4)]
    b = [[*range(n, n + 8)] for n in (0, 1, 2)] + [[11, 4, 5, 6, 7, 8, 9, 10]]
    m = Machine(Memory())
    m.sew, m.lmul, m.vl = 8, 1, 32
    m.v[:] = bytes(len(m.v))
    m.v[0:32], m.v[32:64] = bytes(sum(a, [])), bytes(sum(b, []))
    m.step(rv.vmadot(16, 0, 1), 0)
    assert struct.unpack_from("<16i", m.v, 16 * 32) == (140, 168, 196, 224, 168, 204, 240, 284, 196, 240, 284, 344, 252, 312, 372, 464)


@pytest.mark.parametrize("word", [rv.vmadot(2, 4, 5), rv.vmadot(2, 4, 5) | 1 << 7, 0x00000000, rv.vle(8, 3, 10) & ~(1 << 25)])
def test_the_interpreter_refuses_what_a_core_would(word):
    """In order: no vtype; an odd destination; no instruction; a mask."""
    with pytest.raises(Illegal):
        m = Machine(Memory())
        if word == rv.vmadot(2, 4, 5) | 1 << 7:
            m.sew, m.lmul, m.vl = 8, 1, 32
        m.step(word, 0)


def blocked(x: np.ndarray, side: int, depth: int) -> bytes:
    """Rows of A (columns of B, transposed) as the plan lays them: [K / 8][side][8], zeros where there is nothing."""
    whole = np.zeros((side, depth), x.dtype)
    whole[:x.shape[0], :x.shape[1]] = x
    return whole.reshape(side, depth // 8, 8).transpose(1, 0, 2).tobytes()


def carried_out(a: np.ndarray, b: np.ndarray, c: np.ndarray, down: int, across: int, signs: str = "") -> tuple[np.ndarray, Machine]:
    """a @ b + c by the micro-kernel, tile by tile; sizes are rounded up to its tiles. Beside each operand lies nothing."""
    (m, k), n = a.shape, b.shape[1]
    rows, columns, depth = -(-m // (4 * down)) * 4 * down, -(-n // (4 * across)) * 4 * across, -(-k // 8) * 8
    whole = np.zeros((rows, columns), np.int32)
    whole[:m, :n] = c
    memory = Memory()
    a_at = memory.add(blocked(a, rows, depth), 0x10000)
    b_at = memory.add(blocked(b.T, columns, depth), 0x200000)
    c_at = memory.add(whole.tobytes(), 0x400000, writable=True)
    table = memory.add(struct.pack("<8q", *ime.offsets(columns)), 0x600000)
    cpu, code = Machine(memory), ime.kernel(down, across, signs)
    for i in range(0, rows, 4 * down):
        for j in range(0, columns, 4 * across):
            cpu.call(code, c_at + 4 * (i * columns + j), a_at + 8 * i, b_at + 8 * j, depth // 8, 8 * rows, 8 * columns, table, 16 * columns)
    out = np.frombuffer(memory.read(c_at, 4 * rows * columns), np.int32).reshape(rows, columns)
    assert not out[m:].any() and not out[:, n:].any()
    return out[:m, :n], cpu


@pytest.mark.parametrize("signs", SIGNED)
@pytest.mark.parametrize("down,across", SHAPES)
def test_a_micro_kernel_multiplies(down, across, signs, seed):
    """Odd sizes, K no multiple of 8, all of both types' values, against int64; sums wrap as int32's do."""
    rng = np.random.default_rng(seed)
    kinds = [np.int8 if s else np.uint8 for s in SIGNED[signs]]
    for m, n, k in ((1, 1, 1), (5, 7, 3), (9, 17, 13), (4 * down, 4 * across, 8), (3, 19, 33)):
        a, b = (rng.integers(np.iinfo(t).min, np.iinfo(t).max + 1, size, dtype=t) for t, size in zip(kinds, ((m, k), (k, n))))
        a.flat[0], b.flat[0] = np.iinfo(kinds[0]).min, np.iinfo(kinds[1]).max
        a.flat[-1], b.flat[-1] = np.iinfo(kinds[0]).max, np.iinfo(kinds[1]).min
        c = rng.integers(-1 << 31, 1 << 31, (m, n)).astype(np.int32)
        got, cpu = carried_out(a, b, c, down, across, signs)
        want = a.astype(np.int64) @ b.astype(np.int64) + c
        assert np.array_equal(got, want.astype(np.int32)), (m, n, k)
        calls = -(-m // (4 * down)) * -(-n // (4 * across))
        assert cpu.executed.count("vmadot" + signs) == calls * -(-k // 8) * down * across


def test_no_steps_leave_the_accumulators_as_they_are(seed):
    c = np.random.default_rng(seed).integers(-99, 99, (8, 16)).astype(np.int32)
    got, cpu = carried_out(np.zeros((8, 0), np.int8), np.zeros((0, 16), np.int8), c, 2, 4)
    assert np.array_equal(got, c) and "vmadot" not in cpu.executed


# --- kernels -----------------------------------------------------------------------------------------------------------


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, m, n, k, ak, bk, bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.int32)
    for start in range(0, k, BK):
        here = start + rk
        a = tl.load(a_ptr + rm[:, None] * ak + here[None, :], mask=(rm[:, None] < m) & (here[None, :] < k), other=0)
        b = tl.load(b_ptr + here[:, None] * bk + rn[None, :] * bn, mask=(here[:, None] < k) & (rn[None, :] < n), other=0)
        acc = tl.dot(a, b, acc)
    tl.store(out_ptr + rm[:, None] * n + rn[None, :], acc, mask=(rm[:, None] < m) & (rn[None, :] < n))


def _product(a, b, rows: int, columns: int, depth: int):
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=torch.int32)
    product_kernel[(triton.cdiv(m, rows), triton.cdiv(n, columns))](a, b, out, m, n, k, a.stride(0), b.stride(0), b.stride(1), BM=rows, BN=columns, BK=depth)
    return out


def product(a, b):
    return _product(a, b, 32, 32, 64)


def small_product(a, b):
    return _product(a, b, 4, 8, 8)


def wide_product(a, b):
    return _product(a, b, 8, 64, 16)


def made_of(function, target: str):
    example = ["a=int8[20,30], b=int8[30,40]"]
    return bundle.make(user.calls(function, Path(__file__), sys.modules[__name__], example), targets.get(target), cases=False)


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
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("board", [on(K1)])
@pytest.mark.parametrize("function", [product, small_product, wide_product])
def test_operands_are_laid_as_the_micro_kernel_reads_them(function, board, seed, kept, monkeypatch):
    """Compiled for IME, but for a micro-kernel that LLVM made: right for odd sizes, and for operands that lie the other way round."""
    asked = []
    monkeypatch.setattr(ime, "kernel", lambda down, across, signs="": asked.append((down, across)) or plain_kernel(down, across))
    made = made_of(function, "spacemit-x60:ime")
    assert set(asked) == {{"product": (2, 4), "small_product": (1, 2), "wide_product": (2, 4)}[function.__name__]}
    f = made.manifest["functions"][0]
    torch.manual_seed(seed)
    for m, n, k in ((1, 1, 1), (33, 47, 65), (70, 31, 100), (4, 8, 8), (3, 65, 17), (64, 64, 128)):
        a, b = torch.randint(-128, 128, (m, k), dtype=torch.int8), torch.randint(-128, 128, (k, n), dtype=torch.int8)
        (got,), _ = runner.get(board).call(made, f["name"], [a, b])
        assert torch.equal(got.long(), a.long() @ b.long()), (m, n, k)


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
