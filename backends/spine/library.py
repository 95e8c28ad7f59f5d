"""A bundle's C functions: the programs of `trace.py` around compiled kernels, and the header that says how to call them.

Everything but the kernels is compiled for the plainest CPU of the ISA: it runs, and says what is missing, where the kernels
would not.
"""

from __future__ import annotations

import functools
import re
import struct
from dataclasses import dataclass

import sympy

from ...ops.records import dtype_name
from ..base import Unsupported
from ..cpu.llvm import compile as machine, targets
from ..cpu.run import pool, launch as runtime
from . import messages
from .effects import Effects
from .expressions import Emitter
from .trace import At, Buffer, Program

#: what a function of a bundle returns: (value, C name, for people)
STATUS = ((0, "TRIPORT_OK", "the result is computed"),
          (1, "TRIPORT_NO_MEMORY", "no memory for temporaries or a thread's scratch"),
          (2, "TRIPORT_BAD_SIZE", "a size is negative, or a kernel would count beyond 2^31 - 1"),
          (3, "TRIPORT_BAD_SHAPE", "the sizes do not fit each other; see the function's conditions"),
          (4, "TRIPORT_NULL_POINTER", "a tensor's pointer is null"),
          (5, "TRIPORT_OVERLAP", "two tensors overlap that must not"),
          (6, "TRIPORT_WRONG_MACHINE", "this CPU has no vector registers, or not of the length that the code is for"),
          (7, "TRIPORT_ASSERTION", "an assertion of a kernel (tl.device_assert) did not hold; see triport_last_error"))
NO_MEMORY, BAD_SIZE, BAD_SHAPE, NULL_POINTER, OVERLAP, WRONG_MACHINE, ASSERTION = range(1, 8)

#: ISA -> the row that everything but kernels is compiled for
BASE = {"riscv64": "rv64gc", "aarch64": "aarch64", "x86_64": "x86-64-v2"}
C_TYPES = {"fp32": "float", "fp64": "double", "fp16": "uint16_t", "bf16": "uint16_t", "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t",
           "int32": "int32_t", "int64": "int64_t", "bool": "uint8_t"}
#: bytes to whose multiples temporaries are laid out
_ALIGN = 64
LIMIT = (1 << 31) - 1


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code for a bundle."""

    name: str
    obj: bytes
    metadata: object
    order: tuple[str, ...]  # its runtime arguments
    llir: str
    effects: Effects


@dataclass
class Function:
    """One C function of a bundle."""

    name: str
    program: Program
    kernels: list[Compiled]

    @property
    def sizes(self) -> dict[sympy.Symbol, str]:
        """Each open size's parameter, after the first tensor that has it: a_size0."""
        out: dict = {}
        for b in self.program.arguments:
            for d, s in enumerate(b.shape):
                if isinstance(s, sympy.Symbol):
                    out.setdefault(s, f"{b.name}_size{d}")
        return out

    def text(self, e: sympy.Expr) -> str:
        """An expression with the parameters' names."""
        return str(e.subs({s: sympy.Symbol(n, integer=True) for s, n in self.sizes.items()}))

    def settle(self):
        """Give each argument its role by what the kernels do: one that is written is no mere input. Raises `Unsupported` where none writes the
        result."""
        writes = self.written
        for k, b in enumerate(self.program.buffers):
            if b.role == "in" and k in writes:
                b.role = "inout"
            if b.role == "out" and k not in writes:
                raise Unsupported(f"{self.program.op} cannot be exported: none of its kernels ({', '.join(x.kernel.__name__ for x in self.program.launches)}) "
                                  "writes the tensor that it returns")

    @property
    def written(self) -> set[int]:
        """Numbers of the buffers that kernels write."""
        return {launch.args[kernel.order[k]].buffer for launch, kernel in zip(self.program.launches, self.kernels) for k in kernel.effects.writes}

    @functools.cached_property
    def apart(self) -> list[tuple[Buffer, Buffer, bool]]:
        """Pairs of arguments that must not overlap, the written one first: each that is written, and any other. True where equal addresses
        are fine all the same."""
        buffers, writes = self.program.buffers, self.written
        given = [k for k, b in enumerate(buffers) if b.role != "temporary"]
        return [(buffers[w], buffers[x], x not in writes and self._may_coincide(x, w))
                for w in given if w in writes for x in given if x != w and not (x in writes and x < w)]

    def _may_coincide(self, read: int, written: int) -> bool:
        """Are results right where two tensors, of which one is only read, have one address?"""
        over = False  # has a launch written already?
        for launch, kernel in zip(self.program.launches, self.kernels):
            places = {b: [k for k, name in enumerate(kernel.order) if isinstance(at := launch.args[name], At) and at.buffer == b] for b in (read, written)}
            readers = [k for k in places[read] if k in kernel.effects.reads]
            writers = [k for k in places[written] if k in kernel.effects.writes]
            if readers and over:
                return False
            over = over or bool(writers)
            axes = frozenset(axis for axis, count in zip("xyz", launch.grid) if count != 1)
            for i in readers:
                for j in writers:
                    taken = [same for *pair, same in kernel.metadata.disjoint if set(pair) == {i, j}]  # by the compiler, to be disjoint
                    if (launch.args[kernel.order[i]].offset != launch.args[kernel.order[j]].offset or not all(taken)
                            or not kernel.effects.may_coincide(i, j, axes)):
                        return False
        return True


