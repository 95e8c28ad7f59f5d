"""A TTIR module -> LLVM IR text: read, planned, written."""

from __future__ import annotations

import sys
import sysconfig
import threading
from dataclasses import dataclass, field
from pathlib import Path

from ...base import CompileError
from ..llvm.targets import Target
from ..plan import planner
from ..plan.checks import Checks
from ..plan.exchanges import neighbours
from ..plan.lazy import Lazy
from ..plan.records import Plan
from ..ttir import assembly, exchanges, extremes, names, remainders, types, unrolled
from ..ttir.types import Func, Module, Op
from .kernel import Kernel

_PACKAGE = f"{Path(__file__).parents[3]}/"

#: vector operations as which a program's beginning and end count, and what joins a short row's lanes: softmax of 464 rows of 16 takes an Emerald Rapids 27 ns a row, of 4 20
_PROGRAM = 40


@dataclass
class Lowered:
    """What code generation yields: LLVM IR text, bytes of scratch per thread, and which pointer arguments were taken
    not to overlap: (loaded, stored, whether equal addresses are fine because both use the same offsets)."""

    text: str
    scratch_bytes: int
    disjoint: list[tuple[int, int, bool]] = field(default_factory=list)
    #: (message, Python file:line) of each assertion: the function returns its number << 48 | program where it fails
    asserts: list[tuple[str, str]] = field(default_factory=list)
    #: the element types of the function's arguments
    arguments: list[str] = field(default_factory=list)
    #: ("grid", axis) or ("argument", place), and the most that it may be: beyond it, integers that are compared might wrap
    most: list[tuple[str, int, int]] = field(default_factory=list)
    #: vector operations of a program, roughly, but for loops whose length follows from arguments; 0 where another loop's is not known
    work: int = 0
    #: of each of those (vector operations of a trip, the loops within each other that it is in: (argument's place, add, per), of max(0, (argument + add) // per) trips)
    loops: list[tuple[int, list[tuple[int, int, int]]]] = field(default_factory=list)
    #: what was decided, and the kernel that it is about
    plan: Plan | None = None
    #: of a checked kernel: what is checked, as data (`checked`)
    checks: dict = field(default_factory=dict)
    func: Func | None = None
    target: str = ""

    @property
    def described(self) -> str:
        """The plan as text for people."""
        from ..plan.show import show
        return show(self.plan, self.func, self.target)


