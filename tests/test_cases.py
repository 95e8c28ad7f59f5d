"""Sizes of one's own: the text of a case and of a sweep, the same for every command."""

import math
import string

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from triport import backends
from triport.backends.base import Error
from triport.ops import Case, Op, cases, drawn, registry
from triport.tools.__main__ import main

SOFTMAX, MATMUL, ADD_RELU, ADD_MUL_ACT, LORA = map(registry.get, ("softmax", "matmul", "add_relu", "add_mul_act", "lora_linear"))
LOSS = Op("loss", eager=lambda x, labels, mask: None, cases=("64x1000,64:int64<1000,64:bool",), dims="MxN,M,M")


def names(op, *texts, device="cpu"):
    return [c.name for c in cases.select(op, list(texts), device)]


@pytest.mark.parametrize("op,text,name", [
    (SOFTMAX, "700x300", "700x300"), (SOFTMAX, "2x3x4", "2x3x4"), (SOFTMAX, "512", "512"), (SOFTMAX, "0x5", "0x5"), (SOFTMAX, "scalar", "scalar"),
    (SOFTMAX, " 700x300 , dim=0 ", "700x300,dim=0"), (SOFTMAX, "M=3,N=4", "3x4"), (MATMUL, "700x300,300x50", "700x300,300x50"),
    (MATMUL, "700x300,N=50", "700x300,300x50"), (MATMUL, "4096x4096,4096x4096t", "4096x4096,4096x4096t"), (MATMUL, "64x32t,32x8", "64x32t,32x8"),
    (MATMUL, "M=3,N=4,K=5", "3x5,5x4"), (MATMUL, "7x2x3,3x4", "7x2x3,3x4"), (ADD_RELU, "700x300", "700x300,300"),
    (ADD_MUL_ACT, "5x7,act=gelu,m=0.25", "5x7,5x7,7,act=gelu,m=0.25"), (LORA, "M=5,K=6,N=7,R=2", "5x6,6x7,6x2,2x7"),
    (LOSS, "3x10", "3x10,3:int64<1000,3:bool"), (LOSS, "3x10,3:int64<10,3:bool", "3x10,3:int64<10,3:bool")])
def test_a_text_is_a_case(op, text, name):
    assert names(op, text) == [name]


@pytest.mark.parametrize("name", registry.NAMES)
def test_names_are_unique_and_are_read_back(name):
    op = registry.get(name)
    assert len({c.name for c in op.cases}) == len(op.cases)
    for case in op.cases:
        assert cases.parse(op, case.name) is case


SIZES = st.lists(st.integers(0, 99999), min_size=0, max_size=4).map(tuple)
VALUES = st.one_of(st.integers(-9, 9), st.floats(-9, 9).filter(lambda v: v == v), st.booleans(), st.none(), st.sampled_from(["gelu", "relu"]))


@given(st.lists(st.tuples(SIZES, st.booleans(), st.sampled_from(["", "bool", "int64", "int64<1000", "uint8<255", "fp64"])), min_size=1, max_size=4),
       st.dictionaries(st.sampled_from(["dim", "m", "act", "n_heads"]), VALUES, max_size=3))
def test_any_case_is_read_back(tensors, kwargs):
    op = Op("any", call=lambda *tensors, **kwargs: None, cases=("1",))
    shapes = tuple(s for s, _, _ in tensors)
    turned = tuple(k for k, (s, t, _) in enumerate(tensors) if t and len(s) == 2)
    case = Case(shapes, kwargs, turned, types=tuple(kept for _, _, kept in tensors))
    if max(map(math.prod, shapes)) > cases.LARGEST:
        with pytest.raises(Error, match="larger than any memory"):
            cases.parse(op, case.name)
        return
    again = cases.parse(op, case.name)
    assert again.name == case.name and again.shapes == shapes and again.transposed == turned and again.kwargs == kwargs
    assert all(again.type_of(k) == case.type_of(k) for k in range(len(shapes)))


