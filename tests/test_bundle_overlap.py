"""Tensors that share memory, given to a bundle's functions: a right result or TRIPORT_OVERLAP, never a wrong number."""

import ctypes
import itertools
import platform

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies as st
from spine_boards import CASES
from triport import backends, ops
from triport.backends.base import ArgumentError, Unsupported
from triport.backends.cpu.llvm import targets
from triport.backends.spine import backend as spine, bundle, library, runner
from triport.backends.spine.arguments import inputs_of
from triport.backends.spine.effects import Effects
from triport.bench import check
from triport.ops import Case, Op, registry
from triport.ops.records import DTYPES

HERE = targets.get({"x86_64": "x86-64-v2", "aarch64": "aarch64", "riscv64": "rv64gc"}[platform.machine()])
OK, OVERLAP = 0, library.OVERLAP
IN_PLACE = Op("add_mul_act_", ops.add_mul_act_, lambda x, y, bias: x.add_(y), (Case(((40, 30), (40, 30), (30,))),),
              reference=lambda x, y, bias: torch.relu(x + 0.5 * y + bias))


class Made:
    """A bundle's library in this process, and what each of its functions was made of."""

    def __init__(self, wanted, folder):
        self.bundle = bundle.make(wanted, HERE, cases=False)
        self.bundle.write(folder)
        self.library = ctypes.CDLL(str(folder / self.bundle.manifest["library"]))
        self.library.triport_last_error.restype = ctypes.c_char_p
        keys = dict.fromkeys(bundle.key_of(*w) for w in wanted)  # cases of one key have one function
        self.functions = dict(zip(keys, self.bundle.manifest["functions"]))

    def call(self, description: dict, addresses: list[int], sizes: list[int], threads: int = 2) -> int:
        f = getattr(self.library, description["name"])
        return f(*map(ctypes.c_void_p, addresses), *map(ctypes.c_int64, sizes), ctypes.c_int(threads))


def shifts(written: int, other: int, width: int) -> list[int]:
    """Bytes from the start of a written tensor of so many bytes to that of another: the same place, an element, half, the last element, one
    byte in common, and next to each other, to both sides."""
    half_w, half_o = written // width // 2 * width, other // width // 2 * width
    return sorted({0, width, half_w, written - width, written - 1, written, -width, -half_o, -(other - width), -(other - 1), -other})


