"""A kernel's LLVM IR without machine code: what is to become part of a library, which gives the function another name first.

Triton's `compile` wants a binary in the end, so the stages are called here, and what they make is kept beside Triton's cache, in one file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from types import SimpleNamespace

import triton  # noqa: F401  (first: it imports our compiler, which imports it)

from .. import memo
from . import compiler


@dataclass(frozen=True)
class Lowered:
    """A kernel's TTIR and optimised LLVM IR, and what the compiler says of it (`compiler.make_llir`)."""

    ttir: str
    llir: str
    metadata: SimpleNamespace


def lowered(src, target, options: dict) -> Lowered:
    """The stages up to LLVM IR of `src`, a triton.compiler.ASTSource, for `target`, a GPUTarget. options: a launch's. Raises what compiling raises."""
    from triton import knobs
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_key

    backend = compiler.CPUBackend(target)
    options = backend.parse_options(dict(options))
    key = get_cache_key(src, backend, options, env_vars=get_cache_invalidating_env_vars())
    name = f"lowered-{hashlib.sha256(key.encode()).hexdigest()[:32]}.kept"
    kept = None if knobs.compilation.always_compile else memo.read(name)
    if kept is None:
        kept = json.dumps(_made(src, target, backend, options)).encode()
        memo.write(name, kept)
    ttir, llir, metadata = json.loads(kept)
    return Lowered(ttir, llir, SimpleNamespace(**metadata))


def _made(src, target, backend, options) -> tuple[str, str, dict]:
    """(TTIR, LLVM IR, metadata), as Triton's `compile` would have them."""
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = src.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    metadata: dict = {}
    ttir = str(compiler.make_ttir(module, metadata, scratch=compiler.scratch_of(options)))
    return ttir, compiler.make_llir(ttir, metadata, options), metadata
