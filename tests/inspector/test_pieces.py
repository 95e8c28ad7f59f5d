"""Pieces of assembly written by hand whose class is known: what tools are easily fooled by."""

import re
from pathlib import Path

import pytest
from triport.tools.inspector import code, report, verdict

PIECES = re.findall(r"^# (\S+) (\w+) (.*)\n((?:[^#].*\n)+)", (Path(__file__).parent / "pieces.txt").read_text(), re.M)
RETURN = {"x86-64": "retq", "aarch64": "ret", "riscv64": "ret"}


def judged(isa: str, body: str):
    lines = re.sub(r"^([A-Z]):", r".L\1:\n", body, flags=re.M)
    lines = re.sub(r"(?<=[ ,])([KLMN])$", r".L\1", lines, flags=re.M)
    return report.of(code.Code("k", isa, isa, f"\t.text\n\t.globl k\n\t.type k,@function\nk:\n{lines}\n\t{RETURN[isa]}\n", vlen=256))


@pytest.mark.parametrize("isa,right,name,body", PIECES, ids=[f"{isa}-{name}".replace(" ", "-") for isa, _, name, _ in PIECES])
def test_pieces(isa, right, name, body):
    r = judged(isa, body)
    assert str(r.verdict or "none") == right, (r.share, [(x.label, x.trips, x.tail, round(x.heat, 3), x.figures["vector"]) for x in r.regions])
    assert bool(r.failures(verdict.requirements("vector>=0.95"))) == (right != "VECTOR")
    assert bool(r.failures(verdict.requirements("verdict=VECTOR"))) == (right != "VECTOR")


@pytest.mark.parametrize("isa,spills", [("x86-64", 0), ("aarch64", 0)])
def test_an_array_on_the_stack_is_no_spill(isa, spills):
    body = next(b for i, _, name, b in PIECES if i == isa and name == "an array on the stack")
    assert [r.figures["spills"] for r in judged(isa, body).hot] == [spills]
    slots = re.sub(r"\(%rsp,%rax,4\)", "(%rsp)", body) if isa == "x86-64" else body.replace("[sp, x1]", "[sp, #64]")
    assert [r.figures["spills"] for r in judged(isa, slots).hot] == [2]


@pytest.mark.parametrize("name", ["halves that a function converts one by one", "halves that a function converts one by one, by way of a general register"])
def test_the_lowest_place_of_a_register_is_no_vector(name):
    """x86 loads and stores 16 bits of a vector register only by pinsrw and pextrw."""
    (hot,) = judged("x86-64", next(b for _, _, n, b in PIECES if n == name)).hot
    assert hot.figures["vector"] == 0 and not [i.text for i in hot.instructions if i.what.unit == "vector" and i.what.is_memory]