def bytes_of(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().flatten().view(torch.uint8)


def check_overlaps(made: Made, op: Op, case: Case, dtype: str, seed: int) -> dict[tuple[str, str], int]:
    """Every written tensor of a function with every other, in every position. Returns the statuses at equal addresses, by (written, other)."""
    f = made.functions[bundle.key_of(op, case, dtype)]
    tensors = case.make(DTYPES[dtype], seed=seed)
    given_, sizes = inputs_of(f, tensors)
    arguments = f["arguments"]
    alike = {}
    for w, x in itertools.permutations(range(len(arguments)), 2):
        if arguments[w]["role"] == "in" or not given_[w][1].numel():
            continue
        nw, nx, width = given_[w][1].nbytes, given_[x][1].nbytes, max(given_[w][1].element_size(), given_[x][1].element_size())
        for shift in shifts(nw, nx, width):
            arena = torch.full((2 * nx + nw + 128,), 7, dtype=torch.uint8)
            at_w = nx + -(nx + arena.data_ptr()) % 64
            places = {k: (torch.zeros(max(1, t.nbytes), dtype=torch.uint8), 0) for k, (_, t) in enumerate(given_)}
            places[w], places[x] = (arena, at_w), (arena, at_w + shift)
            order = [k for k in places if arguments[k]["role"] == "in"] + [k for k in places if arguments[k]["role"] == "inout"]
            for k in order:  # an input is what is in memory once all are there
                memory, at = places[k]
                memory[at:at + given_[k][1].nbytes] = bytes_of(given_[k][1])

            def there(k):
                memory, at = places[k]
                t = memory[at:at + given_[k][1].nbytes].clone().view(given_[k][1].dtype).view(given_[k][1].shape)
                return t.T if arguments[k]["transposed"] else t

            inputs = [there(k) for k, a in enumerate(arguments) if a["role"] != "out"]
            before = arena.clone()
            status = made.call(f, [memory.data_ptr() + at for memory, at in places.values()], sizes)
            where = f"{f['name']}: {arguments[x]['name']} {shift} bytes from {arguments[w]['name']}"
            apart = shift >= nw or shift <= -nx
            if apart:
                assert status == OK, where
            elif shift:
                assert status == OVERLAP, where
            else:
                alike[arguments[w]["name"], arguments[x]["name"]] = status
            if status == OVERLAP:
                assert torch.equal(arena, before), where
                said = made.library.triport_last_error().decode()
                assert said.startswith(f["name"]) and {arguments[w]["name"], arguments[x]["name"]} == set(said.split(": ")[1].removesuffix(" overlap").split(" and ")), said
            else:
                assert status == OK, where
                result = there([a["name"] for a in arguments].index(f["results"][0]))
                right, error = check.verdict(op, result, inputs, case.kwargs)
                assert right, (where, error)
    return alike


# --- the project's ops ---------------------------------------------------------------------------------------------------------

OPS = [(registry.get(name), case, dtype) for name, cases in CASES.items() for case in cases for dtype in ("fp32", *(("fp16",) if name in ("square", "matmul") else ()))
       if min(n for s in case.shapes for n in s) > 1] + [(IN_PLACE, IN_PLACE.cases[0], "fp32")]
#: op -> pairs (written, other) that may be one address
SAME_PLACE = {"square": {("out", "x")}, "lora_linear": {("out", "a")}, "gelu": {("out", "x")}, "add_relu": {("out", "x")}, "add_mul_act": {("out", "x"), ("out", "y")}, "softmax": {("out", "x")},
              "add_mul_act_": {("x", "y")}}


@pytest.fixture(scope="module")
def builtin(tmp_path_factory):
    return Made(OPS, tmp_path_factory.mktemp("ops"))


@pytest.mark.parametrize("op,case,dtype", OPS, ids=lambda v: getattr(v, "name", v))
def test_ops(builtin, op, case, dtype, seed):
    alike = check_overlaps(builtin, op, case, dtype, seed)
    assert {pair for pair, status in alike.items() if status == OK} == SAME_PLACE.get(op.name, set())


def test_empty_tensors_overlap_nothing(builtin):
    f = next(f for f in builtin.bundle.manifest["functions"] if f["name"] == "triport_matmul_fp32")
    out = torch.full((12,), 7.0)
    assert builtin.call(f, [out.data_ptr() + 4, out.data_ptr() + 8, out.data_ptr()], [3, 0, 4]) == OK  # no K: a and b are empty
    assert torch.equal(out, torch.zeros(12))


# --- users' ops ----------------------------------------------------------------------------------------------------------------


@triton.jit
def pieces_kernel(x_ptr, out_ptr, n, STEP: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = 2 x[i + SHIFT] in blocks that begin STEP apart."""
    offs = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs + SHIFT, mask=offs + SHIFT < n, other=0.0)
    tl.store(out_ptr + offs, x * 2.0, mask=offs < n)


@triton.jit
def reversed_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + n - 1 - offs, mask=offs < n), mask=offs < n)


@triton.jit
def neighbours_kernel(x_ptr, out_ptr, m, n, BLOCK: tl.constexpr):
    """Each row plus the row before it."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    here = tl.load(x_ptr + row * n + cols, mask=cols < n)
    before = tl.load(x_ptr + (row - 1) * n + cols, mask=(cols < n) & (row > 0), other=0.0)
    tl.store(out_ptr + row * n + cols, here + before, mask=cols < n)


@triton.jit
def rows_kernel(x_ptr, out_ptr, m, n, BEYOND: tl.constexpr, BLOCK: tl.constexpr):
    """2 x by rows; BEYOND: each program goes on into the next row, which another has, too."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    offs = row * n + cols
    mask = offs < m * n if BEYOND else cols < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) * 2.0, mask=mask)


@triton.jit
def loop_kernel(x_ptr, out_ptr, n, AHEAD: tl.constexpr, BLOCK: tl.constexpr):
    """One program, block after block; AHEAD: each adds the element a block further on. Backwards that would be right in place."""
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n)
        behind = tl.load(x_ptr + offs - AHEAD, mask=(offs >= AHEAD) & (offs < n), other=0.0) if AHEAD else x
        tl.store(out_ptr + offs, x + behind, mask=offs < n)


@triton.jit
def branch_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    if tl.program_id(0) % 2 == 0:
        tl.store(out_ptr + offs, x * 2.0, mask=offs < n)
    else:
        tl.store(out_ptr + offs, x + x, mask=offs < n)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + tl.load(y_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def both_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """x and y change places."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + offs, mask=offs < n), tl.load(y_ptr + offs, mask=offs < n)
    tl.store(x_ptr + offs, y, mask=offs < n)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + offs % 8, tl.load(x_ptr + offs, mask=offs < n, other=0.0), mask=offs < n)


@triton.jit
def zero_kernel(out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, offs * 0.0, mask=offs < n)


def to_out(kernel, like=lambda x: torch.empty_like(x), grid=lambda x: (triton.cdiv(x.numel(), 64),), **consts):
    def call(x):
        out = like(x)
        sizes = (x.shape[0], x.shape[1]) if x.dim() == 2 else (x.numel(),)
        kernel[grid(x)](x, out, *sizes, **({"BLOCK": 64} | consts))
        return out
    return call


def twice_over(x):
    """2 x, from a second launch that reads x again."""
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 64),)](x, x, out, x.numel(), BLOCK=64)
    add_kernel[(triton.cdiv(x.numel(), 64),)](out, x, out, x.numel(), BLOCK=64)
    return out


