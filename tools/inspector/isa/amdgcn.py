"""AMDGCN: GCN, CDNA and RDNA. Names: AMD's instruction set documents and LLVM's AMDGPU operand syntax. s_* is the scalar unit, all else a wave's."""

from __future__ import annotations

import functools
import re

from ..schema import UNKNOWN, Class

_BITS = {"b8": 8, "u8": 8, "i8": 8, "b16": 16, "u16": 16, "i16": 16, "f16": 16, "b32": 32, "u32": 32, "i32": 32, "f32": 32, "b64": 64, "u64": 64, "i64": 64, "f64": 64,
         "b96": 96, "b128": 128, "b192": 192, "b256": 256, "b512": 512, "bf16": 16, "fp8": 8, "bf8": 8, "i24": 24, "u24": 24, "i4": 4, "u4": 4}
_DWORDS = re.compile(r"(dwordx(\d+)|dword|ubyte|sbyte|ushort|sshort|short|byte|u8|i8|u16|i16|b8|b16|b32|b64|b96|b128|b192|b256|b512|d16\w*)")
_TYPES = re.compile(r"(?:^|_)(pk_)?(?:.*?_)?(f64|f32|f16|bf16|fp8|bf8|[iub](?:8|16|24|32|64|4))(?=_|$)")
_ARITHMETIC = re.compile(
    r"v_(pk_|cvt_)?(add|sub|subrev|mul|min|max|minimum|maximum|med3|min3|max3|minmax|maxmin|minimum3|maximum3|minimummaximum|maximumminimum|rcp|rsq|sqrt|sin|cos|exp|log|frexp|ldexp|fract|trunc|ceil|rndne|floor|"
    r"cmpx?|div|cube\w*|and|or|xor|xnor|not|lshl\w*|lshr\w*|ashr\w*|bfe|bfi|bfm|bfrev|ff[bh]\w*|clz|ctz|cls|bcnt|mbcnt|sad|msad|qsad|mqsad|lerp|alignbit|alignbyte|addc|subb|subbrev|add3|"
    r"xad|prng|trig|legacy|tanh|ashrrev|lshrrev|lshlrev|lshlor|addmax|addmin|perm_pk|bitop3|xor3|xor_add|or3|and_or|ffbh|ffbl|sub_nc|add_nc|add_co|sub_co|mqsad|interp\w*|dual_(add|sub|subrev|mul|max|min|lshlrev|and)\w*)(_|$)")
_FMA = re.compile(r"v_(pk_)?(fma|mad|mac|fmac|dot\w*|fmaak|fmamk|madmk|madak|div_fmas|mad_mix\w*|fma_mix\w*|mad_u64|mad_i64|dual_(fmac|fmaak|fmamk|dot2\w*))(_|$|\d)")
_SCALAR = re.compile(
    r"s_(add|sub|addc|subb|addk|mul|mulk|min|max|and|or|xor|nand|nor|xnor|andn2|orn2|and_not\w*|or_not\w*|not|lshl\w*|lshr|ashr|bfe|bfm|bitset\w*|bitcmp\w*|bitreplicate\w*|brev|bcnt\w*|ff\w*|flbit\w*|clz\w*|ctz\w*|"
    r"cls\w*|sext|abs|absdiff|cmp\w*|cmpk\w*|wqm|quadmask|pack|movrel\w*|ceil|floor|trunc|rndne|fma\w*|fmac\w*|cvt|minimum|maximum|bitcmp)(_|$|\d)")


