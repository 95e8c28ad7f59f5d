"""x86-64, AT&T syntax, as LLVM and GNU write it. Names and element types: Intel's Software Developer's Manual, volume 2."""

from __future__ import annotations

import functools
import re

from ..schema import UNKNOWN, Class
from .operands import split

_WIDTH = {"x": 128, "y": 256, "z": 512}
_SUFFIX = {"b": 8, "w": 16, "l": 32, "q": 64}
_FLOAT = {"ps": ("f32", 1), "pd": ("f64", 1), "ph": ("f16", 1), "ss": ("f32", 0), "sd": ("f64", 0), "sh": ("f16", 0),
          "bf16": ("bf16", 1), "pbf16": ("bf16", 1), "nepbf16": ("bf16", 1)}
_INT = {"b": "i8", "w": "i16", "d": "i32", "q": "i64", "dq": "i128", "ub": "i8", "uw": "i16", "ud": "i32", "uq": "i64",
        "sb": "i8", "sw": "i16", "sd": "i32", "sq": "i64"}
_CC = "(a|ae|b|be|c|e|g|ge|l|le|na|nae|nb|nbe|nc|ne|ng|nge|nl|nle|no|np|ns|nz|o|p|pe|po|s|z)"

# scalar floating point and vectors, without the leading v of AVX; the first group that matches says the element by suffix
_FLOATS = [(re.compile(p + r"$"), k) for p, k in (
    (r"(?:f(?:n?madd|n?msub|maddsub|msubadd)(?:132|213|231)?|fc?maddc|fc?mulc)(ps|pd|ph|ss|sd|sh|nepbf16|bf16)", "fma"),
    (r"(?:add|sub|mul|div|sqrt|min|max|minmax|rcp|rsqrt|rcp14|rsqrt14|rcp28|rsqrt28|exp2|round|rndscale|reduce|getexp|getmant|"
     r"range|scalef|fixupimm|addsub|hadd|hsub|fpclass|com|comi|comx|ucomi|ucomx|dp)(ps|pd|ph|ss|sd|sh|nepbf16|pbf16|bf16)[xyz]?",
     "arithmetic"),
    (r"cmp(?:[a-z_]*?)(ps|pd|ph|ss|sd|sh|bf16)", "arithmetic"),
)]
_LOGIC = re.compile(r"(?:and|andn|or|xor)(ps|pd)$")
_INTEGER = [(re.compile(p + r"$"), k) for p, k in (
    (r"p(?:add|sub)(?:us|s)?(b|w|d|q)", "arithmetic"), (r"ph(?:add|sub)s?(w|d|sw)", "arithmetic"),
    (r"p(?:max|min)([us]?[bwdq])", "arithmetic"), (r"pmul(?:l|lw|hrs|h|hu|ld|udq|dq|lq)?(w|d|q)?", "arithmetic"),
    (r"pmulh(?:u|rs)?(w)", "arithmetic"), (r"pabs(b|w|d|q)", "arithmetic"), (r"pavg(b|w)", "arithmetic"),
    (r"psign(b|w|d)", "arithmetic"), (r"p(?:sll|srl|sra|sllv|srlv|srav|rol|ror|rolv|rorv|lzcnt|conflict)(w|d|q|b)",
                                      "arithmetic"), (r"popcnt(b|w|d|q)", "arithmetic"),
    (r"psh(?:l|r)dv?(w|d|q)", "arithmetic"), (r"p(?:and|andn|or|xor)(d|q)?", "arithmetic"),
    (r"pternlog(d|q)", "arithmetic"), (r"pcmp(?:eq|gt|istr[im]|estr[im])?([bwdq])?q?", "arithmetic"),
    (r"pcmp[a-z]*?(ub|uw|ud|uq|b|w|d|q)", "arithmetic"), (r"p?sadbw", "arithmetic"), (r"m?psadbw|dbpsadbw", "arithmetic"),
    (r"ptest(?:n?m)?(b|w|d|q)?", "arithmetic"), (r"test(ps|pd)", "arithmetic"), (r"phminposuw", "arithmetic"),
    (r"pmadd(?:wd|ubsw)", "fma"), (r"p?dp(?:bu|bs|wu|ws)[su]ds?", "fma"), (r"p4dpwssds?", "fma"), (r"pmadd52[lh]uq", "fma"),
    (r"pmultishiftqb", "arithmetic"), (r"gf2p8.*", "arithmetic"), (r"aes.*|pclmul.*|sha\d.*|sm[34].*", "arithmetic"),
    (r"pcom(?:[a-z]*?)(b|w|d|q|ub|uw|ud|uq)", "arithmetic"),
)]
_CONVERT = re.compile(r"cvt|pmov[sz]x|pmov(?:us|s)?(?:wb|dw|db|qd|qw|qb)$|pack[us]s")
_SHUFFLE = re.compile(
    r"p?shuf|perm|unpck|punpck|palignr|alignr$|align[dq]$|p?insr?|insert|p?extr|extract|broadcast|mov(?:ddup|shdup|sldup|hlps|lhps)"
    r"|(?:p?compress|p?expand)|ps(?:ll|rl)dq$|pmov(?:m2|[bwdq]2m)|shuf[fi]|fmul4|pbroadcast|insertps|extractps|extrq|insertq")
