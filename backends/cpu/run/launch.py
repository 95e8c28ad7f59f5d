"""Loading compiled kernels into this process, and launching them.

A launch packs its arguments into 8-byte slots and makes one foreign call, which releases the GIL; the pool of
`pool.py` shares the programs out. Everything that can be decided once per kernel is decided when the launcher is built.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
import threading
import types
from pathlib import Path
from typing import Callable

from ... import checking, forks
from ...base import ArgumentError, CompileError, Error
from ...of_triton import chained
from . import codes, crash, elf, grid, interrupt, kept, link, loaded, perf_map, settings
from .. import pages
from ..llvm import targets
from .fits import UNFIT, fitted
from .loaded import Function
from .metadata import ALONE, TOGETHER, checked as facts
from .pool import INTERRUPTED, NO_MEMORY, SHORT, pool_ir

_lock = threading.RLock()
forks.hold(_lock, forks.LINKER)
_linked: set[Callable] = set()  # what would take each object out of the process again

#: how struct packs each Triton argument type into its 8-byte slot
PACK = {"i1": "?7x", "i8": "b7x", "u1": "?7x", "u8": "B7x", "i16": "h6x", "u16": "H6x", "i32": "i4x", "u32": "I4x",
        "i64": "q", "u64": "Q", "fp16": "e6x", "fp32": "f4x", "f32": "f4x", "fp64": "d", "f64": "d"}


def load_object(obj: bytes, symbols: list[str]) -> dict[str, int]:
    """Link an object file for this machine into the process, for good, and return its symbols' addresses."""
    return placed(obj, symbols)[0]


def load_function(obj: bytes, name: str) -> Function:
    """Link a kernel's object file into the process for as long as somebody holds the result, or for good where perf's map lists it."""
    addresses, unmap = placed(obj, [name], kernel=name)
    return Function(addresses[name], name, None if perf_map.asked() else unmap)


def placed(obj: bytes, symbols: list[str], kernel: str = "") -> tuple[dict[str, int], Callable[[], None]]:
    """(address of each symbol, a function that unmaps them all) of an object file for this machine, linked into the process. kernel: the name of the
    one that it is, if it is one."""
    loaded.free()
    with _lock:
        addresses = {s: link.address_of(s) for s in elf.undefined_symbols(obj)}
        absent = [s for s, a in addresses.items() if not a]
        if absent:
            raise CompileError(f"triton-cpu: kernel {symbols[0]} calls {', '.join(absent)}, which this machine's libc and libm do "
                               "not have; write the function with others")
        try:
            linked = link.link(obj)
        except (link.Unknown, pages.Refused):
            linked = _by_llvm(obj, addresses, symbols[0])
        out, unload = {s: linked.symbols.get(s, 0) for s in symbols}, linked.unload
        missing = [s for s, a in out.items() if not a]
        if missing:
            raise CompileError(f"triton-cpu: the compiled object lacks {', '.join(missing)}")
        if perf_map.asked():
            perf_map.add(obj, linked.symbols)
        if kernel:
            unload = functools.partial(_forgotten, codes.add(kernel, linked), unload)
        _linked.add(unload)
        return out, functools.partial(_take_out, unload)


def _forgotten(forget: Callable, unload: Callable):
    forget()
    unload()


def _by_llvm(obj: bytes, addresses: dict[str, int], name: str):
    """The object linked by LLVM, which is loaded for it."""
    from . import llvm_linker
    try:
        return llvm_linker.link(obj, addresses)
    except RuntimeError as e:
        raise CompileError(f"triton-cpu: LLVM cannot link kernel {name} into this process: {e}") from None


def _take_out(unload):
    """`unload()`, by one thread at a time."""
    with _lock:
        _linked.discard(unload)
        unload()


