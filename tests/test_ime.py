"""SpacemiT's IME (`vmadot`) for products of int8, its machine code: no CPU here has it, so it is compared with LLVM's assembler, and carried out by an
interpreter of its instructions (`ime_machine.py`). `test_ime_kernels.py` has what surrounds it."""

import random
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest
from ime_machine import Illegal, Machine, Memory
from triport.backends.cpu.emit.product import ime
from triport.backends.cpu.llvm import riscv_words as rv

rv_vmadot = rv.vmadot
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


@pytest.mark.parametrize("change", [("vmadot", lambda vd, vs1, vs2, signs="": rv_vmadot(vd, vs2, vs1, signs)), ("vluxei64", lambda vd, at, offsets: rv.vle(64, vd, at))])
def test_a_wrong_micro_kernel_is_seen(change, monkeypatch, seed):
    """A and B change places; accumulators are read as if their rows lay side by side."""
    monkeypatch.setattr(rv, *change)
    with pytest.raises(AssertionError):
        test_a_micro_kernel_multiplies(2, 4, "", seed)