_MOVE = re.compile(r"(mov(?:a|u|nt)(ps|pd)|mov(?:dqa|dqu|ntdqa?)(8|16|32|64)?|lddqu|mov(ss|sd|sh)|mov([dqw])|mov[hl](ps|pd)"
                   r"|p?maskmov(ps|pd|d|q|dqu)?|movnt(ss|sd|q)|movrs[bwdq])$")
_BLEND = re.compile(r"p?blend(?:v|m)?(ps|pd|b|w|d|q|vb)$")
_GATHER = re.compile(r"p?gather(pf[01])?([dq])(ps|pd|d|q)$")
_SCATTER = re.compile(r"p?scatter(pf[01])?([dq])(ps|pd|d|q)$")
_MASKS = re.compile(r"k(mov|and|andn|or|xor|xnor|not|add|test|ortest|unpck(bw|wd|dq)|shift[lr])([bwdq])?$")
_MATRIX = re.compile(r"(t2rpntlvw\w*|tileload\w*|tilestore\w*|tilezero|tilerelease|tilemov\w*|t(?:t|cvt|conj)?dp\w+|tt?mm\w+|tt?cmm\w+"
                     r"|tcvt\w+|tconj\w+|ttransposed)$")
_SCALAR = re.compile(r"(adc|adcx|adox|add|and|andn|bextr|blc\w+|bls\w+|bsf|bsr|bswap|bt|btc|btr|bts|bzhi|cmp|crc32|dec|div|idiv|imul|"
                     r"inc|lea|lzcnt|mul|mulx|neg|not|or|pdep|pext|popcnt|rcl|rcr|rol|ror|rorx|sal|sar|sarx|sbb|shl|shld|shlx|shr|"
                     r"shrd|shrx|sub|test|tzcnt|tzmsk|t1mskc|xor|ccmp\w*|ctest\w*)([bwlq])?$")
_GPR_MOVE = re.compile(rf"(mov([bwlq])?|movabs([bwlq])?|mov[sz](bw|bl|bq|wl|wq|lq|ww|ll|qq)|movbe([wlq])?|cmov{_CC}([wlq])?|cfcmov{_CC}([wlq])?"
                       rf"|set(?:zu)?{_CC}|cbt[wn]|cwt[ld]|clt[dq]|cqto|movnti([lq])?|movdiri([lq])?|lahf|sahf)$")
