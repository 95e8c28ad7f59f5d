"""triport language: which operations of Triton's language, on which element types, the CPU compiler takes."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = (
    "triport language -o docs/language.md",
    "triport language --target rv64gcv",
)


def add(parser):
    parser.add_argument("--target", default="native", metavar="NAME", help="a target row: spacemit-x60, rv64gcv, aarch64, x86-64-v3, ... (default: this machine's)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the page there instead of to the terminal")


def run(args) -> int:
    from ..bench.whole import write
    from . import outputs

    if args.output:
        outputs.file("-o", args.output)
    text = page(args.target)
    if args.output:
        write(args.output, text)
    else:
        print(text, end="")
    return 0


#: what Triton's own passes take apart before the compiler sees it
REWRITTEN = {
    "tt.make_tensor_descriptor": "pointers, shape and strides", "tt.descriptor_load": "tt.load with a mask",
    "tt.descriptor_store": "tt.store with a mask", "tt.descriptor_gather": "tt.load", "tt.descriptor_scatter": "tt.store",
    "tt.descriptor_reduce": "tt.atomic_rmw",
}

#: promises and wishes of a kernel: what becomes of them
HINTS = {
    "tl.assume(condition)": "given to LLVM where it stands (`llvm.assume`)",
    "tl.range(loop_unroll_factor=)": "heeded",
    "tl.range(disable_licm=), tl.condition(disable_licm=)": "heeded by Triton's own pass; what the nests and LLVM take out of a loop, they take "
                                                            "out yet",
    "tl.range(num_stages=, warp_specialize=, flatten=, disallow_acc_multi_buffer=)": "without effect",
    "num_warps, num_stages, num_ctas, maxnreg, waves_per_eu and whatever else an installed GPU backend knows as a launch option":
        "without effect, and not in the cache key",
}


def page(target: str) -> str:
    """The status page in Markdown."""
    from ..backends.cpu.emit import rules
    from . import probes

    tables = {"ELEMENTWISE": rules.ELEMENTWISE, "DIMS": rules.DIMS, "LANES": rules.LANES, "ROOTS": rules.CARRIED_OUT}
    lines = ["# The language on triton-cpu", "",
             "Written by `triport language`: for every operation in the compiler's rule tables a kernel per element type was "
             "compiled. What is not listed is refused with a `CompileError` that names the operation, the Python line and the "
             "target. These are operations of Triton's IR (TTIR): its front end may refuse more of `tl` before they are made (Triton 3.9 takes `tl.histogram` "
             "of 32-bit integers and no `tl.atomic_xchg` in 16 bits, and has `tl.make_block_ptr` no longer). What `tl.reduce` combines by has to commute: elements are not combined in their order, "
             "as on a GPU they are not; `tl.associative_scan` keeps it. Programs run in order on as many threads as there are: one may wait for an earlier one (`tl.atomic_cas` "
             "in a loop), and waits for ever for a later one, as in stream-K, but in a launch with `launch_cooperative_grid=True`, whose programs, up to 1,024, have a thread each. Floats that an integer type cannot hold become the nearest number that it can, NaN 0, where GPUs differ; of 8 bits, signed or not, the low ones of what 32 bits hold, as on GPUs.", "", "| operation | rule | done | refused |", "|---|---|---|---|"]
    count = failed = 0
    for name, done, refused in probes.rows(target):
        where = next(t for t, table in tables.items() if name in table)
        count, failed = count + len(done) + len(refused), failed + len(refused)
        no = "; ".join(f"`{k}`: {_short(v)}" for k, v in refused.items())
        lines.append(f"| `{name}` | {where.lower()} | {', '.join(d or 'yes' for d in done)} | {no} |")
    lines += ["", f"{count} combinations, {count - failed} done, {failed} refused.", "", "Taken apart by Triton's own passes first:",
              "", "| operation | becomes |", "|---|---|"]
    lines += [f"| `{k}` | {v} |" for k, v in REWRITTEN.items()]
    lines += ["", "Promises, wishes and launch options:", "", "| written | becomes |", "|---|---|"]
    lines += [f"| `{k}` | {v} |" if "(" in k else f"| {k} | {v} |" for k, v in HINTS.items()]
    return "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    return reason.split(". ")[0].replace("|", "\\|").replace("\n", " ")
