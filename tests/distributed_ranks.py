"""What ranks run for tests/test_distributed.py: `python distributed_ranks.py FOLDER [RANKS [CHECK ...]]`, by gloo on the CPU or with DEVICE=cuda by NCCL.

One process imports torch and forks the ranks, group after group, which find each other through a file. Each rank writes
FOLDER/<ranks>-<rank>.json: check -> "" or what went wrong.
"""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from datetime import timedelta

import conftest  # noqa: F401  (the name triport in a bare checkout)
import torch
import triport.ops  # noqa: F401  (alone, to see what it imports)

LIGHT = "torch.distributed.tensor" not in sys.modules  # in a process that has met no DTensor

import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from triport import ops
from triport.backends.base import ArgumentError
from triport.bench import ranks
from triport.ops.accuracy import error
from triport.tools import __main__ as tools
from triport.tools import exits

R, P, S = Replicate(), Partial(), Shard
WIDE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
device = os.environ.get("DEVICE", "cpu")


def low_rank(x, w, a, b, s):
    return x @ w + s * ((x @ a) @ b)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def add_mul(x, y, bias):
    return torch.tanh(x + 0.7 * y + bias)


M, K, N = 37, 22, 29
MATRIX, AB, ROW, LORA = ((M, N),), ((M, K), (K, N)), ((M, N), (N,)), ((M, K), (K, N), (K, 5), (5, N))
XYB = (*MATRIX, *ROW)
SPREAD = {"all_reduce": 2}  # the maximum and the sum
#: name -> op, the same in torch, shapes, placements of the tensors and of the result on a mesh of one dimension, collectives of the forward
CASES = {
    "square by rows": (ops.square, torch.square, MATRIX, (S(0),), S(0), {}),
    "square by columns": (ops.square, torch.square, MATRIX, (S(1),), S(1), {}),
    "square of sums": (ops.square, torch.square, MATRIX, (P,), None, None),
    "square of few rows": (ops.square, torch.square, ((3, N),), (S(0),), None, None),
    "gelu by columns": (ops.gelu, gelu, MATRIX, (S(1),), S(1), {}),
    "add_relu by rows": (ops.add_relu, lambda x, b: torch.relu(x + b), ROW, (S(0), R), S(0), {}),
    "add_relu by columns": (ops.add_relu, lambda x, b: torch.relu(x + b), ROW, (S(1), S(0)), S(1), {}),
    "add_mul_act by rows": (lambda *t: ops.add_mul_act(*t, 0.7, "tanh"), add_mul, XYB, (S(0), S(0), R), S(0), {}),
    "add_mul_act by columns": (lambda *t: ops.add_mul_act(*t, 0.7, "tanh"), add_mul, XYB, (S(1), S(1), S(0)), S(1), {}),
    "softmax by rows": (ops.softmax, lambda x: x.softmax(-1), MATRIX, (S(0),), S(0), {}),
    "softmax over a sharded dimension": (ops.softmax, lambda x: x.softmax(-1), MATRIX, (S(1),), S(1), SPREAD),
    "softmax over sharded rows": (lambda x: ops.softmax(x, 0), lambda x: x.softmax(0), MATRIX, (S(0),), S(0), SPREAD),
    "softmax over fewer than ranks": (lambda x: ops.softmax(x, 0), lambda x: x.softmax(0), ((3, N),), (S(0),), S(0), SPREAD),
    "softmax of sums": (ops.softmax, lambda x: x.softmax(-1), MATRIX, (P,), S(0), {"reduce_scatter_tensor": 1}),
    "matmul by rows": (ops.matmul, torch.matmul, AB, (S(0), R), S(0), {}),
    "matmul by columns": (ops.matmul, torch.matmul, AB, (R, S(1)), S(1), {}),
    "matmul by K": (ops.matmul, torch.matmul, AB, (S(1), S(0)), P, {}),
    "matmul of sums": (ops.matmul, torch.matmul, AB, (P, R), P, {}),
    "matmul of batches": (ops.matmul, torch.matmul, ((5, 3, K), (5, K, 7)), (S(0), S(0)), S(0), {}),
    "matmul of batches by rows": (ops.matmul, torch.matmul, ((2, 5, K), (2, K, 7)), (S(1), R), S(1), {}),
    "matmul of batches by columns": (ops.matmul, torch.matmul, ((2, 5, K), (2, K, 7)), (R, S(2)), S(2), {}),
    "matmul of batches by K": (ops.matmul, torch.matmul, ((2, 5, K), (2, K, 7)), (S(2), S(1)), P, {}),
    "matmul of batches that broadcast": (ops.matmul, torch.matmul, ((5, 1, 3, K), (4, K, 7)), (S(0), R), S(0), {}),
    "matmul of a batch and a matrix": (ops.matmul, torch.matmul, ((5, 3, K), (K, 7)), (S(0), R), S(0), {}),
    "matmul_softmax by rows": (lambda a, b: ops.matmul_softmax(a, b, -1), lambda a, b: (a @ b).softmax(-1), AB, (S(0), R), S(0), {}),
    "matmul_softmax by columns": (lambda a, b: ops.matmul_softmax(a, b, 0), lambda a, b: (a @ b).softmax(0), AB, (R, S(1)), S(1), {}),
    "matmul_softmax over sharded columns": (lambda a, b: ops.matmul_softmax(a, b, -1), lambda a, b: (a @ b).softmax(-1), AB, (R, S(1)), S(1), SPREAD),
    "matmul_softmax over sharded rows": (lambda a, b: ops.matmul_softmax(a, b, 0), lambda a, b: (a @ b).softmax(0), AB, (S(0), R), S(0), SPREAD),
    "matmul_softmax by K": (lambda a, b: ops.matmul_softmax(a, b, -1), lambda a, b: (a @ b).softmax(-1), AB, (S(1), S(0)), S(0), {"reduce_scatter_tensor": 1}),
    "lora_linear by rows": (lambda *t: ops.lora_linear(*t, 0.7), lambda *t: low_rank(*t, 0.7), LORA, (S(0), R, R, R), S(0), {}),
    "lora_linear of a batch": (lambda *t: ops.lora_linear(*t, 0.7), lambda *t: low_rank(*t, 0.7), ((5, 3, K), *LORA[1:]), (S(0), R, R, R), S(0), {}),
    "lora_linear by columns": (lambda *t: ops.lora_linear(*t, 0.7), lambda *t: low_rank(*t, 0.7), LORA, (R, S(1), R, S(1)), S(1), {}),
    "lora_linear by K": (lambda *t: ops.lora_linear(*t, 0.7), lambda *t: low_rank(*t, 0.7), LORA, (S(1), S(0), S(0), R), P, {}),
}