@given(st.text(string.ascii_letters + string.digits + "x,=:<.- t", max_size=30))
def test_any_text_is_a_case_or_an_error(text):
    for op in (SOFTMAX, MATMUL, LOSS):
        try:
            found = cases.select(op, [text])
        except Error as e:
            assert op.name in str(e) or text in str(e)
        else:
            assert all(isinstance(c, Case) for c in found)


@given(st.text("MNK=.,:x+0123456789dim-", max_size=24))
@example("K=,")
@example("M=5,x")
def test_any_text_is_a_sweep_or_an_error(text):
    try:
        assert cases.sweep(MATMUL, [MATMUL.cases[0]], [text])
    except Error as e:
        assert text in str(e) or "matmul" in str(e)


@pytest.mark.parametrize("op,text,said", [
    (MATMUL, "700x300", "matmul takes MxK,KxN; say N, as in 700x300,N=500"), (MATMUL, "3x4,5x6", "K is 4 in one tensor and 5 in another"),
    (MATMUL, "3x4,4x5,5x6", "not 3 tensors"), (MATMUL, "3x4,M=7,N=2", "M is 3 by a tensor's sizes and 7 by its name"),
    (SOFTMAX, "3x4,5x6", "softmax takes x, dim; 2 tensors do not fit"), (SOFTMAX, "12x", "neither a tensor's sizes"), (SOFTMAX, "dim=0,3x4", "tensors come first"),
    (SOFTMAX, "3x4,dim=0,dim=1", "dim is there twice"), (SOFTMAX, "3x4,dmi=0", "did you mean 'dim'?"), (SOFTMAX, "3t", "1 dimensions, not 2 or more"),
    (SOFTMAX, "9999999x9999999x9999999", "larger than any memory"), (SOFTMAX, "3x4:int65", "it takes fp32"), (SOFTMAX, "3x4:bool<2", "<N goes with an integer"),
    (SOFTMAX, "3x4:int8<300", "<N goes with an integer type that holds it"), (SOFTMAX, "1823x78l", "neither a tensor's sizes"),
    (SOFTMAX, "rows", "unknown case 'rows'"), (ADD_RELU, "33x65,65x29", "N is 65 in one tensor and 29 in another"), (SOFTMAX, "M=x,N=3", "takes a size, not 'x'")])
def test_what_is_no_case_says_why(op, text, said):
    with pytest.raises(Error) as e:
        cases.select(op, [text])
    assert said in str(e.value)


def test_part_of_a_name_chooses_by_whole_numbers_and_words():
    assert names(MATMUL, "512x512") == ["512x512,512x512", "512x512,512x512t"]
    assert names(MATMUL, "1024") == ["1024x1024,1024x1024"] and names(MATMUL, "512t") == ["512x512,512x512t"]
    assert names(SOFTMAX, "23x78") == ["23x78"], "not 1823x781"
    assert names(SOFTMAX, "dim=0") == ["1024x1024,dim=0"] and len(names(SOFTMAX, "dim=0", device="cuda")) == 3
    assert names(ADD_MUL_ACT, "act=silu") == ["512x512,512x512,512,act=silu"]
    with pytest.raises(Error, match="parameter"):
        cases.select(MATMUL, ["act=silu"])


def test_an_ops_own_case_keeps_its_values():
    hot = next(c for c in registry.get("gelu").cases if c.scale == 3.0)
    assert cases.parse(registry.get("gelu"), "4096x2048") is hot
    assert cases.parse(registry.get("matmul_softmax"), "40x30,30x20").scale == registry.get("matmul_softmax").cases[0].scale


@pytest.mark.parametrize("op,sweeps,want", [
    (SOFTMAX, ["M=256..2048:x2"], ["256x128", "512x128", "1024x128", "2048x128"]), (SOFTMAX, ["N=100..350:+100"], ["128x100", "128x200", "128x300"]),
    (SOFTMAX, ["N=3..9"], ["128x3", "128x6"]), (SOFTMAX, ["M=10..40:x1.5"], ["10x128", "15x128", "23x128", "35x128"]),
    (SOFTMAX, ["M=7,5", "dim=0,-1"], ["7x128,dim=0", "7x128,dim=-1", "5x128,dim=0", "5x128,dim=-1"]),
    (MATMUL, ["M=N=K=64..256"], ["64x64,64x64", "128x128,128x128", "256x256,256x256"]), (MATMUL, ["K=1,2"], ["128x1,1x128", "128x2,2x128"])])
