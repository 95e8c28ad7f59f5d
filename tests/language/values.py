"""What the language tests share: element types with their references, random values that include the awkward ones."""

import numpy as np
import torch
import triton.language as tl

SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
INTS = SIGNED + UNSIGNED
FLOATS = ("float16", "bfloat16", "float32", "float64")
#: Triton's fp8 names -> torch's type (None: torch has none)
FP8 = {"float8e5": torch.float8_e5m2, "float8e4nv": torch.float8_e4m3fn, "float8e4b8": torch.float8_e4m3fnuz,
       "float8e5b16": torch.float8_e5m2fnuz, "float8e4b15": None}


def torch_type(name: str):
    return getattr(torch, name)


def tl_type(name: str):
    return getattr(tl, name)


def random(name: str, n: int, seed: int, small: bool = False) -> torch.Tensor:
    """n values of a type: for integers the extremes among them unless `small`; for floats zeros of both signs and, unless
    `small`, infinities, NaN, subnormals and huge numbers."""
    rng = np.random.default_rng(seed)
    if name == "bool":
        return torch.from_numpy(rng.integers(0, 2, n).astype(bool))
    if name in INTS:
        info = np.iinfo(name)
        if small:
            x = rng.integers(max(info.min, -9), 10, n).astype(name)
        else:
            x = rng.integers(info.min, info.max, n, dtype=name, endpoint=True)
            x[:5] = np.array([0, 1, info.max, info.min, info.max - 1], dtype=name)
        return torch.from_numpy(x)
    x = rng.standard_normal(n) * 3
    if not small:
        x[: n // 4] *= 10.0**rng.integers(-6, 5, n // 4)
    t = torch.from_numpy(x).to(torch_type(name))
    info = torch.finfo(t.dtype)
    t[:2] = torch.tensor([0.0, -0.0])
    if not small:
        t[2:10] = torch.tensor([float("inf"), float("-inf"), float("nan"), info.max, info.min, info.tiny,
                                info.smallest_normal / 4, 1.0], dtype=torch.float64).to(t.dtype)
    return t


def wide(t: torch.Tensor) -> np.ndarray:
    """A tensor's values exactly: Python integers for integers, float64 for floats."""
    if t.dtype.is_floating_point:
        return t.to(torch.float64).numpy()
    return np.array(t.tolist(), dtype=object)


def rounded(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """float64 to the nearest of a type, once. (torch's own `.to` goes by fp32: 1 + 2**-11 + 2**-40 becomes 1 in fp16, not 1 + 2**-10.)"""
    values = np.asarray(values, dtype=np.float64)
    if dtype not in (torch.float16, torch.bfloat16):
        return torch.from_numpy(values).to(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        near = values.astype(np.float32)
        inexact = np.isfinite(values) & (near.astype(np.float64) != values)
        bits = near.view(np.uint32)
        odd = (bits - (np.abs(near.astype(np.float64)) > np.abs(values)).astype(np.uint32)) | np.uint32(1)  # rounded to odd: what follows rounds once
    return torch.from_numpy(np.where(inexact, odd, bits).astype(np.uint32).view(np.float32)).to(dtype)


def wrapped(values, name: str) -> torch.Tensor:
    """Python integers modulo the type's range."""
    bits, signed = int(name.strip("uint")), name[0] == "i"
    out = [int(v) & ((1 << bits) - 1) for v in values]
    if signed:
        out = [v - (1 << bits) if v >> (bits - 1) else v for v in out]
    return torch.from_numpy(np.array(out, dtype=name))

