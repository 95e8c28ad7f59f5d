"""What `triport asm` takes: files of every kind, parts of them, Triton's cache, intermediate code; and what it refuses, with a sentence."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from triport.tools.__main__ import main
from triport.tools.inspector import files, machine

ADD = "\t.text\n\t.globl\t{0}\n\t.type\t{0}, @function\n{0}:\n\txorl %eax, %eax\n.L{0}:\n\tvmovups (%rdi,%rax), %ymm0\n\tvaddps (%rsi,%rax), %ymm0, %ymm0\n" \
      "\tvmovups %ymm0, (%rdi,%rax)\n\taddq $32, %rax\n\tcmpq %rax, %rdx\n\tjne .L{0}\n\tret\n\t.size {0}, .-{0}\n"
MUL = ADD.replace("vaddps (%rsi,%rax), %ymm0, %ymm0", "vmulss (%rsi,%rax), %xmm0, %xmm0").replace("vmovups (%rdi,%rax), %ymm0", "vmovss (%rdi,%rax), %xmm0").replace(
    "vmovups %ymm0, (%rdi,%rax)", "vmovss %xmm0, (%rdi,%rax)").replace("$32", "$4")
needs_as = pytest.mark.skipif(not shutil.which("as") or not shutil.which("objdump"), reason="as and objdump were not found: apt-get install binutils")


def asm(capfd, *args) -> tuple[int, str, str]:
    code = main(["asm", *map(str, args)])
    out = capfd.readouterr()
    return code, out.out, out.err


def reports(capfd, *args) -> list[dict]:
    code, out, err = asm(capfd, *args, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def objects(tmp_path):
    """add.o and mul.o with one function each, and two.o with both."""
    import platform
    if platform.machine() != "x86_64":
        pytest.skip("the objects are x86-64's")
    for name, text in (("add", ADD.format("add")), ("mul", MUL.format("mul")), ("two", ADD.format("add") + MUL.format("mul"))):
        (tmp_path / f"{name}.s").write_text(text)
        subprocess.run(["as", "-o", tmp_path / f"{name}.o", tmp_path / f"{name}.s"], check=True)
    return tmp_path


# --- functions, libraries, archives ------------------------------------------------------------------------------------


def test_a_function_of_a_file(capfd, tmp_path):
    (tmp_path / "two.s").write_text(ADD.format("add") + MUL.format("mul"))
    (r,) = reports(capfd, tmp_path / "two.s")
    assert [f["name"] for f in r["functions"]] == ["add", "mul"] and r["remark"] == "2 functions, judged together; FILE:FUNCTION judges one"
    assert "FILE:FUNCTION judges one" in asm(capfd, tmp_path / "two.s")[1] and not reports(capfd, f"{tmp_path}/two.s:mul")[0]["remark"]
    assert [f["name"] for f in reports(capfd, f"{tmp_path}/two.s:mul")[0]["functions"]] == ["mul"]
    assert [f["name"] for f in reports(capfd, f"{tmp_path}/two.s", "--kernel", "ad")[0]["functions"]] == ["add"]
    code, _, err = asm(capfd, f"{tmp_path}/two.s:mull")
    assert code == 2 and "did you mean 'mul'? Known: add, mul" in err
    code, _, err = asm(capfd, f"{tmp_path}/two.s", "--kernel", "div")
    assert code == 2 and "unknown function 'div'" in err


AMD = "\t.amdgcn_target \"amdgcn-amd-amdhsa--gfx942\"\n\t.text\nf:\n{}\n\tglobal_load_dword v1, v0, s[0:1]\n\ts_endpgm\n"


@pytest.mark.parametrize("name,text,code", [
    ("symbol.s", "\t.equ N,4\n\t.text\nf:\n.L1:\n\tvsetivli\tzero, N, e32, m1, ta, ma\n\tvle32.v v8,(a0)\n\tvfadd.vv v8,v8,v9\n\tvse32.v v8,(a0)\n\tbne a0,a1,.L1\n\tret\n", 0),
    ("short.s", "\t.text\nf:\n\tvsetivli\te32, m1, ta, ma\n\tvle32.v\tv8, (a0)\n\tret\n", 0),
    ("intel.s", "\t.intel_syntax noprefix\n\t.text\nf:\n\tmov\teax, DWORD PTR [rdi]\n\tmovzx\teax\n\tret\n", 0),
    ("arm.s", "\t.text\nf:\n\tadd\tx0, x1, x2\n\tld1w\tz0.s, p0/z\n.L2:\n\tb\n\tb.ne\n\tcbz\n\tsubs\n\tb.ne\t.L2\n\tret\n", 0),
    ("long.s", AMD.format("\ts_load_dwordx4 s[0:99999999], s[4:5], 0x0"), 0), ("compare.s", AMD.format("\ts_cmp_lt_i32 s0"), 0), ("mask.s", AMD.format("\ts_and_saveexec_b64 s0"), 0),
    ("labels.ptx", ".version 8.0\n.target sm_75\n$L1:\n{\n\tadd.s32 %r1, %r2, %r3;\n$L2:\n}\n", 2)])
def test_garbled_lines_end_nothing(capfd, tmp_path, name, text, code):
    """What cannot be read is unknown; a register's range has an end."""
    (tmp_path / name).write_text(text)
    found, _, err = asm(capfd, tmp_path / name)
    assert found == code and "internal error" not in err


