"""A bundle's C functions in LLVM IR: what lies between a C caller's arguments and the kernels.

Everything here is compiled for the plainest CPU of the ISA (`base_row`).
"""

from __future__ import annotations

import functools

import sympy

from ..cpu.llvm import compile as llvm, targets
from ..cpu.llvm.ir import NULL, Block, Builder, Function, Module, Val, const, define, i32, i64
from ..cpu.run import pool
from ..cpu.run.launch import BRIEF, EACH, MEET, OPERATIONS
from . import features, machine, messages, scalars
from .ctext import c
from .expressions import Emitter, is_float
from .library import (ASSERTION, BAD_SHAPE, BAD_SIZE, LIMIT, NO_MEMORY, NULL_POINTER, OVERLAP, WRONG_MACHINE, Compiled, assertions, base_row, missing_name)
from .library import Function as Exported
from .trace import At

#: bytes to whose multiples temporaries are laid out
_ALIGN = 64
_BEYOND = "the sizes or numbers are too large together, or one that divides is 0"


def objects(functions: list[Exported], row: targets.Target, name: str) -> list[bytes]:
    """What a library is linked from; name: of the bundle."""
    plain = base_row(row)
    needed = features.order(row, (n for f in functions for n in f.needs))
    made = [_optimised(glue_ir(functions, row, needed, name), plain), _optimised(threads_ir(plain), plain),
            _optimised(machine.machine_ir(row, needed), plain), llvm.emit_object(machine.codes_ir(plain, needed), plain)]
    return made + list({k.name: k.obj for f in functions for v in f.variants for k in v.kernels}.values())


def _optimised(ir: str, row: targets.Target) -> bytes:
    return llvm.emit_object(llvm.optimise(ir, row), row)


def glue_ir(functions: list[Exported], row: targets.Target, needed: list[str], name: str) -> str:
    """The IR of all functions of bundle `name`, for `base_row`; needed: the features of a CPU that `tp_absent` counts."""
    m = Module("glue", row.triple, attributes="")
    for kernel in {k.name: k for f in functions for v in f.variants for k in v.kernels}:
        m.declare(kernel, "hidden i64", ["ptr", "ptr", "i64", "i64", "i32", "i32", "i32"])
    m.declare("tp_call", "hidden i64", ["ptr"])
    m.declare("tp_absent", "hidden i64", [])
    cpus(m)
    team(m)
    messages.add(m, needed, missing_name(name))
    for f in functions:
        _Body(m, f, sum(1 << needed.index(n) for n in f.needs)).write()
    return m.render()


def cpus(m: Module):
    """tp_cpus(): those that this process may run on."""
    b = define(m, "tp_cpus", "i64", "hidden")
    mask = b.alloca(f"[{machine.MASK_WORDS} x i64]", "mask", 8)
    with b.loop(i64(0), i64(machine.MASK_WORDS)) as k:
        b.store(i64(0), b.gep("i64", mask, k))
    b.call("sched_getaffinity", "i32", [i32(0), i64(8 * machine.MASK_WORDS), mask])
    n = b.variable(i64(0))
    with b.loop(i64(0), i64(machine.MASK_WORDS)) as k:
        n.set(b.add(n.get(), b.intrinsic("ctpop", b.load("i64", b.gep("i64", mask, k)))))
    b.ret(b.smin(b.smax(n.get(), 1), pool.MAX_THREADS))


def team(m: Module):
    """As `launch.team_of` without how many there are: threads for a launch, by its programs and their work (0: not known), and whether it is short."""
    b = define(m, "tp_team", "i64", "hidden", programs="i64", work="i64", threads="i64")
    programs, work, threads = b.fn.args
    with b.when(b.icmp("eq", work, 0)):
        b.ret(threads)
    total = b.mul(programs, work)
    saved = b.mul(total, b.sub(threads, 1))
    meet = b.add(b.mul(b.sub(threads, 2), round(EACH * 1000)), round(MEET * 1000))  # nanoseconds
    lost = b.bin("sdiv", b.mul(b.mul(meet, OPERATIONS), threads), 1000)
    with b.when(b.icmp("sle", saved, lost)):
        b.ret(i64(1))
    use = b.smin(b.smax(b.bin("sdiv", total, OPERATIONS), 2), threads)
    b.ret(b.or_(use, b.select(b.icmp("sle", total, b.mul(use, OPERATIONS * BRIEF)), i64(pool.SHORT), i64(0))))


