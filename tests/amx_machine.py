"""AMX's tile registers in Python, for kernels compiled for a CPU that has them and run by one that has not: their code calls these functions where it would
have AMX's instructions. What each does is written down from Intel's manual (Software Developer's Manual, volume 1, 18; volume 2, TILELOADD, TDPBF16PS, TDPBSSD;
TDPFP16PS in "Instruction Set Extensions and Future Features"), and
what it forbids is an error."""

import ctypes
import dataclasses
import re

import numpy as np
from triport.backends.cpu.emit import module
from triport.backends.cpu.llvm import targets
from triport.backends.cpu.run import link

_I8, _I64, _PTR = ctypes.c_int8, ctypes.c_int64, ctypes.c_void_p
#: name behind "llvm.x86." -> parameters
INSTRUCTIONS = {"ldtilecfg": (_PTR,), "tilerelease": (), "tilezero": (_I8,), "tileloadd64": (_I8, _PTR, _I64), "tilestored64": (_I8, _PTR, _I64),
                "tdpbf16ps": (_I8, _I8, _I8), "tdpfp16ps": (_I8, _I8, _I8), "tdpbssd": (_I8, _I8, _I8)}


class Machine:
    """A thread's tiles. counts: how often each instruction was carried out; wrong: what was forbidden, for a callback cannot raise."""

    def __init__(self):
        self.counts, self.wrong = dict.fromkeys(INSTRUCTIONS, 0), []
        self.shapes, self.tiles = None, {}
        self._calls = [self._give(name, parameters) for name, parameters in INSTRUCTIONS.items()]

    def _give(self, name, parameters):
        do = getattr(self, name)

        def call(*args):
            self.counts[name] += 1
            try:
                do(*args)
            except Exception as e:
                self.wrong.append(f"{name}{args}: {type(e).__name__}: {e}")

        made = ctypes.CFUNCTYPE(None, *parameters)(call)
        link.give(f"amx_{name}", ctypes.cast(made, ctypes.c_void_p).value)
        return made

    def shape(self, tile):
        assert self.shapes is not None, "tiles are not configured"
        rows, width = self.shapes[tile]
        assert 0 < rows <= 16 and 0 < width <= 64 and width % 4 == 0, (rows, width)
        return rows, width

    def ldtilecfg(self, at):
        data = ctypes.string_at(at, 64)
        assert data[0] == 1 and not any(data[1:16]) and not any(data[32:48]) and not any(data[56:]), "reserved, or another palette"
        widths = np.frombuffer(data[16:32], np.uint16)
        self.shapes, self.tiles = [(data[48 + n], int(widths[n])) for n in range(8)], {}

    def tilerelease(self):
        self.shapes, self.tiles = None, {}

    def tilezero(self, tile):
        rows, width = self.shape(tile)
        self.tiles[tile] = np.zeros((rows, width), np.uint8)

    def tileloadd64(self, tile, at, pitch):
        rows, width = self.shape(tile)
        self.tiles[tile] = np.stack([np.frombuffer(ctypes.string_at(at + n * pitch, width), np.uint8) for n in range(rows)])

    def tilestored64(self, tile, at, pitch):
        for n, row in enumerate(self.tiles[tile]):
            ctypes.memmove(at + n * pitch, row.tobytes(), row.size)

    def _multiply(self, to, a, b, dtype, acc, group):
        (m, a_width), (k, b_width), (rows, width) = self.shape(a), self.shape(b), self.shape(to)
        assert (m, a_width // 4, b_width) == (rows, k, width), "shapes of tiles do not go together"
        x, y = self.tiles[a].view(dtype).reshape(m, k, group), self.tiles[b].view(dtype).reshape(k, width // 4, group)
        if dtype is np.uint16:
            x, y = ((z.astype(np.uint32) << 16).view(np.float32) for z in (x, y))
        out = self.tiles[to].view(acc).copy()
        with np.errstate(all="ignore"):
            out += np.einsum("mkg,kng->mn", x.astype(acc), y.astype(acc))
        self.tiles[to] = out.view(np.uint8)

    def tdpbf16ps(self, to, a, b):
        self._multiply(to, a, b, np.uint16, np.float32, 2)

    def tdpfp16ps(self, to, a, b):
        self._multiply(to, a, b, np.float16, np.float32, 2)

    def tdpbssd(self, to, a, b):
        self._multiply(to, a, b, np.int8, np.int32, 4)


def row() -> targets.Target:
    """This machine's row, with AMX: vectors have 512 bits, which LLVM makes of shorter ones where need be."""
    with_tiles = tuple(p for p in targets.get("graniterapids").products if p.tiles)
    return dataclasses.replace(targets.native(), isa="AMX in Python", vector_bits=512, products=with_tiles)


def install(monkeypatch) -> Machine:
    """From now on kernels are compiled for such a machine. One thread is to launch them."""
    machine, amx, lower = Machine(), row(), module.lower_module

    def lowered(*args, machine=machine, **kwargs):  # which code that was compiled calls
        made = lower(*args, **kwargs)
        return dataclasses.replace(made, text=re.sub(rf"@llvm\.x86\.({'|'.join(INSTRUCTIONS)})\b", r"@amx_\1", made.text))

    monkeypatch.setattr(targets, "native", lambda: amx)
    monkeypatch.setattr(module, "lower_module", lowered)
    return machine
