"""The public API's types, by mypy and pyright in strict mode (`.ci/types`), and what ruff finds in all files."""

import importlib.util
import re
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_file_is_right_in_strict_mode(checker):
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed (pip install -e .[test])")
    ran = subprocess.run([sys.executable, ROOT / ".ci" / "types", checker], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_ruff_finds_nothing():
    """Its rules, the security rules S among them, are in pyproject.toml; what is right all the same says so with its reason."""
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed (pip install -e .[test])")
    ran = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", ROOT], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_exceptions_from_ruffs_rules_have_reasons():
    without = [f"{p.relative_to(ROOT)}:{n}" for top in ("backends", "bench", "checking", "ops", "testing", "tools") for p in sorted((ROOT / top).rglob("*.py"))
               for n, line in enumerate(p.read_text().splitlines(), 1) if re.search(r"# noqa: S\d+(?!\d*  \()", line)]
    assert not without, without
