"""Triton's own tutorials on CPU tensors: every kernel of theirs as it stands in the file, against float64.

`python docs/users/tutorials.py FOLDER [PART OF A NAME ...]`, FOLDER being python/tutorials of a checkout of Triton. A file is not run from end to end, since
its benchmarks take hours and compare with a GPU's libraries: the functions that are named here are taken out of it with whatever else they need of it."""

from __future__ import annotations

import ast
import symtable
import sys
import types
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from triport.testing import gpu, gpus

sys.path.insert(0, str(Path(__file__).parent))
import checked  # noqa: E402

#: how many of an autotuner's configurations are tried: the tutorials name up to 48 for a kernel, all for GPUs
CONFIGS = 2


def _binds(statement: ast.stmt) -> set[str]:
    """The global names that a statement of a module gives a value."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    if isinstance(statement, (ast.If, ast.Try, ast.For, ast.With)):
        return {name for part in ast.iter_child_nodes(statement) if isinstance(part, (ast.stmt, ast.ExceptHandler)) for name in _binds(part)}
    if isinstance(statement, ast.ExceptHandler):
        return {name for part in statement.body for name in _binds(part)}
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _uses(statement: ast.stmt) -> set[str]:
    """The global names that a statement of a module uses, itself or in a function's body."""
    used, tables = set(), [symtable.symtable(ast.unparse(statement), "tutorial", "exec")]
    while tables:
        table = tables.pop()
        used |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (table.get_type() == "module" or s.is_global())}
        tables += table.get_children()
    return used


def taken(path: Path, *names: str, **given) -> types.ModuleType:
    """A module of `names` of the file at `path` and of what these need of it, in the file's order and otherwise as it stands. `given` replaces functions
    of the host that ask which GPU there is."""
    statements = [s for s in ast.parse(path.read_text()).body if not _binds(s) & given.keys()]
    bound = {name for s in statements for name in _binds(s)}
    if missing := set(names) - bound:
        raise LookupError(f"{path.name} has no {', '.join(sorted(missing))}: another version of Triton's tutorials than this script knows")
    wanted, needed = set(names), []
    while new := [s for s in statements if s not in needed and _binds(s) & wanted]:
        needed += new
        wanted |= {name for s in new for name in _uses(s)}
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    vars(module).update(given)
    sys.modules[path.stem] = module
    exec(compile(ast.Module([s for s in statements if s in needed], []), str(path), "exec"), vars(module))
    for value in vars(module).values():
        if isinstance(value, triton.runtime.Autotuner):
            value.configs = value.configs[:CONFIGS]
    return module


def both(by_tutorial, by_torch, *args):
    """(got, wanted) of a result and of each gradient, for one random gradient of the result; by_torch runs in float64."""
    mine, theirs = [x.clone().requires_grad_() for x in args], [x.double().requires_grad_() for x in args]
    got, want = by_tutorial(*mine), by_torch(*theirs)
    grad = torch.randn(got.shape).to(got.dtype)
    got.backward(grad)
    want.backward(grad.double())
    return [(got.detach(), want.detach()), *((m.grad, t.grad) for m, t in zip(mine, theirs))]


def half(*shape):
    return (torch.rand(shape) - 0.5).half()


def philox(counter: int, key: int) -> int:
    """The first word of Philox4x32-10 (Salmon et al., SC 2011)."""
    c, k = [counter, 0, 0, 0], [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def vector_add(folder):
    t, x, y = taken(folder / "01-vector-add.py", "add"), torch.rand(98432), torch.rand(98432)
    return [(t.add(x, y), x.double() + y.double())]


def softmax(folder):
    t, x = taken(folder / "02-fused-softmax.py", "softmax"), torch.randn(1823, 781)
    return [(t.softmax(x), x.double().softmax(1))]


def matmul(folder):
    t, a, b = taken(folder / "03-matrix-multiplication.py", "matmul"), half(500, 512), half(512, 300)
    exact, a8, b8 = a.double() @ b.double(), a.to(torch.float8_e5m2), b.T.contiguous().T.to(torch.float8_e5m2)
    return [(t.matmul(a, b), exact), (t.matmul(a, b, activation="leaky_relu"), F.leaky_relu(exact)), (t.matmul(a8, b8), a8.double() @ b8.double())]


def dropout(folder):
    t, x, p = taken(folder / "04-low-memory-dropout.py", "dropout", "seeded_dropout"), torch.randn(3000), 0.3
    keep = torch.rand(3000) > p
    pairs = [(t.dropout(x, keep.to(torch.int32), p), x.double() * keep / (1 - p))]
    for seed in (123, 512):
        words = [philox(n, seed) for n in range(3000)]
        drawn = torch.tensor([min(w, 0xFFFFFFFF - w) for w in words]).double() / 2**31
        pairs.append((t.seeded_dropout(x, p, seed), x.double() * (drawn > p) / (1 - p)))
    return pairs


def layer_norm(folder):
    t = taken(folder / "05-layer-norm.py", "layer_norm")

    def of(rows, features, dtype):
        return both(lambda x, w, b: t.layer_norm(x, (features,), w, b, 1e-5), lambda x, w, b: F.layer_norm(x, (features,), w, b, 1e-5),
                    (0.5 * torch.randn(rows, features) - 2.3).to(dtype), torch.rand(features).to(dtype), torch.rand(features).to(dtype))
    return of(301, 781, torch.float32) + of(151, 1024, torch.float16)


def attention(folder):
    t = taken(folder / "06-fused-attention.py", "_attention")
    q, k, v = (torch.empty(1, 2, 256, 64).normal_(0, 0.5).half() for _ in range(3))
    pairs = []
    for causal in (False, True):
        pairs += both(lambda q, k, v: t._attention.apply(q, k, v, causal, 0.5, False),
                      lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.5), q, k, v)
    return pairs


