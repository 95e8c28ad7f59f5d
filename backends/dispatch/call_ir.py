"""The native code of call.py: functions for CPython, in LLVM IR as pool.py's are.

They use Python's documented C interface only (https://docs.python.org/3/c-api/call.html), so they know nothing of how a
tensor lies in memory. They read tables of 8-byte words; the layouts stand in call.py, beside what writes them.
"""

from __future__ import annotations

import re

from ..cpu.llvm.targets import Target

_IR = """
target triple = "{triple}"

declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyObject_Type(ptr)
declare double @PyFloat_AsDouble(ptr)
declare i64 @PyList_Size(ptr)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_VectorcallMethod(ptr, ptr, i64, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)

; The address of tensor %t's data into %to. False with Python's exception set where it has none.
define internal i1 @address(ptr %plan, ptr %t, ptr %to) {{
  %slot = alloca ptr
  store ptr %t, ptr %slot
  %name = object %plan 5
  %r = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %slot, i64 1, ptr null)
  %failed = icmp eq ptr %r, null
  br i1 %failed, label %no, label %yes
no:
  ret i1 false
yes:
  %v = call i64 @PyLong_AsUnsignedLongLong(ptr %r)
  call void @Py_DecRef(ptr %r)
  store i64 %v, ptr %to
  ret i1 true
}}

; What a plan does, for its tensors. Null with an exception set, or the result, or Python's None for another alignment.
define internal ptr @run(ptr %plan, ptr %args) {{
entry:
  %pointers = alloca [{pointers} x i64]
  %made = alloca [{pointers} x ptr]
  %packed = alloca [{words} x i64]
  %call = alloca [2 x ptr]
  %tensors = word %plan 0
  %allocations = word %plan 1
  %launches = word %plan 2
  %none = object %plan 6
  br label %tensor

tensor:
  %t = phi i64 [ 0, %entry ], [ %t1, %aligned ]
  %more.t = icmp slt i64 %t, %tensors
  br i1 %more.t, label %read, label %allocate.all
read:
  %x = object %args %t
  %p.t = getelementptr i64, ptr %pointers, i64 %t
  %has = call i1 @address(ptr %plan, ptr %x, ptr %p.t)
  br i1 %has, label %check, label %fail
check:
  %p = load i64, ptr %p.t
  %low = and i64 %p, 15
  %t.at = add i64 %t, 7
  %recorded = word %plan %t.at
  %same = icmp eq i64 %low, %recorded
  br i1 %same, label %aligned, label %other
aligned:
  %t1 = add i64 %t, 1
  br label %tensor
other:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
fail:
  ret ptr null

allocate.all:
  %first = getelementptr i64, ptr %plan, i64 7
  %table.a = getelementptr i64, ptr %first, i64 %tensors
  br label %allocation
allocation:
  %a = phi i64 [ 0, %allocate.all ], [ %a1, %next.a ]
  %row = phi ptr [ %table.a, %allocate.all ], [ %row1, %next.a ]
  %more.a = icmp slt i64 %a, %allocations
  br i1 %more.a, label %allocate, label %launch
allocate:
  %empty = object %plan 3
  %like = getelementptr i64, ptr %row, i64 1
  %new = call ptr @PyObject_Vectorcall(ptr %empty, ptr %like, i64 3, ptr null)
  %no.new = icmp eq ptr %new, null
  br i1 %no.new, label %undo, label %keep
keep:
  %a1 = add i64 %a, 1
  %m.a = getelementptr ptr, ptr %made, i64 %a
  store ptr %new, ptr %m.a
  %at.a = add i64 %tensors, %a
  %p.a = getelementptr i64, ptr %pointers, i64 %at.a
  %has.a = call i1 @address(ptr %plan, ptr %new, ptr %p.a)
  br i1 %has.a, label %large, label %undo
large:
  %advise = object %row 0
  %small = icmp eq ptr %advise, null
  br i1 %small, label %next.a, label %advised
advised:
  %r.a = call ptr @PyObject_Vectorcall(ptr %advise, ptr %m.a, i64 1, ptr null)
  %no.r = icmp eq ptr %r.a, null
  br i1 %no.r, label %undo, label %drop.r
drop.r:
  call void @Py_DecRef(ptr %r.a)
  br label %next.a
next.a:
  %row1 = getelementptr i64, ptr %row, i64 4
  br label %allocation

launch:
  %l = phi i64 [ 0, %allocation ], [ %l1, %over ]
  %at = phi ptr [ %row, %allocation ], [ %after, %over ]
  %more.l = icmp slt i64 %l, %launches
  br i1 %more.l, label %pack.all, label %done
pack.all:
  %shared = word %at 0
  %entry.p = object %at 1
  %count = word %at 2
  %slots = getelementptr i64, ptr %at, i64 3
  br label %slot
slot:
  %s = phi i64 [ 0, %pack.all ], [ %s1, %put ]
  %src = phi ptr [ %slots, %pack.all ], [ %src1, %put ]
  %more.s = icmp slt i64 %s, %count
  br i1 %more.s, label %pack, label %go
pack:
  %kind = word %src 0
  %value = word %src 1
  %plain = icmp eq i64 %kind, 0
  br i1 %plain, label %put, label %pointer
pointer:
  %from = getelementptr i64, ptr %pointers, i64 %value
  %address = load i64, ptr %from
  br label %put
put:
  %v = phi i64 [ %value, %pack ], [ %address, %pointer ]
  %to = getelementptr i64, ptr %packed, i64 %s
  store i64 %v, ptr %to
  %s1 = add i64 %s, 1
  %src1 = getelementptr i64, ptr %src, i64 2
  br label %slot
go:
  %together = icmp ne i64 %shared, 0
  br i1 %together, label %released, label %held
held: ; over sooner than another thread would have woken
  %s.held = call i64 %entry.p(ptr %packed)
  br label %over.p
released:
  %state = call ptr @PyEval_SaveThread()
  %s.rel = call i64 %entry.p(ptr %packed)
  call void @PyEval_RestoreThread(ptr %state)
  br label %over.p
over.p:
  %status = phi i64 [ %s.held, %held ], [ %s.rel, %released ]
  %twice = mul i64 %count, 2
  %after = getelementptr i64, ptr %slots, i64 %twice
  %bad = icmp ne i64 %status, 0
  br i1 %bad, label %report, label %over
over:
  %l1 = add i64 %l, 1
  br label %launch
report:
  %which = call ptr @PyLong_FromLongLong(i64 %l)
  %code = call ptr @PyLong_FromLongLong(i64 %status)
  %c1 = getelementptr ptr, ptr %call, i64 1
  store ptr %which, ptr %call
  store ptr %code, ptr %c1
  %raise = object %plan 4
  %never = call ptr @PyObject_Vectorcall(ptr %raise, ptr %call, i64 2, ptr null)
  call void @Py_DecRef(ptr %which)
  call void @Py_DecRef(ptr %code)
  br label %undo

undo: ; an exception is set: everything made goes
  %left = phi i64 [ %a, %allocate ], [ %a1, %keep ], [ %a1, %advised ], [ %allocations, %report ]
  br label %drop
drop:
  %d = phi i64 [ %left, %undo ], [ %d1, %dropping ]
  %any = icmp sgt i64 %d, 0
  br i1 %any, label %dropping, label %gone
dropping:
  %d1 = sub i64 %d, 1
  %m.d = getelementptr ptr, ptr %made, i64 %d1
  %o.d = load ptr, ptr %m.d
  call void @Py_DecRef(ptr %o.d)
  br label %drop
gone:
  ret ptr null

done: ; the temporaries go, the output is the first
  %e = phi i64 [ 1, %launch ], [ %e1, %temporary ]
  %more.e = icmp slt i64 %e, %allocations
  br i1 %more.e, label %temporary, label %result
temporary:
  %m.e = getelementptr ptr, ptr %made, i64 %e
  %o.e = load ptr, ptr %m.e
  call void @Py_DecRef(ptr %o.e)
  %e1 = add i64 %e, 1
  br label %done
result:
  %out = load ptr, ptr %made
  ret ptr %out
}}

; Plan.__call__: (tensors...), each of the dtype, shape and strides of those that the plan was made from.
define ptr @tp_plan(ptr %self, ptr %args, i64 %n) {{
  %address = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %plan = call ptr @PyLong_AsVoidPtr(ptr %address)
  %tensors = word %plan 0
  %right = icmp eq i64 %n, %tensors
  br i1 %right, label %yes, label %no
no:
  %none = object %plan 6
  call void @Py_IncRef(ptr %none)
  ret ptr %none
yes:
  %out = call ptr @run(ptr %plan, ptr %args)
  ret ptr %out
}}

; Are %n objects those of another table, or floats of the same bits?
define internal i1 @same(ptr %x, ptr %y, i64 %n, ptr %float) {{
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %look ], [ %k1, %bits ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %yes
look:
  %v = object %x %k
  %w = object %y %k
  %k1 = add i64 %k, 1
  %identical = icmp eq ptr %v, %w
  br i1 %identical, label %next, label %types
types:
  %tv = call ptr @PyObject_Type(ptr %v)
  call void @Py_DecRef(ptr %tv)
  %tw = call ptr @PyObject_Type(ptr %w)
  call void @Py_DecRef(ptr %tw)
  %fv = icmp eq ptr %tv, %float
  %fw = icmp eq ptr %tw, %float
  %floats = and i1 %fv, %fw
  br i1 %floats, label %bits, label %no
bits:
  %dv = call double @PyFloat_AsDouble(ptr %v)
  %dw = call double @PyFloat_AsDouble(ptr %w)
  %bv = bitcast double %dv to i64
  %bw = bitcast double %dw to i64
  %equal = icmp eq i64 %bv, %bw
  br i1 %equal, label %next, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}

; Site.__call__: an op's arguments.
define ptr @tp_site(ptr %self, ptr %args, i64 %n) {{
entry:
  %address = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %site = call ptr @PyLong_AsVoidPtr(ptr %address)
  %known = word %site 0
  %none = object %site 1
  %true = object %site 2
  %float = object %site 3
  %conditions = word %site 4
  %calls = getelementptr i64, ptr %site, i64 5
  %facts = getelementptr i64, ptr %calls, i64 {known}
  %any = icmp ne i64 %known, 0
  br i1 %any, label %fact, label %unknown

fact: ; what must hold for any call: nobody watches
  %c = phi i64 [ 0, %entry ], [ %c1, %holds ]
  %f = phi ptr [ %facts, %entry ], [ %f1, %holds ]
  %more.c = icmp slt i64 %c, %conditions
  br i1 %more.c, label %look, label %calls.all
look:
  %of = object %f 0
  %attribute = object %f 1
  %expected = object %f 2
  %list = icmp eq ptr %expected, null
  br i1 %list, label %measure, label %value
measure:
  %length = call i64 @PyList_Size(ptr %of)
  %empty = icmp eq i64 %length, 0
  br i1 %empty, label %holds, label %unknown
value:
  %function = icmp eq ptr %attribute, null
  br i1 %function, label %ask, label %get
ask:
  %v.ask = call ptr @PyObject_CallNoArgs(ptr %of)
  br label %answer
get:
  %v.get = call ptr @PyObject_GetAttr(ptr %of, ptr %attribute)
  br label %answer
answer:
  %v = phi ptr [ %v.ask, %ask ], [ %v.get, %get ]
  %no.v = icmp eq ptr %v, null
  br i1 %no.v, label %fail, label %compare
compare:
  call void @Py_DecRef(ptr %v) ; its address is all that is looked at
  %so = icmp eq ptr %v, %expected
  br i1 %so, label %holds, label %unknown
holds:
  %c1 = add i64 %c, 1
  %f1 = getelementptr i64, ptr %f, i64 3
  br label %fact

calls.all:
  br label %call
call:
  %k = phi i64 [ 0, %calls.all ], [ %k1, %no ]
  %more.k = icmp slt i64 %k, %known
  br i1 %more.k, label %try, label %unknown
try:
  %e = object %calls %k
  %k1 = add i64 %k, 1
  %tensors = word %e 1
  %params = sub i64 %n, %tensors
  %given = getelementptr ptr, ptr %args, i64 %tensors
  %values = getelementptr i64, ptr %e, i64 6
  %same.v = call i1 @same(ptr %given, ptr %values, i64 %params, ptr %float)
  br i1 %same.v, label %facts.e, label %no
facts.e: ; of the tensors: TensorGuards knows
  %check = object %e 2
  %r = call ptr @PyObject_Vectorcall(ptr %check, ptr %args, i64 %tensors, ptr null)
  %no.r = icmp eq ptr %r, null
  br i1 %no.r, label %fail, label %checked
checked:
  call void @Py_DecRef(ptr %r)
  %yes = icmp eq ptr %r, %true
  br i1 %yes, label %threads, label %no
threads:
  %ask.t = object %e 3
  %now = call ptr @PyObject_CallNoArgs(ptr %ask.t)
  %no.now = icmp eq ptr %now, null
  br i1 %no.now, label %fail, label %counted
counted:
  call void @Py_DecRef(ptr %now)
  %then = object %e 4
  %same.t = icmp eq ptr %now, %then
  br i1 %same.t, label %found, label %no
no:
  br label %call

found:
  %owner = object %e 0
  %plan = object %e 5
  call void @Py_IncRef(ptr %owner) ; while the GIL is given up another thread may put another call in this one's place
  %out = call ptr @run(ptr %plan, ptr %args)
  call void @Py_DecRef(ptr %owner)
  ret ptr %out
unknown:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
fail:
  ret ptr null
}}
"""


def call_ir(target: Target, pointers: int, words: int, known: int) -> str:
    """The IR for a row, with room for so many pointers and words of a plan and known calls of a site."""
    ir = _IR.format(triple=target.triple, pointers=pointers, words=words, known=known)
    # "%x = word %table 3" and "%x = object %table 3" read a table
    return re.sub(r"%(\S+) = (word|object) (\S+) (\S+)", lambda m: f"%{m[1]}.at = getelementptr i64, ptr {m[3]}, i64 {m[4]}\n  "
                  f"%{m[1]} = load {'i64' if m[2] == 'word' else 'ptr'}, ptr %{m[1]}.at", ir)
