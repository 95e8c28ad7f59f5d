"""Tiles of products by pointers on a GPU, by whether lines begin at multiples of 16 bytes: numbers that are read one by one are not fetched ahead."""

from types import SimpleNamespace

import pytest
import torch
from triport import ops
from triport.bench import check
from triport.ops import tiles


def like(rows, columns, turned=False, dtype=torch.float32, offset=0):
    """A matrix on a GPU that is not here."""
    stride = (1, rows) if turned else (columns, 1)
    return SimpleNamespace(shape=(rows, columns), device=SimpleNamespace(type="cuda"), dtype=dtype, element_size=lambda: dtype.itemsize, storage_offset=lambda: offset,
                           stride=lambda d=None: stride if d is None else stride[d])


def stages(a, b, **how):
    return tiles.tile_for(a, b, **how)["num_stages"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lines_of_numbers(dtype):
    def of(m, k, n, a=False, b=False, **how):
        return stages(like(m, k, a, dtype), like(k, n, b, dtype), **{"alone": True, **how})
    assert of(1280, 64, 1280) > 1 and of(1280, 63, 1280) == 1 and of(1280, 64, 1279) == 1 and of(1281, 64, 1280, a=True) == 1
    assert of(1280, 63, 1280, alone=False) > 1  # a tile of another kernel
    assert (of(1280, 63, 1280, b=True) == 1) is (dtype != torch.float32)
    assert (of(482, 57, 157) == 1) is (dtype == torch.float32)  # few tiles of 16 bits
    assert stages(like(1280, 64, dtype=dtype, offset=1), like(64, 1280, dtype=dtype), alone=True) == 1
    assert of(1000, 200, 100, b=True) > 1 and of(1000, 200, 100, alone=False) > 1


def test_no_table_for_fp64():
    assert stages(like(1280, 63, dtype=torch.float64), like(63, 1280, dtype=torch.float64), alone=True) > 1


@pytest.mark.parametrize("m,k,n,tile", [(2793, 34, 1116, (128, 64, 16)), (2365, 157, 49, (32, 64, 32)), (66, 167, 71, (16, 64, 32)), (6, 233, 1061, (16, 64, 32)), (6515, 17, 64, (32, 64, 32)),
                                        (256, 256, 256, (16, 64, 32)), (1000, 200, 100, (16, 64, 32))])
def test_how_large(m, k, n, tile):
    t = tiles.tile_for(like(m, k), like(k, n), alone=True)
    assert (t["BM"], t["BN"], t["BK"]) == tile


def test_a_small_tile_is_for_few():
    """Where tiles of sixteen rows are more than multiprocessors, twice or more, larger ones take less time."""
    assert tiles.tile_for(like(2048, 256), like(256, 2048), alone=True)["BM"] >= 64


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 2e-6), (torch.float16, 5e-3)])
@pytest.mark.parametrize("m,k,n", [(37, 33, 71), (130, 5, 67), (1, 47, 129)])
def test_what_the_tiles_compute(m, k, n, dtype, bound, seed):
    """On a CPU, by the kernel that a GPU has."""
    from triport.ops.matmul import matmul_kernel
    torch.manual_seed(seed)
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    for bm, bn, bk, _, warps, stages in tiles.OF_NUMBERS[tiles.speeds_of(dtype, "cuda")]:
        c, whole = check.guarded((m, n), dtype)
        matmul_kernel[(-(-m // bm) * -(-n // bn),)](a, b, c, m, n, k, *a.stride(), *b.stride(), BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=warps, num_stages=stages)
        assert check.error(c, a.double() @ b.double()) < bound and check.guards_hold(whole)
    assert check.error(ops.matmul(a, b), a.double() @ b.double()) < bound


def test_steps_that_are_left_open_are_not_asked():
    """Of sizes that torch.compile leaves open tiles are the table's, and nothing is decided by a stride."""
    class Open:
        def __mod__(self, other):
            raise AssertionError("a step was looked at")
        __eq__ = __ne__ = __mul__ = __mod__
        __hash__ = None
    for a, b in ((Open(), 0), (0, Open())):
        x, y = like(1280, 63, offset=a), like(63, 1280, offset=b)
        assert stages(x, y, alone=True) > 1
