"""Every op x dtype on emulated boards: RISC-V without vectors and with registers of 128 to 1024 bits, and Arm."""

import shutil
import struct
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from conftest import HANGS
from spine_boards import BOARDS, CASES, on
from triport.backends.base import Error
from triport.backends.cpu.llvm import targets
from triport.backends.spine import arguments, bundle, request, runner
from triport.bench import check
from triport.ops import Case, registry
from triport.ops.records import DTYPES


@pytest.mark.parametrize("board,target", [on(b, t) for b, ts in BOARDS.items() for t in ts])
@pytest.mark.parametrize("name", list(CASES))
def test_ops_are_right(name, board, target, seed):
    """Of odd sizes, every dtype, several threads, into memory that ends where the next page must not be touched. Each function is
    called with other sizes than those it was exported for, too."""
    op, r = registry.get(name), runner.get(board)
    wanted = [(op, case, dtype) for dtype in op.dtypes for case in CASES[name]]
    made = bundle.make(wanted, targets.get(target), cases=False)
    keys = dict.fromkeys(bundle.key_of(op, case, dtype) for _, case, dtype in wanted)
    names = dict(zip(keys, (f["name"] for f in made.manifest["functions"]), strict=True))
    assert len(set(names.values())) == len(names)
    for _, case, dtype in wanted:
        function = names[bundle.key_of(op, case, dtype)]
        for shapes in (case.shapes, tuple(tuple(n + 3 for n in s) for s in case.shapes)):
            other = type(case)(shapes, case.kwargs, case.transposed, case.scale)
            args = other.make(DTYPES[dtype], seed=seed)
            outputs, answer = r.call(made, function, args, threads=3)
            right, error = check.verdict(op, outputs[0], args, case.kwargs)
            assert right, (case.name, shapes, dtype, error)
            assert answer.vlen == (r.vlen if isinstance(r, runner.Qemu) else 0)


