"""Rows of targets.py: passes ask their fields, so that an ISA is a row (and a row for each instruction that multiplies)."""

import dataclasses
import re
from pathlib import Path

import pytest

from triport.backends.base import Error
from triport.backends.cpu.emit.module import lower_module
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.ttir import reader
from triport.tools import probes

CPU = Path(targets.__file__).parents[1]


def test_passes_ask_fields_and_not_names():
    """What a pass concludes from an ISA's name it would not conclude for the next ISA."""
    asked = re.compile(r"\.isa\b|triple\.(startswith|partition)|target\.(name|abi|cpu|features) *(==|!=|in\b)|if (target|row)\.abi|"
                       r"lanes == (4|8|16|32)\b|\.ty == \"<")
    found = [f"{path.relative_to(CPU)}: {line.strip()}" for folder in ("plan", "emit", "ttir") for path in sorted((CPU / folder).rglob("*.py"))
             for line in path.read_text().splitlines() if asked.search(line)]
    assert not found


def product(elem: str, acc: str) -> str:
    """A kernel that multiplies two matrices of 64 x 64."""
    shape = "64x64"
    zero = "0" if acc[0] == "i" else "0.0"
    body = (f"%z = arith.constant dense<{zero}> : tensor<{shape}x{acc}>\n"
            f"%d = tt.dot %v0, %v1, %z : tensor<{shape}x{elem}> * tensor<{shape}x{elem}> -> tensor<{shape}x{acc}>\n"
            f"%r = tt.reshape %d : tensor<{shape}x{acc}> -> tensor<4096x{acc}>")
    return probes.kernel(body, [elem, elem], acc, shape).replace("end = 64 : i32", "end = 4096 : i32").replace(
        "tensor<64xi32>", "tensor<4096xi32>").replace(f"tensor<64x!tt.ptr<{acc}>>", f"tensor<4096x!tt.ptr<{acc}>>")


def instructions(row, elem, acc) -> set[str]:
    text = lower_module(reader.parse(product(elem, acc)), row).text
    return {n for n in re.findall(r"call [^@]*@([\w.]+)\(", text)}


@pytest.mark.parametrize("name, elem, acc, wanted", [
    ("x86-64-v2", "i8", "i32", "llvm.x86.sse2.pmadd.wd"), ("x86-64-v3", "i8", "i32", "llvm.x86.avx2.pmadd.wd"),
    ("x86-64-v4", "i8", "i32", "llvm.x86.avx512.pmaddw.d.512"), ("neoverse-v2", "bf16", "f32", "llvm.aarch64.neon.bfdot.v4f32.v8bf16"),
    ("sapphirerapids", "bf16", "f32", "llvm.x86.tdpbf16ps"), ("sapphirerapids", "i8", "i32", "llvm.x86.tdpbssd"), ("graniterapids", "f16", "f32", "llvm.x86.tdpfp16ps"),
    ("graniterapids", "bf16", "f32", "llvm.x86.tdpbf16ps")])
def test_the_rows_instruction_multiplies(name, elem, acc, wanted):
    row = targets.get(name)
    assert wanted in instructions(row, elem, acc)
    assert wanted not in instructions(dataclasses.replace(row, products=()), elem, acc)


def test_tiles_that_do_not_fit_go_to_the_next_instruction():
    row = targets.get("sapphirerapids")
    assert "llvm.x86.tdpbf16ps" in instructions(row, "bf16", "f32")
    one = dataclasses.replace(row, products=tuple(dataclasses.replace(p, tiles=(48, 16, 32)) if p.tiles else p for p in row.products))
    assert "llvm.x86.avx512bf16.dpbf16ps.512" in instructions(one, "bf16", "f32")


@pytest.mark.parametrize("more,fp16", [((), False), (("amx-fp16",), True)])
def test_what_this_machines_tiles_multiply(more, fp16, monkeypatch):
    from triport.backends.cpu.llvm import host
    has = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "amx-tile", "amx-bf16", "amx-int8", *more)
    monkeypatch.setattr(host, "features", lambda: dict.fromkeys(has, True))
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    for granted in (True, False):  # Linux gives tiles to who asks, or not
        monkeypatch.setattr(targets, "_tiles_granted", lambda granted=granted: granted)
        row = targets.native.__wrapped__()
        assert {p.takes for p in row.products if p.tiles} == ({"bf16", "i8"} | ({"f16"} if fp16 else set()) if granted else set())
        assert ("+amx-fp16" in row.features) == (fp16 and granted)


def test_an_isa_is_a_row():
    """A made-up one: its instruction reaches the micro-kernel by the row alone."""
    made_up = targets.Product("pairs", "f16", "f16", "f32", "llvm.made.up.dot", "half")
    row = dataclasses.replace(targets.get("aarch64"), name="made-up", products=(made_up,))
    assert "llvm.made.up.dot" in instructions(row, "f16", "f32")


def test_every_row_says_what_plain_code_is_compiled_for():
    for row in targets.TARGETS.values():
        plain = targets.get(row.plain)
        assert plain.triple == row.triple and plain.vector_bits <= row.vector_bits


def test_a_length_that_was_asked_for_is_exact():
    assert targets.get("rv64gcv").length == "at least" and targets.get("rv64gcv:vlen512").length == "exactly"


def test_names_of_chips(capsys):
    """A K1's and a K3's owner types the chip's name; a near one is answered with the right chip, not with the nearest spelling."""
    from triport.tools.__main__ import main
    from triport.tools.inspector import targets as goals
    for name, row in (("k1", "spacemit-x60"), ("K1", "spacemit-x60"), ("m1", "spacemit-x60"), ("k3", "spacemit-k3-x100")):
        assert targets.get(name) is targets.get(row)
        assert goals.get(name).row is targets.get(row) and goals.get(name).name == row
    assert targets.get("k1:vlen512").name == goals.get("k1:vlen512").name == "spacemit-x60:vlen512"
    for name, near in (("spacemit-k1", "spacemit-x60"), ("Spacemit-M1", "spacemit-x60"), ("spacemit-k3", "spacemit-k3-x100"), ("a100", "spacemit-k3-a100"), ("k2", ""),
                       ("k1:vlen", "")):
        for get in (targets.get, goals.get):
            with pytest.raises(Error, match=f"unknown target '{name}'" + (f"; did you mean '{near}" if near else "")):
                get(name)
    assert main(["asm", "--list-targets"]) == 0
    assert re.search(r"^k1 +spacemit-x60, RVV$", capsys.readouterr().out, re.M)
