"""Which operands a GPU's products copy first, by tensors that only say that they are a GPU's; that they do, on the CPU."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from triport import ops
from triport.bench import check

batches, layout, matmul, matmul_softmax, spanning, turning = (sys.modules[f"triport.ops.{name}"] for name in ("batches", "layout", "matmul", "matmul_softmax", "spanning", "turning"))


@pytest.mark.parametrize("dtype,m,n,k,turned,slow", [
    (torch.float32, 1024, 1024, 1024, True, True), (torch.float64, 1024, 1024, 1024, True, False), (torch.float32, 64, 4096, 4096, True, True),
    (torch.float32, 1024, 1024, 1024, False, False), (torch.float32, 512, 512, 512, True, True), (torch.float32, 256, 256, 256, True, False), (torch.float32, 7, 65536, 65536, True, False),
    (torch.float16, 2048, 2048, 2048, True, False)])
def test_what_is_slow_as_it_lies(dtype, m, n, k, turned, slow):
    """A transposed B by multiply-adds, where they take long; tensor cores, small products and few rows take it as it lies."""
    for device in ("cuda", "cpu"):
        with FakeTensorMode():
            a = torch.empty((m, k), dtype=dtype, device=device)
            b = torch.empty((n, k), dtype=dtype, device=device).T if turned else torch.empty((k, n), dtype=dtype, device=device)
            assert turning.slow_as_it_lies(a, b) == (slow and device == "cuda")


@pytest.mark.parametrize("dtype,m,n,k,whole", [
    (torch.float32, 64, 64, 64, True), (torch.float32, 128, 4096, 128, True), (torch.float32, 129, 64, 64, False), (torch.float32, 64, 4096, 129, False),
    (torch.float16, 128, 4096, 4096, True), (torch.float16, 129, 64, 64, True), (torch.bfloat16, 256, 4096, 512, True), (torch.float16, 256, 64, 513, False),
    (torch.float16, 257, 64, 64, False), (torch.float64, 32, 32, 32, False)])
def test_which_dimension_one_tile_spans(dtype, m, n, k, whole):
    """Short ones, where there is little to multiply: by multiply-adds shorter ones than by tensor cores."""
    with FakeTensorMode():
        a, b = torch.empty((m, k), dtype=dtype, device="cuda"), torch.empty((k, n), dtype=dtype, device="cuda")
        by_columns, by_rows = spanning.tile_for(a, b, 0), spanning.tile_for(b.T, a.T, 1)
        assert by_columns[1] == by_rows[1] == whole
        if whole:  # narrow, so that there is a program for most of an H100's multiprocessors where that can be
            width = by_columns[0]["BN"]
            assert by_columns[0]["BM"] == by_rows[0]["BN"] >= m and width == by_rows[0]["BM"] == {64: 16, 4096: 32}[n]


@pytest.mark.parametrize("n,line,bk", [(174, 128, 32), (176, 116, 32), (174, 116, 32), (176, 128, 64), (128, 116, 64), (100, 128, 64)])
def test_pieces_of_numbers_that_are_read_one_by_one_are_short(n, line, bk):
    """Where a tile is long: a thread would have more of them on their way than registers."""
    with FakeTensorMode():
        a, b = torch.empty((64, line), dtype=torch.float16, device="cuda"), torch.empty((line, n), dtype=torch.float16, device="cuda")
        tiles = spanning.tile_for(a, b, 1), spanning.tile_for(b.T, a.T, 0)
        assert all(whole and tile["BK"] == bk for tile, whole in tiles)


@pytest.mark.parametrize("m,k,n,line,dtype,first", [
    (65536, 64, 128, 64, torch.float16, True), (16384, 512, 128, 512, torch.bfloat16, True), (8192, 256, 256, 272, torch.float16, True),
    (8192, 256, 256, 264, torch.float16, False), (16384, 513, 128, 513, torch.float16, False), (16384, 528, 128, 528, torch.float16, False),
    (16384, 64, 512, 64, torch.float16, False), (256, 512, 200, 512, torch.float16, False), (4096, 40, 128, 40, torch.float16, False),
    (65536, 64, 128, 64, torch.float32, False)])
def test_when_one_kernel_goes_before_all_others(m, k, n, line, dtype, first):
    """Where pointers fetch 16 bytes at a time and K is short."""
    def matrix(shape, strides):
        return SimpleNamespace(shape=shape, stride=lambda d=None: strides if d is None else strides[d], dtype=dtype, element_size=lambda: dtype.itemsize,
                               device=SimpleNamespace(type="cuda", index=0))

    assert spanning.comes_first(matrix((m, k), (line, 1)), matrix((k, n), (n, 1)), 1) == first
    assert spanning.comes_first(matrix((n, k), (1, n)), matrix((k, m), (1, line)), 0) == first


class Far:
    """A matrix as far as `near` looks: a GPU's, or not."""

    def __init__(self, strides, device="cuda", made=(), shape=(300, 300)):
        self.strides, self.device, self.made, self.shape = strides, SimpleNamespace(type=device), made, shape

    def stride(self, d):
        return self.strides[d]

    @property
    def mT(self):
        return Far(self.strides[::-1], self.device.type, (*self.made, "turned"))

    def contiguous(self):
        return Far((70, 1), self.device.type, (*self.made, "copied"))


@pytest.mark.parametrize("step,device,copied", [(1 << 23, "cuda", True), ((1 << 23) - 1, "cuda", False), (7158279, "cpu", True), (7158278, "cpu", False)])
def test_steps_along_k_fit_32_bits(step, device, copied):
    for k, strides, made in ((1, (1, step), ("copied",)), (0, (step, 1), ("turned", "copied", "turned"))):
        x = Far(strides, device)
        got = layout.near(x, k)
        assert (got.made, got.stride(k)) == (made, 1) if copied else got is x
        few = Far(strides, device, shape=(255, 255))  # terms: no step is over more
        assert layout.near(few, k) is few