def base_row(row: targets.Target) -> targets.Target:
    return targets.get(BASE[row.triple.partition("-")[0]])


def compile_kernel(launch, row: targets.Target, name: str) -> Compiled:
    """A launch's kernel for a row, as the symbol `name`. Pointers may lie anywhere, sizes be anything."""
    order = tuple(p.name for p in launch.kernel.params if p.name in launch.types)
    made = _lowered(launch, row, True)
    if any(a.buffer == b.buffer and not (same and a.offset == b.offset and launch.types[order[i]] == launch.types[order[j]])
           for i, j, same in made.metadata.disjoint for a, b in [(launch.args[order[i]], launch.args[order[j]])]):
        made = _lowered(launch, row, False)  # two of its pointers are into one tensor
    llir = re.sub(rf"@{re.escape(made.metadata.name)}\b", f"@{name}", made.asm["llir"])
    llir = re.sub(rf"^define (?:dso_local )?i64 @{name}\(", f"define hidden i64 @{name}(", llir, flags=re.M)
    return Compiled(name, machine.emit_object(llir, row), made.metadata, order, llir, Effects(made.asm["ttir"]))


def assertions(kernel: Compiled) -> list[tuple[str, str]]:
    """(message, file:line without folders) of the assertions that a kernel has, as numbered from 1 on."""
    return [(message, where.rpartition("/")[2]) for message, where in kernel.metadata.asserts]


