"""Packaging: what setup.cfg lists, and a wheel installed outside the checkout."""

import configparser
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from conftest import ROOT, TOOLS


def config():
    c = configparser.ConfigParser()
    c.read(ROOT / "setup.cfg")
    return c


def test_listed_packages_are_the_folders():
    listed = set(config()["options"]["packages"].split())
    found = {"triport." + ".".join(p.parent.relative_to(ROOT).parts) for top in ("backends", "ops", "bench", "tools", "checking", "testing")
             for p in (ROOT / top).rglob("__init__.py")}
    assert listed == found


def test_every_folder_with_code_is_a_package():
    for top in ("backends", "ops", "bench", "tools", "testing"):
        for p in (ROOT / top).rglob("*.py"):
            assert (p.parent / "__init__.py").exists(), p


def test_files_beside_the_code_are_in_the_wheel():
    """What modules read at run time, by the patterns of their package."""
    data, folders = config()["options.package_data"], dict(x.split(" = ") for x in config()["options"]["package_dir"].split("\n") if x)
    for package in config()["options"]["packages"].split():
        folder = ROOT / folders.get(package, package.removeprefix("triport.").replace(".", "/"))
        patterns = [x.strip() for x in data.get(package, "").split(",")]
        missing = [p.name for p in folder.iterdir() if p.is_file() and p.suffix not in (".py", ".pyc") and not any(p.match(x) for x in patterns if x)]
        assert not missing, (package, missing)


def test_constraints_pin_what_setup_asks_for():
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split() if "==" in line}
    options = config()
    wanted = options["options"]["install_requires"].split() + options["options.extras_require"]["test"].split()
    assert {w.split(">")[0].lower() for w in wanted} <= pinned


def test_one_copy_of_every_module():
    """An op registered twice would win in silence: relative imports keep one copy."""
    code = "import triport.ops, sys; print([m for m in sys.modules if m in ('ops', 'backends') or m.startswith('ops.')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert out.strip() == "[]"


def test_wheel_outside_the_checkout(tmp_path):
    """Build the wheel, install it in a new environment, run `triport devices` and an op there."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT)],
                   check=True, capture_output=True, cwd=tmp_path)
    wheel, = tmp_path.glob("triport-*.whl")
    env_dir = tmp_path / "env"
    venv.create(env_dir, with_pip=True)
    python = env_dir / "bin" / "python"
    # The dependencies are gigabytes and already here: this environment sees them through a .pth file. triport itself is
    # not among them: an editable install does not come along.
    site = Path(sysconfig.get_paths()["purelib"])
    target = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                                 capture_output=True, text=True, check=True).stdout.strip())
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True, capture_output=True)
    (target / "dependencies.pth").write_text(str(site) + "\n")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    code = ("import torch, triport.ops as ops, triport.backends as b; print(b.__file__); x = torch.randn(5, 7); "
            "assert ops.square.__module__ == 'triport.ops.square'; from triport.ops import tuning; assert tuning.load(); "
            "assert torch.allclose(ops.softmax(x), torch.softmax(x, 1)); import importlib.metadata as m; "
            "plugin, = [e for e in m.entry_points(group='pytest11') if e.name == 'triport']; assert plugin.load().pytest_addoption; print('right')")
    run = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert run.returncode == 0, run.stderr[-2000:]
    assert str(env_dir) in run.stdout.split("\n")[0] and "right" in run.stdout
    devices = subprocess.run([env_dir / "bin" / "triport", "devices"], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert devices.returncode == 0, devices.stderr[-2000:]
    assert "triton-cpu: ok" in devices.stdout


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_pages_name_what_is_there(page):
    """Links lead to files, and the `make` targets and paths of the repository that a page names exist."""
    text = page.read_text()
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)
    links = [x for x in re.findall(r"\]\(([^)#\s]+)\)", prose) if "://" not in x]
    assert all((page.parent / x).exists() for x in links), links
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z]+(?:-[a-z]+)*)", text, re.M))
    assert named <= rules, named - rules
    paths = re.findall(r"`((?:backends|ops|bench|tools|testing|tests|docs|\.ci)/[\w./-]+)`", text)
    gone = [x for x in paths if not (ROOT / x).exists() and not (ROOT / x).with_suffix(".py").exists()]  # `module.name`, too
    assert not gone, gone


def test_a_demand_is_made_for_what_ci_installs():
    """Names that .ci/run demands are ones that conftest.py knows."""
    script = (ROOT / ".ci/run").read_text()
    named = {n for words in re.findall(r"demand(?:=|\+=)\(([^)]*)\)", script) for n in words.split()}
    assert {"qemu", "browser", "g++", "disassembler"} <= named <= set(TOOLS)
