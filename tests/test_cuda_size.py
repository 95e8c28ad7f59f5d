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
    ("product_exp_wgmma<bf16, 128, 128, 4, false, true, true, 1>", "sm_90a", 1340, "HGMMA", 4),
    ("product_exp_wgmma<half, 128, 256, 4, true, true, false, 0>", "sm_90a", 3400, "HGMMA", 4),
    ("product_exp_tma<half, 128, 256, 3, 4, 1, true, true, true>", "sm_90a", 1780, "HGMMA", 4),
    ("product_softmax_tma<bf16, 128, 256, 3, 4, 8, false, true, false>", "sm_90a", 2150, "HGMMA", 4),
    ("matmul_mma<bf16, 64, 64, 2, 2, 64, 4, false, true, true>", "sm_80", 850, "HMMA", 32),
    ("product_exp_mma<half, 128, 256, 2, 4, 64, 3, true, false, false, 0>", "sm_80", 3100, "HMMA", 128),
    ("product_exp_fma<float, 2, true, true, false, 0>", "sm_90a", 3350, "FFMA", 1024)])
def test_a_product_is_no_more_code_than_it_was(kernel, arch, most, multiplies, count):
    """And its main loop is there once, whole, and spills nothing. `most` is some 5 to 10 % above what NVRTC 13.5 makes."""
    code, usage = built(kernel, arch)
    assert sum(op.startswith(multiplies) for op in code) in range(count, count * 5 // 4)
    assert len(code) <= most
    assert usage["stack, bytes"] == 0 and not any(op.startswith(("LDL", "STL")) for op in code)


@needs_nvrtc
@pytest.mark.parametrize("kernel,arch,reads", [("matmul_wgmma<half, 64, 128, 4, true, false, false>", "sm_90a", 96),
                                               ("matmul_mma<half, 64, 64, 2, 2, 64, 4, false, false, false>", "sm_80", 64)])
def test_elements_off_16_bytes_are_read_in_two_places(kernel, arch, reads):
    """The main loop's and the pieces' before it, which are as many as there are slots; all that a thread reads of a piece is on its way before it is
    stored in the first of them."""
    code, _ = built(kernel, arch)
    assert code.count("LDG.E.U16") == 2 * reads
    first = code.index("LDG.E.U16")
    assert code[first:code.index("STS.128", first)].count("LDG.E.U16") == reads
