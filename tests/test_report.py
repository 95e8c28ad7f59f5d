"""`triport report`: reading what other machines wrote, in words, as the text of a page, as PNGs."""

import copy
import json
import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from results_files import NASTY, made, nasty, row, written
from triport.backends import BACKENDS
from triport.backends.base import Error
from triport.bench import units
from triport.tools.__main__ import main
from triport.tools.reporting import colours, page, png, runs, summary


def read(folder, **files):
    return runs.read(written(folder, **files), folder / "report.html")


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text,said", [("[]", "is a list"), ("{", "is not a results file"),
                                       ('{"schema": 7, "machine": {}, "rows": []}', "has schema 7"),
                                       (json.dumps(made() | {"rows": []}), "there is no row to show: x: It has no rows."),
                                       (json.dumps(made() | {"rows": [{}, 3]}), "there is no row to show: x: Row 1 is left out: its op is missing.")])
def test_files_that_are_refused(tmp_path, capsys, text, said):
    """One sentence and exit code 2; no page is written."""
    path, = written(tmp_path, x=text)
    assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("triport report: ") and said in err and err.count("\n") == 1 and not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("args,said", [(["-o", "{0}/none/r.html"], "there is no folder"), (["-o", "{0}"], "it is a folder"),
                                       (["-o", "{0}/x.json"], "it is what the command reads"),
                                       (["-o", "{0}/r.html", "--png", "{0}/x.json"], "it is a file; name a folder"),
                                       (["-o", "{0}/r.html", "--png", "{0}/x.json/plots"], "cannot be written")])
def test_usage(tmp_path, capsys, args, said):
    path, = written(tmp_path, x=made())
    assert main(["report", str(path), *(a.format(tmp_path) for a in args)]) == 2
    assert said in capsys.readouterr().err and json.loads(path.read_text())["rows"]


def test_an_interrupted_run_says_so(tmp_path, capsys):
    path, = written(tmp_path, x=made() | {"complete": False})
    assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == 0
    said = "The run was interrupted after 36 rows"
    assert said in (tmp_path / "r.html").read_text() and said in capsys.readouterr().err


def test_schema_2(tmp_path):
    """A backward is an op of its own beside the forward; what was skipped is said, with its reason."""
    data = made() | {"schema": 2}
    data["rows"] += [row(backend=b, mode="bwd", t=1e-3) for b in ("torch", "triton-cpu")]
    data["rows"][4] |= {"status": "skipped", "reason": "there is no GPU"}
    run, = read(tmp_path, x=data)
    assert [r["op"] for r in run.rows[-2:]] == ["softmax bwd"] * 2 and not run.remarks
    assert summary.words(run)[0] == ("skipped", "Skipped: softmax 256x256 fp32 on torch-compile: there is no GPU")


@pytest.mark.parametrize("change,said", [
    ({"wall_s": {"p20": 1, "p50": "12", "p80": 13}}, "wall_s.p50 is '12', which is no number"), ({"wall_s": None}, "it has no wall_s"),
    ({"wall_s": {"p20": 1.0, "p50": math.nan, "p80": 2.0}}, "wall_s.p50 is nan"), ({"wall_s": {"p20": 2.0, "p50": 1.0, "p80": 3.0}}, "out of order"),
    ({"wall_s": {"p50": 1.0}}, "lacks p20, p50 or p80"), ({"wall_s": {"p20": 0, "p50": 0, "p80": 0}}, "wall_s.p20 is 0"),
    ({"wall_s": []}, "wall_s is no summary"),
    ({"bytes": -1}, "bytes is -1"), ({"flops": 1e300}, "flops is 1e+300"), ({"speedup": True}, "speedup is True"),
    ({"bytes": 10**400}, "bytes is 1000"),
    ({"cpu_s": 3}, "cpu_s is no summary"), ({"cpu_s": {"avg": -1.0}}, "cpu_s.avg is -1.0"),
    ({"first_call_s": 3}, "first_call_s is no object"), ({"op": 3}, "its op is no text"),
    ({"status": "fine"}, "its status is 'fine', none of ok, wrong, failed"),
    ({"status": ["ok"]}, "its status is a list"), ({"device_s": {"p20": -1.0, "p50": 1.0, "p80": 1.0}}, "device_s.p20 is -1.0")])
def test_rows_that_cannot_be_are_left_out(tmp_path, change, said):
    """The others stay, and a remark names what was wrong."""
    data = made()
    data["rows"][4] |= change
    run, = read(tmp_path, x=data)
    assert len(run.rows) == 35 and len(run.remarks) == 1
    assert run.remarks[0].startswith("Row 5 is left out: ") and said in run.remarks[0], run.remarks
    json.loads(page.data([run]))


