"""What `triport asm` prints for machines: JSON of a documented schema, GitHub's annotations, SARIF; the baseline; and the exit codes."""

import copy
import functools
import json
import re
from pathlib import Path

import pytest
from conftest import ROOT
from triport.backends.base import Error
from triport.tools.__main__ import main
from triport.tools.inspector import annotations, baseline

SCHEMA = json.loads((ROOT / "docs/asm.schema.json").read_text())
PAGE = (ROOT / "docs/asm-schema.md").read_text()
LOOP = """\t.file 1 "{folder}/k.c"
\t.globl f
\t.type f, @function
f:
\txorl %eax, %eax
.L3:
\t.loc 1 7 3
{body}\taddq $32, %rax
\tcmpq %rax, %rdx
\tjne .L3
\tret
"""
VECTOR = "\tvmovups (%rdi,%rax), %ymm0\n\tvaddps (%rsi,%rax), %ymm0, %ymm0\n\tvmovups %ymm0, (%rdi,%rax)\n"
SCALAR = "\tvmovss (%rdi,%rax), %xmm0\n\tvaddss (%rsi,%rax), %xmm0, %xmm0\n\tvmovss %xmm0, (%rdi,%rax)\n"
SPILLS = VECTOR + "\tvmovups %ymm0, 32(%rsp)\n\tvmovups 32(%rsp), %ymm1\n"