def by_way_of(x):
    """4 x, from a temporary: x is read before the result is written."""
    t, out = torch.empty_like(x), torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 64),)](x, x, t, x.numel(), BLOCK=64)
    reversed_kernel[(triton.cdiv(x.numel(), 64),)](t, out, x.numel(), BLOCK=64)
    return out


def halves(x):
    """The halves of x change places: another part of the tensor at the same offset in the kernel."""
    out = torch.empty_like(x)
    half = x.shape[0] // 2
    pieces_kernel[(triton.cdiv(half, 64),)](x[half:], out, half, STEP=64, SHIFT=0, BLOCK=64)
    pieces_kernel[(triton.cdiv(half, 64),)](x, out[half:], half, STEP=64, SHIFT=0, BLOCK=64)
    return out


def swapped(x, y):
    both_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return x


def sums(x):
    out = torch.empty(8, dtype=x.dtype)
    zero_kernel[(1,)](out, 8, BLOCK=8)
    sum_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out


def shifted(x, by):
    return torch.cat([x[by:], torch.zeros(by, dtype=x.dtype)])


ROW, LINE = Case(((37, 29),)), Case(((500,),))
by_rows = {"grid": lambda x: (x.shape[0],)}
#: (name, call, reference, case, dtype, whether the result may be at the input's address; None: as the compiler has it)
USERS = [
    ("doubled", to_out(pieces_kernel, STEP=64, SHIFT=0), lambda x: 2 * x, LINE, "fp32", True),
    ("ahead", to_out(pieces_kernel, STEP=64, SHIFT=1), lambda x: 2 * shifted(x, 1), LINE, "fp32", False),
    ("a_block_ahead", to_out(pieces_kernel, STEP=64, SHIFT=64), lambda x: 2 * shifted(x, 64), LINE, "fp32", False),
    ("interlocked", to_out(pieces_kernel, STEP=32, SHIFT=0, grid=lambda x: (triton.cdiv(x.numel(), 32),)), lambda x: 2 * x, LINE, "fp32", False),
    ("repeated", to_out(pieces_kernel, STEP=0, SHIFT=0, BLOCK=512, grid=lambda x: (5,)), lambda x: 2 * x, LINE, "fp32", False),
    ("repeated_on_y", to_out(pieces_kernel, STEP=64, SHIFT=0, grid=lambda x: (triton.cdiv(x.numel(), 64), 3)), lambda x: 2 * x, LINE, "fp32", False),
    ("one_program", to_out(reversed_kernel, BLOCK=512, grid=lambda x: (1,)), lambda x: x.flip(0), LINE, "fp32", False),
    ("reversed", to_out(reversed_kernel), lambda x: x.flip(0), LINE, "fp32", False),
    ("neighbours", to_out(neighbours_kernel, **by_rows), lambda x: x + torch.cat([torch.zeros_like(x[:1]), x[:-1]]), ROW, "fp32", False),
    ("rows", to_out(rows_kernel, BEYOND=False, **by_rows), lambda x: 2 * x, ROW, "fp32", True),
    ("beyond", to_out(rows_kernel, BEYOND=True, **by_rows), lambda x: 2 * x, ROW, "fp32", False),
    ("loop", to_out(loop_kernel, AHEAD=0, grid=lambda x: (1,)), lambda x: 2 * x, LINE, "fp32", True),
    ("looking_back", to_out(loop_kernel, AHEAD=1, grid=lambda x: (1,)), lambda x: x + torch.cat([torch.zeros(1), x[:-1]]), LINE, "fp32", False),
    ("branch", to_out(branch_kernel), lambda x: 2 * x, LINE, "fp32", None),
    ("wider", to_out(pieces_kernel, STEP=64, SHIFT=0, like=lambda x: torch.empty(x.shape, dtype=torch.float32)), lambda x: 2 * x, LINE, "fp16", False),
    ("narrower", to_out(pieces_kernel, STEP=64, SHIFT=0, like=lambda x: torch.empty(x.shape, dtype=torch.bfloat16)), lambda x: (2 * x).to(torch.bfloat16), LINE, "fp32", False),
    ("twice_over", twice_over, lambda x: 3 * x, LINE, "fp32", False),
    ("by_way_of", by_way_of, lambda x: 2 * x.flip(0), LINE, "fp32", True),
    ("halves", halves, lambda x: 2 * x.roll(250), LINE, "fp32", False),
    ("swapped", swapped, lambda x, y: y, Case(((500,), (500,))), "fp32", False),
    ("sums", sums, lambda x: torch.stack([x[k::8].sum() for k in range(8)]), LINE, "fp32", False),
]
USERS = {name: (Op(name, call, lambda *a, fn=fn: fn(*a), (case,), reference=lambda *a, fn=fn: fn(*a)), case, dtype, same) for name, call, fn, case, dtype, same in USERS}


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    return Made([u[:3] for u in USERS.values()], tmp_path_factory.mktemp("users"))