def test_bytes_in_comments(capfd, tmp_path):
    """LLVM writes those of debug information as they are; a file of them is no text."""
    (tmp_path / "debug.s").write_bytes((ADD.format("add") + "\t.byte 0\t# ").encode() + b"\0\0\n" + b"# " + b"x" * 2000 + b"\n")
    (r,) = reports(capfd, tmp_path / "debug.s")
    assert [f["name"] for f in r["functions"]] == ["add"]
    (tmp_path / "bytes.s").write_bytes(b"\0\1" * 5000)
    code, _, err = asm(capfd, tmp_path / "bytes.s")
    assert code == 2 and "neither an ELF file nor text" in err


def test_text_of_any_origin(capfd, tmp_path):
    """Windows' line ends, a byte order mark, comments in Latin-1."""
    text = ADD.format("add").replace("\txorl %eax, %eax\n", "\txorl %eax, %eax\t# f\xfcr nichts\n")
    (tmp_path / "plain.s").write_text(text)
    (want,) = reports(capfd, tmp_path / "plain.s")
    for name, data in (("crlf", text.replace("\n", "\r\n").encode()), ("bom", b"\xef\xbb\xbf" + text.encode()), ("latin", text.encode("latin-1"))):
        (tmp_path / f"{name}.s").write_bytes(data)
        (r,) = reports(capfd, tmp_path / f"{name}.s")
        assert {**r, "kernel": ""} == {**want, "kernel": ""}, name


@needs_as
def test_a_function_of_an_object_and_a_library(capfd, objects):
    assert [f["name"] for f in reports(capfd, f"{objects}/two.o:mul")[0]["functions"]] == ["mul"]
    code, _, err = asm(capfd, f"{objects}/two.o:mull")
    assert code == 2 and "did you mean 'mul'?" in err
    if shutil.which("ld"):
        subprocess.run(["ld", "-shared", "-o", objects / "libtwo.so", objects / "two.o"], check=True)
        (r,) = reports(capfd, f"{objects}/libtwo.so:add")  # not loaded: read
        assert [f["name"] for f in r["functions"]] == ["add"] and r["verdict"] == "VECTOR"
        assert [f["name"] for f in reports(capfd, objects / "libtwo.so", "--kernel", "mul")[0]["functions"]] == ["mul"]


@needs_as
@pytest.mark.parametrize("flags", ["rcs", "rcsT"])
def test_archives(capfd, objects, flags):
    long = objects / "a_member_with_a_long_name.o"
    shutil.copy(objects / "mul.o", long)
    subprocess.run(["ar", flags, "libx.a", "add.o", long.name], check=True, cwd=objects)
    assert [r["kernel"] for r in reports(capfd, objects / "libx.a")] == ["add.o", long.name]
    assert [r["kernel"] for r in reports(capfd, f"{objects}/libx.a:add.o")] == ["add.o"]
    for what in (f"libx.a:{long.name}:mul", "libx.a:mul"):
        (r,) = reports(capfd, f"{objects}/{what}")
        assert r["kernel"] == long.name and [f["name"] for f in r["functions"]] == ["mul"]
    code, _, err = asm(capfd, f"{objects}/libx.a:ad.o")
    assert code == 2 and "did you mean 'add.o'?" in err


