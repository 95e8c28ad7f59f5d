"""The state of the language: for every operation in the rule tables and every element type it can have, does a kernel with
it compile? Each answer is a kernel of one operation, compiled when asked; `triport language` writes the page.

The probes of operations whose operands are all of one type follow from their rows (`ttir/ops.py`, elements). To cover another rule, give its
operation a probe below; a test holds the two together.
"""

from __future__ import annotations

from ..backends.base import CompileError
from ..backends.cpu.emit.element import libdevice
from ..backends.cpu.emit.module import lower_module
from ..backends.cpu.llvm import compile as llvm, targets
from ..backends.cpu.ttir import reader
from ..backends.cpu.ttir.ops import TABLE, Row
from ..backends.cpu.ttir.types import Type

INTS = ("i8", "i16", "i32", "i64")
FP8 = ("f8E5M2", "f8E4M3FN", "f8E4M3FNUZ", "f8E5M2FNUZ")
FLOATS = ("f16", "bf16", "f32", "f64")
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, **dict.fromkeys(FP8, 8)}
ALL = ("i1", *INTS, *FP8, *FLOATS)


def T(elem: str, shape="64") -> str:
    return f"tensor<{shape}x{elem}>"


def kernel(body: str, ins, out: str | None, shape="64") -> str:
    """A kernel that loads %v0, %v1, ... of types `ins`, does `body`, and stores its %r of type `out` (None: stores nothing)."""
    n = 1
    for d in shape.split("x"):
        n *= int(d)
    lines = [f"%i = tt.make_range {{end = {n} : i32, start = 0 : i32}} : {T('i32', n)}"]
    lines[0] += "" if shape == str(n) else f"\n%ix = tt.reshape %i : {T('i32', n)} -> {T('i32', shape)}"
    index = "%i" if shape == str(n) else "%ix"
    args = [f"%p{k}: !tt.ptr<{t}>" for k, t in enumerate(ins)]
    for k, t in enumerate(ins):
        lines += [f"%s{k} = tt.splat %p{k} : !tt.ptr<{t}> -> tensor<{shape}x!tt.ptr<{t}>>",
                  f"%a{k} = tt.addptr %s{k}, {index} : tensor<{shape}x!tt.ptr<{t}>>, {T('i32', shape)}",
                  f"%v{k} = tt.load %a{k} : tensor<{shape}x!tt.ptr<{t}>>"]
    lines.append(body)
    if out is not None:
        args.append(f"%o: !tt.ptr<{out}>")
        lines += [f"%so = tt.splat %o : !tt.ptr<{out}> -> tensor<64x!tt.ptr<{out}>>",
                  "%j = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>",
                  f"%ao = tt.addptr %so, %j : tensor<64x!tt.ptr<{out}>>, tensor<64xi32>",
                  f"tt.store %ao, %r : tensor<64x!tt.ptr<{out}>>"]
    return f"module {{ tt.func public @probe({', '.join(args)}) {{\n" + "\n".join(lines) + "\ntt.return\n} }"


def _numbers(row: Row) -> dict[str, str]:
    """An operation of equal operands, for each of the types that its row tells."""
    values = ", ".join(f"%v{k}" for k in range(row.operands))
    result = {t: row.types([Type(t)])[0].elem if row.types else t for t in row.elements}
    return {t: kernel(f"%r = {row.name} {values} : {T(t)}", [t] * row.operands, result[t]) for t in row.elements}


def _cast(name, pairs, arrow="to", extra=""):
    return {f"{a}→{b}": kernel(f"%r = {name} %v0{extra} : {T(a)} {arrow} {T(b)}", [a], b) for a, b in pairs}


def _compare(name, types, pred):
    return {t: kernel(f"%r = {name} {pred}, %v0, %v1 : {T(t)}", [t, t], "i1") for t in types}


def _region(name, types, combine, ends, source="64x8", axis=1, extra=""):
    end = "tensor<64" if name == "tt.reduce" else f"tensor<{source}"
    out = {}
    for t in types:
        op = combine(t)
        tail = "" if name == "tt.reduce" else (f'\n%r = "tt.reduce"(%q) <{{axis = {axis} : i32}}> ({{\n^bb0(%x2: {t}, %y2: {t}):\n'
                                               f"%z2 = {op} %x2, %y2 : {t}\ntt.reduce.return %z2 : {t}\n}}) : ({T(t, source)}) -> {T(t)}")
        body = (f'%{"r" if name == "tt.reduce" else "q"} = "{name}"(%v0) <{{axis = {axis} : i32{extra}}}> ({{\n^bb0(%x: {t}, %y: {t}):\n'
                f"%z = {op} %x, %y : {t}\n{ends} %z : {t}\n}}) : ({T(t, source)}) -> {end}x{t}>{tail}")
        out[t] = kernel(body, [t], t, source)
    return out


