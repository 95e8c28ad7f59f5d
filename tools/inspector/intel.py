"""x86-64 in Intel's syntax -> AT&T's, which the classifier reads: what gcc and clang write with -masm=intel, and objdump with -M intel.

Only what a classifier looks at is kept: operands' order and kinds, widths, displacements. What cannot be read is handed on as it is, and then counts as unknown.
"""

from __future__ import annotations

import functools
import re

_REGISTER = re.compile(r"(?:[re]?(?:[abcd]x|[sd]i|[bs]p)|[abcd][lh]|(?:[sd]i|[bs]p)l|r\d{1,2}[dwb]?|[xyz]mm\d{1,2}|k[0-7]|[cdefgs]s|[re]ip|tmm[0-7]|st(?:\(\d\))?|bnd[0-3]|"
                       r"mm[0-7]|[cd]r\d{1,2})$", re.I)
_PTR = re.compile(r"(byte|word|dword|fword|qword|mmword|tbyte|xmmword|oword|ymmword|zmmword)\s+(ptr|bcst)\b\s*", re.I)
_BITS = {"byte": 8, "word": 16, "dword": 32, "fword": 48, "qword": 64, "mmword": 64, "tbyte": 80, "xmmword": 128, "oword": 128, "ymmword": 256, "zmmword": 512}
_SUFFIX = {8: "b", 16: "w", 32: "l", 64: "q"}
_X87 = re.compile(r"f(i?)(ld|st|stp|sttp|add|sub|subr|mul|div|divr|com|comp)$")
#: mnemonics that AT&T spells otherwise, without operands
_SPELLED = {"cdq": "cltd", "cqo": "cqto", "cdqe": "cltq", "cwde": "cwtl", "cbw": "cbtw", "cwd": "cwtd", "movsd": "movsl", "cmpsd": "cmpsl", "stosd": "stosl",
            "lodsd": "lodsl", "scasd": "scasl", "insd": "insl", "outsd": "outsl", "iretd": "iretl", "pushfd": "pushfl", "popfd": "popfl"}
#: integer instructions whose width AT&T may say by a suffix; vectors have it in their registers
_PLAIN = re.compile(r"(?:adc|add|and|bt[crs]?|cmp|cmpxchg|dec|div|idiv|imul|inc|mov|mul|neg|nop|not|or|pop|push|rc[lr]|ro[lr]|sa[lr]|sbb|sh[lr]d?|sub|test|xadd|xchg|xor|movbe|"
                    r"bs[fr]|popcnt|[lt]zcnt|cmov\w+|crc32)$")
_STRINGS = re.compile(r"(movs|stos|lods|cmps|scas|ins|outs)$")
#: conversions to fewer bits and classes: from memory, only a suffix says how much is read
_NARROWING = re.compile(r"v?cvtt?(?:pd2(?:ps|dq|udq|ph)|[uq]?qq2(?:ps|ph)|uqq2ps|ps2ph\w*|neps2bf16)$|vfpclassp[shd]$|vcvt(?:dq|udq|ps)2phx?$")
_TO_FLOAT = re.compile(r"v?cvtu?si2s[dsh]$")
_WIDENING = re.compile(r"mov([sz])xd?$")


def is_intel(text: str) -> bool:
    """Is assembly text of x86 in Intel's syntax? By the directive, else by its first registers: AT&T's have a percent sign."""
    if hit := re.search(r"^\s*\.(intel|att)_syntax", text, re.M):
        return hit[1] == "intel"
    head = text[:200_000]
    return not re.search(r"%(r|e|[xyz]mm)\w", head) and bool(re.search(r"\b(ptr|bcst)\s+[\w.:-]*\[|\b(mov|lea|xor|add|push|v?mov[au]p[sd]\w*)\s+(r|e)\w{2}\b", head, re.I))


@functools.lru_cache(maxsize=1 << 16)
def att(text: str) -> str:
    """An instruction of Intel's syntax in AT&T's."""
    mnemonic, _, rest = text.replace("\t", " ").partition(" ")
    mnemonic = mnemonic.lower()
    if re.fullmatch(r"lock|rep\w*|notrack|bnd|data16|\{\w+\}|[c-gs]s|xacquire|xrelease|rex\S*|addr32", mnemonic) and rest.strip():
        return f"{mnemonic} {att(rest.strip())}"
    operands = _split(rest.strip())
    if not operands:
        return _SPELLED.get(mnemonic, mnemonic)
    jump = mnemonic == "call" or mnemonic[0] == "j" or mnemonic.startswith(("loop", "xbegin"))
    bits = next((b for o in operands if (b := _width(o))), 0)
    # a register says the operation's width where there is one; `movzx eax, byte ptr` has its own two
    read = [_operand(o, operands, jump) for o in operands]
    memory = any(_PTR.search(o) or "[" in o for o in operands)
    if _STRINGS.match(mnemonic):
        return mnemonic + _SUFFIX.get(bits, "b")
    return f"{_mnemonic(mnemonic, operands, bits, memory)} {', '.join(reversed(read))}"


