"""Races: two programs that meet in an element, one of which writes it, with nothing that puts them in order.

Programs of a checked launch run one after the other, so what is found does not depend on timing: two accesses race where no chain of atomic operations
leads from the first one's program to the second's. Such a chain goes through places in memory: what a program did before it *releases* a place (an atomic
operation of one element, sem release or acq_rel) is in order before what another does after it *acquires* the place. This is the happens-before
relation of Lamport, kept by epochs as in FastTrack (Flanagan and Freund, PLDI 2009): an *episode* is what a program does between two releases,
and they are numbered through all launches of the process. For each granule of memory the last writer and the last reader are kept, as
episode << 8 | atomic << 7 | site; what earlier launches left there has smaller numbers, so nothing is ever cleared.
Where several have read that are in no order, or have written atomically, a *group* of episodes is kept: its number is larger than that of all episodes
of the launch. A kernel whose operations put nothing in order needs no groups: there `launch << 8` stands for several.

A *line* is so many granules one behind the other. It has a mark of its own, which holds for all of them as long as programs touch it as a whole; then
theirs are not looked at. Once one touches a part of it, the line's mark says that granules stand apart, for the rest of the launch.
"""

from __future__ import annotations

from ...llvm.ir import FALSE, NULL, TRUE, Builder, Module, Val, define, i32, i64, vec
from ...plan.checks import ATOMIC, LOOK, READ, SITES
from .block import APART, BLOCK, EXTENT, FOUND, JOINED, LINE, LINE_BITS, MEMO, PLACES, SITE, service

ATOMICALLY = 1 << 7
#: whole lines that are looked at as one
SEVERAL = 16


def add(m: Module, orders: bool):
    """@check.race, @check.begin, and where atomic operations put programs in order @check.order."""
    if orders:
        _ordered(m)
        _order(m)
        _join(m)
    _begin(m, orders)
    _race(m, orders)


def begin(k, block: Val, program: Val):
    k.b.call(service(k.b, block, "begin"), "void", [block, program])


def _begin(m: Module, orders: bool):
    """A program begins."""
    b = define(m, "check.begin", "void", "internal", block="ptr", program="i64")
    block, program = b.fn.args
    episode = b.add(b.get(BLOCK, block, "episode"), 1)
    b.put(BLOCK, block, "episode", episode)
    b.put(BLOCK, block, "first", episode)
    here = b.cast("zext", b.sub(episode, b.get(BLOCK, block, "launch")), "i64")
    b.store(b.cast("trunc", program, "i32"), b.gep("i32", b.get(BLOCK, block, "owners"), here))
    if orders:
        mine, words = b.get(BLOCK, block, "mine"), b.get(BLOCK, block, "words")
        with b.loop(i64(0), words) as w:
            b.store(i64(0), b.gep("i64", mine, w))
        _include(b, block, mine, here)
    b.ret()


def _include(b: Builder, block: Val, bits: Val, n: Val):
    """An episode, counted from the launch's first one, becomes one of those that `bits` says, where there is room."""
    word = b.lshr(n, 6)
    with b.when(b.icmp("ult", word, b.get(BLOCK, block, "words"))):
        at = b.gep("i64", bits, word)
        b.store(b.or_(b.load("i64", at), b.shl(i64(1), b.and_(n, i64(63)))), at)


class Others:
    """Marks of other programs of a launch than the one that runs: `span` of them from `base` on, and, where atomic operations put programs in order, those
    of groups."""

    def __init__(self, b: Builder, block: Val, orders: bool):
        self.b = b
        self.base = b.shl(b.get(BLOCK, block, "launch"), 8)  # by itself: of several programs
        self.span = b.sub(b.shl(b.get(BLOCK, block, "first"), 8), self.base)
        self._groups = b.shl(b.get(BLOCK, block, "groups"), 8) if orders else None

    def marked(self, who: Val) -> Val:
        """Lanes of `who`, a granule's writers or readers: of another program of this launch, or of several."""
        b, n = self.b, who.lanes
        out = b.icmp("ult", b.sub(who, b.splat(self.base, n)), b.splat(self.span, n))
        return out if self._groups is None else b.or_(out, b.icmp("uge", who, b.splat(self._groups, n)))


