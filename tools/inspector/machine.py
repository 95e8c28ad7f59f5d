"""Which machine a text is for, by directives, mnemonics and registers: one that is classified, or another, so that it is refused by name."""

from __future__ import annotations

import re

from ...backends.base import Error
from . import disassembly

#: ISA -> what its text has, and texts for other machines have not
_SIGNS = {name: re.compile(sign, re.M) for name, sign in (
    ("ptx", r"^\s*\.version\s+\d|^\s*\.address_size\s+\d|^\s*\.visible \.(?:entry|func)|\b(?:ld|st)\.(?:global|param)\b"),
    ("sass", r"//## File|^\s*/\*[0-9a-f]{4,}\*/\s+\S+.*;|\.headerflags|^\s*Function : "),
    ("amdgcn", r"\.amdgcn_target|\.amdhsa_|\bs_endpgm\b|\b(?:v|s)_(?:mov|add|mul|lshl|and|cbranch|waitcnt|load)\w*\s|\b(?:global|buffer|flat|ds)_(?:load|store|read|write)\w*\s"),
    ("riscv64", r"\.attribute\s+[45]|\bvsetv?i?vli\b|\bvs?[ls]?e\d+\.v\b|^[^#\n]*\s(?:addi|li|mv|lui|auipc|sd|ld|lw|sw|fl[wd]|fs[wd]|bnez|beqz|b(?:eq|ne|lt|ge)u?|slli|jr?)\s+"
                r"(?:zero|ra|sp|gp|tp|f?[ast]\d{1,2}|x\d{1,2})\b"),
    ("x86-64", r"%(?:r[abcd]x|r[sd]i|r[sb]p|r(?:8|9|1[0-5])[dwb]?|[xyz]mm\d+|e[abcd]x|e[sd]i|rip)\b|\b(?:rax|rbx|rcx|rdx|rsi|rdi|rsp|rbp|rip|e[abcd]x|e[sd]i|[xyz]mm\d+)\b"),
    ("aarch64", r"\b[wx](?:[0-9]|[12][0-9]|30|zr)\b|\bv\d+\.\d*[bhsdq]\b|\b[zp]\d+[./][bhsdzm]\b|^\s+(?:ldr|str|fmadd|fadd|fmul)\s+[bhsdq]\d+\b|^\s+[a-z]\w*\.\d+[bhsd]\s+v\d+"),
)}
#: other machines' names -> their directives, registers and mnemonics
_OTHERS = {name: re.compile(sign, re.M) for name, sign in (
    ("s390x", r"\b(?:stmg|lmg|lgr|lgfi|larl|brasl|brctg|cgij\w*|aghi|vlm|vstm|locgr\w*|risbg\w*|clgij\w*)\s|%r(?:[0-9]|1[0-5])(?![\w])|%[fva]\d"),
    ("PowerPC", r"\.abiversion|@toc\b|\.TOC\.|^\s*(?:mflr|mtlr|mtctr|bdnz|addis|lwz|stdu|stxvd?\w*|lxvd?\w*|xv\w+[ds]p|blr)\b"),
    ("MIPS", r"\.set\s+(?:noreorder|nomips16|micromips)|\$(?:sp|ra|gp|fp|a[0-3]|v[01]|t\d|s\d|f\d+|\d+)\b"),
    ("LoongArch", r"\$(?:r\d+|vr\d+|xr\d+|fa\d|a[4-7])\b|^\s*(?:addi\.[dw]|ld\.[dw]|st\.[dw]|pcalau12i|bstrpick\.d)\b"),
    ("SPARC", r"%[goli][0-7]\b|\bsethi\b"),
    ("32-bit Arm", r"\.syntax\s+unified|\.eabi_attribute|\.thumb\b|^\s*(?:ldr|str|mov|add|sub|cmp|ldm\w*|push|pop|bx)\w*\s+\{?r(?:\d|1[0-5])\b"),
    ("32-bit x86", r"\((?:%e[abcd]x|%e[sd]i|%e[sb]p)[,)]|\b(?:push|pop)l\s+%e"),
    ("WebAssembly", r"^\s*(?:local\.(?:get|set|tee)|[if](?:32|64)\.(?:add|mul|load|store|const)|end_function)\b|\.functype"),
)}
#: what has the registers' names of MIPS, and mnemonics with a width
_LOONGARCH = r"^\s*(?:(?:addi|ld|st|ldx|stx|slli|srli|alsl|fld|fst|fldx|fstx)\.[dwsbh]u?|pcalau12i|bstrpick\.d|x?vldx?|x?vstx?)\s+\$"
#: word in "file format ..." -> ISA
_FORMATS = (("x86[-_]64", "x86-64"), ("aarch64|arm64", "aarch64"), ("riscv", "riscv64"), ("amdgpu|amdgcn", "amdgcn"))


def scores(text: str) -> dict[str, int]:
    """Machine -> how many signs of it the beginning of a text has; a name that is no key of isa.ISAS is a machine that is not classified."""
    head = text[:400_000]
    head = re.sub(r"^.*\.(?:ascii|asciz|string|file|ident|loc|cfi_\w+)\b.*$", "", head, flags=re.M)
    head = re.sub(r"^\s*(?:#|//|;)\s?DEBUG_VALUE.*$", "", head, flags=re.M)  # clang's remarks on variables name registers by their numbers
    return {name: n for name, sign in (*_SIGNS.items(), *_OTHERS.items()) if (n := sum(1 for _ in sign.finditer(head)))}


def guess(text: str) -> str | None:
    """The machine of a text: a key of isa.ISAS, another's name, or None where nothing tells."""
    if form := disassembly.format_of(text):
        return next((name for word, name in _FORMATS if re.search(word, form.lower())), form)
    found = scores(text)
    if found.get("ptx") and re.search(r"^\s*\.version\s+\d", text, re.M):
        return "ptx"
    if "sass" in found:
        return "sass"
    # 32-bit code has nothing of 64-bit code; the shared registers' names count for both
    if "32-bit x86" in found and not re.search(r"%r[a-ds0-9]|%[xyz]mm\d+.*\(%r", text):
        return "32-bit x86"
    if re.search(_LOONGARCH, text, re.M):
        return "LoongArch"
    if found.get("s390x", 0) > found.get("SPARC", 0) and not re.search(r"%(?:r[a-ds][xip]|e[a-ds][xip]|[xyz]mm)", text):
        return "s390x"
    left = {name: n for name, n in found.items() if name not in ("32-bit x86", "s390x")}
    return max(left, key=left.get) if left else None


def of(path, text: str, goal) -> str:
    """The row of isa.ISAS that a text is for; `goal`: the target that the user named, or None. Raises `Error` where they do not go together."""
    from .isa import ISAS
    found = guess(text)
    if found is not None and found not in ISAS:
        raise Error(f"{path} is for {found}; instructions are known of {', '.join(ISAS)}")
    if goal is None:
        if found is None:
            raise Error(f"{path}: cannot tell which machine this assembly is for; say it with --target, for example --target rv64gcv")
        return found
    if found is None or found == goal.isa or {found, goal.isa} == {"ptx", "sass"}:
        return found or goal.isa
    raise Error(f"{path} holds {ISAS[found].name} code; --target {goal.name} is {goal.isa}. Leave --target out")
