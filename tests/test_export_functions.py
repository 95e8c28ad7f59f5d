"""Users' functions as C functions: called by C programs, on this machine and an emulated K1, with random sizes between pages that must not be touched; against float64."""

from pathlib import Path

import pytest
import torch
import users_functions as users
from spine_c import MACHINES, OK, STATUS, Linked, machine
from triport.backends.spine import user
from triport.bench import check

PATH = Path(users.__file__)
EXAMPLES = {"embedding": ["weight=fp32[77,33], ids=int64[20]<77"], "cross_entropy": ["logits=fp32[30,77], labels=int64[30]<77"], "dequant_matmul": [], "layer_norm": [],
            "add_": ["x=fp32[300], y=fp32[300], alpha=0.5"], "histogram": ["x=int64[300]<17, bins=17"], "softmax": ["x=fp32[37,200;ld=210]"], "several": [],
            "dropout": ["x=fp32[1000], p=0.25, seed=7"], "masked": ["x=fp32[300], mask=bool[300], causal=True"],
            "gated": ["x=fp16[300], mask=bool[300], b=fp16[1], act='none', scale=3.0, flag=True"], "copies": ["x=fp32[5,7], y=fp32[7,5]"], "total": ["x=fp32[30], start=1.0"],
            "given_result": ["x=fp32[9,20], out=fp32[9,20;ld=30]"]}


def calls_of(name: str, *texts: str) -> list:
    return user.calls(getattr(users, name), PATH, users, list(texts) or EXAMPLES[name])


@pytest.fixture(scope="module", params=[machine(name) for name in MACHINES])
def linked(request, tmp_path_factory):
    return Linked([c for name in EXAMPLES for c in calls_of(name)], request.param, tmp_path_factory.mktemp("c"), within=(1, 256))


def wide(values: list) -> list:
    return [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v.clone() if isinstance(v, torch.Tensor) else v for v in values]


def right(linked, name: str, calls: list[list], wants=None, allowed: float = 3e-6):
    """Every call's tensors are those of the reference, wherever they lie."""
    f = next(f for f in linked.bundle.manifest["functions"] if f["op"] == name)
    for at_start in (False, True):
        for values, (status, said, got) in zip(calls, linked.calls(calls, f["name"], at_start)):
            assert status == OK, (values, said)
            out = (wants or getattr(users, f"{name}_reference"))(*wide(values))
            out = [out] if isinstance(out, torch.Tensor) else list(out)
            for result, want in zip(f["results"], out):
                assert got[result].shape == want.shape
                assert check.error(got[result], want.double()) <= allowed, (name, [getattr(v, "shape", v) for v in values])


@pytest.fixture
def sizes(seed):
    """sizes(n, most): n random sizes from 1 up."""
    g = torch.Generator().manual_seed(seed)
    return lambda n, most=200: torch.randint(1, most, (n,), generator=g).tolist()


@pytest.mark.first(1)
def test_gather_with_int64_labels(linked, sizes):
    right(linked, "embedding", [[torch.randn(v, d), torch.randint(0, v, (n,))] for v, d, n in (sizes(3, 150) for _ in range(5))], allowed=0)


def test_cross_entropy_with_int64_labels(linked, sizes):
    right(linked, "cross_entropy", [[torch.randn(m, n), torch.randint(0, n, (m,))] for m, n in [*(sizes(2, 60) for _ in range(3)), (3, 1), (2, 2), (2, 64), (2, 65), (1, 256)]])


def test_int8_weights_and_a_leading_dimension(linked, sizes):
    calls = []
    for m, k, n, pad in [*(sizes(4, 80) for _ in range(4)), (33, 70, 45, 1)]:
        a = torch.randn(m, k + pad - 1)[:, :k]
        calls.append([a, torch.randint(-128, 128, (k, n), dtype=torch.int8), torch.rand(n)])
    right(linked, "dequant_matmul", calls)


def test_several_results_and_a_number(linked, sizes):
    calls = [[torch.randn(m, n), torch.randn(n), torch.randn(n), eps] for (m, n), eps in zip([*(sizes(2, 99) for _ in range(3)), (2, 250)], (1e-5, 0.1, 3.0, 1e-9))]
    right(linked, "layer_norm", calls)
    f = linked.bundle.function("triport_layer_norm_fp32")[1]
    assert f["results"] == ["y", "mean", "rstd"] and "double eps" in f["declaration"]


