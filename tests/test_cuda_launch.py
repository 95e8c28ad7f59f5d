"""Launches by CUDA's driver, without a GPU: the parameters that it is given, descriptions that are kept, and what is left to Triton."""

import ctypes
import struct
import threading
from types import SimpleNamespace

import pytest
from triport.backends import base
from triport.backends.dispatch import cuda_launch
from triport.backends.dispatch.cuda_launch import Address, Described, Number


class FakeDriver:
    """Notes launches: grid, threads, shared memory, stream and the bytes of the parameters. sizes: of the kernel's; codes: what launches return."""

    def __init__(self, sizes):
        self.sizes, self.codes, self.launched, self.encoded, self.entered = sizes, [], [], [], []
        self.offsets, at = [], 0
        for size in sizes:
            align = min(size, 64)
            at = -(-at // align) * align
            self.offsets.append(at)
            at += size

    def parameter(self, function, index):
        return (self.offsets[index], self.sizes[index]) if index < len(self.sizes) else None

    def launch(self, function, x, y, z, threads, _, __, shared, stream, pointers, extra):
        if self.codes and (code := self.codes.pop()):
            return code
        values = [ctypes.string_at(ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))[k], n) for k, n in enumerate(self.sizes)]
        self.launched.append((function, (x, y, z), threads, shared, stream, values))
        return 0

    def encode(self, into, kind, rank, address, sizes, strides, box, steps, swizzle):
        self.encoded.append((kind, rank, address, list(sizes), list(strides)[:rank - 1], list(box), list(steps), swizzle))
        assert into % 64 == 0
        ctypes.memmove(into, struct.pack("=QQ", address, 0xABCD) + bytes(112), 128)
        return 0

    def enter(self, device):
        self.entered.append(device)

    def name(self, code):
        return f"CUDA_ERROR ({code})"


class CudaLauncher:
    gsan_enabled = False


def compiled(signature, described=(), **other):
    metadata = dict(num_warps=4, num_ctas=1, shared=1234, launch_pdl=False, launch_cooperative_grid=False, global_scratch_size=0, profile_scratch_size=0,
                    tensordesc_meta=list(described), target=SimpleNamespace(backend="cuda", warp_size=32))
    return SimpleNamespace(metadata=SimpleNamespace(**{**metadata, **other}), run=CudaLauncher(), function=99, name="some_kernel",
                           src=SimpleNamespace(signature=signature))


SIGNATURE = {"x": "*fp32", "y": "*fp32", "n": "i32", "s": "fp64", "one": "constexpr", "far": "i64", "BLOCK": "constexpr"}
ARGS = (Address(1), Address(0), -5, Number(0), 1, 1 << 40)
SIZES = [8, 8, 4, 8, 8, 8, 8]


def prepared(monkeypatch, sizes=SIZES, args=ARGS, **kwargs):
    driver = FakeDriver(sizes)
    monkeypatch.setattr(cuda_launch, "driver", lambda: driver)
    return driver, cuda_launch.prepared(compiled(**{"signature": SIGNATURE, **kwargs}), args, 6, 2)


def test_parameters(monkeypatch):
    driver, launch = prepared(monkeypatch)
    launch([1000, 2000], (0.5,), 77)
    launch([3000, 4000], (0.25,), 78)
    for (function, grid, threads, shared, stream, values), first, s, at in zip(driver.launched, (2000, 4000), (0.5, 0.25), (77, 78)):
        assert (function, grid, threads, shared, stream) == (99, (6, 1, 1), 128, 1234, at)
        assert values == [struct.pack("=Q", first), struct.pack("=Q", first - 1000), struct.pack("=i", -5), struct.pack("=d", s), struct.pack("=q", 1 << 40),
                          bytes(8), bytes(8)]