def tensors(shapes, dtype=torch.float32):
    """The same on every rank; of 16 bits smaller, so that a softmax of products that are rounded once more is as near as the type allows."""
    g = torch.Generator().manual_seed(conftest.SEED % 2**31)
    return [(torch.randn(s, generator=g) * (1.0 if dtype.itemsize > 2 else 0.3)).to(dtype) for s in shapes]


def placed(t, mesh, *places):
    """A DTensor of what every rank has; of sums every rank gets its part."""
    parts = [mesh.size(k) if p.is_partial() else 1 for k, p in enumerate(places)]
    t = t.to(device)
    if max(parts) > 1:
        return DTensor.from_local(t / max(parts), mesh, places, run_check=False)
    return distribute_tensor(t, mesh, places, src_data_rank=None)


def near(got, want, dtype=torch.float32, what="result"):
    e = error((got.full_tensor() if isinstance(got, DTensor) else got).cpu(), want.cpu())
    assert e <= WIDE[dtype], f"{what}: error {e}"


def case(name, dtype=torch.float32):
    op, reference, shapes, places, placed_out, collectives = CASES[name]
    mesh, full = init_device_mesh(device, (dist.get_world_size(),)), tensors(shapes, dtype)
    given = [placed(t, mesh, p).requires_grad_() for t, p in zip(full, places)]
    wide = [t.double().requires_grad_() for t in full]
    want = reference(*wide)
    with CommDebugMode() as counted:
        out = op(*given)
    near(out, want.detach(), dtype)
    counts = {op.__name__: n for op, n in counted.get_comm_counts().items() if n}
    if placed_out is not None:
        assert out.placements == (placed_out,), f"placed {out.placements}"
        assert counts == collectives, f"collectives {counts}"
    grad, = tensors((want.shape,), dtype)
    back = placed(grad, mesh, *(R if p.is_partial() else p for p in out.placements))
    got = torch.autograd.grad(out, given, back)
    for k, (g, w) in enumerate(zip(got, torch.autograd.grad(want, wide, grad.double()))):
        near(g, w, dtype, f"gradient of argument {k}")