def _lowered(launch, row: targets.Target, assume_disjoint: bool):
    """Triton's compiled kernel, up to LLVM IR."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ..dispatch import drivers
    kernel = launch.kernel
    signature = {p.name: launch.types.get(p.name, "constexpr") for p in kernel.params}
    target = GPUTarget("cpu", row.name, 0)
    with drivers.compiling_for(target):
        return triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=dict(launch.consts)), target=target,
                              options={**launch.options, "until": "llir", "assume_disjoint": assume_disjoint})


# --- the functions -----------------------------------------------------------------------------------------------------------


def declaration(f: Function) -> str:
    """The C declaration of a function."""
    parts = []
    for b in f.program.arguments:
        const = "const " if b.role == "in" else ""
        parts.append(f"{const}{C_TYPES[dtype_name(b.dtype)]} *{b.name}")
    parts += [f"int64_t {n}" for n in f.sizes.values()]
    return f"int {f.name}({', '.join([*parts, 'int threads'])})"


def glue_ir(functions: list[Function], row: targets.Target) -> str:
    """The IR of all functions, for `base_row`."""
    kernels = {k.name: k for f in functions for k in f.kernels}
    texts = messages.Texts()
    bodies = "\n".join(_function(f, texts) for f in functions)
    declared = "\n".join(f"declare hidden i64 @{k}(ptr, ptr, i64, i64, i32, i32, i32)" for k in kernels)
    return f"""target triple = "{row.triple}"
{declared}
declare hidden i64 @tp_call(ptr)
declare hidden i32 @tp_machine()
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.ctpop.i64(i64)
declare {{ i64, i1 }} @llvm.smul.with.overflow.i64(i64, i64)
{_TEAM}
{messages.IR}
{texts.ir()}
{bodies}
"""


#: as `launch.team_of`: threads for a launch, by its programs and their work (0: not known). @cpus: those that this process may run on
_TEAM = f"""
define hidden i64 @tp_cpus() {{
entry:
  %mask = alloca [16 x i64], align 8
  br label %clear
clear:
  %c = phi i64 [ 0, %entry ], [ %c1, %clear ]
  %cp = getelementptr [16 x i64], ptr %mask, i64 0, i64 %c
  store i64 0, ptr %cp
  %c1 = add i64 %c, 1
  %cleared = icmp eq i64 %c1, 16
  br i1 %cleared, label %ask, label %clear
ask:
  %r = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  br label %each
each:
  %k = phi i64 [ 0, %ask ], [ %k1, %each ]
  %n = phi i64 [ 0, %ask ], [ %n1, %each ]
  %p = getelementptr [16 x i64], ptr %mask, i64 0, i64 %k
  %w = load i64, ptr %p
  %bits = call i64 @llvm.ctpop.i64(i64 %w)
  %n1 = add i64 %n, %bits
  %k1 = add i64 %k, 1
  %done = icmp eq i64 %k1, 16
  br i1 %done, label %out, label %each
out:
  %some = call i64 @llvm.smax.i64(i64 %n1, i64 1)
  %most = call i64 @llvm.smin.i64(i64 %some, i64 {pool.MAX_THREADS})
  ret i64 %most
}}
define hidden i64 @tp_team(i64 %programs, i64 %work, i64 %threads) {{
  %unknown = icmp eq i64 %work, 0
  br i1 %unknown, label %all, label %weigh
weigh:
  %total = mul i64 %programs, %work
  %others = sub i64 %threads, 1
  %saved = mul i64 %total, %others
  %more = sub i64 %threads, 2
  %each = mul i64 %more, {round(runtime.EACH * 1000)}
  %meet = add i64 %each, {round(runtime.MEET * 1000)}
  %lost.k = mul i64 %meet, {runtime.OPERATIONS}
  %lost.t = mul i64 %lost.k, %threads
  %lost = sdiv i64 %lost.t, 1000
  %alone = icmp sle i64 %saved, %lost
  br i1 %alone, label %one, label %some
one:
  ret i64 1
some:
  %worth = sdiv i64 %total, {runtime.OPERATIONS}
  %two = call i64 @llvm.smax.i64(i64 %worth, i64 2)
  %use = call i64 @llvm.smin.i64(i64 %two, i64 %threads)
  ret i64 %use
all:
  ret i64 %threads
}}
"""


def _function(f: Function, texts: messages.Texts) -> str:
    p = f.program
    lines: list[str] = []
    e = Emitter({s: f"%{n}" for s, n in f.sizes.items()}, lines)
    returns: list[tuple[int, str]] = []
    labels = 0

    def block(name: str):
        lines.append(f"{name}:")

    def refuse(condition: str, status: int, why: str = ""):
        """Return `status` where the i1 `condition` holds; `why`, of a status that is no success, is for people."""
        nonlocal labels
        labels += 1
        if (status, why) not in returns:
            returns.append((status, why))
        lines.append(f"  br i1 {condition}, label %return{returns.index((status, why))}, label %go{labels}")
        block(f"go{labels}")

    missing = e.emit("call i32 @tp_machine()")
    refuse(e.emit(f"icmp ne i32 {missing}, 0"), WRONG_MACHINE, STATUS[WRONG_MACHINE][2])
    for n in f.sizes.values():
        refuse(e.emit(f"icmp ugt i64 %{n}, {LIMIT}"), BAD_SIZE, f"{n} is negative or above {LIMIT}")
    counted = [g for x in p.launches for g in x.grid]
    passed = [v for x in p.launches for v in x.args.values() if isinstance(v, sympy.Expr) and v.free_symbols]
    offsets = [v.offset for x in p.launches for v in x.args.values() if isinstance(v, At)]
    for x in [b.nbytes for b in p.buffers] + counted + passed + offsets:  # all here, before the function branches over launches
        e.value(x)
    beyond = "the sizes are too large together, or one that divides is 0"
    for flag in list(e.overflows):  # nothing that follows is computed from a number that was cut off
        refuse(flag, BAD_SIZE, beyond)
    for g in counted:
        refuse(e.emit(f"icmp ugt i64 {e.value(g)}, {LIMIT}"), BAD_SIZE, beyond)
    for v in passed:
        refuse(e.emit(f"icmp ugt i64 {e.emit(f'add i64 {e.value(v)}, {LIMIT + 1}')}, {2 * LIMIT + 1}"), BAD_SIZE, beyond)
    for launch, kernel in zip(p.launches, f.kernels):
        for kind, place, most in kernel.metadata.most:  # beyond it the kernel's numbers might wrap
            given = sympy.sympify(launch.grid[place] if kind == "grid" else launch.args[kernel.order[place]])
            if given.free_symbols or given > most:
                refuse(e.emit(f"icmp sgt i64 {e.value(given)}, {most}"), BAD_SIZE, beyond)
    for c in p.conditions:
        refuse(e.emit(f"xor i1 {e.value(c)}, true"), BAD_SHAPE, f"the sizes do not fulfil {f.text(c)}")
    some = "0"
    for b in p.arguments:
        if b.role != "in":
            some = e.emit(f"or i64 {some}, {e.value(b.nbytes)}")
    refuse(e.emit(f"icmp eq i64 {some}, 0"), 0)  # nothing to compute
    pointers: dict[int, str] = {}
    for k, b in enumerate(p.buffers):
        if b.role != "temporary":
            pointers[k] = f"%{b.name}"
            absent, some = e.emit(f"icmp eq ptr %{b.name}, null"), e.emit(f"icmp ne i64 {e.value(b.nbytes)}, 0")
            refuse(e.emit(f"and i1 {absent}, {some}"), NULL_POINTER, f"{b.name} is null")
    _refuse_overlaps(f, e, refuse)
    temporaries = [k for k, b in enumerate(p.buffers) if b.role == "temporary"]
    memory = "null"
    if temporaries:
        offset = "0"
        place = {}
        for k in temporaries:
            place[k] = offset
            padded = e.emit(f"and i64 {e.emit(f'add i64 {e.value(p.buffers[k].nbytes)}, {_ALIGN - 1}')}, {-_ALIGN}")
            offset = e.emit(f"add i64 {offset}, {padded}")
        memory = e.emit(f"call ptr @aligned_alloc(i64 {_ALIGN}, i64 {e.emit(f'call i64 @llvm.smax.i64(i64 {offset}, i64 {_ALIGN})')})")
        refuse(e.emit(f"icmp eq ptr {memory}, null"), NO_MEMORY, "no memory for temporaries")
        for k in temporaries:
            pointers[k] = e.emit(f"getelementptr i8, ptr {memory}, i64 {place[k]}")
    said = e.emit("sext i32 %threads to i64")
    cpus = e.emit("call i64 @tp_cpus()")
    most = e.emit(f"select i1 {e.emit(f'icmp sgt i64 {said}, 0')}, i64 {said}, i64 {cpus}")
    threads = e.emit(f"call i64 @llvm.smin.i64(i64 {most}, i64 {pool.MAX_THREADS})")
    statuses = []
    for n, (launch, kernel) in enumerate(zip(p.launches, f.kernels)):
        gx, gy, gz = (e.value(g) for g in launch.grid)
        programs = e.emit(f"mul i64 {e.emit(f'mul i64 {gx}, {gy}')}, {gz}")
        lines.append(f"  %empty{n} = icmp eq i64 {programs}, 0")
        lines.append(f"  br i1 %empty{n}, label %after{n}, label %launch{n}")
        block(f"launch{n}")
        team = e.emit(f"call i64 @tp_team(i64 {programs}, i64 {kernel.metadata.work}, i64 {threads})")
        words = [f"ptrtoint (ptr @{kernel.name} to i64)", gx, gy, gz, str(kernel.metadata.scratch_bytes), team, "0", "0"]
        lines.append(f"  %words{n} = alloca [{8 + len(kernel.order)} x i64], align 16")
        words += [_word(launch.args[a], launch.types[a], pointers, e) for a in kernel.order]
        for k, w in enumerate(words):
            at = e.emit(f"getelementptr i64, ptr %words{n}, i64 {k}")
            lines.append(f"  store i64 {w}, ptr {at}")
        status = e.emit(f"call i64 @tp_call(ptr %words{n})")
        statuses.append(status)
        good = e.emit(f"icmp eq i64 {status}, 0")
        lines.append(f"  br i1 {good}, label %after{n}, label %failed{n}")
        block(f"after{n}")
    lines += [f"  call void @free(ptr {memory})", "  ret i32 0"] if temporaries else ["  ret i32 0"]
    for n, (status, launch, kernel) in enumerate(zip(statuses, p.launches, f.kernels)):
        block(f"failed{n}")
        if temporaries:
            lines.append(f"  call void @free(ptr {memory})")
        if kernel.metadata.asserts:
            full = e.emit(f"icmp eq i64 {status}, {pool.NO_MEMORY}")
            lines.append(f"  br i1 {full}, label %full{n}, label %asserted{n}")
            block(f"asserted{n}")
            table = texts.pairs([(f"{f.name}: kernel {launch.kernel.__name__}: device-side assert triggered at {where}", message)
                                 for message, where in assertions(kernel)])
            gx, gy, _ = (e.value(g) for g in launch.grid)
            lines.append(f"  call void @say_asserted(ptr {table}, i64 {status}, i64 {gx}, i64 {gy})")
            lines.append(f"  ret i32 {ASSERTION}")
            block(f"full{n}")
        lines.append(f"  call void @say(ptr {texts.name(f'{f.name}: no memory for {kernel.metadata.scratch_bytes} bytes of scratch per thread')})")
        lines.append(f"  ret i32 {NO_MEMORY}")
    for n, (status, why) in enumerate(returns):
        block(f"return{n}")
        if status:
            lines.append(f"  call void @say(ptr {texts.name(f'{f.name}: {why}')})")
        lines.append(f"  ret i32 {status}")
    parameters = ", ".join([*(f"ptr %{b.name}" for b in p.arguments), *(f"i64 %{n}" for n in f.sizes.values()), "i32 signext %threads"])
    return f"define i32 @{f.name}({parameters}) {{\nentry:\n" + "\n".join(lines) + "\n}\n"


def _refuse_overlaps(f: Function, e: Emitter, refuse):
    for x, y, same in f.apart:
        px, py = e.emit(f"ptrtoint ptr %{x.name} to i64"), e.emit(f"ptrtoint ptr %{y.name} to i64")
        ex, ey = e.emit(f"add i64 {px}, {e.value(x.nbytes)}"), e.emit(f"add i64 {py}, {e.value(y.nbytes)}")
        meet = e.emit(f"and i1 {e.emit(f'icmp ult i64 {px}, {ey}')}, {e.emit(f'icmp ult i64 {py}, {ex}')}")
        for b in (x, y):  # nothing overlaps an empty tensor
            meet = e.emit(f"and i1 {meet}, {e.emit(f'icmp ne i64 {e.value(b.nbytes)}, 0')}")
        if same:
            meet = e.emit(f"and i1 {meet}, {e.emit(f'icmp ne i64 {px}, {py}')}")
        refuse(meet, OVERLAP, f"{x.name} and {y.name} overlap")


def _word(value, ty: str, pointers: dict, e: Emitter) -> str:
    """A kernel's argument as 8 bytes."""
    if isinstance(value, At):
        at = pointers[value.buffer]
        if value.offset != 0:
            at = e.emit(f"getelementptr i8, ptr {at}, i64 {e.value(value.offset)}")
        return e.emit(f"ptrtoint ptr {at} to i64")
    if isinstance(value, sympy.Expr):
        return e.value(value)  # the kernel reads the low half: all targets are little-endian
    return str(struct.unpack("<q", struct.pack("<" + runtime.PACK[ty], value))[0])


