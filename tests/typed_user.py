"""A user's file with all of the public API, for type checkers in strict mode (tests/test_types.py): nothing runs it."""

from pathlib import Path

import torch
from typing_extensions import assert_type
from triport import backends, checking, ops, tools
from triport.backends.base import ArgumentError, Backend, CompileError, Error, Unavailable, Unsupported
from triport.bench import Comparison, Measurement, benchmark, compare
from triport.bench.results import Results, load
from triport.bench.study import Study, run
from triport.bench import report
from triport.bench.scaling import Law, fit
from triport.tools import annotate
from triport.tools.inspector.report import Report, inspect
from triport.tools.tritonparse import register

x = torch.randn(3, 4)
assert_type(ops.softmax(x), torch.Tensor)
assert_type(ops.softmax(x, dim=0), torch.Tensor)
assert_type(ops.square(x), torch.Tensor)
assert_type(ops.gelu(x), torch.Tensor)
assert_type(ops.matmul(x, x.T), torch.Tensor)
assert_type(ops.matmul_softmax(x, x.T, dim=-1), torch.Tensor)
assert_type(ops.lora_linear(x, x.T, x.T, x, s=2.0), torch.Tensor)
assert_type(ops.add_relu(x, x[0]), torch.Tensor)
assert_type(ops.add_mul_act(x, x, x[0], m=0.5, act="relu"), torch.Tensor)
assert_type(ops.add_mul_act_(x, x, x[0]), torch.Tensor)

saxpy = ops.cuda_op("saxpy.cu:saxpy<{T}>", "(Tensor x, Tensor y, float a) -> Tensor", grid=lambda *a: (1,))
out = saxpy(x, x, 1.0)
twice = ops.extension_op(torch.neg, "(Tensor x) -> Tensor", name="twice")

case = ops.Case(((3, 4),), {"dim": 0}, types=("",))
assert_type(case.name, str)
assert_type(case.make(torch.float32), list[torch.Tensor])


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def rows(seconds: float, x: torch.Tensor) -> float:
    return float(x.numel() / seconds)


op = ops.Op("double", call=double, eager=double, cases=("4096x2048", case), nbytes=torch.numel, variants={"a": double}, metrics={"rows": rows})
assert_type(op.name, str)
assert_type(ops.registry.get("softmax"), ops.Op)

with backends.use("triton-cpu") as backend:
    assert_type(backend, Backend)


@backends.use("triton-cpu")
def f(x: torch.Tensor) -> int:
    return 1


assert_type(f(x), int)
assert_type(backends.get("torch"), Backend)
assert_type(backends.available(), list[Backend])
assert_type(backends.BACKENDS, dict[str, str])

m = benchmark(torch.softmax, x, -1)
assert_type(m, Measurement)
assert_type(m.median, float)
assert_type(m.ci, tuple[float, float] | None)
c = compare({"a": double, "b": double}, x, precision=0.1)
assert_type(c, Comparison)
assert_type(c["a"], Measurement)
assert_type(c.speedup("b").median, float)
assert_type(c.verdict("b"), str)

with checking.checks("bounds"):
    pass
assert_type(checking.enable("race"), str)
try:
    ops.softmax(x)
except checking.CheckError as e:
    assert_type(e.reports, tuple[checking.Report, ...])
    assert_type(e.reports[0].line, int)
except (ArgumentError, CompileError, Unavailable, Unsupported) as e:
    failed: Error = e
    print(failed)
with checking.keeping_going(lambda error: print(error.found)):
    pass

with annotate("load"):
    pass


@annotate("g")
def g(x: int) -> int:
    return x


@tools.annotate
def h(x: int) -> int:
    return x


assert_type(g(1), int)
assert_type(h(1), int)
with annotate.as_nvtx():
    pass
annotate.as_nvtx().install()

r = inspect("a.s", "native")
assert_type(r, Report)
assert_type(r.verdict, str | None)
s = Study("cube", "3x4", {"torch": double}, (x,), reference=double, nbytes=2)
results = Results()
assert_type(run([s], results), int)
report.show({"machine": results.meta, "rows": results.rows}, report.console())
assert_type(fit([1.0, 2.0], [1.0, 2.0]), Law)
print(load(Path("results.json"))["rows"], checking.KINDS["race"])
print(report.markdown(results.data()), report.github(results.data()), report.words(results.rows))
register()