@pytest.mark.parametrize("name", USERS)
def test_users_ops(users, name, seed):
    op, case, dtype, same = USERS[name]
    alike = check_overlaps(users, op, case, dtype, seed)
    said = [pair["equal_addresses"] for pair in users.functions[bundle.key_of(op, case, dtype)]["overlap"]]
    assert said == [same] or (same is None and len(said) == 1)
    assert set(alike.values()) == {OK if said[0] else OVERLAP}, alike


def test_the_proof_is_needed(tmp_path, monkeypatch, seed):
    """Where nothing is proved and equal addresses are taken to be fine, numbers are wrong."""
    monkeypatch.setattr(Effects, "may_coincide", lambda *a: True)
    op, case, dtype, _ = USERS["repeated"]
    made = Made([(op, case, dtype)], tmp_path)
    with pytest.raises(AssertionError, match="triport_repeated_fp32: x 0 bytes from out"):
        check_overlaps(made, op, case, dtype, seed)


TTIR = """module {{
  tt.func public @k(%x: !tt.ptr<f32>, %out: !tt.ptr<f32>, %n: i32) {{
    %value = arith.constant dense<1.0> : tensor<4x4xf32>
    %px = tt.get_program_id x : i32
    %py = tt.get_program_id y : i32
    %range = tt.make_range {{end = 4 : i32, start = 0 : i32}} : tensor<4xi32>
    %column = tt.expand_dims %range {{axis = 1 : i32}} : tensor<4xi32> -> tensor<4x1xi32>
    %row = tt.expand_dims %range {{axis = 0 : i32}} : tensor<4xi32> -> tensor<1x4xi32>
    %i = tt.broadcast %column : tensor<4x1xi32> -> tensor<4x4xi32>
    %j = tt.broadcast %row : tensor<1x4xi32> -> tensor<4x4xi32>
    %pxs = tt.splat %px : i32 -> tensor<4x4xi32>
    %pys = tt.splat %py : i32 -> tensor<4x4xi32>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<4x4x!tt.ptr<f32>>
    %outs = tt.splat %out : !tt.ptr<f32> -> tensor<4x4x!tt.ptr<f32>>
{body}
    tt.return
  }}
}}
"""
VARIABLES = ("pxs", "pys", "i", "j")
coefficients = st.tuples(st.sampled_from([0, 1, 1, 2, 3, 4, 8, 16]), st.booleans())  # (factor, times n?)
sums_ = st.tuples(st.tuples(*[coefficients] * 4), coefficients)  # of the variables, and a constant
masks = st.lists(st.tuples(st.tuples(*[st.sampled_from([(0, False), (0, False), (1, False), (4, False)])] * 4), coefficients), max_size=2)  # sum < bound


