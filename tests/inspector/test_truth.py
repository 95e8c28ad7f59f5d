"""What gcc and clang write, judged: the verdict on each of 57 functions with 16 sets of flags, as assembly and as object, with and without -g, against the
compilers' own remarks (truth/build.py makes the archive)."""

import collections
import json
import tarfile
from pathlib import Path

import pytest
from triport.backends.base import Error
from triport.tools.inspector import files, report, tools, verdict

ARCHIVE = Path(__file__).parent / "truth" / "compiled.tar.xz"
FLAGS = ("clang_neon", "clang_novec", "clang_rv64gc", "clang_rv64gcv", "clang_rv64gcv_evl", "clang_sve", "clang_v3", "clang_v4", "gcc_O1",
         "gcc_O2novec_unroll", "gcc_O3_v2", "gcc_O3_v3", "gcc_O3_v3_strict", "gcc_O3_v4_512", "gcc_neon_novec", "gcc_sve")
V, P, S = verdict.VECTOR, verdict.PARTLY, verdict.SCALAR
#: functions that have no loop to vectorise, though the compiler may join two of its stores
_SERIAL = {"iprefix", "collatz", "sort", "bsearch", "mandel", "xorshift", "strlen_"}
#: vectorised, with work that vectors cannot do: gathered or permuted single elements, a sum in order, a remainder of eleven elements in a thousand
_BOTH = {"stride7", "cond", "idiv", "transpose", "struct3", "fixed", "lut"}
#: in strict floating point a reduction is loaded in vectors and summed one element at a time; of two minima gcc joins what is outside the loop
_IN_ORDER = {"dot", "prefix_d", "absdiff", "gemm_ijk", "matvec", "minmax"}


def truth(name: str, flags: str, vectorised: bool) -> set:
    """The verdicts that are right."""
    if name == "copy":
        return {None, V, S}  # a call of memcpy, or vectors
    if name in ("two", "vs", "sv"):
        return {P} if vectorised else {S}  # a loop of each kind
    if name == "exp" and not flags.startswith("gcc"):
        return {P, S} if vectorised else {S}
    if flags == "gcc_O3_v3_strict" and name in _IN_ORDER:
        return {P, S}
    if name in _SERIAL:
        return {P, S} if vectorised else {S}
    if not vectorised:
        return {S}
    return {V, P, *({S} if name == "lut" else ())} if name in _BOTH else {V}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def judged(folder, suffix: str, only: str | None = None):
    """(name, flags, with -g, vectorised, report) of every file; of the objects, for which a disassembler has to run, one with or one without -g. only: of
    these flags."""
    for k, (key, vectorised) in enumerate(json.loads((folder / "truth.json").read_text()).items()):
        name, flags = key.split(".")
        for debug in ("", "_g") if suffix == "s" else (("", "_g")[k % 2],):
            if only in (None, flags):
                yield name, flags, bool(debug), vectorised, report.of(files.of_file(folder / f"{key}{debug}.{suffix}", None))


def judge(rows) -> int:
    """At least 99 of 100 are right, of fewer all but one, with and without line tables, and nothing that is not vector code is called so or passes a
    gate. Returns how many there were."""
    count, wrong, false = collections.Counter(), collections.defaultdict(list), []
    required = verdict.requirements("vector>=0.95")
    for name, flags, debug, vectorised, r in rows:
        right = truth(name, flags, vectorised)
        count[debug] += 1
        if r.verdict not in right:
            wrong[debug].append(f"{name}.{flags}: {r.verdict}, not {right}")
        if V not in right and (r.verdict == V or not r.failures(required)):
            false.append(f"{name}.{flags}{'_g' if debug else ''}")
        assert r.unknown == 0, (name, flags)
    assert not false
    for debug, rows in wrong.items():
        assert len(rows) <= max(1, 0.01 * count[debug]), "\n".join(rows)
    return count.total()


def test_compilers_code_is_judged_right(compiled):
    assert judge(judged(compiled, "s")) == 57 * 16 * 2


@pytest.mark.first(2)
@pytest.mark.parametrize("flags", FLAGS)
def test_compilers_objects_are_judged_right(compiled, flags):
    try:
        tools.objdump("riscv64"), tools.objdump("aarch64")
    except Error as e:
        pytest.skip(str(e))
    assert judge(judged(compiled, "o", flags)) == 57


def test_no_flags_are_left_out(compiled):
    assert {key.split(".")[1] for key in json.loads((compiled / "truth.json").read_text())} == set(FLAGS)
