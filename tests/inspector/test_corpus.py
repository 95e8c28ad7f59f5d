"""Every ISA's classifier on instructions whose classes were checked by hand."""

from pathlib import Path

import pytest
from triport.tools.inspector import isa, text

CORPUS = Path(__file__).parent / "corpus"


def rows(name):
    lines = [x for x in (CORPUS / f"{name}.txt").read_text().split("\n") if x and not x.startswith("#")]
    return [tuple(part.strip(" ") if k else part.strip() for k, part in enumerate(x.split(" | "))) for x in lines]


def function_of(name, instructions):
    """The instructions as the ISA's compiler or disassembler would print them, read back."""
    row = isa.ISAS[name]
    if name == "sass":
        body = "\n".join(f"        /*{16 * k:04x}*/                   {x} ;" for k, x in enumerate(instructions))
        source = f"\t.section\t.text.kernel,\"ax\",@progbits\n{body}\n"
    elif name == "ptx":
        source = ".visible .entry kernel()\n{\n$L__BB0_1:\n" + "\n".join(f"  {x};" for x in instructions) + "\n}\n"
    else:
        source = "\t.text\n\t.globl kernel\n\t.type kernel,@function\nkernel:\n.L1:\n" + "\n".join(f"\t{x}" for x in instructions)
    found = text.functions(source, row)
    assert [f.name for f in found] == ["kernel"]
    isa.classify(found[0], row, isa.Machine(256))
    return found[0]


@pytest.mark.parametrize("name", isa.ISAS)
def test_classes(name):
    corpus = rows(name)
    function = function_of(name, [r[0] for r in corpus])
    assert len(function.instructions) == len(corpus)
    wrong = []
    for (written, want), i in zip(corpus, function.instructions):
        fields = want.split(" ")
        kind, unit, element, bits, loads, stores, *flags = fields
        c = i.what
        flags = {f for f in flags if f}
        got = (c.kind, c.unit, c.element, c.bits, c.loads, c.stores,
               {f for f, on in (("masked", c.masked), ("splat", c.splat), ("spill", c.is_spill)) if on})
        if got != (kind, unit, element, int(bits), int(loads), int(stores), flags):
            wrong.append(f"{written}: {got}, by hand {want}")
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", isa.ISAS)
def test_what_nobody_knows_is_unknown(name):
    """The corpora hold made-up mnemonics; they count as unknown, neither as scalar nor as vector code."""
    function = function_of(name, [r[0] for r in rows(name)])
    unknown = [i for i in function.instructions if i.what.kind == "unknown"]
    assert unknown and all("frob" in i.mnemonic.lower() for i in unknown)
    assert not any(i.what.is_float_work or i.what.is_memory for i in unknown)
