"""Launches of checked kernels: what they are told of memory, and what becomes of what they found."""

from __future__ import annotations

import ctypes
import functools
import struct

from ... import checking
from ...base import Unsupported
from ..emit.checks import lanes
from ..emit.checks.block import CAPACITY, FOUND, GROUPS, JOINED, MEMO, PLACES, RECORD, SERVICES, STOPPED
from ..plan.checks import ATOMIC, LOOK, READ, WRITE
from ..llvm import targets
from . import extents, findings, grid, kept, launch as launches, unwritten
from .fits import UNFIT, fitted
from .job import INTERRUPTED
from .metadata import checked as facts
from .shadow import EPISODES, Zeros, marks

_EXTENT = struct.Struct("<qqQQQqQQ")
_BLOCK = struct.Struct("<qqQQQqIIIIQQQQqqqQQqqQ")
_RECORD = struct.Struct(f"<{len(RECORD.fields)}q")
#: programs of a launch whose order is kept exactly, and what each may release
_KEPT, _RELEASES = 1 << 17, 8


class Kernel:
    """One checked kernel: what it checks, and how a launch's arguments are packed."""

    def __init__(self, name: str, signature, metadata, constants: dict, file: str | None = None):
        import torch

        self.known = facts(metadata, file)
        checks = self.known["checks"]
        self.name, self.constants = name, constants
        self.kinds = checks["kinds"]
        self.sites = {s[0]: findings.Site(*s) for s in checks["sites"]}
        self.granule, self.alone, self.orders = checks["granule"], checks["alone"], checks["orders"]
        self.room, self.notes = CAPACITY * _RECORD.size + 8 * len(FOUND) * (len(self.sites) + 1), []
        self.race, self.uninit = "race" in self.kinds, "uninit" in self.kinds
        orders = self.race and self.orders
        self.services = _services(",".join(k for k in ("bounds", "race", "uninit") if k in self.kinds), orders)
        self.unknown = any(s.unknown and s.bytes for s in self.sites.values())
        flat = launches.flatten(name, signature, self.known["arguments"])
        self.labels = [label for _, label, _ in flat]
        fmt, values = launches.packed(name, flat)
        env = {"tensors": (torch.Tensor, torch.nn.Parameter), "pointer": launches._pointer, "bf16_bits": launches.bf16_bits, "name": name}
        self.values = eval(f"lambda a: ({''.join(v + ', ' for v in values)})", env)  # noqa: S307  (source of ours, by the types of a kernel's arguments)
        self.given = eval(f"lambda a: ({''.join(e + ', ' for e, _, _ in flat)})", {})  # noqa: S307  (the same)
        #: positions of arguments that some access may write, and read; None: any
        self.writes, self.reads = (_touched(self.sites.values(), accesses) for accesses in ((WRITE, ATOMIC), (READ, ATOMIC, LOOK)))
        self.pointers = [n for n, (_, _, ty) in enumerate(flat) if ty.startswith("*")]
        self.pack = struct.Struct("<8Q" + fmt + "Q").pack

    def extents(self, given) -> list[extents.Extent]:
        """What each argument may touch, in their order; behind them whatever else there is, where a kernel takes pointers from memory."""
        out = [extents.Extent(0, 0)] * len(given)
        for n in self.pointers:
            out[n] = extents.of(given[n])
        if self.unknown:
            have = {e.start for e in out}
            out += [e for e in extents.living() if e.start not in have]
        return out


@functools.lru_cache(maxsize=None)
def _services(kinds: str, orders: bool):
    """The addresses of the functions that such kernels call."""
    obj = kept.emitted("checks", lanes.services_ir, targets.native(), kinds, orders, fast=True)
    found = launches.load_object(obj, [f"check.{name}" for name in SERVICES if name in ("record", "run", "box", "lanes", "wait", "indices")
                                       or name == "begin" and "race" in kinds or name == "order" and orders and "race" in kinds])
    return (ctypes.c_uint64 * len(SERVICES))(*(found.get(f"check.{name}", 0) for name in SERVICES))


