"""RISC-V: RV64GC with B, Zfh, Zicond, and V 1.0 with its crypto and float additions, SpacemiT's vector-dot extension. Names: the
unprivileged specification; SEW, LMUL and vl follow vset* along the control flow."""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass

from ..schema import UNKNOWN, Class
from .operands import split

_BRANCH = re.compile(r"b(eq|ne|lt|ge|ltu|geu|gt|le|gtu|leu)z?$|c\.b(eq|ne)z$|qc\.b\w+$")
_FLOAT_SUFFIX = {"s": "f32", "d": "f64", "h": "f16", "q": "f128", "bf16": "bf16"}
_SCALAR_FLOAT = re.compile(
    r"f(n?madd|n?msub|add|sub|mul|div|sqrt|sgnjn?|sgnjx|minm?|maxm?|eq|leq?|ltq?|gt|ge|class|neg|abs|round|roundnx|li)\.(s|d|h|q)$")
_SCALAR_INT = re.compile(
    r"(c\.)?(add|addi|addw|addiw|addi16sp|addi4spn|sub|subw|and|andi|andn|or|ori|orn|xor|xori|xnor|not|neg|negw|sll|slli|sllw|slliw|srl|srli|"
    r"srlw|srliw|sra|srai|sraw|sraiw|slt|slti|sltu|sltiu|sgtz?|sgtu|sltz|seqz|snez|mul|mulh|mulhu|mulhsu|mulw|div|divu|divw|divuw|rem|remu|"
    r"remw|remuw|sh[123]add(\.uw)?|add\.uw|slli\.uw|sext\.[bhw]|zext\.[bhw]|max|maxu|min|minu|clzw?|ctzw?|cpopw?|rev8|brev8|orc\.b|rolw?|"
    r"roriw?|rorw?|bclri?|bexti?|binvi?|bseti?|clmul[hr]?|czero\.(eqz|nez)|pack[hw]?|unzip|zip|xperm[48]|lui|auipc|sha\d\w+|sm[34]\w+|"
    r"aes\w+|mop\.\w+|lpad)$")
_LOADS = {"lb": 8, "lbu": 8, "lh": 16, "lhu": 16, "lw": 32, "lwu": 32, "ld": 64, "lq": 128}
_STORES = {"sb": 8, "sh": 16, "sw": 32, "sd": 64}
_FLOAT_MEMORY = {"flh": 16, "flw": 32, "fld": 64, "flq": 128, "fsh": 16, "fsw": 32, "fsd": 64, "fsq": 128}
_ATOMIC = re.compile(r"(amo\w+|lr|sc)\.(b|h|w|d|q)(\.(aq|rl|aqrl))?$|ss(amoswap)\.(w|d)(\.\w+)?$")
_SYSTEM = re.compile(r"(ecall|ebreak|c\.ebreak|unimp|c\.unimp|[msu]ret|mnret|wfi|csr\w+|rdcycleh?|rdtimeh?|rdinstreth?|sfence\.\w+|hfence\.\w+|"
                     r"hinval\.\w+|sinval\.\w+|dret|mret|sctrclr|hlv\w*\.\w+|hsv\.\w+|wrs\.\w+|sspush|sspopchk|ssrdp|c\.ss\w+|f[rs]csr|f[rs]rmi?|f[rs]flags?i?|sf\.\w+)$")
_CONFIG = re.compile(r"(nop|c\.nop|pause|cbo\.\w+|prefetch\.\w+|ntl\.\w+|fence\.tso|c\.mop\.\d+)$")

# vectors: everything before the operand-form suffix (.vv .vx .vi .vf .vs .mm .wv ...)
_V_FMA = re.compile(r"vf?w?(n?macc|n?msac|n?madd|n?msub|maccu|maccsu|maccus|maccbf16)$|vfwmaccbf16$|vw?macc(u|su|us)?$|vq?dota?(u|us|su)?$"
                    r"|vq?dot\w*$|vqmacc\w*$|vfqmacc\w*$")
_V_FLOAT = re.compile(r"vf(w?add|w?sub|rsub|w?mul|div|rdiv|sqrt|rsqrt7|rec7|min|max|sgnjn?|sgnjx|class|redu?o?sum|redmin|redmax|redusum|redosum|"
                      r"wredusum|wredosum|wredsum|redsum|neg|abs)$|vmf(eq|ne|lt|le|gt|ge)$")
