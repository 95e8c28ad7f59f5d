"""Block frequencies: how often each block of a kernel's LLVM IR runs in a launch."""

import dataclasses
import re

import pytest
from triport.backends.cpu.llvm import compile
from triport.ops import Case, registry
from triport.tools.inspector import code, frequencies, integers, launches, targets

LOOPS = """
define noundef i64 @k(ptr readonly %args, ptr %scratch, i64 %begin, i64 %end, i32 %gx, i32 %gy, i32 %gz) #0 !dbg !4 {
entry1:
  %p = getelementptr i8, ptr %args, i64 8
  %n = load i32, ptr %p, align 8, !dbg !7
  %x = load ptr, ptr %args, align 8
  %wide = sext i32 %n to i64
  %short = tail call i64 @llvm.umin.i64(i64 %wide, i64 100), !dbg !7
  br label %rows, !dbg !7

rows:                                             ; preds = %entry1, %after
  %r = phi i64 [ 0, %entry1 ], [ %r.next, %after ]
  br label %cols

cols:                                             ; preds = %rows, %cols
  %c = phi i64 [ %c.next, %cols ], [ 0, %rows ]
  %worst = phi <8 x i32> [ %all, %cols ], [ zeroinitializer, %rows ]
  %q = getelementptr float, ptr %x, i64 %c
  %v = load <8 x i32>, ptr %q, align 4
  %bits = and <8 x i32> %v, splat (i32 2139095040)
  %all = tail call <8 x i32> @llvm.umax.v8i32(<8 x i32> %worst, <8 x i32> %bits)
  %c.next = add nuw nsw i64 %c, 8
  %more = icmp samesign ult i64 %c.next, %short
  br i1 %more, label %cols, label %after

after:                                            ; preds = %cols
  %most = tail call i32 @llvm.vector.reduce.umax.v8i32(<8 x i32> %all)
  %finite = icmp ult i32 %most, 2139095040
  %r.next = add nuw nsw i64 %r, 1
  %last = icmp eq i64 %r.next, 5
  %stop = or i1 %last, CONDITION
  br i1 %stop, label %done, label %rows

done:                                             ; preds = %after
  ret i64 0
}
"""


@pytest.mark.parametrize("n,turns", [(1, 1), (8, 1), (9, 2), (40, 5), (-5, 13), (1000, 13)])
def test_frequencies(monkeypatch, n, turns):
    """An argument says how often the inner loop turns; data are finite; -5 is a large number without a sign. Of many turns few are walked."""
    monkeypatch.setattr(frequencies, "MOST", 40)
    walk = frequencies.Walk(LOOPS.replace("CONDITION", "false"), "k", [integers.TENSORS, n & (1 << 64) - 1])
    assert walk.counts(0, (1, 1, 1)) == {"entry1": 1, "rows": 5, "cols": 5 * turns, "after": 5, "done": 1}
    finite = frequencies.Walk(LOOPS.replace("CONDITION", "%finite"), "k", [integers.TENSORS, n & (1 << 64) - 1])
    assert finite.counts(0, (1, 1, 1))["rows"] == 1


def test_data_that_steer_are_refused():
    text = LOOPS.replace("%last = icmp eq i64 %r.next, 5", "%f = load float, ptr %x, align 4\n  %last = fcmp ogt float %f, 1.000000e+00")
    with pytest.raises(integers.Unknown, match="a branch depends on data"):
        frequencies.Walk(text.replace("CONDITION", "false"), "k", [integers.TENSORS, 64]).counts(0, (1, 1, 1))
    with pytest.raises(integers.Unknown, match="no function other"):
        frequencies.Walk(LOOPS, "other", [])
    part = "define internal fastcc void @k.part0(ptr %x) {\nentry:\n  ret void\n}\n"
    called = LOOPS.replace("  br label %rows, !dbg !7", "  tail call fastcc void @k.part0(ptr %x), !dbg !7\n  br label %rows")
    with pytest.raises(integers.Unknown, match=r"calls k\.part0"):
        frequencies.Walk(called + part, "k", [integers.TENSORS, 64])


def test_turns_that_do_not_grow_evenly_are_tried_few_times(monkeypatch):
    """Of a thousand turns by 8 and by 9."""
    text = LOOPS.replace("  %c.next = add nuw nsw i64 %c, 8", "  %odd.next = xor i64 %odd, 1\n  %by = add i64 %odd, 8\n  %c.next = add i64 %c, %by")
    text = text.replace("  %worst = phi", "  %odd = phi i64 [ %odd.next, %cols ], [ 0, %rows ]\n  %worst = phi").replace("i64 100)", "i64 8500)")
    tried = []
    plain = frequencies.Walk._evenly
    monkeypatch.setattr(frequencies.Walk, "_evenly", staticmethod(lambda *given: tried.append(1) or plain(*given)))
    counts = frequencies.Walk(text.replace("CONDITION", "true"), "k", [integers.TENSORS, 8500]).counts(0, (1, 1, 1))
    assert counts["cols"] == 1000 * counts["rows"] and len(tried) < 20


@pytest.mark.parametrize("target", ["spacemit-x60", "x86-64-v4"])
def test_turns_at_once_are_as_many_as_one_by_one(monkeypatch, target):
    """Of a product of odd sizes, whose every block and edge counts."""
    goal = targets.get(target)
    launch = launches.of_op(registry.get("matmul"), Case(((77, 150), (150, 99))), "fp32", "cpu", row=dataclasses.replace(goal.row, cores=2))[0]
    compiled = code.of_launch(launch, goal)
    words = frequencies.words(launch, compiled)
    walk = frequencies.Walk(compiled.stages["llir"], compiled.name, words)
    programs = range(launch.grid[0])
    at_once = [walk.counts(p, (len(programs), 1, 1)) for p in programs]
    calls = []
    monkeypatch.setattr(frequencies.Walk, "_evenly", staticmethod(lambda *_: calls.append(1) or (0, {})))
    walk = frequencies.Walk(compiled.stages["llir"], compiled.name, words)  # remembers nothing
    assert at_once == [walk.counts(p, (len(programs), 1, 1)) for p in programs] and calls


def test_assembly_says_which_block_a_label_begins():
    """With remarks for who asks for them, and none for the next."""
    row = targets.get("spacemit-x60").row
    launch = launches.of_op(registry.get("square"), Case(((77, 150),)), "fp32", "cpu", row=row)[0]
    compiled = code.of_launch(launch, targets.get("spacemit-x60"))
    llir, labels = compiled.stages["llir"], re.findall(r"^(\.LBB\w+):", compiled.text, re.M)
    named = re.findall(r"^(\.LBB\w+):\s+# %(\S+)", compile.emit_assembly(llir, row, named=True), re.M)
    blocks, _ = integers.read(llir, compiled.name, frequencies.words(launch, compiled))
    assert labels and [label for label, _ in named] == labels and {block for _, block in named} <= blocks.keys()
    assert "# %" not in compile.emit_assembly(llir, row)