_SYSTEM = re.compile(
    r"(int3?|into|in[bwl]?|out[bwl]?|ins[bwl]|outs[bwl]|iret[lqw]?|sys\w+|hlt|cli|sti|cpuid|rdtscp?|rdpmc|[rw]dmsr\w*|[rw]r?msr\w*|lgdt\w*|lidt\w*|"
    r"sgdt\w*|sidt\w*|lldt\w*|sldt\w*|ltr\w*|str[wlq]?|lmsw\w*|smsw\w*|invlpg\w*|invd|wbinvd|wbnoinvd|clts|swapgs|ud[012][wlq]?|vm\w+|verr|verw|lar[wlq]?|"
    r"lsl[wlq]?|xgetbv|xsetbv|xsave\w*|xrstor\w*|fxsave\w*|fxrstor\w*|rdrand\w*|rdseed\w*|[rw][df][sg]sbase\w*|monitor\w*|mwait\w*|getsec|"
    r"encl[suv]|seam\w+|tdcall|clac|stac|rsm|skinit|stgi|clgi|invlpga|invvpid|invept|invpcid|lds[lw]?|l[efgs]s[wlq]?|arpl|bound\w*|"
    r"enter[wq]?|xlatb|pconfig|ptwrite[lq]?|rdpid|rdpru|pvalidate|psmash|rmp\w+|ud2|loadiwkey|u?wrmsr\w*|urdmsr|hreset|"
    r"pbndkb|slwpcb|llwpcb|lwp\w+|uiret|testui|clui|stui|senduipi|erets|eretu|lkgs\w*|incssp[dq]|rdssp[dq]|saveprevssp|rstorssp|"
    r"wr(?:u)?ss[dq]|setssbsy|clrssbsy|monitorx|bnd\w+|xstore|xcrypt\w+|xsha\d+|montmul|ccs_\w+)$")
_STRING = re.compile(r"(?:rep\w* )?(movs|stos|lods|cmps|scas)([bwlq])$")
_X87 = re.compile(r"f(ld|st|ist|ild|add|sub|mul|div|com|ucom|icom|chs|abs|sqrt|sin|cos|tan|ptan|patan|yl2x|2xm1|scale|prem|rndint|xch|"
                  r"n?init|n?clex|n?st|n?save|rstor|free|nop|wait|xam|tst|xtract|cmov|isttp|iadd|isub|imul|idiv|dec|inc|bld|bst|ldcw)\w*$")
_CONFIG = re.compile(r"(vzeroupper|vzeroall|nop[wlq]?|endbr(64|32)|pause|prefetch\w*|cld|std|clc|stc|cmc|emms|femms|ldmxcsr|stmxcsr|"
                     r"fwait|wait|data16|cldemote|clflush(opt)?|clwb|clzero|lock|rep\w*|notrack|bnd|xacquire|xrelease|ldtilecfg|sttilecfg|"
                     r"addr32|cs|ds|es|fs|gs|ss|rex(64|\.\w+)?|xabort|xbegin|xend|xtest|xsusldtrk|xresldtrk|serialize|wait|jmpabs)$")
_ATOMIC = re.compile(r"(xadd|cmpxchg(8b|16b)?|xchg|cmp(?:n?\w{1,2})xadd|a(?:add|and|or|xor))([bwlq])?$")
_FENCE = re.compile(r"([lms]fence)$")
_JUMP = re.compile(rf"j{_CC}$|j[er]?cxz$|jrcxz$|loop(n?e)?$")


def _is_memory(op: str) -> bool:
    op = re.sub(r"^%[cdefgs]s:", "", op.partition("{")[0].strip())
    return bool(op) and op[0] not in "%$*" and ("(" in op or ":" in op or not op.startswith("{"))


def _stack(op: str) -> str:
    return "stack" if re.search(r"\(%[re]sp\)", op) else "frame" if re.search(r"\(%[re]bp\)", op) else ""  # with an index it is an array's


@functools.lru_cache(maxsize=65536)
def classify(mnemonic: str, operands: str, comment: str = "", machine=None) -> Class:
    ops = tuple(o for o in split(operands) if not re.fullmatch(r"\{[a-z-]+\}", o))
    m = mnemonic.removeprefix("lock ").removeprefix("{evex} ").removeprefix("{vex} ")
    if m != mnemonic and not mnemonic.startswith("{"):
        inner = classify(m, operands)
        bits = inner.loads or inner.bits
        return Class("atomic", "scalar", inner.element, bits, bits, bits)
    if m in ("jmp", "jmpq"):
        indirect = operands.startswith("*")
        return Class("branch", flow="return" if indirect else "jump", target="" if indirect else _target(operands))
    if _JUMP.match(m):
        return Class("branch", flow="branch", target=_target(operands))
    if m in ("ret", "retq", "retw", "lret", "lretq", "lretl", "lretw", "iretq") or m.startswith("rep ret"):
        return Class("branch", flow="return", loads=64 if m.startswith("ret") else 0)
    if m in ("call", "callq", "callw", "lcall", "lcalll", "lcallw", "ljmpl", "ljmp", "lcallq", "ljmpq", "ljmpw"):
        return Class("call", target=_target(operands))
    memory = next((o for o in ops if _is_memory(o)), "")
    to_memory = bool(ops) and _is_memory(ops[-1])
    registers = re.findall(r"%([xyz])mm\d+", operands)
    width = max((_WIDTH[r] for r in registers), default=0)
    masked = "{%k" in operands
    found = _simd(m, ops, width, memory, to_memory, masked, operands) if (
        width or m[:1] in "vkt" or m.startswith("cvt") or "%tmm" in operands or "%mm" in operands) else None
    found = found or _general(m, ops, memory, to_memory)
    if memory and found.is_memory and (space := _stack(memory)):
        found = _replace(found, space=space)
    return found