def attention_fp8(folder):
    """Of one head: of a second one the kernel reads V outside of the block that its descriptor names, which is zeros on any device."""
    t = taken(folder / "06-fused-attention.py", "_attention", supports_host_descriptor=lambda: True, is_hopper=lambda: False, is_blackwell=lambda: False)
    q, k, v = (torch.empty(1, 1, 256, 64).normal_(0, 0.5) for _ in range(3))
    q, k, v = (x.to(torch.float8_e5m2) for x in (q, k, v.transpose(2, 3).contiguous().transpose(2, 3)))
    want = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True, scale=0.5)
    return [(t._attention.apply(q, k, v, True, 0.5, False), want)]


def libdevice(folder):
    t, x = taken(folder / "07-extern-functions.py", "asin_kernel"), torch.rand(98432) * 2 - 1
    y = torch.zeros_like(x)
    t.asin_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK_SIZE=1024)
    return [(y, x.double().asin())]


def grouped(folder):
    t = taken(folder / "08-grouped-gemm.py", "group_gemm_fn")
    a, b = ([half(n, n) for n in (256, 128, 384)] for _ in range(2))
    return [(c, x.double() @ y.double()) for c, x, y in zip(t.group_gemm_fn(a, b), a, b)]


def grouped_by_descriptors(folder):
    t = taken(folder / "08-grouped-gemm.py", "group_gemm_tma_fn", supports_tma=lambda: True, num_sms=lambda: 4)
    a, b = ([half(n, n) for n in (256, 128, 384)] for _ in range(2))
    return [(c, x.double() @ y.double().T) for c, x, y in zip(t.group_gemm_tma_fn(a, b), a, b)]


def persistent(folder):
    """All six; where a function asks how many multiprocessors there are, a B200's number is the answer."""
    by_descriptors = "matmul_tma", "matmul_tma_persistent", "matmul_descriptor_persistent", "matmul_tma_clc"
    with gpu.pretending(gpus.get("b200")):
        t = taken(folder / "09-persistent-matmul.py", "matmul", "matmul_persistent", *by_descriptors, supports_tma=lambda: True, supports_clc=lambda: True)
        a, b = half(500, 256).cuda(), half(256, 384).cuda()
        across = b.T.contiguous()
        got = [t.matmul(a, b), t.matmul_persistent(a, b)]
        got += [getattr(t, name)(a, across, specialized) for name in by_descriptors for specialized in (False, True)]
        exact = a.cpu().double() @ b.cpu().double()
        return [(c.cpu(), exact) for c in got]


def block_scaled(folder):
    with gpu.pretending(gpus.get("b200")):
        t, pairs = taken(folder / "10-block-scaled-matmul.py", "initialize_block_scaled", "block_scaled_matmul", is_rubin=lambda: False), []
        for kind in ("mxfp8", "mxfp4", "nvfp4", "mixed"):
            *descriptors, rep_m, rep_n, rep_k, configs, reference = t.initialize_block_scaled(256, 256, 512, kind, compute_reference=True)[:9]
            got = t.block_scaled_matmul(*descriptors, torch.float32, 256, 256, 512, rep_m, rep_n, rep_k, configs)
            pairs.append((got.cpu(), reference.cpu().double()))
        return pairs


def block_scaled_cdna(folder):
    with gpu.pretending(gpus.get("b200")):
        t = taken(folder / "10-block-scaled-matmul.py", "initialize_block_scaled_amd", "block_scaled_matmul_amd")
        pairs = []
        for size in (16, 32):
            x, w, x_scales, w_scales, x_shuffled, w_shuffled, configs = t.initialize_block_scaled_amd(256, 256, 512, size)
            got = t.block_scaled_matmul_amd(x.to_packed_tensor(dim=1), w.to_packed_tensor(dim=1), x_shuffled, w_shuffled, configs)
            x, w = (m.to(torch.float32).cpu().double() * 2.0 ** (s.cpu().repeat_interleave(32, 1).double() - 127) for m, s in ((x, x_scales), (w, w_scales)))
            pairs.append((got.cpu(), x @ w.T))
        return pairs


def dependent_launch(folder):
    t, x, y = taken(folder / "11-programmatic-dependent-launch.py", "add"), torch.rand(98432), torch.rand(98432)
    return [(t.add(x, y, launch_pdl=False), x.double() + y.double()), (t.add(x, y, launch_pdl=True), x.double() + y.double())]


TUTORIALS = {
    "01 vector addition": vector_add,
    "02 fused softmax": softmax,
    "03 matrix multiplication": matmul,
    "04 low-memory dropout": dropout,
    "05 layer norm": layer_norm,
    "06 fused attention": attention,
    "06 fused attention, fp8": attention_fp8,
    "07 libdevice": libdevice,
    "08 grouped products": grouped,
    "08 grouped products, descriptors": grouped_by_descriptors,
    "09 persistent products": persistent,
    "10 block-scaled products": block_scaled,
    "10 block-scaled products, CDNA4's layout": block_scaled_cdna,
    "11 dependent launch": dependent_launch,
}


def main() -> int:
    """As `checked.main`; the first word of the command line is the folder."""
    if not sys.argv[1:] or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: tutorials.py FOLDER [PART OF A NAME ...]; FOLDER: python/tutorials of a checkout of https://github.com/triton-lang/triton")
    folder = Path(sys.argv.pop(1))
    return checked.main({name: lambda way=way: way(folder) for name, way in TUTORIALS.items()})


if __name__ == "__main__":
    sys.exit(main())
