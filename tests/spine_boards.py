"""What the tests of boards share: which runners there are, and small cases for every op."""

import pytest
from triport.backends.base import Error
from triport.backends.spine import runner
from triport.ops import Case

#: runner -> targets whose code it runs
BOARDS = {"qemu:riscv64?vlen=0": ("rv64gc",), "qemu:riscv64?vlen=128&zvfh=false": ("rv64gcv",), "qemu:riscv64?vlen=256": ("spacemit-x60", "spacemit-k3-x100"),
          "qemu:riscv64?vlen=512&zvfh=false": ("rv64gcv:vlen512",), "qemu:riscv64?vlen=1024": ("spacemit-k3-a100",), "qemu:aarch64": ("aarch64",)}
#: op -> small cases of odd sizes
CASES = {"square": (Case(((17, 23),)), Case(((1, 1),))), "gelu": (Case(((5, 3, 29),)), Case(((1000,),))),
         "add_relu": (Case(((17, 23), (23,))), Case(((3, 1030), (1030,)))),
         "add_mul_act": tuple(Case(((17, 23), (17, 23), (23,)), {"act": act}) for act in ("relu", "gelu", "sigmoid", "silu", "tanh")),
         "softmax": (Case(((9, 333),)), Case(((2, 1),)), Case(((133, 35),), {"dim": 0}), Case(((3, 70, 5),), {"dim": 1})),
         "matmul": (Case(((33, 47), (47, 65))), Case(((20, 31), (31, 40)), transposed=(1,)), Case(((9, 17), (17, 1)), transposed=(0,))),
         "matmul_softmax": (Case(((33, 47), (47, 65)), {"dim": 0}, scale=0.3), Case(((33, 47), (47, 65)), {"dim": -1}, scale=0.3),
                            Case(((300, 8), (8, 5)), {"dim": 0}, scale=0.3)),
         "lora_linear": (Case(((33, 47), (47, 65), (47, 5), (5, 65)), {"s": 0.5}), Case(((3, 9, 17), (17, 23), (17, 70), (70, 23)), transposed=(1, 2)))}


def missing(name: str) -> str:
    """Why a runner is not there; "" where it is."""
    try:
        runner.get(name)
    except Error as e:
        return str(e)
    return ""


def on(name: str, *values):
    """pytest.param that is skipped, with the reason, where the runner is not there."""
    reason = missing(name)
    return pytest.param(name, *values, marks=pytest.mark.skipif(bool(reason), reason=reason))