def _replace(c: Class, **changes) -> Class:
    import dataclasses
    return dataclasses.replace(c, **changes)


def _target(operands: str) -> str:
    return operands.split("@")[0].split("<")[0].strip().lstrip("*")


def _memory(c: Class, memory: str, to_memory: bool, bits: int) -> Class:
    """`c` with the traffic of its memory operand."""
    if not memory:
        return c
    return _replace(c, stores=bits) if to_memory else _replace(c, loads=bits)


def _simd(m, ops, width, memory, to_memory, masked, operands) -> Class | None:
    """SSE, AVX, AVX-512, AMX and mask instructions; None where it is none of them."""
    if _MASKS.match(m):
        bits = {"b": 8, "w": 16, "d": 32, "q": 64}.get(m[-1], 16)
        return _memory(Class("mask", "vector", "i1", bits), memory, to_memory, bits)
    if "%tmm" in operands or _MATRIX.match(m):
        if not _MATRIX.match(m):
            return None
        if "load" in m or m.startswith("t2rpnt"):
            return Class("load", "matrix", "", 8192, loads=8192)
        if "store" in m:
            return Class("store", "matrix", "", 8192, stores=8192)
        if m in ("tilezero", "tilerelease") or m.startswith(("tilemov", "tcvt", "ttrans", "tconjt")):
            return Class("config" if m == "tilerelease" else "move", "matrix", "", 8192)
        if m.startswith(("tdp", "tmm", "ttdp", "ttmm", "tcmm", "ttcmm", "tconj")):
            element = "bf16" if "bf16" in m else "f16" if "fp16" in m else "f32" if "tf32" in m else "i8" if "p8" not in m else "f8"
            return Class("fma", "matrix", element, 8192)
    if m in ("vzeroupper", "vzeroall"):
        return Class("config")
    v = m.startswith("v")
    base = m[1:] if v and m not in ("verr", "verw") else m
    mmx = not width and "%mm" in operands
    width = width or (64 if mmx else 0)
    splat = "{1to" in operands
    if hit := _GATHER.match(base) or _SCATTER.match(base):
        element = {"ps": "f32", "pd": "f64", "d": "i32", "q": "i64"}[hit[3]]
        width = max(width, 128)
        if hit[1]:
            return Class("config", "vector", element, 0)
        kind = "gather" if "gather" in base else "scatter"
        return Class(kind, "vector", element, width, **({"loads": width} if kind == "gather" else {"stores": width}), masked=True)
    if not width and not v and not base.startswith("cvt"):
        return None  # a name that vectors share with general registers, without a vector register
    for pattern, kind in _FLOATS:
        if hit := pattern.match(base):
            element, packed = _FLOAT[hit[1]]
            size = int(re.sub(r"\D", "", "16" if element == "bf16" else element))
            if re.match(r"v?(4f|p4)", base):
                width = 512
            unit, bits = ("vector", width) if packed else ("scalar", size)
            return _memory(Class(kind, unit, element, bits, masked=masked, splat=splat), memory, to_memory,
                           size if splat or not packed else bits)
    if hit := _LOGIC.match(base):
        size = 32 if hit[1] == "ps" else 64
        return _memory(Class("arithmetic", "vector", f"i{size}", width, masked=masked, splat=splat), memory, to_memory,
                       size if splat else width)
    if _CONVERT.match(base):
        return _convert(base, ops, width, memory, to_memory, masked, splat)
    if hit := _BLEND.match(base):
        return _memory(Class("move", "vector", _element(hit[1]), width, masked=masked, splat=splat), memory, to_memory,
                       _splat_size(hit[1]) if splat else width)
    if hit := _MOVE.match(base):
        return _move(base, ops, width, memory, to_memory, masked)
    if re.match(r"movmsk(ps|pd)$|pmovmskb$", base):
        return Class("mask", "vector", "", width)
    if re.match(r"pmov(m2[bwdq]|[bwdq]2m)$|pbroadcastm(b2q|w2d)$|p2intersect[dq]$", base):
        return _memory(Class("mask", "vector", "", width), memory, to_memory, width)
    if _SHUFFLE.match(base):
        return _shuffle(base, ops, width, memory, to_memory, masked, splat)
    for pattern, kind in _INTEGER:
        if hit := pattern.match(base):
            group = hit[1] if pattern.groups else None
            element = _INT.get(group or "", "")
            if dot := re.match(r"p?dp([bw])|pmadd(?:(w)d|u(b)sw)", base):
                element = "i8" if "b" in dot.groups() else "i16"
            if not element:
                element = "f32" if group == "ps" else "f64" if group == "pd" else _INT.get(base[-1], "")
            bits = (64 if base.endswith("q") or element == "i64" else 32) if splat else width
            if re.match(r"p(sll|srl|sra)[wdq]$", base) and memory and not ops[0].startswith("$"):
                bits = 128 if not mmx else 64
            if base.startswith("p4dp"):
                bits = 128
            return _memory(Class(kind, "vector", element, width, masked=masked, splat=splat), memory, to_memory, bits)
    if re.match(r"dpbf16ps$|dpphps$", base):
        return _memory(Class("fma", "vector", "bf16" if "bf" in base else "f16", width, masked=masked, splat=splat), memory,
                       to_memory, 32 if splat else width)
    if re.match(r"4fn?madd([ps]s)$", base):
        return _memory(Class("fma", "vector" if base.endswith("ps") else "scalar", "f32", width), memory, to_memory, 128)
    if re.match(r"pmac\w+|pmadcs?\w+", base) and v:
        return _memory(Class("fma", "vector", "", width), memory, to_memory, width)
    if re.match(r"p(rot|sh[al]|h(add|sub)u?)[bwdq]*$|phsub(bw|wd|dq)$|pcmov$|frcz(ps|pd|ss|sd)$", base) and v:
        return _memory(Class("arithmetic", "vector", "", width), memory, to_memory, width)
    return None


