"""Divisions by an estimate, on a target that divides slowly (plan/estimates.py): which ones, and how right they are."""

import pytest
import torch
import triton
import triton.language as tl
from spine_boards import on
from test_decisions import compiled
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.plan import estimates
from triport.backends.spine import bundle, runner
from triport.ops import Case, Op


@triton.jit
def over_kernel(x_ptr, y_ptr, out_ptr, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + at, mask=at < n), tl.load(y_ptr + at, mask=at < n)
    if KIND == 0:
        out = x / (1.0 + tl.abs(y))
    elif KIND == 1:
        out = x / y
    elif KIND == 2:
        out = x / (y - 1.0 + tl.exp(y))
    elif KIND == 3:
        out = x / tl.maximum(y * y, 2.0)
    elif KIND == 4:
        out = tl.div_rn(x, 1.0 + tl.abs(y))
    else:  # three polynomials take longer than a division
        out = tl.erf(tl.erf(tl.erf(x))) / (1.0 + tl.abs(y))
    tl.store(out_ptr + at, out, mask=at < n)


@pytest.mark.parametrize("kind,estimated", [(0, True), (1, False), (2, False), (3, True), (4, False), (5, False)])
def test_which_divisions(kind, estimated):
    """Those whose divisor is at least 1 for sure, that may be rounded otherwise than IEEE's, and that the loop waits for."""
    made = compiled(over_kernel, "spacemit-x60", KIND=kind, BLOCK=256)
    assert ("vfrec7.v" in made.asm["asm"]) == estimated != ("vfdiv.vv" in made.asm["asm"])
    assert ("by an estimate of 1 / " in made.asm["plan"]) == estimated
    for other in ("rv64gcv", "spacemit-k3-x100", "neoverse-v2"):
        assert "by an estimate" not in compiled(over_kernel, other, KIND=kind, BLOCK=256).asm["plan"]


def test_they_are_estimated_where_the_row_says_what_a_division_takes(monkeypatch):
    monkeypatch.setattr(estimates, "divisions", lambda target, visited: set())
    assert "vfdiv.vv" in compiled(over_kernel, "spacemit-x60", KIND=0, BLOCK=512).asm["asm"]


def over(x, y):
    out = torch.empty_like(x)
    over_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), KIND=0, BLOCK=1024)
    return out


@pytest.mark.parametrize("board", [on("qemu:riscv64?vlen=256")])
def test_how_right_they_are(board, seed):
    """Within 2 units in the last place up to divisors of 2^125, as Triton promises; beyond, within what 2^-149 times the dividend is. Infinities and NaN
    as division has them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20000, generator=generator) * torch.exp2(torch.randint(-60, 60, (20000,), generator=generator))
    y = torch.rand(20000, generator=generator) * torch.exp2(torch.randint(-3, 129, (20000,), generator=generator).float())
    inf, nan, most = float("inf"), float("nan"), torch.finfo(torch.float32).max
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, most, -most, 1e-40, 3.0])
    x, y = torch.cat([x, special.repeat_interleave(len(special))]), torch.cat([y, special.repeat(len(special))])
    op = Op("over", over, lambda x, y: x / (1 + y.abs()), (Case((x.shape, y.shape)),))
    made = bundle.make([(op, op.cases[0], "fp32")], targets.get("spacemit-x60"), cases=False)
    (got,), _ = runner.get(board).call(made, "triport_over_fp32", [x, y])
    divisor = 1 + y.abs()
    exact = x.double() / divisor.double()
    finite = exact.isfinite() & x.isfinite()
    assert torch.equal(got[~finite].nan_to_num(nan=7.0), exact[~finite].float().nan_to_num(nan=7.0))
    near = torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=2.0**-126))) - 23)  # a unit in the last place
    allowed = 2 * near + torch.where(divisor > 2.0**125, x.double().abs() * 2.0**-149, 0)
    worst = ((got.double() - exact).abs() / allowed)[finite]
    assert worst.max() <= 1, (worst.max(), x[finite][worst.argmax()], y[finite][worst.argmax()])
