"""AArch64: A64 with NEON, SVE and SME in LLVM's and GNU's syntax. Names: the Arm Architecture Reference Manual for A-profile."""

from __future__ import annotations

import functools
import re

from ..schema import UNKNOWN, Class
from .operands import split

_ARRANGEMENT = re.compile(r"\b[vz]\d+\.(\d*)([bhsdq])\b")
_LIST = re.compile(r"\{\s*([vz])(\d+)\.(\d*)([bhsdq])(?:\s*-\s*[vz](\d+)\.\d*[bhsdq]|((?:\s*,\s*[vz]\d+\.\d*[bhsdq])*))\s*\}")
_SIZE = {"b": 8, "h": 16, "s": 32, "d": 64, "q": 128}
_CONDITION = "eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al|nv|none|any|nlast|last|first|nfrst|pmore|plast|tcont|tstop"
_BRANCH = re.compile(rf"(bc?\.?({_CONDITION})|cbz|cbnz|tbz|tbnz|cb(b|h)?(gt|ge|hi|hs|eq|ne|lt|le|lo|ls))$")
_RETURN = re.compile(r"(ret|retaa|retab|br|braa|brab|braaz|brabz|eret|eretaa|eretab|drps|retaasppcr?|retabsppcr?)$")
_CALL = re.compile(r"(bl|blr|blraa|blrab|blraaz|blrabz)$")

_FLOAT = re.compile(
    r"(f(add|sub|mul|mulx|div|divr|sqrt|abs|neg|max|min|maxnm|minnm|abd|nmul|recpe|recps|recpx|rsqrte|rsqrts|subr|cmp|cmpe|ccmp|ccmpe|cmeq|cmge|"
    r"cmgt|cmle|cmlt|cmne|cmuo|acge|acgt|acle|aclt|rint\w+|addp|maxp|minp|maxnmp|minnmp|addv|maxv|minv|maxnmv|minnmv|adda|addqv|maxqv|minqv|"
    r"maxnmqv|minnmqv|scale|expa|tssel|tsmul|tmad|trigaux|logb|cadd|amax|amin|clamp)|bf(add|sub|mul|max|min|maxnm|minnm|clamp|scale))$")
_FMA = re.compile(r"(f(n?madd|n?msub|mla|mls|nmla|nmls|mad|msb|nmad|nmsb|cmla|mlal\w*|mlsl\w*|dot|mla\w+)|bf(mlal[bt]|mlsl[bt]|mla|mls|dot|vdot|mlal|mlsl)|"
                  r"fvdot[bt]?|[su]?madd|[su]?msub|[su]maddl|[su]msubl|maddpt|msubpt|mla|mls|mad|msb|[su]ml[as]l[bt2]?|[su]dot|usdot|sudot|[su]vdot|"
                  r"sqr?dml[as]l?[bht2]*|sqdml[as]l\w*|sqrdml[as]h|cdot|cmla|sqrdcmlah|madpt|mlapt|[su]ml[as]ll|usmlall|sumlall|usvdot|suvdot|tmla\w*)$")
_MATRIX = re.compile(r"(f?mopa|f?mops|[fsu]+mop[as]4?|[fsu]+tmopa|bfmop[as]|bftmopa|bmop[as]|[su]+mopa|[su]+mops|ftmopa|fmmla|bfmmla|smmla|ummla|usmmla|addha|addva|"
                     r"fmop4[as]|bfmop4[as]|sumop[as]|usmop[as]|[su]mop4[as])$")
_CONVERT = re.compile(r"(fcvt\w*|[su]cvtf\w*|bfcvt\w*|bf[12]?cvt\w*|f[12]cvt\w*|fjcvtzs|[su]xtl2?|sq?xtu?n2?[bt]?|[su]qxtn2?|uqxtn[bt]|sqxtn[bt]|sqxtun2?[bt]?|xtn2?|"
                      r"[su]unpk(lo|hi)?|[su]?qcvtn?u?|[su]qcvt\w*|sqcvtun?|uqcvtn?|[su]xt[bhw]|[su]shll2?[bt]?|shll2?|[su]?q?r?shru?n2?[bt]?|sqr?shru?n[bt2]*|uqr?shrn[bt2]*|r?shrn[bt2]*)$")
