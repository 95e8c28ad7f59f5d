"""Small pieces of PTX, SASS and AMDGCN of known quality: what their memory requests cost, and why."""

import pytest
from triport.tools.inspector import code, report, verdict

PTX = (".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(\n .param .u64 k_param_0,\n .param .u64 k_param_1,\n .param .u32 k_param_2\n)\n{{\n"
       " ld.param.u64 %rd1, [k_param_0];\n ld.param.u64 %rd2, [k_param_1];\n ld.param.u32 %r9, [k_param_2];\n mov.u32 %r1, %tid.x;\n{}\n ret;\n}}\n")
SASS = "\t.target\tsm_90\n\t.section\t.text.k,\"ax\",@progbits\n{}\n"
AMD = ("\t.amdgcn_target \"amdgcn-amd-amdhsa--gfx942\"\n\t.text\n\t.globl k\n\t.type k,@function\nk:\n\ts_load_dwordx4 s[4:7], s[0:1], 0x0\n\ts_load_dword s8, s[0:1], 0x10\n"
       "\tv_and_b32_e32 v0, 0x3ff, v0\n{}\n\ts_endpgm\n")


def judged(isa, body):
    if isa == "ptx":
        source = PTX.format(body)
    elif isa == "sass":
        lines = ["S2R R0, SR_TID.X", "ULDC.64 UR4, c[0x0][0x208]", "LDC.64 R2, c[0x0][0x210]", *body.strip().split("\n"), "EXIT"]
        source = SASS.format("\n".join(f"        /*{16 * k:04x}*/                   {x.strip()} ;" for k, x in enumerate(lines)))
    else:
        source = AMD.format(body)
    r = report.of(code.Code("k", {"ptx": "sm_90", "sass": "sm_90", "amdgcn": "gfx942"}[isa], isa, source))
    assert r.unknown == 0
    return r


def at(scale, offset=""):
    """PTX: %rd4 is the address of an element of `scale` bytes for each thread."""
    return f"{offset}\n mul.wide.s32 %rd3, %r1, {scale};\n add.s64 %rd4, %rd1, %rd3;\n"


def lds(scale, access="LDG.E R4, desc[UR4][R2.64]"):
    return f"IMAD.WIDE R2, R0, {scale}, R2\n{access}\nFADD R5, R4, R4"