@pytest.mark.parametrize("op", ["matmul", "matmul_softmax"])
def test_both_operands_are_looked_at(op, monkeypatch, seed):
    module, seen = sys.modules[f"triport.ops.{op}"], []
    monkeypatch.setattr(module, "near", lambda x, k: seen.append((tuple(x.shape), k)) or x)
    gen = torch.Generator().manual_seed(seed)
    a, b = torch.randn(70, 65, generator=gen), torch.randn(65, 33, generator=gen)
    getattr(module, f"_{op}_body")(a, b, *(() if op == "matmul" else (0,)))
    assert seen == [((70, 65), 1), ((65, 33), 0)]


def test_all_operands_of_low_rank_are_looked_at(monkeypatch, seed):
    module, seen = sys.modules["triport.ops.lora_linear"], []
    monkeypatch.setattr(sys.modules["triport.ops.lora_plain"], "near", lambda x, k: seen.append((tuple(x.shape), k)) or x)
    gen = torch.Generator().manual_seed(seed)
    module._lora_linear_body(*(torch.randn(shape, generator=gen) for shape in ((70, 65), (65, 33), (65, 5), (5, 33))), 0.5)
    assert seen == [((70, 65), 1), ((65, 5), 0), ((70, 65), 1), ((65, 33), 0), ((70, 5), 1), ((5, 33), 0)]


@pytest.mark.parametrize("m,n,k,axis", [(1048577, 512, 64, 1), (17000000, 32, 16, 0), (32, 17000000, 16, 1), (512, 1048577, 64, 0)])
def test_grids_end_where_a_gpus_do(m, n, k, axis, monkeypatch):
    """The second dimension at 65,535."""
    seen = []
    monkeypatch.setattr(matmul_softmax, "launch", lambda kernel, grid, *args, **consts: seen.append(grid))
    monkeypatch.setattr(matmul_softmax, "wrap_triton", lambda kernel: kernel)
    with FakeTensorMode():
        matmul_softmax._matmul_softmax_body(torch.empty((m, k), dtype=torch.float16, device="cuda"), torch.empty((k, n), dtype=torch.float16, device="cuda"), axis)
    assert len(seen) == 2 and all(0 < grid[0] < 1 << 31 and all(0 < g < 65536 for g in grid[1:]) for grid in seen), seen


def test_it_is_copied(monkeypatch, seed):
    launched = []
    real = matmul.launch
    monkeypatch.setattr(turning, "slow_as_it_lies", lambda a, b: b.stride(0) == 1)
    monkeypatch.setattr(matmul, "launch", lambda kernel, grid, a, b, *rest, **consts: launched.append(b.stride()) or real(kernel, grid, a, b, *rest, **consts))
    gen = torch.Generator().manual_seed(seed)
    for m, n, k in ((70, 33, 65), (65, 130, 31)):
        a, b = torch.randn(m, k, generator=gen), torch.randn(n, k, generator=gen).T
        assert check.error(ops.matmul(a, b), a.double() @ b.double()) < 2e-6 and launched.pop() == (n, 1)


def test_a_batch_is_copied_as_it_is(seed):
    """Each of its matrices once, whatever they go with, and lie as heads do."""
    torch.manual_seed(seed)
    w = torch.randn(2, 70, 3, 65)
    for b in (torch.randn(6, 33, 65).mT, torch.randn(1, 130, 31).mT, torch.randn(5, 1, 33, 65).mT, w.transpose(1, 2).mT, w[:, :, 1].mT, w.transpose(1, 2).mT.double(), torch.randn(2, 4, 3, 5, 7)[:, ::2].mT,
              torch.randn(3, 4, 40).mT[:, :, :1], torch.randn(70, 65).T):
        made, guards = turning.straightened(b), b.clone()
        assert made.is_contiguous() and made.shape == b.shape and torch.equal(made, b) and torch.equal(b, guards)
    launched = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        real = batches.launch
        monkeypatch.setattr(turning, "slow_as_it_lies", lambda a, b: b.stride(-2) == 1)
        monkeypatch.setattr(batches, "launch", lambda kernel, grid, a, b, *rest, **consts: launched.append(b.shape) or real(kernel, grid, a, b, *rest, **consts))
        a, b = torch.randn(2, 3, 40, 65), torch.randn(3, 33, 65).mT
        assert check.error(ops.matmul(a, b), a.double() @ b.double()) < 2e-6 and len(launched) == 1


@pytest.mark.parametrize("case,kernel", [(((6, 100, 64), (6, 64, 72)), "batched_matmul_kernel"), (((2, 3, 1, 64), (3, 64, 72)), "batched_lines_kernel"), (((6, 100, 64), (64, 72)), "matmul_kernel")])
def test_batches_are_traced_for_a_gpu_that_is_not_here(case, kernel):
    """`triport asm --target sm_90` traces with tensors that hold nothing, which a torch without GPUs does not index."""
    launched = []
    with pytest.MonkeyPatch.context() as monkeypatch, FakeTensorMode():
        for module in (batches, matmul):
            monkeypatch.setattr(module, "launch", lambda kernel, grid, *args, **consts: launched.append(kernel.__name__))
            monkeypatch.setattr(module, "wrap_triton", lambda kernel: kernel)
        a, b = (torch.empty(shape, dtype=torch.float16, device="cuda") for shape in case)
        assert matmul._matmul_body(a, b).shape == (*case[0][:-1], 72)
    assert launched == [kernel]
