"""Triton's compiler interface for target "cpu": Python -> ttir -> plan -> llir -> asm -> obj.

To a launch, options that only a GPU has (num_warps, num_stages, ...) are accepted and change nothing, not even the
cache key.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import sys
from dataclasses import dataclass

from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget

from .. import checking
from ..active import OWN
from ..base import CompileError
from .plugin import extra
from .plugin.claims import other_claimants

# Only the standard library and triton up here: entry points are imported by every `import triton`.


extra.install()


def _follow(kinds: str):
    """Tensors of torch.empty are followed from before the first launch that is checked for reading them."""
    if "uninit" in kinds:
        from .run import unwritten
        unwritten.watch()


checking.tell(_follow)


@dataclass(frozen=True)
class CPUOptions:
    """A launch's options. The names are Triton's; those without effect on a CPU keep one value."""

    debug: bool = False
    sanitize_overflow: bool = False
    enable_fp_fusion: bool = True
    #: pointers from different arguments do not overlap, and grid and sizes are such that what is compared does not wrap (checked at
    #: every launch; a second version serves where it is not so)
    assume_disjoint: bool = True
    num_warps: int = 1
    num_stages: int = 1
    num_ctas: int = 1
    warp_size: int = 1
    cluster_dims: tuple = (1, 1, 1)
    supported_fp8_dtypes: tuple = ("fp8e5", "fp8e4nv", "fp8e4b8", "fp8e5b16", "fp8e4b15")
    deprecated_fp8_dot_operand_dtypes: tuple = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    extern_libs: tuple = ()
    backend_name: str = "cpu"
    arch: str = "native"
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    #: a launch's programs run all at once, for they wait for each other (run/together.py)
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    ir_override: str | None = None
    #: what is checked while the kernel runs (`checking.parse`); given: by this launch, and not by what all launches are checked for; asserts: the
    #: kernel's own assertions count, where `debug` is on for Triton to write those of overflow
    check: str = ""
    check_given: bool = False
    asserts: bool = False
    #: a launch's programs run one after the other, and nobody else writes meanwhile where it does: what it adds atomically, it just adds. It is whoever
    #: launches that knows this
    alone: bool = False
    #: for a debugger: Python's variables can be looked at, and nothing is optimised (TRITON_CPU_DEBUG)
    debugger: bool = False

    def hash(self) -> str:
        text = "_".join(f"{k}-{getattr(self, k)}" for k in sorted(f.name for f in dataclasses.fields(self)))
        return hashlib.sha256(text.encode()).hexdigest()


#: the options that a launch may set; everything else is a GPU's and is dropped
_HEEDED = ("debug", "sanitize_overflow", "enable_fp_fusion", "assume_disjoint", "arch", "instrumentation_mode",
           "fpsan_homomorphic_casts", "ir_override", "default_dot_input_precision", "supported_fp8_dtypes", "check", "check_given", "alone", "debugger", "launch_cooperative_grid")


#: options of GPU backends that Triton 3.6 to 3.9 had: what is accepted where their classes cannot be read
_GPU_OPTIONS = ("allow_flush_denorm", "clc", "enable_reflect_ftz", "kpack", "llvm_fn_attrs", "matrix_instr_nonkdim", "maxnreg",
                "min_shared_mem", "ptx_options", "ptx_version", "sched4reg", "schedule_hint", "waves_per_eu", "wgp_cu_mode")


@functools.lru_cache(maxsize=1)
def gpu_options() -> dict:
    """Name -> default of every launch option that an installed backend knows: the fields of the option classes beside each
    backend's compiler, which `import triton` has loaded."""
    from triton.backends import backends

    known = dict.fromkeys(_GPU_OPTIONS)
    for backend in backends.values():
        module = sys.modules.get(backend.compiler.__module__)
        for name, cls in list(vars(module).items()) if module is not None else ():
            if name.endswith("Options") and dataclasses.is_dataclass(cls):
                for f in dataclasses.fields(cls):
                    known[f.name] = None if f.default is dataclasses.MISSING else f.default
    return known


