"""`backends.use("auto")`: each call by the backend that was measured as faster for its like. On the CPU, whose tensors are taken for a GPU's: the bodies that
launch Triton's kernels are one of the two, and bodies that keep count and do the same stand in for CUDA C++."""

import contextvars
import functools
import json
import re
import threading

import pytest
import torch
from conftest import unavailable
from triport import backends, ops
from triport.backends import base, table
from triport.backends.dispatch import choice, replay
from triport.bench import check, roofline
from triport.ops import choices, register, registry, tuning
from triport.tools.__main__ import main

#: who was served by CUDA C++, in order
by: list[str] = []
#: of each op what was measured: kind -> lines, in microseconds
ROWS, COLUMNS = [[1, 32, 1, 5.0, 4.0, 0.01], [64, 64, 1, 5.0, 4.0, 0.01], [4096, 64, 1, 4.0, 5.0, 0.01]], [[1, 64, 64, 4.0, 5.0, 0.01]]
TIMES = {"softmax": {"fp32": {"rows": ROWS, "columns": COLUMNS}}, "matmul": {"fp32": {"nn": [[64, 64, 64, 9.0, 3.0, 0.2]]}},
         "square": {"fp16": {"elements": [[4096, 2.0, 1.0, 0.0]]}}}


@pytest.fixture
def gpu(monkeypatch, tmp_path, seed):
    """A GPU of compute capability 9.0; writes a table of "choices" for it, or any text."""
    torch.manual_seed(seed)

    def standing_in(name):
        def body(*args):
            by.append(name)
            return register.BODIES[name](*args)

        return body

    auto, path = table.get("auto"), tmp_path / "tuned.json"
    monkeypatch.setattr(type(auto), "device", "cpu")
    monkeypatch.setattr(type(auto), "unavailable", lambda self: None)
    monkeypatch.setattr(type(auto), "synchronize", lambda self: None)
    monkeypatch.setattr(choice, "_lasting", {})
    monkeypatch.setattr(choices, "_gpu", lambda x: "sm_90")
    monkeypatch.setattr(choices, "usable", functools.lru_cache(lambda: True))
    monkeypatch.setattr(tuning, "gpu_kind", lambda: "sm_90")
    monkeypatch.setitem(register.IMPLEMENTATIONS, "cuda", {name: standing_in(name) for name in register.IMPLEMENTATIONS["cuda"]})
    monkeypatch.setenv("TRIPORT_TUNED", str(path))
    by.clear()

    def write(what, kind="sm_90"):
        path.write_text(what if isinstance(what, str) else json.dumps({kind: {"tiles": {}, "runs": [], "choices": {"times": what, "runs": []}}}))
        choices.forget()
        replay.forget()
        return path

    write(TIMES)
    yield write
    monkeypatch.undo()
    choices.forget()
    replay.forget()


def close(got, want):
    assert check.error(got, want) < (1e-3 if got.dtype == torch.float16 else 1e-5)


# --- who serves ------------------------------------------------------------------------------------------------------


def test_the_one_that_was_measured_as_faster_serves(gpu):
    x = torch.randn(64, 64)
    with backends.use("auto") as auto:
        assert auto.name == "auto"
        close(ops.softmax(x), torch.softmax(x.double(), -1))
        assert by == ["softmax"]
        close(ops.softmax(x, 0), torch.softmax(x.double(), 0))
        ops.softmax(torch.randn(4096, 64))
        ops.softmax(torch.randn(2048, 64))  # nearer to what Triton is faster on
        ops.gelu(x)  # nothing was measured
        ops.square(x)  # in another dtype
        assert by == ["softmax"]
        close(ops.matmul(x, x), x.double() @ x.double())
        close(ops.square(x.half()), x.half().double()**2)
        ops.softmax(x.reshape(2, 32, 64), 2)
    assert by == ["softmax", "matmul", "square", "softmax"]
    ops.softmax(x)
    assert len(by) == 4 and not choice.in_use


def test_it_says_whom_it_chose(gpu, monkeypatch):
    softmax, x = registry.get("softmax"), torch.randn(64, 64)
    with backends.use("auto") as auto:
        assert [auto.chosen("softmax", x), auto.chosen(softmax, x, dim=0), auto.chosen(softmax, x, 0)] == ["cuda", "triton-gpu", "triton-gpu"]
        assert auto.chosen(registry.get("add_mul_act"), x, x, x[0]) == auto.chosen(registry.get("lora_linear"), x, x, x, x) == "triton-gpu"
    assert backends.get("triton-cpu").chosen(softmax, x) == "triton-cpu" and not by
    assert auto.remark() == "auto: cuda was faster on 4 of 6 shapes"
    monkeypatch.setattr(tuning, "gpu_kind", lambda: "sm_80")
    assert auto.remark() == "auto: nothing was measured for sm_80 (`triport tune --choose` does): triton-gpu serves every call"


