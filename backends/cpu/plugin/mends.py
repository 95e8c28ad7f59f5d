"""Gaps of Triton (3.6 to 3.9) and of CPython that a CPU kernel falls into, mended in place; kernels for GPUs are left as they are.

- ast: CPython up to 3.12 keeps the depth of the tree that it builds in one place for all threads; where the garbage collector
  lets another thread parse meanwhile, `ast.parse` raises SystemError (python/cpython#106905).
- grid: Triton drops a fourth dimension, and reads sizes of what has none (`TypeError: object of type 'int' has no len()`).
- carries: Triton's front end takes a variable for unchanged in a loop that ends with the value it began with, also where that is
  another variable's, which the loop does change (`y = x` before it, `x, y = f(x), x` in it: y stays what it was).
- memory: what Triton keeps of a kernel (`slim.py`).
- loading: a kernel's launcher is there before its code is, so a thread that comes while another launches the kernel for the first time would launch no code; and
  it is the active driver that loads, also where that is a GPU's by then, as in threads of Inductor's.
- signs: a kernel reads a view that negates (`torch.conj(z).imag`) without its sign.
- constexprs: what equals another in Python (2 and 2.0, 1 and True, 0.0 and -0.0) was given the kernel that was compiled for that, and on disk what is written
  alike (None and "None", and of two strings "a", "b-c" and "a-b", "c").
- dtypes: a tensor of a dtype that Triton has no name for ends in `KeyError: 'complex64'`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import threading

from . import names, slim, stops
from .claims import target
from ... import active
from ...active import CPU
from ...of_triton import heard

_parsing, _loading = threading.RLock(), threading.RLock()
_installed = False
_NUMBERS = {int, float, bool, str, type(None)}  # which are no tensors


def _fresh_lock():
    global _parsing, _loading
    _parsing, _loading = threading.RLock(), threading.RLock()  # in a forked child: whoever held it is gone


def install(own):
    """Mend what this process has; once. own: () -> the CPU's driver, which is above this package."""
    global _installed
    if _installed:
        return
    _installed = True
    import triton._utils as utils
    from triton.compiler import CompiledKernel
    from triton.compiler import compiler
    from triton.runtime import jit

    slim.install(compiler, jit)
    parser = next(c for c in reversed(jit.JITFunction.__mro__) if "parse" in vars(c))
    parser.parse = one_at_a_time(parser.parse)
    os.register_at_fork(after_in_child=_fresh_lock)
    CompiledKernel._init_handles = loaded_by_its_driver(CompiledKernel._init_handles, own)
    CompiledKernel.launch_metadata = looked_at(CompiledKernel.launch_metadata)
    if isinstance(CompiledKernel.run, property):
        CompiledKernel.run = property(loaded_by_one(CompiledKernel.run.fget))
    utils.canonicalize_dtype = named(utils.canonicalize_dtype)
    vars(jit)["len"] = length_of_grids(jit.JITFunction.run)
    jit.compute_cache_key = told_apart(jit.compute_cache_key, jit.driver)
    compiler.ASTSource.hash = with_strings(compiler.ASTSource.hash, jit.driver)


@functools.lru_cache(maxsize=1)
def install_for_compiling():
    """Mend what is imported where a kernel is compiled; once."""
    from triton.compiler import code_generator
    from ... import of_triton
    of_triton.change("gdb sees no variables of kernels", lambda: names.install(code_generator))
    of_triton.change("loops that pass a variable on under another name may keep its old value, and errors in calls name no line", lambda: _in_loops(code_generator))
    of_triton.warn()


def _in_loops(code_generator):
    code_generator.CodeGenerator.visit_Call = stops.saying_where(code_generator.CodeGenerator.visit_Call)
    if hasattr(code_generator.CodeGenerator, "_find_carries"):
        code_generator.CodeGenerator._find_carries = with_shared_values(code_generator.CodeGenerator._find_carries, code_generator)