_SHUFFLE = re.compile(r"(dup|dupm|dupq|ext|extq|ins|insr|rev\d*|revd|rev[bhw]|tbl|tbx|tblq|tbxq|trn[12]|uzp[12]?|zip[12]?|uzpq[12]|zipq[12]|splice|compact|expand|last[ab]|clast[ab]|"
                      r"[su]mov|luti[246]|pmov|trn|histcnt|histseg|firstp|lastp)$")
_MASK = re.compile(r"(ptrues?|pfalse|ptest|pfirst|pnext|while\w+|cntp|rdffrs?|setffr|wrffr|brk\w+|punpk(hi|lo)|psel|pext|[iu]?q?[id]nc[pbhwd]|[su]?q?(inc|dec)p|ctermeq|ctermne|cnt[bhwd])$")
_SCALAR = re.compile(
    r"(add|adds|sub|subs|and|ands|bic|bics|orr|orn|eor|eon|mul|mneg|neg|negs|mvn|lsl|lsr|asr|ror|lslv|lsrv|asrv|rorv|adc|adcs|sbc|sbcs|ngc|ngcs|sdiv|udiv|smulh|umulh|smull|umull|"
    r"smnegl|umnegl|cmp|cmn|tst|ccmp|ccmn|cls|clz|ctz|cnt|abs|smax|smin|umax|umin|rbit|rev|rev16|rev32|rev64|bfm|bfi|bfxil|bfc|sbfm|sbfx|sbfiz|ubfm|ubfx|ubfiz|extr|adr|adrp|"
    r"cinc|cinv|cneg|csinc|csinv|csneg|addg|subg|subp|subps|irg|gmi|crc32\w+|rmif|setf8|setf16|cfinv|axflag|xaflag|addpl|addvl|rdvl|addspl|addsvl|rdsvl|pac\w+|aut\w+|xpac\w+|addpt|subpt|"
    r"sqinc\w|sqdec\w|uqinc\w|uqdec\w|inc[bhwd]|dec[bhwd]|smaddl|umaddl)$")
_INTEGER = re.compile(
    r"([su]?(q|r|h|rh|qr)?(add|sub|shl|shr|shlu|shlr|subr|neg|abs)(v|p|lv|lp|l2?|w2?|l[bt]|w[bt]|hn2?|hn[bt]|hnb|hnt|qv)?|[su]abal?2?[bt]?|[su]abdl?2?[bt]?|[su]adalp|[su]addlv?|[su](max|min)(v|p|qv)?|"
    r"r?addhn2?|r?subhn2?|[su]mull2?[bt]?|mul|pmull?2?[bt]?|sqr?dmulh|sqdmull2?[bt]?|[su]mulh|[su]h(add|sub)r?|[su]rh?add|cm(eq|ge|gt|hi|hs|le|lt|tst|ne|la|lo|ls|p\w+)|cmp(eq|ge|gt|hi|hs|le|lt|lo|ls|ne)|"
    r"shl|sli|sri|[su]shl|[su]r?shr|[su]r?sra|ur?sqrte|urecpe|ursqrte|[su]rshlr?|[su]qr?shlr?u?|sqshlu|bif|bit|bsl\w*|nbsl|eor3|bcax|xar|rax1|eorbt|eortb|eorv|orv|andv|orqv|andqv|eorqv|and|ands|bic|bics|"
    r"orr|orrs|orn|orns|eor|eors|nand|nands|nor|nors|not|nots|mvn|cnot|cnt|cls|clz|rbit|lsl|lsr|asr|asrd|asrr|lslr|lsrr|adclb|adclt|sbclb|sbclt|cadd|sqcadd|aes\w+|sha\w+|sm[34]\w+|suqadd|usqadd|sqabs|sqneg|[su]divr?|"
    r"index|movprfx|match|nmatch|adr|[su]?q?(inc|dec)[hwd]|bext|bdep|bgrp|[su]clamp|ssra|usra|dotp?|saddv|uaddv|sqrshl|srhadd|addqv|saddlbt|ssublbt|ssubltb|sabalb|[su]aba|sqrdmulh|addsubp|subp|[su]abal[bt]?|pmlal|pmull)$")