def _adds(t):
    return "arith.xori" if t == "i1" else "arith.addi" if t[0] == "i" else "arith.addf"


def _between(sources, targets_, keep=lambda a, b: a != b):
    return [(a, b) for a in sources for b in targets_ if keep(a, b)]


def _atomic(kind, types, name="tt.atomic_rmw"):
    return {t: kernel(f"%r = tt.atomic_rmw {kind}, acq_rel, gpu, %a0, %v1 : (tensor<64x!tt.ptr<{t}>>, {T(t)}) -> {T(t)}",
                       [t, t], t) for t in types}


def _control(body, out=None):
    return {"": kernel(body, ["f32"], out)}


def _dots():
    out = {}
    for a, c in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("f32", "f32"), ("f64", "f64"), ("i8", "i32"),
                 *((t, "f32") for t in FP8)):
        out[f"{a}→{c}"] = kernel(
            f"%z = arith.constant dense<{'0' if c[0] == 'i' else '0.0'}> : {T(c, '8x8')}\n"
            f"%d = tt.dot %v0, %v1, %z : {T(a, '8x8')} * {T(a, '8x8')} -> {T(c, '8x8')}\n%r = tt.reshape %d : {T(c, '8x8')} -> {T(c)}",
            [a, a], c, "8x8")
    return out


def _scaled():
    out = {}
    for f, t in (("e2m1", "i8"), ("e4m3", "f8E4M3FN"), ("e5m2", "f8E5M2"), ("bf16", "bf16"), ("fp16", "f16")):
        k = 32 if f == "e2m1" else 64
        body = (f"%l = tt.splat %c0 : {t} -> {T(t, f'8x{k}')}\n%m = tt.splat %c0 : {t} -> {T(t, f'{k}x8')}\n"
                 f"%e = arith.constant dense<127> : {T('i8', '8x2')}\n%z = arith.constant dense<0.0> : {T('f32', '8x8')}\n"
                 f"%d = tt.dot_scaled %l scale %e, %m scale %e, %z lhs = {f} rhs = {f} {{fastMath = false}} : {T(t, f'8x{k}')}, "
                 f"{T('i8', '8x2')} * {T(t, f'{k}x8')}, {T('i8', '8x2')} -> {T('f32', '8x8')}\n"
                 f"%r = tt.reshape %d : {T('f32', '8x8')} -> {T('f32')}")
        out[f] = kernel(f"%c0 = tt.load %p0 : !tt.ptr<{t}>\n" + body, [t], "f32")
    return out