@functools.cache
def validator(name: str = "asm"):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = SCHEMA if name == "asm" else json.loads((Path(__file__).parent / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def problems(data, name: str = "asm") -> list[str]:
    return [f"{'/'.join(map(str, e.absolute_path))}: {e.message}"[:300] for e in validator(name).iter_errors(data)]


def asm(capfd, *args) -> tuple[int, str, str]:
    code = main(["asm", *map(str, args)])
    out = capfd.readouterr()
    return code, out.out, out.err


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def put(body: str, name: str = "k.s") -> Path:
        (tmp_path / name).write_text(LOOP.format(folder=tmp_path, body=body))
        return tmp_path / name
    return put


# --- the schema --------------------------------------------------------------------------------------------------------


def test_what_is_printed_is_what_the_schema_says(capfd, write):
    for args in ([write(VECTOR)], [write(SPILLS)], ["softmax", "--target", "sm_90", "--target", "spacemit-x60"], ["matmul", "--target", "gfx942"]):
        code, out, _ = asm(capfd, *args, "--json")
        data = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert code == 0 and not problems(data), problems(data)
        assert asm(capfd, *args, "--format", "json")[1] == out


def test_the_schema_refuses_what_is_none(capfd, write):
    (good,) = json.loads(asm(capfd, write(VECTOR), "--json")[1])
    for change in (lambda d: d.pop("schema"), lambda d: d.update(verdict="GOOD"), lambda d: d["loops"][0].update(id="3"), lambda d: d["loops"][0].pop("heat"),
                   lambda d: d["instructions"][0].update(kind="jump"), lambda d: d["instructions"][0].pop("loop")):
        bad = copy.deepcopy(good)
        change(bad)
        assert problems([bad])


def test_the_page_has_every_field():
    """docs/asm-schema.md names each field of the schema, and no other."""
    said = set(re.findall(r"`([a-z_0-9]+)`", "\n".join(line.split("|")[1] for line in PAGE.split("\n") if line.startswith("| `"))))
    props = {name for d in ("report", "loop", "instruction", "bound", "run") for name in SCHEMA["$defs"][d]["properties"]}
    assert said == props, said ^ props


def test_instructions_know_their_loops(capfd, write, tmp_path):
    (r,) = json.loads(asm(capfd, write(VECTOR), "--json")[1])
    loop = next(x for x in r["loops"] if x["hot"])
    body = next(x for x in r["loops"] if x["label"] == "body")
    assert (loop["id"], body["id"]) == ("L0", "B0") and r["schema"] == 1
    assert [i["loop"] for i in r["instructions"]] == ["B0"] + ["L0"] * 6 + ["B0"]
    assert [i["label"] for i in r["instructions"]][1] == ".L3" and {i["address"] for i in r["instructions"]} == {None}
    dump = "\nx.o:     file format elf64-x86-64\n\n0000000000000010 <f>:\n  10:\t31 c0 \txor %eax,%eax\n  12:\tc5 fc 58 04 06 \tvaddps (%rsi,%rax,1),%ymm0,%ymm0\n" \
           "  17:\t75 f9 \tjne 12 <f+0x2>\n  19:\tc3 \tret\n"
    (tmp_path / "x.txt").write_text(dump)
    (r,) = json.loads(asm(capfd, tmp_path / "x.txt", "--json")[1])
    assert [(i["address"], i["loop"], i["label"]) for i in r["instructions"]] == [(0x10, "B0", ""), (0x12, "L0", ".L12"), (0x17, "L0", ""), (0x19, "B0", "")]


def test_ids_are_unique(capfd):
    for r in json.loads(asm(capfd, "matmul", "--target", "spacemit-x60", "--json")[1]):
        ids = [x["id"] for x in r["loops"]]
        assert len(set(ids)) == len(ids) and {i["loop"] for i in r["instructions"]} <= set(ids)
        for x in r["loops"]:
            assert sum(i["loop"] == x["id"] for i in r["instructions"]) == x["instructions"]


# --- GitHub and SARIF --------------------------------------------------------------------------------------------------


def test_github_annotations_and_summary(capfd, write, tmp_path, monkeypatch):
    path = write(SCALAR)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    code, out, err = asm(capfd, path, "--require", "vector>=0.95", "--format", "github")
    assert code == 1 and "vector is 0.00" in err
    lines = out.strip().split("\n")
    assert lines[0].startswith("::error file=k.c,line=7,title=triport asm%3A requirement not met::k.s [x86-64] .L3") and "vector is 0.00, required >=0.95" in lines[0]
    assert all(re.match(r"::(error|warning) file=k\.c,line=7,title=[^:,]+::[^\n]+$", line) for line in lines) and len(lines) > 1
    said = (tmp_path / "summary.md").read_text()
    assert said.startswith("before\n### triport asm") and "| `k.s` | x86-64 | SCALAR |" in said and "**Failed**" in said
    code, out, _ = asm(capfd, write(VECTOR), "--require", "vector>=0.95", "--format", "github")
    assert code == 0 and "::error" not in out


def test_what_github_takes_for_commands_is_escaped():
    found = annotations.Finding("x", "error", "a, b: c", "100% of\nit", "d,e:f.c", 3)
    assert annotations.github([found]) == "::error file=d%2Ce%3Af.c,line=3,title=triport asm%3A a%2C b%3A c::100%25 of%0Ait\n"


def test_sarif(capfd, write):
    code, out, _ = asm(capfd, write(SCALAR), "--require", "vector>=0.95", "--format", "sarif")
    log = json.loads(out)
    assert code == 1 and not problems(log, "sarif"), problems(log, "sarif")
    (run,) = log["runs"]
    first = run["results"][0]
    assert first["level"] == "error" and first["ruleId"] == "requirement" and run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "requirement"
    assert first["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": "k.c"}, "region": {"startLine": 7}}
    assert {r["level"] for r in run["results"]} == {"error", "warning"}
    code, out, _ = asm(capfd, write(VECTOR), "--format", "sarif")
    assert code == 0 and not problems(json.loads(out), "sarif")


# --- the baseline ------------------------------------------------------------------------------------------------------


@pytest.fixture
def before(capfd, write, tmp_path):
    (tmp_path / "before.json").write_text(asm(capfd, write(VECTOR), "--json")[1])
    return tmp_path / "before.json"


def test_nothing_worse_is_good(capfd, write, before):
    code, out, err = asm(capfd, write(VECTOR), "--baseline", before)
    assert (code, out) == (0, "") and "nothing is worse" in err


@pytest.mark.parametrize("body,says", [(SCALAR, "verdict is SCALAR, was VECTOR"), (SPILLS, "spills: 2, was 0 (.L3 k.c:7)"),
                                       (VECTOR.replace("ymm", "xmm"), "narrowest vector load, bits: 128, was 256")])
def test_what_got_worse_fails(capfd, write, before, body, says):
    code, out, _ = asm(capfd, write(body), "--baseline", before)
    assert code == 1 and f"worse: k.s [x86-64]: {says}" in out
    code, out, err = asm(capfd, write(body), "--baseline", before, "--format", "github")
    assert code == 1 and "::error file=k.c,line=7,title=triport asm%3A worse than the baseline::" in out and "worse: " in err


def test_what_got_better_is_good(capfd, write, tmp_path):
    (tmp_path / "old.json").write_text(asm(capfd, write(SPILLS.replace("ymm", "xmm")), "--json")[1])
    assert asm(capfd, write(VECTOR), "--baseline", tmp_path / "old.json")[0] == 0


def test_kernels_that_only_one_side_has(before):
    (one,) = baseline.read(before)
    lines, remarks = baseline.worse([one, {**one, "kernel": "gone"}], [one, {**one, "kernel": "new"}])
    assert not lines and remarks == ["new [x86-64] is new: the baseline has nothing to compare it with", "gone [x86-64] is in the baseline only"]
    with pytest.raises(Error, match="no kernel of these; it has k.s"):
        baseline.worse([one], [{**one, "target": "aarch64"}])


def test_a_share_that_fell_is_worse(before):
    (one,) = baseline.read(before)
    lines, _ = baseline.worse([{**one, "share": 0.9}], [{**one, "share": 0.5}])
    assert lines == ["k.s [x86-64]: share of work that is vector is 0.50, was 0.90"]
    assert not baseline.worse([{**one, "share": 0.9}], [{**one, "share": 0.897}])[0]


@pytest.mark.parametrize("text,says", [("", "is no JSON"), ("{}", "not a report"), ("[1]", "not a report"), ('[{"schema": 9, "kernel": "k", "verdict": null, "loops": []}]', "has schema 9")])
def test_baselines_that_are_none(capfd, write, tmp_path, text, says):
    (tmp_path / "b.json").write_text(text)
    code, _, err = asm(capfd, write(VECTOR), "--baseline", tmp_path / "b.json")
    assert code == 2 and says in err
    code, _, err = asm(capfd, write(VECTOR), "--baseline", tmp_path / "none.json")
    assert code == 2 and "cannot be read" in err


# --- exit codes and options --------------------------------------------------------------------------------------------


def test_exit_codes(capfd, write, monkeypatch):
    """0 good, 1 a requirement not met, 2 usage, 3 a fault of triport's own."""
    assert asm(capfd, write(VECTOR), "--require", "vector>=0.95")[0] == 0
    assert asm(capfd, write(SCALAR), "--require", "vector>=0.95")[0] == 1
    assert asm(capfd, write(VECTOR), "--require", "vectorr>=0.95")[0] == 2
    from triport.tools.inspector import report
    monkeypatch.setattr(report, "of", lambda code: 1 / 0)
    code, _, err = asm(capfd, write(VECTOR))
    assert code == 3 and "internal error: ZeroDivisionError" in err


def test_json_stays_json_where_a_requirement_fails(capfd, write):
    code, out, err = asm(capfd, write(SCALAR), "--json", "--require", "vector>=0.95")
    assert code == 1 and json.loads(out) and "vector is 0.00" in err


@pytest.mark.parametrize("args,says", [
    (["--require", ""], "--require is empty"), (["--require", " , "], "--require is empty"), (["--json", "--format", "sarif"], "choose one"),
    (["--stage", "asm", "--json"], "leave out --json"), (["--stage", "asm", "--html", "a.html"], "leave out --html"), (["--stage", "asm", "--require", "vector>=1"], "leave out --require"),
    (["--stage", "asm", "--diff", "x.json"], "leave out --diff"), (["--stage", "asm", "--format", "github"], "leave out --format github"), (["--stage", "asm", "--all"], "leave out --all"),
    (["--diff", "x.json", "--format", "github"], "--diff prints a comparison"), (["--html", "."], "it is a folder"), (["--stage", "asm", "-o", "."], "it is a folder"),
    (["--case", "3x3"], "belong to an op"), (["--dtype", "fp16"], "belong to an op"), (["--backend", "torch-compile"], "belong to an op"), (["--arg", "x=fp32[16]"], "belong to a kernel"),
    (["--const", "N=3"], "belong to a kernel"), (["--option", "num_warps=3"], "belong to a kernel"), (["--config", "1"], "belongs to an op or a kernel"),
])
def test_options_are_never_dropped(capfd, write, args, says):
    code, out, err = asm(capfd, write(VECTOR), *args)
    assert code == 2 and not out and says in err and "Traceback" not in err