_MOVE = re.compile(r"(mov|movi|mvni|movz|movn|movk|movt|fmov|csel|fcsel|cset|csetm|sel|mova|movaz|zero|fdup|fcpy|cpy|movs|swpp?)$")
_LOAD_SCALAR = re.compile(r"(ldr|ldur|ldtr|ldapr|ldapur|ldar|ldlar|ldxr|ldaxr|ldraa|ldrab|ldnp|ldp|ldpsw|ldxp|ldaxp|ldtp|ldtnp|ldiapp|ldatxr|ldtxr|ldgm?|ldap\d?)"
                          r"(b|h|sb|sh|sw)?$")
_STORE_SCALAR = re.compile(r"(str|stur|sttr|stlr|stllr|stlur|stxr|stlxr|stnp|stp|stxp|stlxp|sttp|sttnp|stilp|sttxr|stltxr|stg|st2g|stzg|stz2g|stgp|stgm|stzgm|stlp\d?)(b|h)?$")
_VECTOR_MEMORY = re.compile(r"(ld|st)(ff|nf|nt)?([1234])(r|ro|rq)?([bhwdq]|sb|sh|sw)?$")
_ATOMIC = re.compile(r"((ld|st)(add|clr|eor|set|[su]max|[su]min|fadd|bfadd|fmaxnm|fminnm|fmax|fmin|bfmax|bfmin|bfmaxnm|bfminnm)|swp|cas|casp|ldclrp|ldsetp|swpp|ldt(add|clr|set)|stt(add|clr|set)|swpt|cast|caspt|rcwc?\w*|rcws\w*|rcw\w*)(a|l|al)?(b|h)?$")
_SYNC = re.compile(r"(dmb|dsb|isb|csdb|sb|esb|ssbb|pssbb|psb|tsb|clrex|dfb|gcsb|tcommit|tstart|tcancel|ttest|wfet|wfit)$")
_CONFIG = re.compile(r"(nop|hint|yield|wfe|wfi|sev|sevl|bti|prfm|prfum|prf[bhwd]|rprfm|smstart|smstop|dgh|clrbhb|chkfeat|gcs\w*|stshh|xpaclri|shuh)$")
_SYSTEM = re.compile(r"(msr|mrs|msrr|mrrs|sys|sysl|sysp|svc|hvc|smc|hlt|brk|udf|dcps[123]|at|dc|ic|tlbip?|cfp|dvp|cpp|cosp|brb|trcit|mlbi|gic|gicr|gsb|plbi|apas|"
                     r"(set|cpy)f?g?[mpe]\w*|cpy\w+|set\w+)$")


@functools.lru_cache(maxsize=65536)
def classify(mnemonic: str, operands: str, comment: str = "", machine=None) -> Class:
    m = mnemonic
    ops = split(operands)
    if m in ("b",):
        return Class("branch", flow="jump", target=_target(operands))
    if _BRANCH.match(m) and ops:
        return Class("branch", flow="branch", target=_target(ops[-1]))
    if _RETURN.match(m):
        return Class("branch", flow="return")
    if _CALL.match(m):
        return Class("call", target=_target(operands) if m == "bl" else "")
    if _CONFIG.match(m):
        return Class("config")
    element, bits, scalable = _shape(operands, machine.vlen if machine else 128)
    vector = bits > 0
    stack = "stack" if re.search(r"\[sp(\]|, *#)", operands) else "frame" if re.search(r"\[(x29|fp)(\]|, *#)", operands) else ""
    if _ATOMIC.match(m) and "[" in operands:
        size = _register_bits(m, operands, ops)
        return Class("atomic", "scalar", f"i{size}", size, loads=size, stores=size)
    if hit := _VECTOR_MEMORY.match(m):
        return _vector_memory(hit, ops, operands, element, bits, stack, machine.vlen if machine else 128)
    if m in ("ldr", "str") and (operands.startswith(("z", "p", "za", "zt")) and ops[0][1:2].isdigit() or operands.startswith(("za", "zt"))):
        size = (machine.vlen if machine else 128) // (8 if operands[0] == "p" else 1)
        unit = "matrix" if operands.startswith(("za", "zt")) else "vector"
        return Class("load" if m == "ldr" else "store", unit, "i8", size, space="stack" if stack else "",
                     **({"loads": size} if m == "ldr" else {"stores": size}))
    if _LOAD_SCALAR.match(m) or _STORE_SCALAR.match(m):
        return _scalar_memory(m, ops, operands, stack)
    if _MATRIX.match(m) and (vector or "za" in operands):
        return Class("fma", "matrix", _float(element, m) if m.startswith(("f", "bf")) else element, max(bits, 128))
    if "za" in operands and re.search(r"\bza\d*[hv]?\.?[bhsdq]?\b", operands) and m not in ("smstart", "smstop"):
        kind = "move" if m.startswith(("mov", "zero", "luti")) else "fma" if _FMA.match(m) else "arithmetic"
        return Class(kind, "matrix", element or "", max(bits, 128))
    if re.search(r"(^|[ ,{])p\d+\.[bhsd]", operands) and not scalable and not vector:
        return Class("mask", "vector", "i1", 0) if _MASK.match(m) or _INTEGER.match(m) or _MOVE.match(m) or _SHUFFLE.match(m) else UNKNOWN
    masked = bool(re.search(r"\bp\d+/[mz]", operands)) and scalable
    if vector:
        return _vector(m, ops, element, bits, masked)
    return _scalar(m, ops, operands)