def _openmp() -> tuple[int, int] | None:
    """(GOMP_parallel, omp_get_thread_num) of the OpenMP runtime whose threads are torch's, or None.

    A process may have several: scikit-learn, which transformers imports where it is installed, brings one of its own. On the threads of another than torch's a
    kernel behind an operator would wait until torch's cease to spin, some 2 ms, and the next operator for these. So names are looked up as libtorch's are: among
    what all of the process sees (LD_PRELOAD's come first), then among what libtorch itself is linked to."""
    import torch
    for library in (None, Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"):
        with contextlib.suppress(OSError):
            found = ctypes.CDLL(library and str(library))
            if hasattr(found, "GOMP_parallel"):
                return tuple(ctypes.cast(getattr(found, n), ctypes.c_void_p).value for n in ("GOMP_parallel", "omp_get_thread_num"))
    return None


class Pool:
    """The runtime's entry point in this process. `call(packed)` runs a kernel's programs and returns a status code of
    pool.py; `packed` starts with (function, grid x, y, z, scratch, threads, parallel, number), 8 bytes each."""

    def __init__(self, code: bytes):
        address = load_object(code, ["tp_call", "tp_forget", *interrupt.SYMBOLS, *crash.SYMBOLS])
        self._watch, self._crash = interrupt.Watch(address), crash.Handler(address)
        self.address = address["tp_call"]
        self.call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)(self.address)
        self._forget = ctypes.CFUNCTYPE(None)(address["tp_forget"])
        #: (GOMP_parallel, omp_get_thread_num), or zeros for threads of our own
        self.openmp = (settings.get("THREADS", "openmp") == "openmp" and _openmp()) or (0, 0)
        os.register_at_fork(after_in_child=self.forked)

    def forked(self):
        """In a forked child OpenMP's threads are gone and it does not know, so our own start afresh."""
        self._forget()
        self._watch.forked()
        self.openmp = (0, 0)

    def raise_signal(self):
        """Raise what the handler of a signal raised that ended a launch."""
        self._watch.raise_exception()


_pool: list[Pool] = []


def pool() -> Pool:
    """This process's `Pool`, compiled on first use."""
    if not _pool:
        code = kept.emitted("pool", pool_ir, targets.native())  # may take the compiler's lock, behind which others wait for this one
        with _lock:
            if not _pool:
                _pool.append(Pool(code))
    return _pool[0]


def _type_error(kernel: str, name: str, given) -> ArgumentError:
    import torch
    if isinstance(given, torch.Tensor):
        what = f"a tensor on {given.device}"
    else:
        what = f"{type(given).__name__}"
    return ArgumentError(f"triton-cpu: kernel {kernel}: argument {name!r} is {what}; it takes tensors in CPU memory. "
                         f"Move it there with .cpu(), or launch on the tensors' own device")


def _pointer(kernel: str, name: str, arg) -> int:
    """The address of a pointer argument: a CPU tensor's, an integer as it is, or anything with data_ptr()."""
    if arg is None:
        return 0
    if isinstance(arg, int):
        return arg
    if getattr(arg, "is_cpu", True) is False:
        raise _type_error(kernel, name, arg)
    ptr = getattr(arg, "data_ptr", None)
    if ptr is None:
        raise _type_error(kernel, name, arg)
    address = ptr()
    if not address and getattr(arg, "numel", int)():
        raise ArgumentError(f"triton-cpu: kernel {kernel}: argument {name!r} is a {type(arg).__name__} of {tuple(arg.shape)} without memory of its own (a fake, freed or nested "
                            "tensor); it takes tensors in CPU memory")
    return address