def test_many_bad_rows_are_counted(tmp_path):
    data = made()
    data["rows"][:20] = [{}] * 20
    run, = read(tmp_path, x=data)
    assert len(run.remarks) == 7 and run.remarks[-1].startswith("14 more rows")


def test_a_file_of_before_has_less(tmp_path):
    """No device, roofline, first calls, bytes: the rows stay."""
    data = made() | {"machine": {}}
    for r in data["rows"]:
        for key in ("device", "roofline", "first_call_s", "bytes", "flops", "cpu_s", "peak_bytes", "speedup"):
            r.pop(key, None)
    run, = read(tmp_path, x=data)
    assert len(run.rows) == 36 and not run.remarks and run.rows[0]["device"] == "cpu"


def test_text_that_any_page_can_hold():
    """No control characters, none that turn the line around, no half of a pair, no end."""
    assert runs.clean("a\0b\nc\u202ed\u2028e\ud800f É漢") == "a b c d e f É漢"
    assert runs.clean("x" * 999, 10) == "xxxxxxx..." and runs.clean("x" * 10, 10) == "x" * 10


def test_machines_have_names_of_their_own(tmp_path):
    (tmp_path / "a").mkdir()
    one, two = tmp_path / "x.json", tmp_path / "a" / "x.json"
    assert runs.names([one, two, one, tmp_path / "y.json"]) == [f"{tmp_path.name}/x 1", "a/x", f"{tmp_path.name}/x 2", "y"]


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
                    | st.sampled_from([NASTY, 10**300, "\ud800", "ok", "../x"]),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_file_says(tmp_path, data):
    """Anything may stand anywhere in a file: there is a sentence, or a page whose data are numbers and text."""
    whole = made()
    whole["rows"] = whole["rows"][:4]
    whole["rows"][0] |= {"artefacts": {"asm": "a", "verdict": "V", "trace": "t"}, "device_s": dict(whole["rows"][0]["wall_s"])}
    for _ in range(data.draw(st.integers(1, 4))):
        at = whole
        while True:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.integers(0, 3)) == 0:
                break
            at = at[key]
        at[key] = data.draw(JSON)
    path, = written(tmp_path, x=whole)
    try:
        found = runs.read([path], tmp_path / "r.html")
    except Error as e:
        assert "\n" not in str(e)
        return
    text = page.render(found)
    text.encode()
    assert text.count("<script") == 4 and "<b title" not in text
    json.loads(re.search(r'id="data">(.*?)</script>', text)[1], parse_constant=lambda c: pytest.fail(c))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=40))
def test_whatever_bytes(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(Error):
        runs.read([tmp_path / "x.json"], tmp_path / "r.html")


# --- words, links, colours -------------------------------------------------------------------------------------------


def test_words(tmp_path):
    """What is not right first; then the geometric mean, the best and the worst of each backend."""
    data = made() | {"rows": [row(), row(backend="triton-cpu", speedup=4.0), row(op="gelu", backend="triton-cpu", speedup=0.25, case="8x8"),
                              row(op="square", backend="triton-cpu", speedup=8.0), row(backend="spine"),
                              row(backend="cuda", status="wrong", error=math.inf),
                              row(backend="torch-compile", status="failed", reason="RuntimeError: no")]}
    run, = read(tmp_path, x=data)
    said = summary.words(run)
    assert said[:2] == [("bad", "WRONG: softmax 128x128 fp32 on cuda: error inf, allowed 2.0e-06"),
                        ("bad", "FAILED: softmax 128x128 fp32 on torch-compile: RuntimeError: no")]
    facts = [text for kind, text in said if kind == "fact"]
    assert facts[0] == "5 of 7 results right."
    assert ("triton-cpu: 2.00x torch's speed, the geometric mean of 3 rows; best 8.00x (square 128x128 fp32), worst 0.25x (gelu 8x8 fp32).") in facts
    assert "spine: 1 right, no time of torch beside them." in facts
    assert [units.ratio(x) for x in (1.984, 0.00042, 110.56)] == ["1.98x", "0.00042x", "111x"]


def test_links_are_relative_to_the_page(tmp_path):
    """A row's path is relative to its file; what is absolute, has a scheme or leads nowhere is no link."""
    (tmp_path / "in" / "code").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "code" / "a b#.html").write_text("")
    (tmp_path / "in" / "javascript:alert(1)").write_text("")
    links = ["code/a b#.html", "javascript:alert(1)", "/etc/passwd", "//x/y", "code/none.html", "code", 3, "\0", "x" * 5000]
    data = made()
    for r, there in zip(data["rows"], links):
        r["artefacts"] = {"asm": there, "verdict": "VECTOR 100%"}
    path, = written(tmp_path / "in", x=data)
    run, = runs.read([path], tmp_path / "out" / "r.html")
    assert [r["asm"] for r in run.rows[:len(links)]] == ["../in/code/a%20b%23.html"] + [None] * 8
    assert run.rows[1]["verdict"] == "VECTOR 100%"
    assert run.remarks == ["8 links to machine code or a trace lead nowhere and are left out: the files do not lie where the rows say."]