#: work that a launch says a program has, at most: no product with it is too large for 64 bits
MOST_WORK = 1 << 24


def work(b: Builder, known, words: list[Val]) -> Val:
    """As `launch.worked`: what a program does, by a kernel's metadata and the words of a launch's arguments, all of them."""
    total = i64(known.work)
    if known.work <= 0:
        return total
    for count, loops in known.loops:
        taken = i64(min(count, MOST_WORK))
        for place, add, per in loops:
            given = b.cast("sext", b.cast("trunc", words[place], "i32"), "i64") if known.arguments[place] == "i32" else words[place]
            trips = b.smin(b.smax(b.bin("sdiv", b.add(given, add), per), 0), MOST_WORK)
            taken = b.smin(b.mul(taken, trips), MOST_WORK)
        total = b.add(total, taken)
    return b.smin(total, MOST_WORK)


class _Body:
    """One C function, being written. Values of sizes are all computed before it branches over launches."""

    def __init__(self, m: Module, f: Exported, needs: int):
        self.f, self.p, self.m, self.needs = f, f.program, m, needs
        arguments, parameters = self.p.arguments, f.parameters
        types = [*(("ptr", b.name) for b in arguments), *(({"float": "double", "bool": "i32"}.get(p.kind, "i64"), p.name) for p in parameters)]
        function = Function(m, f.name, "i32", [*((ty, f"given.{n}") for ty, n in types), ("i32 signext", "threads")])
        self.b = Builder(function)
        *values, self.threads = function.args
        self.given = dict(zip([n for _, n in types], values))
        for p in parameters:
            if p.kind == "bool":
                self.given[p.name] = self.b.cast("zext", self.b.icmp("ne", self.given[p.name], 0), "i64")
        self.exits: dict[tuple[int, str], Block] = {}
        self.pointers: dict[int, Val] = {}
        self.memory = NULL

    def write(self):
        b, f = self.b, self.f
        self._refuse_what_no_call_has()
        if len(f.variants) == 1:
            self._do(f.variants[0])
        else:
            for v in f.variants:
                e = self._emitter(v)
                holds = functools.reduce(b.and_, map(e.value, v.program.conditions), const("i1", True))
                for flag in e.overflows:
                    holds = b.and_(holds, b.not_(flag))
                with b.when(holds):
                    self._do(v)
            self._return(BAD_SHAPE, f"{f.name}: the sizes and numbers are of none of its {len(f.variants)} classes, which the header lists")
        for (status, why), block in self.exits.items():
            self.b.place(block)
            self._return(status, f"{self.f.name}: {why}")

    def _emitter(self, v) -> Emitter:
        return Emitter({p.symbol: self.given[p.name] for p in v.program.parameters}, self.b)

    def _do(self, v):
        """What a variant does, to the return."""
        self.p, self.kernels, self.e = v.program, v.kernels, self._emitter(v)
        self.pointers = {k: self.given[x.name] for k, x in enumerate(self.p.buffers) if x.role != "temporary"}
        self.memory = NULL
        self._refuse_sizes()
        self._refuse_nothing()
        self._refuse_overlaps()
        self._place_temporaries()
        threads = self._most_threads()
        for launch, kernel in zip(self.p.launches, self.kernels):
            self._launch(launch, kernel, threads)
        self._free()
        self.b.ret(i32(0))

    def _refuse(self, condition: Val, status: int, why: str = ""):
        """Return `status` where the i1 `condition` holds; `why`, of a status that is no success, is for people."""
        if (status, why) not in self.exits:
            self.exits[status, why] = self.b.fn.new_block("return")
        self.b.go(self.exits[status, why], condition)

    def _return(self, status: int, why: str):
        if status:
            self.b.call("say", "void", [self.m.string(why)])
        self.b.ret(i32(status))

    # -- what is looked at before anything is written
    def _refuse_what_no_call_has(self):
        b = self.b
        lacking = b.and_(b.call("tp_absent", "i64", []), self.needs)
        with b.when(b.icmp("ne", lacking, 0)):
            b.call("say_lacking", "void", [self.m.string(f"{self.f.name}: this CPU lacks "), lacking])
            b.ret(i32(WRONG_MACHINE))
        for p in self.f.parameters:
            if p.kind in ("size", "ld"):
                self._refuse(b.icmp("ugt", self.given[p.name], LIMIT), BAD_SIZE, f"{p.name} is negative or above {LIMIT}")
        for x in self.p.arguments:
            if x.ld is not None:
                line = self.given[str(x.shape[0 if x.turned else 1])]
                self._refuse(b.icmp("slt", self.given[str(x.ld)], line), BAD_SHAPE, f"{x.ld} is less than a line of {x.name}")

    def _refuse_sizes(self):
        b, e, p = self.b, self.e, self.p
        counted = [g for x in p.launches for g in x.grid]
        passed = [(x, n, v) for x in p.launches for n, v in x.args.items() if isinstance(v, sympy.Basic) and v.free_symbols]
        offsets = [v.offset for x in p.launches for v in x.args.values() if isinstance(v, At)]
        for x in [b.nbytes for b in p.buffers] + counted + offsets:
            e.value(x)
        for *_, v in passed:
            (e.real if is_float(v) else e.value)(v)
        for flag in list(e.overflows):  # nothing that follows is computed from a number that was cut off
            self._refuse(flag, BAD_SIZE, _BEYOND)
        for g in counted:
            self._refuse(b.icmp("ugt", e.value(g), LIMIT), BAD_SIZE, _BEYOND)
        for launch, n, v in passed:
            ty = launch.types[n]
            if (refused := scalars.outside(e, v, ty)) is not None:
                self._refuse(refused, BAD_SIZE, f"kernel {launch.kernel.__name__} takes {n} as {ty}, {scalars.range_text(ty)}, and {c(v, p.sizes)} is none of these")
        for launch, kernel in zip(p.launches, self.kernels):
            for kind, place, most in kernel.metadata.most:  # beyond it the kernel's numbers might wrap
                given = sympy.sympify(launch.grid[place] if kind == "grid" else launch.args[kernel.order[place]])
                if given.free_symbols or given > most:
                    self._refuse(b.icmp("sgt", e.value(given), most), BAD_SIZE, _BEYOND)
        if len(self.f.variants) == 1:
            for condition in p.conditions:
                self._refuse(b.not_(e.value(condition)), BAD_SHAPE, f"the sizes do not fulfil {c(condition, p.sizes)}")

    def _refuse_nothing(self):
        """Return where there is nothing to compute, or nothing to compute it from."""
        b, e = self.b, self.e
        some = i64(0)
        for x in self.p.arguments:
            if x.role != "in":
                some = b.or_(some, e.value(x.nbytes))
        self._refuse(b.icmp("eq", some, 0), 0)
        for k, pointer in self.pointers.items():
            x = self.p.buffers[k]
            absent = b.and_(b.icmp("eq", pointer, NULL), b.icmp("ne", e.value(x.nbytes), 0))
            self._refuse(absent, NULL_POINTER, f"{x.name} is null")

    def _refuse_overlaps(self):
        b, e = self.b, self.e
        sizes = {x.name: e.value(x.nbytes) for x in self.p.arguments}
        for x, y, same in self.f.apart:
            px, py = b.address(self.given[x.name]), b.address(self.given[y.name])
            ex, ey = b.add(px, sizes[x.name]), b.add(py, sizes[y.name])
            meet = b.and_(b.icmp("ult", px, ey), b.icmp("ult", py, ex))
            for t in (x, y):  # nothing overlaps an empty tensor
                meet = b.and_(meet, b.icmp("ne", sizes[t.name], 0))
            if same:
                meet = b.and_(meet, b.icmp("ne", px, py))
            self._refuse(meet, OVERLAP, f"{x.name} and {y.name} overlap")

    # -- what is done
    def _place_temporaries(self):
        b, e = self.b, self.e
        temporaries = {k: x for k, x in enumerate(self.p.buffers) if x.role == "temporary"}
        if not temporaries:
            return
        offset, places = i64(0), {}
        for k, x in temporaries.items():
            places[k] = offset
            offset = b.add(offset, b.and_(b.add(e.value(x.nbytes), _ALIGN - 1), -_ALIGN))
        self.memory = b.call("aligned_alloc", "ptr", [i64(_ALIGN), b.smax(offset, _ALIGN)])
        self._refuse(b.icmp("eq", self.memory, NULL), NO_MEMORY, "no memory for temporaries")
        for k, place in places.items():
            self.pointers[k] = b.gep("i8", self.memory, place)

    def _free(self):
        if self.memory is not NULL:
            self.b.call("free", "void", [self.memory])

    def _most_threads(self) -> Val:
        """As many as the caller says; 0: as this process has CPUs."""
        b = self.b
        said, here = b.cast("sext", self.threads, "i64"), b.call("tp_cpus", "i64", [])
        return b.smin(b.select(b.icmp("sgt", said, 0), said, here), pool.MAX_THREADS)

    def _launch(self, launch, kernel: Compiled, threads: Val):
        b = self.b
        grid = [self.e.value(g) for g in launch.grid]
        programs = b.mul(b.mul(grid[0], grid[1]), grid[2])
        with b.when(b.icmp("ne", programs, 0)):
            given = [self._pointer(v) if isinstance(v, At) else scalars.word(self.e, v, launch.types[a]) for a in kernel.order for v in [launch.args[a]]]
            team_ = b.call("tp_team", "i64", [programs, work(b, kernel.metadata, given), threads])
            words = [Val("i64", f"ptrtoint (ptr @{kernel.name} to i64)"), *grid, i64(kernel.metadata.scratch_bytes), team_, i64(0), i64(0), *given]
            packed = b.alloca(f"[{len(words)} x i64]", "words", 16)
            for k, word in enumerate(words):
                b.store(word, b.gep("i64", packed, i64(k)))
            status = b.call("tp_call", "i64", [packed])
            with b.when(b.icmp("ne", status, 0)):
                self._failed(launch, kernel, status, grid)

    def _pointer(self, at: At) -> Val:
        """A pointer that a kernel is given, as 8 bytes."""
        return self.b.address(self.b.gep("i8", self.pointers[at.buffer], self.e.value(at.offset)))

    def _failed(self, launch, kernel: Compiled, status: Val, grid: list[Val]):
        b, name = self.b, self.f.name
        self._free()
        if kernel.metadata.asserts:
            with b.when(b.icmp("ne", status, pool.NO_MEMORY)):
                table = messages.pairs(self.m, [(f"{name}: kernel {launch.kernel.__name__}: device-side assert triggered at {where}", message)
                                                for message, where in assertions(kernel)])
                b.call("say_asserted", "void", [table, status, *grid[:2]])
                b.ret(i32(ASSERTION))
        self._return(NO_MEMORY, f"{name}: no memory for {kernel.metadata.scratch_bytes} bytes of scratch per thread")


def threads_ir(row: targets.Target) -> str:
    """The thread pool of a library, for `base_row`. A forked child has no threads but its own; a C library without the function that tells of forks
    lets the child's first launch wait for ever, as any pool of threads would."""
    m = pool.module(row, hidden=True)
    at_fork(m, "tp_forget")
    return m.render()


def at_fork(m: Module, function: str):
    """Have `function`, which takes nothing, called in each forked child: asked for when the library is loaded."""
    ask = "__register_atfork"
    m.declare(ask, "extern_weak i32", ["ptr"] * 4)
    b = define(m, "watch_forks", "void", "internal")
    with b.when(b.icmp("ne", Val("ptr", f"@{ask}"), NULL)):
        b.call(ask, "i32", [NULL, NULL, Val("ptr", f"@{function}"), NULL])
    b.ret()
    # @llvm.global_ctors would become .ctors, which nobody reads
    m.variable("tp_at_load", "ptr @watch_forks", tail=', section ".init_array", align 8')
    m.variable("llvm.used", "[1 x ptr] [ptr @tp_at_load]", "appending global", ', section "llvm.metadata"')