def _split(text: str) -> list[str]:
    out, depth = [""], 0
    for c in text:
        depth += (c in "[({") - (c in "])}")
        if c == "," and depth == 0:
            out.append("")
        else:
            out[-1] += c
    return [o.strip() for o in out if o.strip()]


def _width(operand: str) -> int:
    hit = _PTR.search(operand)
    return _BITS[hit[1].lower()] if hit else 0


def _register_bits(operand: str) -> int:
    """Bits of a general register; 0 for anything else."""
    o = operand.lower()
    if re.fullmatch(r"r\d{1,2}|r[a-ds][xip]", o):
        return 64
    if re.fullmatch(r"r\d{1,2}d|e[a-ds][xip]", o):
        return 32
    if re.fullmatch(r"r\d{1,2}w|[a-d]x|[sd]i|[sb]p", o):
        return 16
    return 8 if re.fullmatch(r"r\d{1,2}b|[a-d][lh]|(?:[sd]i|[sb]p)l", o) else 0


def _mnemonic(name: str, operands: list[str], bits: int, memory: bool) -> str:
    if (hit := _WIDENING.match(name)) and len(operands) > 1:
        source = bits or _register_bits(operands[1])
        return f"mov{hit[1]}{_SUFFIX.get(source, 'b')}{_SUFFIX.get(_register_bits(operands[0]), 'l')}"
    if name == "movabs" or not memory:
        return name
    if hit := _X87.match(name):
        return name + ({16: "s", 32: "l", 64: "ll"} if hit[1] else {32: "s", 64: "l", 80: "t"}).get(bits, "")
    if _NARROWING.match(name) and bits >= 128 and "[" in operands[-1]:
        return name + {128: "x", 256: "y", 512: "z"}[bits]
    if _TO_FLOAT.match(name) or _PLAIN.match(name):
        return name + _SUFFIX.get(bits or next((b for o in operands if (b := _register_bits(o))), 0), "")
    return name


def _operand(text: str, every: list[str], jump: bool) -> str:
    text, marks = _marks(text)
    if hit := re.fullmatch(r"\[(\s*\w+\s+ptr\s+.*)\]", text, re.I):  # gcc's calls: [QWORD PTR f@GOTPCREL[rip]]
        text = hit[1]
    hit = _PTR.search(text)
    body = (text[:hit.start()] + text[hit.end():]).strip() if hit else text
    if hit and hit[2].lower() == "bcst":
        widest = max((int(w) for o in every for w in [{"x": 128, "y": 256, "z": 512}.get(o[:1].lower(), 0)] if re.match(r"[xyz]mm", o, re.I)), default=128)
        marks = f"{{1to{widest // _BITS[hit[1].lower()]}}}{marks}"
    if _REGISTER.match(body):
        return f"{'*' if jump else ''}%{body.lower()}{marks}"
    if "[" in body or hit or re.match(r"[c-gs]s:", body, re.I):
        return f"{'*' if jump else ''}{_memory(body)}{marks}"
    if not body:
        return marks
    if jump:
        return body
    if hit := re.match(r"offset\s+(?:flat:)?(.*)", body, re.I):
        return f"${hit[1]}"
    return f"${body}"


def _marks(text: str) -> tuple[str, str]:
    """(the rest, {k1}{z} {1to8} {sae} behind an operand); AT&T's masks have a percent sign."""
    marks = "".join(re.findall(r"\{[^}]*\}", text))
    return re.sub(r"\s*\{[^}]*\}", "", text).strip(), re.sub(r"\{(k[0-7])\}", r"{%\1}", marks)


def _memory(text: str) -> str:
    """`fs:disp[base+index*4-8]` -> `%fs:disp-8(%base,%index,4)`."""
    segment = ""
    if hit := re.match(r"([c-gs]s):\s*", text, re.I):
        segment, text = f"%{hit[1].lower()}:", text[hit.end():]
    head = text.partition("[")[0].strip()
    terms = [head] if head else []
    base = index = scale = ""
    inner = "+".join(re.findall(r"\[([^\]]*)\]", text))
    if hit := re.match(r"\s*([c-gs]s):\s*", inner, re.I):
        segment, inner = f"%{hit[1].lower()}:", inner[hit.end():]
    for sign, term in re.findall(r"([+-]?)\s*([^+-]+)", inner):
        term = term.strip()
        if hit := re.fullmatch(r"(\w+)\s*\*\s*([1248])|([1248])\s*\*\s*(\w+)", term):
            index, scale = (hit[1] or hit[4]).lower(), hit[2] or hit[3]
        elif _REGISTER.match(term):
            if base or re.match(r"[xyz]mm", term, re.I):
                index, scale = term.lower(), scale or "1"
            else:
                base = term.lower()
        elif term.lower().startswith(("offset ", "flat:")):
            terms.append(term.split(" ")[-1])
        elif term != "0" or not terms:
            terms.append(("-" if sign == "-" else "+" if terms else "") + term)
    inside = f"%{base}" * bool(base) + (f",%{index}" + (f",{scale}" if scale != "1" or not base else "") if index else "")
    displacement = "".join(terms)
    if displacement in ("0", "+0") and inside:
        displacement = ""
    return f"{segment}{displacement}" + (f"({inside})" if inside else "")