def test_sweeps(op, sweeps, want):
    assert [c.name for c in cases.sweep(op, [op.cases[0]], sweeps)] == want


def test_sweeps_that_contradict_and_dimensions_without_names():
    with pytest.raises(Error, match="N is there twice"):
        cases.sweep(SOFTMAX, [SOFTMAX.cases[0]], ["N=1,2", "N=3"])
    odd = Op("odd", call=lambda x, y: x, cases=("3x4,5",))
    with pytest.raises(Error, match="say dims= in its Op"):
        cases.sweep(odd, [odd.cases[0]], ["M=1..4"])


@pytest.mark.parametrize("text,said", [
    ("Q=1..3", "unknown parameter 'Q'. Known: M, N, dim, x"), ("M=3..1", "goes upwards"), ("M=0..4:x2", "goes upwards"), ("M=1..5:x1", "goes upwards"),
    ("M=1..5:+0", "goes upwards"), ("M=a..b", "it takes NAME=START..STOP"), ("M", "it takes NAME=START..STOP"), ("M=", "it takes NAME=START..STOP"),
    ("M=1..999999999:+1", "more than 1000"), ("M=1,x", "takes a size, not 'x'")])
def test_what_is_no_sweep_says_why(text, said):
    with pytest.raises(Error) as e:
        cases.sweep(SOFTMAX, [SOFTMAX.cases[0]], [text])
    assert said in str(e.value)


def test_types_follow_the_dimensions():
    op = Op("loss", eager=lambda x, labels, mask: None, cases=("64x1000",), dims="MxN,M:int64<N,M:bool")
    assert op.cases[0].name == "64x1000,64:int64<1000,64:bool" and names(op, "3x10") == ["3x10,3:int64<10,3:bool"]
    assert names(op, "3x10,3:int64<4") == ["3x10,3:int64<4,3:bool"]
    assert [c.name for c in cases.sweep(op, [op.cases[0]], ["N=5,7"])] == ["64x5,64:int64<5,64:bool", "64x7,64:int64<7,64:bool"]


def test_a_builtin_and_more_tensors_than_the_cases_have():
    builtin = Op("relu", eager=torch.relu_, variants={"mine": lambda x: x.relu_()}, mutates=("x",), cases=("3x4",))
    assert list(cases.parameters_of(builtin)) == ["x"]
    optional = Op("opt", call=lambda x, y=None: x, cases=("3x4",))
    assert names(optional, "3x4,3x4") == ["3x4,3x4"]


def test_kept_dtypes(seed):
    x, labels, mask = cases.parse(LOSS, "6x10,6:int64<10,6:bool").make(torch.bfloat16, seed=seed)
    assert (x.dtype, labels.dtype, mask.dtype) == (torch.bfloat16, torch.int64, torch.bool)
    assert 0 <= labels.min() and labels.max() < 10 and x.shape == (6, 10)
    few = Case(((50,),), types=("uint8",)).make(torch.float32, seed=seed)[0]
    assert few.dtype == torch.uint8


