"""Random kernels: matrices, rows and columns, reductions, scans, broadcasts, shuffles, masks, loops, branches, loads, stores and
atomics in any order, against numpy.

Each kernel is a random program over values of three shapes (M x N, M, N), written as TTIR and evaluated beside it in float64.
It reaches what hand-written kernels do not: values kept for later passes, fused rows, loads and stores of one buffer in turn,
odd mask mixes."""

import numpy as np
import pytest
import torch
import triton
from conftest import SEED
from hypothesis import given, settings, strategies as st
from triton.backends.compiler import GPUTarget

SHAPES = [(16, 16), (4, 64), (32, 8), (2, 128), (1, 32), (64, 1)]
BINARY = {"arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": lambda a, b: a * b * 0.25, "arith.maxnumf": np.maximum}


class Program:
    """A random kernel's text and its meaning."""

    def __init__(self, rng, m, n, rows, cols):
        self.rng, self.m, self.n, self.rows, self.cols = rng, m, n, rows, cols
        self.lines, self.count, self.values = [], 0, {"mn": [], "m": [], "n": []}
        self.inputs, self.memory, self.stored = [], [], set()
        self.pointers = {"mn": [], "m": [], "n": []}  # (value, argument), to be used again
        self.args = []
        self.shape = {"mn": (m, n), "m": (m,), "n": (n,)}
        self.prologue()

    def name(self):
        self.count += 1
        return f"%x{self.count}"

    def type(self, kind, elem="f32"):
        return f"tensor<{'x'.join(map(str, self.shape[kind]))}x{elem}>"

    def emit(self, text):
        v = self.name()
        self.lines.append(f"{v} = {text}")
        return v

    def prologue(self):
        m, n = self.m, self.n
        i = self.emit(f"tt.make_range {{end = {m} : i32, start = 0 : i32}} : tensor<{m}xi32>")
        j = self.emit(f"tt.make_range {{end = {n} : i32, start = 0 : i32}} : tensor<{n}xi32>")
        i2 = self.emit(f"tt.expand_dims {i} {{axis = 1 : i32}} : tensor<{m}xi32> -> tensor<{m}x1xi32>")
        j2 = self.emit(f"tt.expand_dims {j} {{axis = 0 : i32}} : tensor<{n}xi32> -> tensor<1x{n}xi32>")
        c = self.emit(f"arith.constant dense<{n}> : tensor<{m}x1xi32>")
        ic = self.emit(f"arith.muli {i2}, {c} : tensor<{m}x1xi32>")
        ib = self.emit(f"tt.broadcast {ic} : tensor<{m}x1xi32> -> tensor<{m}x{n}xi32>")
        jb = self.emit(f"tt.broadcast {j2} : tensor<1x{n}xi32> -> tensor<{m}x{n}xi32>")
        self.offsets = {"mn": self.emit(f"arith.addi {ib}, {jb} : tensor<{m}x{n}xi32>"), "m": i, "n": j}
        rs, cs = self.emit(f"tt.splat %rows : i32 -> tensor<{m}x1xi32>"), self.emit(f"tt.splat %cols : i32 -> tensor<1x{n}xi32>")
        rm = self.emit(f"arith.cmpi slt, {i2}, {rs} : tensor<{m}x1xi32>")
        cm = self.emit(f"arith.cmpi slt, {j2}, {cs} : tensor<1x{n}xi32>")
        rb = self.emit(f"tt.broadcast {rm} : tensor<{m}x1xi1> -> tensor<{m}x{n}xi1>")
        cb = self.emit(f"tt.broadcast {cm} : tensor<1x{n}xi1> -> tensor<{m}x{n}xi1>")
        both = self.emit(f"arith.andi {rb}, {cb} : tensor<{m}x{n}xi1>")
        r1, c1 = self.emit(f"tt.splat %rows : i32 -> tensor<{m}xi32>"), self.emit(f"tt.splat %cols : i32 -> tensor<{n}xi32>")
        self.masks = {"mn": [(rb, np.arange(m)[:, None] < self.rows), (cb, np.arange(n)[None, :] < self.cols),
                             (both, (np.arange(m)[:, None] < self.rows) & (np.arange(n)[None, :] < self.cols))],
                      "m": [(self.emit(f"arith.cmpi slt, {i}, {r1} : tensor<{m}xi32>"), np.arange(m) < self.rows)],
                      "n": [(self.emit(f"arith.cmpi slt, {j}, {c1} : tensor<{n}xi32>"), np.arange(n) < self.cols)]}

    def place(self, kind, data):
        """(pointer, argument): a new argument that holds `data`, or one that was used before."""
        if self.pointers[kind] and self.rng.random() < 0.4:
            return self.pointers[kind][self.rng.integers(0, len(self.pointers[kind]))]
        p, k = self.pointer(kind), len(self.args) - 1
        self.pointers[kind].append((p, k))
        self.inputs.append(data.astype(np.float32))
        self.memory.append(data.astype(np.float32).astype(np.float64))
        return p, k

    def pointer(self, kind):
        k = len(self.args)
        self.args.append(f"%p{k}: !tt.ptr<f32>")
        s = self.emit(f"tt.splat %p{k} : !tt.ptr<f32> -> {self.type(kind, '!tt.ptr<f32>')}")
        return self.emit(f"tt.addptr {s}, {self.offsets[kind]} : {self.type(kind, '!tt.ptr<f32>')}, {self.type(kind, 'i32')}")

    def mask(self, kind):
        name, value = self.masks[kind][self.rng.integers(0, len(self.masks[kind]))]
        return name, np.broadcast_to(value, self.shape[kind])

    def constant(self, kind):
        c = float(np.round(self.rng.normal(), 2))
        return self.emit(f"arith.constant dense<{c:e}> : {self.type(kind)}"), c

    def load(self, kind):
        p, k = self.place(kind, self.rng.normal(size=self.shape[kind]))
        data = self.memory[k]
        if self.rng.random() < 0.6:
            m, on = self.mask(kind)
            c, value = self.constant(kind)
            v = self.emit(f"tt.load {p}, {m}, {c} : {self.type(kind, '!tt.ptr<f32>')}")
            self.values[kind].append((v, np.where(on, data, np.float64(np.float32(value)))))
        else:
            v = self.emit(f"tt.load {p} : {self.type(kind, '!tt.ptr<f32>')}")
            self.values[kind].append((v, data))

    def pick(self, kind):
        if not self.values[kind]:
            self.load(kind)
        return self.values[kind][self.rng.integers(0, len(self.values[kind]))]

    def binary(self, kind, of=None):
        (a, x), (b, y) = of or (self.pick(kind), self.pick(kind))
        op = list(BINARY)[self.rng.integers(0, len(BINARY))]
        v = self.emit(f"{op} {a}, {b} : {self.type(kind)}")
        if op == "arith.mulf":
            c = self.emit(f"arith.constant dense<2.500000e-01> : {self.type(kind)}")
            v = self.emit(f"arith.mulf {v}, {c} : {self.type(kind)}")
        self.values[kind].append((v, BINARY[op](x, y)))

    def exp(self, kind, of=None):
        a, x = of or self.pick(kind)
        lo, hi = (self.emit(f"arith.constant dense<{c}> : {self.type(kind)}") for c in ("-4.000000e+00", "1.500000e+00"))
        v = self.emit(f"arith.maxnumf {a}, {lo} : {self.type(kind)}")
        v = self.emit(f"arith.minnumf {v}, {hi} : {self.type(kind)}")
        self.values[kind].append((self.emit(f"math.exp {v} : {self.type(kind)}"), np.exp(np.clip(x, -4, 1.5))))

    def select(self, kind):
        (a, x), (b, y) = self.pick(kind), self.pick(kind)
        m, on = self.mask(kind)
        v = self.emit(f"arith.select {m}, {a}, {b} : {self.type(kind, 'i1')}, {self.type(kind)}")
        self.values[kind].append((v, np.where(on, x, y)))

    def reduce(self, kind, of=None):
        a, x = of or self.pick("mn")
        axis = int(kind == "m")
        add = self.rng.random() < 0.5
        n = x.shape[axis]
        op = "arith.addf" if add else "arith.maxnumf"
        v = self.emit(f'"tt.reduce"({a}) <{{axis = {axis} : i32}}> ({{\n^bb0(%l{self.count}: f32, %r{self.count}: f32):\n'
                      f'%s{self.count} = {op} %l{self.count}, %r{self.count} : f32\n'
                      f'tt.reduce.return %s{self.count} : f32\n}}) : ({self.type("mn")}) -> {self.type(kind)}')
        y = x.sum(axis) if add else x.max(axis)
        if add:
            c = self.emit(f"arith.constant dense<{1 / n:e}> : {self.type(kind)}")
            v, y = self.emit(f"arith.mulf {v}, {c} : {self.type(kind)}"), y * np.float64(np.float32(1 / n))
        self.values[kind].append((v, y))

    def spread(self, kind=None, of=None):
        kind = kind or "mn"[self.rng.integers(0, 2)]
        a, x = of or self.pick(kind)
        axis = int(kind == "m")
        thin = f"tensor<{f'{self.m}x1' if kind == 'm' else f'1x{self.n}'}xf32>"
        v = self.emit(f"tt.expand_dims {a} {{axis = {axis} : i32}} : {self.type(kind)} -> {thin}")
        v = self.emit(f"tt.broadcast {v} : {thin} -> {self.type('mn')}")
        self.values["mn"].append((v, np.broadcast_to(np.expand_dims(x, axis), self.shape["mn"])))

    def normalize(self):
        """A matrix by a dear number of each of its own rows or columns, of what is reduced: again and again, as norms do."""
        of, kind = self.pick("mn"), "mn"[self.rng.integers(0, 2)]
        for _ in range(self.rng.integers(1, 4)):
            self.reduce(kind, of)
            for _ in range(self.rng.integers(1, 4)):
                self.exp(kind, self.values[kind][-1])
            self.spread(kind, self.values[kind][-1])
            self.binary("mn", (of, self.values["mn"][-1]))
            of = self.values["mn"][-1]
        if self.rng.random() < 0.5:
            self.store("mn", of)

    def store(self, kind, of=None):
        v, x = of or self.pick(kind)
        p, k = self.place(kind, np.full(self.shape[kind], 77.0))
        if self.rng.random() < 0.7:
            m, on = self.mask(kind)
            self.lines.append(f"tt.store {p}, {v}, {m} : {self.type(kind, '!tt.ptr<f32>')}")
        else:
            on = np.ones(self.shape[kind], bool)
            self.lines.append(f"tt.store {p}, {v} : {self.type(kind, '!tt.ptr<f32>')}")
        self.memory[k] = np.where(on, x, self.memory[k])
        self.stored.add(k)

    # -- operations that need memory or control flow

    def scan(self, kind):
        a, x = self.pick(kind)
        axis = int(self.rng.integers(0, len(self.shape[kind])))
        reverse, add = self.rng.random() < 0.5, self.rng.random() < 0.5
        op, fn = ("arith.addf", np.add) if add else ("arith.maxnumf", np.maximum)
        v = self.emit(f'"tt.scan"({a}) <{{axis = {axis} : i32, reverse = {str(reverse).lower()}}}> ({{\n'
                      f"^bb0(%l{self.count}: f32, %r{self.count}: f32):\n%s{self.count} = {op} %l{self.count}, %r{self.count} : f32\n"
                      f"tt.scan.return %s{self.count} : f32\n}}) : ({self.type(kind)}) -> {self.type(kind)}")
        y = fn.accumulate(np.flip(x, axis) if reverse else x, axis)
        y = np.flip(y, axis) if reverse else y
        if add:
            c = self.emit(f"arith.constant dense<{1 / x.shape[axis]:e}> : {self.type(kind)}")
            v, y = self.emit(f"arith.mulf {v}, {c} : {self.type(kind)}"), y * np.float64(np.float32(1 / x.shape[axis]))
        self.values[kind].append((v, y))

    def turn(self):
        """Reshape to N x M and transpose: every element moves."""
        a, x = self.pick("mn")
        m, n = self.m, self.n
        v = self.emit(f"tt.reshape {a} : {self.type('mn')} -> tensor<{n}x{m}xf32>")
        v = self.emit(f"tt.trans {v} {{order = array<i32: 1, 0>}} : tensor<{n}x{m}xf32> -> tensor<{m}x{n}xf32>")
        self.values["mn"].append((v, x.reshape(n, m).T))

    def gather(self, kind):
        a, x = self.pick(kind)
        axis = int(self.rng.integers(0, len(self.shape[kind])))
        size, step = x.shape[axis], int(self.rng.integers(1, 9))
        t = self.type(kind, "i32")
        c, s = self.emit(f"arith.constant dense<{size}> : {t}"), self.emit(f"arith.constant dense<{step}> : {t}")
        i = self.emit(f"arith.remsi {self.emit(f'arith.muli {self.offsets[kind]}, {s} : {t}')}, {c} : {t}")
        v = self.emit(f"tt.gather {a}[{i}] {{axis = {axis} : i32}} : ({self.type(kind)}, {t}) -> {self.type(kind)}")
        at = (np.arange(x.size).reshape(x.shape) * step) % size
        self.values[kind].append((v, np.take_along_axis(x, at, axis)))

    def shuffle(self, kind):
        """Join two values, split them again, in the other order; and the halves of an interleaved pair."""
        (a, x), (b, y) = self.pick(kind), self.pick(kind)
        two = f"tensor<{'x'.join(map(str, self.shape[kind]))}x2xf32>"
        j = self.emit(f"tt.join {a}, {b} : {self.type(kind)} -> {two}")
        self.count += 2
        p, q = f"%x{self.count - 1}", f"%x{self.count}"
        self.lines.append(f"{p}, {q} = tt.split {j} : {two} -> {self.type(kind)}")
        self.values[kind] += [(q, y), (p, x)]

    def neighbours(self):
        """Exchange the elements of each pair, as Triton's sort does it: x ^ xor_sum(x)."""
        a, x = self.pick("mn")
        pairs = f"{self.m * self.n // 2}x2"
        v = self.emit(f"tt.reshape {a} : {self.type('mn')} -> tensor<{pairs}xf32>")
        v = self.emit(f"tt.bitcast {v} : tensor<{pairs}xf32> -> tensor<{pairs}xi32>")
        one = f"tensor<{self.m * self.n // 2}x1xi32>"
        r = self.emit(f'"tt.reduce"({v}) <{{axis = 1 : i32}}> ({{\n^bb0(%l{self.count}: i32, %r{self.count}: i32):\n'
                      f"%s{self.count} = arith.xori %l{self.count}, %r{self.count} : i32\ntt.reduce.return %s{self.count} : i32\n"
                      f"}}) : (tensor<{pairs}xi32>) -> tensor<{self.m * self.n // 2}xi32>")
        r = self.emit(f"tt.expand_dims {r} {{axis = 1 : i32}} : tensor<{self.m * self.n // 2}xi32> -> {one}")
        r = self.emit(f"tt.broadcast {r} : {one} -> tensor<{pairs}xi32>")
        v = self.emit(f"arith.xori {v}, {r} : tensor<{pairs}xi32>")
        v = self.emit(f"tt.bitcast {v} : tensor<{pairs}xi32> -> tensor<{pairs}xf32>")
        v = self.emit(f"tt.reshape {v} : tensor<{pairs}xf32> -> {self.type('mn')}")
        self.values["mn"].append((v, x.reshape(-1, 2)[:, ::-1].reshape(x.shape)))

    def atomic(self, kind):
        v, x = self.pick(kind)
        p, k = self.place(kind, np.full(self.shape[kind], 3.0))
        m, on = self.mask(kind)
        t = self.type(kind)
        old = self.emit(f"tt.atomic_rmw fadd, relaxed, gpu, {p}, {v}, {m} : ({self.type(kind, '!tt.ptr<f32>')}, {t}, "
                        f"{self.type(kind, 'i1')}) -> {t}")
        if self.rng.random() < 0.5:  # what was there, where the mask holds
            c, value = self.constant(kind)
            old = self.emit(f"arith.select {m}, {old}, {c} : {self.type(kind, 'i1')}, {t}")
            self.values[kind].append((old, np.where(on, self.memory[k], np.float64(np.float32(value)))))
        self.memory[k] = np.where(on, self.memory[k] + x, self.memory[k])
        self.stored.add(k)

    def loop(self, kind):
        """Three trips: x <- x / 2 + y / 2, and a maximum of x carried beside it."""
        (a, x), (b, y) = self.pick(kind), self.pick(kind)
        t, n = self.type(kind), self.count
        half = self.emit(f"arith.constant dense<5.000000e-01> : {t}")
        self.count += 1
        v = f"%x{self.count}"
        self.lines.append(
            f"%lo{n} = arith.constant 0 : i32\n%up{n} = arith.constant 3 : i32\n%st{n} = arith.constant 1 : i32\n"
            f"{v}:2 = scf.for %k{n} = %lo{n} to %up{n} step %st{n} iter_args(%c{n} = {a}, %d{n} = {b}) -> ({t}, {t}) : i32 {{\n"
            f"%e{n} = arith.addf %c{n}, {b} : {t}\n%f{n} = arith.mulf %e{n}, {half} : {t}\n"
            f"%g{n} = arith.maxnumf %d{n}, %f{n} : {t}\nscf.yield %f{n}, %g{n} : {t}, {t}\n}}")
        d = y
        for _ in range(3):
            x = (x + y) * 0.5
            d = np.maximum(d, x)
        self.values[kind] += [(f"{v}#0", x), (f"{v}#1", d)]

    def branch(self, kind):
        (a, x), (b, y) = self.pick(kind), self.pick(kind)
        t, n = self.type(kind), self.count
        c = int(self.rng.integers(0, self.m + 1))
        self.lines.append(f"%lim{n} = arith.constant {c} : i32\n%cond{n} = arith.cmpi slt, %rows, %lim{n} : i32")
        v = self.emit(f"scf.if %cond{n} -> ({t}) {{\n%s{n} = arith.subf {a}, {b} : {t}\nscf.yield %s{n} : {t}\n}} else {{\n"
                      f"%m{n} = arith.maxnumf {a}, {b} : {t}\nscf.yield %m{n} : {t}\n}}")
        self.values[kind].append((v, x - y if self.rows < c else np.maximum(x, y)))

    def build(self, steps):
        moves = [lambda: self.load(self.kind()), lambda: self.binary(self.kind()), lambda: self.exp(self.kind()),
                 lambda: self.select(self.kind()), lambda: self.reduce("m"), lambda: self.reduce("n"), self.spread,
                 self.spread, lambda: self.binary("mn"), lambda: self.exp("mn"), lambda: self.store(self.kind()), self.normalize]
        if self.rng.random() < 0.7:  # some kernels stay with the plain moves: row fusion wants them
            moves += [lambda: self.scan(self.kind()), self.turn, lambda: self.gather(self.kind()),
                      lambda: self.shuffle(self.kind()), self.neighbours, lambda: self.atomic(self.kind()),
                      lambda: self.loop(self.kind()), lambda: self.branch(self.kind())]
        for _ in range(steps):
            moves[self.rng.integers(0, len(moves))]()
        for kind in ("mn", "m", "n"):
            self.store(kind)
        body = "\n".join(self.lines)
        return (f"module {{ tt.func public @random({', '.join(self.args)}, %rows: i32, %cols: i32) {{\n{body}\n"
                "tt.return } }\n")

    def kind(self):
        return ["mn", "m", "n"][self.rng.integers(0, 3)]


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 40), shape=st.sampled_from(SHAPES), steps=st.integers(3, 25), rows=st.floats(0, 1.1),
       cols=st.floats(0, 1.1))
def test_random_kernel(tmp_path_factory, seed, shape, steps, rows, cols):
    m, n = shape
    rng = np.random.default_rng([seed, SEED])
    p = Program(rng, m, n, int(rows * m), int(cols * n))
    text = p.build(steps)
    path = tmp_path_factory.mktemp("random") / "k.ttir"
    path.write_text(text)
    kernel = triton.compile(str(path), target=GPUTarget("cpu", "native", 0))
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in p.inputs]
    kernel[(1, 1, 1)](*tensors, p.rows, p.cols)
    for index in p.stored:
        got, want = tensors[index].numpy().astype(np.float64), p.memory[index]
        assert np.abs(got - want).max() <= 2e-4 * (1 + np.abs(want).max()), text


@pytest.mark.parametrize("seed", range(20))
def test_same_kernels_every_time(tmp_path_factory, monkeypatch, seed):
    """A fixed set beside the fresh ones."""
    monkeypatch.setitem(globals(), "SEED", 0)
    test_random_kernel.hypothesis.inner_test(tmp_path_factory, seed, SHAPES[seed % len(SHAPES)], 6 + seed, 0.7, 0.6)
