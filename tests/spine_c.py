"""C programs that are linked to a bundle's library through its header, and call one of its functions with tensors between pages that must not be touched."""

import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import HANGS
from triport.backends.base import Error
from triport.backends.cpu.llvm import targets
from triport.backends.spine import arguments, bundle, library, request, runner

HERE = {"x86_64": "x86-64-v2", "aarch64": "aarch64", "riscv64": "rv64gc"}[platform.machine()]
#: where a C program runs: (target, C compiler, runner whose emulator starts it, or "")
MACHINES = {"here": (HERE, "cc", ""), "riscv64": ("spacemit-x60", "riscv64-linux-gnu-gcc", "qemu:riscv64?vlen=256")}

PROGRAM = r"""
#include "@HEADER@"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { TENSORS = @TENSORS@, NUMBERS = @NUMBERS@ };
static const int constant[TENSORS] = {@CONSTANT@};
static void need(int holds) { if (!holds) { perror("the test's own program"); exit(99); } }
static void get(void *to, size_t n) { need(n == 0 || fread(to, 1, n, stdin) == n); }
static void put(const void *from, size_t n) { need(n == 0 || fwrite(from, 1, n, stdout) == n); }
int main(void) {
  int64_t head[3];  /* at the start or the end of its pages?, threads, unused */
  while (fread(head, 8, 3, stdin) == 3) {
    union { int64_t i; double d; } numbers[NUMBERS + 1];
    char *at[TENSORS], *base[TENSORS];
    int64_t bytes[TENSORS];
    size_t page = getpagesize(), room[TENSORS];
    get(numbers, 8 * NUMBERS);
    for (int k = 0; k < TENSORS; k++) {
      get(&bytes[k], 8);
      room[k] = (bytes[k] + page) / page * page;
      base[k] = mmap(0, room[k] + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      need(base[k] != MAP_FAILED);
      memset(base[k] + page, 90, room[k]);
      at[k] = base[k] + page + (head[0] ? 0 : room[k] - bytes[k]);
      get(at[k], bytes[k]);
      need(!mprotect(base[k], page, PROT_NONE) && !mprotect(base[k] + page + room[k], page, PROT_NONE));
      if (constant[k]) need(!mprotect(base[k] + page, room[k], PROT_READ));
    }
    int64_t answer[2] = {@CALL@, 1};
    for (int k = 0; k < TENSORS; k++)
      for (char *c = base[k] + page; c < base[k] + page + room[k]; c++)
        if ((c < at[k] || c >= at[k] + bytes[k]) && *c != 90) answer[1] = 0;
    put(answer, 16);
    char said[1024] = "";
    if (answer[0]) strncpy(said, triport_last_error(), 1023);
    put(said, 1024);
    for (int k = 0; k < TENSORS; k++) {
      if (!constant[k]) put(at[k], bytes[k]);
      munmap(base[k], room[k] + 2 * page);
    }
  }
  return 0;
}
"""


def machine(name: str):
    """pytest.param of a machine, skipped with the reason where its compiler or emulator is not there."""
    _, compiler, board = MACHINES[name]
    reason = "" if shutil.which(compiler) else f"{compiler} is not installed"
    try:
        board and runner.get(board)
    except Error as e:
        reason = reason or str(e)
    return pytest.param(name, marks=pytest.mark.skipif(bool(reason), reason=reason))


class Linked:
    """A bundle for a machine, and C programs that call its functions."""

    def __init__(self, wanted: list, name: str, folder: Path, **how):
        target, self.compiler, board = MACHINES[name]
        self.folder = folder
        self.bundle = bundle.make(wanted, targets.get(target), **{"cases": False, **how})
        self.bundle.write(folder)
        self.before = []
        if board:
            on = runner.get(board)
            self.before = [on.program, "-cpu", on.cpu, "-L", on.root]
        self.programs: dict[str, Path] = {}

    @property
    def header(self) -> str:
        return self.bundle.files[self.bundle.manifest["header"]].decode()

    def _program(self, f: dict) -> Path:
        if f["name"] not in self.programs:
            kinds = {"float": ("d", "double"), "bool": ("i", "int")}
            arguments = [f"(void *)at[{k}]" for k in range(len(f["arguments"]))]
            arguments += [f"({kinds.get(q['kind'], ('i', 'int64_t'))[1]})numbers[{k}].{kinds.get(q['kind'], ('i',))[0]}" for k, q in enumerate(f["numbers"])]
            text = PROGRAM
            for key, value in {"HEADER": self.bundle.manifest["header"], "TENSORS": len(f["arguments"]), "NUMBERS": len(f["numbers"]),
                               "CONSTANT": ", ".join(str(int(a["role"] == "in")) for a in f["arguments"]),
                               "CALL": f"{f['name']}({', '.join([*arguments, '(int)head[1]'])})"}.items():
                text = text.replace(f"@{key}@", str(value))
            source, program = self.folder / f"{f['name']}.c", self.folder / f"run_{f['name']}"
            source.write_text(text)
            library_ = self.folder / self.bundle.manifest["library"]
            done = subprocess.run([self.compiler, "-std=gnu11", "-O1", "-Wall", "-Werror", str(source), str(library_), f"-Wl,-rpath,{self.folder}", "-o", str(program)],
                                  capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            self.programs[f["name"]] = program
        return self.programs[f["name"]]

    def calls(self, calls: list[list], name: str = "", at_start: bool = False, threads: int = 2) -> list[tuple[int, str, dict]]:
        """(status, what it said, written tensors by name) of each call, which is a list of the function's tensors and numbers."""
        f = self.bundle.function(name)[1] if name else self.bundle.manifest["functions"][0]
        data, sent = b"", []
        for values in calls:
            given, numbers = arguments.inputs_of(f, values)
            sent.append((given, values))
            data += struct.pack("<3q", at_start, threads, 0) + b"".join(struct.pack("<d" if isinstance(n, float) else "<q", n) for n in numbers)
            for _, t in given:
                raw = request._bytes(t)
                data += struct.pack("<q", len(raw)) + raw
        done = subprocess.run([*self.before, str(self._program(f))], input=data, capture_output=True, timeout=HANGS)
        assert done.returncode == 0, (done.returncode, done.stderr[-500:])
        self.said = done.stderr.decode()
        out, place = [], 0
        for given, values in sent:
            status, whole = struct.unpack_from("<2q", done.stdout, place)
            assert whole, "memory beside a tensor was written"
            said = done.stdout[place + 16:place + 1040].split(b"\0")[0].decode()
            place += 1040
            raw = []
            for role, t in given:
                if role != "in":
                    raw.append(done.stdout[place:place + t.nbytes])
                    place += t.nbytes
            out.append((status, said, arguments.outputs_of(f, given, values, raw) if status == 0 else {}))
        assert place == len(done.stdout)
        return out


OK = 0
STATUS = {name: value for value, name, _ in library.STATUS}