@functools.lru_cache(maxsize=65536)
def classify(mnemonic: str, operands: str, comment: str = "", machine=None) -> Class:
    m = re.sub(r"_(e32|e64|dpp\d*|sdwa|e64_dpp|gfx\d+|vi|ci|si)$", "", mnemonic)
    m = re.sub(r"_(e32|e64|dpp\d*|sdwa)$", "", m)
    if m in ("s_branch",):
        return Class("branch", flow="jump", target=operands.split("//")[0].split("<")[0].strip())
    if m.startswith("s_cbranch"):
        return Class("branch", flow="branch", target=operands.split(",")[-1].split("<")[0].strip())
    if m.startswith(("s_endpgm", "s_setpc", "s_rfe")):
        return Class("branch", flow="return")
    if m.startswith(("s_swappc", "s_call")):
        return Class("call", target="")
    if re.match(r"v_(s?mfmac?|wmma|swmmac)_", m):
        hit = re.findall(r"(f64|f32|f16|bf16|fp8|bf8|i8|iu8|iu4|i4|f8f6f4|xf32)", m)
        element = (hit[-1] if len(hit) > 1 else hit[0]) if hit else ""
        return Class("fma", "matrix", {"fp8": "f8", "bf8": "f8", "iu8": "i8", "iu4": "i4", "f8f6f4": "f8", "xf32": "f32"}.get(element, element), 0)
    if m.startswith(("global_", "flat_", "buffer_", "tbuffer_", "scratch_", "ds_", "image_", "tensor_", "cluster_")):
        return _memory(m, operands)
    if m.startswith("s_"):
        return _scalar(m)
    if m.startswith("v_s_"):  # the wave's one value, on the transcendental unit
        return Class("arithmetic", "scalar", "f16" if m.endswith("f16") else "f32", 32)
    if m.startswith("v_"):
        return _vector(m, operands)
    if m.startswith(("exp", "lds_")):
        return Class("store", "vector", "f32", 128, stores=128) if m.startswith("exp") else Class("load", "vector", "f32", 32, loads=32, space="shared")
    return UNKNOWN


def _width(m: str) -> int:
    if hit := re.search(r"dwordx(\d+)", m):
        return 32 * int(hit[1])
    if "dword" in m:
        return 32
    if re.search(r"(ubyte|sbyte|_byte|_[ui]8|_b8)", m):
        return 8
    if re.search(r"(ushort|sshort|_short|_[ui]16|_b16)", m):
        return 16
    hit = re.search(r"_b(\d+)", m)
    if hit:
        return int(hit[1])
    if hit := re.search(r"_(?:xyzw|xyz|xy|x)$", m):
        return 32 * (len(hit[0]) - 1)
    return 32


def _memory(m: str, operands: str) -> Class:
    space = {"g": "global", "f": "flat", "b": "global", "t": "global", "s": "stack", "d": "shared", "i": "global", "c": "global"}[m[0]]
    width = _width(m)
    if re.search(r"(wbinv|_inv$|_wb$|_wbl2|wbl2|buffer_gl\d|gl[01]_inv|_invsc|buffer_inv|buffer_wb|global_inv|global_wb)", m):
        return Class("sync")
    if m.startswith("ds_") and re.match(r"ds_(b?permute|swizzle|bpermute\w*|permute\w*)", m):
        return Class("shuffle", "vector", "i32", 32)
    if re.match(r"ds_(nop|gws\w*|ordered\w*|bvh\w*|consume|append)", m):
        return Class("sync")
    if re.search(r"prefetch", m):
        return Class("config")
    if re.search(r"(_load|_read|ds_load|ds_read|_sample|_gather4|ds_param|ds_direct)", m):
        double = 2 if re.search(r"(read2|load_2addr|read2st64)", m) else 1
        return Class("load", "vector", f"i{min(width, 32)}", width * double, loads=width * double, space=space)
    if re.search(r"(_store|_write|ds_store)", m) and "wrxchg" not in m:
        double = 2 if re.search(r"(write2|store_2addr)", m) else 1
        return Class("store", "vector", f"i{min(width, 32)}", width * double, stores=width * double, space=space)
    if "atomic" in m or re.match(r"ds_(add|sub|rsub|inc|dec|min|max|and|or|xor|mskor|wrxchg|cmpst|cmpstore|storexchg|wrap|condxchg|pk_add|cond_sub|sub_clamp)", m):
        hit = re.search(r"_(f64|f32|f16|bf16)", m)
        bits = 64 if re.search(r"(x2|64)", m) else 32
        return Class("atomic", "vector", hit[1] if hit else f"i{bits}", bits, loads=bits, stores=bits, space=space)
    if re.search(r"image_(get|msaa|bvh)|get_resinfo|get_lod", m):
        return Class("load", "vector", "", 32, loads=32, space="global")
    return UNKNOWN


