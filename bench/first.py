"""The first launch of a new process, as whoever starts one sees it: imports done, tensors made, everything that can be on disk on disk.

`python -m triport.bench.first` takes a plain `@triton.jit` kernel and prints where the time goes; `triport bench` asks for an op's here
(column "new process"). Each measurement is a process of its own, started and not forked: a forked one would have the parent's compiled kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

PARTS = ("driver", "argument binder", "triton_key", "the backend's key", "linking", "launcher", "the rest")
#: seconds that a new process may take, imports and all
LIMIT = 120


class Parts:
    """Wall and CPU seconds of the functions that were wrapped, each without the wrapped ones that it called."""

    def __init__(self):
        self.seconds = {name: [0.0, 0.0] for name in PARTS}
        self._open = []

    def of(self, name: str, fn, then=lambda result: None):
        """`fn`, its time counted as part `name`."""
        def timed(*args, **kwargs):
            self._open.append([0.0, 0.0])
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                out = fn(*args, **kwargs)
                then(out)
                return out
            finally:
                spent = (time.perf_counter() - wall, time.process_time() - cpu)
                inner = self._open.pop()
                for k in (0, 1):
                    self.seconds[name][k] += spent[k] - inner[k]
                    if self._open:
                        self._open[-1][k] += spent[k]

        return timed

    def watch(self):
        """Wrap what a first launch goes through. Where a Triton has it under another name, its time counts as the rest's."""
        import triton.compiler.compiler as compiler
        import triton.runtime.cache as cache
        import triton.runtime.jit as jit
        from triton.backends import backends

        def once_made(driver):  # the driver may put a function of its own in triton_key's place
            cache.triton_key = self.of("triton_key", cache.triton_key)
            utils = type(driver.utils)
            utils.load_binary = self.of("linking", utils.load_binary)

        module = sys.modules["triton.runtime.driver"]
        if hasattr(module, "_create_driver"):
            module._create_driver = self.of("driver", module._create_driver, once_made)
        if hasattr(jit, "native_specialize_impl"):
            jit.native_specialize_impl = self.of("argument binder", jit.native_specialize_impl)
        compiler.CompiledKernel._init_handles = self.of("launcher", compiler.CompiledKernel._init_handles)
        if "cpu" in backends:
            backends["cpu"].compiler.hash = self.of("the backend's key", backends["cpu"].compiler.hash)


def _count_compiled() -> list:
    """A list that gets an element whenever Triton compiles a kernel instead of finding it on disk."""
    from triton.backends import backends

    seen = []
    for b in backends.values():
        def add_stages(self, *args, own=b.compiler.add_stages, **kwargs):
            seen.append(1)
            return own(self, *args, **kwargs)

        b.compiler.add_stages = add_stages
    return seen


def _plain_kernel():
    """A launch of a kernel that adds two vectors."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offs < n
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)

    x, y = torch.randn(98432), torch.randn(98432)
    out = torch.empty_like(x)
    return lambda: add_kernel[(97,)](x, y, out, 98432, BLOCK=1024), lambda: torch.equal(out, x + y), lambda: None


def _op_call(op: str, case: str, dtype: str, backend: str, device: str, seed: int):
    """A call of an op through a backend."""
    from ..backends import get
    from ..ops import cases, registry
    from ..ops.records import DTYPES

    record, through = registry.get(op), get(backend)
    chosen = cases.parse(record, case)
    args = chosen.make(DTYPES[dtype], device, seed)
    through.synchronize()
    return lambda: through.bind(record)(*args, **chosen.kwargs), lambda: True, through.synchronize


def _child(request: dict) -> dict:
    """In the new process: {"wall", "cpu": seconds of the first launch, "compiled": was it not from disk?, "second": wall of the next one, "parts"}."""
    import torch
    import triton  # noqa: F401

    if request.get("threads"):
        torch.set_num_threads(request["threads"])
    op = request.get("op")
    launch, right, synchronize = _op_call(**op) if op else _plain_kernel()
    parts = Parts()
    if request.get("parts"):
        parts.watch()
    compiled = _count_compiled()
    cpu, wall = time.process_time(), time.perf_counter()
    launch()
    synchronize()
    spent = (time.perf_counter() - wall, time.process_time() - cpu)
    start = time.perf_counter()
    launch()
    synchronize()
    second = time.perf_counter() - start
    if not right():
        raise SystemExit("the result is wrong")
    parts.seconds["the rest"] = [spent[k] - sum(s[k] for s in parts.seconds.values()) for k in (0, 1)]
    return {"wall": spent[0], "cpu": spent[1], "second": second, "compiled": bool(compiled), "parts": parts.seconds}


def new_process(**request) -> dict:
    """Start a process that makes a first launch; what `_child` says. Raises `Error` with the end of its complaint where it fails."""
    from ..backends.base import Error
    try:
        done = subprocess.run([sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__, "--child", json.dumps(request)],
                              capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise Error(f"a new process did not make its first launch within {LIMIT} s") from None
    if done.returncode:
        raise Error(f"a new process ended with exit code {done.returncode}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def of_op(op, case: str, dtype: str, backend: str, device: str, seed: int, threads: int = 0) -> dict | None:
    """The first launch of an op (an `ops.Op`) in a new process; None for an op that a new process cannot find by name."""
    from ..ops import registry
    name = registry.name_of(op)
    if name is None:
        return None
    return new_process(op={"op": name, "case": case, "dtype": dtype, "backend": backend, "device": device, "seed": seed}, threads=threads)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m triport.bench.first", description="Where the time of a process's first kernel launch goes, "
                                     "with a warm disk cache. Imports of torch and triton are not counted.")
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="processes to start, after one that fills the cache (default: 7)")
    parser.add_argument("--json", action="store_true", help="print every run as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(_child(json.loads(args.child))))
        return 0
    if args.runs < 1:
        parser.error(f"--runs {args.runs}: it takes a number from 1 up")
    new_process()
    runs = [new_process(parts=True) for _ in range(args.runs)]
    if args.json:
        print(json.dumps(runs))
        return 0
    if any(r["compiled"] for r in runs):
        print("the kernel was compiled anew: is Triton's cache directory writable?", file=sys.stderr)

    def line(name, wall, cpu):
        print(f"{name:<42}{1e3 * statistics.median(wall):8.1f} ms{1e3 * statistics.median(cpu):8.1f} ms CPU")

    print(f"medians of {args.runs} new processes")
    line("first launch", [r["wall"] for r in runs], [r["cpu"] for r in runs])
    for name in PARTS:
        line(f"  {name}", *([r["parts"][name][k] for r in runs] for k in (0, 1)))
    print(f"{'second launch':<42}{1e3 * statistics.median(r['second'] for r in runs):8.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