@pytest.mark.parametrize("make,said", [
    (lambda: Op("bad"), "nothing to run"), (lambda: Op("bad", call=abs, cases=("3x4", "3x4")), "two of its cases"),
    (lambda: Op("bad", call=abs, cases=("3x4",), metrics={"time": abs}), "metric 'time' has the name of a column"),
    (lambda: Op("bad", call=abs, cases=("3x4",), dtypes=("fp33",)), "fp33"), (lambda: Op("bad", variants={"torch": abs}, cases=("3",)), "name of a column"),
    (lambda: Op("bad", variants={"a": abs}, baseline="b", cases=("3",)), "baseline 'b' is none of its columns: a"),
    (lambda: Op("bad", call=abs, baseline="zz", cases=("3",)), "baseline 'zz' is none of its columns: triton-cpu, triton-gpu, call"),
    (lambda: Op("bad", call=abs, backends=("triton_cpu",), cases=("3",)), "unknown backend 'triton_cpu'; did you mean 'triton-cpu'?"),
    (lambda: Op("bad", call=abs, tolerance={"FP32": 1.0}, cases=("3",)), "tolerance of unknown dtype 'FP32'. Known: "),
    (lambda: Op("bad", call=abs, tolerance={"fp32": float("nan")}, cases=("3",)), "tolerance nan of fp32: it takes an error"), (lambda: Op("bad", call=abs, tolerance={"fp16": -1}, cases=("3",)), "tolerance -1 of fp16"),
    (lambda: Op("bad", call=abs, tolerance={"fp32": "1e-3"}, cases=("3",)), "tolerance '1e-3' of fp32"),
    (lambda: Op("bad", call=abs, dims="M*", cases=("3",)), "dims 'M*': 'M*' names no dimension"), (lambda: Op("bad", call="abs"), "call is 'abs', which cannot be called"),
    (lambda: Op("bad", variants={"a": 3}), "variant 'a' is 3, which cannot be called"), (lambda: Op("bad", variants=[abs]), "variants= takes name -> function"),
    (lambda: Op("bad", call=abs, reference=1), "reference is 1, which cannot be called")])
def test_an_op_that_cannot_be_says_why(make, said):
    with pytest.raises(Error) as e:
        make()
    assert "Op 'bad'" in str(e.value) and said in str(e.value)


@pytest.mark.parametrize("make,said", [
    (lambda: Op("", call=abs), "an Op's name is ''; it takes a text"), (lambda: Case("3x4"), "a case's shapes are '3x4'; it takes a tuple of sizes"),
    (lambda: Case(((-1, 3),)), "a case's shapes are ((-1, 3),)"), (lambda: Case(((3, 3),), transposed=(5,)), "transposed tensor 5: it has 1"),
    (lambda: Case(((3, 3),)).make("fp32"), "a case is made in a dtype of torch, as torch.float32, not 'fp32'"), (lambda: registry.get(None), "an op's name is None; it takes one of "),
    (lambda: backends.get(5), "unknown backend 5. Known: "), (lambda: backends.use(None).__enter__(), "unknown backend None. Known: ")])
def test_what_is_no_case_and_no_name(make, said):
    with pytest.raises(Error) as e:
        make()
    assert said in str(e.value)


def test_an_op_without_cases_takes_sizes():
    op = Op("bare", call=lambda x: x)
    assert names(op, "3x4") == ["3x4"] and cases.one(op, "3x4").name == "3x4"
    for choose in (lambda: cases.select(op, []), lambda: cases.one(op, None)):
        with pytest.raises(Error, match="bare has no cases: choose one, as in --case 1823x781"):
            choose()


COMMANDS = {"bench": ["--op", "{op}", "--backend", "triton-cpu", "--reps", "1", "--no-cold", "--json", "{out}.json"], "asm": ["{op}", "--json"],
            "export": ["{op}", "--target", "x86-64-v3", "-o", "{out}"]}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("op,text,name", [("add_relu", "70x30", "70x30,30"), ("matmul", "33x65,N=9", "33x65,65x9")])
def test_every_command_takes_it(command, op, text, name, tmp_path, capsys):
    argv = [a.format(op=op, out=tmp_path / "out") for a in COMMANDS[command]]
    assert main([command, *argv, "--case", text]) == 0
    if command == "bench":
        assert f'"case": "{name}"' in (tmp_path / "out.json").read_text()
    if command == "export":
        assert f'"case": "{name}"' in (tmp_path / "out" / "manifest.json").read_text()
    capsys.readouterr()
    assert main([command, *argv, "--case", "3x4,dmi=5"]) == 2
    assert "unknown parameter 'dmi'" in capsys.readouterr().err