class CPUBackend(BaseBackend):
    binary_ext = "obj"
    supports_native_tensor_specialization = True

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == OWN or target.backend == "cpu" and not other_claimants()

    def __init__(self, target: GPUTarget):
        super().__init__(target)
        from . import cache
        from .driver import own
        from .plugin import mends
        cache.install()
        mends.install(own)

    @property
    def row_name(self) -> str:
        """The target's row in targets.py. Triton's own code has 0 or "" for an architecture that it does not know: this machine's."""
        return "native" if self.target.arch in (0, "0", "", None) else str(self.target.arch)

    def hash(self) -> str:
        from .llvm import identity
        return identity.of(self.row_name)

    def parse_options(self, opts: dict) -> CPUOptions:
        args = {k: opts[k] for k in _HEEDED if opts.get(k) is not None}
        args["arch"] = self.row_name
        args["debugger"] = bool(args.get("debugger", os.environ.get("TRITON_CPU_DEBUG", "0") not in ("", "0")))
        if "enable_fp_fusion" not in args:
            args["enable_fp_fusion"] = True
        args["check_given"] = bool(opts.get("check_given", opts.get("check") is not None))
        args["check"] = checking.parse(opts["check"], "check") if opts.get("check") is not None else checking.on
        args["asserts"] = bool(opts.get("asserts", args.get("debug")))  # Triton asks twice, the second time with what it was told
        if "overflow" in args["check"]:
            args["debug"] = args["sanitize_overflow"] = True
        args.setdefault("sanitize_overflow", args.get("debug", False))  # as a GPU's: what is asserted where one debugs
        options = CPUOptions(**args)
        # Triton refuses what is not in here. A GPU's option is, with one value whatever was given: it changes nothing.
        for k in opts.keys() - options.__dict__.keys():
            if k in gpu_options():
                options.__dict__[k] = gpu_options()[k]
        return options

    def pack_metadata(self, metadata):
        return metadata

    def get_codegen_implementation(self, options):
        return {"min_dot_size": lambda lhs, rhs: (1, 1, 1), "convert_custom_types": convert_fp8e4b15}

    def get_module_map(self):
        from triton.language.extra.cuda import libdevice  # a table of names; emit/element/libdevice.py has what they compute
        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, ctx):
        """TTIR only: Triton's own dialects are loaded already. The first thing that Triton asks for when it compiles."""
        from .plugin import mends
        mends.install_for_compiling()

    def add_stages(self, stages, options, language=None):
        from . import cache
        if getattr(language, "name", "") == "GLUON":
            raise CompileError("triton-cpu: a Gluon kernel (@gluon.jit) is written for the warps, layouts and shared memory of one kind of GPU; on a CPU run kernels in Triton's own "
                               "language (@triton.jit, triton.language). Launch it with that GPU's tensors, or write it with triton.language for here")
        stages["ttir"] = lambda src, metadata: make_ttir(src, metadata, options.debugger, scratch_of(options))
        kept = {}  # a stage gets the one before it, but the plan's text is for people, and another machine's object is made from the IR

        def plan(src, metadata):
            kept["lowered"] = lower(src, metadata, options)
            return kept["lowered"].described

        def llir(src, metadata):
            kept["llir"] = optimise(kept.pop("lowered"), options)
            return kept["llir"]

        def asm(src, metadata):
            kept.setdefault("llir", src)
            return make_asm(kept["llir"], options)

        stages["plan"] = plan
        stages["llir"] = llir
        stages["asm"] = asm
        stages["obj"] = lambda src, metadata: cache.keep(metadata, "obj", make_obj(src, kept.get("llir"), options))


