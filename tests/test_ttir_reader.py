"""The TTIR reader: how operations are written (forms), what is kept of them, and what is said of text that cannot be read."""

import pytest

from triport.backends.base import CompileError
from triport.backends.cpu.ttir import forms, ops, reader
from triport.backends.cpu.ttir.types import parse_type, walk
from triport.tools import probes


def read(body: str, args: str = "%p: !tt.ptr<f32>, %n: i32"):
    """The operations of a kernel that starts with `body`, which does not return."""
    return reader.parse(f"module {{\n  tt.func public @some_kernel({args}) {{\n{body}\n    tt.return\n  }}\n}}").kernel.body.block.ops[:-1]


@pytest.mark.parametrize("text, attrs, types", [
    ("%r = arith.addi %n, %n overflow<nsw, nuw> : i32", {"overflow": ["nsw", ",", "nuw"]}, ["i32"]),
    ("%r = arith.cmpi slt, %n, %n {tag} : i32", {"predicate": "slt", "tag": True}, ["i1"]),
    ("%r = tt.load %p cacheModifier = ca evictionPolicy = evict_last : !tt.ptr<f32>",
     {"cacheModifier": "ca", "evictionPolicy": "evict_last"}, ["f32"]),
    ("%r = tt.get_program_id y : i32", {"axis": "y"}, ["i32"]),
    ("tt.call @\"some f\"(%n, %p) : (i32, !tt.ptr<f32>) -> ()", {"callee": "some f"}, []),
    ("%r:2 = tt.call @f(%n) : (i32) -> (i32, f32)", {"callee": "f"}, ["i32", "f32"]),
    ("%r = tt.atomic_rmw fadd, acq_rel, gpu, %p, %x, %t : (!tt.ptr<f32>, f32, i1) -> f32",
     {"kind": "fadd", "sem": "acq_rel", "scope": "gpu"}, ["f32"]),
    ("%r = tt.atomic_poll acquire, gpu, %p, %n timeout %n : !tt.ptr<i32>, i32 -> i1", {"sem": "acquire", "scope": "gpu"}, ["i1"]),
    ("%r = tt.reshape %v allow_reorder {a = array<i32: 1, 2>} : tensor<8xf32> -> tensor<2x4xf32>",
     {"allow_reorder": True, "a": [1, 2]}, ["tensor<2x4xf32>"]),
    ("%r, %q = tt.split %w : tensor<8x2xf32> -> tensor<8xf32>", {}, ["tensor<8xf32>"] * 2),
    ("%r = tt.unsplat %v : tensor<1xf32>", {}, ["f32"]),
    ("%r = math.fpowi %v, %v : tensor<8xf32>, tensor<8xi32>", {}, ["tensor<8xf32>"]),
    ("%r = tt.gather %v[%w] {axis = 0 : i32} : (tensor<8xf32>, tensor<4xi32>) -> tensor<4xf32>", {"axis": 0}, ["tensor<4xf32>"]),
    ("%r = tt.dot_scaled %v scale %w, %v, %w lhs = e2m1 rhs = bf16 {fastMath = false} : tensor<8x8xi8>, tensor<8x1xi8> * tensor<16x8xbf16> -> "
     "tensor<8x8xf32>", {"scales": [1], "lhs": "e2m1", "rhs": "bf16", "fastMath": False}, ["tensor<8x8xf32>"]),
    ("tt.print \" a \\22b: \" {hex = false, isSigned = array<i32>}", {"prefix": ' a "b: ', "hex": False, "isSigned": []}, []),
    ("%r = tt.elementwise_inline_asm \"mov $0, 1;\" {pure = true} -> tensor<8xi32>", {"asm": "mov $0, 1;", "pure": True}, ["tensor<8xi32>"]),
    ("ttg.barrier local|global_read", {"local": True, "global_read": True}, []),
    ("%r = arith.constant {a = 1 : i32} dense<[0xFFC00000, 1.5]> : tensor<2xf32>", {"value": [("bits", 0xFFC00000), 1.5]}, ["tensor<2xf32>"]),
    ("%r = arith.constant true", {"value": True}, ["i1"]),
    ("%r = arith.constant 0x7F : i32", {"value": 127}, ["i32"]),
])
def test_forms(text, attrs, types):
    before = "%x = arith.constant 1.0 : f32\n%t = arith.constant true\n%v = ub.poison : tensor<8xf32>\n%w = ub.poison : tensor<8x2xf32>\n"
    op = read(before + text)[-1]
    assert op.attrs == attrs and [str(r.type) for r in op.results] == types
    assert all(op in v.uses for v in op.operands) and len(op.operands) == text.partition("=")[2 if text[0] == "%" else 0].count("%")


