"""Files of machine code and assembly -> `Code`: objects, libraries, archives and their members, cubins, what compilers and disassemblers write.

Nothing here imports torch: a small file is answered at once."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ...backends.base import Error, contents, suggest
from . import gnu, machine, tools
from .code import Code
from .targets import Goal

#: suffixes of what is read, for messages; the content decides
KNOWN = (".s", ".asm", ".ptx", ".sass", ".amdgcn", ".o", ".so", ".a", ".cubin", ".hsaco", ".ttir", ".ttgir", ".ll", ".llir")
#: bytes of a text to each that is 0, at least
_BINARY = 100
#: characters that text does not have but in comments that hold bytes, and of how many bytes one may be such
_CONTROL, _FEW = bytes(c for c in range(32) if c not in b"\t\n\v\f\r\x1b"), 20
#: first bytes -> what it is, and what to do
_NOT = {b"\xcf\xfa\xed\xfe": "a Mach-O object; give what `llvm-objdump -d` prints of it", b"\xca\xfe\xba\xbe": "a Mach-O file for several machines; give what "
        "`llvm-objdump -d --arch=arm64` prints of it", b"BC\xc0\xde": "LLVM bitcode; give what llvm-dis makes of it (.ll)", b"MZ": "a Windows program; give what "
        "`llvm-objdump -d` prints of it", b"\x64\x86": "a Windows object; give what `llvm-objdump -d` prints of it", b"\x64\xaa": "a Windows object; give what "
        "`llvm-objdump -d` prints of it", b"\x50\xed\x55\xba": "a CUDA fat binary; give the cubin that `cuobjdump -xelf all` takes out of it"}
#: suffixes of sources -> how to get at their code
_SOURCES = {".c": "gcc -O3 -S", ".cc": "g++ -O3 -S", ".cpp": "g++ -O3 -S", ".cxx": "g++ -O3 -S", ".C": "g++ -O3 -S", ".f90": "gfortran -O3 -S", ".rs": "rustc -O --emit=asm"}


def of_file(path: Path, goal: Goal | None, vlen: int | None = None) -> Code:
    """A file of assembly, or an object. Raises `Error` where it cannot be told what it is."""
    found = of_path(path, "", goal, vlen)
    if len(found) != 1:
        raise Error(f"{path} holds {len(found)} members ({', '.join(c.name for c in found)}); say which: {path}:{found[0].name}")
    return found[0]


def of_path(path: Path, part: str, goal: Goal | None, vlen: int | None = None) -> list[Code]:
    """What a file holds. part: a function of it, of an archive a member, MEMBER:FUNCTION or a function; "" for all. Raises `Error`."""
    if path.suffix in _SOURCES:
        raise Error(f"{path} is source text: compile it, for example `{_SOURCES[path.suffix]} -g {path.name}`, and give the .s or .o")
    try:
        data = contents(path)
    except OSError as e:
        raise Error(f"{path} cannot be read: {e.strerror}") from None
    if not data:
        raise Error(f"{path} is empty")
    if data[:8] in (b"!<arch>\n", b"!<thin>\n"):
        return _archive(path, data, part, goal, vlen)
    return _one(data, path, path.name, part, goal, vlen)


def _one(data: bytes, path: Path, name: str, part: str, goal: Goal | None, vlen: int | None) -> list[Code]:
    where = str(path) if name == path.name else f"{path}:{name}"
    bits = vlen or (goal.vlen if goal else 128)
    if data[:4] == b"\x7fELF":
        isa = tools.elf_isa(data, where)
        if goal is not None and goal.isa != isa:
            raise Error(f"{where} holds {isa} code; --target {goal.name} is {goal.isa}. Leave --target out")
        text = tools.sass(data) if isa == "sass" else tools.disassemble_bytes(data, isa, where, _symbols(data, part))
        facts = tools.cubin_usage(data, part or None) if isa == "sass" else {}
        return [Code(name, goal.name if goal else isa, isa, text, "file", {"sass" if isa == "sass" else "asm": text, "obj": data}, (), facts, vlen=bits, function=part)]
    if kind := next((what for sign, what in _NOT.items() if data.startswith(sign)), None):
        raise Error(f"{where} is {kind}")
    if data.count(b"\0") > len(data) // _BINARY or len(data) - len(data.translate(None, _CONTROL)) > len(data) // _FEW:
        raise Error(f"{where} is neither an ELF file nor text; it takes {', '.join(KNOWN)} files")
    data = data.replace(b"\0", b" ")  # LLVM writes bytes of debug information into comments as they are
    text = data.decode("utf-8-sig", "replace")  # a comment's letters may be of another encoding
    del data
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    from . import ir
    if language := ir.language(text):
        return [ir.compiled(text, language, path, part, goal, vlen)]
    isa = machine.of(where, text, goal)
    sources = tuple(dict.fromkeys(gnu.unescaped(m[3]) for m in re.finditer(rf"^\s*{gnu.DOT_FILE.pattern}", text, re.M)))
    return [Code(name, goal.name if goal else isa, isa, text, "file", {isa if isa in ("ptx", "sass") else "asm": text}, sources, vlen=bits, function=part)]


def _symbols(data: bytes, function: str) -> tuple[str, ...]:
    """The symbol to disassemble alone; none where the name is not one as it stands in the file."""
    return (function,) if function and function.encode() + b"\0" in data else ()


def refuse_unread(report):
    """Raise `Error` where most of a file is no instruction of its machine: it is another kind of text, and a report on the rest would say nothing."""
    if report.code.backend == "file" and report.unknown > 0.5:
        lost = list(dict.fromkeys(i.text for f in report.functions for i in f.instructions if i.what.kind == "unknown"))
        raise Error(f"{report.code.name}: {report.unknown:.0%} of it are no instructions of {report.code.isa}: {'; '.join(repr(x[:40]) for x in lost[:3])}. It takes what compilers "
                    "write (.s, .ptx), and what objdump -d, cuobjdump -sass, nvdisasm and gdb's disassemble print")


# --- archives --------------------------------------------------------------------------------------------------------


def members(path: Path, data: bytes) -> list[tuple[str, bytes]]:
    """(name, content) of an archive's objects, in order; of a thin one they lie beside it. Raises `Error` where it is damaged."""
    thin, at, names, out = data.startswith(b"!<thin>"), 8, b"", []
    while at + 60 <= len(data):
        head = data[at:at + 60]
        if head[58:60] != b"`\n" or not head[48:58].strip().isdigit():
            raise Error(f"{path} is a damaged archive: there is no member at byte {at}")
        raw, size = head[:16].decode("latin-1").rstrip(), int(head[48:58])
        start = at + 60
        special = raw in ("/", "//", "/SYM64/") or raw.startswith("__.SYMDEF")
        inside = not thin or special
        body = data[start:start + size] if inside else b""
        if raw == "//":
            names = body
        elif raw.startswith("#1/"):  # BSD's: the name stands before the content
            raw, body = body[:int(raw[3:])].rstrip(b"\0").decode(), body[int(raw[3:]):]
        elif re.fullmatch(r"/\d+", raw):  # GNU's: the name stands in //
            raw = names[int(raw[1:]):].partition(b"\n")[0].decode().rstrip("/")
        if not special and not raw.startswith("__.SYMDEF"):
            name = raw.rstrip("/") if len(raw) > 1 else raw
            if thin:
                file = path.parent / name
                if not file.is_file():
                    raise Error(f"{path}: its member {file} is not there (a thin archive names files beside it)")
                body = file.read_bytes()
            out.append((name, body))
        at = start + (size + size % 2 if inside else 0)
    return out