def convert_fp8e4b15(arg, dst_ty, fp_downcast_rounding, _semantic):
    """Casts from and to fp8e4b15, which MLIR has no type for: it travels as i8, and the casts are functions of ours that
    emit/element/libdevice.py knows by name."""
    import triton.language as tl

    source, to = arg.type.scalar, dst_ty.scalar
    if source.is_fp8e4b15():
        symbols = {(tl.float8e4b15,): ("__triport_fp8e4b15_to_f32", tl.float32)}
        wide = tl.core.extern_elementwise("", "", [arg], symbols, is_pure=True, _semantic=_semantic)
        return _semantic.cast(wide, dst_ty)
    if not source.is_fp64():
        arg = _semantic.cast(arg, arg.type.with_element_ty(tl.float32) if arg.type.is_block() else tl.float32)
        source = tl.float32
    rounding = "_rtz" if fp_downcast_rounding is not None and "RTZ" in str(fp_downcast_rounding).upper() else ""
    name = f"__triport_{'f64' if source.is_fp64() else 'f32'}_to_fp8e4b15{rounding}"
    return tl.core.extern_elementwise("", "", [arg], {(source,): (name, to)}, is_pure=True, _semantic=_semantic)


#: K that a loop round a product should go through at once, pieces of it at most, and accumulators from which on that pays
K_AT_ONCE, PIECES, ACCUMULATORS = 256, 4, 64 * 64


#: in MLIR's words for a type: a float, or a tensor of floats, and not of pointers to them
_FLOATS = re.compile(r"(?:^|x)b?f\d")
#: trips of a loop of sums that are one, at most, and operations that its body becomes
TRIPS, UNROLLED = 4, 160