#: (name, ISA, body) -> verdict, bytes asked for, sectors touched, cause
PIECES = {
    ("one word a thread", "ptx", at(4) + "ld.global.f32 %f1, [%rd4];"): ("VECTOR", 128, 4, None),
    ("by the generic address", "ptx", at(4) + "ld.f32 %f1, [%rd4];"): ("VECTOR", 128, 4, None),
    ("four words a thread", "ptx", at(16) + "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4];"): ("VECTOR", 512, 16, None),
    ("a word of four a thread", "ptx", at(16) + "ld.global.f32 %f1, [%rd4];"): ("SCALAR", 128, 16, "stride"),
    ("every other word", "ptx", at(8) + "ld.global.f32 %f1, [%rd4];"): ("PARTLY", 128, 8, "stride"),
    ("columns", "ptx", "mul.lo.s32 %r1, %r1, %r9;" + at(4) + "ld.global.f32 %f1, [%rd4];"): ("SCALAR", 128, 32, "stride"),
    ("rows of four far apart", "ptx", "mul.lo.s32 %r1, %r1, %r9;" + at(4) + "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4];"): ("PARTLY", 512, 32, "stride"),
    ("two halves in one register", "ptx", at(4) + "ld.global.b32 %r5, [%rd4];\n add.f16x2 %r6, %r5, %r5;"): ("VECTOR", 128, 4, None),
    ("four bytes in one register", "ptx", at(4) + "ld.global.v4.b8 {%r5, %r6, %r7, %r8}, [%rd4];"): ("VECTOR", 128, 4, None),
    ("one half a thread", "ptx", at(2) + "ld.global.b16 %rs1, [%rd4];"): ("PARTLY", 64, 2, "narrow accesses"),
    ("one byte a thread", "ptx", at(1) + "ld.global.u8 %rs1, [%rd4];"): ("PARTLY", 32, 1, "narrow accesses"),
    ("one value for all", "ptx", "ld.global.f32 %f1, [%rd1];"): ("SCALAR", 4, 1, "one element at a time"),
    ("a value for all beside a row", "ptx", at(4) + "ld.global.f32 %f1, [%rd2];\n ld.global.f32 %f2, [%rd4];"): ("VECTOR", 128, 4, None),
    ("a row that starts late", "ptx", at(4) + "ld.global.f32 %f1, [%rd4+4];"): ("PARTLY", 128, 5, "rows off sectors"),
    ("a gather", "ptx", at(4) + "ld.global.u32 %r5, [%rd4];\n mul.wide.s32 %rd5, %r5, 4;\n add.s64 %rd6, %rd2, %rd5;\n ld.global.f32 %f1, [%rd6];"): ("PARTLY", 128, 18, "gather"),
    ("half a warp", "ptx", at(4) + "setp.lt.s32 %p1, %r1, 16;\n @%p1 ld.global.f32 %f1, [%rd4];"): ("PARTLY", 64, 2, "narrow accesses"),
    ("backwards", "ptx", "sub.s32 %r1, 31, %r1;" + at(4) + "ld.global.f32 %f1, [%rd4];"): ("VECTOR", 128, 4, None),
    ("swapped pairs", "ptx", "xor.b32 %r1, %r1, 1;" + at(4) + "ld.global.f32 %f1, [%rd4];"): ("VECTOR", 128, 4, None),
    ("who knows where", "ptx", "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd99];"): ("VECTOR", None, None, None),
    ("who knows where, narrow", "ptx", "ld.global.f32 %f1, [%rd99];"): ("PARTLY", None, None, "addresses unknown"),
    ("each thread on its own", "ptx", "$L1:\n ld.global.f32 %f1, [%rd99];\n add.f32 %f2, %f1, %f2;\n add.s64 %rd99, %rd99, 4;\n setp.lt.s64 %p1, %rd99, %rd98;\n @%p1 bra $L1;"):
        ("SCALAR", 128, 32, "stride"),
    ("all threads together, from somewhere", "ptx", "$L1:\n ld.global.f32 %f1, [%rd99];\n add.f32 %f2, %f1, %f2;\n add.s64 %rd99, %rd99, 512;\n @%p1 bra $L1;"):
        ("PARTLY", None, None, "addresses unknown"),
    ("a spill", "ptx", at(4) + "ld.global.f32 %f1, [%rd4];\n st.local.f32 [%rd8], %f1;"): ("PARTLY", 128, 4, "spills"),
    ("SASS, one word", "sass", lds("0x4")): ("VECTOR", 128, 4, None),
    ("SASS, generic", "sass", lds("0x4", "LD.E R4, desc[UR4][R2.64]")): ("VECTOR", 128, 4, None),
    ("SASS, generic and far apart", "sass", lds("0x40", "LD.E R4, desc[UR4][R2.64]")): ("SCALAR", 128, 32, "stride"),
    ("SASS, 128 bits", "sass", lds("0x10", "LDG.E.128 R4, desc[UR4][R2.64]")): ("VECTOR", 512, 16, None),
    ("SASS, columns", "sass", "LDC R9, c[0x0][0x220]\nIMAD R0, R0, R9, RZ\n" + lds("0x4")): ("SCALAR", 128, 32, "stride"),
    ("SASS, bits of the thread's number", "sass", "LOP3.LUT R0, R0, 0x1f, RZ, 0xc0, !PT\nSHF.L.U32 R0, R0, 0x1, RZ\n" + lds("0x4")): ("PARTLY", 128, 8, "stride"),
    ("SASS, for the TMA unit", "sass", "UTMALDG.2D [UR8], [UR4]\nFADD R5, R4, R4"): ("VECTOR", None, None, None),
    ("AMD, one word", "amdgcn", "v_lshlrev_b32_e32 v1, 2, v0\n\tglobal_load_dword v2, v1, s[4:5]\n"): ("VECTOR", 256, 4, None),
    ("AMD, 128 bits", "amdgcn", "v_lshlrev_b32_e32 v1, 4, v0\n\tglobal_load_dwordx4 v[4:7], v1, s[4:5]\n"): ("VECTOR", 1024, 16, None),
    ("AMD, columns", "amdgcn", "v_mul_lo_u32 v1, v0, s8\n\tv_lshlrev_b32_e32 v1, 2, v1\n\tglobal_load_dword v2, v1, s[4:5]\n"): ("SCALAR", 256, 64, "stride"),
    ("AMD, a buffer", "amdgcn", "v_lshlrev_b32_e32 v1, 3, v0\n\tbuffer_load_dword v2, v1, s[4:7], 0 offen\n"): ("PARTLY", 256, 8, "stride"),
    ("AMD, each thread on its own", "amdgcn", ".LBB0_1:\n\tglobal_load_dword v4, v[8:9], off\n\tv_add_f32_e32 v5, v4, v5\n\tv_add_co_u32_e32 v8, vcc, 4, v8\n"
     "\tv_addc_co_u32_e32 v9, vcc, 0, v9, vcc\n\ts_cbranch_scc1 .LBB0_1\n"): ("SCALAR", 256, 64, "stride"),
    ("AMD, by the whole address", "amdgcn", "v_lshlrev_b32_e32 v1, 2, v0\n\tv_mov_b32_e32 v3, s5\n\tv_add_co_u32_e32 v2, vcc, s4, v1\n\tv_addc_co_u32_e32 v3, vcc, 0, v3, vcc\n"
     "\tflat_load_dword v4, v[2:3]\n"): ("VECTOR", 256, 4, None),
}