def value(coefficient, n: int) -> int:
    return coefficient[0] * (n if coefficient[1] else 1)


def written_out(lines: list[str], name: str, total) -> str:
    """The instructions that compute a sum of `sums_`."""
    at = f"%{name}"
    lines += [f"{at}0 = arith.constant dense<0> : tensor<4x4xi32>", f"{at}n = tt.splat %n : i32 -> tensor<4x4xi32>"]
    last = f"{at}0"
    for k, (variable, (factor, by_n)) in enumerate(zip((*VARIABLES, None), (*total[0], total[1]))):
        lines.append(f"{at}c{k} = arith.constant dense<{factor}> : tensor<4x4xi32>")
        term = f"{at}c{k}"
        if by_n:
            lines.append(f"{at}m{k} = arith.muli {term}, {at}n : tensor<4x4xi32>")
            term = f"{at}m{k}"
        if variable:
            lines.append(f"{at}t{k} = arith.muli {term}, %{variable} : tensor<4x4xi32>")
            term = f"{at}t{k}"
        lines.append(f"{at}s{k} = arith.addi {last}, {term} : tensor<4x4xi32>")
        last = f"{at}s{k}"
    return last


def access(lines: list[str], name: str, pointer: str, total, conditions) -> tuple[str, str]:
    """(pointers, mask) of a load or store."""
    offset = written_out(lines, name, total)
    lines.append(f"%{name}p = tt.addptr %{pointer}, {offset} : tensor<4x4x!tt.ptr<f32>>, tensor<4x4xi32>")
    lines.append(f"%{name}all = arith.constant dense<true> : tensor<4x4xi1>")
    mask = f"%{name}all"
    for k, (variables, bound) in enumerate(conditions):
        left = written_out(lines, f"{name}l{k}", (variables, (0, False)))
        right = written_out(lines, f"{name}r{k}", (((0, False),) * 4, bound))
        lines += [f"%{name}k{k} = arith.cmpi slt, {left}, {right} : tensor<4x4xi32>", f"%{name}a{k} = arith.andi {mask}, %{name}k{k} : tensor<4x4xi1>"]
        mask = f"%{name}a{k}"
    return f"%{name}p", mask