def test_every_row_has_a_form_and_every_probe_is_read():
    """A row that says nothing of how it is written would be found by nobody but a user."""
    for row in ops.TABLE.values():
        assert row.form == forms.GENERIC or (row.form == forms.OWN) == (row.name in forms.SPECIAL)
        assert forms.compiled(row.form)
    for name, kernels in probes.probes().items():
        found = {op.name for text in kernels.values() for f in reader.parse(text).funcs.values() for op in walk(f.body)}
        assert name in found


def test_a_form_that_is_not_closed_is_refused():
    with pytest.raises(ValueError, match="not closed"):
        forms.compiled("value (? : types")


def test_an_unknown_operation_keeps_its_operands_and_what_follows_is_read():
    """Whoever asks what a kernel writes must see the pointers that an operation gets."""
    first, second = read('%q:2 = tt.mystery %p[%n] tag, key = [1, 2] {a = {b}} : !tt.ptr<f32> -> (i32, i32) loc("k.py":3:1)\n'
                         '%z = arith.addi %n, %n : i32')
    assert [v.name for v in first.operands] == ["p", "n"] and len(first.results) == 2 and first.loc.line == 3 and second.name == "arith.addi"


@pytest.mark.parametrize("line, said", [
    ("%r = arith.addi %n, %missing : i32", "arith.addi: value %missing is not defined"),
    ("%r = arith.addi %n, %n i32", "arith.addi: expected ':', found 'i32'"),
    ("%r:2 = arith.addi %n, %n : i32", "arith.addi: 2 results have names and 1 have types"),
    ("%r = tt.load %n : i32", "tt.load: it cannot have the types i32"),
    ("%r = tt.reduce %n : i32", "tt.reduce: it is written in MLIR's generic syntax"),
    ("%r = arith.cmpi %n, %n : i32", "arith.cmpi: expected a word, found '%n'"),
    ("%r = arith.constant dense<\"0x01\"> : tensor<4xi32>", "arith.constant: a constant as hexadecimal text"),
])
def test_errors_name_the_kernel_the_line_and_the_operation(line, said):
    with pytest.raises(CompileError) as e:
        read(f"%c = arith.constant 1 : i32 loc(#loc1)\n{line} loc(\"user.py\":12:3)")
    assert str(e.value).startswith("triton-cpu cannot compile kernel some_kernel at user.py:12 (TTIR text, line 4): " + said)


def test_a_mistake_of_ours_is_called_one(monkeypatch):
    monkeypatch.setitem(forms.SPECIAL, "arith.constant", lambda r, op: {}["no such thing"])
    with pytest.raises(CompileError, match="kernel some_kernel.*this is a bug in triport .KeyError: 'no such thing'"):
        read("%c = arith.constant 1 : i32")


def test_a_chain_of_locations_is_the_users_line():
    text = """#loc1 = loc("/x/triton/language/standard.py":5:1)
#loc2 = loc("user.py":7:2)
#loc3 = loc(callsite(#loc1 at #loc2))
""" + "module { tt.func public @k() {\n%c = arith.constant 1 : i32 loc(#loc3)\ntt.return } }"
    assert str(reader.parse(text).kernel.body.block.ops[0].loc) == "user.py:7"


def test_types_with_parts_behind_a_comma():
    assert str(parse_type("tensor<4x8x!tt.ptr<f32, 1>, #layout>")) == "tensor<4x8x!tt.ptr<f32>>"