def machine_ir(row: targets.Target) -> tuple[str, targets.Target]:
    """(IR of @tp_machine, which returns 0 where this CPU has what the row needs, and @tp_vlen, the bits of its vector registers, the row to
    compile it for). Code for registers of one length refuses others; plain rv64gcv takes 128 bits and more."""
    if row.isa != "RVV":
        return f'target triple = "{row.triple}"\n' + _NO_VECTORS, base_row(row)
    test = "uge" if row.name == "rv64gcv" else "eq"
    return f"""target triple = "{row.triple}"
declare i64 @llvm.vscale.i64()
declare i64 @getauxval(i64)
define internal i64 @length() noinline {{
  %v = call i64 @llvm.vscale.i64() ; vlenb / 8
  %bits = mul i64 %v, 64
  ret i64 %bits
}}
define hidden i64 @tp_vlen() {{
  %has = call i64 @getauxval(i64 16) ; AT_HWCAP: a bit for each letter of the ISA (Linux, arch/riscv)
  %v = and i64 %has, {1 << (ord("V") - ord("A"))}
  %none = icmp eq i64 %v, 0
  br i1 %none, label %without, label %ask
ask:
  %bits = call i64 @length()
  ret i64 %bits
without:
  ret i64 0
}}
define hidden i32 @tp_machine() {{
  %bits = call i64 @tp_vlen()
  %fits = icmp {test} i64 %bits, {row.vector_bits}
  %r = select i1 %fits, i32 0, i32 {WRONG_MACHINE}
  ret i32 %r
}}
""", row


