"""What launches a compiled kernel: what Triton's driver interface calls `launcher_cls`."""

from __future__ import annotations

import contextlib

from ... import active, checking, of_triton
from ...context import call
from . import inductor

# The loader is imported when a kernel is first launched: importing triton must stay fast.


def signature_of(src) -> list[tuple[str, object]]:
    """(name, Triton's type) of every argument of what was compiled, "constexpr" where the value is known; a tuple's type is a tuple."""
    names = list(src.signature.keys())
    fixed = {((names.index(c),) if isinstance(c, str) else tuple(c)) for c in getattr(src, "constants", {}) or {}}

    def known(path, ty):
        if path in fixed:
            return "constexpr"
        return tuple(known((*path, n), t) for n, t in enumerate(ty)) if isinstance(ty, (tuple, list)) else ty

    return [(str(n), known((k,), t)) for k, (n, t) in enumerate(src.signature.items())]


def make_launcher(driver, src, metadata):
    """What Triton calls to launch one compiled kernel; built once per kernel. driver: ours."""
    from ..run import launch
    from . import relaunch

    inductor.mend()
    of_triton.change_later(relaunch.install)

    constants = getattr(src, "constants", {}) or {}
    names = list(src.signature.keys())
    signature = signature_of(src)
    safe, others = [], {}

    def version(**changed):
        """This kernel, compiled with other options."""
        import triton

        source = src
        if getattr(src, "fn", src) is not (fn := inductor.with_source(getattr(src, "fn", src))):
            source = triton.compiler.ASTSource(fn, src.signature, src.constants, src.attrs)
        kept = ("enable_fp_fusion", "sanitize_overflow", "assume_disjoint", "check", "check_given", "asserts", "alone", "debugger")
        options = {name: getattr(metadata, name) for name in kept} | {"debug": metadata.asserts or metadata.debug and not metadata.check}
        k = triton.compile(source, target=metadata.target, options={**options, **changed})
        # beside a GPU the active driver may be the other one by now
        with contextlib.nullcontext() if active.drives(driver) else active.driven_by(driver):
            k._init_handles()
        return k

    def overlapping(gx, gy, gz, stream, fn, km, lm, enter, leave, *args):
        """The launch for arguments that overlap, or sizes that are too large: a version compiled without taking anything for granted."""
        call.note_odd()  # what is remembered of this call would launch the other version
        if not safe:
            safe.append(version(assume_disjoint=False))
        k = safe[0]
        k.run(gx, gy, gz, stream, k.function, k.packed_metadata, lm, enter, leave, *args)

    def checked(gx, gy, gz, stream, fn, km, lm, enter, leave, *args):
        """The launch where something else is checked now than when this kernel was compiled."""
        if checking.on:  # else `unchecked` may be launched again
            call.note_odd()
        if checking.on not in others:
            others[checking.on] = version(check=checking.on, check_given=False)
        k = others[checking.on]
        k.run(gx, gy, gz, stream, k.function, k.packed_metadata, lm, enter, leave, *args)

    values = {str(names[c] if isinstance(c, int) else c): v for c, v in ((c[0] if isinstance(c, tuple) else c, v) for c, v in constants.items())}
    code = getattr(getattr(getattr(src, "fn", None), "fn", None), "__code__", None)
    file = None if code is None else code.co_filename
    if metadata.check:
        from ..run import checked as checks
        made = checks.make(metadata.name, signature, metadata, overlapping, values, checked, file)
        made.unchecked = None if metadata.check_given else lambda: others.get("")
        return made
    return launch.make_launch(metadata.name, signature, metadata, overlapping, values, None if metadata.check_given else checked, file)