def bsd_archive(members) -> bytes:
    out = b"!<arch>\n"
    for name, body in members:
        body = name.encode() + b"\0" * 4 + body
        out += f"#1/{len(name) + 4:<13}".encode() + b"0           0     0     644     " + f"{len(body):<10}".encode() + b"`\n" + body + b"\n" * (len(body) % 2)
    return out


def test_bsds_archives_and_damaged_ones(tmp_path):
    from triport.backends.base import Error
    data = bsd_archive([("one.o", b"12345"), ("two.o", b"123456")])
    assert files.members(Path("x.a"), data) == [("one.o", b"12345"), ("two.o", b"123456")]
    with pytest.raises(Error, match="damaged archive"):
        files.members(Path("x.a"), data[:8] + b"x" * 80)


# --- which machine -----------------------------------------------------------------------------------------------------

OTHERS = {
    "s390x": "f:\n\tstmg %r6,%r15,48(%r15)\n\tlgr %r1,%r2\n.L3:\n\tvl %v0,0(%r1)\n\taghi %r1,16\n\tbrctg %r4,.L3\n\tbr %r14\n",
    "PowerPC": "\t.abiversion 2\nf:\n\tmtctr 5\n.L3:\n\tlxvx 0,3,9\n\tstxvx 0,4,9\n\tbdnz .L3\n\tblr\n",
    "MIPS": "f:\n\t.set noreorder\n\tlw $2,0($4)\n\taddiu $4,$4,4\n\tjr $31\n\tnop\n",
    "LoongArch": "f:\n\tld.d $r12,$r4,0\n\taddi.d $r4,$r4,8\n\tjr $r1\n",
    "SPARC": "f:\n\tadd %o0, %o1, %o0\n\tretl\n\tnop\n",
    "32-bit Arm": "\t.syntax unified\nf:\n\tldr r3, [r0]\n\tadd r3, r3, #1\n\tbx lr\n",
    "32-bit x86": "f:\n\tpushl %ebp\n\tmovl %esp, %ebp\n\tmovl 8(%ebp), %eax\n\tmovl (%eax), %edx\n\tpopl %ebp\n\tret\n",
    "WebAssembly": "\t.functype f (i32) -> (i32)\nf:\n\tlocal.get 0\n\ti32.add\n\tend_function\n",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_machines_are_refused_by_name(capfd, tmp_path, name):
    (tmp_path / "x.s").write_text(OTHERS[name])
    for target in ([], ["--target", "x86-64-v3"]):
        code, out, err = asm(capfd, tmp_path / "x.s", *target)
        assert code == 2 and not out and f"is for {name}" in err


def test_other_machines_disassembled_and_as_elf(capfd, tmp_path):
    (tmp_path / "x.txt").write_text("\nx.o:     file format elf64-s390\n\n0000000000000000 <f>:\n   0:\t07 fe\tbr\t%r14\n")
    code, _, err = asm(capfd, tmp_path / "x.txt")
    assert code == 2 and "elf64-s390" in err
    (tmp_path / "x.o").write_bytes(b"\x7fELF\x02\x02\x01" + b"\0" * 9 + struct.pack(">HH", 1, 22) + b"\0" * 44)
    code, _, err = asm(capfd, tmp_path / "x.o")
    assert code == 2 and "ELF file for s390x" in err


PTX = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a)\n{\n ld.param.u64 %rd1, [a];\n ld.global.f32 %f1, [%rd1];\n st.global.f32 [%rd1], %f1;\n ret;\n}\n"


def test_text_for_another_target_is_refused(capfd, tmp_path):
    (tmp_path / "k.ptx").write_text(PTX)
    (tmp_path / "k.s").write_text(ADD.format("f"))
    for file, target in (("k.ptx", "native"), ("k.ptx", "gfx942"), ("k.s", "sm_90"), ("k.s", "rv64gcv")):
        code, out, err = asm(capfd, tmp_path / file, "--target", target)
        assert code == 2 and not out and f"--target {target}" in err and "Leave --target out" in err, (file, target)
    assert asm(capfd, tmp_path / "k.ptx", "--target", "sm_90")[0] == 0