_V_INT = re.compile(
    r"v(add|sub|rsub|wadd|wsub|waddu|wsubu|adc|madc|sbc|msbc|and|or|xor|not|neg|sll|srl|sra|nsrl|nsra|min|minu|max|maxu|mul|mulh|mulhu|mulhsu|"
    r"wmul|wmulu|wmulsu|div|divu|rem|remu|sadd|saddu|ssub|ssubu|aadd|aaddu|asub|asubu|smul|ssrl|ssra|redsum|redand|redor|redxor|redmin|"
    r"redminu|redmax|redmaxu|wredsum|wredsumu|andn|rol|ror|brev|brev8|rev8|clz|ctz|cpop|wsll|clmul|clmulh|ghsh|gmul|sha2\w+|sm3\w+|sm4\w+|aes\w+|wabda\w*"
    r"|abs|abd|abdu)$|vms(eq|ne|ltu?|leu?|gtu?|geu?)$")
_V_CONVERT = re.compile(r"v(fcvt|fwcvt|fncvt|fwcvtbf16|fncvtbf16|zext|sext|nclip|nclipu|wcvt|wcvtu|ncvt)$")
_V_SHUFFLE = re.compile(r"v(slideup|slidedown|slide1up|slide1down|fslide1up|fslide1down|rgather|rgatherei16|compress)$")
_V_MASK = re.compile(r"vm(and|nand|andn|andnot|or|nor|orn|ornot|xor|xnor|mv|clr|set|not|sbf|sif|sof)$|v(iota|id|first|cpop|popc)$")
_V_MOVE = re.compile(r"v(mv|fmv|merge|fmerge|mv1r|mv2r|mv4r|mv8r)$")
_V_MEMORY = re.compile(r"v([ls])(ox|ux|s|o)?(?:seg(\d))?(?:ei|e)?(\d+)(ff)?$")
_V_WHOLE = re.compile(r"v([ls])([1248])r(?:e(\d+))?$")
_DOT = re.compile(r"(smt\.)?vf?madot[123]?(u|us|su)?(\.\w+)?$|smt\.vm")
_THEAD_MEMORY = re.compile(r"v([ls])(ux|x|s|o)?(?:seg(\d))?([bhwe])u?(ff)?$")
_SPACEMIT = re.compile(r"smt\.v\w+|th\.v\w+|sf\.v\w+|nds\.v\w+|xt\.v\w+")


@dataclass(frozen=True)
class VType:
    """What the last vset* said. avl: elements, 0 where a register or VLMAX decides (then LMUL * VLEN / SEW)."""

    sew: int = 0
    lmul: float = 1.0
    avl: int = 0

    def bits(self, vlen: int) -> int:
        """Bits of one operand of SEW: what vl covers at most."""
        full = int(self.lmul * vlen)
        return min(self.avl * self.sew, full) if self.avl else full


def _constants(function) -> dict[str, int]:
    """Registers that hold one number all through a function."""
    written: dict[str, list] = {}
    for i in function.instructions:
        if i.operands and not re.match(r"(c\.)?(b(eq|ne|lt|ge|gt|le)\w*|f?s[bhwdq](sp)?|j)$|v(?!set)|th\.v(?!set)", i.mnemonic):
            written.setdefault(i.operands.split(",")[0].strip(), []).append(i)
    return {r: int(one[0].operands.split(",")[1]) for r, one in written.items() if len(one) == 1 and re.fullmatch(r"\w+, ?\d+", one[0].operands)
            and one[0].mnemonic in ("li", "c.li")}


def number(text: str) -> int:
    """An immediate; 0 for a symbol's name, or what is none."""
    return int(text, 0) if re.fullmatch(r"\d+|0x[0-9a-f]+", text) else 0


def vtype(mnemonic: str, operands: str, numbers: dict[str, int] | None = None) -> VType | None:
    """The vector type that a vset* sets; None for one whose type is in a register. numbers: registers with known contents."""
    ops = split(operands)
    mnemonic = mnemonic.removeprefix("th.")
    sew = next((int(o[1:]) for o in ops if re.fullmatch(r"e\d+", o)), 0)
    lmul = next((o for o in ops if re.fullmatch(r"mf?[1248]", o)), "m1")
    if mnemonic == "vsetvl" or not sew:
        return None
    size = 1 / int(lmul[2:]) if lmul.startswith("mf") else float(lmul[1:])
    avl = number(ops[1]) if mnemonic == "vsetivli" and len(ops) > 1 else (numbers or {}).get(ops[1], 0) if len(ops) > 1 else 0
    return VType(sew, size, avl)