def mark(b: Builder, block: Val, number: Val, atomically: Val | None = None) -> Val:
    """What the program that runs leaves in the granules that a site touches. number: the site's, an i32."""
    place = b.intrinsic("umin", number, i32(SITES + 1))
    out = b.or_(b.shl(b.get(BLOCK, block, "episode"), 8), place)
    return out if atomically is None else b.or_(out, b.select(atomically, i32(ATOMICALLY), i32(0)))


def _ordered(m: Module):
    """Is what others left, an episode or a group, in order before now?"""
    b = define(m, "check.ordered", "i1", "internal", block="ptr", who="i32")
    block, who = b.fn.args
    words, mine = b.get(BLOCK, block, "words"), b.get(BLOCK, block, "mine")
    number, groups = b.lshr(who, 8), b.get(BLOCK, block, "groups")
    with b.when(b.icmp("uge", number, groups)):
        members = _members(b, block, b.sub(number, groups))
        with b.loop(i64(0), words) as w:
            missing = b.and_(b.load("i64", b.gep("i64", members, w)), b.xor(b.load("i64", b.gep("i64", mine, w)), i64(-1)))
            with b.when(b.icmp("ne", missing, 0)):
                b.ret(FALSE)
        b.ret(TRUE)
    n = b.cast("zext", b.sub(number, b.get(BLOCK, block, "launch")), "i64")
    word = b.lshr(n, 6)
    with b.when(b.icmp("uge", word, words)):
        b.ret(TRUE)  # not kept: too many episodes
    bits = b.load("i64", b.gep("i64", mine, word))
    b.ret(b.cast("trunc", b.lshr(bits, b.and_(n, i64(63))), "i1"))


def _members(b: Builder, block: Val, group: Val) -> Val:
    """The bits of a group, an i32 from 0 up."""
    return b.gep("i64", b.get(BLOCK, block, "members"), b.mul(b.cast("zext", group, "i64"), b.get(BLOCK, block, "words")))


def _join(m: Module):
    """What stands for `old`, an episode or a group, and `new`, an episode: both as marks. Where there is no room for another group, `new`."""
    b = define(m, "check.join", "i32", "internal", "noinline", block="ptr", old="i32", new="i32")
    block, old, new = b.fn.args
    words, groups, launch = (b.get(BLOCK, block, name) for name in ("words", "groups", "launch"))
    was, now = b.lshr(old, 8), b.lshr(new, 8)
    n = b.cast("zext", b.sub(now, launch), "i64")
    grouped, old_n = b.icmp("uge", was, groups), b.cast("zext", b.sub(was, launch), "i64")
    theirs = _members(b, block, b.select(grouped, b.sub(was, groups), i32(0)))
    low = b.and_(new, i32(255))
    too_many = b.icmp("uge", b.lshr(n, 6), words)
    with b.when(b.or_(too_many, b.and_(b.not_(grouped), b.icmp("uge", b.lshr(old_n, 6), words)))):
        b.ret(new)
    with b.when(grouped):
        bits = b.load("i64", b.gep("i64", theirs, b.lshr(n, 6)))
        with b.when(b.cast("trunc", b.lshr(bits, b.and_(n, i64(63))), "i1")):
            b.ret(b.or_(b.shl(was, 8), low))
    place = b.and_(b.add(b.mul(was, i32(31)), now), i32(MEMO - 1))
    memo = b.gep(JOINED.ty, b.get(BLOCK, block, "memo"), b.cast("zext", place, "i64"))
    known = b.and_(b.icmp("eq", b.get(JOINED, memo, "old"), was), b.icmp("eq", b.get(JOINED, memo, "new"), now))
    with b.when(known):
        b.ret(b.or_(b.shl(b.get(JOINED, memo, "group"), 8), low))
    count = b.get(BLOCK, block, "grouped")
    with b.when(b.icmp("sge", count, b.get(BLOCK, block, "most"))):
        b.ret(new)
    b.put(BLOCK, block, "grouped", b.add(count, 1))
    ours = _members(b, block, b.cast("trunc", count, "i32"))
    with b.either(grouped) as (yes, no):
        with yes, b.loop(i64(0), words) as w:
            b.store(b.load("i64", b.gep("i64", theirs, w)), b.gep("i64", ours, w))
        with no:
            _include(b, block, ours, old_n)
    _include(b, block, ours, n)
    group = b.add(groups, b.cast("trunc", count, "i32"))
    for name, v in dict(old=was, new=now, group=group).items():
        b.put(JOINED, memo, name, v)
    b.ret(b.or_(b.shl(group, 8), low))