def probes() -> dict[str, dict[str, str]]:
    """operation -> {element types: a kernel that uses it}, but for those that passes of our own make. "" stands for an operation without an element type."""
    p = {row.name: _numbers(row) for row in TABLE.values() if row.elements and not row.name.startswith("triport.")}
    p["arith.cmpi"], p["arith.cmpf"] = _compare("arith.cmpi", ("i1", *INTS), "slt"), _compare("arith.cmpf", FLOATS, "ogt")
    p["arith.select"] = {t: kernel(f"%r = arith.select %v0, %v1, %v2 : {T('i1')}, {T(t)}", ["i1", t, t], t) for t in ALL}
    p["arith.constant"] = {t: kernel(f"%r = arith.constant dense<{'true' if t == 'i1' else '1' if t[0] == 'i' else '1.0'}> : {T(t)}",
                                      [], t) for t in ALL}
    p["ub.poison"] = {t: kernel(f"%r = ub.poison : {T(t)}", [], t) for t in ALL}
    p["arith.extsi"] = _cast("arith.extsi", _between(("i1", *INTS), INTS, lambda a, b: BITS[a] < BITS[b]))
    p["arith.extui"] = _cast("arith.extui", _between(("i1", *INTS), INTS, lambda a, b: BITS[a] < BITS[b]))
    p["arith.trunci"] = _cast("arith.trunci", _between(INTS, ("i1", *INTS), lambda a, b: BITS[a] > BITS[b]))
    p["arith.index_cast"] = {
        "i32→index→i64": kernel(f"%x = arith.index_cast %v0 : {T('i32')} to {T('index')}\n"
                                 f"%r = arith.index_cast %x : {T('index')} to {T('i64')}", ["i32"], "i64")}
    p["arith.index_castui"] = {k: v.replace("index_cast ", "index_castui ") for k, v in p["arith.index_cast"].items()}
    p["arith.extf"] = _cast("arith.extf", [(a, b) for a, b in _between(FLOATS, FLOATS) if BITS[a] < BITS[b]])
    p["arith.truncf"] = _cast("arith.truncf", [(a, b) for a, b in _between(FLOATS, FLOATS) if BITS[a] > BITS[b]])
    for n in ("sitofp", "uitofp"):
        p[f"arith.{n}"] = _cast(f"arith.{n}", _between(("i1", *INTS), FLOATS))
    for n in ("fptosi", "fptoui"):
        p[f"arith.{n}"] = _cast(f"arith.{n}", _between(FLOATS, ("i1", *INTS)))
    p["tt.fp_to_fp"] = _cast("tt.fp_to_fp", _between(FP8, FLOATS) + _between(FP8, FP8), "->", "") | {
        f"{k} {r}": v for r in ("rtne", "rtz") for k, v in _cast("tt.fp_to_fp", _between(FLOATS, FP8) + [
            (a, b) for a, b in _between(FLOATS, FLOATS) if BITS[a] >= BITS[b]], "->", f", rounding = {r}").items()}
    p["tt.bitcast"] = _cast("tt.bitcast", _between(ALL, ALL, lambda a, b: a != b and BITS[a] == BITS[b]), "->")
    p["arith.bitcast"] = _cast("arith.bitcast", [("i32", "f32"), ("f32", "i32"), ("i64", "f64"), ("f64", "i64"), ("f16", "i16")])
    p["tt.ptr_to_int"] = {"ptr→i64": kernel(f"%r = tt.ptr_to_int %a0 : tensor<64x!tt.ptr<f32>> -> {T('i64')}", ["f32"], "i64")}
    p["tt.int_to_ptr"] = {"i64→ptr": kernel(f"%q = tt.int_to_ptr %v0 : {T('i64')} -> tensor<64x!tt.ptr<f32>>\n"
                                             "%r = tt.load %q : tensor<64x!tt.ptr<f32>>", ["i64"], "f32")}
    p["math.fpowi"] = {t: kernel(f"%r = math.fpowi %v0, %v1 : {T(t)}, {T('i32')}", [t, "i32"], t) for t in FLOATS}
    p["tt.clampf"] = {f"{t} {nan}": kernel(f"%r = tt.clampf %v0, %v1, %v2, propagateNan = {nan} : {T(t)}", [t] * 3, t)
                      for t in FLOATS for nan in ("none", "all")}
    p["tt.extern_elementwise"] = {f"{len(libdevice.FUNCTIONS)} functions": kernel(
        f'%r = tt.extern_elementwise %v0 {{libname = "", libpath = "", pure = true, symbol = "__nv_tanhf"}} : ({T("f32")}) -> {T("f32")}',
        ["f32"], "f32")}
    texts = {"tanh.approx.f32 $0, $1;": 1, "shf.l.wrap.b32 $0, $1, $1, 7;": 1}
    p["tt.elementwise_inline_asm"] = {t.rstrip(";"): kernel(
        f'%r = tt.elementwise_inline_asm "{t}" {{constraints = "=f,f", packed_element = 1 : i32, pure = true}} %v0 : {T("f32")} -> {T("f32")}',
        ["f32"], "f32") for t in texts}
    # memory
    p["tt.addptr"] = p["tt.splat"] = p["tt.make_range"] = p["tt.load"] = p["tt.store"] = {
        t: kernel("", [t], None).replace("%v0 = tt.load", "%r = tt.load").replace(
            "\ntt.return", f"\ntt.store %a0, %r : tensor<64x!tt.ptr<{t}>>\ntt.return") for t in (*ALL, "!tt.ptr<f32>")}
    rmw = {**{k: ("i32", "i64") for k in ("and", "or", "xor", "max", "min", "umax", "umin")}, "add": ("i32", "i64"),
           "exch": ("i32", "i64", "f16", "bf16", "f32", "f64"), "fadd": FLOATS}
    p["tt.atomic_rmw"] = {f"{kind} {t}": v for kind, types in rmw.items() for t, v in _atomic(kind, types).items()}
    wide = ("i16", "i32", "i64", "f16", "f32", "f64")
    p["tt.atomic_cas"] = {t: kernel(f"%r = tt.atomic_cas acq_rel, gpu, %a0, %v1, %v2 : (tensor<64x!tt.ptr<{t}>>, {T(t)}, {T(t)}) -> "
                                     f"{T(t)}", [t, t, t], t) for t in wide}
    p["tt.atomic_load"] = {t: kernel(f"%m = arith.constant dense<true> : {T('i1')}\n%r = tt.atomic_load acquire, gpu, %a0, %m : "
                                      f"(tensor<64x!tt.ptr<{t}>>, {T('i1')}) -> {T(t)}", [t], t) for t in ("i8", *wide)}
    p["tt.atomic_store"] = {t: kernel(f"%m = arith.constant dense<true> : {T('i1')}\ntt.atomic_store release, gpu, %a0, %v1, %m : "
                                       f"tensor<64x!tt.ptr<{t}>>", [t, t], None) for t in ("i8", *wide)}
    p["tt.atomic_poll"] = {t: kernel(f"%r = tt.atomic_poll acquire, gpu, %a0, %v1 : tensor<64x!tt.ptr<{t}>>, {T(t)} -> {T('i1')}",
                                      [t, t], "i1") for t in ("i16", "i32", "i64")}
    # shapes
    p["tt.expand_dims"] = p["tt.broadcast"] = p["tt.reshape"] = p["tt.trans"] = {t: kernel(
        f"%e = tt.expand_dims %v0 {{axis = 1 : i32}} : {T(t, '8')} -> {T(t, '8x1')}\n%b = tt.broadcast %e : {T(t, '8x1')} -> "
        f"{T(t, '8x8')}\n%t = tt.trans %b {{order = array<i32: 1, 0>}} : {T(t, '8x8')} -> {T(t, '8x8')}\n"
        f"%r = tt.reshape %t : {T(t, '8x8')} -> {T(t)}", [t], t, "8") for t in ALL}
    p["tt.join"] = {t: kernel(f"%q = tt.join %v0, %v1 : {T(t, '32')} -> {T(t, '32x2')}\n%r = tt.reshape %q : {T(t, '32x2')} -> {T(t)}",
                               [t, t], t, "32") for t in ALL}
    p["tt.split"] = {t: kernel(f"%r, %q = tt.split %v0 : {T(t, '64x2')} -> {T(t)}", [t], t, "64x2") for t in ALL}
    p["tt.cat"] = {t: kernel(f"%r = tt.cat %v0, %v1 : {T(t, '32')} -> {T(t)}", [t, t], t, "32") for t in ALL}
    p["tt.unsplat"] = {t: kernel(f"%u = tt.unsplat %v0 : {T(t, '1')}\n%r = tt.splat %u : {t} -> {T(t)}", [t], t, "1")
                       for t in ALL}
    p["tt.gather"] = {t: kernel(f"%r = tt.gather %v0[%v1] {{axis = 0 : i32}} : ({T(t)}, {T('i32')}) -> {T(t)}", [t, "i32"], t)
                      for t in ALL}
    p["tt.histogram"] = {t: kernel(f"%r = tt.histogram %v0 : {T(t)} -> {T('i32')}", [t], "i32") for t in ("i8", "i16", "i32", "i64")}
    # regions
    p["tt.reduce"] = _region("tt.reduce", ("i1", *INTS, *FLOATS), _adds, "tt.reduce.return")
    p["tt.scan"] = {f"{t}{' reverse' if r else ''}": v for r in (False, True) for t, v in _region(
        "tt.scan", ("i1", *INTS, *FLOATS), _adds, "tt.scan.return", extra=f", reverse = {str(r).lower()}").items()}
    p["tt.map_elementwise"] = {t: kernel(
        f'%r = "tt.map_elementwise"(%v0) <{{pack = 1 : i32}}> ({{\n^bb0(%x: {t}):\n%z = {_adds(t)} %x, %x : {t}\n'
        f"tt.map_elementwise.return %z : {t}\n}}) : ({T(t)}) -> {T(t)}", [t], t) for t in ("i1", *INTS, *FLOATS)}
    p["tt.dot"], p["tt.dot_scaled"] = _dots(), _scaled()
    p["tt.print"] = {t: kernel(f'tt.print " x: " {{hex = false, isSigned = array<i32: 1>}} : %v0 : {T(t)}', [t], None) for t in ALL}
    # control
    p["tt.assert"] = {"": kernel(f'tt.assert %v0, "no" : {T("i1")}', ["i1"], None)}
    p["tt.get_program_id"] = {a: kernel(f"%q = tt.get_program_id {a} : i32\n%r = tt.splat %q : i32 -> {T('i32')}", [], "i32")
                              for a in "xyz"}
    p["tt.get_num_programs"] = {a: v.replace("program_id", "num_programs") for a, v in p["tt.get_program_id"].items()}
    loop = ("%c0 = arith.constant 0 : i32\n%c1 = arith.constant 1 : i32\n%c4 = arith.constant 4 : i32\n")
    p["scf.for"] = p["scf.yield"] = _control(
        loop + f"%r = scf.for %k = %c0 to %c4 step %c1 iter_args(%x = %v0) -> ({T('f32')}) : i32 {{\n%y = arith.addf %x, %x : {T('f32')}\n"
        f"scf.yield %y : {T('f32')}\n}}", "f32")
    p["scf.if"] = _control(loop + "%c = arith.cmpi slt, %c0, %c1 : i32\n" + f"%r = scf.if %c -> ({T('f32')}) {{\nscf.yield %v0 : {T('f32')}\n"
                           f"}} else {{\n%y = arith.addf %v0, %v0 : {T('f32')}\nscf.yield %y : {T('f32')}\n}}", "f32")
    p["scf.while"] = p["scf.condition"] = _control(
        loop + f"%n:2 = scf.while (%k = %c0, %x = %v0) : (i32, {T('f32')}) -> (i32, {T('f32')}) {{\n%c = arith.cmpi slt, %k, %c4 : i32\n"
        f"scf.condition(%c) %k, %x : i32, {T('f32')}\n}} do {{\n^bb0(%k: i32, %x: {T('f32')}):\n%k1 = arith.addi %k, %c1 : i32\n"
        f"%y = arith.addf %x, %x : {T('f32')}\nscf.yield %k1, %y : i32, {T('f32')}\n}}\n%r = arith.addf %n#1, %n#1 : {T('f32')}", "f32")
    p["cf.br"] = p["cf.cond_br"] = p["tt.return"] = {"": kernel(
        loop + "%g = tt.get_program_id x : i32\n%c = arith.cmpi slt, %g, %c1 : i32\ncf.cond_br %c, ^bb1, ^bb2\n^bb1:\n"
        "tt.store %a0, %v0 : tensor<64x!tt.ptr<f32>>\ncf.br ^bb2\n^bb2:", ["f32"], None)}
    p["tt.call"] = {"": kernel(f"%r = tt.call @f(%v0) : ({T('f32')}) -> {T('f32')}", ["f32"], "f32").rstrip("}").rstrip() + (
        f"\ntt.func private @f(%x: {T('f32')}) -> {T('f32')} {{\n%y = arith.addf %x, %x : {T('f32')}\ntt.return %y : {T('f32')}\n}} }}")}
    p["tt.reduce.return"], p["tt.scan.return"] = {"": p["tt.reduce"]["f32"]}, {"": p["tt.scan"]["f32"]}
    p["tt.map_elementwise.return"] = {"": p["tt.map_elementwise"]["f32"]}
    for n in ("ttg.barrier", "gpu.barrier"):
        p[n] = _control(f"{n}")
    p["tt.grid_dependency_wait"] = _control("tt.grid_dependency_wait")
    p["tt.grid_dependency_launch_dependents"] = _control("tt.grid_dependency_launch_dependents")
    p["llvm.intr.assume"] = _control("%c = arith.constant true\nllvm.intr.assume %c : i1")
    return p


def attempt(text: str, target) -> str | None:
    """None where the kernel compiles to IR that LLVM accepts; else the reason."""
    try:
        llvm.verify(lower_module(reader.parse(text), target).text, target)
    except CompileError as e:
        return str(e).partition("): ")[2] or str(e)
    return None


def rows(target_name: str = "native"):
    """(operation, types that compile, {type: reason} of those refused), in the tables' order."""
    target = targets.get(target_name)
    table = probes()
    for name in sorted(table):
        done, refused = [], {}
        for types, text in table[name].items():
            reason = attempt(text, target)
            if reason is None:
                done.append(types)
            else:
                refused[types] = reason
        yield name, done, refused