def follow(function, machine):
    """Classify a whole function: a block starts with the vector type that all its known predecessors agree on."""
    from ..flow import blocks
    graph = blocks(function, lambda i: classify(i.mnemonic, i.operands, i.comment, machine))
    numbers = _constants(function)
    entry: dict[int, VType | None] = {0: None}
    left: dict[int, VType | None] = {}
    work = list(range(len(graph)))
    before: dict[int, list[int]] = {}
    for k, block in enumerate(graph):
        for s in block.successors:
            before.setdefault(s, []).append(k)
    for _ in range(len(graph) + 2):
        changed = False
        for k in work:
            known = [left[p] for p in before.get(k, ()) if p in left]
            if k and not known:
                continue  # not reached yet: nothing is known against it either
            state = _agreed(known) if k else None  # who calls the function may have set anything
            entry[k] = state
            for i in function.instructions[graph[k].first:graph[k].last]:
                if i.mnemonic.startswith(("vset", "th.vset")):
                    state = _keep(vtype(i.mnemonic, i.operands, numbers), i.operands, state)
            if k not in left or left[k] != state:
                left[k], changed = state, True
        if not changed:
            break
    for k, block in enumerate(graph):
        state = entry.get(k)
        for i in function.instructions[block.first:block.last]:
            if i.mnemonic.startswith(("vset", "th.vset")):
                state = _keep(vtype(i.mnemonic, i.operands, numbers), i.operands, state)
            i.what = classify(i.mnemonic, i.operands, i.comment, machine, state if state and state.sew else None)


def _agreed(states: list[VType | None]) -> VType | None:
    """What all of them say; SEW 0 where only vl is the same, as after code that set another type and kept vl."""
    first = states[0]
    if all(s == first for s in states):
        return first
    avls = {s.avl if s else 0 for s in states}
    return VType(0, 0.0, avls.pop()) if len(avls) == 1 and 0 not in avls else None


def _keep(new: VType | None, operands: str, old: VType | None) -> VType | None:
    """`vsetvli zero, zero, ...` keeps vl."""
    ops = split(operands)
    if new and old and not new.avl and ops[:2] == ("zero", "zero") and old.avl:
        return dataclasses.replace(new, avl=old.avl)
    return new


@functools.lru_cache(maxsize=65536)
def classify(mnemonic: str, operands: str, comment: str = "", machine=None, state: VType | None = None) -> Class:
    """The class of one instruction; `state` is the vector type in force, None where it is not known."""
    m = mnemonic
    ops = split(operands)
    bare = m.removeprefix("c.")
    if not ops and (bare in ("j", "jal") or _BRANCH.match(m)):
        return Class("branch", flow="branch")  # text that no disassembler prints: it goes nowhere that is known
    if bare in ("j", "tail"):
        return Class("branch", flow="jump" if bare == "j" else "return", target=_target(ops[0]))
    if _BRANCH.match(m):
        return Class("branch", flow="branch", target=_target(ops[-1]))
    if bare in ("ret", "jr"):
        return Class("branch", flow="return")
    if bare in ("call", "jalr", "jal"):
        if bare == "jal" and len(ops) == 2 and ops[0] in ("zero", "x0"):
            return Class("branch", flow="jump", target=_target(ops[1]))
        return Class("call", target=_target(ops[-1]) if ops and bare != "jalr" else "")
    if m.startswith("v") or _SPACEMIT.match(m) or _DOT.match(m):
        return _vector(m, ops, operands, machine.vlen if machine else 128, state)
    return _scalar(m, bare, ops, operands)


def _target(text: str) -> str:
    return text.split("<")[0].split("@")[0].strip()