def _archive(path: Path, data: bytes, part: str, goal: Goal | None, vlen: int | None) -> list[Code]:
    found = members(path, data)
    if not found:
        raise Error(f"{path} is an archive without members")
    chosen, function = found, part
    if part:
        member, _, behind = part.partition(":")
        if any(name == member for name, _ in found):
            chosen, function = [m for m in found if m[0] == member], behind
        else:
            chosen = [m for m in found if function.encode() + b"\0" in m[1]]
            if not chosen:
                raise Error(f"{path}:{part}: {suggest('member or function', part, [name for name, _ in found])}")
    codes = []
    for name, body in chosen:
        if body[:4] == b"\x7fELF" or len(chosen) == 1:
            codes += _one(body, path, name, function, goal, vlen)
    if not codes:
        raise Error(f"{path} holds no ELF objects: {', '.join(name for name, _ in found[:5])}")
    return codes


# --- functions -------------------------------------------------------------------------------------------------------


def chosen(found: list, code: Code) -> list:
    """Of a file's functions those that the user named: `code.function`, one; `code.matching`, those whose name has the text; `code.only`, a kernel's own.
    Raises `Error` with the names there are."""
    if code.function or code.matching:
        readable = dict(zip((f.name for f in found), _demangled([f.name for f in found])))
        want = code.function or code.matching
        if code.function:
            fit = [f for f in found if want in (f.name, f.name.partition("@")[0], readable[f.name], readable[f.name].partition("(")[0])]
        else:
            fit = [f for f in found if want in f.name or want in readable[f.name]]
        if not fit:
            raise Error(f"{code.name}: {suggest('function', want, list(readable.values()))}" if len(found) < 40 else
                        f"{code.name}: there is no function {want!r} among its {len(found)}; the nearest: {', '.join(_near(want, readable.values()))}")
        return fit
    if code.only and any(f.name in code.only for f in found):
        return [f for f in found if f.name.partition(".part")[0] in code.only]  # with what triton-cpu made functions of (backends/cpu/emit/parts.py)
    return found


def _near(name: str, names) -> list[str]:
    import difflib
    names = list(names)
    return difflib.get_close_matches(name, names, 5, 0.3) or names[:5]


def _demangled(names: list[str]) -> list[str]:
    """C++ names as people write them, where c++filt is there; else as they are."""
    import shutil
    tool = next((t for t in ("c++filt", "llvm-cxxfilt") if shutil.which(t)), None)
    if tool is None or not any(n.startswith(("_Z", "__Z", "_R")) for n in names):
        return names
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True).stdout.split("\n")
    return done[:len(names)] if len(done) >= len(names) else names
