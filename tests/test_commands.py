"""What every command has in common: exit codes, near misses, help with examples that work, colours, completion, a quick start."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import results_files
import torch
from conftest import DOUBLE, HANGS, ROOT
from triport.bench.models import MODELS
from triport.tools import __main__ as commands
from triport.tools import exits
from triport.tools import models as models_command
from triport.tools.__main__ import COMMANDS, main

NAMES = sorted(COMMANDS)
#: a line of each command that its parser takes
GOOD = {"bench": ["bench"], "models": ["models"], "asm": ["asm", "softmax"], "profile": ["profile", "softmax"], "export": ["export", "gelu", "-o", "x"],
        "language": ["language"], "report": ["report", "x.json"], "tune": ["tune"], "devices": ["devices"], "boards": ["boards", "k1"], "check": ["check", "softmax"]}


def code(argv) -> int:
    try:
        return main(argv)
    except SystemExit as e:
        return e.code


# --- exit codes ------------------------------------------------------------------------------------------------------


def _raise(what):
    raise what


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_the_same_exit_codes(name, monkeypatch, capsys):
    import importlib

    from triport.backends.base import Error
    module = importlib.import_module(f"triport.tools.{COMMANDS[name][0]}")
    for did, want, said in ((lambda args: 0, 0, None), (lambda args: 1, 1, None), (lambda args: _raise(Error("no such thing")), 2, f"triport {name}: no such thing"),
                            (lambda args: _raise(ZeroDivisionError("by zero\nmore")), 3, f"triport {name}: internal error: ZeroDivisionError: by zero; "),
                            (lambda args: _raise(AssertionError()), 3, f"triport {name}: internal error: AssertionError: ; "),
                            (lambda args: _raise(RecursionError("deep")), 3, "RecursionError"), (lambda args: _raise(KeyboardInterrupt()), 130, "interrupted"),
                            (lambda args: _raise(BrokenPipeError("of a child's")), 3, "BrokenPipeError")):
        monkeypatch.setattr(module, "run", did)
        assert main(GOOD[name]) == want
        out, err = capsys.readouterr()
        assert not out and ((said in err.splitlines()[-1]) if said else not err)
        assert ("Traceback" in err) == (want == 3)


def test_the_codes_are_what_the_readme_says():
    readme = (ROOT / "README.md").read_text()
    for value, word in ((exits.GOOD, "good"), (exits.WRONG, "wrong"), (exits.USAGE, "usage"), (exits.OURS, "triport's own"), (exits.INTERRUPTED, "interrupted")):
        assert re.search(rf"\| {value} \|[^|\n]*{word}", readme), word


def test_a_reader_that_has_gone_is_no_error():
    """`triport ... | head -1`: no traceback, no message of the interpreter's end, and the exit code that it would have had."""
    p = subprocess.Popen([sys.executable, "-m", "triport.tools", "asm", "--list-targets"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    p.stdout.close()
    err = p.stderr.read().decode()
    assert p.wait(HANGS) == 0 and "Error" not in err and "Exception" not in err, err


@pytest.mark.parametrize("prints", ["print('x' * 70000, flush=True)", "rich.print('x' * 70000)", "sys.stdout.buffer.write(b'x' * 70000)", "print('x' * 70000, file=sys.stderr, flush=True)"])
def test_what_is_found_is_the_exit_code_whoever_reads(tmp_path, prints):
    """A regression that `| head` hides from nobody; a file that is written behind is whole."""
    file = tmp_path / "found"
    script = f"import sys, rich; from triport.tools import exits\ndef run():\n    {prints}\n    open({str(file)!r}, 'w').write('all')\n    print('more')\n    return 1\n"
    p = subprocess.Popen([sys.executable, "-c", script + "raise SystemExit(exits.guarded('triport', run))"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    p.stdout.close()
    if "stderr" in prints:
        p.stderr.close()
    else:
        assert not p.stderr.read()
    assert p.wait(HANGS) == 1 and file.read_text() == "all"


def test_a_command_may_end_by_itself(monkeypatch):
    monkeypatch.setattr("triport.tools.devices.run", lambda args: _raise(SystemExit(7)))
    with pytest.raises(SystemExit):
        main(["devices"])


@pytest.mark.parametrize("stdout,code,said", [("", 0, ""), ("/dev/full", 2, "triport asm: what it writes cannot be written: No space left on device\n")])
def test_a_stdout_that_is_closed_or_full(stdout, code, said):
    where = f">{stdout}" if stdout else ">&-"
    done = subprocess.run(["sh", "-c", f'"$0" -m triport.tools asm --list-targets {where}', sys.executable], capture_output=True, text=True, cwd=ROOT, timeout=HANGS)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize("arguments", [["tune", "--op", "square", "--case", "64x64", "--reps", "2", "-o", "/dev/full"], ["asm", "square", "--baseline", "/dev/zero"], ["asm", "/dev/zero"],
                                       ["report", "/dev/zero", "-o", "report.html"]])
def test_a_file_without_an_end(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert "it is a device, not a file" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_stdout_of_few_characters():
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", "from triport.tools import exits; raise SystemExit(exits.guarded('triport', lambda: print('a \u2192 b')))"],
                          capture_output=True, cwd=ROOT, env=env, timeout=HANGS)
    assert done.stdout == b"a ? b\n" and not done.stderr


def test_who_ends_a_command_ends_what_it_runs(tmp_path):
    """SIGTERM is cleaned up after as Ctrl-C is, and has a code of its own."""
    script, pid = tmp_path / "sleeps.py", tmp_path / "pid"
    script.write_text(f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'new')!r}).write_text(str(os.getpid()))\n"
                      f"os.rename({str(tmp_path / 'new')!r}, {str(pid)!r})\ntime.sleep({HANGS})\n")
    p = subprocess.Popen([sys.executable, "-m", "triport.tools", "asm", "--run", str(script)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not pid.exists():
        assert p.poll() is None
        time.sleep(0.05)
    p.terminate()
    assert p.wait(HANGS) == 143
    end = time.monotonic() + HANGS
    while Path(f"/proc/{pid.read_text()}").exists():
        assert time.monotonic() < end, "it runs on"
        time.sleep(0.05)


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("among", [True, False])
def test_an_import_that_would_lose_a_signal_is_waited_for(tmp_path, number, code, among):
    """As numpy's, which takes whatever is raised for a module that is missing, and goes on. Other modules, as a user's, are interrupted at once."""
    (tmp_path / "loses.py").write_text(f"import os, time\ntry:\n    os.kill(os.getpid(), {int(number)})\n    time.sleep(0.2)\nexcept BaseException:\n    print('lost')\nelse:\n    print('whole')")
    run = "import loses, time\n    for _ in range(500): time.sleep(0.02)\n    print('went on')"
    script = f"import sys\nfrom triport.tools import exits\nexits._NEEDED += ('loses',) * {among}\ndef run():\n    {run}\n    return 0\nsys.exit(exits.guarded('triport', run))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANGS, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    assert (done.returncode, done.stdout, done.stderr) == ((code, "whole\n", "interrupted\n") if among else (0, "lost\nwent on\n", "")), done


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8, 1.2])
def test_ctrl_c_while_a_command_starts(pause):
    """Whatever is being imported: one word and its exit code, soon."""
    start = "from triport.tools import early; early.begin(); print('begun', flush=True); from triport.tools.__main__ import main; raise SystemExit(main())"
    command = ["bench", "--op", "softmax", "--case", "128x128", "--no-cold", "--budget", "60s"]
    p = subprocess.Popen([sys.executable, "-c", start, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert p.stdout.readline() == "begun\n"
    time.sleep(pause)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=HANGS)
    assert p.returncode == 130 and "interrupted" in err.splitlines()[-1] and "Traceback" not in err and "Exception" not in err, (p.returncode, err)


def test_a_second_ctrl_c_ends_an_import_that_hangs(tmp_path):
    """The first one waits for it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(100)\n")
    start = f"import sys; from triport.tools import exits; sys.path.insert(0, {str(tmp_path)!r}); sys.exit(exits.guarded('triport', lambda: __import__('torch') and 0))"
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "begun\n"
        p.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            p.wait(0.5)
        p.send_signal(signal.SIGINT)
        assert (p.wait(HANGS), p.stderr.read()) == (130, "interrupted\n")


def test_who_ignores_ctrl_c_goes_on_ignoring_it():
    """As in a shell's background."""
    start = "import os, signal, sys; from triport.tools import early; early.begin(); from triport.tools import exits; send = lambda: os.kill(os.getpid(), 2) or 0; send(); "
    for before, code in (("SIG_IGN", 0), ("default_int_handler", 130)):
        script = f"import signal; signal.signal(2, signal.{before}); {start} early.over(); sys.exit(exits.guarded('triport', send))"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANGS)
        assert (done.returncode, done.stderr) == (code, "interrupted\n" * (code == 130))


def test_pythons_own_handler_comes_back():
    assert exits.guarded("triport", lambda: signal.getsignal(signal.SIGINT) is not signal.default_int_handler) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("command", ["export softmax --target x86-64-v3 -o DIR/x", "profile softmax -o DIR/x", "check softmax", "tune --op softmax --dry-run", "asm softmax --backend torch-compile"])
def test_a_case_larger_than_memory_is_told_in_a_sentence(command, tmp_path, capsys):
    if "tune" in command and torch.cuda.is_available():
        pytest.skip("its tiles are a GPU's here")
    assert code([*command.replace("DIR", str(tmp_path)).split(), "--case", "999999x999999"]) == 2
    err = capsys.readouterr().err
    assert re.search(r"case 999999x999999 takes about \d+\.\d GB( with its float64 reference)?, and \d+\.\d GB are free", err) and "Traceback" not in err


@pytest.mark.parametrize("command", ["bench --op softmax", "bench --list", "export softmax --target x86-64-v3 -o x", "profile softmax", "check softmax", "tune --op softmax", "asm softmax"])
def test_a_case_with_nothing_in_it_is_none(command, capsys, tmp_path, monkeypatch):
    """As of a shell's variable that was not set."""
    monkeypatch.chdir(tmp_path)
    listed = "--list" in command
    assert code([*command.split(), "--case", ""]) == (0 if listed else 2)
    assert listed or capsys.readouterr().err.endswith("case '': there is nothing in it; leave --case out for the op's own cases\n")


@pytest.mark.parametrize("command", ["bench --op softmax", "bench --bundle x", "devices", "tune --op softmax", "asm softmax", "export softmax -o x"])
@pytest.mark.parametrize("board", ["", " "])
def test_a_board_with_nothing_in_it_is_none(command, board, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert code([*command.split(), "--on", board]) == 2
    assert f"--on '{board}': there is nothing in it; leave --on out, or name a board" in capsys.readouterr().err


@pytest.mark.parametrize("option,said", [("--case -5x3", "case '-5x3': '-5x3' is neither a tensor's sizes"), ("--budget -1s", "--budget -1s: it takes a time, like 500ms"),
                                         ("--precision -2%", "--precision -2%: it takes a share"), ("--reps -3", "--reps -3: "), ("--sweep -3", "--sweep -3")])
def test_a_value_that_begins_with_a_minus_is_a_value(option, said, capsys):
    assert code(["bench", "--op", "softmax", *option.split()]) == 2
    err = capsys.readouterr().err
    assert said in err and "expected one argument" not in err


def test_no_command_is_help_and_exit_2(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert not out and all(name in err for name in NAMES) and "examples:" in err


# --- near misses -----------------------------------------------------------------------------------------------------

NEAR = [
    ("benhc", "triport: unknown command 'benhc'; did you mean 'bench'?"), ("--versoin", "unknown option '--versoin'; did you mean '--version'?"),
    ("--print-completion bsah", "--print-completion: unknown value 'bsah'; did you mean 'bash'?"),
    *((f"{name} --hlep", f"triport {name}: unknown option '--hlep'; did you mean '--help'?") for name in NAMES),
    ("bench --op softmx", "unknown op 'softmx'; did you mean 'softmax'?"), ("asm softmx", "unknown op 'softmx'; did you mean 'softmax'?"),
    ("export softmx --target native -o x", "did you mean 'softmax'?"), ("tune --op softmx", "did you mean 'softmax'?"), ("profile softmx", "did you mean 'softmax'?"),
    ("bench --backend triton-cup", "unknown backend 'triton-cup'; did you mean 'triton-cpu'?"), ("profile softmax --backend triton-cup", "did you mean 'triton-cpu'?"),
    ("profile softmax --against torhc", "did you mean 'torch'?"), ("asm softmax --backend tritn", "--backend: unknown value 'tritn'; did you mean 'triton'?"),
    ("asm softmax --target sm_91", "unknown target 'sm_91'; did you mean 'sm_90'?"), ("export softmax --target spacemit-x6 -o x", "did you mean 'spacemit-x60'?"),
    ("language --target spacemit-x6", "did you mean 'spacemit-x60'?"),
    *((f"{line} fp33", "unknown dtype 'fp33'; did you mean 'fp32'?") for line in ("bench --dtype", "asm softmax --dtype", "profile softmax --dtype", "tune --dtype",
                                                                                "export softmax --target native -o x --dtype")),
    ("asm softmax --case dmi=0", "unknown parameter 'dmi'; did you mean 'dim'?"), ("profile softmax --case 128x128,dmi=0", "did you mean 'dim'?"),
    ("export softmax --target native -o x --case 128x128,dmi=0", "did you mean 'dim'?"), ("asm softmax --stage ttri", "unknown stage 'ttri'; did you mean 'ttir'?"),
    ("bench --format tabel", "--format: unknown value 'tabel'; did you mean 'table'?"), ("bench --device cpuu", "did you mean 'cpu'?"),
    ("models mpl", "unknown model 'mpl'; did you mean 'mlp'?"), ("models mlp --sise small", "triport models mlp: unknown option '--sise'; did you mean '--size'?"),
    ("models mlp --size smal", "did you mean 'small'?"), ("devices --on qemuu:x", "did you mean 'qemu'?"), ("export softmax --traget native", "did you mean '--target'?"),
    ("bench extra", "triport bench: unknown argument 'extra'"), ("asm softmax -q", "triport asm: unknown option '-q'")]


@pytest.mark.parametrize("line,said", NEAR, ids=[n[0] for n in NEAR])
def test_did_you_mean(line, said, capsys):
    """One sentence and exit code 2, whatever was mistyped."""
    assert code(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert said in err and not out and len(err.splitlines()) <= 2 and "Traceback" not in err


def test_options_of_a_script_are_the_scripts():
    top, _ = commands.parser()
    args = top.parse_args(["profile", "-o", "x", "--", "train.py", "--stepz", "3"])
    assert args.target == ["train.py", "--stepz", "3"]
    assert top.parse_args(["models", "mlp", "--stepz", "3"]).rest == ["--stepz", "3"]
    assert top.parse_args(["bench", "--thr", "2"]).threads == 2, "unambiguous beginnings are taken"


# --- help ------------------------------------------------------------------------------------------------------------


def examples(name):
    return commands.parser()[0].commands()[name].examples


#: examples that are run: they take a second, a GPU, a board or minutes are not asked for
RUN = ("triport bench --compare", "triport bench --list", "triport models", "triport asm softmax", "triport asm --list-targets", "triport devices",
       "triport report laptop.json")
NOT_RUN = ("triport devices --on", "triport models ", "--png")


def lines():
    for name in ("", *NAMES):
        for line in examples(name) if name else commands.EXAMPLES:
            yield line


def parsed(line):
    """The arguments of a line of the shell, by the parser that takes them. A line begins with triport, or has torchrun begin it on each rank."""
    program, *argv = shlex.split(re.sub(r"^torchrun .*? -m triport\.tools ", "triport ", line), comments=True)
    assert program == "triport", line
    args = commands.parser()[0].parse_args(argv)
    if args.command == "models" and args.model and args.rest and "-h" not in args.rest and "--help" not in args.rest:
        from triport.bench import models
        from triport.bench.models import common
        return models_command.parser_of(args.model, models.get(args.model), common).parse_args(args.rest)
    return args


@pytest.mark.parametrize("line", dict.fromkeys(lines()))
def test_examples_parse_and_run(line, tmp_path, monkeypatch, capsys):
    assert parsed(line)
    runs = any(line.partition("  ")[0].startswith(r) for r in RUN) and not any(n in line for n in NOT_RUN)
    if not runs:
        return
    monkeypatch.chdir(tmp_path)
    results_files.written(tmp_path, **{n: results_files.made(n) for n in ("old", "new", "laptop", "board")})
    assert main(shlex.split(line, comments=True)[1:]) == 0
    out, err = capsys.readouterr()
    assert out or (tmp_path / "report.html").exists()


@pytest.mark.parametrize("page", ["README.md", *sorted(str(p.relative_to(ROOT)) for folder in ("docs", "docs/performance") for p in (ROOT / folder).glob("*.md"))])
def test_lines_of_the_pages_parse(page):
    """What a page shows in its blocks and tables is what the parser takes."""
    text = (ROOT / page).read_text()
    blocks = "\n".join(re.findall(r"```[a-z]*\n(.*?)```", text, re.S)).replace("\\\n", " ")
    found = re.findall(r"^\s*(?:\$ )?(?:\.venv/bin/)?((?:torchrun .* -m triport\.tools|triport) [a-z-].*)$", blocks, re.M)
    found += [x for line in text.splitlines() if line.startswith("|") for x in re.findall(r"`(triport [^`]*)`", line)]
    for line in found:
        if re.search(r"\[\w|\.\.\.", line) or re.match(r"triport [a-z]+: ", line):
            continue  # a usage, or what a command says
        try:
            parsed(line)
        except SystemExit as e:
            assert e.code == 0, f"{page}: {line}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", [80, 200])
def test_help_ends_in_examples(name, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert code([name, "--help"]) == 0
    out = capsys.readouterr().out
    options = out[:out.index("examples:\n")]
    assert all(len(line) <= min(columns, 120) for line in options.splitlines())
    assert out.endswith("".join(f"  {line}\n" for line in examples(name))) and len(examples(name)) >= 2


@pytest.mark.parametrize("name", sorted(MODELS))
def test_help_of_a_model_ends_in_examples(name, capsys):
    assert code(["models", name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"  triport models {name} --size small" in out and "--reps" in out
    for line in out[out.index("examples:"):].splitlines()[1:]:
        assert parsed(line)


def test_version(capsys):
    assert code(["--version"]) == 0
    assert re.fullmatch(r"triport \S.* \(Python 3\.\S+, torch \S+, triton \S+, llvmlite \S+\)\n", capsys.readouterr().out)


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["bench", "--help"], ["models"], []])
def test_help_imports_nothing_heavy(argv):
    """A shell's prompt waits for it: neither torch nor anything else that takes longer than Python itself."""
    script = ("import sys\nfrom triport.tools.__main__ import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
              "print(*sorted({m.partition('.')[0] for m in sys.modules}), file=sys.stderr)")
    p = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, cwd=ROOT, timeout=HANGS)
    loaded = set(p.stderr.splitlines()[-1].split())
    assert "argparse" in loaded and not loaded & {"torch", "triton", "numpy", "llvmlite", "rich", "matplotlib", "networkx", "shtab", "pandas"}


# --- colours ---------------------------------------------------------------------------------------------------------

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d|10\d)(?:;\d+)*m")
SHOWN = {"compare": ["bench", "--compare", "old.json", "new.json"], "bench": ["bench", "--op", "my.py:wrong", "--backend", "triton-cpu", "--reps", "2", "--no-cold"],
         "asm": ["asm", "softmax", "--case", "128x128"], "asm-diff": ["asm", "softmax", "--case", "128x128", "--diff", "aarch64"],
         "models": ["models", "square", "--size", "small", "--reps", "2", "--variant", "torch"], "devices": ["devices"], "bench-list": ["bench", "--list"],
         "report": ["report", "old.json"], "error": ["bench", "--op", "softmx"]}
COLOURED = {"compare", "bench"}


@pytest.mark.parametrize("what", SHOWN)
def test_no_color_and_force_color(what, tmp_path, monkeypatch, capsys):
    """NO_COLOR wins, FORCE_COLOR colours a pipe, and a pipe alone gets no escape codes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(DOUBLE + "wrong = Op('wrong', double, lambda x: x * 3, (Case(((64,),)),))\n")
    slow = results_files.made()
    for r in slow["rows"][2:3]:
        r["wall_s"] = {k: 5 * v for k, v in r["wall_s"].items()}
    results_files.written(tmp_path, old=results_files.made(), new=slow)
    monkeypatch.setenv("TERM", "xterm-256color")
    argv = SHOWN[what] if what != "models" or "--variant" in _models_options() else SHOWN[what][:-2]
    seen = {}
    for names in ((), ("FORCE_COLOR",), ("FORCE_COLOR", "NO_COLOR")):
        for n in ("FORCE_COLOR", "NO_COLOR"):
            monkeypatch.setenv(n, "1") if n in names else monkeypatch.delenv(n, raising=False)
        assert code(argv) in (0, 1, 2)
        seen[names] = "".join(capsys.readouterr())
    assert "\x1b" not in seen[()] and not COLOUR.search(seen["FORCE_COLOR", "NO_COLOR"])
    assert bool(COLOUR.search(seen["FORCE_COLOR",])) or what not in COLOURED


def _models_options():
    from triport.bench import models
    from triport.bench.models import common
    return {o for a in models_command.parser_of("square", models.get("square"), common)._actions for o in a.option_strings}


# --- completion ------------------------------------------------------------------------------------------------------

TABS = [("triport be", {"bench"}), ("triport bench --op so", {"softmax"}), ("triport bench --backend triton-", {"triton-cpu", "triton-gpu"}),
        ("triport bench --op softmax --dtype f", {"fp16", "fp32", "fp64"}), ("triport bench --comp", {"--compare"}), ("triport asm softmax --target spacemit-x", {"spacemit-x60", "spacemit-x60:ime"}),
        ("triport asm matmul_", {"matmul_softmax"}), ("triport models dl", {"dlrm"}), ("triport profile soft", {"softmax"}), ("triport export gelu --target gfx95", {"gfx950"}),
        ("triport --print-completion z", {"zsh"})]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    pytest.importorskip("shtab", reason="shtab is not installed")
    from triport.tools import completion
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(completion.script(commands.parser()[0], shell))
    return folder


@pytest.mark.parametrize("line,wanted", TABS, ids=[t[0] for t in TABS])
def test_tab_in_bash(scripts, line, wanted):
    words = line.split()
    script = (f'. {scripts / "bash"}; f=$(complete -p triport | sed "s/.*-F \\([^ ]*\\).*/\\1/"); COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
              f'$f triport {words[-1]} {words[-2]}; echo "${{COMPREPLY[@]}}"')
    p = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=HANGS, cwd=scripts)
    assert set(p.stdout.split()) == wanted, p.stderr


@pytest.mark.parametrize("line,wanted", TABS, ids=[t[0] for t in TABS])
def test_tab_in_fish(scripts, line, wanted):
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    p = subprocess.run(["fish", "--no-config", "-c", f"source {scripts / 'fish'}; complete -C '{line}'"], capture_output=True, text=True, timeout=HANGS, cwd=scripts,
                       env={**os.environ, "HOME": str(scripts), "XDG_CONFIG_HOME": str(scripts)})
    assert {x.split("\t")[0] for x in p.stdout.splitlines()} >= wanted, p.stderr


def test_the_scripts_are_what_their_shells_take(scripts):
    from triport.tools import completion
    for shell in ("bash", "zsh", "fish"):
        text = (scripts / shell).read_text()
        missing = [n for names in completion.names().values() for n in names if n not in text and n.replace("=", "\\=") not in text]
        assert not missing and all(n in text for n in NAMES), (shell, missing)
        if shutil.which(shell):
            p = subprocess.run([shell, "-n", scripts / shell], capture_output=True, text=True, timeout=HANGS)
            assert p.returncode == 0 and not p.stderr, p.stderr


def test_without_shtab_there_is_a_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert code(["--print-completion", "bash"]) == 2
    assert "--print-completion needs shtab: pip install shtab" in capsys.readouterr().err