@pytest.mark.parametrize("piece", PIECES, ids=lambda p: f"{p[1]}: {p[0]}")
def test_requests(piece):
    want, useful, sectors, cause = PIECES[piece]
    r = judged(*piece[1:])
    (hot,) = r.hot
    assert r.verdict == want, hot.memory
    assert (hot.memory.bytes_per_request, hot.memory.sectors) == (useful, sectors)
    causes = verdict.causes(hot, True)
    assert ([c.name for c in causes] or [None])[0] == cause
    assert all(c.text and c.remedy for c in causes)
    assert bool(r.failures(verdict.requirements("vector>=0.95"))) == (hot.figures["vector"] < 0.95)


def test_a_stride_is_named():
    """The argument that is the stride, not one that the access does not use."""
    (hot,) = judged("ptx", "mul.lo.s32 %r1, %r1, %r9;" + at(4) + "ld.global.f32 %f1, [%rd4];").hot
    assert "argument 2" in verdict.causes(hot, True)[0].text
    (hot,) = judged("ptx", at(12) + "ld.global.f32 %f1, [%rd4];").hot
    assert "12 bytes apart" in verdict.causes(hot, True)[0].text


@pytest.mark.parametrize("isa,body,conflicts", [
    ("ptx", "shl.b32 %r2, %r1, 2;\n ld.shared.f32 %f1, [%r2];", 0), ("ptx", "shl.b32 %r2, %r1, 7;\n ld.shared.f32 %f1, [%r2];", 31),
    ("ptx", "shl.b32 %r2, %r1, 3;\n ld.shared.f32 %f1, [%r2];", 1), ("ptx", "mul.lo.s32 %r2, %r1, 132;\n ld.shared.f32 %f1, [%r2];", 0),
    ("ptx", "mov.u32 %r2, 64;\n ld.shared.f32 %f1, [%r2];", 0), ("ptx", "shl.b32 %r2, %r1, 4;\n ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r2];", 0),
    ("ptx", "shl.b32 %r2, %r1, 7;\n ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r2];", 7),
    ("ptx", "mul.lo.s32 %r2, %r1, 144;\n ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r2];", 0),
    ("sass", "SHF.L.U32 R1, R0, 0x8, RZ\nLDS R4, [R1]\nFADD R5, R4, R4", 31), ("sass", "SHF.L.U32 R1, R0, 0x4, RZ\nLDS.128 R4, [R1]\nFADD R5, R4, R4", 0),
    ("amdgcn", "v_lshlrev_b32_e32 v1, 2, v0\n\tds_read_b32 v2, v1\n", 0), ("amdgcn", "v_lshlrev_b32_e32 v1, 7, v0\n\tds_read_b32 v2, v1 offset:64\n", 31),
])
def test_bank_conflicts(isa, body, conflicts):
    (hot,) = judged(isa, body).hot
    assert hot.figures["conflicts"] == conflicts
    assert ("bank conflicts" in [c.name for c in verdict.causes(hot, True)]) == (conflicts > 0)