@pytest.mark.parametrize("text,isa", [("f:\n\tldr q1, [x0, x3]\n\tb.ne f\n\tret\n", "aarch64"), ("f:\n\tvle32.v v8, (a0)\n\tbnez a4, f\n\tret\n", "riscv64"),
                                      ("f:\n\txorl %eax, %eax\n\tret\n", "x86-64"), ("f:\n\tmov eax, edi\n\tret\n", "x86-64"), (PTX, "ptx"),
                                      ("\tcode for sm_90\n\t.target\tsm_90\n\t\tFunction : k\n        /*0000*/   LDC R1, c[0x0][0x28] ;\n", "sass"),
                                      ("k:\n\ts_load_dwordx2 s[2:3], s[0:1], 0x0\n\tv_mov_b32_e32 v1, 0\n\ts_endpgm\n", "amdgcn"), ("what is this\n", None)])
def test_machines_by_their_text(text, isa):
    assert machine.guess(text) == isa


# --- SASS --------------------------------------------------------------------------------------------------------------

CUOBJDUMP = """
\tcode for sm_90
\t.target\tsm_90

\t\tFunction : k
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                 /* 0x00000a00ff017b82 */
                                                                          /* 0x000fe20000000800 */
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;       /* 0x0000000402047981 */
        /*0020*/                   FFMA R4, R4, R5, R6 ;                  /* 0x0000000504047223 */
        /*0030*/                   STG.E.128 desc[UR4][R2.64], R4 ;       /* 0x0000000402007986 */
        /*0040*/              @!P0 BRA 0x10 ;                             /* 0xfffffffc00f87947 */
        /*0050*/                   EXIT ;                                 /* 0x000000000000794d */
        /*0060*/                   BRA 0x60;                              /* 0xfffffffc00fc7947 */
\t\t..........
"""
NVDISASM = """\t.headerflags\t@"EF_CUDA_SM90"
//--------------------- .text.k --------------------------
\t.section\t.text.k,"ax",@progbits
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;   // |  1   ^   |
.L_x_0:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   FFMA R4, R4, R5, R6 ;
        /*0030*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0040*/              @!P0 BRA `(.L_x_0) ;
        /*0050*/                   EXIT ;
.L_x_1:
        /*0060*/                   BRA `(.L_x_1);
"""


@pytest.mark.parametrize("source", [CUOBJDUMP, NVDISASM])
def test_sass_as_text(capfd, tmp_path, source):
    """Of cuobjdump, whose jumps are addresses, and of nvdisasm: the same kernel, with its loop."""
    (tmp_path / "k.txt").write_text(source)
    (r,) = reports(capfd, tmp_path / "k.txt")
    (loop,) = [x for x in r["loops"] if x["hot"]]
    assert r["isa"] == "sass" and r["unknown"] == 0 and [f["name"] for f in r["functions"]] == ["k"]
    assert loop["instructions"] == 4 and [i["kind"] for i in r["instructions"] if i["loop"] == loop["id"]] == ["load", "fma", "store", "branch"]


# --- intermediate code -------------------------------------------------------------------------------------------------