def _element(suffix: str) -> str:
    return {"ps": "f32", "pd": "f64", "vb": "i8"}.get(suffix) or _INT.get(suffix, "")


def _splat_size(suffix: str) -> int:
    return 64 if suffix in ("pd", "q") else 32


def _convert(base, ops, width, memory, to_memory, masked, splat) -> Class:
    """cvt*, pmovzx and its inverses, pack*: the wider side gives the width, memory is the narrower or wider side."""
    size = {"ps": 32, "pd": 64, "ph": 16, "dq": 32, "qq": 64, "udq": 32, "uqq": 64, "ss": 32, "sd": 64, "sh": 16, "w": 16, "uw": 16,
            "bf16": 16, "si": 32, "usi": 32, "hf8": 8, "bf8": 8, "pi": 32, "phx": 16, "psx": 32, "biasph": 16, "nebf162": 16}
    if hit := re.match(r"pmov([sz]x|us|s)?([bwdq])([bwdq])$", base):
        unit = {"b": 8, "w": 16, "d": 32, "q": 64}
        a, b = unit[hit[2]], unit[hit[3]]
        bits = width * min(a, b) // max(a, b) if memory else 0
        return _memory(Class("convert", "vector", f"i{max(a, b)}", width, masked=masked), memory, to_memory, bits)
    if base.startswith("pack"):
        return _memory(Class("convert", "vector", _INT[base[-1]], width, masked=masked, splat=splat), memory, to_memory,
                       32 if splat else width)
    name = re.sub(r"^cvtt?|^cvtn?e?", "", base)
    scalar = bool(re.search(r"s[dsh]2|si2s|2u?si|2s[dsh]$|2s[dsh]s|usi2s", base)) and not re.search(r"psx?2|ps$", base.split("2")[0])
    parts = re.match(r"(?:ne2?|bias|u?t?)?([a-z0-9]+?)2([a-z0-9]+?)(?:[xyzlqs])?$", name)
    a, b = (size.get(parts[1].rstrip("s") if parts[1] not in size else parts[1], 0),
            size.get(parts[2], 0)) if parts else (0, 0)
    element = next((e for key, e in (("pd", "f64"), ("sd", "f64"), ("ps", "f32"), ("ss", "f32"), ("bf16", "bf16"), ("ph", "f16"),
                                     ("sh", "f16")) if key in name), "f32")
    if scalar:
        bits = a or 32
        if re.match(r"u?si2", name):
            bits = 64 if base.endswith("q") else 32
        return _memory(Class("convert", "scalar", element, max(a, b, 32)), memory, to_memory, bits)
    a, b = a or 32, b or 32
    two = "2ps2" in base or base.startswith("cvtne2") or base.startswith("cvt2")
    if to_memory:
        bits = width * b // a
    elif splat:
        bits = a
    elif two:
        bits = width
    else:
        out = _WIDTH.get((re.search(r"%([xyz])mm\d+", ops[-1]) or [0, ""])[1], width) if ops else width
        suffix = base[-1] if base[-1] in "xyz" and not base.endswith("psx") else ""
        bits = _WIDTH[suffix] if suffix and memory else max(out, 128) * a // max(b, 1) if memory else 0
        if memory and a > b and not suffix:
            bits = out * a // b if out * a // b <= 512 else 512
    return _memory(Class("convert", "vector", element, width, masked=masked, splat=splat), memory, to_memory, bits or width)


