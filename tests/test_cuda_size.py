"""How much machine code a product's kernels are: what NVRTC takes to build one goes by it, and is not measured here by any clock."""

import re
from pathlib import Path

import pytest
from triport import ops
from triport.backends import nvrtc
from triport.backends.base import Error
from triport.tools.inspector import tools

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
OPS = Path(ops.__file__).parent


def built(kernel: str, arch: str) -> tuple[list[str], dict]:
    """(the opcodes of a kernel in order, its registers and stack)."""
    made = nvrtc.compile(OPS / ("matmul.cu" if kernel.startswith("matmul_") else "matmul_softmax.cu"), kernel, arch)
    try:
        text, usage = tools.sass(made.cubin), tools.cubin_usage(made.cubin, made.name)
    except Error as e:
        pytest.skip(str(e))
    return re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text), usage


@needs_nvrtc
@pytest.mark.parametrize("kernel,arch,most,multiplies,count", [
    ("product_exp_wgmma<bf16, 128, 128, 4, false, true, true, 1>", "sm_90a", 1500, "HGMMA", 4),
    ("matmul_mma<bf16, 64, 64, 2, 2, 64, 4, false, true, true>", "sm_80", 1020, "HMMA", 32),
    ("product_exp_fma<float, 2, true, true, false, 0>", "sm_90a", 3350, "FFMA", 1024),
    ("matmul_fma<float, 2, false, true, true>", "sm_80", 2250, "FFMA", 1024),
    ("product_exp_fma<double, 1, true, true, false, 1>", "sm_80", 2030, "DFMA", 256),
    ("product_exp_fma<half, 2, true, true, false, 1>", "sm_75", 3600, "FFMA", 1024)])
def test_a_product_is_no_more_code_than_it_was(kernel, arch, most, multiplies, count):
    """And its main loop is there once, whole, and spills nothing. `most` is some 5 to 10 % above what NVRTC 13.5 makes."""
    code, usage = built(kernel, arch)
    assert count <= sum(op.startswith(multiplies) for op in code) < 2 * count + (300 if "double" in kernel else 0)  # exp in double is of DFMA
    assert len(code) <= most
    assert usage["stack, bytes"] == 0 and not any(op.startswith(("LDL", "STL")) for op in code)
