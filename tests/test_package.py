"""Packaging: what setup.cfg lists, and a wheel installed outside the checkout."""

import configparser
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from conftest import ROOT, TOOLS
from triport.backends import of_torch, of_triton

#: the folders that are packages of the wheel
TOPS = ("backends", "ops", "bench", "tools", "checking", "testing")


def config():
    c = configparser.ConfigParser()
    c.read(ROOT / "setup.cfg")
    return c


def names(requirements: str) -> set[str]:
    """The packages that lines of requirements name."""
    return {re.split(r"[\[<>=; ]", line)[0] for line in requirements.split("\n") if line}


def test_listed_packages_are_the_folders():
    listed = set(config()["options"]["packages"].split())
    found = {"triport." + ".".join(p.parent.relative_to(ROOT).parts) for top in TOPS
             for p in (ROOT / top).rglob("__init__.py")}
    assert listed == found


def test_every_folder_with_code_is_a_package():
    for top in TOPS:
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
    wanted = names(options["options"]["install_requires"]) | names(options["options.extras_require"]["test"])
    assert {w.lower() for w in wanted} <= pinned


def test_what_is_asked_for_is_imported():
    """Each dependency and each extra's packages are imported by something; extra names mean different things."""
    options, text = config(), "\n".join(p.read_text() for top in (*TOPS, "tests") for p in (ROOT / top).rglob("*.py"))
    imported = {x.partition(".")[0] for x in re.findall(r"(?:^|[\s\"'(])(?:import|from) ([\w.]+)", text)} | set(re.findall(r'importorskip\("(\w+)', text))
    by = {"py-cpuinfo": "cpuinfo", "cuda-core": "cuda", "cuda-bindings": "cuda", "pytest-xdist": "pytest"}
    indirect = {"nvidia-cuda-nvrtc"}  # the library that cuda.bindings.nvrtc loads
    run = {"mypy", "pyright", "ruff", "setuptools"}  # programs: of tests/test_types.py, and what builds the wheel
    extras = {name: names(options["options.extras_require"][name]) for name in options["options.extras_require"]}
    wanted = names(options["options"]["install_requires"]).union(*extras.values()) - indirect - run
    assert {by.get(w, w) for w in wanted} <= imported
    assert set(extras) == {"gpu", "notebook", "test"} and not any(a <= b for a in extras.values() for b in extras.values() if a is not b and b is not extras["test"])


def test_versions_are_those_that_were_tried():
    """setup.cfg's bounds, the classifiers, what modules were checked with and the rows of tests/matrix say the same."""
    text, options = (ROOT / "tests" / "matrix").read_text(), config()
    rows = [r.groups() for r in re.finditer(r'^    "[\w.-]+": \("([\d.]+)", "([\d.]*)", "([\d.]*)", "([\d.]*)"\),', text, re.M)]
    for name, module, column in (("torch", of_torch, 1), ("triton", of_triton, 2)):
        line = next(x for x in options["options"]["install_requires"].split("\n") if x.startswith(name + ">"))
        low, high = re.match(r"\w+>=([\d.]+),<([\d.]+)", line).groups()
        first, last = module.CHECKED
        assert (low, high) == (f"{first[0]}.{first[1]}", f"{last[0]}.{last[1] + 1}"), line
        assert any(r[column].startswith(low + ".") for r in rows) and any(not r[column] for r in rows), (name, rows)
    pythons = set(re.findall(r"Python :: (3\.\d+)", options["metadata"]["classifiers"]))
    assert pythons <= {r[0] for r in rows} and {r[3][:2] for r in rows} >= {"1.", "2."}


def test_every_package_is_typed():
    """py.typed marks what is below it (PEP 561); it is in the wheel by `package_data`."""
    for top in TOPS:
        assert (ROOT / top / "py.typed").exists() and "py.typed" in config()["options.package_data"][f"triport.{top}"], top


