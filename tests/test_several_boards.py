"""`--on A,B`: a command for several boards, side by side."""

import json
import os
import re
import sys
import textwrap

import pytest
from triport.backends.base import Error
from triport.backends.spine import runner
from triport.ops import tuning
from triport.tools import boards
from triport.tools.__main__ import main


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """An `ssh` to boards that are this machine: `gone` does not answer, and of `a` and `b` each waits until the other was asked, too."""
    (tmp_path / "ssh").write_text(textwrap.dedent(f"""\
        #!{sys.executable}
        import os, sys, time
        at = sys.argv.index("--")
        host = sys.argv[at + 1]
        if host.endswith("gone"):
            sys.exit("ssh: connect to host gone port 22: No route to host")
        open(os.path.join({str(tmp_path)!r}, "asked-" + host), "w").close()
        end = time.monotonic() + 100
        while host in "ab" and not os.path.exists(os.path.join({str(tmp_path)!r}, "asked-" + "ab"[host == "a"])):
            if time.monotonic() > end:
                sys.exit("the boards were asked one after the other")
            time.sleep(0.01)
        os.environ["HOME"] = os.path.join({str(tmp_path)!r}, "home-" + host)
        os.makedirs(os.environ["HOME"], exist_ok=True)
        os.execvp("sh", ["sh", "-c", sys.argv[at + 2]])
        """))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    runner.get.cache_clear()
    yield tmp_path
    runner.get.cache_clear()


def test_a_table_for_each_and_a_row_for_one_that_is_gone(fake_ssh, capfd):
    code = main(["bench", "--on", "ssh:a,ssh:gone,ssh:b", "--op", "square", "--case", "64x64", "--reps", "2", "--no-cold", "--json", str(fake_ssh / "all.json")])
    out, err = capfd.readouterr()
    assert code == 1, err
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("== ")] == ["== ssh:a", "== ssh:b"]
    assert sum("square" in line for line in lines) >= 2
    end = lines[-4:]
    assert end[0].split() == ["board", "result"] and end[1].split() == ["ssh:a", "ok"] and end[3].split() == ["ssh:b", "ok"]
    assert end[2].startswith("ssh:gone  ") and "No route to host" in end[2]
    for board in "ab":
        data = json.loads((fake_ssh / f"all-ssh_{board}.json").read_text())
        assert data["machine"]["board"]["runner"] == f"ssh:{board}" and [r["status"] for r in data["rows"]] == ["ok"]


@pytest.mark.first(0)
def test_devices(fake_ssh, capfd):
    assert main(["devices", "--json", "--on", "ssh:a,ssh:gone,ssh:b"]) == 1
    first, gone, last = json.loads(capfd.readouterr().out)
    assert first["runner"] == "ssh:a" and last["runner"] == "ssh:b" and first["status"] == last["status"] == "ok"
    assert gone["runner"] == "ssh:gone" and gone["status"] == "unavailable" and "No route to host" in gone["reason"]
    assert main(["devices", "--on", "ssh:gone,ssh:me@gone"]) == 2
    out = capfd.readouterr().out
    assert out.splitlines()[0].split() == ["board", "result"] and out.count("\n") == 3


@pytest.mark.first(0)
def test_tune_writes_one_table(fake_ssh, tmp_path, capfd):
    table = tmp_path / "tuned.json"
    code = main(["tune", "--op", "square", "--on", "ssh:a,ssh:b", "--dtype", "fp32", "--case", "64x64", "--reps", "1", "-o", str(table)])
    assert code == 0, capfd.readouterr().err
    assert len(tuning.load(table)) == 1  # both are this machine


@pytest.mark.parametrize("argv,message", [
    (["export", "square", "-o", "x", "--on", "ssh:a,ssh:b"], "triport export takes one board; bench, devices, tune take several"),
    (["asm", "square", "--on", "ssh:a,ssh:b"], "triport asm takes one board"),
    (["devices", "--on", "ssh:a,"], "there is nothing before, behind or between commas"),
    (["devices", "--on", "ssh:a,,ssh:b"], "there is nothing before, behind or between commas"), (["devices", "--on", "ssh:a,ssh:a"], "'ssh:a' is named twice"),
    (["devices", "--on", "ssh:a,b"], "unknown runner 'b'"), (["bench", "--on", "ssh:a,qemu:sparc"], "unknown emulated machine 'sparc'"),
    (["bench", "--on", "ssh:a,ssh:b", "--json", "-"], "with several boards each has a file of its own")])
def test_what_is_refused(argv, message, capsys):
    assert main(argv) == 2
    assert re.search(message, capsys.readouterr().err)


def test_one_runner_is_one(monkeypatch):
    with pytest.raises(Error, match="names several boards; one is taken here"):
        runner.get("ssh:a,ssh:b")


def test_argument_vectors():
    argv = ["bench", "--on", "a,b", "--json=x", "--csv", "y", "--op", "--onset"]
    assert boards._without(argv, ("--on", "--json", "--csv")) == ["bench", "--op", "--onset"]
    assert str(boards._of_board(boards.Path("d/k.json"), "ssh:me@k1:22")) == "d/k-ssh_me@k1_22.json"
