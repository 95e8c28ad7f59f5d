"""What runs of the tests depend on: a seed that all workers share, what a run demands, and conditions.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import conditions
import pytest
from conftest import HANGS, ROOT, SEED
from triport.backends.cpu.llvm import targets
from triport.ops import tuning

TESTS = """
import os
import pytest

@pytest.mark.parametrize("n", range(4))
def test_seed(n, seed):
    from conftest import SEED
    print(f"seed {SEED}, threads {os.environ.get('OMP_NUM_THREADS')}.")

@pytest.mark.skip(reason="chromium and chromedriver were not found: apt-get install chromium")
def test_page():
    pass

def test_elsewhere():
    pytest.skip("this Triton has no such thing")

@pytest.mark.xfail(reason="chromium is slow")
def test_known():
    assert False
"""


def run(folder: Path, *args, **env) -> subprocess.CompletedProcess:
    """pytest with this conftest over TESTS."""
    (folder / "test_some.py").write_text(TESTS)
    (folder / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_") and k != "OMP_NUM_THREADS" and not k.startswith("TRIPORT_")}
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", str(folder), *args], capture_output=True, text=True, cwd=folder,
                          timeout=HANGS, env={**clean, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]), **env})


def test_workers_share_the_seed_and_what_is_demanded_is_not_skipped(tmp_path):
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.skip('g++ is not there', allow_module_level=True)\n")
    done = run(tmp_path, "-n", "2")
    printed = {line for line in done.stdout.split("\n") if line.startswith("seed ")}
    seed = next(line for line in done.stdout.split("\n") if "TRIPORT_SEED=" in line).rpartition("TRIPORT_SEED=")[2].strip()
    assert done.returncode == 0 and "3 skipped" in done.stdout, done.stdout
    assert printed == {f"seed {seed}, threads {max(2, len(os.sched_getaffinity(0)) // 2)}."}
    assert os.environ["TRIPORT_SEED"] == str(SEED), "for what a test starts, too"
    for workers in "0", "2":
        done = run(tmp_path, "-n", workers, TRIPORT_DEMAND="qemu, browser")
        assert done.returncode == 1 and " 2 skipped, 1 xfailed, 1 error in" in done.stdout, done.stdout
        assert "TRIPORT_DEMAND asks for browser, and this would be skipped: Skipped: chromium and chromedriver were not found" in done.stdout
    done = run(tmp_path, TRIPORT_DEMAND="g++")
    assert done.returncode and "TRIPORT_DEMAND asks for g++, and this would be skipped: Skipped: g++ is not there" in done.stdout, "a module, too"


def test_a_skip_that_nobody_knows(tmp_path):
    (tmp_path / "test_mine.py").write_text("import pytest\n\ndef test_mine():\n    pytest.skip('not today')\n")
    assert run(tmp_path).returncode == 0
    done = run(tmp_path, TRIPORT_DEMAND="qemu")
    assert done.returncode == 1 and " 1 failed, 4 passed, 2 skipped, 1 xfailed in" in done.stdout, done.stdout
    assert "TRIPORT_DEMAND is set, and a skip for this reason is not among the known of tests/conftest.py: Skipped: not today" in done.stdout


def test_an_unknown_demand_is_an_error(tmp_path):
    done = run(tmp_path, TRIPORT_DEMAND="browzer")
    assert done.returncode == 4 and "unknown browzer; it takes qemu, browser" in done.stderr


COUNTED = """
import os, time
import pytest

@pytest.mark.parametrize("n", range(7))
def test_many(n):
    pass

@pytest.mark.first(1)
@pytest.mark.parametrize("n", range(4))
def test_few(n):
    pass

@pytest.mark.first(0)
def test_late():
    pass

def test_plain():
    pass
"""


def test_first_cases_come_first_and_the_rest_while_there_is_time(tmp_path):
    """Of 7, 4, 1 and 1 cases 3, 1, 0 and 1: when the minutes are over they are all that runs; before, they come first."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/test_counted.py").write_text(COUNTED)
    done = run(tmp_path, "-n", "2", str(tmp_path / "sub"), TRIPORT_MINUTES="0")
    assert done.returncode == 0 and done.stdout.count("PASSED") == 5 + 3, done.stdout  # of TESTS 3
    assert "SKIPPED [9] conftest.py" in done.stdout and "make test MINUTES= runs the later cases" in done.stdout, done.stdout
    done = run(tmp_path, "-v", str(tmp_path / "sub"), TRIPORT_MINUTES="5")
    order = [line.split(" ")[0].partition("::")[2] for line in done.stdout.split("\n") if "test_counted.py::" in line and "%]" in line]
    assert sorted(name.partition("[")[0] for name in order[:5]) == ["test_few", "test_many", "test_many", "test_many", "test_plain"] and len(order) == 13, order
    assert "runs the later cases" not in done.stdout


def test_conditions(tmp_path):
    """Each kind of CPU in the table gives its tiles to every target, and the last table has none."""
    found = [json.loads(Path(env["TRIPORT_TUNED"]).read_text()) for group, _, env, _ in conditions.conditions(tmp_path) if group == "tiles"]
    table = tuning.load(tuning.FILE)
    kinds = [k for k in sorted(table) if not k.startswith("sm_")]
    assert len(found) == len(kinds) + 1 and found[-1] == {}
    for kind, other in zip(kinds, found):
        for row in targets.TARGETS.values():
            assert next(v for k, v in other.items() if k == row.isa)["tiles"] == table[kind]["tiles"]
    listed = subprocess.run([sys.executable, ROOT / "tests/conditions.py", "--list"], capture_output=True, text=True, check=True).stdout
    assert "threads: 16 threads" in listed and "load: a busy loop on every core" in listed and f"tiles: tiles of {kinds[0]}" in listed


@pytest.mark.first(0)
def test_conditions_say_which_failed(tmp_path):
    (tmp_path / "test_one.py").write_text("import os\ndef test_threads():\n    assert os.environ['OMP_NUM_THREADS'] != '2'\n")
    done = subprocess.run([sys.executable, ROOT / "tests/conditions.py", "--only", "threads", "-q", "-p", "no:cacheprovider", str(tmp_path)],
                          capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "failed under: 2 threads (pytest's exit code 1)" and done.stdout.count("1 passed") == 2