def one_at_a_time(parse):
    """`parse`, by one thread at a time, and once more where code that is not Triton's got in between."""
    @functools.wraps(parse)
    def parse_alone(self):
        for _ in range(100):
            with _parsing:
                try:
                    return parse(self)
                except SystemError as e:
                    if "recursion depth mismatch" not in str(e):
                        raise
        return parse(self)

    return parse_alone


def loaded_by_one(run):
    """`CompiledKernel.run`, which loads a kernel where nobody has; here the others wait until it is loaded."""
    @functools.wraps(run)
    def loaded(self):
        if self.function is None and self.metadata.target.backend in CPU:
            with _loading:
                return run(self)
        return run(self)

    return loaded


def loaded_by_its_driver(init_handles, own):
    """`CompiledKernel._init_handles`, which loads a kernel by the active driver; here a kernel for a CPU is loaded by the CPU's (`own()`)."""
    @functools.wraps(init_handles)
    def by_its_own(self):
        ours = self.module is None and self.metadata.target.backend == target("native").backend
        with active.driven_by(own()) if ours and not isinstance(active.now(), type(own())) else contextlib.nullcontext():
            return init_handles(self)

    return by_its_own


def with_shared_values(find_carries, generator):
    """`find_carries`, which says what a loop carries as (names, handles, types), with each variable that begins as one of those does: one more
    that is carried does no harm."""
    def handles(value):
        return {h.id() for h in generator.flatten_values_to_ir([value])}

    @functools.wraps(find_carries)
    def found(self, node, liveins, ignore=frozenset()):
        names, inits, types = find_carries(self, node, liveins, ignore)
        if names and getattr(self.builder.options, "backend_name", "") == "cpu":
            changed = set().union(*(handles(liveins[n]) for n in names))
            for n, value in liveins.items():
                if n not in names and n not in ignore and generator._is_triton_value(value) and handles(value) & changed:
                    names.append(n)
                    types.append(value.type)
                    inits.extend(generator.flatten_values_to_ir([value]))
        return names, inits, types

    return found


def looked_at(launch_metadata):
    """`launch_metadata`, which sees a grid whole, for grids that the launch takes whole, and for tensors that are what they show. Where no hook listens, nothing
    is made for one."""
    from torch import Tensor
    from triton import knobs

    @functools.wraps(launch_metadata)
    def checked(self, grid, stream, *args):
        ours = self.metadata.target.backend in CPU
        if ours:
            if len(grid) > 3:
                from ..run.grid import sizes
                sizes(self.name, grid)
            for arg in args:
                t = type(arg)
                if t not in _NUMBERS and (arg.is_neg() if t is Tensor else negated(arg)):
                    raise _negated(self.name, getattr(self.src, "fn", None), args, arg)
        runtime = knobs.runtime
        if not ours or heard(runtime.launch_enter_hook) or heard(runtime.launch_exit_hook):
            return launch_metadata(self, grid, stream, *args)
        return None

    return checked


def negated(arg) -> bool:
    """Is an argument (or one in a tuple, or what a descriptor describes) a view that torch negates as it is read? Its memory has the other sign."""
    if isinstance(arg, tuple):
        return any(map(negated, arg))
    is_neg = getattr(arg, "is_neg", None) or getattr(getattr(arg, "base", None), "is_neg", None)
    return is_neg is not None and is_neg()


def _negated(kernel: str, fn, args, arg):
    """The error for one of the arguments of a launch, which is `negated`."""
    from ...base import ArgumentError
    name = next((name for name, a in zip(getattr(fn, "arg_names", ()), args) if a is arg), "?")
    what = "a view" if hasattr(arg, "is_neg") else f"a {type(arg).__name__} with a view"
    return ArgumentError(f"triton-cpu: kernel {kernel}: argument {name!r} is {what} that negates another tensor as it is read (Tensor.is_neg, as "
                         f"torch.conj(z).imag is), which a kernel would read without its sign; give it t.resolve_neg()")