class _Lowering:
    """One kernel on its way. at: the operation that is planned, for what goes wrong with it."""

    def __init__(self, module: Module, target: Target, fp_fusion: bool, assume: bool, check: str, asserts: bool, debugger: bool, alone: bool):
        types.expand_calls(module)
        self.func, self.target, self.fp_fusion, self.assume = module.kernel, target, fp_fusion, assume
        self.check, self.asserts, self.debugger, self.alone = check, asserts, debugger, alone
        assembly.settle(self.func)
        if debugger:
            names.settle(self.func)
        else:
            exchanges.settle(self.func, lambda elem: neighbours(target, elem))
            remainders.settle(self.func)
            extremes.settle(self.func)
        unrolled.mend(self.func)
        self.lazy = Lazy()
        self.at: Op | None = None

    def error(self, op: Op | None, message: str) -> CompileError:
        where = f" at {op.loc}" if op is not None else ""
        what = f"{op.name}: " if op is not None else ""
        return CompileError(f"triton-cpu cannot compile kernel {self.func.name}{where} (target {self.target.name}): {what}{message}")

    def run(self) -> Lowered:
        for arg in self.func.args:
            if arg.type.is_tensor:
                raise self.error(None, f"argument {arg.name} is a tensor descriptor, which is not covered yet")
        checks = Checks(self.func, self.check, self.asserts, self.lazy) if self.check else None
        plan = planner.plan(self.func, self.target, self.lazy, self._noting, self.error, self.assume, checks, self.debugger)
        kernel = Kernel(self.func, plan, self.target, self.func.name, self.lazy, self.error, self.fp_fusion, self.debugger, self.alone)
        self.kernel = kernel
        text = kernel.write()
        lanes = self.target.lanes(32)
        work = 0 if plan.effort is None else plan.effort.get((), 0) // lanes + _PROGRAM
        loops = [(-(-n // lanes), [tuple(t) for t in trips]) for trips, n in (plan.effort or {}).items() if trips and n]
        checked = {} if checks is None else {"kinds": self.check, "sites": checks.records, "granule": checks.granule,
                                             "alone": checks.alone, "orders": checks.orders}
        most = [(*key, n) for key, n in sorted(plan.most.items()) if n < self._largest(*key)]
        pairs = [(i, j, same) for (i, j), same in sorted(plan.disjoint.items())]
        return Lowered(text, plan.scratch, pairs, kernel.asserts, [a.type.elem for a in self.func.args], most, work, loops, plan,
                       checked, self.func, self.target.name)

    def _noting(self, op: Op):
        self.at = op

    def _largest(self, kind: str, place: int) -> int:
        """The most that a grid or an argument can be at all."""
        bits = 32 if kind == "grid" else int(self.func.args[place].type.elem[1:])
        return (1 << (bits - 1)) - 1


def lower_module(module: Module, target: Target, *, fp_fusion: bool = True, assume: bool = True, check: str = "",
                 asserts: bool = False, debugger: bool = False, alone: bool = False) -> Lowered:
    """Compile a TTIR module's kernel to LLVM IR for `target`. check: what it checks (`checking.parse`); asserts: with the kernel's own assertions, where
    Triton writes others, too; debugger: with Python's variables; alone: its programs run one after the other, and nobody else writes where they do. Raises
    `CompileError`, and nothing else."""
    given = target, fp_fusion, assume, check, asserts, debugger, alone
    try:
        return _lower(module, *given)
    except RecursionError:
        # Expressions are walked by recursion, and an unrolled loop makes one as deep as it is long.
        try:
            return _with_deep_stack(lambda: _lower(module, *given))
        except RecursionError:
            raise CompileError(f"triton-cpu cannot compile kernel {module.kernel.name} (target {target.name}): its expressions are nested over "
                               "10,000 operations deep; unroll less (tl.static_range, tl.range(loop_unroll_factor=...))") from None


def _lower(module: Module, *given) -> Lowered:
    lowering = _Lowering(module, *given)
    try:
        return lowering.run()
    except (CompileError, RecursionError):
        raise
    except Exception as e:
        if _from_elsewhere(e):
            raise
        kernel = getattr(lowering, "kernel", None)
        raise lowering.error(kernel.current_op if kernel else lowering.at, f"this is a bug in triport ({type(e).__name__}: {e}); please report it with "
                             "the kernel") from e


def _from_elsewhere(e: Exception) -> bool:
    """Did code raise it that is neither ours nor a library's: a signal handler of the user's, which limits the time that something takes?"""
    at = e.__traceback__
    while at.tb_next is not None:
        at = at.tb_next
    file, places = at.tb_frame.f_code.co_filename, sysconfig.get_paths()
    return not file.startswith((_PACKAGE, places["stdlib"], places["purelib"], places["platlib"], "<"))


_deep = threading.Lock()


def _with_deep_stack(fn):
    """`fn()` on a thread with a stack for 100,000 frames."""
    found = []

    def run():
        try:
            found.append((fn(), None))
        except BaseException as e:
            found.append((None, e))

    with _deep:
        limit, size = sys.getrecursionlimit(), threading.stack_size(512 << 20)
        try:
            sys.setrecursionlimit(max(limit, 100_000))
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        finally:
            threading.stack_size(size)
            sys.setrecursionlimit(limit)
    result, error = found[0]
    if error is not None:
        raise error
    return result
