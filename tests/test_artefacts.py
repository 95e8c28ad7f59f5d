"""`triport bench --artefacts`: pages of machine code that the rows name."""

import json
import types

import pytest
from conftest import DOUBLE
from triport.tools import artefacts
from triport.tools.__main__ import main

OPS = DOUBLE + '''cases = (Case(((1000,),)), Case(((3000,),)))
double_op = Op("double/it", double, lambda x: x * 2, cases)
plain_op = Op("plain", lambda x: x * 2, lambda x: x * 2, cases)
wrong_op = Op("wrong", lambda x: double(x) * 1.5, lambda x: x * 2, cases)
'''


def test_right_rows_name_a_page_and_its_verdict(tmp_path):
    """One page for each op and dtype; none for what is wrong, launches no kernel, or ran elsewhere. Paths are relative to the results."""
    (tmp_path / "my.py").write_text(OPS)
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / "r.json"
    ops = [x for name in ("double_op", "plain_op", "wrong_op") for x in ("--op", f"{tmp_path}/my.py:{name}")]
    assert main(["bench", *ops, "--backend", "torch", "--backend", "triton-cpu", "--reps", "2", "--no-cold", "--json", str(path),
                 "--artefacts", str(tmp_path / "code" / "new")]) == 1
    data = json.loads(path.read_text())
    assert data["complete"]
    named = {(r["op"], r["case"], r["backend"]): r["artefacts"] for r in data["rows"] if "artefacts" in r}
    page = {"asm": "../code/new/asm-double-it-fp32.html", "verdict": "VECTOR 100%", "trace": "../code/new/profile-double-it-fp32/index.html", "case": "1000"}
    assert named == {("double/it", case, "triton-cpu"): page for case in ("1000", "3000")}
    assert {p.name for p in (tmp_path / "code" / "new").iterdir()} == {"asm-double-it-fp32.html", "profile-double-it-fp32"}
    assert "scale_kernel" in (path.parent / page["asm"]).read_text() and "scale_kernel" in (path.parent / page["trace"]).read_text()
    assert [r["backend"] for r in data["rows"] if r["op"] == "plain"] == ["torch", "call"] * 2, "what launches nothing is not called Triton"


def test_two_names_of_one_spelling_are_two_pages(tmp_path, monkeypatch):
    """A row links to its own op's page, whatever of its name a file's may not have."""
    (tmp_path / "my.py").write_text(OPS + """one = Op("soft max", double, lambda x: x * 2, (Case(((1000,),)),))
two = Op("soft-max", double, lambda x: x * 2, (Case(((3000,),)),))
""")
    monkeypatch.setattr(artefacts, "_profile", lambda *args: None)
    path = tmp_path / "r.json"
    assert main(["bench", "--op", f"{tmp_path}/my.py:one", "--op", f"{tmp_path}/my.py:two", "--backend", "triton-cpu", "--reps", "1", "--no-cold", "--json", str(path),
                 "--artefacts", str(tmp_path / "code")]) == 0
    named = {r["op"]: (r["artefacts"]["asm"], r["artefacts"]["case"]) for r in json.loads(path.read_text())["rows"]}
    assert named == {"soft max": ("code/asm-soft-max-fp32.html", "1000"), "soft-max": ("code/asm-soft-max-fp32-2.html", "3000")}
    assert {p.name for p in (tmp_path / "code").iterdir()} == {"asm-soft-max-fp32.html", "asm-soft-max-fp32-2.html"}


def test_usage(tmp_path, capsys):
    assert main(["bench", "--op", "square", "--artefacts", str(tmp_path)]) == 2
    (tmp_path / "file").write_text("")
    assert main(["bench", "--op", "square", "--json", str(tmp_path / "r.json"), "--artefacts", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert "--artefacts goes with --json" in said and "it is a file; name a folder" in said


@pytest.mark.parametrize("word,shares,said", [("VECTOR", [1.0, 0.996], "VECTOR 99%"),
                                              ("PARTLY", [1.0, 0.5], "PARTLY 50%"), (None, [None], "nothing to judge")])
def test_the_verdict_is_of_the_worst_loop(word, shares, said):
    loops = [types.SimpleNamespace(figures={"vector": s}) for s in shares]
    assert artefacts.verdict([types.SimpleNamespace(verdict=word, hot=loops)]) == said
