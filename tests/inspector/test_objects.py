"""Objects that were not linked yet: branches and calls are relocations there."""

import struct

from triport.tools.inspector import isa, relocations, text


_RELAXED = """
f.o:\tfile format elf64-littleriscv

0000000000000000 <f>:
       0:      \tflw\tfa0, 0x0(a1)

0000000000000004 <.L0 >:
       4:      \tauipc\tra, 0x0
\t\t0000000000000004:  R_RISCV_CALL_PLT\texpf
\t\t0000000000000004:  R_RISCV_RELAX\t*ABS*
       8:      \tjalr\tra <f+0x4>
       c:      \tbnez\ta2, 0x4 <f+0x4>
\t\t000000000000000c:  R_RISCV_BRANCH\t.L0
"""


def test_labels_of_the_assembler_are_no_functions_and_calls_have_names():
    (f,) = text.functions(_RELAXED, isa.ISAS["riscv64"])
    assert f.name == "f" and [i.text for i in f.instructions][2:] == ["call expf", "bnez a2, .L4"] and f.labels == {".L4": 1}


def test_branches_that_are_left_to_the_linker_get_their_targets():
    """An object of one section .text with a relocation for each kind of branch, all to offset 32, by a symbol."""
    code = bytearray(64)
    places = {0: (16, 0x00050063), 4: (17, 0x6f), 8: (44, 0xc101), 10: (45, 0xa001)}  # beqz a0; j; c.beqz a0; c.j, each to itself
    for at, (_, word) in places.items():
        code[at:at + 4] = word.to_bytes(4, "little") if at < 8 else word.to_bytes(2, "little") + code[at + 2:at + 4]
    relas = b"".join(struct.pack("<QQq", at, 1 << 32 | kind, 0) for at, (kind, _) in places.items())
    symbols = bytes(24) + struct.pack("<IBBHQQ", 0, 0, 0, 1, 32, 0)
    at = [64, 64 + len(code), 64 + len(code) + len(relas)]
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 1, 243, 1, 0, 0, at[2] + len(symbols), 0, 64, 0, 0, 64, 4, 0)
    section = lambda kind, offset, size, link=0, info=0: struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, info, 1, 24)  # noqa: E731
    data = header + bytes(code) + relas + symbols + bytes(64) + section(1, at[0], 64) + section(4, at[1], len(relas), 3, 1) + section(2, at[2], 48)
    done = relocations.resolved(data)[64:128]
    assert int.from_bytes(done[0:4], "little") == 0x02050063 and int.from_bytes(done[4:8], "little") == 0x01c0006f  # beqz a0, 32; j 28
    assert int.from_bytes(done[8:10], "little") == 0xcd01 and int.from_bytes(done[10:12], "little") == 0xa819  # c.beqz a0, 24; c.j 22
    assert relocations.resolved(data[:150]) == data[:150] and relocations.resolved(b"text") == b"text"


def test_branches_of_32_bit_code():
    """The same for RV32, whose ELF files are of another form."""
    code = (0x00050063).to_bytes(4, "little") + (0x6f).to_bytes(4, "little") + bytes(56)
    relas = struct.pack("<IIi", 0, 1 << 8 | 16, 0) + struct.pack("<IIi", 4, 1 << 8 | 17, -4)
    symbols = bytes(16) + struct.pack("<IIIBBH", 0, 32, 0, 0, 0, 1)
    at = [52, 52 + len(code), 52 + len(code) + len(relas)]
    header = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 1, 243, 1, 0, 0, at[2] + len(symbols), 0, 52, 0, 0, 40, 4, 0)
    section = lambda kind, offset, size, link=0, info=0: struct.pack("<IIIIIIIIII", 0, kind, 0, 0, offset, size, link, info, 1, 12)  # noqa: E731
    data = header + code + relas + symbols + bytes(40) + section(1, at[0], 64) + section(4, at[1], len(relas), 3, 1) + section(2, at[2], 32)
    done = relocations.resolved(data)[52:60]
    assert int.from_bytes(done[0:4], "little") == 0x02050063 and int.from_bytes(done[4:8], "little") == 0x0180006f  # beqz a0, 32; j 24
