"""No bundle meets a CPU that it cannot run on: what its code uses is known, the CPU is asked for it, and what is lacking is said by name."""

import dataclasses
import platform
import re
import shutil
import struct
import subprocess

import pytest
import torch
from conftest import HANGS
from spine_boards import CASES, on
from triport.backends.base import Error
from triport.backends.cpu.llvm import targets
from triport.backends.spine import bundle, features, machine, runner
from triport.bench import check
from triport.ops import Case, registry
from triport.ops.records import DTYPES

BARE = "rv64i,m=true,a=true,f=true,d=true,c=true,zicsr=true,zifencei=true"
K1 = "qemu:riscv64?vlen=256"


class Emulated(runner.Runner):
    """A machine with an emulated CPU of any name."""

    def __init__(self, arch: str, cpu: str):
        self._arch, self.cpu, self.name = arch, cpu, f"{arch} {cpu}"

    def arch(self) -> str:
        return self._arch

    def command(self, made, arguments):
        root = ["-L", runner._root(self._arch)] if self._arch != "x86_64" else []
        program = shutil.which("qemu-x86_64") if self._arch == "x86_64" else runner.emulator(self._arch)
        return [program, "-cpu", self.cpu, *root, runner.program_of(made), *arguments]


def riscv(*names: str, vlen: int = 256) -> Emulated:
    """A CPU with vector registers of `vlen` bits and these extensions, and no others."""
    return Emulated("riscv64", ",".join([BARE, *(["v=true", f"vlen={vlen}"] if vlen else []), *(f"{n}=true" for n in names)]))


def extensions(f: dict) -> list[str]:
    return [n for n in f["needs"] if not n.startswith("vector")]


def call(made, r: runner.Runner, name: str, case, dtype: str):
    """Raise unless the first function of a bundle is right on `r`."""
    args = case.make(DTYPES[dtype], seed=5)
    (y,), _ = r.call(made, made.manifest["functions"][0]["name"], args)
    right, error = check.verdict(registry.get(name), y, args, case.kwargs)
    assert right, (name, dtype, error)


@pytest.mark.parametrize("board", [on(K1)])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", list(CASES))
def test_what_a_function_needs_is_enough_and_all_of_it_is_needed(name, dtype, board):
    """On a CPU that has just that the result is right; on one that lacks any of it the function says what."""
    case = CASES[name][0]
    made = bundle.make([(registry.get(name), case, dtype)], targets.get("spacemit-x60"), cases=False)
    f = made.manifest["functions"][0]
    needs = extensions(f)
    assert ("zvfh" in needs) == (dtype == "fp16")
    call(made, riscv(*needs), name, case, dtype)
    for lacking in needs:
        about = r"\(vector registers there: 256 bits; the code is for spacemit-x60\)"
        with pytest.raises(Error, match=rf"TRIPORT_WRONG_MACHINE \(6\): {f['name']}: this CPU lacks {lacking} {about}"):
            call(made, riscv(*(n for n in needs if n != lacking)), name, case, dtype)


@pytest.mark.parametrize("board", [on(K1)])
def test_what_linux_does_not_affirm_is_tried(board, monkeypatch):
    """On a kernel without riscv_hwprobe."""
    monkeypatch.setattr(machine, "_HWPROBE", 4000)
    case = CASES["gelu"][0]
    made = bundle.make([(registry.get("gelu"), case, "fp16")], targets.get("spacemit-x60"), cases=False)
    needs = extensions(made.manifest["functions"][0])
    call(made, riscv(*needs), "gelu", case, "fp16")
    with pytest.raises(Error, match=r"this CPU lacks zba, zvfh \("):
        call(made, riscv(*(n for n in needs if n not in ("zba", "zvfh"))), "gelu", case, "fp16")


@pytest.mark.parametrize("board", [on(K1)])
def test_one_function_of_a_bundle_runs_where_another_does_not(board):
    case, op = CASES["square"][0], registry.get("square")
    made = bundle.make([(op, case, "fp32"), (op, case, "fp16")], targets.get("spacemit-x60"), cases=False)
    single, half = made.manifest["functions"]
    r = riscv(*extensions(single))
    x = torch.randn(17, 23)
    (y,), _ = r.call(made, single["name"], [x])
    assert torch.equal(y, x * x)
    with pytest.raises(Error, match="lacks zvfh"):
        r.call(made, half["name"], [x.half()])


qemu_x86 = pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="qemu-x86_64 is not installed (qemu-user)")


@qemu_x86
@pytest.mark.parametrize("target,cpu,lacking", [
    ("x86-64-v4", "Haswell-noTSX", "avx512f, avx512dq, avx512cd, avx512bw, avx512vl"), ("x86-64-v4", "Nehalem", "movbe, fma, avx, .*avx512vl, lzcnt"),
    ("x86-64-v3", "Nehalem", "movbe, fma, avx, f16c, bmi, avx2, bmi2, lzcnt"), ("x86-64-v2", "core2duo", "sse4.1, sse4.2, popcnt"),
    ("x86-64-v2", "qemu64", "ssse3, sse4.1, sse4.2, popcnt"), ("sapphirerapids", "max", "avx512f, .*avx512bf16"),
    ("x86-64-v3", "Haswell-noTSX", ""), ("x86-64-v2", "Nehalem", "")])