@pytest.mark.parametrize("board", [on("qemu:riscv64?vlen=256")])
def test_the_program_checks_and_times_alone(board, tmp_path):
    """And says so where an expected result is not met, in one element of a thousand."""
    op = registry.get("softmax")
    made = bundle.make([(op, c, d) for c in CASES["softmax"] for d in op.dtypes], targets.get("spacemit-x60"), repetitions=3)
    made.write(tmp_path)
    cases = sorted(str(p) for p in (tmp_path / "cases").iterdir())
    r = runner.get(board)
    command = [r.program, "-cpu", r.cpu, "-L", r.root, str(tmp_path / made.name)]
    done = subprocess.run([*command, *cases], capture_output=True, text=True, timeout=HANGS)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == len(cases) and all(": right, error " in x and " median " in x for x in lines), done.stdout
    spoilt = bytearray((tmp_path / "cases" / cases[0].rpartition("/")[2]).read_bytes())
    at = len(spoilt) - 8  # the last expected value, in fp64
    spoilt[at:at + 8] = torch.tensor([0.5], dtype=torch.float64).numpy().tobytes()
    bad = tmp_path / "bad.case"
    bad.write_bytes(request.sealed(bytes(spoilt)))
    # One element off by a fiftieth of it and of a mean one: in fp16 of thousands less than the norm of all errors may be, and more than one may be off.
    near = max((p for p in cases if "fp16" in p), key=lambda p: len(Path(p).read_bytes()))
    slightly = bytearray(Path(near).read_bytes())
    last = struct.unpack("<d", slightly[-8:])[0]
    slightly[-8:] = struct.pack("<d", last + 0.02 * (last + 1 / 133))
    off = tmp_path / "off.case"
    off.write_bytes(request.sealed(bytes(slightly)))
    done = subprocess.run([*command, str(off), near], capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 1 and ": WRONG, error " in done.stdout.splitlines()[0] and ": right" in done.stdout.splitlines()[1], done.stdout
    short = tmp_path / "short.case"
    short.write_bytes(spoilt[:-100])
    noise = tmp_path / "noise.case"
    noise.write_bytes(b"\x07" * 5000)
    done = subprocess.run([*command, str(bad), str(short), str(noise), "/nowhere", cases[0]], capture_output=True, text=True, timeout=HANGS)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and ": WRONG, error " in lines[0] and "truncated" in lines[1] and "is no case" in lines[2] and "cannot be opened" in lines[3]
    assert ": right" in lines[4]


@pytest.mark.parametrize("target,board", [
    pytest.param(t, b.values[0], marks=b.marks) for t, b in (
        ("spacemit-x60", on("qemu:riscv64?vlen=128")), ("spacemit-x60", on("qemu:riscv64?vlen=512")), ("spacemit-x60", on("qemu:riscv64?vlen=0")),
        ("spacemit-k3-a100", on("qemu:riscv64?vlen=256")), ("rv64gcv", on("qemu:riscv64?vlen=0")))])
def test_code_for_other_registers_is_refused(target, board):
    op = registry.get("square")
    made = bundle.make([(op, CASES["square"][0], "fp32")], targets.get(target), cases=False)
    with pytest.raises(Error, match=f"TRIPORT_WRONG_MACHINE.*vector registers there: {runner.get(board).vlen} bits; the code is for {target}"):
        runner.get(board).call(made, "triport_square_fp32", [torch.ones(4, 5)])


@pytest.mark.parametrize("board", [on("qemu:riscv64?vlen=1024")])
def test_plain_vector_code_runs_on_longer_registers(board):
    op = registry.get("gelu")
    made = bundle.make([(op, CASES["gelu"][0], "fp32")], targets.get("rv64gcv"), cases=False)
    x = torch.randn(7, 3, 31)
    (y,), _ = runner.get(board).call(made, "triport_gelu_fp32", [x])
    assert check.verdict(op, y, [x], {})[0]


def instructions(board: str, target: str, name: str, case) -> int:
    """Instructions that QEMU executes in the functions' code (kernels, glue) for one call: one a line of its log."""
    op, r = registry.get(name), runner.get(board)
    made = bundle.make([(op, case, "fp32")], targets.get(target), cases=False)
    f = made.manifest["functions"][0]
    counts = []
    for repetitions in (0, 1):  # what one call more takes
        given, sizes = arguments.inputs_of(f, case.make(torch.float32))
        data = request.encode((0, f), given, sizes, threads=1, repetitions=repetitions)
        command = r.command(made, [])
        at = command.index("-L")
        p = subprocess.Popen([*command[:at], "-one-insn-per-tb", "-d", "exec,nochain", "-D", "/dev/stderr", *command[at:]], stdin=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        threading.Thread(target=lambda: (p.stdin.write(data), p.stdin.close()), daemon=True).start()
        counts.append(sum(block.count(b"\n") for block in iter(lambda: p.stderr.read(1 << 20), b"")))
        assert p.wait() == 0
    return counts[1] - counts[0]


@pytest.mark.first(1)
@pytest.mark.parametrize("board", [on("qemu:riscv64?vlen=256")])
@pytest.mark.parametrize("name,sizes", [("gelu", ((64, 64),)), ("softmax", ((16, 256),)), ("matmul", ((32, 64), (64, 64)))])
def test_vector_code_takes_a_sixth_of_the_scalar_instructions(name, sizes, board):
    case = Case(sizes)
    vector = instructions(board, "spacemit-x60", name, case)
    scalar = instructions("qemu:riscv64?vlen=0", "rv64gc", name, case)
    assert 6 * vector <= scalar, f"{name}: {vector} instructions with vectors, {scalar} without ({scalar / vector:.1f})"


@pytest.mark.parametrize("board", [on("qemu:riscv64?vlen=256")])
@pytest.mark.parametrize("linker", ["triton", "ld.lld-19", "riscv64-linux-gnu-ld", "zig"])
def test_linkers(linker, board):
    from triport.backends.spine import link

    if linker not in [x.name for x in link.linkers("riscv64")]:
        pytest.skip(f"linker {linker} is not installed")
    op = registry.get("matmul_softmax")
    made = bundle.make([(op, CASES["matmul_softmax"][0], "fp32")], targets.get("spacemit-x60"), cases=False, by=linker)
    args = CASES["matmul_softmax"][0].make(torch.float32)
    (y,), _ = runner.get(board).call(made, made.manifest["functions"][0]["name"], args)
    assert check.verdict(op, y, args, {"dim": 0})[0]
    if shutil.which("readelf"):
        with tempfile.NamedTemporaryFile() as f:
            f.write(made.files["libmatmul_softmax.so"])
            f.flush()
            text = subprocess.run(["readelf", "-dW", f.name], capture_output=True, text=True).stdout
        assert "[libc.so.6]" in text and "[libm.so.6]" in text