def test_profile_takes_it(tmp_path, capsys):
    assert main(["profile", "square", "--case", "70x30", "--steps", "1", "--no-counters", "--no-roof", "-o", str(tmp_path)]) == 0
    assert "square 70x30 fp32" in (tmp_path / "index.html").read_text()


def test_tune_takes_it(tmp_path, capsys):
    assert main(["tune", "--op", "square", "--case", "64x32", "--dtype", "fp32", "--reps", "1", "--dry-run"]) == 0
    assert "square" in capsys.readouterr().out
    assert main(["tune", "--op", "square", "--case", "64x32", "--sweep", "N=8,16", "--dtype", "fp32", "--reps", "1", "--dry-run"]) == 0
    assert main(["tune", "--op", "square", "--case", "64y", "--dry-run"]) == 2
    assert main(["tune", "--op", "matmul", "--case", "64x64,64x64", "--dry-run"]) == 2
    assert "--case and --sweep do not go with matmul" in capsys.readouterr().err


def test_an_op_that_takes_no_such_case_is_left_out_with_a_remark(capsys, tmp_path):
    argv = ["bench", "--op", "softmax", "--op", "matmul", "--backend", "triton-cpu", "--reps", "1", "--no-cold", "--case", "70x30"]
    assert main(argv) == 0
    said = capsys.readouterr()
    assert "matmul is left out: case '70x30': matmul takes MxK,KxN; say N" in said.err and "70x30" in said.out


@pytest.mark.parametrize("op", [*map(registry.get, registry.NAMES), LOSS], ids=lambda op: op.name)
def test_sizes_that_are_drawn(op):
    """The same for a seed, each another, small enough, with the op's own parameters, and read back by their names."""
    found = drawn.drawn(op, 40, 7)
    assert found == drawn.drawn(op, 40, 7) and found != drawn.drawn(op, 40, 8) and found[:9] == drawn.drawn(op, 9, 7)
    assert len({c.name for c in found}) == 40
    own = [c.kwargs for c in op.cases_on("cpu")]
    for case in found:
        assert cases.parse(op, case.name).name == case.name and case.elements <= drawn.ELEMENTS
        assert all(any(k in kwargs and kwargs[k] == v for kwargs in own) for k, v in case.kwargs.items())
        assert max(n for shape in case.shapes for n in shape) <= drawn.LARGEST and min(n for shape in case.shapes for n in shape) >= 1
    assert any(case.transposed for case in found), "some lie transposed"


def test_what_no_sizes_are_drawn_for():
    with pytest.raises(Error, match="odd has no names for its dimensions, and no sizes are drawn for it"):
        drawn.drawn(Op("odd", eager=lambda x, y: x, cases=(Case(((3, 4), (5,))),)), 1, 0)
    narrow = Op("narrow", eager=lambda x: x, cases=(Case(((2,),)),), flops=lambda x: 1 << 40)
    with pytest.raises(Error, match="narrow: no 3 cases of up to .* operations are found"):
        drawn.drawn(narrow, 3, 0)


def test_bench_of_drawn_sizes(capsys):
    options = ["bench", "--op", "square", "--op", "matmul", "--random", "3", "--seed", "5", "--reps", "2", "--no-cold", "--backend", "torch"]
    assert main([*options, "--format", "markdown"]) == 0
    shown = capsys.readouterr().out
    assert all(c.name in shown for op in (registry.get("square"), MATMUL) for c in drawn.drawn(op, 3, 5))
    for more, said in ((["--case", "3x3"], "--random draws cases of its own"), (["--sweep", "N=1,2"], "--random draws cases of its own")):
        assert main([*options, *more]) == 2 and said in capsys.readouterr().err
    assert main([*options[:5], "--random", "0"]) == 2 and "--random 0" in capsys.readouterr().err
    assert main([*options[:5], "--random", "9999"]) == 2 and "it takes 1000 at most" in capsys.readouterr().err
