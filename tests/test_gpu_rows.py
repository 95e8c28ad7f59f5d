"""Kernels on rows as GPUs have them: short rows of softmax together, rows that 16 bytes divide though 16 elements do not. Their results on the CPU, their code for
a GPU."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
import triton
from triport.backends import active
from triport.bench import check
from triport.ops import layout, registry
from triton.backends.compiler import GPUTarget

#: the modules, behind functions of the same names
MODULES = {name: sys.modules[f"triport.ops.{name}"] for name in ("add_relu", "add_mul_act", "softmax")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("m,n,rows", [(1000, 256, 8), (7, 1000, 2), (1, 1, 4), (33, 24, 16), (5, 781, 2)])
def test_short_rows(m, n, rows, dtype, seed):
    x = (3 * torch.randn(m, n, generator=torch.Generator().manual_seed(seed))).to(dtype)
    x[0, ::2] = -torch.inf  # n = 1: nothing but that
    out, whole = check.guarded((m, n), dtype)
    align = 8 if n % 8 == 0 else 1
    MODULES["softmax"].softmax_short_rows_kernel[(triton.cdiv(m, rows),)](x, out, m, n, ROWS=rows, BLOCK=triton.next_power_of_2(n), ALIGN=align)
    want = torch.softmax(x.double(), 1)
    torch.testing.assert_close(out.double().isnan(), want.isnan())
    assert check.error(out.nan_to_num(0.25), want.nan_to_num(0.25)) < {torch.float64: 1e-14, torch.float32: 1e-6}.get(dtype, 8e-3)
    assert check.guards_hold(whole)


@pytest.mark.parametrize("what", ["nan", "inf"])
def test_what_is_no_number_spoils_its_row_only(what):
    x = torch.zeros(4, 32)
    x[2, 5] = float(what)
    out = torch.empty_like(x)
    MODULES["softmax"].softmax_short_rows_kernel[(1,)](x, out, 4, 32, ROWS=4, BLOCK=32, ALIGN=1)
    assert out[2].isnan().all() and torch.equal(out[[0, 1, 3]], torch.full((3, 32), 1 / 32))


def launch_of(name: str, align: int):
    """(kernel, signature, constants) for rows of a length that 16 does not divide, in fp16."""
    module = MODULES[name]
    if name == "softmax":
        return module.softmax_short_rows_kernel, {"x_ptr": "*fp16", "out_ptr": "*fp16", "m": "i32", "n": "i32"}, {"ROWS": 2, "BLOCK": 1024, "ALIGN": align}
    consts = {"ROWS": 2, "COLS": 1024, "ALIGN": align, "FOLDED": True, "FLAT": False}
    if name == "add_relu":
        return module.add_relu_kernel, {"x_ptr": "*fp16", "bias_ptr": "*fp16", "out_ptr": "*fp16", "m": "i32", "n": "i32"}, consts
    return module.add_mul_act_kernel, {"x_ptr": "*fp16", "y_ptr": "*fp16", "bias_ptr": "*fp16", "out_ptr": "*fp16", "scale": "fp64", "m": "i32", "n": "i32"}, {
        "ACT": 0, **consts}


@pytest.mark.parametrize("name", MODULES)
def test_rows_that_16_bytes_divide_move_16_bytes_at_a_time(name):
    widths = {}
    for align in (1, 8):
        kernel, signature, consts = launch_of(name, align)
        names = list(kernel.arg_names)
        source = triton.compiler.ASTSource(fn=kernel, signature={**signature, **dict.fromkeys(consts, "constexpr")}, constexprs=consts,
                                           attrs={(names.index(n),): [["tt.divisibility", 16]] for n in names if n.endswith("_ptr")})
        target = GPUTarget("cuda", 90, 32)
        with active.compiling_for(target):
            ptx = triton.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]
        widths[align] = {kind: set(re.findall(rf"{kind}\.global(\.v\d)?\.b(\d+)", ptx)) for kind in ("ld", "st")}
    assert (".v4", "32") in widths[8]["ld"] and widths[8]["st"] == {(".v4", "32")}
    assert (".v4", "32") not in widths[1]["st"]


def test_alignment():
    def of(n, size, gpu=True):
        return layout.row_alignment(SimpleNamespace(is_cuda=gpu, element_size=lambda: size), n)

    assert [of(n, 2) for n in (1000, 1024, 1004, 781)] == [8, 1, 1, 1]
    assert [of(n, 4) for n in (1000, 1004, 1002)] == [4, 4, 1] and of(1002, 8) == 2
    assert of(1000, 2, gpu=False) == 1
    assert layout.row_alignment(torch.empty(3, 1000), 1000) == 1


@pytest.mark.parametrize("n,size,rows,cols", [(8192, 2, 2, 512), (8192, 4, 1, 512), (8192, 8, 1, 512), (781, 2, 1, 1024), (781, 4, 1, 512), (1, 2, 1, 1024), (256, 2, 4, 256), (256, 4, 2, 256), (8, 2, 64, 8),
                                               (1000, 2, 1, 1024), (1000, 4, 1, 512), (2056, 2, 2, 512)])
def test_a_gpus_tile_is_16_bytes_a_thread(n, size, rows, cols):
    """Of four warps, whatever the dtype; rows that are short are many, and those of 16-bit numbers whose lines no tile ends with are whole."""
    x = SimpleNamespace(is_cuda=True, element_size=lambda: size, numel=lambda: 1 << 25, device=SimpleNamespace(type="cuda"))
    tile = MODULES["add_relu"].row_tile(x, n)
    assert (tile["ROWS"], tile["COLS"], tile["FLAT"]) == (rows, cols, n % (16 // size) != 0)
    for few_or_many in (1 << 20, 1 << 31):
        x.numel = lambda: few_or_many
        assert not MODULES["add_relu"].row_tile(x, n)["FLAT"]


@pytest.mark.parametrize("name", ["add_relu", "add_mul_act"])
@pytest.mark.parametrize("shape", [(41, 1000), (11, 24), (13, 2040), (41, 781), (700, 1), (1, 2043), (3, 5, 7)])
def test_a_gpus_tiles_are_right(name, shape, monkeypatch, seed):
    """On the CPU, with the tiles and the alignment that a GPU's rows have."""
    real, seen = MODULES["add_relu"].row_tile, []
    monkeypatch.setattr(MODULES["add_relu"], "FLAT", (0, 1 << 30))

    def tile(x, n):
        found = real(SimpleNamespace(is_cuda=True, element_size=x.element_size, numel=x.numel, device=SimpleNamespace(type="cuda")), n)
        seen.append(found)
        return found

    for module in ("add_relu", "add_mul_act"):
        monkeypatch.setattr(MODULES[module], "row_tile", tile)
    op = registry.get(name)
    gen = torch.Generator().manual_seed(seed)
    shapes = [shape, shape[-1:]] if name == "add_relu" else [shape, shape, shape[-1:]]
    args = [torch.randn(s, generator=gen).half() for s in shapes]
    right, error = check.verdict(op, op.call(*[a.clone() for a in args]), args, {})
    assert right, error
    assert seen and all(t["FLAT"] if shape[-1] % 8 else t["ALIGN"] == 8 and t["COLS"] >= shape[-1] for t in seen)