def _touched(sites, accesses) -> set[int] | None:
    sites = [s for s in sites if s.access in accesses]
    return None if any(s.unknown for s in sites) else {n for s in sites for n in s.arguments}


class Run:
    """One launch of a checked kernel: its block of memory."""

    def __init__(self, kernel: Kernel, given, programs: int):
        self.kernel, self.programs = kernel, programs
        self.extents = kernel.extents(given)
        self._kept: list = []
        self._notes = kernel.notes.pop() if kernel.notes else Zeros(kernel.room)
        records, counts = self._notes.address, self._notes.address + CAPACITY * _RECORD.size
        self.launch, self.groups, self.words, owners, order = 0, 0, 0, 0, (0,) * 9
        if kernel.race:
            episodes = programs + (_RELEASES * programs + 64 if kernel.orders else 0)
            if episodes + GROUPS + 1 > EPISODES:
                raise Unsupported(f"triton-cpu: kernel {kernel.name}: races are looked for in launches of up to {EPISODES} programs, and this one has "
                                  f"{programs}; check a smaller grid, or other kinds: check=\"bounds\"")
            self.launch = marks.begin(episodes + 2 + GROUPS)
            self.groups = self.launch + episodes + 2
            owners = self._zeros(4 * (episodes + 2))
            if kernel.orders:
                order = self._order(episodes, programs)
        self._records, self._counts, self._owners = records, counts, owners
        written, read = (self._storages(places) for places in (kernel.writes, kernel.reads))
        table = b"".join(self._row(e, e.start in written, e.start in read) for e in self.extents)
        rows = ctypes.create_string_buffer(table, max(1, len(table)))
        self._kept.append(rows)
        self._block = ctypes.create_string_buffer(_BLOCK.pack(
            0, CAPACITY, records, counts, ctypes.addressof(rows), len(self.extents), self.launch, self.launch, self.launch, self.groups, owners, *order,
            kernel.granule.bit_length() - 1, ctypes.addressof(kernel.services)))

    def _order(self, episodes: int, programs: int) -> tuple[int, ...]:
        """What the order of episodes is kept in: the last fields of the block."""
        self.words = words = (min(episodes, _KEPT) + 64) // 64
        self._members = self._zeros(8 * words * GROUPS)
        return (self._zeros(8 * words), self._zeros(8 * words * PLACES), words, episodes - programs, 0, GROUPS, self._members,
                self._zeros(4 * len(JOINED.fields) * MEMO), 0)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._block)

    def _zeros(self, size: int) -> int:
        memory = Zeros(size)
        self._kept.append(memory)
        return memory.address

    def _storages(self, places: set[int] | None) -> set[int]:
        """Where the storages begin that arguments at `places` live in."""
        return {e.start for n, e in enumerate(self.extents) if places is None or n in places}

    def _row(self, extent: extents.Extent, is_written: bool, is_read: bool) -> bytes:
        writers = readers = written = skew = writers_apart = readers_apart = 0
        known = extent.bytes < 1 << 48  # more is somewhere that nobody knows
        if self.kernel.race and extent.bytes and known and is_written:  # what nobody writes nobody races for
            writers, readers, skew, writers_apart, readers_apart = marks.of(extent.start, extent.bytes, self.kernel.granule)
            readers = readers if is_read else 0
        if self.kernel.uninit and extent.argument is not None:
            written = unwritten.marks(extent.argument)
        return _EXTENT.pack(extent.start, extent.bytes, writers, readers, written, skew, writers_apart, readers_apart)

    def found(self) -> tuple[list[tuple], dict[tuple[int, int], int]]:
        """(the findings that were recorded, how often each kind was found at each site)."""
        count = min(ctypes.c_int64.from_buffer(self._block).value, CAPACITY)
        if not count:
            self.kernel.notes.append(self._notes)  # as clean as it was
            return [], {}
        raw = ctypes.string_at(self._records, count * _RECORD.size)
        counts = (ctypes.c_int64 * (len(FOUND) * (len(self.kernel.sites) + 1))).from_address(self._counts)
        return list(_RECORD.iter_unpack(raw)), {(n // len(FOUND), n % len(FOUND)): c for n, c in enumerate(counts) if c}

    def programs_of(self, mark: int) -> list[int]:
        """The programs that left a mark; none where that is not known."""
        number = mark >> 8
        if self.words and number >= self.groups:
            raw = ctypes.string_at(self._members + 8 * self.words * (number - self.groups), 8 * self.words)
            bits = int.from_bytes(raw, "little")
            numbers = [n for n in range(64 * self.words) if bits >> n & 1]
        else:
            numbers = [number - self.launch] if number > self.launch else []
        return list(dict.fromkeys(ctypes.c_int32.from_address(self._owners + 4 * n).value for n in numbers))


def make(name: str, signature, metadata, overlapping, constants: dict, other, file: str | None = None):
    """A function as `launch.make_launch`'s, of a checked kernel. other(...): takes the launch where another kind of check is asked for now. file: the kernel's, where
    that is known."""
    import torch
    from torch.autograd import profiler

    kernel = Kernel(name, signature, metadata, constants, file)
    given = getattr(metadata, "check_given", False)
    disjoint, most = kernel.known["disjoint"], kernel.known["most"]
    pool = launches.pool()
    about = {"name": name, "hash": getattr(metadata, "hash", ""), "constants": dict(constants), "scratch_bytes": kernel.known["scratch_bytes"]}
    if kernel.uninit:
        unwritten.watch()

    def beyond(values, sizes) -> bool:
        return any(launches.overlap(values[i], values[j], same) for i, j, same in disjoint) or any(
            (sizes if kind == "grid" else values)[place] > n for kind, place, n in most)

    def launch(gx, gy, gz, stream, fn, km, lm, enter, leave, *a):
        if not given and checking.on != kernel.kinds:
            return other(gx, gy, gz, stream, fn, km, lm, enter, leave, *a)
        gx, gy, gz = sizes = grid.sizes(name, (gx, gy, gz))
        values = kernel.given(a)
        if beyond(values, sizes):
            return overlapping(gx, gy, gz, stream, fn, km, lm, enter, leave, *a)
        for w in checking.watchers:
            w.launched(name)
        programs = gx * gy * gz
        team = 1 if kernel.alone else launches.team_of(programs, 0 if kernel.known["loops"] else kernel.known["work"], torch.get_num_threads())
        if enter is not None:
            enter(lm)
        try:
            with marks.lock:
                run = Run(kernel, values, programs)
                head = (fn.address, gx, gy, gz, kernel.known["scratch_bytes"], team, *pool.openmp)
                try:
                    packed = kernel.pack(*head, *kernel.values(a), run.address)
                except UNFIT as e:
                    packed = kernel.pack(*head, *kernel.values(fitted(name, signature, a, e)), run.address)
                if profiler._is_profiler_enabled:
                    status = launches.traced(about, gx, gy, gz, [x for x in a if isinstance(x, torch.Tensor)], pool.call, packed)
                else:
                    status = pool.call(packed)
                found, counts = run.found()
        finally:
            if leave is not None:
                leave(lm)
        if counts and status != INTERRUPTED:
            error = findings.error(kernel, run, found, counts, values, sizes)
            if findings.only_waits(kernel, found):
                raise Unsupported(f"triton-cpu: kernel {name} cannot be checked in this grid: one of its programs waits for a later one, or for ever, and they "
                                  f"run one after the other; check it in a grid of which each program waits for earlier ones only\n{error.reports[0].text}")
            checking.fail(error)
        elif status and status != STOPPED:
            launches.failed(name, status, kernel.known["scratch_bytes"], kernel.known["asserts"], gx, gy)

    return launch