_NO_VECTORS = """
define hidden i64 @tp_vlen() {
  ret i64 0
}
define hidden i32 @tp_machine() {
  ret i32 0
}
"""


#: a forked child has no threads but its own; a C library without the function lets the child's first launch wait for ever, as any pool of threads would
_AFTER_FORK = """
declare extern_weak i32 @__register_atfork(ptr, ptr, ptr, ptr)
define internal void @watch_forks() {
  %none = icmp eq ptr @__register_atfork, null
  br i1 %none, label %done, label %ask
ask:
  %r = call i32 @__register_atfork(ptr null, ptr null, ptr @tp_forget, ptr null)
  br label %done
done:
  ret void
}
@tp_at_load = internal global ptr @watch_forks, section ".init_array", align 8 ; @llvm.global_ctors would become .ctors, which nobody reads
@llvm.used = appending global [1 x ptr] [ptr @tp_at_load], section "llvm.metadata"
"""


def objects(functions: list[Function], row: targets.Target) -> list[bytes]:
    """What a library is linked from."""
    plain = base_row(row)
    ir, of = machine_ir(row)
    threads = pool.pool_ir(plain, hidden=True) + _AFTER_FORK
    made = [_optimised(glue_ir(functions, row), plain), _optimised(threads, plain), machine.emit_object(ir, of)]
    return made + list({k.name: k.obj for f in functions for k in f.kernels}.values())