def _move(base, ops, width, memory, to_memory, masked) -> Class:
    if hit := re.match(r"mov(?:nt)?(ss|sd|sh)$", base):
        element = _FLOAT[hit[1]][0]
        bits = int(element[1:])
        kind = "move" if not memory else "store" if to_memory else "load"
        return _memory(Class(kind, "scalar", element, bits, masked=masked), memory, to_memory, bits)
    if hit := re.match(r"mov([dqw])$", base):
        bits = {"d": 32, "q": 64, "w": 16}[hit[1]]
        kind = "move" if not memory else "store" if to_memory else "load"
        return _memory(Class(kind, "scalar", f"i{bits}", bits), memory, to_memory, bits)
    if re.match(r"mov[hl](ps|pd)$", base):
        return _memory(Class("store" if to_memory else "load", "scalar", "f64", 64), memory, to_memory, 64)
    suffix = re.search(r"(ps|pd|8|16|32|64|dqa|dqu|[dq])$", base)
    element = {"ps": "f32", "pd": "f64", "8": "i8", "16": "i16", "64": "i64", "q": "i64"}.get(suffix[1] if suffix else "", "i32")
    kind = "move" if not memory else "store" if to_memory else "load"
    if "mask" in base and not memory:
        return Class("scatter", "vector", "i8", width, stores=width, masked=True)
    return _memory(Class(kind, "vector", element, width, masked=masked or "mask" in base), memory, to_memory, width)


def _shuffle(base, ops, width, memory, to_memory, masked, splat) -> Class:
    bits = width
    kind = "shuffle"
    element = {"ps": "f32", "pd": "f64"}.get(base[-2:]) or _INT.get(base[-1], "")
    if hit := re.match(r"p?(?:insr|extr)([bwdq])$", base):
        bits = {"b": 8, "w": 16, "d": 32, "q": 64}[hit[1]]
    elif base in ("insertps", "extractps", "broadcastss", "pbroadcastd"):
        bits = 32
    elif base in ("broadcastsd", "pbroadcastq") or (base == "movddup" and width == 128):
        bits = 64
    elif base in ("pbroadcastb", "pbroadcastw"):
        bits = 8 if base.endswith("b") else 16
    elif hit := re.match(r"(?:insert|extract|broadcast)[fi](128|(32|64)x(\d))$", base):
        bits = 128 if hit[1] == "128" else int(hit[2]) * int(hit[3])
    elif splat:
        bits = 64 if re.search(r"(pd|q|qdq|64x2)$", base) else 32
    if "broadcast" in base and memory:
        return Class("load", "vector", element or "f32", width, loads=bits, masked=masked, splat=bits < 128)
    if re.match(r"p?(compress|expand)", base) and memory:
        kind = "store" if to_memory else "load"
    return _memory(Class(kind, "vector", element, width, masked=masked, splat=splat), memory, to_memory, bits)


