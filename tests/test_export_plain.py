"""Users' functions that look at their numbers as text, ask what they are, or round them: exported, they do as they do when they are called, or are refused."""

import math
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from spine_c import OK, STATUS, Linked, machine
from triport.backends.base import Unsupported
from triport.backends.cpu.llvm import targets
from triport.backends.spine import bundle, user


@triton.jit
def scaled_kernel(x_ptr, out_ptr, n, s, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * s, mask=i < n)


def scaled(x: torch.Tensor, s) -> torch.Tensor:
    out = torch.empty_like(x)
    scaled_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), s, BLOCK=64)
    return out


def by_digits(x):
    return scaled(x, len(str(x.shape[0])))


def by_text(x, s: float):
    return scaled(x, 1.0 if f"{s}" == "0.5" else 3.0)


def printed(x):
    print("size", x.shape[0])
    return scaled(x, 2)


def by_kind(x, n: int):
    return scaled(x, n if isinstance(n, int) and not isinstance(n, float) else -1)


def rounded(x):
    n = x.shape[0]
    return scaled(x, abs(20 - n) + 100 * math.ceil(n / 3) + 10000 * round(n / 4) + 1000000 * math.floor(n / 7))


def by_object(x, flag: bool):
    return scaled(x, 2 if flag is True else 3)


def by_type(x, n: int):
    return scaled(x, 2 if type(n) is int else 3)


EXAMPLES = {by_digits: "x=fp32[300]", by_text: "x=fp32[300], s=0.5", printed: "x=fp32[300]", by_kind: "x=fp32[300], n=3", rounded: "x=fp32[300]",
            by_object: "x=fp32[300], flag=True", by_type: "x=fp32[300], n=3"}


def call_of(function):
    return user.calls(function, Path(__file__), sys.modules[__name__], [EXAMPLES[function]])


@pytest.fixture(scope="module", params=[machine("here")])
def linked(request, tmp_path_factory):
    return Linked([c for f in (by_digits, by_text, printed, by_kind, rounded) for c in call_of(f)], request.param, tmp_path_factory.mktemp("c"))


def called(linked, function, *args):
    f = next(f for f in linked.bundle.manifest["functions"] if f["op"] == function.__name__)
    (status, said, got), = linked.calls([list(args)], f["name"], False)
    return status, got[f["results"][0]] if status == OK else said


@pytest.mark.parametrize("function, numbers, sizes", [(by_digits, [()], (100, 300, 7, 1234)), (by_text, [(0.5,), (0.25,)], (9,)), (by_kind, [(3,), (-70000,)], (9,))])
def test_what_is_asked_of_a_number_is_of_the_number(linked, function, numbers, sizes):
    """Text fixes what it is of: other numbers are refused with a status, and none is wrong."""
    right = 0
    for size in sizes:
        for more in numbers:
            x = torch.randn(size)
            status, got = called(linked, function, x, *more)
            assert status in (OK, STATUS["TRIPORT_BAD_SHAPE"]), got
            if status == OK:
                torch.testing.assert_close(got, function(x, *more), rtol=0, atol=0)
                right += 1
    assert right == (2 if function is by_kind else 1)


@pytest.mark.parametrize("size", [1, 2, 5, 6, 14, 20, 21, 700])
def test_rounded_sizes(linked, size):
    """Halves go to the even one, as Python's do."""
    x = torch.ones(size)
    status, got = called(linked, rounded, x)
    assert status == OK, got
    torch.testing.assert_close(got, rounded(x), rtol=0, atol=0)


def test_print_fixes_nothing(linked):
    for size in (3, 300):
        x = torch.randn(size)
        status, got = called(linked, printed, x)
        assert status == OK and torch.equal(got, 2 * x)


@pytest.mark.parametrize("function, words", [(by_object, "`is` looks at the object; write `if flag`"), (by_type, r"ask isinstance\(n, ...\)")])
def test_what_cannot_be_answered_is_refused(function, words):
    with pytest.raises(Unsupported, match=rf"{function.__name__} cannot be exported, test_export_plain.py:\d+ \(`return scaled.*{words}"):
        bundle.make(call_of(function), targets.get("x86-64-v2"), cases=False)