@pytest.mark.parametrize("why", [dict(sizes=SIZES[:-1]), dict(sizes=[*SIZES, 8]), dict(sizes=[8, 8, 8, 8, 8, 8, 8]), dict(num_ctas=2), dict(launch_pdl=True),
                                 dict(profile_scratch_size=8), dict(global_scratch_size=8), dict(launch_cooperative_grid=True),
                                 dict(signature={**SIGNATURE, "n": "fp16"}), dict(signature={**SIGNATURE, "BLOCK": "i32"}), dict(args=ARGS[:-1]),
                                 dict(signature={**SIGNATURE, "x": "i64"}), dict(described=[{}]), "old", "new", "other", "none"])
def test_what_is_not_as_known_goes_by_triton(why, monkeypatch):
    if isinstance(why, str):
        if why in ("old", "new"):
            monkeypatch.setattr(cuda_launch.triton, "__version__", "3.5.1" if why == "old" else "3.10.0")
        elif why == "other":
            monkeypatch.setattr(CudaLauncher, "gsan_enabled", True)
        else:
            monkeypatch.setattr(cuda_launch, "driver", lambda: None)
            assert cuda_launch.prepared(compiled(SIGNATURE), ARGS, 6, 2) is None
            return
        why = {}
    assert prepared(monkeypatch, **why)[1] is None


def test_descriptions_are_kept_by_address(monkeypatch):
    facts = {"swizzle": 3, "elem_size": 2, "elem_type": 1, "block_size": [64, 32], "fp4_padded": False}
    monkeypatch.setattr(cuda_launch, "_kind", lambda facts: facts["elem_type"] + 5)
    monkeypatch.setattr(cuda_launch, "MAPS", 2)
    driver, launch = prepared(monkeypatch, [8, 128, 4, 4, 8, 8, 4, 8, 8], (Address(0), Described(1, (100, 200), (208, 1), (64, 64)), 7),
                              signature={"out": "*bf16", "x": "tensordesc<bf16[64, 64]>", "n": "i32"}, described=[facts])
    for address in (0x1000, 0x2000, 0x1000, 0x3000, 0x1000):
        launch([16, address], (), 0)
        *_, values = driver.launched[-1]
        assert struct.unpack("=QQ", values[1][:16]) == (address, 0xABCD) and values[0] == struct.pack("=Q", 16)
        assert values[2:6] == [struct.pack("=i", 100), struct.pack("=i", 200), struct.pack("=q", 208), struct.pack("=q", 1)]
    assert [e[2] for e in driver.encoded] == [0x1000, 0x2000, 0x3000, 0x1000]  # two are kept, then none of them
    assert driver.encoded[0] == (6, 2, 0x1000, [200, 100], [416], [32, 64], [1, 1], 3)


def test_a_thread_without_a_context_enters_one(monkeypatch):
    driver, launch = prepared(monkeypatch)
    driver.codes = [cuda_launch.INVALID_CONTEXT]
    launch([1000, 2000], (0.5,), 77)
    assert driver.entered == [2] and len(driver.launched) == 1
    driver.codes = [700]
    with pytest.raises(base.Error, match=r"some_kernel on 6 x 128 threads failed: CUDA_ERROR \(700\)"):
        launch([1000, 2000], (0.5,), 77)
    assert driver.entered == [2]


def test_threads_have_blocks_of_their_own(monkeypatch):
    """A launch that begins within another's: the first one's parameters stay."""
    driver, launch = prepared(monkeypatch)
    real, inside = driver.launch, []

    def start(*args):
        if not inside:
            inside.append(threading.Thread(target=launch, args=([3000, 4000], (0.25,), 78)))
            inside[0].start()
            inside[0].join()
        return real(*args)

    monkeypatch.setattr(launch, "_start", start)
    launch([1000, 2000], (0.5,), 77)
    assert [(stream, values[0]) for *_, stream, values in driver.launched] == [(78, struct.pack("=Q", 4000)), (77, struct.pack("=Q", 2000))]
    launch([1000, 2000], (0.5,), 77)
    assert len(launch._blocks) == 2