def test_a_remembered_call_is_not_chosen_for_again(gpu, monkeypatch):
    """It is recognised as it is within any `use`: nobody asks the table, and no body runs."""
    asked = []
    real = choices.chosen
    monkeypatch.setattr(choices, "chosen", lambda *args: (asked.append(args[0]), real(*args))[1])
    with backends.use("auto"):
        for _ in range(6):
            x = torch.randn(64, 64)
            close(ops.softmax(x), torch.softmax(x.double(), -1))
        assert by == asked == ["softmax"] and len(replay.site("softmax", chosen=True)._calls) == 1
        for _ in range(6):
            x = torch.randn(64, 64)
            close(ops.softmax(x, 0), torch.softmax(x.double(), 0))
        assert by == ["softmax"] and asked == ["softmax"] * 2


def test_what_auto_remembers_is_its_own(gpu):
    """Calls that were remembered for another choice do not serve here, nor the other way."""
    x = torch.randn(64, 64)
    for _ in range(4):
        ops.softmax(x)
    with backends.use("auto"):
        for _ in range(4):
            ops.softmax(x)
            with backends.use("triton-cpu"):  # what stands for triton-gpu here
                ops.softmax(x)
            assert by == ["softmax"]
            with backends.use("auto"):
                ops.softmax(x)
    assert by == ["softmax"]


def test_threads_have_choices_of_their_own(gpu):
    x, served = torch.randn(64, 64), []

    def work():
        ops.softmax(x)
        served.append(list(by))

    with backends.use("auto"):
        contexts = [contextvars.Context(), contextvars.copy_context()]
        for context in contexts:
            thread = threading.Thread(target=context.run, args=(work,))
            thread.start()
            thread.join()
    assert served == [[], ["softmax"]]


def test_gradients(gpu):
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
    with backends.use("auto"):
        (ops.softmax(x) * w).sum().backward()
        ops.matmul(x, w).sum().backward()
    assert by == ["softmax", "matmul"]
    y = x.detach().double().requires_grad_()
    ((torch.softmax(y, -1) * w.double()).sum() + (y @ w.double()).sum()).backward()
    close(x.grad, y.grad)


def test_a_compiled_function_asks_when_it_runs(gpu):
    torch._dynamo.reset()
    f = torch.compile(lambda x: ops.softmax(x) + 1, fullgraph=True, backend="aot_eager")
    x = torch.randn(64, 64)
    with backends.use("auto"):
        close(f(x), torch.softmax(x.double(), -1) + 1)
    assert by == ["softmax"]
    with backends.use("triton-cpu"):
        f(x)
    f(x)
    assert by == ["softmax"]


def test_ops_without_a_choice(gpu):
    """lora_linear has no CUDA C++, add_mul_act_ was never measured: Triton serves them."""
    x, w, a, b = torch.randn(5, 7), torch.randn(7, 3), torch.randn(7, 2), torch.randn(2, 3)
    with backends.use("auto"):
        close(ops.lora_linear(x, w, a, b, 0.5), (x @ w + 0.5 * x @ a @ b).double())
        y = x.clone()
        assert ops.add_mul_act_(y, x, x[0]) is y
        close(y, torch.relu(x + 0.5 * x + x[0]).double())
    assert not by


def test_where_cuda_cannot_run_triton_serves(gpu, monkeypatch):
    x = torch.randn(64, 64)
    monkeypatch.setattr(choices, "usable", functools.lru_cache(lambda: False))
    monkeypatch.setattr(type(table.get("cuda")), "unavailable", lambda self: "it launches through cuda-core")
    with backends.use("auto"):
        close(ops.softmax(x), torch.softmax(x.double(), -1))
    assert not by and choices.summary("sm_90").endswith("cannot run here: triton-gpu serves every call (it launches through cuda-core)")


def test_wrong_arguments_are_told_as_ever(gpu):
    with backends.use("auto"):
        with pytest.raises(base.ArgumentError, match="argument 'a' is 64x64 and 'b' is 3x4"):
            ops.matmul(torch.randn(64, 64), torch.randn(3, 4))
        with pytest.raises(base.ArgumentError, match="argument 'dim' is 5"):
            ops.softmax(torch.randn(64, 64), 5)
        with pytest.raises(base.ArgumentError, match="argument 'b' has shape 64"):
            ops.matmul(torch.randn(64, 64), torch.randn(64))
        with pytest.raises(base.ArgumentError, match="argument 'x' has dtype"):
            ops.softmax(torch.ones(64, 64, dtype=torch.int32))
        assert ops.softmax(torch.empty(0, 64)).shape == (0, 64) and ops.softmax(torch.tensor(3.0)) == 1
    assert not by


# --- the table -------------------------------------------------------------------------------------------------------


def test_another_gpus_measurements_do_not_count(gpu):
    x = torch.randn(64, 64)
    for kind, served in (("sm_80", []), ("AVX2", []), ("sm_90", ["softmax"])):
        gpu(TIMES, kind)
        with backends.use("auto"):
            ops.softmax(x)
        assert by == served