def _target(text: str) -> str:
    return text.split("<")[0].strip()


def _shape(operands: str, vlen: int) -> tuple[str, int, bool]:
    """(element, bits, scalable) of the widest arranged register."""
    best, element, scalable = 0, "", False
    for hit in _ARRANGEMENT.finditer(operands):
        size = _SIZE[hit[2]]
        lane = operands[hit.end():hit.end() + 1] == "[" and not hit[1]
        if hit[0][0] == "z":
            scalable = True
            bits = vlen
        else:
            bits = int(hit[1]) * size if hit[1] else 0 if lane else size
        if bits > best or (bits == best and not element):
            best, element = bits, f"i{size}"
    if not best and re.search(r"(^|[ ,{])z\d+\b", operands):
        return "i8", vlen, True
    return element, best, scalable


def _register_bits(m: str, operands: str, ops) -> int:
    if re.search(r"(b)$", m) and not m.endswith("sub"):
        return 8
    if m.endswith("h"):
        return 16
    first = ops[0] if ops else ""
    return {"w": 32, "s": 32, "x": 64, "d": 64, "q": 128, "h": 16, "b": 8}.get(first[:1], 64)


def _scalar_memory(m, ops, operands, stack) -> Class:
    load = m.startswith("ld")
    first = next((o for o in ops if not (re.match(r"(stl?xr|stl?xp|sttxr|stltxr)", m) and o is ops[0])), "")
    letter = first.strip("{ ")[:1]
    if letter in "bhsdq" and re.match(r"[bhsdq]\d+", first):
        size = _SIZE[letter]
        element = f"f{size}" if size in (16, 32, 64) else f"i{size}"
        unit = "vector" if size == 128 else "scalar"
    else:
        suffix = re.search(r"(sb|sh|sw|b|h)$", m)
        size = {"sb": 8, "b": 8, "sh": 16, "h": 16, "sw": 32}.get(suffix[1] if suffix and m not in ("stlr",) else "", 0)
        size = size or (32 if letter == "w" else 64)
        element, unit = f"i{size}", "scalar"
        if m.startswith("stg") or m in ("st2g", "stzg", "stz2g", "ldg", "ldgm"):
            return Class("config" if m != "stgp" else "store", stores=0 if load else 128, loads=128 if load else 0)
    pair = 2 if re.match(r"(ld|st)(n|x|ax|lx|t|tn|i?l|ia?)?p", m) and "pr" not in m[:5] and not m.startswith(("ldapr", "ldapur")) else 1
    bits = size * pair
    kind = "load" if load else "store"
    if re.match(r"(ldax?r|ldxr|ldax?p|ldxp|stl?xr|stl?xp|ldatxr|ldtxr|sttxr|stltxr)", m):
        kind = "atomic"
    return Class(kind, unit, element, bits, space=stack, **({"loads": bits} if load else {"stores": bits}))