def _seen(colour: str, by: str | None) -> tuple:
    """A colour in CIELAB, as people of a colour vision see it (Machado, Oliveira and Fernandes 2009, full severity)."""
    import numpy as np
    kinds = {"protan": [[.152286, 1.052583, -.204868], [.114503, .786281, .099216], [-.003882, -.048116, 1.051998]],
             "deutan": [[.367322, .860646, -.227968], [.280085, .672501, .047413], [-.011820, .042940, .968881]],
             "tritan": [[1.255528, -.076749, -.178779], [-.078411, .930809, .147602], [.004733, .691367, .303900]]}
    linear = np.array([(c / 12.92 if c <= .04045 else ((c + .055) / 1.055) ** 2.4) for c in (int(colour[k:k + 2], 16) / 255 for k in (1, 3, 5))])
    if by:
        linear = np.clip(np.array(kinds[by]) @ linear, 0, 1)
    xyz = np.array([[.4124, .3576, .1805], [.2126, .7152, .0722], [.0193, .1192, .9505]]) @ linear / (.9505, 1, 1.089)
    f = np.where(xyz > .008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


@pytest.mark.parametrize("by", [None, "protan", "deutan", "tritan"])
def test_colours_are_told_apart(by):
    """By people of any colour vision; every backend has one, on light and on dark."""
    assert set(colours.COLOURS) == set(BACKENDS)
    seen = [_seen(c, by) for c in colours.COLOURS.values()]
    assert min(math.dist(a, b) for n, a in enumerate(seen) for b in seen[:n]) > 10
    assert all(math.dist(c, _seen(ground, by)) > 25 for c in seen for ground in ("#ffffff", "#15171a"))


def test_a_backends_colour_is_the_same_everywhere():
    assert colours.of(["triton-cpu", "new", "torch"]) == {"torch": "#0072b2", "triton-cpu": "#d55e00", "new": colours.OTHERS[0]}


# --- the page as text ------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else(tmp_path):
    """No reference but SVG's name; what files say is escaped; the policy lets the page's own script run and nothing else."""
    found = read(tmp_path, one=made(), two=nasty())
    text = page.render(found)
    assert re.findall(r"https?://[^'\"\s]*", text) == ["http://www.w3.org/2000/svg"]
    assert "src=" not in text and "@import" not in text and "url(" not in text
    assert text.count("<script") == 4 and "<script>alert" not in text and "<b title" not in text and "&lt;script&gt;" in text
    assert "default-src 'none'" in text and "unsafe-inline" not in text


# --- PNGs ------------------------------------------------------------------------------------------------------------


def test_plots_as_pngs(tmp_path, monkeypatch):
    """Every plot of every machine, none blank, without a display, whatever names say."""
    import numpy as np
    from matplotlib.image import imread
    monkeypatch.delenv("DISPLAY", raising=False)
    data = made()
    data["rows"] = [r for r in data["rows"] if r["op"] == "softmax" and r["dtype"] == "fp32"]
    strange = copy.deepcopy(data)
    strange["rows"] = strange["rows"][:3]
    for r in strange["rows"]:
        r |= {"op": "$x^{$ <b>/../", "backend": f"_{r['backend']}", "speedup": 2.0}
    written_ = png.write(read(tmp_path, laptop=data, strange=strange), tmp_path / "png")
    assert sorted(p.name for p in written_) == sorted(p.name for p in (tmp_path / "png").iterdir())
    assert {p.name for p in written_} >= {"time-softmax-fp32.png", "speed-laptop.png", "roof-laptop-cpu.png", "cpu-laptop.png", "first-laptop.png",
                                          "speed-strange.png"} and len(written_) == 10
    for path in written_:
        image = imread(path)[..., :3]
        assert image.shape[1] == 1050 and len(np.unique(image @ np.float32([1, 300, 90000]))) > 20, path
    ours = [int(colours.COLOURS["triton-cpu"][k:k + 2], 16) / 255 for k in (1, 3, 5)]
    assert (abs(imread(tmp_path / "png" / "time-softmax-fp32.png")[..., :3] - ours).max(axis=2) < 0.01).any()
