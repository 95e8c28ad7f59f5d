"""Right kernels that only look as if they were not: nothing is reported of any of them, and what they compute is right."""

import pytest
import torch
import triton
import triton.language as tl
from faults import ALL, Right
from triport import checking
from triton.tools.tensor_descriptor import TensorDescriptor

right = Right()


def same(got, wanted):
    assert torch.allclose(got.double(), wanted.double(), atol=1e-4), (got, wanted)


@triton.jit
def copy(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@right
def last_block_in_part():
    x, out = torch.randn(1000), torch.empty(1000)
    copy[(8,)](x, out, 1000, N=128)
    same(out, x)


@right
def view_in_the_middle():
    x, out = torch.randn(300), torch.zeros(300)
    copy[(2,)](x[100:200], out[100:200], 100, N=64)
    same(out[100:200], x[100:200])


@right
def tensor_of_one_element():
    x, out = torch.randn(1), torch.empty(1)
    copy[(1,)](x, out, 1, N=1)
    same(out, x)


@right
def nothing_to_do():
    copy[(1,)](torch.empty(0), torch.empty(0), 0, N=16)


@right
def no_programs():
    copy[(0,)](torch.empty(4), torch.empty(4), 4, N=16)


@triton.jit
def by_strides(x_ptr, out_ptr, m, n, sm, sn, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.program_id(0) * M + tl.arange(0, M)[:, None], tl.program_id(1) * N + tl.arange(0, N)[None, :]
    inside = (i < m) & (j < n)
    tl.store(out_ptr + i * n + j, tl.load(x_ptr + i * sm + j * sn, mask=inside, other=0.0), mask=inside)


def _by_strides(x):
    out = torch.empty(x.shape)
    by_strides[(triton.cdiv(x.shape[0], 8), triton.cdiv(x.shape[1], 16))](x, out, *x.shape, *x.stride(), M=8, N=16)
    same(out, x)


@right
def transposed():
    _by_strides(torch.randn(21, 13).t())


@right
def every_third_column():
    _by_strides(torch.randn(9, 64)[:, 1::3])


@right
def expanded_rows():
    _by_strides(torch.randn(1, 19).expand(11, 19))


@right
def expanded_columns():
    _by_strides(torch.randn(11, 1).expand(11, 19))


@right
def overlapping_windows_that_are_read():
    _by_strides(torch.randn(40).as_strided((9, 8), (4, 1)))


@right
def reversed_rows():
    """A negative stride by hand: the pointer is the last row's."""
    x, out = torch.randn(6, 16), torch.empty(6, 16)
    by_strides[(1, 1)](x[5], out, 6, 16, -16, 1, M=8, N=16)
    same(out, x.flip(0))


@triton.jit
def pads(x_ptr, out_ptr, n, N: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, N)
    tl.store(out_ptr + r * N + c, tl.load(x_ptr + r * n + c, mask=c < n, other=0.0))


@right
def padding_is_written_as_zeros():
    x, out = torch.randn(4, 13), torch.empty(4, 16)
    pads[(4,)](x, out, 13, N=16)
    copy[(1,)](out, other := torch.empty(64), 64, N=64)
    same(other.view(4, 16)[:, :13], x)


@triton.jit
def columns(x_ptr, out_ptr, stride, n, N: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + r * stride + c, mask=c < n, other=0.0)
    tl.store(out_ptr + r, tl.sum(x, 0))


@right
def padding_of_torch_empty_is_not_read():
    x = torch.empty(5, 16)
    x[:, :11] = 1.0
    columns[(5,)](x, out := torch.empty(5), 16, 11, N=16)
    same(out, torch.full((5,), 11.0))


@right
def torch_empty_filled_by_torch():
    for fill in (lambda x: x.fill_(2.0), lambda x: x.copy_(torch.ones(x.shape)), lambda x: x.zero_(), lambda x: x.normal_(),
                 lambda x: torch.add(torch.ones(32), 1.0, out=x), lambda x: x.view(4, 8)[:].fill_(1.0), lambda x: x.data.fill_(3.0)):
        x = torch.empty(32)
        fill(x)
        copy[(1,)](x, out := torch.empty(32), 32, N=32)
        same(out, x)


@right
def torch_empty_filled_by_numpy():
    x = torch.empty(32)
    x.numpy()[:] = 5.0
    copy[(1,)](x, out := torch.empty(32), 32, N=32)
    same(out, x)


@right
def bytes_of_torch_empty_filled_with_any_value():
    for value in range(256):
        x = torch.empty(64, dtype=torch.uint8)
        x.fill_(value)
        copy[(1,)](x, out := torch.empty(64, dtype=torch.uint8), 64, N=64)
        same(out, x)


@right
def torch_empty_in_inference_mode():
    with torch.inference_mode():
        x = torch.empty(32)
        x.fill_(2.0)
        copy[(1,)](x, out := torch.empty(32), 32, N=32)
        copy[(1,)](out, again := torch.empty(32), 32, N=32)
        same(again, x)


@right
def torch_empty_that_grew():
    x = torch.empty(32)
    copy[(1,)](torch.ones(32), x, 32, N=32)
    x.resize_(1 << 16).fill_(1.0)
    again = [torch.zeros(32) for _ in range(64)]  # one of them may lie where x was
    for t in (x, *again):
        copy[(1,)](t, torch.empty(32), 32, N=32)


@right
def memory_that_is_used_again():
    for n in range(20):
        copy[(1,)](torch.ones(32), torch.empty(32), 32, N=32)
        copy[(1,)](torch.full((32,), float(n)), torch.empty(32), 32, N=32)


@triton.jit
def gathers(x_ptr, index_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    at = tl.load(index_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, tl.load(x_ptr + at, mask=i < n), mask=i < n)


@right
def gather_by_indices():
    x, index, out = torch.randn(50), torch.randint(0, 50, (20,)), torch.empty(20)
    gathers[(1,)](x, index, out, 20, N=32)
    same(out, x[index])


@right
def gather_in_an_empty_tensor():
    gathers[(1,)](torch.empty(0), torch.empty(0, dtype=torch.int64), torch.empty(0), 0, N=32)


@triton.jit
def masked_by_data(x_ptr, index_ptr, out_ptr, n, N: tl.constexpr):
    """Indices beyond the tensor are masked."""
    i = tl.arange(0, N)
    at = tl.load(index_ptr + i)
    tl.store(out_ptr + i, tl.load(x_ptr + at, mask=(at >= 0) & (at < n), other=-1.0))


@right
def indices_that_are_masked():
    index = torch.tensor([0, -1, 3, 1 << 30, 7, 8, -(1 << 31), 2], dtype=torch.int32)
    masked_by_data[(1,)](torch.arange(8.0), index, out := torch.empty(8), 8, N=8)
    same(out, torch.tensor([0.0, -1, 3, -1, 7, -1, -1, 2]))


@triton.jit
def selected(a_ptr, b_ptr, out_ptr, n, m, N: tl.constexpr):
    i = tl.arange(0, N)
    p = tl.where(i < n, a_ptr + i, b_ptr + i - n)
    tl.store(out_ptr + i, tl.load(p, mask=i < n + m), mask=i < n + m)


@right
def concatenation_by_selected_pointers():
    a, b = torch.randn(5), torch.randn(9)
    selected[(1,)](a, b, out := torch.empty(14), 5, 9, N=16)
    same(out, torch.cat([a, b]))


@triton.jit
def table(table_ptr, sizes_ptr, out_ptr, N: tl.constexpr):
    p = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    n, i = tl.load(sizes_ptr + tl.program_id(0)), tl.arange(0, N)
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(p + i, mask=i < n, other=0.0), 0))


class Sub(torch.Tensor):
    pass


@right
def table_of_pointers():
    tensors = [torch.randn(40), torch.randn(9)[2:], torch.nn.Parameter(torch.randn(7)), torch.randn(11).as_subclass(Sub)]
    sizes = torch.tensor([t.numel() for t in tensors])
    table[(4,)](torch.tensor([t.data_ptr() for t in tensors]), sizes, out := torch.empty(4), N=64)
    same(out, torch.stack([t.detach().as_subclass(torch.Tensor).sum() for t in tensors]))


@triton.jit
def writes_by_table(table_ptr, N: tl.constexpr):
    p = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(p + tl.arange(0, N), tl.program_id(0).to(tl.float32))


@right
def table_of_outputs():
    tensors = [torch.empty(16) for _ in range(3)]
    writes_by_table[(3,)](torch.tensor([t.data_ptr() for t in tensors]), N=16)
    same(torch.stack(tensors), torch.arange(3.0)[:, None].expand(3, 16))


@triton.jit
def marching(x_ptr, out_ptr, n, N: tl.constexpr):
    """Behind the last turn the pointers are behind the tensor, and nobody uses them."""
    p = x_ptr + tl.arange(0, N)
    acc = tl.zeros((N,), tl.float32)
    for k in range(0, n, N):
        acc += tl.load(p, mask=k + tl.arange(0, N) < n, other=0.0)
        p += N
    tl.store(out_ptr, tl.sum(acc, 0))


@right
def pointers_carried_by_a_loop():
    x = torch.randn(75)
    marching[(1,)](x, out := torch.empty(1), 75, N=16)
    same(out, x.sum()[None])


@triton.jit
def until(x_ptr, out_ptr):
    n = 0
    p = x_ptr
    while tl.load(p) > 0.0:
        p += 1
        n += 1
    tl.store(out_ptr, n)


@right
def pointer_carried_by_while():
    x = torch.cat([torch.ones(9), torch.zeros(1)])
    until[(1,)](x, out := torch.empty(1, dtype=torch.int32))
    assert out.item() == 9


@triton.jit
def maybe(x_ptr, bias_ptr, out_ptr, n, HAS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n)
    if HAS:
        x += tl.load(bias_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x, mask=i < n)


@right
def argument_that_is_none():
    x = torch.randn(9)
    maybe[(1,)](x, None, out := torch.empty(9), 9, HAS=False, N=16)
    same(out, x)


@right
def parameters_and_subclasses():
    x, b = torch.nn.Parameter(torch.randn(9)), torch.randn(9).as_subclass(Sub)
    maybe[(1,)](x, b, out := torch.empty(9), 9, HAS=True, N=16)
    same(out, (x + b).detach().as_subclass(torch.Tensor))


@triton.jit
def described(x_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    d = tl.make_tensor_descriptor(x_ptr, [m, n], [n, 1], [M, N])
    o = tl.make_tensor_descriptor(out_ptr, [m, n], [n, 1], [M, N])
    at = tl.program_id(0) * M
    o.store([at, 0], d.load([at, 0]) * 2)


@right
def descriptors_at_the_border():
    x, out = torch.randn(13, 12), torch.empty(13, 12)
    described[(2,)](x, out, 13, 12, M=8, N=16)
    same(out, x * 2)


@triton.jit
def given_descriptors(x, out, M: tl.constexpr, N: tl.constexpr):
    out.store([-2, 4], x.load([-2, 4]))


@right
def descriptors_in_front_of_the_border():
    x, out = torch.randn(5, 8), torch.zeros(5, 8)
    given_descriptors[(1,)](TensorDescriptor.from_tensor(x, [4, 8]), TensorDescriptor.from_tensor(out, [4, 8]), M=4, N=8)
    same(out[:2, 4:], x[:2, 4:])


@triton.jit
def cube(x_ptr, out_ptr, a, b, c, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    i, j, k = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
    inside = (i < a) & (j < b) & (k < c)
    at = (i * b + j) * c + k
    tl.store(out_ptr + (k * b + j) * a + i, tl.load(x_ptr + at, mask=inside), mask=inside)


@right
def three_dimensions():
    x, out = torch.randn(3, 5, 7), torch.empty(7, 5, 3)
    cube[(1,)](x, out, 3, 5, 7, A=4, B=8, C=8)
    same(out, x.permute(2, 1, 0))


@triton.jit
def product(a_ptr, b_ptr, out_ptr, m, n, k, M: tl.constexpr, K: tl.constexpr):
    i, j, q = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, K)
    acc = tl.zeros((M, M), tl.float32)
    for s in range(0, k, K):
        a = tl.load(a_ptr + i[:, None] * k + s + q[None, :], mask=(i < m)[:, None] & (s + q < k)[None, :], other=0.0)
        b = tl.load(b_ptr + (s + q)[:, None] * n + j[None, :], mask=(s + q < k)[:, None] & (j < n)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(out_ptr + i[:, None] * n + j[None, :], acc, mask=(i < m)[:, None] & (j < n)[None, :])


@right
def product_with_masks_along_k():
    a, b, out = torch.randn(37, 21), torch.randn(21, 19), torch.empty(37, 19)
    product[(3, 2)](a, b, out, 37, 19, 21, M=16, K=16)
    same(out, a @ b)


@triton.jit
def wrapped(x_ptr, out_ptr, n, N: tl.constexpr):
    """Rows beyond the last are taken modulo, as Triton's tutorial of products does."""
    i = (tl.program_id(0) * N + tl.arange(0, N)) % n
    tl.store(out_ptr + tl.program_id(0) * N + tl.arange(0, N), tl.load(x_ptr + i))


@right
def indices_modulo():
    x = torch.randn(21)
    wrapped[(2,)](x, out := torch.empty(32), 21, N=16)
    same(out, x[torch.arange(32) % 21])


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, out_ptr, n, CAUSAL: tl.constexpr, M: tl.constexpr, D: tl.constexpr):
    i, d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    head = tl.program_id(1) * n * D
    q = tl.load(q_ptr + head + i[:, None] * D + d[None, :], mask=(i < n)[:, None], other=0.0)
    top, total = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    for s in range(0, n, M):
        j = s + tl.arange(0, M)
        k = tl.load(k_ptr + head + j[None, :] * D + d[:, None], mask=(j < n)[None, :], other=0.0)
        v = tl.load(v_ptr + head + j[:, None] * D + d[None, :], mask=(j < n)[:, None], other=0.0)
        x = tl.dot(q, k, input_precision="ieee")
        x = tl.where((j < n)[None, :] & ((i[:, None] >= j[None, :]) | (not CAUSAL)), x, -1e30)
        new = tl.maximum(top, tl.max(x, 1))
        p, scale = tl.exp(x - new[:, None]), tl.exp(top - new)
        acc = tl.dot(p, v, acc * scale[:, None], input_precision="ieee")
        total, top = total * scale + tl.sum(p, 1), new
    tl.store(out_ptr + head + i[:, None] * D + d[None, :], acc / total[:, None], mask=(i < n)[:, None])


def _attention(causal):
    q, k, v = (torch.randn(2, 41, 16) for _ in range(3))
    attention[(3, 2)](q, k, v, out := torch.empty(2, 41, 16), 41, CAUSAL=causal, M=16, D=16)
    x = (q @ k.mT).double()
    if causal:
        x = x.masked_fill(torch.ones(41, 41).triu(1).bool(), -float("inf"))
    same(out, torch.softmax(x, -1) @ v.double())


@right
def attention_forward():
    _attention(False)


@right
def causal_attention_forward():
    _attention(True)


@triton.jit
def dropout(x_ptr, out_ptr, n, p, seed, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.where(tl.rand(seed, i) > p, x / (1 - p), 0.0), mask=i < n)


@right
def seeded_dropout():
    """Random numbers are made by arithmetic that is meant to wrap."""
    dropout[(3,)](torch.ones(300), out := torch.empty(300), 300, 0.5, 123, N=128)
    assert 90 < (out > 0).sum() < 210


@triton.jit
def sorts(x_ptr, out_ptr, scan_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.sort(x))
    tl.store(scan_ptr + i, tl.cumsum(x, 0))


@right
def sort_and_scan():
    x = torch.randint(-100, 100, (64,), dtype=torch.int32)
    sorts[(1,)](x, out := torch.empty_like(x), scan := torch.empty_like(x), N=64)
    same(out, x.sort().values)
    same(scan, x.cumsum(0))


@triton.jit
def largest(x_ptr, out_ptr, at_ptr, n, N: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + r * n + c, mask=c < n, other=-float("inf"))
    tl.store(out_ptr + r, tl.max(x, 0))
    tl.store(at_ptr + r, tl.argmax(x, 0))


@right
def reductions_of_rows():
    x = torch.randn(5, 27)
    largest[(5,)](x, out := torch.empty(5), at := torch.empty(5, dtype=torch.int64), 27, N=32)
    same(out, x.amax(1))
    same(at, x.argmax(1))


@triton.jit
def fp8(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32), mask=i < n)


@right
def elements_of_eight_bits():
    x = torch.randn(21).to(torch.float8_e4m3fn)
    fp8[(1,)](x, out := torch.empty(21), 21, N=32)
    same(out, x.float())


@right
def booleans():
    x = torch.rand(50) > 0.5
    copy[(1,)](x, out := torch.empty(50, dtype=torch.bool), 50, N=64)
    assert torch.equal(out, x)


@triton.jit
def small_integers(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i, mask=i < n, other=0).to(tl.int32), tl.load(y_ptr + i, mask=i < n, other=0).to(tl.int32)
    tl.store(out_ptr + i, x * y, mask=i < n)


@right
def products_in_a_wider_type():
    x, y = torch.full((20,), -128, dtype=torch.int8), torch.full((20,), 127, dtype=torch.int8)
    small_integers[(1,)](x, y, out := torch.empty(20, dtype=torch.int32), 20, N=32)
    same(out, torch.full((20,), -128 * 127))


@triton.jit
def extremes(out_ptr, most, least):
    tl.store(out_ptr, most - 1 + 1)
    tl.store(out_ptr + 1, least + 1 - 1)


@right
def integers_up_to_the_last():
    extremes[(1,)](out := torch.empty(2, dtype=torch.int32), 2**31 - 1, -(2**31))
    assert out.tolist() == [2**31 - 1, -(2**31)]


@triton.jit
def wide_offsets(x_ptr, out_ptr, stride, N: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, N)
    tl.store(out_ptr + r * N + i, tl.load(x_ptr + r * stride % 64 + i) + (r * stride).to(tl.float32))


@right
def offsets_of_64_bits():
    wide_offsets[(4,)](torch.ones(128), out := torch.empty(64), 1 << 31, N=16)
    same(out[48:], torch.full((16,), 1.0 + 3 * 2.0**31))


@triton.jit
def many(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    for k in tl.static_range(70):
        tl.store(out_ptr + k * N + i, tl.load(x_ptr + k * N + i) + 1)


@right
def hundred_and_forty_accesses():
    x = torch.randn(70 * 16)
    many[(1,)](x, out := torch.empty(70 * 16), N=16)
    same(out, x + 1)


@triton.jit(noinline=True)
def apart(x_ptr, out_ptr, i):
    tl.store(out_ptr + i, tl.load(x_ptr + i) * 2)


@triton.jit
def calls(x_ptr, out_ptr):
    apart(x_ptr, out_ptr, tl.program_id(0))


@right
def function_that_is_not_inlined():
    x = torch.randn(21)
    calls[(21,)](x, out := torch.empty(21))
    same(out, x * 2)


@pytest.mark.parametrize("launch", right.cases)
def test_nothing_is_reported(launch):
    torch.manual_seed(0)
    with checking.checks(ALL):
        launch()
