"""PTX. Opcodes and type suffixes: NVIDIA's PTX ISA. Every thread's instruction is one of a warp: unit `vector`; bits are one thread's."""

from __future__ import annotations

import functools
import re

from ..schema import UNKNOWN, Class

_TYPE = {"f64": ("f64", 64), "f32": ("f32", 32), "f16": ("f16", 16), "f16x2": ("f16", 32), "bf16": ("bf16", 16), "bf16x2": ("bf16", 32),
         "f32x2": ("f32", 64), "tf32": ("f32", 32), "e4m3": ("f8", 8), "e5m2": ("f8", 8), "e4m3x2": ("f8", 16), "e5m2x2": ("f8", 16),
         "e2m1x2": ("f4", 8), "e3m2x2": ("f6", 16), "e2m3x2": ("f6", 16), "ue8m0x2": ("f8", 16), "pred": ("i1", 1), "b128": ("i128", 128)}
_TYPE |= {f"{k}{n}": (f"i{n}", n) for k in "bsu" for n in (4, 8, 16, 32, 64)} | {"u16x2": ("i16", 32), "s16x2": ("i16", 32)}
_SPACES = ("global", "shared", "local", "param", "const")

_ARITHMETIC = set("add sub mul mul24 div rem abs neg min max sqrt rsqrt rcp sin cos lg2 ex2 tanh testp copysign set setp and or xor not cnot lop3 shl shr shf "
                  "bfi bfe bfind brev clz popc sad addc subc szext bmsk fns vadd vsub vabsdiff vmin vmax vshl vshr vset vadd2 vsub2 vavrg2 vadd4 vsub4 "
                  "vabsdiff4 vavrg4 slct".split()) - {"slct"}
_FMA = set("fma mad mad24 madc dp4a dp2a vmad".split())
_MATRIX = re.compile(r"(mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)")
_SYNC = re.compile(r"(bar|barrier|membar|fence|mbarrier|wgmma\.(fence|commit_group|wait_group)|cp\.async\.(commit_group|wait_\w+|mbarrier)|"
                   r"cp\.async\.bulk\.(commit_group|wait_group)|griddepcontrol|tcgen05\.(fence|wait|commit|alloc|dealloc|relinquish\w*)|elect|"
                   r"clusterlaunchcontrol|setmaxnreg|redux_sync|nanosleep|pmevent|activemask)")


@functools.lru_cache(maxsize=65536)
def classify(mnemonic: str, operands: str, comment: str = "", machine=None) -> Class:
    parts = mnemonic.split(".")
    op = parts[0]
    types = [_TYPE[p] for p in parts[1:] if p in _TYPE]
    element, bits = types[0] if types else ("", 0)
    lanes = next((int(p[1:]) for p in parts if re.fullmatch(r"v[248]", p)), 1)
    space = next((p for p in (q.split("::")[0] for q in parts) if p in _SPACES), "")
    if op in ("bra",):
        return Class("branch", flow="branch" if "@" in comment else "jump", target=operands.split(",")[0].strip())
    if op == "brx":
        return Class("branch", flow="return")
    if op in ("ret", "exit"):
        return Class("branch", flow="return")
    if op == "call":
        hit = re.search(r"(?:\([^)]*\)\s*,\s*)?([$\w]+)", operands)
        return Class("call", "vector", target=re.sub(r"^\([^)]*\)\s*,\s*", "", operands).split(",")[0].strip() if hit else "")
    if _MATRIX.match(mnemonic):
        inputs = [t for t in types if t[0] != "f32"] or types
        return Class("fma", "matrix", inputs[0][0] if inputs else "f32", 0)
    if op in ("ldmatrix", "stmatrix", "movmatrix") or re.match(r"wmma\.(load|store)|tcgen05\.(ld|st|cp|shift)", mnemonic):
        number = next((int(p[1:]) for p in parts if re.fullmatch(r"x\d+", p)), 1)
        width = 32 * number
        load = op == "ldmatrix" or ".load" in mnemonic or ".ld" in mnemonic
        if op == "movmatrix":
            return Class("shuffle", "vector", "i16", 32)
        return Class("load" if load else "store", "vector", "", width, space=space or ("tensor" if op == "tcgen05" else ""),
                     **({"loads": width} if load else {"stores": width}))
    if _SYNC.match(mnemonic):
        return Class("sync")
    if op == "cp":
        size = re.search(r",\s*(\d+|0x[0-9a-f]+)\s*(?:,|$)", operands)
        width = int(size[1], 0) * 8 if size else 0
        return Class("load", "vector", "", width, loads=width or 1024, space="global")
    if op in ("ld", "ldu", "tex", "tld4", "suld", "surf") or mnemonic.startswith("ld."):
        width = bits * lanes
        where = "stack" if space == "local" else space
        return Class("load", "scalar" if space in ("param", "const") else "vector", element, width, loads=width, space=where)
    if op in ("st", "sust"):
        width = bits * lanes
        return Class("store", "vector", element, width, stores=width, space="stack" if space == "local" else space)
    if op in ("atom", "red", "sured"):
        width = bits * lanes
        return Class("atomic", "vector", element, width, loads=width, stores=width, space=space)
    if op in ("cvt", "cvta", "cvt_pack"):
        if op == "cvta":
            return Class("move", "vector", element, bits)
        names = [t[0] for t in types]
        named = next((n for n in names if n[0] == "f" or n == "bf16"), element)
        if "f64" in names:
            named = "f64"
        return Class("convert", "vector", named, max((t[1] for t in types), default=0))
    if op in ("mov", "selp", "slct", "isspacep", "mapa", "getctarank", "alloca", "stacksave", "stackrestore", "istypep", "createpolicy"):
        return Class("move", "vector", element, bits)
    if op in ("shfl", "prmt"):
        return Class("shuffle", "vector", element or "i32", 32)
    if op in ("vote", "match", "redux"):
        return Class("shuffle", "vector", element or "i32", 32)
    if op in _FMA:
        return Class("fma", "vector", element, bits)
    if op in _ARITHMETIC:
        return Class("arithmetic", "vector", types[-1][0] if op == "set" and types else element, bits)
    if op in ("prefetch", "prefetchu", "applypriority", "discard", "trap", "brkpt"):
        return Class("system" if op in ("trap", "brkpt") else "config")
    return UNKNOWN