def _scalar(m: str, bare: str, ops, operands: str) -> Class:
    spaced = "stack" if "(sp)" in operands else "frame" if re.search(r"\((s0|fp)\)", operands) else ""
    short = re.sub(r"(sp)$", "", bare) if bare not in ("lui",) else bare
    if short in _LOADS:
        return Class("load", "scalar", f"i{_LOADS[short]}", _LOADS[short], loads=_LOADS[short], space=spaced)
    if short in _STORES:
        return Class("store", "scalar", f"i{_STORES[short]}", _STORES[short], stores=_STORES[short], space=spaced)
    if short in _FLOAT_MEMORY:
        bits = _FLOAT_MEMORY[short]
        traffic = {"loads": bits} if short.startswith("fl") else {"stores": bits}
        return Class("load" if "loads" in traffic else "store", "scalar", f"f{bits}", bits, space=spaced, **traffic)
    if hit := _SCALAR_FLOAT.match(m):
        element = _FLOAT_SUFFIX[hit[2]]
        if hit[1] == "li" or hit[1].startswith("sgnj") and len(ops) == 3 and ops[1] == ops[2] and hit[1] == "sgnj":
            return Class("move", "scalar", element, int(element[1:]))
        kind = "fma" if re.match(r"n?m(add|sub)$", hit[1]) else "arithmetic"
        return Class(kind, "scalar", element, int(element[1:]))
    if hit := re.match(r"fcvt(?:mod)?\.(\w+)\.(\w+)", m):
        name = hit[1] if hit[1] in _FLOAT_SUFFIX else hit[2]
        return Class("convert", "scalar", _FLOAT_SUFFIX.get(name, "f32"), 32)
    if hit := re.match(r"fmv\.(\w+)(?:\.(\w+))?$|fmvh\.\w+\.\w+$|fmvp\.\w+\.\w+$", m):
        return Class("move", "scalar", _FLOAT_SUFFIX.get(hit[1] or "", ""), 0)
    if bare in ("mv", "li", "la", "lla", "c.mv", "c.li", "lga"):
        return Class("move", "scalar", "i64", 64)
    if _ATOMIC.match(m):
        bits = {"b": 8, "h": 16, "w": 32, "d": 64, "q": 128}[m.split(".")[1]]
        return Class("atomic", "scalar", f"i{bits}", bits, loads=0 if m.startswith("sc.") else bits,
                     stores=0 if m.startswith("lr.") else bits)
    if hit := re.match(r"(lb|lh|lw|ld|sb|sh|sw|sd)\.(aq|rl|aqrl)$", m):  # Zalasr
        bits = {"b": 8, "h": 16, "w": 32, "d": 64}[m[1]]
        return Class("atomic", "scalar", f"i{bits}", bits, loads=bits if m[0] == "l" else 0, stores=bits if m[0] == "s" else 0)
    if m in ("fence", "fence.i"):
        return Class("sync")
    if _CONFIG.match(m):
        return Class("config")
    if bare == "lui" or _SCALAR_INT.match(m):
        return Class("arithmetic", "scalar", "i32" if bare.endswith("w") else "i64", 32 if bare.endswith("w") else 64)
    if hit := re.match(r"c?m\.?(?:cm\.)?(push|pop|popret|popretz|mvsa01|mva01s)$|cm\.(push|pop|popret|popretz|mvsa01|mva01s|jt|jalt)$", m):
        name = hit[1] or hit[2]
        if name in ("jt", "jalt"):
            return Class("call" if name == "jalt" else "branch", flow="" if name == "jalt" else "return")
        return Class("store" if name == "push" else "load" if "pop" in name else "move", "scalar", "i64", 64,
                     loads=64 if "pop" in name else 0, stores=64 if name == "push" else 0, space="stack",
                     flow="return" if "ret" in name else "")
    if _SYSTEM.match(m):
        return Class("system")
    return UNKNOWN


def _vector(m: str, ops, operands: str, vlen: int, state: VType | None) -> Class:
    found = _vector_of_any_length(m, ops, operands, vlen, state)
    if state and state.avl == 1 and found.unit == "vector" and found.kind in ("arithmetic", "fma", "convert", "load", "store", "gather", "scatter"):
        return dataclasses.replace(found, unit="scalar")  # vl is 1: one element, whatever the instruction is
    return found


