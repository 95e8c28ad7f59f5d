"""One classifier per ISA. To add one: a module with `classify(mnemonic, operands, comment, machine) -> Class`, and a row here.

A classifier returns `UNKNOWN` for what it does not know; it never guesses. RISC-V's needs the vector type that vsetvli set
before: its module has `follow(function, machine)`, which classifies a whole function along its control flow.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """What a classifier asks about the machine besides the text: bits of a vector register whose width the code leaves open
    (RVV, SVE)."""

    vlen: int = 128


@dataclass(frozen=True)
class Isa:
    """A row: module below this package; `syntax`: how text.py reads it; `comment`: what starts a comment; `gpu`;
    `machine`: ELF's e_machine."""

    name: str
    module: str
    syntax: str
    comment: str
    gpu: bool = False
    machine: int = 0

    @property
    def classifier(self):
        return importlib.import_module(f"{__name__}.{self.module}")


ISAS = {i.name: i for i in (
    Isa("x86-64", "x86", "gnu", "#", machine=62),
    Isa("aarch64", "aarch64", "gnu", "//", machine=183),
    Isa("riscv64", "riscv", "gnu", "#", machine=243),
    Isa("ptx", "ptx", "ptx", "//", gpu=True),
    Isa("sass", "sass", "sass", "//", gpu=True, machine=190),
    Isa("amdgcn", "amdgcn", "gnu", ";", gpu=True, machine=224),
)}


def classify(function, isa: Isa, machine: Machine):
    """Fill in every instruction's class."""
    module = isa.classifier
    if hasattr(module, "follow"):
        module.follow(function, machine)
    else:
        for i in function.instructions:
            i.what = module.classify(i.mnemonic, i.operands, i.comment, machine)
    for i in function.instructions:
        if i.what.kind == "call" and not isa.gpu and vector_function(i.what.target):
            i.what = dataclasses.replace(i.what, unit="vector")
    _frame(function, isa)


#: functions that work on many elements: the vector ABIs' (glibc's libmvec), SLEEF, SVML, Arm's and AMD's libraries, and blocks of memory
_VECTOR_FUNCTION = re.compile(r"_ZGV[a-z]+[MN](?!1v)(x|\d+)[a-z]|Sleef_\w+?[fd](x|[248]|16)_|__svml_\w+?(?<!\d)([248]|16)(_\w+)?$|armpl_v\w+q_|armpl_sv|amd_vr[sd](?!1_)\w+_|"
                              r"(mem(cpy|move|set|pcpy)|bcopy|bzero)$")


def vector_function(name: str) -> bool:
    """Does a function of a known library work on more than one element a call?"""
    name = name.partition("@")[0].lstrip("*")
    return bool(_VECTOR_FUNCTION.match(name.removeprefix("__") if name.startswith("__mem") else name))


#: how a function makes a register its frame pointer; without that it is one like all others
_FRAME = {"x86-64": r"movq? %rsp, %rbp|leaq? -?\w*\(%rsp\), %rbp", "aarch64": r"(mov|add) x29, sp", "riscv64": r"(addi|mv) (s0|fp), sp"}


def _frame(function, isa: Isa):
    """Accesses by the frame pointer are to the stack where the function has one."""
    marked = [i for i in function.instructions if i.what.space == "frame"]
    if marked:
        framed = any(re.match(_FRAME[isa.name], i.text) for i in function.instructions)
        for i in marked:
            i.what = dataclasses.replace(i.what, space="stack" if framed else "")