def _unroll(mod, scratch: int):
    """Ask Triton's unroller for two kinds of loops, whose accumulators then go through registers once for several trips. Those that do nothing but load and multiply short pieces of K, as tiles made
    for a GPU's shared memory are: `emit/product/dot.py` multiplies the pieces at once. And those that do nothing but load and compute element by element, as sums over rows are, whose accumulators are in
    memory (docs/performance/cpu-kernels.md has the times)."""
    from .ttir.ops import row

    loops, bodies = [], {}

    def visit(op):
        name = op.get_name()
        block = op.get_block()
        region = block.get_parent() if block is not None else None
        if region is not None:
            bodies.setdefault(region.id(), []).append((name, op))
        if name == "scf.for" and op.get_num_results():
            loops.append(op)

    mod.walk(visit)
    chosen = []
    for loop in loops:
        body = bodies.get(loop.get_region(0).id(), [])
        products = [op for name, op in body if name == "tt.dot"]
        if not products and (times := _trips_together(loop, body)) > 1:
            chosen.append((loop, times))
        if len(products) != 1:
            continue
        plain = all(name in ("tt.load", "tt.dot", "scf.yield", "arith.constant") or row(name).address
                    or name.startswith("arith.") and not _is_float(op) for name, op in body)
        shape = re.match(r"tensor<(\d+)x(\d+)x[^x]*>$", str(products[0].get_result(0).get_type()))
        depth = re.match(r"tensor<\d+x(\d+)x", str(products[0].get_operand(0).get_type()))
        if plain and shape and int(shape[1]) * int(shape[2]) >= ACCUMULATORS:
            m, n, k = int(shape[1]), int(shape[2]), int(depth[1])
            pieces = min(PIECES, K_AT_ONCE // k)
            while scratch and pieces > 1 and 4 * ((m + n) * k * pieces + m * n) > scratch:
                pieces //= 2
            if pieces > 1:
                chosen.append((loop, pieces))
    if chosen and "tt.loop_unroll_factor" not in str(mod):  # whoever wrote that knows better
        builder = ir.builder(mod.context)
        for loop, pieces in chosen:
            loop.get_result(0).set_attr("tt.loop_unroll_factor", builder.get_int32_attr(pieces))


def _trips_together(loop, body) -> int:
    """How many trips of a loop that adds up tensors of floats element by element are best one."""
    from .ttir.ops import row
    carried = [str(loop.get_result(n).get_type()) for n in range(loop.get_num_results())]
    plain = all(name in ("tt.load", "scf.yield") or row(name).address or name.startswith("arith.") or row(name).view for name, _ in body)
    if not plain or not any(name == "tt.load" for name, _ in body) or not any(t.startswith("tensor") and _FLOATS.search(t) for t in carried):
        return 1
    return next((n for n in (TRIPS, TRIPS // 2) if n * len(body) <= UNROLLED), 1)


def _is_float(op) -> bool:
    return bool(op.get_num_results() and _FLOATS.search(str(op.get_result(0).get_type())))


def scratch_of(options) -> int:
    from .llvm import targets
    return targets.get(options.arch).scratch


def make_ttir(mod, metadata, debugger: bool = False, scratch: int = 0):
    """Triton's target-independent passes; debugger: those that leave the kernel as it was written; scratch: bytes that a product should fit in (0: any)."""
    pm = ir.pass_manager(mod.context)
    pm.enable_debug()
    passes.common.add_inliner(pm)
    if hasattr(passes.ttir, "add_rewrite_tensor_pointer"):  # block pointers, which Triton 3.9 no longer has
        passes.ttir.add_rewrite_tensor_pointer(pm)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(pm)
    if debugger:
        passes.common.add_symbol_dce(pm)
        _run(pm, mod, "make_ttir.debugger")
        return mod
    passes.common.add_canonicalizer(pm)
    passes.ttir.add_combine(pm)
    passes.ttir.add_reorder_broadcast(pm)
    passes.common.add_cse(pm)
    passes.ttir.add_triton_licm(pm)
    passes.common.add_symbol_dce(pm)
    _run(pm, mod, "make_ttir")
    _unroll(mod, scratch)
    pm = ir.pass_manager(mod.context)
    passes.ttir.add_loop_unroll(pm)
    _run(pm, mod, "make_ttir.unroll")
    return mod


def _run(pm, mod, name):
    """Run the passes. `name` tells the files that TRITON_REPRODUCER_PATH asks for apart: with one name the last would replace the others."""
    try:
        pm.run(mod, name)
    except TypeError:  # triton < 3.7
        pm.run(mod)


def lower(src, metadata, options):
    """TTIR -> its plan and LLVM IR as it is written (`emit.module.Lowered`); what a launch has to know goes into `metadata`."""
    from .emit.module import lower_module
    from .llvm import targets
    from .run import metadata as facts
    from .run.metadata import ALONE, TOGETHER
    from .ttir import reader

    module = reader.parse(str(src))
    target = targets.get(options.arch)
    lowered = lower_module(module, target, fp_fusion=options.enable_fp_fusion, assume=options.assume_disjoint, check=options.check,
                           asserts=options.asserts, debugger=options.debugger, alone=options.alone)
    metadata["name"] = module.kernel.name
    metadata["shared"] = max(lowered.scratch_bytes, 64)  # kernels divide by it to count what fits
    metadata["scratch_bytes"] = lowered.scratch_bytes
    metadata["disjoint"] = lowered.disjoint
    metadata["most"] = lowered.most
    metadata["asserts"] = lowered.asserts
    metadata["file"] = module.kernel.loc.file
    metadata["arguments"] = lowered.arguments
    # with a debugger one steps through one program after the other
    metadata["work"] = ALONE if options.debugger or options.alone else TOGETHER if options.launch_cooperative_grid else lowered.work
    metadata["loops"] = lowered.loops
    metadata["checks"] = lowered.checks
    metadata["target_row"] = repr(target)
    metadata["facts"] = facts.digest(metadata)
    return lowered


def optimise(lowered, options) -> str:
    """LLVM IR as LLVM's passes leave it."""
    from .llvm import compile as llvm, targets
    return llvm.optimise(lowered.text, targets.get(options.arch), options.debugger)


def make_llir(src, metadata, options) -> str:
    """TTIR -> optimised LLVM IR."""
    return optimise(lower(src, metadata, options), options)


def make_asm(llir: str, options) -> str:
    from .llvm import compile as llvm, targets
    return llvm.emit_assembly(llir, targets.get(options.arch), options.debugger)


def make_obj(asm: str, llir: str | None, options) -> bytes:
    """The object, sealed with its digest: assembled where the target is the host's, else from the IR."""
    from . import cache
    from .llvm import compile as llvm, targets
    target = targets.get(options.arch)
    obj = llvm.assemble(asm, target)
    if obj is None and llir is None:
        raise CompileError(f"triton-cpu: assembly text for target {target.name} cannot be assembled on this machine; start from "
                           "ttir or llir")
    return cache.seal(obj if obj is not None else llvm.emit_object(llir, target, options.debugger))