LLVM = """define void @scale(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %a = getelementptr float, ptr %p, i64 %i
  %x = load <4 x float>, ptr %a, align 4
  %y = fmul <4 x float> %x, %x
  store <4 x float> %y, ptr %a, align 4
  %next = add i64 %i, 4
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""


@pytest.mark.parametrize("target,isa", [("native", None), ("spacemit-x60", "riscv64"), ("neoverse-v2", "aarch64")])
def test_llvm_ir(capfd, tmp_path, target, isa):
    (tmp_path / "k.ll").write_text('target triple = "x86_64-pc-linux-gnu"\n' + LLVM)
    (r,) = reports(capfd, f"{tmp_path}/k.ll:scale", "--target", target)
    assert r["target"] == target and isa in (None, r["isa"]) and r["verdict"] == "VECTOR" and {"llir", "asm"} <= set(r["stages"])


def test_llvm_ir_that_llvm_does_not_take(capfd, tmp_path):
    (tmp_path / "k.ll").write_text(LLVM.replace("fmul", "fmull"))
    code, _, err = asm(capfd, tmp_path / "k.ll")
    assert code == 2 and "does not take this IR" in err and "fmull <4 x float>" in err and "bug" not in err
    (tmp_path / "g.ll").write_text(LLVM.replace("define void", "define ptx_kernel void"))
    code, _, err = asm(capfd, tmp_path / "g.ll", "--target", "native")
    assert code == 2 and "for a GPU" in err


def test_ttir_and_the_kernels_of_a_cache(capfd, tmp_path, monkeypatch):
    """TTIR and LLVM IR of a stage are read back; the cache that compiling filled is read, whole, by folder, by name and by target."""
    from triton import knobs
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "cache"))  # before the variable, by which the folder to come back to would be this one
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for stage in ("ttir", "llir"):
        assert asm(capfd, "gelu", "--case", "128x128", "--target", "sm_90", "--stage", stage, "-o", tmp_path / f"k.{stage}")[0] == 0
    kernel = reports(capfd, "gelu", "--case", "128x128", "--target", "spacemit-x60")[0]["kernel"]
    for what, target in ((f"{tmp_path}/k.ttir", "spacemit-x60"), (f"{tmp_path}/k.ttir:{kernel}", "gfx942"), (f"{tmp_path}/k.llir", "sm_90")):
        (r,) = reports(capfd, what, "--target", target)
        assert (r["kernel"], r["target"], r["unknown"]) == (kernel, target, 0)
    code, _, err = asm(capfd, f"{tmp_path}/k.ttir:other")
    assert code == 2 and f"has the kernels {kernel}, not other" in err
    found = reports(capfd, tmp_path / "cache")
    assert {r["target"] for r in found} >= {"sm_90", "spacemit-x60", "gfx942"} and all(kernel in r["kernel"] and r["verdict"] for r in found)
    (r, *_) = reports(capfd, f"{tmp_path}/cache:{kernel}", "--target", "spacemit-x60")
    assert r["isa"] == "riscv64" and r["loops"]
    folder = next(f.parent for f in (tmp_path / "cache").glob(f"*/{kernel}.cubin"))
    assert [r["target"] for r in reports(capfd, folder)] == ["sm_90"]
    code, _, err = asm(capfd, tmp_path / "cache", "--kernel", "nothing")
    assert code == 2 and kernel in err
    code, _, err = asm(capfd, tmp_path / "cache", "--target", "sm_75")
    assert code == 2 and "has no kernel for sm_75" in err
    (tmp_path / "empty").mkdir()
    code, _, err = asm(capfd, tmp_path / "empty")
    assert code == 2 and "a folder without kernels" in err


# --- speed -------------------------------------------------------------------------------------------------------------


def test_a_small_file_takes_no_torch(tmp_path):
    """A tiny .s is answered at once: neither torch nor triton nor numpy is imported for it."""
    (tmp_path / "f.s").write_text(ADD.format("f"))
    program = f"import sys; from triport.tools.__main__ import main; code = main(['asm', {str(tmp_path / 'f.s')!r}]); " \
              "sys.exit(code or [m for m in ('torch', 'triton', 'numpy', 'llvmlite') if m in sys.modules] or None)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "VECTOR" in done.stdout


@pytest.mark.first(0)
def test_much_text_takes_little_memory(tmp_path):
    """Each instruction has a few hundred bytes: what repeats is kept once, and JSON is written as it is made."""
    text = "".join(ADD.format(f"f{k}") for k in range(1500))
    (tmp_path / "many.s").write_text(text)
    program = "import resource, sys\nfrom triport.tools.__main__ import main\nmain(['asm', sys.argv[1]])\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n" \
              "main(['asm', sys.argv[2], '--json'])\nprint((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, file=sys.stderr)"
    (tmp_path / "one.s").write_text(ADD.format("f"))
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "one.s"), str(tmp_path / "many.s")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    instructions = 8 * 1500
    assert int(done.stderr.strip().split("\n")[-1]) < 3000 * instructions, "a tenth of it is the text itself"


@pytest.mark.parametrize("config", ["0", "3", "-1"])
def test_a_configuration_of_what_is_not_tuned(capfd, config, tmp_path):
    code, _, err = asm(capfd, "softmax", "--case", "4x5", "--config", config)
    assert code == 2 and f"--config {config}: softmax is not autotuned" in err and "leave --config out" in err
    (tmp_path / "k.py").write_text("import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef one(x):\n    tl.store(x, 1.0)\n\n\n"
                                   "two = triton.autotune([triton.Config({}, num_warps=w) for w in (1, 2)], key=[])(one)\n")
    code, _, err = asm(capfd, f"{tmp_path}/k.py:one", "--arg", "x=fp32[16]", "--config", config)
    assert code == 2 and "is not autotuned" in err
    code, out, err = asm(capfd, f"{tmp_path}/k.py:two", "--arg", "x=fp32[16]", "--config", config)
    assert code == (0 if config == "0" else 2) and "configuration" in out + err


def test_bytes_that_are_no_text_are_said_to_be_none(capfd, tmp_path):
    """Random ones have few zeros; a text with a comment in another encoding is one."""
    import random
    (tmp_path / "junk.o").write_bytes(random.Random(1).randbytes(5000))
    code, _, err = asm(capfd, tmp_path / "junk.o")
    assert code == 2 and "junk.o is neither an ELF file nor text" in err
    (tmp_path / "add.s").write_bytes("# größe\n".encode("latin-1") + ADD.format("add").encode())
    assert reports(capfd, tmp_path / "add.s")[0]["verdict"] == "VECTOR"


KERNEL = """import triton
import triton.language as tl
@triton.jit
def scaled_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * 3.5, mask=i < n)
"""


@pytest.mark.parametrize("name,target", [(name, target) for name in ("j\u00fcrgen", 'a "b"', "back\\slash") for target in ("native", "aarch64", "sm_90", "gfx942")
                                         if (name, target) != ('a "b"', "sm_90")])  # Triton's PTX does not escape quotes, and ptxas refuses it
def test_a_path_in_any_letters(capfd, tmp_path, monkeypatch, name, target):
    """As it is, in every report: MLIR and LLVM write what is not ASCII byte by byte, assembly in octal."""
    (tmp_path / name).mkdir()
    file = tmp_path / name / "k.py"
    file.write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    options = ("--arg", "x_ptr=fp32[16]", "--arg", "out_ptr=fp32[16]", "--arg", "n=i32:16", "--const", "BLOCK=256", "--target", target)
    found, = reports(capfd, f"{name}/k.py:scaled_kernel", *options)
    places = {one["line"][0] for one in found["instructions"] if one["line"]}
    assert places and all(place.endswith(f"{name}/k.py") for place in places), places
    code, out, err = asm(capfd, f"{name}/k.py:scaled_kernel", *options, "--format", "github", "--require", "load_bits>=4096")
    assert code == 1 and f"file={name}/k.py,line=6" in out, out + err


@pytest.mark.parametrize("words, said", [(("k.py:",), "say which kernel: k.py:NAME"), (("k.py:scaled_kernel", "--option", "num_warps=abc"), "--option num_warps=abc: it takes a whole number")])
def test_what_cannot_be_meant_is_said(capfd, tmp_path, monkeypatch, words, said):
    (tmp_path / "k.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    code, out, err = asm(capfd, *words, "--arg", "x_ptr=fp32[16]", "--arg", "out_ptr=fp32[16]", "--arg", "n=i32:16", "--const", "BLOCK=256")
    assert code == 2 and said in err and not out


def test_what_fills_up_memory_is_no_instruction(capfd, tmp_path):
    """Behind a function's end; a nop within it is one."""
    (tmp_path / "f.s").write_text("\t.text\n\t.globl f\n\t.type f, @function\nf:\n\tnop\n\tmovl %edi, %eax\n\tretq\n\tnopw 8(%rax,%rax)\n\tnop\n\tint3\n\t.size f, .-f\n")
    (report,) = reports(capfd, tmp_path / "f.s", "--target", "x86-64-v3")
    assert [i["text"].split()[0] for i in report["instructions"]] == ["nop", "movl", "retq"]


def test_a_comparison_with_nothing_is_refused(capfd, tmp_path):
    (tmp_path / "empty.json").write_text("[]")
    code, out, err = asm(capfd, "square", "--diff", tmp_path / "empty.json")
    assert code == 2 and "there is no kernel in it" in err and not out