def _thead(m: str, ops, operands: str, vlen: int, state: VType | None) -> Class:
    """XTheadVector, the draft 0.7.1 of V: names of their own for memory, else V's behind th."""
    name = m.removeprefix("th.")
    if hit := _THEAD_MEMORY.match(name.removesuffix(".v")):
        size = {"b": 8, "h": 16, "w": 32}.get(hit[4], state.sew if state else 0)
        indexed = hit[2] in ("x", "ux", "s", "o")
        bits = (state.bits(vlen) // state.sew * size if state and state.sew else size) * int(hit[3] or 1)
        kind = {("l", True): "gather", ("l", False): "load", ("s", True): "scatter", ("s", False): "store"}[hit[1], indexed]
        return Class(kind, "vector", f"i{size or 8}", bits, masked="v0.t" in operands, **({"loads": bits or 8} if hit[1] == "l" else {"stores": bits or 8}))
    return _vector_of_any_length({"vmcpop.m": "vcpop.m", "vmfirst.m": "vfirst.m"}.get(name, name), ops, operands, vlen, state)


def _vector_of_any_length(m: str, ops, operands: str, vlen: int, state: VType | None) -> Class:
    if m.startswith("th.v"):
        return _thead(m, ops, operands, vlen, state)
    if m.startswith("vset"):
        return Class("config", "vector", f"i{new.sew}" if (new := vtype(m, operands)) else "")
    base, _, form = m.partition(".")
    masked = "v0.t" in operands
    if hit := _V_WHOLE.match(base):
        bits = vlen * int(hit[2])
        traffic = {"loads": bits} if hit[1] == "l" else {"stores": bits}
        return Class("load" if hit[1] == "l" else "store", "vector", f"i{hit[3] or 8}", bits, **traffic)
    if base in ("vlm", "vsm"):
        return Class("load" if base == "vlm" else "store", "vector", "i1", vlen // 8,
                     **({"loads": vlen // 8} if base == "vlm" else {"stores": vlen // 8}))
    if hit := _V_MEMORY.match(base):
        eew = int(hit[4])
        count = (state.bits(vlen) // state.sew) if state and state.sew else 0
        element = f"i{eew}" if hit[2] not in ("ox", "ux") else f"i{state.sew}" if state else ""
        bits = count * (eew if hit[2] not in ("ox", "ux") else state.sew if state else 0) * int(hit[3] or 1)
        indexed = hit[2] in ("ox", "ux", "s")
        splat = hit[2] == "s" and len(ops) > 2 and ops[2] in ("zero", "x0")
        kind = {("l", True): "gather", ("l", False): "load", ("s", True): "scatter", ("s", False): "store"}[hit[1], indexed]
        size = bits or eew
        return Class("load" if splat and hit[1] == "l" else kind, "vector", element, bits, masked=masked, splat=splat,
                     **({"loads": size} if hit[1] == "l" else {"stores": size}))
    sew = state.sew if state else 0
    bits = state.bits(vlen) if state else 0
    is_float = base.startswith(("vf", "vmf"))
    wide = base.startswith(("vfw", "vw")) and not base.startswith(("vwsll",))
    element = (f"{'f' if is_float else 'i'}{sew * 2 if wide else sew}" if sew else ("f" if is_float else "i") + "?")
    if "bf16" in base:
        element = "bf16"
    if base in ("vmv", "vfmv") and form in ("x.s", "f.s", "s.x", "s.f"):
        return Class("move", "scalar", element, sew)
    if base in ("vfirst", "vcpop", "vpopc") and form == "m":
        return Class("mask", "vector", "i1", bits, masked=masked)
    width = bits * 2 if wide else bits
    if _V_CONVERT.match(base):
        return Class("convert", "vector", element if is_float else f"i{sew}" if sew else "i?", width, masked=masked)
    for pattern, kind in ((_V_FMA, "fma"), (_V_FLOAT, "arithmetic"), (_V_MASK, "mask"), (_V_MOVE, "move"),
                          (_V_SHUFFLE, "shuffle"), (_V_INT, "arithmetic")):
        if pattern.match(base):
            if kind == "mask":
                element = "i1" if base not in ("vid", "viota") else element
                kind = "mask" if base not in ("vid", "viota") else "arithmetic"
            return Class(kind, "vector", element, width, masked=masked)
    if _DOT.match(m):
        return Class("fma", "matrix", "f16" if "fmadot" in m else "i8", vlen)
    if m.startswith("smt.v"):
        return Class("shuffle", "vector", "i8", vlen)
    return UNKNOWN
