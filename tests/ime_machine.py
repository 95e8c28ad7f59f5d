"""An interpreter of the few RISC-V instructions that the IME micro-kernel consists of, from its machine code: what each does is written down from the ISA's
manuals ("V" 1.0; SpacemiT AI Matrix Extension Instruction Set 0.6, 5.1.3), and shares nothing with what the code is made by."""

import struct

VLENB = 32  # bytes of a vector register


class Illegal(Exception):
    pass


class Memory:
    """Regions of bytes: an access that is not within one of them is an error, and so is one that writes where it may not."""

    def __init__(self):
        self.regions = []

    def add(self, data: bytes, at: int, writable: bool = False) -> int:
        self.regions.append((at, bytearray(data), writable))
        return at

    def at(self, address: int, size: int, write: bool = False):
        for start, data, writable in self.regions:
            if start <= address and address + size <= start + len(data) and (writable or not write):
                return data, address - start
        raise Illegal(f"{'write' if write else 'read'} of {size} bytes at {address:#x}")

    def read(self, address: int, size: int) -> bytes:
        data, offset = self.at(address, size)
        return bytes(data[offset:offset + size])

    def write(self, address: int, value: bytes):
        data, offset = self.at(address, len(value), True)
        data[offset:offset + len(value)] = value


def field(word: int, low: int, bits: int) -> int:
    return word >> low & (1 << bits) - 1


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Machine:
    """A core with registers of 256 bits. Before a call everything holds garbage; what tails and scalar registers hold that are the caller's is checked."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self.x = [0xdead0000 + n for n in range(32)]
        self.x[0] = 0
        self.v = bytearray(b"\xa5" * 32 * VLENB)
        self.vl, self.sew, self.lmul = 0, None, None
        self.executed = []

    def call(self, code: bytes, *arguments: int):
        """A function's code, by the C calling convention; raises `Illegal` for what it must not do."""
        for n, value in enumerate(arguments):
            self.x[10 + n] = value & (1 << 64) - 1
        self.x[1] = 0x7000
        mine = {n: self.x[n] for n in (1, 2, 3, 4, 8, 9, *range(18, 28))}
        pc, start = 0x1000, 0x1000
        while pc != 0x7000:
            if not start <= pc < start + len(code):
                raise Illegal(f"jump to {pc:#x}")
            word, = struct.unpack_from("<I", code, pc - start)
            pc = self.step(word, pc)
            self.x[0] = 0
        changed = [n for n, value in mine.items() if self.x[n] != value]
        if changed:
            raise Illegal(f"registers of the caller's changed: {changed}")

    def step(self, word: int, pc: int) -> int:
        """Execute an instruction: the address of the next one."""
        opcode, rd, three, rs1, rs2 = (field(word, low, n) for low, n in ((0, 7), (7, 5), (12, 3), (15, 5), (20, 5)))
        if opcode == 0x13 and three == 0:
            return self.put("addi", rd, self.x[rs1] + signed(word >> 20, 12), pc)
        if opcode == 0x33 and three == 0 and word >> 25 == 0:
            return self.put("add", rd, self.x[rs1] + self.x[rs2], pc)
        if opcode == 0x67 and three == 0:
            self.executed.append("jalr")
            return self.put("", rd, pc + 4, self.x[rs1] + signed(word >> 20, 12) - 4)
        if opcode == 0x63 and three in (0, 1):
            self.executed.append("beq" if three == 0 else "bne")
            to = field(word, 31, 1) << 12 | field(word, 7, 1) << 11 | field(word, 25, 6) << 5 | field(word, 8, 4) << 1
            return pc + signed(to, 13) if (self.x[rs1] == self.x[rs2]) == (three == 0) else pc + 4
        if opcode == 0x57 and three == 7:
            return self.configure(word, rd, rs1, pc)
        if opcode in (0x07, 0x27):
            return self.access(word, opcode == 0x27, rd, rs1, rs2, three, pc)
        if opcode == 0x2b and word >> 25 == 0x71 and three < 4:
            return self.vmadot(rd, rs1, rs2, three, pc)
        raise Illegal(f"instruction {word:#010x}")

    def put(self, name: str, rd: int, value: int, pc: int) -> int:
        self.executed += [name] * bool(name)
        if rd:
            self.x[rd] = value & (1 << 64) - 1
        return pc + 4

    def configure(self, word: int, rd: int, rs1: int, pc: int) -> int:
        immediate = word >> 30 == 3
        if not immediate and word >> 31:
            raise Illegal("vsetvl")
        vtype = field(word, 20, 10 if immediate else 11)
        if vtype >> 8 or vtype >> 2 & 1 or field(vtype, 3, 3) > 3:
            raise Illegal(f"vtype {vtype:#x}")
        self.sew, self.lmul = 8 << field(vtype, 3, 3), 1 << field(vtype, 0, 2)
        most = VLENB * 8 * self.lmul // self.sew
        wanted = rs1 if immediate else self.x[rs1] if rs1 else most if rd else self.vl
        if most < wanted < 2 * most:
            raise Illegal("how many elements is the implementation's choice")
        self.vl = min(wanted, most)
        return self.put("vsetivli" if immediate else "vsetvli", rd, self.vl, pc)

    def access(self, word: int, store: bool, vd: int, rs1: int, rs2: int, width: int, pc: int) -> int:
        if field(word, 25, 1) != 1 or word >> 28 or self.sew is None:
            raise Illegal(f"masks, segments, or no vtype: {word:#010x}")
        eew = {0: 8, 5: 16, 6: 32, 7: 64}.get(width) or self.illegal("width")
        kind = field(word, 26, 2)
        if kind == 0 and rs2 == 0:
            name, size = f"v{'s' if store else 'l'}e{eew}", eew // 8
            registers, places = self.lmul * eew // self.sew, [self.x[rs1] + size * k for k in range(self.vl)]
        elif kind == 1:
            name, size, registers = f"v{'su' if store else 'lu'}xei{eew}", self.sew // 8, self.lmul
            offsets = self.group(rs2, self.lmul * eew // self.sew)
            places = [self.x[rs1] + int.from_bytes(self.v[offsets + eew // 8 * k:][:eew // 8], "little") for k in range(self.vl)]
        else:
            self.illegal(f"addressing {word:#010x}")
        base = self.group(vd, registers)
        for k, place in enumerate(places):
            if place % size:
                raise Illegal(f"{name} at {place:#x}: not aligned to an element")
            lane = slice(base + size * k, base + size * (k + 1))
            if store:
                self.memory.write(place, bytes(self.v[lane]))
            else:
                self.v[lane] = self.memory.read(place, size)
        self.executed.append(name)
        return pc + 4

    def group(self, register: int, count: int) -> int:
        """Where in the vector registers a group starts, in bytes."""
        if count not in (1, 2, 4, 8) or register % count:
            raise Illegal(f"v{register} as a group of {count}")
        return register * VLENB

    def vmadot(self, vd: int, vs1: int, vs2: int, three: int, pc: int) -> int:
        if self.sew != 8 or self.lmul != 1 or self.vl != VLENB:
            raise Illegal(f"vmadot at e{self.sew}, m{self.lmul}, vl {self.vl}")
        if vd % 2 or {vs1, vs2} & {vd, vd + 1}:
            raise Illegal(f"vmadot v{vd}, v{vs1}, v{vs2}")
        a_signed, b_signed = {3: (True, True), 0: (False, False), 2: (True, False), 1: (False, True)}[three]
        a, b = self.v[vs1 * VLENB:][:VLENB], self.v[vs2 * VLENB:][:VLENB]
        for p in range(16):
            at = vd * VLENB + 4 * p
            total = int.from_bytes(self.v[at:at + 4], "little")
            for q in range(8):
                x, y = a[p // 4 * 8 + q], b[p % 4 * 8 + q]
                total += (signed(x, 8) if a_signed else x) * (signed(y, 8) if b_signed else y)
            self.v[at:at + 4] = (total & 0xffffffff).to_bytes(4, "little")
        self.executed.append("vmadot" + {3: "", 0: "u", 2: "su", 1: "us"}[three])
        return pc + 4

    @staticmethod
    def illegal(what: str):
        raise Illegal(what)