def _scalar(m: str) -> Class:
    if re.match(r"s_(load|buffer_load|scratch_load)", m):
        bits = _width(m)
        return Class("load", "scalar", "i32", bits, loads=bits, space="const")
    if re.match(r"s_(store|buffer_store|scratch_store)", m):
        bits = _width(m)
        return Class("store", "scalar", "i32", bits, stores=bits, space="global")
    if re.match(r"s_(buffer_)?atomic", m):
        return Class("atomic", "scalar", "i32", 32, loads=32, stores=32)
    if re.match(r"s_(barrier\w*|waitcnt\w*|wait_\w+|sendmsg\w*|wakeup|sleep\w*|get_barrier\w*|join_barrier|monitor_sleep)", m):
        return Class("sync")
    if re.match(r"s_(nop|clause|delay_alu|inst_prefetch|set\w*|round_mode|denorm_mode|ttrace\w*|dcache\w*|icache\w*|gl1_inv|code_end|version|prefetch\w*|buffer_prefetch\w*|incperflevel|decperflevel|getreg\w*|"
                r"memtime|memrealtime|sethalt|singleuse\w*|atc_probe\w*|subvector\w*|waveid|alloc_vgpr|set_gpr\w*)", m):
        return Class("config")
    if re.match(r"s_(mov|cmov|movk|cmovk|cselect|getpc|movrel\w*|cvt_|get_)", m) or "saveexec" in m or "wrexec" in m:
        if "saveexec" in m or "wrexec" in m:
            return Class("mask", "scalar", "i64", 64)
        if m.startswith("s_cvt"):
            return Class("convert", "scalar", "f32", 32)
        return Class("move", "scalar", "i32", 64 if "64" in m else 32)
    if re.match(r"s_(trap|sethalt|ttracedata|get_waveid\w*|sysreg)", m):
        return Class("system")
    if _SCALAR.match(m):
        hit = re.search(r"_(f32|f16|[iub]\d+)", m)
        element = hit[1].replace("u", "i").replace("b", "i") if hit else "i32"
        return Class("fma" if re.match(r"s_fma", m) else "arithmetic", "scalar", element, int(re.sub(r"\D", "", element) or 32))
    return UNKNOWN


def _vector(m: str, operands: str) -> Class:
    packed = m.startswith(("v_pk_", "v_dot"))
    types = re.findall(r"_(f64|f32|f16|bf16|fp8|bf8|[iub](?:8|16|24|32|64|4))(?=_|$)", m)
    element = types[-1] if types else "i32"
    bits = _BITS.get(element, 32)
    element = {"fp8": "f8", "bf8": "f8"}.get(element, element if element[0] == "f" or element == "bf16" else f"i{bits}")
    width = bits * 2 if packed and bits < 64 else bits
    if re.match(r"v_(nop|pipeflush|illegal|s_nop)", m):
        return Class("config")
    if re.match(r"v_cmpx?_", m):
        hit = re.search(r"_(f64|f32|f16|[iu]\d+)$", m)
        return Class("arithmetic", "vector", (hit[1].replace("u", "i") if hit else "i32"), bits)
    if re.match(r"v_(readlane|readfirstlane|writelane|permlane\w*|perm_b32|permute\w*|swap\w*|movrel\w*|mov_b32_dpp|bpermute\w*)", m):
        return Class("shuffle", "vector", "i32", 32)
    if re.match(r"v_(mov|cndmask|accvgpr\w*|dual_(mov|cndmask)|pk_mov|mov_b16|mov_b64|accvgpr_mov)", m):
        return Class("move", "vector", element, bits)
    if re.match(r"v_(cvt|pack|sat_pk|frexp_exp_i|cvt_pk\w*|pk_cvt|cvt_scalef32\w*|cvt_sr)", m):
        named = next((t for t in types if t == "f64"), None) or next((t for t in types if t[0] == "f" or t == "bf16"), element)
        return Class("convert", "vector", {"fp8": "f8"}.get(named, named), 64 if named == "f64" else 32)
    if _FMA.match(m):
        if m.startswith("v_dual"):
            element, width = "f32", 64
        return Class("fma", "vector", element, width)
    if _ARITHMETIC.match(m):
        return Class("arithmetic", "vector", element, width)
    return UNKNOWN
