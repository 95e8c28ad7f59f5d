"""What a checked launch tells its kernel and hears from it: one block of memory, whose address follows the kernel's arguments."""

from __future__ import annotations

from ...llvm.ir import Builder, Struct, Val, i64

#: what an argument's pointer may touch: `bytes` from `start` on. writers, readers: of each line, who was the last (an episode and a site, see
#: `race.py`), and the same of each granule, where they stand apart; written: of each byte, 1 where somebody has; each null where it is not looked at (nobody writes there in
#: this launch, or nobody reads). skew: bytes from the start of the marks' first line to `start`
EXTENT = Struct("check.extent", start="i64", bytes="i64", writers="ptr", readers="ptr", written="ptr",
                skew="i64", writers_apart="ptr", readers_apart="ptr")
#: counts: of findings, by site and kind; records: of the first of each; extents: of the arguments, in their order, then of whatever else pointers from
#: memory may point to (`known` in all). launch: the episode before this launch's first; first: of the program that runs; episode: now; owners: the program
#: of each episode; mine: bits of the launch's episodes that are in order before now; sets: such bits for each place that puts programs in order; words:
#: 64-bit words of each; releases: the number, from `launch` on, that an episode which begins behind a release is below. groups: the number of the first
#: group of episodes; grouped, most: how many there are and may be; members: such bits of each; memo: what was joined before, as `JOINED`; spare: what
#: may be read and written in place of a mark; granule: log2 of the bytes that have a mark of
#: their own; services: where the functions of lanes.py are, by `SERVICES`
BLOCK = Struct("check.block", count="i64", capacity="i64", records="ptr", counts="ptr", extents="ptr", known="i64", launch="i32", first="i32",
               episode="i32", groups="i32", owners="ptr", mine="ptr", sets="ptr", words="i64", releases="i64", grouped="i64", most="i64",
               members="ptr", memo="ptr", spare="i64", granule="i64", services="ptr")
#: what an episode or a group, joined by an episode, is
JOINED = Struct("check.joined", old="i32", new="i32", group="i32")
#: groups of a launch, and places to remember them in
GROUPS, MEMO = 4096, 4096
#: one finding. lane: of the block, all its dimensions as one; value, other: what the kind says
RECORD = Struct("check.record", kind="i64", site="i64", program="i64", address="i64", lane="i64", value="i64", other="i64", padding="i64")
#: kinds of findings, in this order in `counts`
FOUND = ("bounds", "race", "uninit", "overflow", "nan")
#: findings of one kind at one site that are recorded, and findings of a launch
EACH, CAPACITY = 4, 256
#: what a kernel returns that ends its launch
STOPPED = 2
#: places that put programs in order are told apart by a hash of so many values
PLACES = 4096
SITE = Struct("check.site", number="i32", access="i32", bytes="i32", count="i32")
#: what a program that may wait found at a place, and how often the same; so often that it waits for ever: nobody else runs who could change it
WAIT = Struct("check.wait", address="i64", value="i64", times="i64")
FOR_EVER = 1 << 24
#: in place of whether a race is with who wrote: it is a wait
WAITED = 2
#: memory that was given and that nobody has written: byte n of a storage is PATTERN + n * STEP, modulo 256; UNIT of them are written or not as one, but
#: for what a checked kernel writes
PATTERN, STEP, UNIT = 0xA5, 167, 4
#: granules of a line (race.py); what its mark is, beyond launch << 8, where granules stand apart
LINE_BITS = 4
LINE, APART = 1 << LINE_BITS, 1
#: functions that are the same for many kernels, compiled once: @check.record and so on
SERVICES = ("record", "run", "box", "lanes", "wait", "indices", "begin", "order")


#: the number of the program that runs
PROGRAM = Val("i64", "%program.id")


def service(b: Builder, block: Val, name: str) -> Val:
    """The address of a function."""
    return b.load("ptr", b.gep("ptr", b.get(BLOCK, block, "services"), i64(SERVICES.index(name))))