def half_precision():
    for name in ("softmax over a sharded dimension", "matmul_softmax by K"):
        case(name, torch.bfloat16)


def infinities_and_nans():
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    x, = tensors(((4, N),))
    x[0, :20], x[1], x[2, 3] = -torch.inf, -torch.inf, torch.nan
    torch.testing.assert_close(ops.softmax(placed(x, mesh, S(1))).full_tensor().cpu(), x.softmax(-1), equal_nan=True)


def on_two_dimensions():
    """Rows on one dimension of a mesh and K on the other; a softmax over a dimension that both shard."""
    mesh = init_device_mesh(device, (2, dist.get_world_size() // 2))
    a, b = tensors(AB)
    c = ops.matmul(placed(a, mesh, S(0), S(1)), placed(b, mesh, R, S(0)))
    assert c.placements == (S(0), P)
    near(c, a.double() @ b.double())
    y = ops.matmul_softmax(placed(a, mesh, S(0), S(1)), placed(b, mesh, R, S(0)), -1)
    near(y, (a.double() @ b.double()).softmax(-1))
    x, = tensors(MATRIX)
    with CommDebugMode() as counted:
        y = ops.softmax(placed(x, mesh, S(1), S(1)))
    assert y.placements == (S(1), S(1)) and counted.get_total_counts() == 2 * sum(size > 1 for size in mesh.shape)
    near(y, x.double().softmax(-1))


def shards_that_a_view_left():
    """Rows of which a rank has some here and some there: torch calls them strided shards, which are no shards to `is_shard`."""
    mesh, ranks = init_device_mesh(device, (dist.get_world_size(),)), dist.get_world_size()
    full, = tensors(((3, 2 * ranks, N),))
    try:
        x = placed(full, mesh, S(1)).view(6 * ranks, N)
    except RuntimeError as e:
        assert "flatten multiple dimensions" in str(e)  # torch 2.11 has no such shards, and refuses the view
        return
    flat = full.double().view(6 * ranks, N)
    near(ops.softmax(x, 0), flat.softmax(0))
    near(ops.softmax(x, 1), flat.softmax(1))
    near(ops.gelu(x), gelu(flat))
    near(torch.ops.triport.softmax_backward(x, x, 0), flat * (flat - (flat * flat).sum(0)))
    near(ops.matmul_softmax(x, placed(full[0, :1].mT.contiguous(), mesh, R), 0), (flat @ full[0, :1].double().mT).softmax(0))


def gradients_with_sums_over_rows():
    """As GPUs compute them: of rows that ranks share a sum is left to be added up, of columns none."""
    mesh, (grad, x, y, bias) = init_device_mesh(device, (dist.get_world_size(),)), tensors(((M, N), (M, N), (M, N), (N,)))
    g, out = grad.double(), x.double().relu()
    wide = [t.double().requires_grad_() for t in (x, y, bias)]
    want = torch.autograd.grad(add_mul(*wide), wide, g)
    for place, row, total in ((S(0), R, P), (S(1), S(0), S(0)), (R, R, R)):
        given, along = [placed(t, mesh, place) for t in (grad, x, y)], placed(bias, mesh, row)
        dz, sums = torch.ops.triport.add_relu_gradients(given[0], given[1].relu(), 1, 1)
        assert (dz.placements, sums.placements) == ((place,), (total,))
        near(dz, torch.where(out > 0, g, 0))
        near(sums, torch.where(out > 0, g, 0).sum(0))
        for asked in ((1, 1, 1), (0, 1, 0), (0, 0, 1)):
            got = torch.ops.triport.add_mul_act_gradients(*given, along, 0.7, "tanh", *asked)
            for to, t, w, p in zip(asked, got, want, (place, place, total)):
                assert t.placements == (p if to else R,)
                if to:
                    near(t, w)
                else:
                    assert t.shape == (0,)


def in_place():
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    x, y, bias = tensors(XYB)
    for places in ((S(0), R, R), (S(1), S(0), R), (R, S(0), S(0))):
        given = [placed(t.clone(), mesh, p) for t, p in zip((x, y, bias), places)]
        assert ops.add_mul_act_(*given, 0.7, "tanh") is given[0] and given[0].placements == places[:1]
        near(given[0], add_mul(x.double(), y.double(), bias.double()))
    square, row = init_device_mesh(device, (2, dist.get_world_size() // 2)), tensors(((1, 8), (1, 8), (8,)))
    given = placed(row[0].clone(), square, S(1), S(0)), placed(row[1], square, S(0), S(0)).requires_grad_(), placed(row[2], square, S(0), S(0))
    ops.add_mul_act_(*given, 0.7, "tanh")  # by copying, for autograd follows
    assert given[0].placements == (S(1), S(0))
    near(given[0].detach(), add_mul(*(t.double() for t in row)))
    for y_ in (placed(y, mesh, R), placed(y, mesh, R).requires_grad_()):
        raises("in plain shards or on every rank", ops.add_mul_act_, placed(x, mesh, P), y_, placed(bias, mesh, R))


def a_replayed_call_takes_no_dtensor():
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    x, = tensors(MATRIX)
    given = placed(x, mesh, S(0))
    for _ in range(3):
        ops.softmax(given.to_local())
    y = ops.softmax(given)
    assert type(y) is DTensor
    near(y, x.double().softmax(-1))


def by_a_named_backend():
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    x, = tensors(MATRIX)
    near(torch.ops.triport.softmax_by(placed(x, mesh, S(1)), 1, ""), x.double().softmax(-1))
    near(torch.ops.triport.square_by(placed(x, mesh, S(1)), ""), x.double().square())


def in_inference_mode():
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    x, = tensors(MATRIX)
    with torch.inference_mode():
        near(ops.softmax(placed(x, mesh, S(1))), x.double().softmax(-1))


def outside_of_a_mesh():
    """Ranks that are none of a mesh's make the same calls, as of torch's ops, and have no part."""
    mesh, mine = DeviceMesh(device, [0, 1]), dist.get_rank() < 2
    a, b, bias = tensors((*AB, (K,)))
    for fn, want in ((lambda a, b: ops.softmax(a, 0), a.softmax(0)), (lambda a, b: ops.softmax(a, 1), a.softmax(1)),
                     (lambda a, b: ops.matmul_softmax(a, b, 1), (a @ b).softmax(1)),
                     (lambda a, b: ops.add_mul_act_(a.detach().clone(), a, placed(bias, mesh, R)), torch.relu(1.5 * a + bias))):
        x = placed(a, mesh, S(0)).requires_grad_()
        out = fn(x, placed(b, mesh, R))
        if out.requires_grad:
            out.sum().backward()
        if mine:
            near(out, want)
        else:
            assert out.to_local().numel() == 0 and out.shape == want.shape


def arguments_that_do_not_fit():
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    a, b = tensors(AB)
    raises("with the same K", ops.matmul, placed(a, mesh, S(0)), placed(a, mesh, R))
    raises("argument 'dim' is 2", ops.softmax, placed(a, mesh, S(0)), 2)


def raises(words, fn, *args):
    try:
        fn(*args)
    except ArgumentError as e:
        assert words in str(e), str(e)
        return str(e)
    raise AssertionError(f"nothing was raised where {words!r} was expected")


def mixed_meshes():
    mesh, other = init_device_mesh(device, (dist.get_world_size(),)), init_device_mesh(device, (2, dist.get_world_size() // 2))
    a, b = tensors(AB)
    text = raises("put both on one mesh", ops.matmul, placed(a, mesh, R), placed(b, other, R, R))
    assert str(mesh) in text and str(other) in text and "'b'" in text and "'a'" in text, text


def plain_tensors_among_dtensors():
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    x, bias = tensors(ROW)
    raises("'bias' is a plain tensor but 'x' is a DTensor", ops.add_relu, placed(x, mesh, S(0)), bias)
    with implicit_replication():
        near(ops.add_relu(placed(x, mesh, S(0)), bias.to(device)), torch.relu(x.double() + bias.double()))


def compiled():
    """A product and a softmax over a sharded dimension, forward and backward."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    a, b = tensors(AB)
    fn = torch.compile(lambda a, b: ops.softmax(ops.gelu(ops.matmul(a, b))), backend=BACKEND, fullgraph=True)
    given = [placed(a, mesh, R).requires_grad_(), placed(b, mesh, S(1)).requires_grad_()]
    wide = [t.double().requires_grad_() for t in (a, b)]
    out, want = fn(*given), gelu(wide[0] @ wide[1]).softmax(-1)
    assert out.placements == (S(1),)
    near(out, want.detach())
    grad, = tensors((want.shape,))
    for g, w in zip(torch.autograd.grad(out, given, placed(grad, mesh, S(1))), torch.autograd.grad(want, wide, grad.double())):
        near(g, w, what="gradient")


def compiled_without_terms():
    """Of terms that leave the last rank none: its graphs wait in every collective, too."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    a, b = tensors(((7, 9), (9, 5)))
    given = [placed(a, mesh, S(1)).requires_grad_(), placed(b, mesh, S(0)).requires_grad_()]
    wide = [t.double().requires_grad_() for t in (a, b)]
    out, want = torch.compile(lambda a, b: ops.matmul_softmax(a, b, 0), backend="aot_eager", fullgraph=True)(*given), (wide[0] @ wide[1]).softmax(0)
    near(out, want.detach())
    grad, = tensors((want.shape,))
    for g, w in zip(torch.autograd.grad(out, given, placed(grad, mesh, *out.placements)), torch.autograd.grad(want, wide, grad.double())):
        near(g, w, what="gradient")


class Linear(nn.Linear):
    """Of torch's, so that its plans know it, by our product."""

    def forward(self, x):
        return ops.matmul(x, self.weight.T) + self.bias


class Model(nn.Module):
    """Probabilities of classes."""

    def __init__(self, linear):
        super().__init__()
        self.up, self.down, self.head = linear(22, 40), linear(40, 22), linear(22, 30)
        self.ours = linear is Linear

    def forward(self, x):
        h = self.down((ops.gelu if self.ours else gelu)(self.up(x)))
        return ops.softmax(self.head(h)) if self.ours else self.head(h).softmax(-1)


def models():
    """(one of our layers, one of torch's in float64, of the same weights; inputs)."""
    torch.manual_seed(conftest.SEED % 2**31)
    ours, theirs = Model(Linear), Model(nn.Linear).double()
    theirs.load_state_dict(ours.state_dict())
    return ours.to(device), theirs.to(device), torch.randn(8 * dist.get_world_size(), 22).to(device)


def trained(model, theirs, x, mine):
    """A model's probabilities and gradients are those of the whole. mine: this rank's rows of x."""
    out, want = model(mine(x)), theirs(x.double())
    out = out.full_tensor() if isinstance(out, DTensor) else out
    near(out, mine(want).detach())
    out.square().mean().backward()
    want.square().mean().backward()
    for (name, p), q in zip(model.named_parameters(), theirs.parameters()):
        near(p.grad, q.grad, what=f"gradient of {name}")
        assert isinstance(p.grad, DTensor) or "." not in name, name


def split_rows(mesh):
    return lambda x: x.chunk(mesh.size())[mesh.get_local_rank()]


def tensor_parallel(model, mesh):
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel(), "head": ColwiseParallel(use_local_output=False)})


def fully_sharded():
    """FSDP2, of which each rank has rows of its own."""
    ours, theirs, x = models()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in (ours.up, ours.down, ours.head, ours):
        fully_shard(layer, mesh=mesh)
    trained(ours, theirs, x, split_rows(mesh))


def tensor_parallel_plan():
    """Layers by columns and by rows, and a softmax over classes that no rank has all of: two all-reduces of a number a row."""
    ours, theirs, x = models()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    trained(tensor_parallel(ours, mesh), theirs, x, lambda x: x)


def tensor_parallel_plan_compiled():
    ours, theirs, x = models()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = tensor_parallel(ours, mesh)
    trained(model if BACKEND == "none" else CompiledModel(model), theirs, x, lambda x: x)


class CompiledModel(nn.Module):
    """Parameters keep their names."""

    def __init__(self, model):
        super().__init__()
        self.up, self.down, self.head = model.up, model.down, model.head
        self.compiled = [torch.compile(model, backend=BACKEND)]

    def forward(self, x):
        return self.compiled[0](x)


def both_at_once():
    """FSDP2 over one dimension of a mesh, tensor parallel over the other."""
    ours, theirs, x = models()
    mesh = init_device_mesh(device, (2, dist.get_world_size() // 2), mesh_dim_names=("data", "tensor"))
    tensor_parallel(ours, mesh["tensor"])
    for layer in (ours.up, ours.down, ours.head, ours):
        fully_shard(layer, mesh=mesh["data"])
    trained(ours, theirs, x, split_rows(mesh["data"]))


def imported_when_one_is_met():
    assert LIGHT


BACKEND = os.environ.get("BACKEND", "aot_eager")
COMPILED = {fn.__name__: fn for fn in (compiled, tensor_parallel_plan_compiled, fully_sharded)}
CHECKS = {**{name: functools.partial(case, name) for name in CASES},
          **{fn.__name__: fn for fn in (half_precision, infinities_and_nans, on_two_dimensions, shards_that_a_view_left, in_place,
                                        gradients_with_sums_over_rows,
                                        a_replayed_call_takes_no_dtensor, by_a_named_backend, in_inference_mode, mixed_meshes, plain_tensors_among_dtensors,
                                        outside_of_a_mesh, arguments_that_do_not_fit,
                                        tensor_parallel_plan, both_at_once, compiled_without_terms, imported_when_one_is_met)}, **COMPILED}

#: ranks -> the checks that they run
GROUPS = {4: [name for name in CHECKS if name not in COMPILED], 2: list(COMPILED)}


def compile_kernels(names, world: int):
    """What most checks launch, by one rank, so that the others find it on disk."""
    for name in names:
        op, _, shapes, places, _, collectives = CASES.get(name, (None,) * 6)
        for k in (0, -1) if op and collectives is not SPREAD else ():
            given = [(t.chunk(world, p.dim)[k] if p.is_shard() else t).requires_grad_() for t, p in zip(tensors(shapes), places)]
            op(*given).sum().backward()


def run(rank: int, world: int, folder: str, names):
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.FileStore(f"{folder}/store-{world}", world), rank=rank, world_size=world,
                            timeout=timedelta(seconds=conftest.HANGS))
    if rank == 0 and device == "cpu":
        compile_kernels(names, world)
    dist.barrier()
    said = {}
    for name in names:
        try:
            CHECKS[name]()
            said[name] = ""
        except BaseException:
            said[name] = traceback.format_exc()
    with open(f"{folder}/{world}-{rank}.json", "w") as f:
        json.dump(said, f)
    dist.barrier()
    dist.destroy_process_group()


def in_torchrun(rank: int, world: int, folder: str):
    """As torchrun starts a rank, but that they meet by a file."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="here", MASTER_PORT="1")
    dist.rendezvous = lambda *_, **__: iter([(dist.FileStore(folder, world), rank, world)])


def benched(rank: int, folder: str) -> int:
    """An odd case: shards of unequal sizes."""
    return tools.main(["bench", "--distributed", "--op", "matmul", "--op", "softmax", "--case", "33x18,18x17", "--case", "33x18", "--reps", "2",
                       "--device", "cpu", "--json", f"{folder}/bench.json"])


def benched_wrong(rank: int, folder: str) -> int:
    """A result that lacks a rank's part."""
    from triport.bench import distributed
    from triport.ops import registry
    op = registry.get("matmul")
    lame = dataclasses.replace(op, call=lambda a, b: op.call(a, b) * (0 if rank else 1))
    with ranks.group("cpu", 60.0):
        rows = list(distributed.measure([distributed.Piece(lame, lame.cases[0], "fp32", "rows", "strong", 2)], "cpu", 1, 0))
    return 0 if rank or [row["status"] for row in rows] == ["wrong"] else 5


def in_a_collective(rank: int, does) -> int:
    """A command of which rank 1 does something else, while the others wait for it."""
    def run() -> int:
        with ranks.group("cpu", 60.0) as marks:
            if rank == 1:
                does(marks)
            marks.timeout = 2.0
            dist.all_reduce(torch.ones(1))
        return 0

    return exits.guarded("triport bench", run)


def one_dies(rank: int, folder: str) -> int:
    def does(marks):
        with marks.lock:  # not while its thread writes to the file
            os.kill(os.getpid(), signal.SIGKILL)

    return in_a_collective(rank, does)


def one_fails(rank: int, folder: str) -> int:
    def does(marks):
        raise ArgumentError("no such thing")

    return in_a_collective(rank, does)


def one_hangs(rank: int, folder: str) -> int:
    """Its connections stay open: nobody but its marks says so."""
    def does(marks):
        with marks.lock:
            while "ends" not in open(f"{folder}/one_hangs-0.txt").read():
                time.sleep(0.1)
            os._exit(0)

    return in_a_collective(rank, does)


#: name -> (what each rank runs, ranks)
SCENES = {fn.__name__: (fn, n) for fn, n in ((benched, 2), (benched_wrong, 2), (one_dies, 3), (one_fails, 2), (one_hangs, 2))}


def play(name: str, folder: str):
    """Run a scene: FOLDER/<name>-<rank>.txt is what a rank printed and its exit code, as the last line."""
    fn, world = SCENES[name]

    def run(rank):
        with open(f"{folder}/{name}-{rank}.txt", "w") as f:
            os.dup2(f.fileno(), 1)
            os.dup2(f.fileno(), 2)
        torch.set_num_threads(1)
        in_torchrun(rank, world, f"{folder}/store-{name}")
        code = fn(rank, folder)
        sys.stdout.flush()
        return code

    for rank, code in enumerate(forked(world, run)):
        with open(f"{folder}/{name}-{rank}.txt", "a") as f:
            f.write(f"\n{code}\n")


def forked(world: int, run) -> list[int]:
    """The exit codes of processes that each run `run(rank)`, whose result is its code."""
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            code = 99
            try:
                code = run(rank) or 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def started(world: int, folder: str, names: list[str]) -> list[int]:
    """As `forked`, of processes of their own: what has used CUDA cannot be forked."""
    command = [sys.executable, __file__, folder, str(world), *names]
    children = [subprocess.Popen(command, env={**os.environ, "STARTED_AS": str(rank)}) for rank in range(world)]
    return [child.wait() for child in children]


def main(folder: str, groups: dict[int, list[str]]):
    if device == "cuda":
        for world, names in groups.items():
            if "STARTED_AS" in os.environ:
                run(int(os.environ["STARTED_AS"]), world, folder, names)
            else:
                started(world, folder, names)
        return
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(2))  # what compiling imports, once for all ranks
    for world, names in groups.items():
        forked(world, lambda rank, world=world, names=names: run(rank, world, folder, names))


if __name__ == "__main__":
    alone = len(sys.argv) > 2
    main(sys.argv[1], {int(sys.argv[2]): sys.argv[3:] or list(CHECKS)} if alone else GROUPS)
    for name in () if alone else SCENES:
        play(name, sys.argv[1])