def _general(m, ops, memory, to_memory) -> Class:
    """General-purpose registers, strings, x87, system."""
    if _FENCE.match(m):
        return Class("sync")
    if m.startswith("prefetch") or m.startswith(("nop", "clflush", "clwb", "cldemote")):
        return Class("config")
    if hit := _STRING.match(m):
        bits = _SUFFIX[hit[2]]
        kind = {"movs": "store", "stos": "store"}.get(hit[1], "load")
        return Class(kind, "scalar", f"i{bits}", bits, loads=0 if hit[1] == "stos" else bits,
                     stores=bits if kind == "store" else 0)
    if _CONFIG.match(m):
        loads = 32 if m == "ldmxcsr" else 512 if m == "ldtilecfg" else 0
        stores = 32 if m == "stmxcsr" else 512 if m == "sttilecfg" else 0
        return Class("config", loads=loads, stores=stores)
    if hit := re.match(r"(push|pop)(p|2p?|[afl]+)?([wlq])?$", m):
        bits = 64
        also = {"loads": bits if hit[1] == "pop" or memory else 0, "stores": bits if hit[1] == "push" or memory else 0}
        return Class("store" if hit[1] == "push" else "load", "scalar", "i64", bits, space="stack", **also)
    if m in ("leave", "leaveq"):
        return Class("load", "scalar", "i64", 64, loads=64)
    if hit := _ATOMIC.match(m):
        bits = _gpr_bits(m, ops, hit[3])
        if m.startswith("cmpxchg8b"):
            bits = 64
        elif m.startswith("cmpxchg16b"):
            bits = 128
        if not memory:
            return Class("move", "scalar", f"i{bits}", bits)
        return Class("atomic", "scalar", f"i{bits}", bits, loads=bits, stores=bits)
    if hit := _GPR_MOVE.match(m):
        bits = _gpr_bits(m, ops, None)
        if re.match(r"mov[sz](bw|bl|bq|wl|wq|lq|ww|ll|qq)$", m):
            bits = {"b": 8, "w": 16, "l": 32, "q": 64}[m[4]]
        if m.startswith("set"):
            bits = 8
        kind = "move" if not memory else "store" if to_memory else "load"
        return _memory(Class(kind, "scalar", f"i{bits}", bits), memory, to_memory, bits)
    if hit := _SCALAR.match(m):
        bits = _gpr_bits(m, ops, hit[2])
        c = Class("arithmetic", "scalar", f"i{bits}", bits)
        if hit[1] == "lea" or not memory:
            return c
        reads_only = hit[1] in ("cmp", "test", "bt", "div", "idiv", "mul", "imul", "mulx") or not to_memory
        reads_only |= hit[1].startswith(("ccmp", "ctest"))
        return _replace(c, loads=bits, stores=0 if reads_only or len(ops) > 2 and hit[1] not in ("shld", "shrd") else bits)
    if _X87.match(m) and m[0] == "f":
        stores = bool(re.match(r"f(n?st|ist|bst|isttp|n?save)", m))
        kind = ("store" if stores else "load" if re.match(r"f(i|b)?ld", m) else "arithmetic") if memory else "arithmetic"
        if re.match(r"f(n?stcw|n?stsw|n?stenv|n?save|ldcw|ldenv|rstor|nop|wait|free|n?init|n?clex|xch|xam)", m):
            kind = "config"
        return _memory(Class(kind, "scalar", "f80" if kind != "config" else "", 80), memory, stores, 80)
    if _SYSTEM.match(m.rpartition(" ")[2]):
        return Class("system")
    return UNKNOWN


def _gpr_bits(m: str, ops, suffix) -> int:
    for o in reversed(ops):
        if o.startswith("%") and not o.startswith("%k"):
            r = o[1:]
            if re.fullmatch(r"r(\d+|[a-d]x|[sd]i|[sb]p)", r):
                return 64
            if re.fullmatch(r"e\w\w|r\d+d", r):
                return 32
            if re.fullmatch(r"[a-d][lh]|[sd]il|[sb]pl|r\d+b", r):
                return 8
            if re.fullmatch(r"[a-d]x|[sd]i|[sb]p|r\d+w", r):
                return 16
    return _SUFFIX.get(suffix or m[-1:], 64)
