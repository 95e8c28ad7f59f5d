"""The table of operations: rows and rules are the same operations, and analyses treat an operation as its row says."""

import dataclasses

import pytest

from triport.backends.cpu.emit import rules
from triport.backends.cpu.plan import facts
from triport.backends.cpu.ttir import ops, reader
from triport.backends.cpu.ttir.types import walk

ROW_AND_RULE = """module {
  tt.func public @f(%p: !tt.ptr<f32>) {
    %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %s = tt.splat %p : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %a = tt.addptr %s, %r : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %v = tt.load %a : tensor<64x!tt.ptr<f32>>
    %e = math.exp %v : tensor<64xf32>
    tt.store %a, %e : tensor<64x!tt.ptr<f32>>
    tt.return
  }
}"""


def test_rows_and_rules_are_the_same_operations():
    assert rules.unmatched() == []


def test_a_row_without_a_rule_and_a_rule_without_a_row_are_found(monkeypatch):
    monkeypatch.setitem(ops.TABLE, "math.nothing", ops.Row("math.nothing", ops.Kind.ELEMENTWISE))
    monkeypatch.setitem(rules.ROOTS, "tt.nothing", lambda k, op: None)
    monkeypatch.setitem(ops.TABLE, "tt.splat", dataclasses.replace(ops.TABLE["tt.splat"], kind=ops.Kind.ROOT))
    assert [line.split()[0] for line in rules.unmatched()] == ["tt.splat", "math.nothing", "tt.nothing"]


def test_a_table_refuses_two_rows_of_one_name():
    with pytest.raises(ValueError, match="two rows for tt.load"):
        ops.table(ops.TABLE["tt.load"], ops.TABLE["tt.load"])


def _values(text):
    return {r.name: r for op in walk(reader.parse(text).kernel.body) for r in op.results}


def test_analyses_ask_the_row(monkeypatch):
    v = _values(ROW_AND_RULE)
    costs = facts.Facts(lambda op: ops.row(op).lazy)
    assert costs.cost(v["e"]) == ops.TABLE["math.exp"].cost + ops.TABLE["tt.load"].cost
    assert facts.root_pointer(v["a"]) is v["s"].op.operands[0]
    monkeypatch.setitem(ops.TABLE, "tt.addptr", dataclasses.replace(ops.TABLE["tt.addptr"], pointer=False))
    assert facts.root_pointer(v["a"]) is None


def test_an_operation_of_memory_is_no_expression():
    """Two loads of one address may find different things."""
    text = ROW_AND_RULE.replace("%e = math.exp %v", "%w = tt.load %a : tensor<64x!tt.ptr<f32>>\n%e = arith.addf %v, %w")
    v = _values(text)
    assert facts.same_expression(v["a"], v["a"]) and not facts.same_expression(v["v"], v["w"])