def _vector_memory(hit, ops, operands, element, bits, stack, vlen) -> Class:
    load = hit[1] == "ld"
    count = 1
    if listed := _LIST.search(operands):
        if listed[5]:
            count = (int(listed[5]) - int(listed[2])) % 32 + 1
        elif listed[6]:
            count = listed[6].count(",") + 1
    if "za" in operands:
        return Class("load" if load else "store", "matrix", element, vlen, **({"loads": vlen} if load else {"stores": vlen}))
    lane = bool(re.search(r"\}\s*\[\d+\]", operands))
    size = int((element or "i8")[1:])
    memory = {"b": 8, "sb": 8, "h": 16, "sh": 16, "w": 32, "sw": 32, "d": 64, "q": 128}.get(hit[5] or "", size)
    splat = bool(hit[4])
    per_register = (size if lane else bits * memory // max(size, 1) if hit[5] else bits)
    if lane or splat:
        per_register = memory if hit[4] in (None, "r") else (256 if hit[4] == "ro" else 128)
    total = max(per_register, 8) * count
    indexed = bool(re.search(r"\[[^\]]*\bz\d+", operands))
    kind = ("gather" if load else "scatter") if indexed else ("load" if load else "store")
    if lane:
        return Class(kind, "scalar", element, size, **({"loads": total} if load else {"stores": total}))
    return Class(kind, "vector", element, max(bits, 64) * count, masked=bool(re.search(r"\bp\d+", operands)), splat=splat, space=stack,
                 **({"loads": total} if load else {"stores": total}))


def _float(element: str, m: str) -> str:
    return "bf16" if m.startswith("bf") else f"f{element[1:]}" if element else "f32"


def _vector(m, ops, element, bits, masked) -> Class:
    floats = m.startswith(("f", "bf"))
    if _FMA.match(m):
        return Class("fma", "vector", _float(element, m) if floats else element, bits, masked=masked)
    if _FLOAT.match(m):
        return Class("arithmetic", "vector", _float(element, m), bits, masked=masked)
    if _CONVERT.match(m):
        is_float = floats or m.endswith("cvtf") or "cvtf" in m
        return Class("convert", "vector", _float(element, m) if is_float else element, bits, masked=masked)
    if _MOVE.match(m):
        to_scalar = re.match(r"[wxbhsd]\d+$", ops[0]) if ops else None
        return Class("move", "scalar" if to_scalar else "vector", element, bits, masked=masked)
    if _SHUFFLE.match(m):
        to_scalar = re.match(r"[wxbhsd]\d+$", ops[0]) if ops else None
        return Class("shuffle" if not m.endswith("mov") else "move", "scalar" if to_scalar and m.endswith("mov") else "vector", element, bits,
                     masked=masked)
    if _MASK.match(m):
        return Class("mask", "vector", "i1", 0)
    if _INTEGER.match(m):
        return Class("arithmetic", "vector", element, bits, masked=masked)
    return UNKNOWN


def _scalar(m, ops, operands) -> Class:
    first = ops[0] if ops else ""
    register = re.match(r"([bhsdqwx])(\d+|zr|sp)", first) or re.match(r"([bhsdqwx])(\d+|zr)", ops[1] if len(ops) > 1 else "")
    size = {"b": 8, "h": 16, "s": 32, "d": 64, "q": 128, "w": 32, "x": 64}.get(register[1] if register else "", 64)
    if _FMA.match(m):
        floats = m.startswith(("f", "bf"))
        return Class("fma", "scalar", f"f{size}" if floats else f"i{size}", size)
    if _FLOAT.match(m):
        return Class("arithmetic", "scalar", f"f{size}", size)
    if _CONVERT.match(m):
        is_float = m.startswith(("fcvt", "fj", "bf")) or "cvtf" in m
        source = re.match(r"([hsd])\d+", ops[1]) if len(ops) > 1 else None
        if is_float and source and not re.match(r"[hsd]\d", first):
            size = _SIZE[source[1]]
        return Class("convert" if is_float or first[:1] in "bhsd" else "arithmetic", "scalar", f"f{size}" if is_float else f"i{size}", size)
    if _MOVE.match(m):
        return Class("move", "scalar", f"f{size}" if m.startswith("f") else f"i{size}", size)
    if _SYNC.match(m):
        return Class("sync")
    if _MASK.match(m) and not _SCALAR.match(m):
        return Class("arithmetic" if m.startswith("cnt") else "mask", "scalar", "i64", 64)
    if _SCALAR.match(m) or _INTEGER.match(m):
        return Class("arithmetic", "scalar", f"i{size}", size)
    if _SYSTEM.match(m):
        return Class("system")
    if _SHUFFLE.match(m):
        return Class("shuffle", "vector", "", size)
    return UNKNOWN
