"""A board over ssh: addresses, first contact, start-up files that print, names, against a real sshd with riscv64 programs in QEMU behind it."""

import platform
import re

import pytest
import torch
from spine_boards import CASES
from ssh_boards import sshd  # noqa: F401  (a fixture)
from triport.backends.base import Error
from triport.backends.cpu.llvm import targets
from triport.backends.spine import bundle, process, remote, runner
from triport.ops import registry
from triport.tools.__main__ import main

HERE = {"x86_64": "x86-64-v2", "aarch64": "aarch64", "riscv64": "rv64gc"}[platform.machine()]
K1 = "qemu:riscv64?vlen=256"


@pytest.fixture(scope="module")
def made():
    return bundle.make([(registry.get("square"), CASES["square"][0], "fp32")], targets.get(HERE), repetitions=1)


def contact(board) -> str:
    """What is said of a board that cannot be reached."""
    runner.get.cache_clear()
    with pytest.raises(Error) as caught:
        runner.get(board).arch()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- addresses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text,words,by_hand", [
    ("ssh:k1", ["--", "k1"], "k1"), ("ssh:me@k1", ["--", "me@k1"], "me@k1"), ("ssh:me@k1:2222", ["-p", "2222", "--", "me@k1"], "-p 2222 me@k1"),
    ("ssh://me@k1:2222", ["-p", "2222", "--", "me@k1"], "-p 2222 me@k1"), ("ssh://k1", ["--", "k1"], "k1"), ("ssh://k1/", ["--", "k1"], "k1"),
    ("ssh:192.168.1.7:22", ["-p", "22", "--", "192.168.1.7"], "-p 22 192.168.1.7"), ("ssh:me@[fe80::1%eth0]:2222", ["-p", "2222", "--", "me@fe80::1%eth0"], "-p 2222 me@fe80::1%eth0"),
    ("ssh:[::1]", ["--", "::1"], "::1"), ("ssh:me@::1", ["--", "me@::1"], "me@::1"), ("ssh:me@corp@k1", ["--", "me@corp@k1"], "me@corp@k1")])
def test_addresses(text, words, by_hand):
    host = remote.host_of(text)
    assert host.words == words and host.by_hand == by_hand


@pytest.mark.parametrize("text,message", [
    ("ssh:k1:", "'' is no port"), ("ssh:k1:ssh", "'ssh' is no port; it takes a number from 1 to 65535"), ("ssh:k1:0", "'0' is no port"), ("ssh:k1:65536", "is no port"),
    ("ssh:k1:-1", "is no port"), ("ssh:k1:2222:3", "is no host"), ("ssh:@k1", "is no host"), ("ssh:me@", "is no host"), ("ssh://", "is no host"), ("ssh:///k1", "is no host"),
    ("ssh://k1/home", "is no host"), ("ssh:-p:22", "is no host"), ("ssh:me@-oProxyCommand=x", "is no host"), ("ssh:k1:22;reboot", "is no port"), ("ssh:k$(reboot)", "is no host"),
    ("ssh:k1\n", "is no host"), ("ssh:me@k1:٢٢", "is no port"), ("ssh:kä", "is no host")])
def test_addresses_that_are_none(text, message):
    with pytest.raises(Error, match=re.escape(message)):
        runner.get(text)


# --- contact -----------------------------------------------------------------------------------------------------------------


def test_a_riscv64_board_behind_sshd(sshd, capsys):
    """Both spellings, a home with spaces, a start-up file that prints without end of line on both outputs, and code for a K1."""
    board = sshd(K1)
    (board.home / ".bashrc").write_text("echo Welcome to Bianbu; printf '%s' 'TRIPORT1 no newline'; echo 'bash: warning' >&2\n")
    assert remote.Shell(board.name).run("echo $HOME").decode() == f"{board.home}\n"
    for_k1 = bundle.make([(registry.get("square"), CASES["square"][0], "fp32")], targets.get("spacemit-x60"), repetitions=1)
    x = torch.randn(17, 23)
    for name in (board.name, board.name.replace("ssh:", "ssh://")):
        there = runner.get(name)
        assert there.arch() == "riscv64" and there.board.vlen == 256
        (y,), answer = there.call(for_k1, "triport_square_fp32", [x], repetitions=1)
        assert torch.equal(y, x * x) and answer.vlen == 256
    assert len(list((board.home / ".cache" / "triport").iterdir())) == 2  # the probe, and this: sent once
    assert "warning" not in capsys.readouterr().err