def _order(m: Module):
    """An atomic operation on one element: what it acquires, and what it releases."""
    b = define(m, "check.order", "void", "internal", "noinline", block="ptr", address="i64", program="i64", acquires="i1", releases="i1")
    block, address, program, acquires, releases = b.fn.args
    words, mine = b.get(BLOCK, block, "words"), b.get(BLOCK, block, "mine")
    place = b.and_(b.lshr(address, 2), i64(PLACES - 1))
    theirs = b.gep("i64", b.get(BLOCK, block, "sets"), b.mul(place, words))
    with b.when(acquires), b.loop(i64(0), words) as w:
        at = b.gep("i64", mine, w)
        b.store(b.or_(b.load("i64", at), b.load("i64", b.gep("i64", theirs, w))), at)
    with b.when(releases):
        with b.loop(i64(0), words) as w:
            at = b.gep("i64", theirs, w)
            b.store(b.or_(b.load("i64", at), b.load("i64", b.gep("i64", mine, w))), at)
        episode = b.get(BLOCK, block, "episode")
        following = b.add(b.cast("zext", b.sub(episode, b.get(BLOCK, block, "launch")), "i64"), 1)
        with b.when(b.icmp("slt", following, b.get(BLOCK, block, "releases"))):
            b.put(BLOCK, block, "episode", b.add(episode, 1))
            b.store(b.cast("trunc", program, "i32"), b.gep("i32", b.get(BLOCK, block, "owners"), following))
            _include(b, block, mine, following)
    b.ret()


def _is_foreign(b: Builder, block: Val, others: Others, who: Val, orders: bool) -> Val:
    """An i1: did another program of this launch leave `who`, in no order with what runs now?"""
    if not orders:
        return others.marked(who)
    out = b.variable(others.marked(who))
    with b.when(out.get()):
        out.set(b.not_(b.call("check.ordered", "i1", [block, who])))
    return out.get()


def _kinds(b: Builder, site: Val) -> tuple[Val, Val]:
    """Does a site only read, and is it atomic?"""
    access = b.get(SITE, site, "access")
    looking = b.icmp("eq", access, i32(LOOK))
    return b.or_(looking, b.icmp("eq", access, i32(READ))), b.or_(looking, b.icmp("eq", access, i32(ATOMIC)))


def left(b: Builder, me: Val, before: Val) -> Val:
    """What the program that runs leaves where `before` was left: what it did plainly in one episode counts beside what it did atomically."""
    lanes = before.lanes
    same = b.icmp("eq", b.lshr(before, 8), b.splat(b.lshr(me, 8), lanes))
    return b.select(same, b.and_(b.splat(me, lanes), b.or_(before, b.splat(i32(~ATOMICALLY), lanes))), b.splat(me, lanes))


def _granule(m: Module, orders: bool):
    """One granule: does it race, and who was there last?"""
    b = define(m, "check.granule", "void", "internal", "", block="ptr", site="ptr", program="i64", writer_at="ptr", reader_at="ptr", address="i64",
               lane="i64")
    block, site, program, writer_at, reader_at, address, lane = b.fn.args
    number = b.get(SITE, site, "number")
    reading, atomic = _kinds(b, site)
    writer, reader = b.load("i32", writer_at), b.load("i32", reader_at)
    me = mark(b, block, number, atomic)

    def both(who: Val) -> Val:
        return b.and_(atomic, b.icmp("ne", b.and_(who, i32(ATOMICALLY)), 0))

    def leave(at: Val, who: Val, keep: Val):
        """The mark at a place, where `who` was; keep: too?"""
        out = b.variable(left(b, me, who))
        with b.when(keep):
            joined = b.call("check.join", "i32", [block, who, me]) if orders else b.or_(others.base, b.and_(me, i32(ATOMICALLY)))
            out.set(b.and_(joined, b.or_(who, i32(~ATOMICALLY))))
        b.store(out.get(), at)

    others = Others(b, block, orders)
    written, read = (_is_foreign(b, block, others, who, orders) for who in (writer, reader))
    wrong = b.and_(written, b.not_(both(writer)))
    with b.when(b.or_(wrong, b.and_(b.and_(read, b.not_(both(reader))), b.not_(reading)))):
        b.call("check.record", "void", [i64(FOUND.index("race")), block, b.cast("zext", number, "i64"), program, address, lane,
                                        b.cast("zext", b.select(wrong, writer, reader), "i64"), b.cast("zext", wrong, "i64")])
    with b.either(reading) as (yes, no):
        with yes:
            leave(reader_at, reader, read)
        with no:
            leave(writer_at, writer, b.and_(written, both(writer)))
    b.ret()