def test_x86(target, cpu, lacking):
    case = Case(((128, 128),))  # no tail: QEMU's masked AVX2 loads read lanes that are masked, here beyond the tensor's page
    made = bundle.make([(registry.get("gelu"), case, "fp32")], targets.get(target), cases=False)
    if lacking:
        with pytest.raises(Error, match=rf"TRIPORT_WRONG_MACHINE \(6\): triport_gelu_fp32: this CPU lacks {lacking} \(the code is for {target}\)"):
            call(made, Emulated("x86_64", cpu), "gelu", case, "fp32")
    else:
        call(made, Emulated("x86_64", cpu), "gelu", case, "fp32")


@pytest.mark.parametrize("board", [on("qemu:aarch64")])
def test_arm(board):
    case = CASES["gelu"][0]
    made = bundle.make([(registry.get("gelu"), case, "fp32")], targets.get("neoverse-v2"), cases=False)
    with pytest.raises(Error, match=r"this CPU lacks atomics, asimdhp, .*sve, .*sve2, .*bf16 \(the code is for neoverse-v2\)"):
        call(made, Emulated("aarch64", "cortex-a72"), "gelu", case, "fp32")
    call(made, Emulated("aarch64", "max"), "gelu", case, "fp32")
    plain = bundle.make([(registry.get("gelu"), case, "fp32")], targets.get("aarch64"), cases=False)
    call(plain, Emulated("aarch64", "cortex-a53"), "gelu", case, "fp32")


@qemu_x86
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the C program is x86's")
def test_a_program_asks_what_is_missing(tmp_path):
    made = bundle.make([(registry.get("square"), CASES["square"][0], "fp32")], targets.get("x86-64-v4"), name="a-name", cases=False)
    made.write(tmp_path)
    (tmp_path / "main.c").write_text("""#include "a-name.h"
        #include <stdio.h>
        int main(void) {
          float x = 3, y = 7;
          printf("%s;", triport_missing_a_name());
          printf("%d;%g;%s", triport_square_fp32(&x, &y, 1, 1, 1) == TRIPORT_WRONG_MACHINE, y, triport_last_error());
          return 0;
        }""")
    command = ["cc", "-march=x86-64", "-Wall", "-Werror", "main.c", "liba-name.so", f"-Wl,-rpath,{tmp_path}", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["qemu-x86_64", "-cpu", "Haswell-noTSX", tmp_path / "main"], capture_output=True, text=True, timeout=HANGS)
    lacking = "avx512f, avx512dq, avx512cd, avx512bw, avx512vl"
    assert done.stdout == f"{lacking};1;7;triport_square_fp32: this CPU lacks {lacking}", done


def test_every_row_has_its_features():
    """What a row lets LLVM emit is in the tables, the native one's too."""
    for row in (*targets.TARGETS.values(), targets.native()):
        needs = features.needed(_object(row), "", row)
        assert features.order(row, needs) == list(needs), row.name
        assert needs or row.name in ("aarch64", "rv64gc", "native"), row.name
    with pytest.raises(Error, match="nothing is known of what LLVM's CPU 'z80' has"):
        features.needed(b"", "", dataclasses.replace(targets.get("x86-64-v3"), cpu="z80"))


def test_tiles_are_asked_for_where_they_are_used():
    row = targets.get("sapphirerapids")
    assert not {n for n in features.needed(b"", "fadd", row) if n.startswith("amx")}
    tiles = features.needed(b"", "call void @llvm.x86.tdpbf16ps(i8 0)", row)
    assert {"amx-tile", "amx-bf16"} == {n for n in tiles if n.startswith("amx")}
    halves = features.needed(b"", "call void @llvm.x86.tdpfp16ps(i8 0)", targets.get("graniterapids"))
    assert {"amx-tile", "amx-fp16"} == {n for n in halves if n.startswith("amx")}
    assert f"i64 {machine._ARCH_PRCTL}, i64 {machine._REQUEST}" in machine.machine_ir(row, list(tiles))


def test_the_instructions_that_are_tried_are_the_extensions_own():
    for name, (_, code, rows) in features.RISCV.items():
        word, = struct.unpack_from("<I", bytes.fromhex(code)[-6:])
        of = [other for other, (_, _, theirs) in features.RISCV.items() if any(word & mask == match for mask, match in theirs)]
        assert of == ([name] if rows else []), name
        assert code.endswith("8280")  # ret


def _object(row) -> bytes:
    from triport.backends.cpu.llvm import compile as llvm
    return llvm.emit_object(f'target triple = "{row.triple}"\ndefine void @f() {{\n  ret void\n}}\n', row)


def test_the_header_says_what_is_needed():
    made = bundle.make([(registry.get("square"), CASES["square"][0], d) for d in ("fp32", "fp16")], targets.get("spacemit-x60"), cases=False)
    header = made.files["square.h"].decode()
    assert "const char *triport_missing_square(void);" in header
    assert re.search(r"square\(x\), fp16\..*?needs: vector registers of 256 bits, (\w+, )*zvfh\n", header, re.S)
    assert "zvfh" not in re.search(r"square\(x\), fp32\..*?needs: (.*?)\n", header, re.S)[1] and max(map(len, header.split("\n"))) <= 150
    plain = bundle.make([(registry.get("square"), CASES["square"][0], "fp32")], targets.get("aarch64"), cases=False)
    assert "runs on any CPU of the architecture" in plain.files["square.h"].decode()