def test_what_a_start_up_file_prints_is_seen_by_ssh_itself(sshd):
    """The noise of these tests is there: without triport's line it would be the answer."""
    import subprocess
    board = sshd()
    (board.home / ".bashrc").write_text("echo noise\n")
    words = ["ssh", *remote.host_of(board.name).words, "echo", "answer"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "noise\nanswer\n"


def test_first_contact_and_keys(sshd):
    board = sshd()
    by_hand = f"ssh -p {board.port} {board.user}@127.0.0.1"
    assert runner.get(board.name).arch() == platform.machine()
    (board.folder / "known").unlink()
    assert f"host key unknown: run `{by_hand}` once" in contact(board.name)
    other = (board.folder / "other.pub").read_text().split()[1]
    (board.folder / "known").write_text(f"[127.0.0.1]:{board.port} ssh-ed25519 {other}\n")
    said = contact(board.name)
    assert "its host key is not the one that is known for it" in said and f"ssh-keygen -R '[127.0.0.1]:{board.port}'" in said
    board.meet()
    (board.folder / "authorized").write_text((board.folder / "other.pub").read_text())
    assert f"it takes none of your keys, and triport asks for no password: run `ssh-copy-id -p {board.port} {board.user}@127.0.0.1`" in contact(board.name)
    board.stop()
    assert f"nothing answers at port {board.port} there: is sshd running" in contact(board.name)


@pytest.mark.parametrize("text,message", [("exit 3", "its shell ended with exit code 3 before it came to triport's command: look at the start-up files there"),
                                          ("echo maintenance; exit 0", "exit code 0 before it came to triport's command, and wrote 'maintenance'")])
def test_a_start_up_file_that_ends_the_shell(sshd, text, message):
    board = sshd()
    (board.home / ".bashrc").write_text(text + "\n")
    assert message in contact(board.name)


@pytest.mark.parametrize("said,message", [
    ("ssh: Could not resolve hostname k1: Name or service not known", "no address is known for 'k1'"), ("ssh: connect to host k1 port 22: No route to host", "it does not answer: is it on"),
    ("ssh: connect to host k1 port 22: Connection timed out", "it does not answer: is it on"), ("Received disconnect from k1: 2: Too many authentication failures", "IdentityFile"),
    ("Permissions 0644 for 'k' are too open.\nWARNING: UNPROTECTED PRIVATE KEY FILE!\nme@k1: Permission denied (publickey).", "chmod 600"),
    ("kex_exchange_identification: Connection closed by remote host", "it ended the connection at once"), ("Unable to negotiate: no matching host key type found.", "no method in common"),
    ("/h/.ssh/config: line 1: Bad configuration option: foo", "refuses its own settings"), ("odd", "ssh could not reach it: odd; try `ssh k1`"), ("", "it does not say why")])
def test_failures_of_ssh(said, message):
    assert message in remote.Shell("ssh:k1")._not_reached(said, b"", 255)


def test_no_ssh(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install openssh-client" in contact("ssh:k1")


# --- names and limits --------------------------------------------------------------------------------------------------------


def test_names_are_words_of_the_shell(made, sshd):
    """A program's name that is a command runs nothing; a manifest with such a name is refused, too."""
    board = sshd()
    name = "x'; touch pwned; echo '$(touch pwned)"
    files = {name if path == made.manifest["program"] else path: data for path, data in made.files.items()}
    sums = {name if path == made.manifest["program"] else path: sum_ for path, sum_ in made.manifest["files"].items()}
    odd = bundle.Bundle({**made.manifest, "program": name, "files": sums}, files)
    x = torch.randn(3, 5)
    (y,), _ = runner.get(board.name).call(odd, "triport_square_fp32", [x])
    assert torch.equal(y, x * x)
    assert sorted(p.name for p in board.home.iterdir()) == [".cache"]
    assert [p.name for p in (board.home / ".cache" / "triport" / odd.digest).iterdir()] == [name]


@pytest.mark.parametrize("text", ["abc", "0", "-1", "nan", "inf", "1e9", "5s"])
def test_a_limit_that_is_no_time(text, made, monkeypatch, capsys):
    monkeypatch.setenv("TRIPORT_SPINE_LIMIT", text)
    with pytest.raises(Error, match=f"TRIPORT_SPINE_LIMIT={re.escape(text)}: it takes the seconds that a request may take"):
        runner.get("local").execute(made, ["--board"])
    if text == "abc":
        runner.get.cache_clear()
        assert main(["devices", "--on", "local"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "TRIPORT_SPINE_LIMIT=abc" in err


def test_limits(monkeypatch):
    monkeypatch.setenv("TRIPORT_SPINE_LIMIT", " 12.5 ")
    assert process.limit() == 12.5
    monkeypatch.setenv("TRIPORT_SPINE_LIMIT", "")
    assert process.limit() == process.LIMIT


# --- what is left there ------------------------------------------------------------------------------------------------------


def test_what_is_left_is_listed_and_removed(made, sshd, capsys, monkeypatch):
    """And sent again when it is needed; what is not triport's stays."""
    import json
    board = sshd()
    folder = board.home / ".cache" / "triport"
    bare = board.name.removeprefix("ssh:")
    assert main(["boards", bare]) == 0
    assert capsys.readouterr().out == f"{board.name}: 0 bundles, 0.0 MB in ~/.cache/triport\n"
    there, x = runner.get(board.name), torch.randn(3, 5)
    there.call(made, "triport_square_fp32", [x])
    (folder / "a b; rm -rf c").mkdir()
    (folder / ("g" * 64)).mkdir()
    (folder / ("a" * 64)).write_text("a file of this name is no bundle")
    monkeypatch.setenv("TRIPORT_SPINE", board.name)
    assert main(["boards", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    (one,) = row["bundles"]
    assert (one["digest"], one["program"], row["others"], row["done"]) == (made.digest, made.manifest["program"], 3, "list") and one["nbytes"] >= len(made.files["square"])
    assert main(["boards", "clean", bare]) == 0
    assert "removed 1 bundle, 0." in (said := capsys.readouterr().out) and "3 other entries there are not triport's and stay" in said
    assert sorted(p.name for p in folder.iterdir()) == ["a b; rm -rf c", "a" * 64, "g" * 64]
    (y,), _ = there.call(made, "triport_square_fp32", [x])
    assert torch.equal(y, x * x) and (folder / made.digest).is_dir()
    for p in ("a b; rm -rf c", "g" * 64):
        (folder / p).rmdir()
    (folder / ("a" * 64)).unlink()
    assert main(["boards", "clean"]) == 0 and not folder.exists()
    assert main(["boards", "clean"]) == 0
    capsys.readouterr()
    assert main(["boards", "list", f"{bare},{board.user}@127.0.0.1:1"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{board.name}: 0 bundles") and "nothing answers at port 1 there" in second


@pytest.mark.parametrize("argv,message", [
    ([], "say which board: triport boards ssh:me@k1"), (["clean"], "say which board: triport boards clean ssh:me@k1"), (["clen", "k1"], "unknown word 'clen'; did you mean 'clean'?"), (["local"], "local: nothing is left there"),
    (["clean", "k1", "k3"], "several boards are named with commas between them: k1,k3"), (["k1,"], "nothing before, behind or between commas"), (["clean", "-x"], "-x"),
    (["k1:abc"], "'abc' is no port"), (["clean", "me@k1;reboot"], "is no host"), (["k1,k1"], "named twice")])
def test_boards_that_are_none(argv, message, capsys, monkeypatch):
    monkeypatch.delenv("TRIPORT_SPINE", raising=False)
    try:
        assert main(["boards", *argv]) == 2
    except SystemExit as e:
        assert e.code == 2
    assert message in capsys.readouterr().err


# --- a K3's cores for AI -----------------------------------------------------------------------------------------------------


@pytest.fixture
def admitting(monkeypatch, tmp_path):
    """The row of the A100 with another file in the place of Linux's."""
    import dataclasses
    file = tmp_path / "set ai thread"
    monkeypatch.setitem(targets.TARGETS, "spacemit-k3-a100", dataclasses.replace(targets.get("spacemit-k3-a100"), admits=str(file)))
    return file


def test_programs_for_a_k3s_ai_cores_ask_for_them(admitting, sshd, tmp_path):
    """The number in the file is that of the process that becomes the program; code for other cores asks for none, nor where there is no such file."""
    board = sshd("qemu:riscv64?vlen=1024")
    there, x = runner.get(board.name), torch.randn(17, 23)
    for_a100, for_any = (bundle.make([(registry.get("square"), CASES["square"][0], "fp32")], targets.get(name)) for name in ("spacemit-k3-a100", "rv64gcv"))

    def right(made):
        (y,), _ = there.call(made, "triport_square_fp32", [x])
        return torch.equal(y, x * x)

    assert right(for_a100) and not admitting.exists()
    admitting.write_text("")
    assert right(for_any) and admitting.read_text() == ""
    assert right(for_a100) and int(admitting.read_text()) > 1
    real = board.there / "sh"  # the program that is started shows its number
    real.write_text(real.read_text().replace("builtin exec '", f"echo $$ > '{tmp_path}/started'; builtin exec '", 1))
    assert right(for_a100) and admitting.read_text() == (tmp_path / "started").read_text()
    admitting.unlink()
    admitting.mkdir()  # nothing can be written there
    with pytest.raises(Error, match="ended with exit code .*set ai thread"):
        right(for_a100)


def test_here_too(admitting, made):
    """On the board itself; the row that counts is ours, whatever a manifest says."""
    local = runner.get("local")
    forged = bundle.Bundle({**made.manifest, "target": {**made.manifest["target"], "admits": "/etc/passwd"}}, made.files)
    assert local.command(forged, ["a b"])[1:] == ["a b"]
    named = bundle.Bundle({**made.manifest, "target": {**made.manifest["target"], "name": "spacemit-k3-a100"}}, made.files)
    admitting.write_text("")
    assert local.execute(named, ["--board"]).startswith(b"target ") and int(admitting.read_text()) > 1


def test_the_file_is_that_of_spacemits_linux():
    assert {name: row.admits for name, row in targets.TARGETS.items() if row.admits} == {"spacemit-k3-a100": "/proc/set_ai_thread"}