def _optimised(ir: str, row: targets.Target) -> bytes:
    return machine.emit_object(machine.optimise(ir, row), row)


# --- the header --------------------------------------------------------------------------------------------------------------


def header(name: str, functions: list[Function], row: targets.Target) -> str:
    """The C header of a bundle."""
    guard = re.sub(r"\W", "_", name).upper() + "_H"
    needs = (f"vector registers of {'at least ' if row.name == 'rv64gcv' else ''}{row.vector_bits} bits" if row.isa == "RVV" else row.isa)
    out = [f"/* {name}: made by triport for target {row.name} ({needs}).", "",
           "   Tensors are dense; a matrix marked `transposed` lies column by column. Elements of 16 bits are passed as uint16_t. Sizes are",
           "   counted in elements. Functions may be called from any thread; results are computed by `threads` threads, this one among them (0: as many",
           "   as this thread may run on; at most " + str(pool.MAX_THREADS) + "). Threads are started when first needed, inherit the caller's affinity, and stay.",
           "   No function ends the process. Where one returns another status than TRIPORT_OK, what it writes may hold anything, unless the",
           "   status is about the arguments: those are looked at before anything is written. */",
           f"#ifndef {guard}", f"#define {guard}", "#include <stdint.h>", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    out += ["#ifndef TRIPORT_STATUS", "#define TRIPORT_STATUS", "enum triport_status {", ",\n".join(f"  {c} = {n} /* {text} */" for n, c, text in STATUS), "};",
            "/* What was wrong with the last call in this thread that returned another status than TRIPORT_OK; of an assertion: kernel, file:line,",
            "   program and message. */", "const char *triport_last_error(void);", "#endif", ""]
    for f in functions:
        out.append("/* " + "\n   ".join(_described(f)).replace("*/", "* /") + " */")
        out.append(declaration(f) + ";\n")
    out += ["#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(out)


def _described(f: Function) -> list[str]:
    p = f.program
    said = ", ".join(f"{k}={v!r}" for k, v in p.kwargs.items())
    lines = [f"{p.op}({', '.join([*(b.name for b in p.arguments if b.role != 'out'), *([said] if said else [])])}), {p.dtype}."]
    for b in p.arguments:
        role = {"in": "", "out": " (result)", "inout": " (changed in place: the result)" if b is p.buffers[p.result] else " (changed in place, beside the result)"}[b.role]
        lines.append(f"{b.name}: {dtype_name(b.dtype)}, {' x '.join(map(f.text, b.shape)) or 'one element'}{', transposed' if b.turned else ''}"
                     f"{'; strides ' + ', '.join(map(f.text, b.strides)) if b.shape else ''}{role}")
    for c in p.conditions:
        lines.append(f"condition: {f.text(c)}")
    same = [f"{x.name} and {y.name}" for x, y, same in f.apart if same]
    lines.append(f"no byte of {' or '.join(b.name for b in p.arguments if b.role != 'in')} may be another tensor's"
                 + (f"; equal addresses are fine for {', '.join(same)}" if same else ""))
    return lines
