"""The public API's types, by mypy and pyright in strict mode (`.ci/types`)."""

import importlib.util
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