def _apart(m: Module):
    """A line's marks go to its granules. whole_at: the line's; at: its first granule's."""
    b = define(m, "check.apart", "void", "internal", "noinline", block="ptr", whole_at="ptr", at="ptr")
    block, whole_at, at = b.fn.args
    whole = b.load("i32", whole_at)
    base = b.shl(b.get(BLOCK, block, "launch"), 8)
    # Marks of earlier launches say nothing: what is in the granules then does not either.
    with b.when(b.icmp("uge", whole, base)):
        b.store(b.splat(whole, LINE), at, 4)
    b.store(b.add(base, i32(APART)), whole_at)
    b.ret()


def _race(m: Module, orders: bool):
    """What a site does to `bytes` from an address on, inside an extent."""
    _granule(m, orders)
    _apart(m)
    b = define(m, "check.race", "void", "internal", "noinline", block="ptr", site="ptr", extent="ptr", program="i64", address="i64", bytes="i64",
               first="i64", step="i64")
    block, site, extent, program, address, bytes_, first, step = b.fn.args
    touched = Touched(b, block, site, program, extent, orders)
    with b.when(touched.unmarked):
        b.ret()
    touched.look(address, bytes_, first, step)
    b.ret()


class Touched:
    """A site of a program that touches an extent: what runs of elements are judged by, looked up once."""

    def __init__(self, b: Builder, block: Val, site: Val, program: Val, extent: Val, orders: bool):
        self.b, self.block, self.site, self.program, self.orders = b, block, site, program, orders
        self.writers, self.readers, self.writers_apart, self.readers_apart = (
            b.get(EXTENT, extent, name) for name in ("writers", "readers", "writers_apart", "readers_apart"))
        self.unmarked = b.icmp("eq", self.writers, NULL)
        self.unread = b.icmp("eq", self.readers, NULL)
        self.reading, self.atomic = _kinds(b, site)
        self.size = b.cast("zext", b.get(SITE, site, "bytes"), "i64")
        self.origin = b.sub(b.get(EXTENT, extent, "start"), b.get(EXTENT, extent, "skew"))
        self.me = mark(b, block, b.get(SITE, site, "number"), self.atomic)
        self.others = Others(b, block, orders)
        self.base, self.span = self.others.base, self.others.span
        self.granule = b.get(BLOCK, block, "granule")
        self.spare = b.field(BLOCK, block, "spare")

    def look(self, address: Val, bytes_: Val, first: Val, step: Val):
        """What the site does to `bytes_` from an address on; first: the first element's lane; step: lanes to the next one."""
        b = self.b
        start = b.sub(address, self.origin)
        begin, end = self.granule_at(start), b.add(self.granule_at(b.sub(b.add(start, bytes_), 1)), 1)
        line, last = b.variable(b.lshr(begin, LINE_BITS)), b.add(b.lshr(b.sub(end, 1), LINE_BITS), 1)
        whole_from, whole_to = b.lshr(b.add(begin, LINE - 1), LINE_BITS), b.lshr(end, LINE_BITS)
        with b.loop_while(lambda: b.icmp("slt", line.get(), last)) as turn:
            at = line.get()
            several = b.and_(b.icmp("sge", at, whole_from), b.icmp("sle", b.add(at, SEVERAL), whole_to))
            with b.when(b.and_(several, b.not_(self.atomic))), b.when(self._whole(at, SEVERAL)):
                line.set(b.add(at, SEVERAL))
                turn.again()
            line.set(b.add(at, 1))
            quiet = b.variable(b.and_(b.and_(b.icmp("sge", at, whole_from), b.icmp("slt", at, whole_to)), b.not_(self.atomic)))
            with b.when(quiet.get()):
                quiet.set(self._whole(at, 1))
            with b.when(b.not_(quiet.get())):
                self._part(at, begin, end, lambda here: self._granule(address, begin, here, first, step))

    def granule_at(self, offset: Val) -> Val:
        """The number of the granule that a byte is of."""
        return self.b.lshr(offset, self.b.splat(self.granule, offset.lanes))

    def _whole(self, line: Val, n: int) -> Val:
        """`n` whole lines are touched: an i1, may their marks say so? Then they do."""
        b, ty = self.b, vec("i32", n) if n > 1 else "i32"
        writer_at, reader_at = b.gep("i32", self.writers, line), b.select(self.unread, self.spare, b.gep("i32", self.readers, line))
        me, base, span, apart = (b.splat(v, n) for v in (self.me, self.base, self.span, b.add(self.base, i32(APART))))
        mine = b.icmp("uge", b.sub(b.load(ty, writer_at, 4), base), span)
        theirs = b.select(b.splat(self.unread, n), base, b.load(ty, reader_at, 4))
        alone = b.or_(b.splat(self.unread, n), b.icmp("uge", b.sub(theirs, base), span))
        # several may have read it, unless order has to be looked up or granules are told apart
        shared = FALSE if self.orders else b.and_(b.splat(self.reading, n), b.icmp("ne", theirs, apart))
        fine = b.every(b.and_(mine, b.or_(alone, shared)))
        with b.when(fine), b.either(self.reading) as (yes, no):
            with yes:
                b.store(b.select(alone, me, base), reader_at, 4)
            with no:
                b.store(me, writer_at, 4)
        return fine

    def _part(self, line: Val, begin: Val, end: Val, one):
        """Granules of a line, those between `begin` and `end`. one(granule): judge one of them by itself."""
        b, low = self.b, self.b.shl(line, LINE_BITS)
        from_, to = b.smax(b.sub(begin, low), 0), b.smin(b.sub(end, low), LINE)
        mine = b.gep("i32", self.writers_apart, low)
        others = b.select(self.unread, mine, b.gep("i32", self.readers_apart, low))
        self.tell_apart(self.writers, self.writers_apart, line)
        with b.when(b.not_(self.unread)):
            self.tell_apart(self.readers, self.readers_apart, line)
        lanes = b.iota("i32", LINE)
        mask = b.and_(b.icmp("sge", lanes, b.splat(b.cast("trunc", from_, "i32"), LINE)), b.icmp("slt", lanes, b.splat(b.cast("trunc", to, "i32"), LINE)))
        writers_now, readers_now = (b.load(vec("i32", LINE), at, 4) for at in (mine, others))
        fresh, free = (b.or_(b.not_(self.others.marked(now)), b.not_(mask)) for now in (writers_now, readers_now))
        alone = b.and_(b.every(fresh), b.or_(b.every(free), FALSE if self.orders else self.reading))
        with b.either(alone) as (yes, no):
            with yes, b.either(self.reading) as (reads, writes):
                with reads:
                    after = b.select(free, left(b, self.me, readers_now), b.splat(self.base, LINE))
                    b.store(b.select(mask, after, readers_now), others, 4)
                with writes:
                    b.store(b.select(mask, left(b, self.me, writers_now), writers_now), mine, 4)
            with no, b.loop(from_, to) as n:
                one(b.add(low, n))

    def tell_apart(self, whole: Val, apart: Val, line: Val):
        """Is it told of a line yet that its granules stand apart?"""
        b = self.b
        whole_at = b.gep("i32", whole, line)
        with b.when(b.icmp("ne", b.load("i32", whole_at), b.add(self.base, i32(APART)))):
            b.call("check.apart", "void", [self.block, whole_at, b.gep("i32", apart, b.shl(line, LINE_BITS))])

    def _granule(self, address: Val, begin: Val, here: Val, first: Val, step: Val):
        b = self.b
        element = b.udiv(b.shl(b.sub(here, begin), self.granule), self.size)
        b.call("check.granule", "void", [self.block, self.site, self.program, b.gep("i32", self.writers_apart, here),
                                         b.select(self.unread, self.spare, b.gep("i32", self.readers_apart, here)),
                                         b.add(address, b.mul(element, self.size)), b.add(first, b.mul(step, element))])