def length_of_grids(run):
    """What stands for `len` in the module of `run`, `JITFunction.run`: there it is asked of each grid, and `ArgumentError` says which is none. By this name, for the first launch of
    a process is in the middle of `run` when this is installed, and an autotuner calls `run` itself."""
    code, length = run.__code__, len

    def len_(x):
        if type(x) is tuple and x:
            return length(x)
        caller = sys._getframe(1)
        if caller.f_code is code and x is caller.f_locals.get("grid") and caller.f_locals.get("device") in CPU:
            try:
                x[0]
                return length(x)
            except (TypeError, IndexError, KeyError):
                from ..run.grid import none
                raise none(caller.f_locals["self"].__name__, x) from None
        return length(x)

    return len_


def told_apart(compute_cache_key, driver):
    """`compute_cache_key`, which remembers keys by a launch's arguments; here in a dictionary for each kind of them, where there are others than these that equal nothing else."""
    @functools.wraps(compute_cache_key)
    def key(kernel_key_cache, specialization, options):
        for s in specialization:
            if type(s[1]) not in _PLAIN:
                if driver.active.get_current_device() in CPU:
                    kernel_key_cache = kernel_key_cache.setdefault(tuple([_kind(s[1]) for s in specialization]), {})
                break
        return compute_cache_key(kernel_key_cache, specialization, options)

    return key


_PLAIN = frozenset((int, str, type(None)))


def _kind(value):
    """What tells a constexpr, or a tuple of arguments, from others that equal it."""
    kind = type(value)
    if kind is float:
        return repr(value)
    if isinstance(value, tuple):
        return kind, tuple([_kind(v) for v in value])
    return (kind, _kind(value.value)) if kind.__name__ == "constexpr" else kind


def with_strings(hash_of, driver):
    """`ASTSource.hash`, by which a compiled kernel is found on disk and which has constexprs as `str` writes them; here with those that are strings as such."""
    @functools.wraps(hash_of)
    def hashed(self):
        strings = sorted((k, v) for k, v in self.constants.items() if type(v) is str)
        found = hash_of(self)
        return hashlib.sha256(f"{found}-{strings}".encode()).hexdigest() if strings and driver.active.get_current_device() in CPU else found

    return hashed


def named(canonicalize_dtype):
    """`canonicalize_dtype`, with an error that names kernel, argument and dtype."""
    @functools.wraps(canonicalize_dtype)
    def canonical(dtype):
        try:
            return canonicalize_dtype(dtype)
        except KeyError:
            import triton
            if triton.runtime.driver.active.get_current_device() not in CPU:
                raise
            raise _no_such_type(dtype) from None

    return canonical


def _no_such_type(dtype):
    """The error for a launch with tensors of `dtype`: whose, says the stack, on which Triton's binder has the arguments by name."""
    from ...base import ArgumentError

    kernel, names, frame = "", [], sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "dynamic_func" and not names:
            names = [repr(n) for n, v in frame.f_locals.items() if str(getattr(v, "dtype", "")) == str(dtype)]
        if frame.f_code.co_name == "run" and hasattr(frame.f_locals.get("self"), "device_caches"):
            kernel = frame.f_locals["self"].__name__
            break
        frame = frame.f_back
    how = ("torch.view_as_real(t) has their real and imaginary parts" if "complex" in str(dtype) else
           "t.view(torch.uint8) has their bytes")
    who = f"arguments {', '.join(names)} are tensors" if len(names) > 1 else f"argument {(names or [repr('?')])[0]} is a tensor"
    return ArgumentError(f"triton-cpu: kernel {kernel}: {who} of {dtype}, which Triton has no type for; it takes tensors of bool, "
                         f"integers, float16, bfloat16, float32, float64 and fp8; {how}")
