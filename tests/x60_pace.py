"""The X60's pace by llvm-mca's model of it: cycles of the innermost loops of our kernels. `python tests/x60_pace.py` prints a table.

The model knows latencies, issue and LMUL, and no caches. It ranks one code against another; it is no board's time. llvm-mca 22 or newer (apt: llvm-22).
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass

from triport.ops import Case, registry
from triport.tools.inspector import code, launches, targets

CPU, VLEN = "spacemit-x60", 256
TURNS = 200
_VSET = re.compile(r"\tvseti?vli\t\w+, \w+, e(\d+), (mf?)(\d)")


@functools.cache
def mca() -> str | None:
    """The llvm-mca that has the X60's model, if one is here."""
    for name in ("llvm-mca", *(f"llvm-mca-{n}" for n in range(22, 40))):
        if shutil.which(name):
            done = subprocess.run([name, "-mtriple=riscv64", f"-mcpu={CPU}"], input="addi a0, a0, 1\n", capture_output=True, text=True)
            if done.returncode == 0 and "Total Cycles" in done.stdout:
                return name
    return None


@dataclass
class Loop:
    """An innermost loop without branches: cycles of one turn, elements that it stores (loads, where it stores none), multiply-adds of elements."""

    text: list[str]
    cycles: float
    elements: int
    products: int

    def has(self, instruction: str) -> int:
        return sum(bool(re.match(rf"\t{instruction}\b", x)) for x in self.text)


def loops(assembly: str) -> list[Loop]:
    lines = assembly.splitlines()
    label = {m[1]: n for n, x in enumerate(lines) if (m := re.match(r"(\.L\w+):", x))}
    state, states = None, []
    for x in lines:
        state = _VSET.match(x) or state
        states.append(state)
    found = []
    for n, x in enumerate(lines):
        m = re.match(r"\tb\w+\t.*?(\.L\w+)$", x)
        if m and label.get(m[1], n) < n:
            body = lines[label[m[1]] + 1:n + 1]
            if not any(re.match(r"\.LBB", y) for y in body):
                found.append(_measured(states[label[m[1]]], [y for y in body if re.match(r"\t[^.#]", y)]))
    return [loop for loop in found if loop.elements]


def _measured(state, body: list[str]) -> Loop:
    text, stored, loaded, products = _notes(state), 0, 0, 0
    for x in body:
        text.append(x)
        if m := _VSET.match(x):
            state = m
            text += _notes(m)
        lanes = VLEN // int(state[1]) * (int(state[3]) if state[2] == "m" else 1) // (int(state[3]) if state[2] == "mf" else 1) if state else 0
        stored += lanes * bool(re.match(r"\tvse\d+\.v", x))
        loaded += lanes * bool(re.match(r"\tvle\d+\.v", x))
        products += lanes * bool(re.match(r"\tvfw?n?(macc|madd|msac|msub)", x))
    done = subprocess.run([mca(), "-mtriple=riscv64", f"-mcpu={CPU}", "-mattr=+v,+zvfh", f"--iterations={TURNS}"], input="\n".join(text) + "\n",
                          capture_output=True, text=True)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert total, done.stderr
    return Loop(body, int(total[1]) / TURNS, stored or loaded, products)


def _notes(state) -> list[str]:
    """What llvm-mca has to be told of SEW and LMUL: it does not follow vset."""
    return [f"# LLVM-MCA-RISCV-SEW E{state[1]}", f"# LLVM-MCA-RISCV-LMUL {state[2].upper()}{state[3]}"] if state else []


def _first(found: list[Loop]) -> Loop:
    return found[0]


def _exponentials(n: int):
    """The n-th loop with an exponential. Each pass has two: whole chunks, and the masked rest."""
    return lambda found: [x for x in found if x.has(r"vfcvt\.x\.f\.v")][n]


def _multiplies(found: list[Loop]) -> Loop:
    return max(found, key=lambda x: x.products)


_LONG = Case(((4, 20000),))
#: name -> (op, case, which of its loops); (cycles an element, at most) by dtype, or (flops a cycle, at least) for products
PACE = {
    "square": ("square", None, _first, {"fp32": 0.69, "fp16": 0.5, "bf16": 2.7}),
    "add_relu": ("add_relu", None, _first, {"fp32": 1.5, "fp16": 1.5, "bf16": 4.0}),
    "softmax, exponentials and sum": ("softmax", _LONG, _exponentials(0), {"fp32": 4.4, "fp16": 4.4, "bf16": 4.4}),
    "softmax, written": ("softmax", _LONG, _exponentials(-2), {"fp32": 5.4, "fp16": 5.4, "bf16": 7.6}),
    "matmul, micro-kernel": ("matmul", Case(((512, 512), (512, 512))), _multiplies, {"fp32": 11.4, "fp16": 11.4, "bf16": 11.4}),
    "gelu": ("gelu", None, _first, {"fp32": 6.75, "fp16": 6.75, "bf16": 10.1}),
}


def found(name: str, dtype: str) -> Loop:
    op, case, which, _ = PACE[name]
    op, goal = registry.get(op), targets.get(CPU)
    launch = launches.of_op(op, case or op.cases[0], dtype, "cpu", row=goal.row)[0]
    return which(loops(code.of_launch(launch, goal).text))


if __name__ == "__main__":
    print("| loop | fp32 | fp16 | bf16 |\n|---|--:|--:|--:|")
    for name, (op, *_) in PACE.items():
        cells = [found(name, dtype) for dtype in ("fp32", "fp16", "bf16")]
        unit = "flop/cycle" if "matmul" in op else "cycles/element"
        print(f"| {name} ({unit}) | " + " | ".join(f"{2 * x.products / x.cycles:.1f}" if "matmul" in op else f"{x.cycles / x.elements:.2f}" for x in cells) + " |")