def bf16_bits(x: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _flat(expr: str, label: str, ty):
    """(Python expression, argument's name, type) of what a launch packs for one argument: tuples and tensor descriptors are
    several. A descriptor is its pointer, shape, strides and two flags, then shape and strides again as Triton's front end
    passes them beside it."""
    if ty == "constexpr":
        return
    if isinstance(ty, tuple):
        for n, t in enumerate(ty):
            yield from _flat(f"{expr}[{n}]", f"{label}[{n}]", t)
    elif ty.startswith("tensordesc"):
        rank = ty[ty.index("["):].count(",") + 1
        yield f"{expr}.base", label, "*"
        for t, field in [("i64", "shape"), ("i64", "strides")]:
            yield from ((f"{expr}.{field}[{d}]", label, t) for d in range(rank))
        yield f"{expr}.padding == 'nan'", label, "i1"
        yield f"getattr({expr}, 'round_f32_to_tf32', False)", label, "i1?"
        for t, field in [("i32", "shape"), ("i64", "strides")]:
            yield from ((f"{expr}.{field}[{d}]", label, t) for d in range(rank))
    else:
        yield expr, label, ty


def flatten(name: str, signature, arguments: list[str]):
    """The arguments of a launch as the compiled function takes them (`arguments`: element types): `_flat` of each."""
    flat = [x for n, (label, ty) in enumerate(signature) for x in _flat(f"a[{n}]", label, ty)]
    if len(flat) != len(arguments):  # a Triton whose descriptors have one flag
        flat = [x for x in flat if x[2] != "i1?"]
    flat = [(e, label, ty.rstrip("?")) for e, label, ty in flat]
    if len(flat) != len(arguments) or any((ty[0] == "*") != (t == "ptr") for (_, _, ty), t in zip(flat, arguments)):
        raise CompileError(f"triton-cpu: kernel {name} takes {len(arguments)} arguments ({', '.join(arguments)}), and a launch "
                           f"would pass {len(flat)} ({', '.join(ty for _, _, ty in flat)}); this Triton passes tensor "
                           "descriptors in a way that is not known here")
    return flat


#: `trace.Trace.launch` while one is open
tracer: Callable | None = None

#: A launch, made for each kernel as Triton's own binder is: what can be decided once is in its text. values: what it packs; beyond: whether the version
#: for overlapping arguments or large sizes is to run.
_LAUNCH = """\
call = pool.call
def work(a):
    return {work}
def beyond(gx, gy, gz, *a):
    return {large}
def launch(gx, gy, gz, stream, fn, km, lm, enter, leave, *a):
    if checking.on:
        return checked(gx, gy, gz, stream, fn, km, lm, enter, leave, *a)
    try:
        programs = gx * gy * gz
        if type(programs) is not int or programs >> 31:  # not ints, or too many to be sure that each fits
            gx, gy, gz = sizes(name, (gx, gy, gz))
            programs = gx * gy * gz
        packed = pack(fn.address, gx, gy, gz, scratch, team(programs, {work}, threads()), *pool.openmp, {values})
    except wrong as e:
        sizes(name, (gx, gy, gz))  # says so if it was the grid
        return launch(gx, gy, gz, stream, fn, km, lm, enter, leave, *fitted(name, signature, a, e))
    except IndexError:
        if len(a) >= len(signature):
            raise
        raise too_few(name, signature, len(a)) from None
    if {beyond}:
        return overlapping(gx, gy, gz, stream, fn, km, lm, enter, leave, *a)
    if enter is not None and (lm is not None or not chained(enter)):  # without `lm`, Triton's chain of hooks had none when the launch began
        enter(lm)
    if profiler._is_profiler_enabled:
        status = traced(kernel, gx, gy, gz, [x for x in a if type(x) in tensors], call, packed)
    else:
        status = call(packed)
    if leave is not None and (lm is not None or not chained(leave)):  # also of a launch that fails: what a hook opened, it can close
        leave(lm)
    if status:
        failed(name, status, scratch, asserts, gx, gy)
"""


def _together(name: str):
    from . import together
    return together.Threads(name)


def _too_few(name: str, signature, given: int) -> ArgumentError:
    return ArgumentError(f"triton-cpu: kernel {name} takes {len(signature)} arguments, constexprs among them ({', '.join(label for label, _ in signature)}); {given} were given")


def packed(name: str, flat) -> tuple[str, list[str]]:
    """(struct's format, a Python expression for each) of the arguments that `flatten` found; the n-th one's leaves its address in p<n> if it is a pointer."""
    fmt, values = "", []
    for n, (expr, label, ty) in enumerate(flat):
        if ty.startswith("*"):
            fmt += "Q"
            values.append(f"(p{n} := type({expr}) in tensors and {expr}.is_cpu and {expr}.data_ptr() or pointer(name, {label!r}, {expr}))")
        elif ty == "bf16":
            fmt += "H6x"
            values.append(f"bf16_bits({expr})")
        elif ty in PACK:
            fmt += PACK[ty]
            values.append(expr)
        else:
            raise CompileError(f"triton-cpu: kernel {name}: argument {label!r} has type {ty}; it takes pointers, "
                               f"{', '.join(PACK)}, bf16, tensor descriptors and tuples of them")
    return fmt, values


def worked(known: dict, arguments: list[str]) -> str:
    """A Python expression of the vector operations of a program (0: not known, ALONE: one thread's), of expressions for the arguments."""
    def trips(argument: int, add: int, per: int) -> str:
        count = f"({arguments[argument]} + {add}) // {per}" if per > 1 else f"{arguments[argument]} + {add}"
        return f"(t if (t := {count}) > 0 else 0)"

    loops = [" * ".join([str(n), *(trips(*t) for t in within)]) for n, within in known["loops"]] if known["work"] > 0 else []
    return " + ".join([str(known["work"]), *loops])


def make_launch(name: str, signature: list[tuple[str, object]], metadata, overlapping, constants: dict | None = None,
                checked: Callable | None = None, file: str | None = None) -> object:
    """A function `launch(gx, gy, gz, stream, function, kernel_metadata, launch_metadata, enter, exit, *args)`.

    signature: (argument name, Triton type) of every argument, constexprs included; a tuple's type is a tuple. constants: the constexprs' values
    by name, for traces. `overlapping(...)` takes the same launch where pointers that were taken to be disjoint are not, or sizes are beyond what was taken;
    `checked(...)`, of `checking.on`; None where the launch itself said that nothing is to be checked. file: the kernel's, where that is known."""
    import torch
    from torch.autograd import profiler

    known = facts(metadata, file)
    flat = flatten(name, signature, known["arguments"])
    fmt, values = packed(name, flat)
    codes.announce(name, [(label, ty) for _, label, ty in flat])
    large = [f"{('gx', 'gy', 'gz')[place] if kind == 'grid' else flat[place][0]} > {most:d}" for kind, place, most in known["most"]]
    env = {"pack": struct.Struct("<8Q" + fmt).pack, "pointer": _pointer, "name": name, "pool": pool() if known["work"] != TOGETHER else _together(name),
           "scratch": known["scratch_bytes"], "bf16_bits": bf16_bits, "threads": torch.get_num_threads,
           "team": team_of, "tensors": (torch.Tensor, torch.nn.Parameter), "overlap": _overlap, "overlapping": overlapping,
           "kernel": {"name": name, "hash": getattr(metadata, "hash", ""), "constants": dict(constants or {}), "scratch_bytes": known["scratch_bytes"]},
           "profiler": profiler, "traced": traced, "failed": failed, "asserts": known["asserts"],
           "checking": checking if checked is not None else types.SimpleNamespace(on=""), "checked": checked, "sizes": grid.sizes, "chained": chained, "wrong": UNFIT,
           "fitted": fitted, "signature": signature, "too_few": _too_few}
    work = worked(known, [f"{expr}" for expr, _, _ in flat])
    #: (position among all arguments, type) of each packed one, where a launch packs plain arguments only
    plain = len(flat) == sum(t != "constexpr" for _, t in signature) and known["work"] != TOGETHER  # whose launches nothing else repeats
    slots = [(n, t) for n, (_, t) in enumerate(signature) if t != "constexpr"] if plain else None

    def apart(alone: Callable[[str], bool] = lambda label: False):
        """The launch, for arguments of which those that `alone` is true of share memory with no other."""
        disjoint = [(i, j, same) for i, j, same in known["disjoint"] if not (alone(flat[i][1]) or alone(flat[j][1]))]
        pairs = [f"overlap(p{i}, p{j}, {flat[i][0]}, {flat[j][0]}, {same!r})" for i, j, same in disjoint]
        text = _LAUNCH.format(values=", ".join(values), work=work, beyond=" or ".join(pairs + large) or "0", large=" or ".join(large) or "0")
        exec(compile(text, f"<launch {name}>", "exec"), own := dict(env))  # noqa: S102  (source of ours, by the types of a kernel's arguments)
        launch = own["launch"] if known["work"] != TOGETHER else env["pool"].around(own["launch"])
        launch.slots, launch.format, launch.scratch, launch.asserts, launch.work = slots, fmt, known["scratch_bytes"], known["asserts"], own["work"]
        launch.apart, launch.beyond, launch.signature = apart, own["beyond"], signature
        launch.pairs = [(slots[i][0], slots[j][0], same) for i, j, same in disjoint] if plain else None
        return launch

    return apart()


#: vector operations in a microsecond, roughly
OPERATIONS = 3300
#: microseconds that two threads take to meet, and how much longer each more takes
MEET, EACH = 1.5, 0.3
#: microseconds of work for each thread up to which a launch is short: it takes longer to see that another thread has some left than to wait for it
BRIEF = 4
#: microseconds that a thread takes to wake
WAKING = 50


def meeting(threads: int) -> float:
    """Microseconds that so many threads take to meet."""
    return MEET + EACH * (threads - 2)


def team_of(programs: int, work: int, threads: int) -> int:
    """The threads that share a launch of so many programs, of `work` vector operations each (0: not known, ALONE, TOGETHER: one thread's), and above bit 32 all
    that there are; and `SHORT` where each has little to do. One, where the others would take longer to meet than they save; otherwise as many as have a microsecond's work."""
    if work in (ALONE, TOGETHER):
        return 1
    if not work:
        return threads << 32 | threads
    total = programs * work
    if total * (threads - 1) <= threads * OPERATIONS * meeting(threads):
        return 1
    use = min(threads, max(2, total // OPERATIONS))
    return threads << 32 | use | (SHORT if total <= use * OPERATIONS * BRIEF else 0)


def brief(programs: int, work: int) -> bool:
    """Is such a launch, by one thread, over sooner than another thread would have woken that waits for Python's lock?"""
    return work > 0 and programs * work <= OPERATIONS * WAKING


def _overlap(p: int, q: int, x, y, same: bool) -> bool:
    """Might two pointer arguments x and y, to p and q, share memory in a way that a fused nest would get wrong? `same`: equal addresses are
    fine. Judged by storage, so it errs on the side of yes."""
    try:
        if p < q:
            return q - p < x.untyped_storage().nbytes() and q < _end(x)
        if q < p:
            return p - q < y.untyped_storage().nbytes() and p < _end(y)
        return not same and p != 0
    except AttributeError:
        return not (isinstance(x, type(None)) or isinstance(y, type(None)))


def overlap(x, y, same: bool) -> bool:
    """`_overlap` of two arguments whose addresses are not known yet."""
    return _overlap(*(0 if t is None else t.data_ptr() for t in (x, y)), x, y, same)


def _end(t) -> int:
    """One past the last byte that a tensor's storage holds."""
    s = t.untyped_storage()
    return s.data_ptr() + s.nbytes()


def traced(kernel: dict, gx: int, gy: int, gz: int, tensors, call: Callable, packed: bytes) -> int:
    """A launch as an event of torch.profiler: "kernel[triton-cpu] grid(x, y, z)". The profiler drops an event's keys unless
    it records shapes, so the name says it all; the keys are those of Inductor's own kernels."""
    from torch._C._profiler import _RecordFunctionFast
    grid = f"grid({gx}, {gy}, {gz})"
    with _RecordFunctionFast(f"{kernel['name']}[triton-cpu] {grid}", tensors, {"kernel_backend": "triton-cpu", "grid": grid}):
        note = tracer
        return call(packed) if note is None else note(kernel, (gx, gy, gz), tensors, packed)


def failed(name: str, status: int, scratch: int, asserts, gx: int, gy: int):
    """Raise for a launch that returned `status`: what a signal's handler raised, no memory for scratch, or a device_assert that did not hold."""
    if status == INTERRUPTED:
        pool().raise_signal()
    if status == NO_MEMORY:
        raise Error(f"triton-cpu: kernel {name}: no memory for {scratch} bytes of scratch per thread; use smaller blocks "
                    "or fewer threads (torch.set_num_threads)")
    message, where = asserts[(status >> 48) - 1]
    program = status & ((1 << 48) - 1)
    at = f"({program % gx}, {program // gx % gy}, {program // gx // gy})"
    raise Error(f"triton-cpu: kernel {name}: device-side assert triggered at {where} in program {at}: {message}. Later programs "
                "of the launch may not have run")