def test_the_changelog_has_this_version():
    """Keep a Changelog: newest first, this version's or what is not released yet at the top, its kinds of change."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[([^]]+)\]", text, re.M)
    assert versions[0] == "Unreleased" and config()["metadata"]["version"] in versions[:2]
    assert set(re.findall(r"^### (.+)", text, re.M)) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def built(folder: Path, into: Path, **env) -> Message:
    """The metadata of the wheel that is built of a folder."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRIPORT_URL")}
    done = subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(into), str(folder)], capture_output=True,
                          text=True, cwd=into, env={**clean, **env})
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    wheel, = into.glob("triport-*.whl")
    with zipfile.ZipFile(wheel) as z:
        return message_from_string(z.read(next(x for x in z.namelist() if x.endswith(".dist-info/METADATA"))).decode())


def test_a_release_leads_to_its_repository(tmp_path):
    """PyPI's page has no files beside it: README's links lead to the repository at the tag, the sidebar's too; a wheel made of the sdist says the same."""
    version = config()["metadata"]["version"]
    source, at = tmp_path / "source", "https://example.org/some/triport"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "tests", "build", "*.egg-info", "demo", "dist"))
    with pytest.raises(RuntimeError, match="TRIPORT_URL: 'example.org' is no repository's address"):
        built(source, tmp_path, TRIPORT_URL="example.org")
    (tmp_path / "plain").mkdir()
    plain = built(source, tmp_path / "plain")
    assert plain.get_payload() == (ROOT / "README.md").read_text() and "https://pypi.org/project/triport/" in str(plain)
    subprocess.run([sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path)], check=True, capture_output=True, cwd=source, env={**os.environ, "TRIPORT_URL": at + ".git"})
    with tarfile.open(tmp_path / f"triport-{version}.tar.gz") as tar:
        tar.extractall(tmp_path)
    released = built(tmp_path / f"triport-{version}", tmp_path)
    assert set(released.get_all("Project-URL")) >= {f"Source, {at}", f"Issues, {at}/issues", f"Changelog, {at}/blob/v{version}/CHANGELOG.md",
                                                    f"Documentation, {at}/tree/v{version}/docs"}
    text = re.sub(r"```.*?```|`[^`]*`", "", released.get_payload(), flags=re.S)
    found = re.findall(r"\]\(([^)#\s]+)\)", text)
    assert len(found) > 20 and all(x.startswith("https://") for x in found), found
    inner = [re.match(rf"{at}/(?:blob|raw)/v{version}/(.+)", x) for x in found]
    assert all((ROOT / m[1]).exists() for m in inner if m) and sum(map(bool, inner)) == len(re.findall(
        r"\]\((?!\w+:)[^)#\s]+\)", re.sub(r"```.*?```|`[^`]*`", "", (ROOT / "README.md").read_text(), flags=re.S)))
    assert f"]({at}/raw/v{version}/docs/pictures/profile.png)" in text
    assert "x, y, out, 98432, BLOCK=1024)" in released.get_payload(), "code stays as it is"


def test_one_copy_of_every_module():
    """An op registered twice would win in silence: relative imports keep one copy."""
    code = "import triport.ops, sys; print([m for m in sys.modules if m in ('ops', 'backends') or m.startswith('ops.')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert out.strip() == "[]"


def test_wheel_outside_the_checkout(tmp_path):
    """Build the wheel, install it in a new environment, run `triport devices` and an op there."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}  # a triport there would count as installed
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
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True, capture_output=True, env=env)
    (target / "dependencies.pth").write_text(str(site) + "\n")
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
    said = subprocess.run([env_dir / "bin" / "triport", "--version"], capture_output=True, text=True, cwd=tmp_path, env=env, check=True).stdout
    assert said.startswith(f"triport {config()['metadata']['version']} (Python ")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"triport/{top}/py.typed" for top in TOPS} <= set(names) and not [n for n in names if "test_" in n]


PAGES = [ROOT / "README.md", *sorted(p for folder in ("docs", "docs/performance") for p in (ROOT / folder).glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """What links to a page's headings end in, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_pages_name_what_is_there(page):
    """Links lead to files, and the `make` targets and paths of the repository that a page names exist."""
    text = page.read_text()
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)
    links = [x for x in re.findall(r"\]\(([^)#\s]+)\)", prose) if "://" not in x]
    assert all((page.parent / x).exists() for x in links), links
    to = [(page.parent / x if x else page, a) for x, a in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", prose) if "://" not in x]
    lost = [(p.name, a) for p, a in to if p.suffix == ".md" and a not in anchors(p)]
    assert not lost, lost
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
