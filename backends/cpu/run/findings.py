"""What a checked launch found, for people."""

from __future__ import annotations

import linecache
from typing import NamedTuple

from ... import checking
from ..emit.checks.block import FOUND, WAITED
from ..plan.checks import INDEX, READ, SITES, WORDS
from .extents import Extent

_DONE = {"tt.load": "tl.load", "tt.store": "tl.store", "tt.gather": "tl.gather", "tt.atomic_rmw": "tl.atomic_*", "tt.atomic_cas": "tl.atomic_cas",
         "tt.assert": "integer arithmetic"}


class Site(NamedTuple):
    """One operation of the kernel that is checked, as `plan.checks.Site.record` says."""

    number: int
    access: int
    operation: str
    file: str
    line: int
    arguments: list
    unknown: bool
    bytes: int
    elem: str
    shape: list
    masked: bool
    message: str

    @property
    def at(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.line).strip() if self.line else ""

    @property
    def called(self) -> str:
        return _DONE.get(self.operation, self.operation)


class _Page:
    """The findings of one launch on their way to text."""

    def __init__(self, kernel, run, values, sizes):
        self.kernel, self.run, self.values, self.sizes = kernel, run, values, sizes

    def program(self, n: int) -> tuple[int, int, int]:
        x, y, _ = self.sizes
        return n % x, n // x % y, n // x // y

    def lane(self, site: Site, flat: int) -> tuple[int, ...]:
        out = []
        for d in reversed(site.shape):
            out.append(flat % d)
            flat //= d
        return tuple(reversed(out))

    def argument(self, site: Site, address: int) -> tuple[int | None, Extent]:
        """(position, extent) of the argument that an address belongs to: that of the site which it is in, or nearest to."""
        places = site.arguments if not site.unknown else range(len(self.run.extents))
        near = [(max(0, e.start - address, address + site.bytes - e.start - e.bytes), n, e) for n in places if (e := self.run.extents[n]).bytes or
                not site.unknown]
        if not near:
            return None, Extent(0, 0)
        _, n, e = min(near, key=lambda x: x[:2])
        return n, e

    def named(self, n: int | None, e: Extent) -> str:
        name = self.kernel.labels[n] if n is not None and n < len(self.kernel.labels) else "a tensor"
        t = e.argument
        if t is None:
            return f"argument {name!r}, which is None" if n is not None else name
        if not hasattr(t, "shape"):
            return f"argument {name!r}, {type(t).__name__}"
        dtype = str(getattr(t, "dtype", "")).removeprefix("torch.")
        view = f", storage offset {t.storage_offset()}" if hasattr(t, "storage_offset") and t.storage_offset() else ""
        return f"argument {name!r} ({dtype}, shape {tuple(t.shape)}, strides {tuple(t.stride())}{view})" if hasattr(t, "stride") else f"argument {name!r}"

    def element(self, e: Extent, address: int) -> tuple[int, ...] | None:
        """The index of the element of a tensor at an address; None where no element is there."""
        t = e.argument
        if not hasattr(t, "stride") or not t.numel():
            return None
        offset, rest = divmod(address - t.data_ptr(), t.element_size())
        if rest:
            return None
        index = [0] * t.dim()
        for d in sorted(range(t.dim()), key=lambda d: -t.stride(d)):
            if t.stride(d):
                index[d] = min(max(offset // t.stride(d), 0), t.shape[d] - 1)
                offset -= index[d] * t.stride(d)
        return tuple(index) if offset == 0 else None

    def given(self) -> str:
        """The kernel's numbers: what masks and offsets are made of."""
        pairs = [f"{label} = {v}" for label, v in zip(self.kernel.labels, self.values) if isinstance(v, (int, float)) and not isinstance(v, bool)]
        pairs += [f"{name} = {v}" for name, v in self.kernel.constants.items() if isinstance(v, (int, float, bool))]
        return ", ".join(pairs)

    # -- one finding
    def bounds(self, site: Site, address: int, value: int) -> tuple[str, Extent, int | None]:
        if site.access == INDEX:
            return f"index {value} is beyond the tensor that is indexed, of shape {tuple(site.shape)}", Extent(0, 0), None
        n, e = self.argument(site, address)
        name = self.named(n, e)
        t = e.argument
        if t is None:
            return f"{WORDS[site.access]} memory at address {address:#x}: {name}", e, n
        start = t.data_ptr() if hasattr(t, "data_ptr") else e.start
        offset = (address - start) / max(1, site.bytes)
        offset = int(offset) if offset == int(offset) else round(offset, 3)
        if address + site.bytes > e.start + e.bytes:
            beyond = address - (e.start + e.bytes)
            far = f"{beyond} bytes behind the end" if beyond >= 0 else f"across the end, {beyond + site.bytes} bytes of it behind"
        else:
            far = f"{e.start - address} bytes in front of the start"
        return f"{WORDS[site.access]} element {offset} of {name}: {far} of its storage of {e.bytes} bytes", e, n

    def race(self, site: Site, address: int, mark: int, written: int) -> tuple[str, Extent, int | None]:
        n, e = self.argument(site, address)
        if written == WAITED:
            return (f"waits in a loop for element {self._index(e, address)} of {self.named(n, e)} to change, and no program that has run changes it "
                    "(programs of such a launch run one after the other)", e, n)
        others = [self.program(p) for p in self.run.programs_of(mark)]
        there = self.kernel.sites.get(mark & 127) if mark & 127 <= SITES else None
        where = f" at {there.at} ({there.source})" if there is not None and (there.at != site.at) else ""
        did = "wrote" if written else "read"
        atomically = " atomically" if mark & 128 else ""
        if not others:
            who = f"several programs {did}{atomically}"
        elif len(others) == 1:
            who = f"program {others[0]} {did}{atomically}"
        else:
            more = f" and {len(others) - 2} more" if len(others) > 2 else ""
            who = f"programs {others[0]}, {others[1]}{more} {did}{atomically}"
        return (f"{WORDS[site.access]} element {self._index(e, address)} of {self.named(n, e)}, which {who}{where}; nothing puts the two in order", e, n)

    def _index(self, e: Extent, address: int) -> str:
        index = self.element(e, address)
        return str(index if index is None or len(index) != 1 else index[0]) if index is not None else f"at byte {address - e.start}"

    def uninit(self, site: Site, address: int) -> tuple[str, Extent, int | None]:
        n, e = self.argument(site, address)
        return f"{WORDS[site.access]} element {self._index(e, address)} of {self.named(n, e)}, which comes from torch.empty and nobody has written", e, n

    def overflow(self, site: Site, value: int) -> tuple[str, Extent, int | None]:
        return (f"{site.message}: the result is {value}" if value else site.message), Extent(0, 0), None

    def nan(self, site: Site, bits: int, store: int) -> tuple[str, Extent, int | None]:
        n, out = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}[site.elem], self.kernel.sites[store]
        mantissa = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[site.elem]
        what = "NaN" if bits & ((1 << mantissa) - 1) else "-infinity" if bits >> (n - 1) & 1 else "infinity"
        return f"makes {what} ({site.elem}) of {'what is none' if what == 'NaN' else 'finite numbers'}, which {out.at} stores ({out.source})", Extent(0, 0), None

    def report(self, records, count: int) -> checking.Report:
        """One place's findings of one kind: the first in full, of the others what differs."""
        said = [self._one(r) for r in records]
        kind, number, *_ = records[0]
        word, site = FOUND[kind], self.kernel.sites[number]
        where, lanes, argument, element, text = said[0]
        mask = ""
        if site.bytes and site.shape:
            mask = "its mask is true there" if site.masked else "it has no mask"
        more = "; ".join(x for x in (mask, f"with {self.given()}" if self.given() else "") if x)
        lines = [f"  {word}: {site.called} at {site.at}" + (f", {count} times here" if count > 1 else ""), f"      {site.source}" if site.source else "",
                 f"    {text}", f"    {more}" if more else "", *(f"    also {t}" for *_, t in said[1:])]
        if count > len(said):
            lines.append(f"    and {count - len(said)} more")
        return checking.Report(word, self.kernel.name, site.file, site.line, site.called, where, lanes, argument, element, count,
                               "\n".join(x for x in lines if x))

    def _one(self, record):
        """(program, lane, argument's name, index of its element, sentence) of a finding."""
        kind, number, program, address, lane, value, other, _ = record
        word, site = FOUND[kind], self.kernel.sites[number]
        said, e, n = {"bounds": lambda: self.bounds(site, address, value), "race": lambda: self.race(site, address, value, other),
                      "uninit": lambda: self.uninit(site, address), "overflow": lambda: self.overflow(site, value), "nan": lambda: self.nan(site, value, other)}[word]()
        where, lanes = self.program(program), self.lane(site, lane)
        of = f", lane {lanes if len(lanes) != 1 else lanes[0]} of a block of {'x'.join(map(str, site.shape))}" if site.shape else ""
        named = self.kernel.labels[n] if n is not None and n < len(self.kernel.labels) else ""
        return where, lanes, named, self.element(e, address) if address else None, f"program {where}{of}: {said}"


def only_waits(kernel, found) -> bool:
    """Did programs do nothing but wait, as atomic operations may, for what no program before them does?"""
    return all(FOUND[kind] == "race" and other == WAITED and kernel.sites[number].access != READ for kind, number, _, _, _, _, other, _ in found)


def error(kernel, run, found, counts, values, sizes) -> checking.CheckError:
    """The error of a launch that found something: of each kind the first places, by program."""
    page, places = _Page(kernel, run, values, sizes), {}
    for record in sorted(found, key=lambda r: (r[0], r[2], r[1], r[4])):
        places.setdefault(record[:2], []).append(record)
    kinds = [k for k, _ in places]
    kept = [(kind, number) for n, (kind, number) in enumerate(places) if kinds[:n].count(kind) < checking.MOST]
    reports = tuple(page.report(places[key], counts[key[1], key[0]]) for key in kept)
    return checking.CheckError(kernel.name, reports, sum(counts.values()))