def test_no_table_and_an_empty_one(gpu):
    x = torch.randn(64, 64)
    gpu("{}").unlink()
    with backends.use("auto"):
        close(ops.softmax(x), torch.softmax(x.double(), -1))
    for text in ("{}", '{"sm_90": {"tiles": {}, "runs": []}}', '{"sm_90": {"choices": {}}}'):
        gpu(text)
        with backends.use("auto"):
            ops.softmax(x)
    assert not by


@pytest.mark.parametrize("times, said", [
    (3, "choices' times is '3'"), ({"softmax": []}, r"softmax is '\[\]'"), ({"softmax": {"fp32": 1}}, "softmax fp32 is"),
    *(({"softmax": {"fp32": {"rows": lines}}}, "softmax fp32 rows is") for lines in (
        4, [4], [[]], [[1.0, 2.0, 0.0]], [[64, 64, 1, 5.0, "4.0", 0.0]], [[64, 64, 1, 5.0, -4.0, 0.0]], [[64, 64, 1, 5.0, 4.0, None]],
        [[64, 0, 1, 5.0, 4.0, 0.0]], [[64, 64.5, 1, 5.0, 4.0, 0.0]], [[64, True, 1, 5.0, 4.0, 0.0]], [[64, 64, 1, 5.0, 4.0, 0.0], [64, 5.0, 4.0, 0.0]]))])
def test_a_damaged_table_is_told(times, said, gpu):
    path = gpu(times)
    with backends.use("auto"), pytest.raises(base.Error, match=f"^{path}: sm_90: {said}.*measure them again by `triport tune --choose`"):
        ops.softmax(torch.randn(64, 64))
    path = gpu('{"sm_90": ')
    with backends.use("auto"), pytest.raises(base.Error, match=f"^{path}: it is no table"):
        ops.softmax(torch.randn(64, 64))
    assert not by and not choice.in_use


def test_every_op_that_calls_may_name_a_backend_for_has_a_choice():
    assert choices.LIKE.keys() == register.IMPLEMENTATIONS["cuda"].keys() - {"add_mul_act_"}
    assert register.IMPLEMENTATIONS["auto"].keys() == register.IMPLEMENTATIONS["cuda"].keys() | {"lora_linear"}


def test_the_column_of_a_benchmark(gpu, tmp_path, monkeypatch, capsys):
    """Checked and timed like any other, and it says whom it chose."""
    monkeypatch.setattr(roofline, "measure", lambda *args: {"bytes_per_s": 1e10, "flop_per_s": 1e11})  # it takes seconds
    path = tmp_path / "rows.json"
    assert main(["bench", "--op", "softmax", "--op", "lora_linear", "--case", "64x64", "--case", "64x64,dim=0", "--case", "8x8,8x8,8x2,2x8", "--backend", "auto",
                 "--backend", "triton-cpu", "--reps", "2", "--no-cold", "--json", str(path)]) == 0
    rows = [(r["op"], r["case"], r["backend"], r.get("by"), r["status"]) for r in json.loads(path.read_text())["rows"]]
    assert rows == [("softmax", case, *column, "ok") for case, by in (("64x64", "cuda"), ("64x64,dim=0", "triton-gpu"))
                    for column in (("auto", by), ("triton-cpu", None))] + [("lora_linear", "8x8,8x8,8x2,2x8", "triton-cpu", None, "ok")]
    assert "softmax" in by
    out, err = capsys.readouterr()
    assert re.search(r"backend +by +time", out) and re.search(r"auto +cuda +~?[0-9.]+ ", out) and "auto: cuda was faster on 4 of 6 shapes" in err


# --- without a GPU, and with a real one ------------------------------------------------------------------------------


def test_it_says_why_it_cannot():
    reason = unavailable("auto")
    assert reason == unavailable("triton-gpu")
    if reason is None:
        pytest.skip("it can, here")
    with pytest.raises(base.Unavailable) as e:
        with backends.use("auto"):
            pass
    assert str(e.value) == f"backend auto cannot run here: {reason}" and not choice.in_use
    assert base.Backend.remark(backends.get("auto")) == backends.get("auto").remark() == ""


@pytest.mark.gpu
@pytest.mark.skipif(bool(unavailable("cuda")), reason=str(unavailable("cuda")))
def test_on_a_gpu(monkeypatch, tmp_path):
    path, kind = tmp_path / "t.json", tuning.gpu_kind()
    x = torch.randn(64, 64, device="cuda")
    monkeypatch.setenv("TRIPORT_TUNED", str(path))
    launched = []
    for times, served in ((TIMES, "cuda"), ({}, "triton-gpu")):
        path.write_text(json.dumps({kind: {"tiles": {}, "runs": [], "choices": {"times": times}}}))
        choices.forget()
        replay.forget()
        with backends.use("auto") as auto:
            assert auto.chosen(registry.get("softmax"), x) == served
            for _ in range(4):
                close(ops.softmax(x), torch.softmax(x.double(), -1))
        launched.append(len(replay.site("softmax", chosen=True)._calls))
    assert launched == [1, 1]
    monkeypatch.undo()
    choices.forget()
    replay.forget()