def elements(total, conditions, n: int) -> dict[int, set]:
    """Address -> the programs that go there."""
    out: dict[int, set] = {}
    for at in itertools.product(range(3), range(2), range(4), range(4)):
        if all(sum(value(c, n) * v for c, v in zip(variables, at)) < value(bound, n) for variables, bound in conditions):
            out.setdefault(sum(value(c, n) * v for c, v in zip(total[0], at)) + value(total[1], n), set()).add(at[:2])
    return out


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_what_is_proved_is_true(data):
    """Kernels of two programs ids and two indices with any coefficients and masks, against every element of every program."""
    stored, store_mask = data.draw(sums_), data.draw(masks)
    digits = data.draw(st.booleans())  # rows * n + columns < n, as kernels have it
    if digits:
        inner, outer = data.draw(st.permutations([("pxs", "i"), ("pys", "j")]))
        block = {v: (4 if v[0] == "p" else 1, v in outer) for v in VARIABLES}
        stored = tuple(block[v] for v in VARIABLES), data.draw(st.sampled_from([(0, False), (3, False), (1, True)]))
        store_mask = store_mask + [(tuple((block[v][0] if v in inner else 0, False) for v in VARIABLES), data.draw(st.sampled_from([(1, True), (2, True), (4, False)])))]
    same = data.draw(st.booleans())
    loaded, load_mask = (stored, store_mask) if same else (data.draw(st.sampled_from([stored, data.draw(sums_)])), data.draw(masks))
    lines: list[str] = []
    read, read_mask = access(lines, "a", "xs", loaded, load_mask)
    write, write_mask = access(lines, "b", "outs", stored, store_mask)
    lines += [f"%loaded = tt.load {read}, {read_mask} : tensor<4x4x!tt.ptr<f32>>", f"tt.store {write}, %loaded, {write_mask} : tensor<4x4x!tt.ptr<f32>>"]
    effects = Effects(TTIR.format(body="\n".join("    " + line for line in lines)))
    assert (effects.reads, effects.writes) == ({0}, {1})
    if not effects.may_coincide(0, 1, frozenset("xy")):
        return
    for n in range(0, 14):
        reads, writes = elements(loaded, load_mask, n), elements(stored, store_mask, n)
        for at, programs in reads.items():
            assert len(programs | writes.get(at, set())) == 1 or at not in writes, (n, at, programs, writes[at])


def test_proofs_are_found():
    """The property above is no empty one: rows of n with a mask, and a single line, are proved; without the mask, or with a wider one, not."""
    def proved(total, mask):
        lines: list[str] = []
        read, read_mask = access(lines, "a", "xs", total, mask)
        write, write_mask = access(lines, "b", "outs", total, mask)
        lines += [f"%loaded = tt.load {read}, {read_mask} : tensor<4x4x!tt.ptr<f32>>", f"tt.store {write}, %loaded, {write_mask} : tensor<4x4x!tt.ptr<f32>>"]
        return Effects(TTIR.format(body="\n".join("    " + line for line in lines))).may_coincide(0, 1, frozenset("xy"))

    rows = ((4, True), (4, False), (1, True), (1, False)), (0, False)  # (4 px + i) n + 4 py + j
    columns = ((0, False), (4, False), (0, False), (1, False))
    assert proved(rows, [(columns, (1, True))])
    assert not proved(rows, []) and not proved(rows, [(columns, (2, True))])
    assert proved((((16, False), (64, False), (4, False), (1, False)), (5, False)), []) is False  # px in 0 .. 3 is not known
    assert proved((((16, False), (64, False), (4, False), (1, False)), (5, False)), [(((16, False), (0, False), (4, False), (1, False)), (64, False))])


@triton.jit
def bits_kernel(bits_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(bits_ptr + offs, mask=offs < n).to(tl.float32), mask=offs < n)


def test_one_tensor_as_two_types():
    """Its elements as 16 bits and as 32: at one address, and not the same places. Fused, a store would be met by later loads."""
    def call(x):
        bits_kernel[(1,)](x.view(torch.int16), x, x.shape[0], BLOCK=512)
        return x

    mine = Op("bits", call, lambda x: x, (Case(((500,),)),))
    made = bundle.make([(mine, mine.cases[0], "fp32")], HERE, cases=False)
    x = torch.randn(500)
    (y,), _ = runner.get("local").call(made, "triport_bits_fp32", [x])
    assert torch.equal(y, x.view(torch.int16)[:500].float())


# --- what a kernel writes --------------------------------------------------------------------------------------------------------


@triton.jit
def hidden_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, x + 1, mask=offs < n)
    tl.store(y_ptr + offs, x * 5, mask=offs < n)