def test_in_place(linked, sizes):
    """What a function changes is no const, and comes back."""
    f = linked.bundle.function("triport_add__fp32")[1]
    assert "(float *x, const float *y," in f["declaration"] and f["results"] == []
    for n in sizes(4, 2000):
        x, y = torch.randn(n), torch.randn(n)
        (status, _, got), = linked.calls([[x, y, -1.25]], f["name"])
        assert status == OK and check.error(got["x"], x.double() - 1.25 * y.double()) < 1e-6


def test_atomics_into_zeros(linked, sizes):
    right(linked, "histogram", [[torch.randint(0, b, (n,)), b] for n, b in (sizes(2, 900) for _ in range(5))], allowed=0)


def test_the_tutorials_softmax(linked, sizes):
    """Every class, its ends, both layouts; beyond the classes a status."""
    calls = [[torch.randn(2, n + pad)[:, :n]] for n in (1, 2, 3, 4, 5, 64, 65, 127, 128, 129, 256, *sizes(3, 256)) for pad in (0, 3)]
    right(linked, "softmax", calls)
    (status, said, _), = linked.calls([[torch.randn(2, 257)]], "triport_softmax_fp32")
    assert status == STATUS["TRIPORT_BAD_SHAPE"] and "none of its 18 classes" in said
    assert "x_size1 > 32 && x_size1 <= 64" in linked.header


def test_several_kernels_and_allocations(linked, sizes):
    right(linked, "several", [[torch.randn(n), torch.randn(n)] for n in sizes(4, 3000)])


def test_a_seed(linked, sizes):
    """The same numbers as here, for the same seed."""
    for n, seed in zip(sizes(3, 5000), (0, 7, 123456)):
        x = torch.randn(n)
        (status, _, got), = linked.calls([[x, 0.3, seed]], "triport_dropout_fp32")
        assert status == OK and torch.allclose(got["out"], users.dropout(x, 0.3, seed))
    (status, said, _), = linked.calls([[torch.randn(4), 0.3, 1 << 40]], "triport_dropout_fp32")
    assert status == STATUS["TRIPORT_BAD_SIZE"]


def test_a_truth_value_has_both_classes(linked, sizes):
    calls = [[torch.randn(n), torch.ones(n, dtype=torch.bool), flag] for n in sizes(3) for flag in (True, False)]
    right(linked, "masked", calls, wants=lambda x, mask, causal: x * (2 if causal else 3))
    assert "const uint8_t *mask" in linked.header and "int causal" in linked.header


def test_masks_and_numbers_of_each_kind(linked, sizes):
    """What is a constant of the example is no argument; truth values come back as such."""
    calls = [[torch.randn(n).half(), torch.rand(n) > 0.5, torch.randn(1).half(), scale, flag] for n in sizes(2) for scale in (2.5, -1.0) for flag in (True, False)]
    right(linked, "gated", calls, wants=lambda x, mask, b, scale, flag: users.gated_reference(x, mask, b, "none", scale, flag), allowed=1e-3)
    assert "act='none'" in linked.header and "uint8_t *positive" in linked.header


def test_copies_and_fills(linked, sizes):
    right(linked, "copies", [[torch.randn(m, n), torch.randn(n, m)] for m, n in ((1, 1), (3, 1), (1, 5), *(sizes(2, 60) for _ in range(2)))])
    right(linked, "total", [[torch.rand(n), 3.5] for n in sizes(3, 3000)], allowed=1e-5)  # of one sign: a sum near zero has any error, beside itself


def test_a_result_that_is_given_has_a_leading_dimension(linked, sizes):
    f = linked.bundle.function("triport_given_result_fp32")[1]
    assert "int64_t out_ld" in f["declaration"] and "const float *x, float *out" in f["declaration"]
    for (m, n), pad in zip((sizes(2, 60) for _ in range(4)), (0, 1, 0, 9)):
        x, out = torch.randn(m, n), torch.zeros(m, n + pad)[:, :n]
        for at_start in (False, True):
            (status, said, got), = linked.calls([[x, out]], f["name"], at_start)
            assert status == OK and check.error(got["out"], x.double() / n**0.5) < 1e-6, said
