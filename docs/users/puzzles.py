"""The kernels of Triton Puzzles on CPU tensors, compiled and checked: this file's, or your own.

`python docs/users/puzzles.py [--kernels FILE] [PART OF A NAME ...]`. FILE is a Python file, or the puzzles' notebook with your kernels in it: a kernel there is
taken by its name, which is the notebook's. Each runs with the notebook's sizes and with others that no block divides, with every access checked
(TRITON_CPU_CHECK names other checks), and is held against float64."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl
from triport.checking import checks

sys.path.insert(0, str(Path(__file__).parent))
import checked  # noqa: E402


@triton.jit
def add_kernel(x_ptr, z_ptr, N0, B0: tl.constexpr):
    i = tl.arange(0, B0)
    tl.store(z_ptr + i, tl.load(x_ptr + i) + 10)


@triton.jit
def add_mask2_kernel(x_ptr, z_ptr, N0, B0: tl.constexpr):
    i = tl.program_id(0) * B0 + tl.arange(0, B0)
    tl.store(z_ptr + i, tl.load(x_ptr + i, i < N0) + 10, i < N0)


@triton.jit
def add_vec_kernel(x_ptr, y_ptr, z_ptr, N0, N1, B0: tl.constexpr, B1: tl.constexpr):
    i, j = tl.arange(0, B0), tl.arange(0, B1)
    tl.store(z_ptr + j[:, None] * N0 + i, tl.load(x_ptr + i) + tl.load(y_ptr + j)[:, None])


@triton.jit
def add_vec_block_kernel(x_ptr, y_ptr, z_ptr, N0, N1, B0: tl.constexpr, B1: tl.constexpr):
    i, j = tl.program_id(0) * B0 + tl.arange(0, B0), tl.program_id(1) * B1 + tl.arange(0, B1)
    z = tl.load(x_ptr + i, i < N0) + tl.load(y_ptr + j, j < N1)[:, None]
    tl.store(z_ptr + j[:, None] * N0 + i, z, (j[:, None] < N1) & (i < N0))


@triton.jit
def mul_relu_block_kernel(x_ptr, y_ptr, z_ptr, N0, N1, B0: tl.constexpr, B1: tl.constexpr):
    i, j = tl.program_id(0) * B0 + tl.arange(0, B0), tl.program_id(1) * B1 + tl.arange(0, B1)
    z = tl.maximum(tl.load(x_ptr + i, i < N0) * tl.load(y_ptr + j, j < N1)[:, None], 0)
    tl.store(z_ptr + j[:, None] * N0 + i, z, (j[:, None] < N1) & (i < N0))


@triton.jit
def mul_relu_block_back_kernel(x_ptr, y_ptr, dz_ptr, dx_ptr, N0, N1, B0: tl.constexpr, B1: tl.constexpr):
    i, j = tl.program_id(0) * B0 + tl.arange(0, B0), tl.program_id(1) * B1 + tl.arange(0, B1)
    at, inside = j[:, None] * N0 + i, (j[:, None] < N1) & (i < N0)
    y = tl.load(y_ptr + j, j < N1)[:, None]
    x, dz = tl.load(x_ptr + at, inside), tl.load(dz_ptr + at, inside)
    tl.store(dx_ptr + at, tl.where(x * y > 0, dz * y, 0), inside)


@triton.jit
def sum_kernel(x_ptr, z_ptr, N0, N1, T, B0: tl.constexpr, B1: tl.constexpr):
    i = tl.program_id(0) * B0 + tl.arange(0, B0)
    total = tl.zeros((B0,), tl.float32)
    for begin in range(0, T, B1):
        t = begin + tl.arange(0, B1)
        total += tl.sum(tl.load(x_ptr + i[:, None] * T + t, (i[:, None] < N0) & (t < T), 0), 1)
    tl.store(z_ptr + i, total, i < N0)


@triton.jit
def softmax_kernel(x_ptr, z_ptr, N0, N1, T, B0: tl.constexpr, B1: tl.constexpr):
    log2_e = 1.44269504
    i = tl.program_id(0) * B0 + tl.arange(0, B0)
    most, total = tl.full((B0,), float("-inf"), tl.float32), tl.zeros((B0,), tl.float32)
    for begin in range(0, T, B1):  # the sum of what was read, beside the maximum of what was read: one pass
        t = begin + tl.arange(0, B1)
        x = tl.load(x_ptr + i[:, None] * T + t, (i[:, None] < N0) & (t < T), float("-inf")) * log2_e
        more = tl.maximum(most, tl.max(x, 1))
        total = total * tl.exp2(most - more) + tl.sum(tl.exp2(x - more[:, None]), 1)
        most = more
    for begin in range(0, T, B1):
        t = begin + tl.arange(0, B1)
        at, inside = i[:, None] * T + t, (i[:, None] < N0) & (t < T)
        tl.store(z_ptr + at, tl.exp2(tl.load(x_ptr + at, inside, 0) * log2_e - most[:, None]) / total[:, None], inside)


@triton.jit
def flashatt_kernel(q_ptr, k_ptr, v_ptr, z_ptr, N0, T, B0: tl.constexpr):
    log2_e = 1.44269504
    i = tl.program_id(0) * B0 + tl.arange(0, B0)
    q = tl.load(q_ptr + i, i < N0, 0) * log2_e
    most, total, z = tl.full((B0,), float("-inf"), tl.float32), tl.zeros((B0,), tl.float32), tl.zeros((B0,), tl.float32)
    for begin in range(0, T, 32):
        t = begin + tl.arange(0, 32)
        x = tl.where(t < T, q[:, None] * tl.load(k_ptr + t, t < T, 0), float("-inf"))
        more = tl.maximum(most, tl.max(x, 1))
        scale, weight = tl.exp2(most - more), tl.exp2(x - more[:, None])
        total = total * scale + tl.sum(weight, 1)
        z = z * scale + tl.sum(weight * tl.load(v_ptr + t, t < T, 0), 1)
        most = more
    tl.store(z_ptr + i, z / total, i < N0)


@triton.jit
def conv2d_kernel(x_ptr, k_ptr, z_ptr, N0, H, W, KH: tl.constexpr, KW: tl.constexpr, B0: tl.constexpr):
    i = tl.program_id(0) * B0 + tl.arange(0, B0)[:, None]
    b = tl.arange(0, KH * KW)  # of the filter: row b // KW, column b % KW
    weight = tl.load(k_ptr + b)
    for h in range(H):
        for w in range(W):
            y, x = h + b // KW, w + b % KW
            window = tl.load(x_ptr + (i * H + y) * W + x, (i < N0) & (y < H) & (x < W), 0)
            tl.store(z_ptr + (i * H + h) * W + w, tl.sum(window * weight, 1, keep_dims=True), i < N0)


@triton.jit
def dot_kernel(x_ptr, y_ptr, z_ptr, N0, N1, N2, MID, B0: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, B_MID: tl.constexpr):
    i, j = tl.program_id(0) * B0 + tl.arange(0, B0)[:, None], tl.program_id(1) * B1 + tl.arange(0, B1)
    batch = tl.program_id(2) * B2 + tl.arange(0, B2)[:, None, None]
    z = tl.zeros((B2, B0, B1), tl.float32)
    for begin in range(0, MID, B_MID):
        m = begin + tl.arange(0, B_MID)
        x = tl.load(x_ptr + (batch * N0 + i) * MID + m, (batch < N2) & (i < N0) & (m < MID), 0)
        y = tl.load(y_ptr + (batch * MID + m[:, None]) * N1 + j, (batch < N2) & (m[:, None] < MID) & (j < N1), 0)
        z = tl.dot(x, y, z, input_precision="ieee")
    tl.store(z_ptr + (batch * N0 + i) * N1 + j, z, (batch < N2) & (i < N0) & (j < N1))


@triton.jit
def quant_dot_kernel(scale_ptr, offset_ptr, weight_ptr, activation_ptr, z_ptr, N0, N1, MID, B0: tl.constexpr, B1: tl.constexpr, B_MID: tl.constexpr):
    i, j = tl.program_id(0) * B0 + tl.arange(0, B0)[:, None], tl.program_id(1) * B1 + tl.arange(0, B1)
    z = tl.zeros((B0, B1), tl.float32)
    for begin in range(0, MID, B_MID):
        m = begin + tl.arange(0, B_MID)
        group = m // 8  # eight weights of four bits are an int32; eight weights have a scale, and an offset of four bits
        inside = (i < N0) & (m < MID)
        words = tl.load(weight_ptr + i * (MID // 8) + group, inside, 0)
        offset = (tl.load(offset_ptr + i, i < N0, 0) >> (group * 4)) & 15
        scale = tl.load(scale_ptr + i * (MID // 8) + group, inside, 0)
        weight = scale * (((words >> (m % 8 * 4)) & 15) - offset)
        activation = tl.load(activation_ptr + m[:, None] * N1 + j, (m[:, None] < MID) & (j < N1), 0)
        z = tl.dot(weight, activation, z, input_precision="ieee")
    tl.store(z_ptr + i * N1 + j, z, (i < N0) & (j < N1))


def relu_grad(x, y, dz):
    return torch.where(x * y[:, None] > 0, dz * y[:, None], 0)


def attention(q, k, v):
    return torch.softmax(q[:, None] * k, 1) @ v


def conv2d(x, k):
    padded = torch.nn.functional.pad(x, (0, k.shape[1], 0, k.shape[0]))
    windows = padded.unfold(1, k.shape[0], 1).unfold(2, k.shape[1], 1)[:, :x.shape[1], :x.shape[2]]
    return (windows * k).sum((-1, -2))


def quantised(scale, offset, weight, activation):
    def nibbles(words):
        return ((words[..., None].long() >> torch.arange(0, 32, 4)) & 15).flatten(1)
    groups = scale.shape[1]
    return (scale.repeat_interleave(8, 1) * (nibbles(weight) - nibbles(offset[:, None])[:, :groups].repeat_interleave(8, 1))) @ activation


def floats(*shapes):
    return lambda: [torch.rand(shape) - 0.5 for shape in shapes]


def words(n0, n1, mid):
    """Arguments of puzzle 12: int32 of any bits are eight numbers of four."""
    def some(*shape):
        return torch.randint(-2**31, 2**31, shape).to(torch.int32)
    return lambda: [torch.rand(n0, mid // 8) - 0.5, some(n0), some(n0, mid // 8), torch.rand(mid, n1) - 0.5]


def block(*b, **more):
    return {**{f"B{k}": size for k, size in enumerate(b)}, **more}


#: name -> kernel, the result in float64 by torch, the result's shape, and (arguments, sizes and blocks) first as in the notebook. Puzzle 9 has B0=200 there,
#: which no `tl.arange` takes: a block is a power of two
PUZZLES = {
    "1 constant add": ("add_kernel", lambda x: x + 10, lambda N0: (N0,), [(floats((32,)), {"N0": 32}, block(32)), (floats((64,)), {"N0": 64}, block(64))]),
    "2 constant add, block": ("add_mask2_kernel", lambda x: x + 10, lambda N0: (N0,),
                              [(floats((200,)), {"N0": 200}, block(32)), (floats((1001,)), {"N0": 1001}, block(64))]),
    "3 outer vector add": ("add_vec_kernel", lambda x, y: x + y[:, None], lambda N0, N1: (N1, N0),
                           [(floats((32,), (32,)), {"N0": 32, "N1": 32}, block(32, 32)), (floats((64,), (16,)), {"N0": 64, "N1": 16}, block(64, 16))]),
    "4 outer vector add, block": ("add_vec_block_kernel", lambda x, y: x + y[:, None], lambda N0, N1: (N1, N0),
                                  [(floats((100,), (90,)), {"N0": 100, "N1": 90}, block(32, 32)), (floats((7,), (133,)), {"N0": 7, "N1": 133}, block(8, 16))]),
    "5 fused outer product": ("mul_relu_block_kernel", lambda x, y: torch.relu(x * y[:, None]), lambda N0, N1: (N1, N0),
                              [(floats((100,), (90,)), {"N0": 100, "N1": 90}, block(32, 32)), (floats((7,), (133,)), {"N0": 7, "N1": 133}, block(8, 16))]),
    "6 its gradient": ("mul_relu_block_back_kernel", relu_grad, lambda N0, N1: (N1, N0),
                       [(floats((90, 100), (90,), (90, 100)), {"N0": 100, "N1": 90}, block(32, 32)),
                        (floats((133, 7), (133,), (133, 7)), {"N0": 7, "N1": 133}, block(8, 16))]),
    "7 long sum": ("sum_kernel", lambda x: x.sum(1), lambda N0, N1, T: (N0,),
                   [(floats((4, 200)), {"N0": 4, "N1": 32, "T": 200}, block(1, 32)), (floats((9, 1001)), {"N0": 9, "N1": 32, "T": 1001}, block(2, 32))]),
    "8 long softmax": ("softmax_kernel", lambda x: torch.softmax(x, 1), lambda N0, N1, T: (N0, T),
                       [(floats((4, 200)), {"N0": 4, "N1": 32, "T": 200}, block(1, 32)), (floats((9, 1001)), {"N0": 9, "N1": 32, "T": 1001}, block(2, 32))]),
    "9 simple FlashAttention": ("flashatt_kernel", attention, lambda N0, T: (N0,),
                                [(floats((200,), (200,), (200,)), {"N0": 200, "T": 200}, block(256)), (floats((77,), (77,), (77,)), {"N0": 77, "T": 77}, block(128))]),
    "10 two-dimensional convolution": ("conv2d_kernel", conv2d, lambda N0, H, W, KH, KW: (N0, H, W),
                                       [(floats((4, 8, 8), (4, 4)), {"N0": 4, "H": 8, "W": 8, "KH": 4, "KW": 4}, block(1)),
                                        (floats((5, 7, 9), (2, 4)), {"N0": 5, "H": 7, "W": 9, "KH": 2, "KW": 4}, block(2))]),
    "11 matrix product": ("dot_kernel", torch.matmul, lambda N0, N1, N2, MID: (N2, N0, N1),
                          [(floats((4, 32, 32), (4, 32, 32)), {"N0": 32, "N1": 32, "N2": 4, "MID": 32}, block(16, 16, 1, B_MID=16)),
                           (floats((3, 33, 50), (3, 50, 41)), {"N0": 33, "N1": 41, "N2": 3, "MID": 50}, block(16, 16, 1, B_MID=16))]),
    "12 quantised matrix product": ("quant_dot_kernel", quantised, lambda N0, N1, MID: (N0, N1),
                                    [(words(32, 32, 64), {"N0": 32, "N1": 32, "MID": 64}, block(16, 16, B_MID=64)),
                                     (words(35, 41, 40), {"N0": 35, "N1": 41, "MID": 40}, block(16, 16, B_MID=32))]),
}


def kernels_of(path: Path) -> dict:
    """The kernels, by name, of a Python file or of a notebook's cells. Of a notebook kernels and constants are taken, nothing else of it is run."""
    if path.suffix == ".ipynb":
        cells = ("".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code")
        parsed = []
        for cell in cells:  # what is no Python is the shell's (`!pip`, `%%capture`)
            try:
                parsed += ast.parse(cell).body
            except SyntaxError:
                continue
        jitted = [s for s in parsed if isinstance(s, ast.FunctionDef) and any(ast.unparse(d).startswith("triton.jit") for d in s.decorator_list)]
        constants = [f"{ast.unparse(s.targets[0])} = tl.constexpr({ast.unparse(s.value)})" for s in parsed  # as kernels may use them
                     if isinstance(s, ast.Assign) and isinstance(s.value, (ast.Constant, ast.BinOp))]
        text = "\n\n".join(["import triton", "import triton.language as tl", *constants, *map(ast.unparse, jitted)]) + "\n"
        path = Path(tempfile.mkdtemp()) / f"{path.stem.replace('-', '_')}.py"  # a kernel's source is read from a file
        path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if isinstance(value, triton.JITFunction)}