def test_banks_that_data_chooses_are_not_known():
    (hot,) = judged("ptx", at(4) + "ld.global.u32 %r5, [%rd4];\n shl.b32 %r6, %r5, 2;\n red.shared.add.u32 [%r6], 1;").hot
    assert hot.figures["conflicts"] is None and verdict.of(hot, True) == "VECTOR"


@pytest.mark.parametrize("isa,body,share,count", [
    ("ptx", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r2, %r3, %r4, %r5}, {%r6, %r7}, {%f1, %f2, %f3, %f4};", 1, 1),
    ("ptx", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r2];\n fma.rn.f32 %f1, %f2, %f3, %f4;", 0, 0),
    ("ptx", "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 1;", 1, 1),
    ("sass", "LDSM.16.M88.4 R4, [R2]\nSTSM.16.M88.4 [R2], R4\nHFMA2 R4, R5, R6, R4", 0, 0), ("sass", "HMMA.16816.F32.BF16 R4, R8, R12, R4", 1, 1),
    ("sass", "HMMA.16816.F32 R4, R8, R12, R4\nFFMA R1, R2, R3, R4", 0.9846, 1),
    ("amdgcn", "v_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]", 1, 1), ("amdgcn", "v_fma_f32 v1, v2, v3, v4", 0, 0),
])
def test_tensor_cores(isa, body, share, count):
    """ldmatrix and its like move data; they are no tensor cores."""
    (hot,) = judged(isa, body).hot
    assert (hot.figures["tensor_cores"], hot.figures["matrix"]) == (share, count)


#: a call that returns an index, and an access by it
CALLS = {
    "ptx": "{{ .param .b32 param0;\n st.param.b32 [param0+0], %r9;\n .param .b64 retval0;\n call.uni (retval0), row, (param0);\n ld.param.b64 %rd5, [retval0+0];\n }}\n"
           " cvt.u64.u32 %rd6, %r1;\n add.s64 %rd7, %rd5, %rd6;\n shl.b64 %rd8, %rd7, 2;\n add.s64 %rd4, %rd1, %rd8;\n ld.global.f32 %f1, [%rd4];",
    "ptx, by registers": "call.uni (%rd5), row, (%r9);\n cvt.u64.u32 %rd6, %r1;\n add.s64 %rd7, %rd5, %rd6;\n shl.b64 %rd8, %rd7, 2;\n add.s64 %rd4, %rd1, %rd8;\n ld.global.f32 %f1, [%rd4];",
    "amdgcn": "\tv_mov_b32_e32 v40, v0\n\ts_swappc_b64 s[30:31], s[0:1]\n\tv_add_u32_e32 v1, v0, v40\n\tv_lshlrev_b32_e32 v1, 2, v1\n\tglobal_load_dword v2, v1, s[34:35]\n",
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_function_returns_is_not_known(name):
    """It may be another number for each thread, as 4096 times the thread's is."""
    (hot,) = judged(name.partition(",")[0], CALLS[name].replace("{{", "{").replace("}}", "}")).hot
    assert verdict.of(hot, True) == "PARTLY" and [q.known for q in hot.memory.requests] == [False]
    assert "addresses unknown" in [c.name for c in verdict.causes(hot, True)]


def test_registers_that_a_function_keeps():
    (hot,) = judged("amdgcn", "\tv_lshlrev_b32_e32 v40, 2, v0\n\ts_swappc_b64 s[30:31], s[0:1]\n\tglobal_load_dword v2, v40, s[34:35]\n").hot
    assert [q.known for q in hot.memory.requests] == [True] and verdict.of(hot, True) == "VECTOR"


@pytest.mark.parametrize("isa,source", [
    ("ptx", PTX.replace(".visible .entry k(", ".visible .func k(").format(at(4) + "ld.global.f32 %f1, [%rd4];")),
    ("amdgcn", AMD.format("\tv_and_b32_e32 v31, 0x3ff, v31\n\tv_add_u32_e32 v1, v0, v31\n\tv_lshlrev_b32_e32 v1, 2, v1\n\tglobal_load_dword v2, v1, s[4:5]\n").replace("s_endpgm", "s_setpc_b64 s[30:31]"))])
def test_arguments_of_a_function_that_is_called_are_not_known(isa, source):
    (hot,) = report.of(code.Code("k", {"ptx": "sm_90", "amdgcn": "gfx942"}[isa], isa, source)).hot
    assert [q.known for q in hot.memory.requests] == [False]
