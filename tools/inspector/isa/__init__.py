"""One classifier per ISA. To add one: a module with `classify(mnemonic, operands, comment, machine) -> Class`, and a row here.

A classifier returns `UNKNOWN` for what it does not know; it never guesses. RISC-V's needs the vector type that vsetvli set
before: its module has `follow(function, machine)`, which classifies a whole function along its control flow.
"""

from __future__ import annotations

import dataclasses
import functools
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
        elif i.what.kind == "call" and not isa.gpu and _HOOK.match(_plain(i.what.target)):
            i.what = dataclasses.replace(i.what, kind="config")
    _frame(function, isa)


#: functions that work on many elements: the vector ABIs' (glibc's libmvec), SLEEF, SVML, Arm's and AMD's libraries, and blocks of memory
_VECTOR_FUNCTION = re.compile(r"_ZGV[a-z]+[MN](?!1v)(x|\d+)[a-z]|Sleef_\w+?[fd](x|[248]|16)_|__svml_\w+?(?<!\d)([248]|16)(_\w+)?$|armpl_v\w+q_|armpl_sv|amd_vr[sd](?!1_)\w+_|"
                              r"(mem(cpy|move|set|pcpy)|bcopy|bzero)$")


def vector_function(name: str) -> bool:
    """Does a function of a known library work on more than one element a call?"""
    name = _plain(name)
    return bool(_VECTOR_FUNCTION.match(name.removeprefix("__") if name.startswith("__mem") else name))


#: what compilers call at the entry of every function for profilers and tracers (-pg, -finstrument-functions), which is no part of the program's work
_HOOK = re.compile(r"(_*mcount(_nc)?|__gnu_mcount_nc|__fentry__|__cyg_profile_func_(enter|exit))$")
#: functions that never return and are how a program may well end: what came before them was work
_ENDS = re.compile(r"(_?_?exit|_Exit|quick_exit|pthread_exit|(_|sig)?longjmp|__longjmp_chk|_gfortran_(error_)?stop_\w+|_gfortran_exit_i\d)$")
#: those that only report a failure: the C library's, the C++ runtime's and library's (also with readable names), PyTorch's checks, Fortran's and Rust's
_FAILS = re.compile(r"(abort|__assert(_fail|_perror_fail|_rtn)?|__stack_chk_fail|__fortify_fail|__chk_fail|_Unwind_Resume|__clang_call_terminate|"
                    r"__cxa_(re)?throw|__cxa_throw_bad_array_(new_)?length|__cxa_bad_(cast|typeid)|__cxa_(pure|deleted)_virtual|__cxa_call_(unexpected|terminate)|"
                    r"_ZSt(9terminate|10unexpected|17rethrow_exception|21__glibcxx_assert_fail)\w+|_ZN?K?St\w*?\d__throw_\w+|"
                    r"std::(terminate|rethrow_exception|(\w+::)*__throw_\w+)(\[.*\])?\(.*|_ZN3c106detail\d+torch\w*Fail\w+|"
                    r"_gfortran_(runtime|os)_error(_at)?|_(ZN|R\w*?)4core(9panicking\w+|\w+_fail(ed)?(17h\w+)?))$")
#: instructions by which compilers mark what is never reached
_TRAPS = ("ud2", "brk", "udf", "unimp", "c.unimp", "ebreak", "c.ebreak")


@functools.lru_cache(maxsize=4096)
def never_returns(name: str) -> bool:
    """Does a function of a known library end the program, or leave by another way than its return?"""
    return fails(name) or bool(_ENDS.match(_plain(name)))


@functools.lru_cache(maxsize=4096)
def fails(name: str) -> bool:
    """Does a function of a known library never return, and report a failure?"""
    return bool(_FAILS.match(_plain(name)))


def traps(mnemonic: str) -> bool:
    """Is it an instruction that only code which is never reached has?"""
    return mnemonic in _TRAPS


def _plain(name: str) -> str:
    return name.partition("@")[0].lstrip("*")


#: how a function makes a register its frame pointer; without that it is one like all others
_FRAME = {"x86-64": r"movq? %rsp, %rbp|leaq? -?\w*\(%rsp\), %rbp", "aarch64": r"(mov|add) x29, sp", "riscv64": r"(addi|mv) (s0|fp), sp"}


def _frame(function, isa: Isa):
    """Accesses by the frame pointer are to the stack where the function has one."""
    marked = [i for i in function.instructions if i.what.space == "frame"]
    if marked:
        framed = any(re.match(_FRAME[isa.name], i.text) for i in function.instructions)
        for i in marked:
            i.what = dataclasses.replace(i.what, space="stack" if framed else "")