def way(kernel, spec, shape, cases):
    """Pairs of what a kernel stores and what its puzzle asks for; NaN where it stores nothing."""
    pairs = []
    for arguments, sizes, blocks in cases:
        args, z = arguments(), torch.full(shape(**sizes), torch.nan)
        grid = tuple(triton.cdiv(sizes.get(f"N{k}", 1), blocks.get(f"B{k}", 1)) if f"B{k}" in blocks else 1 for k in range(3))
        with checks(os.environ.get("TRITON_CPU_CHECK", "1")):
            kernel[grid](*args, z, **sizes, **blocks)
        pairs.append((z, spec(*(x.double() if x.is_floating_point() else x for x in args))))
    return pairs


def main() -> int:
    """As `checked.main`; `--kernels FILE` takes the kernels from there, and those puzzles alone that it has."""
    found = {name: globals()[name] for name, *_ in PUZZLES.values()}
    if "--kernels" in sys.argv:
        at = sys.argv.index("--kernels")
        if not sys.argv[at + 1:] or not Path(sys.argv[at + 1]).is_file():
            sys.exit("usage: puzzles.py [--kernels FILE] [PART OF A NAME ...]; FILE: a Python file, or the notebook of https://github.com/srush/Triton-Puzzles")
        found = kernels_of(Path(sys.argv[at + 1]))
        del sys.argv[at:at + 2]
    ways = {name: lambda k=found[kernel], rest=rest: way(k, *rest) for name, (kernel, *rest) in PUZZLES.items() if kernel in found}
    if not ways:
        sys.exit(f"no kernel of a puzzle is there: {', '.join(name for name, *_ in PUZZLES.values())}")
    return checked.main(ways)


if __name__ == "__main__":
    sys.exit(main())