@triton.jit
def chosen_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Writes x or y, by way of pointers that branches and loops carry."""
    offs = tl.arange(0, BLOCK)
    if n % 2 == 0:
        to = x_ptr + offs
    else:
        to = y_ptr + offs
    for _ in range(0, n, BLOCK):
        tl.store(to, offs * 1.0, mask=offs < n)
        to += BLOCK
    tl.store(out_ptr + offs, offs * 2.0, mask=offs < n)


def hidden(x, y):
    out = torch.empty_like(x)
    hidden_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


def chosen(x, y):
    out = torch.empty_like(x)
    chosen_kernel[(1,)](x, y, out, x.numel(), BLOCK=64)
    return out


HIDDEN = Op("hidden", hidden, lambda x, y: x + 1, (Case(((100,), (100,))),))


def test_a_tensor_that_is_written_is_given_back():
    """Though the op does not return it."""
    made = bundle.make([(HIDDEN, HIDDEN.cases[0], "fp32")], HERE)
    f = made.manifest["functions"][0]
    assert "const float *x, float *y, float *out" in f["declaration"] and f["results"] == ["out"]
    assert [a["role"] for a in f["arguments"]] == ["in", "inout", "out"]
    assert "y: fp32, y_size0; strides 1 (changed in place, beside the result)" in made.files[made.manifest["header"]].decode()
    x, y = torch.randn(70), torch.zeros(70)
    outputs, _ = runner.get("local").call(made, f["name"], [x, y], repetitions=2)
    assert torch.equal(outputs[0], 5 * x) and torch.equal(outputs[1], x + 1)
    assert runner.get("local").case(made, made.manifest["cases"][0]["file"])[0] < 1e-6  # its expected result is out's
    made = bundle.make([(Op("chosen", chosen, lambda x, y: x, (Case(((50,), (50,))),)), Case(((50,), (50,))), "fp32")], HERE, cases=False)
    assert [a["role"] for a in made.manifest["functions"][0]["arguments"]] == ["inout", "inout", "out"]


def test_the_backend_changes_what_the_kernel_changes():
    with spine.on("local"):
        x, y = torch.randn(70), torch.zeros(70)
        assert torch.equal(backends.get("spine").bind(HIDDEN)(x, y), x + 1) and torch.equal(y, 5 * x)
        z = torch.randn(100)
        with pytest.raises(ArgumentError, match="y, which is changed in place, shares memory with x"):
            backends.get("spine").bind(HIDDEN)(z[:70], z[30:])
        before = z.clone()
        assert torch.equal(backends.get("spine").bind(HIDDEN)(z, z), before + 1) and torch.equal(z, 5 * before)  # proved to be fine
        with pytest.raises(ArgumentError, match="x, which is changed in place, shares memory with y"):
            backends.get("spine").bind(USERS["swapped"][0])(z, z)
        with pytest.raises(ArgumentError, match="y is changed in place, and several of its elements are one place"):
            backends.get("spine").bind(HIDDEN)(x, torch.zeros(1).expand(70))
        with backends.use("spine"):
            z = torch.randn(8, 30)
            want = torch.relu(1.5 * z.double() + z[0].double())
            assert check.error(ops.add_mul_act_(z, z, z[0].clone()), want) < 1e-6  # elementwise: one tensor twice is fine


def test_results_that_no_bundle_gives():
    """Part of an argument, and memory that no kernel writes."""
    def part(x):
        reversed_kernel[(1,)](x, x, x.numel(), BLOCK=64)
        return x[1:]

    def unwritten(x):
        out = torch.empty_like(x)
        reversed_kernel[(1,)](x, torch.empty_like(x), x.numel(), BLOCK=64)
        return out

    for call, text in ((part, "its result is a part or another view of its argument 'x'"), (unwritten, r"none of its kernels \(reversed_kernel\) writes the tensor")):
        mine = Op("mine", call, lambda x: x, (Case(((50,),)),))
        with pytest.raises(Unsupported, match=text):
            bundle.make([(mine, mine.cases[0], "fp32")], HERE, cases=False)
