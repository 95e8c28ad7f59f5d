"""Shared by all tests: the import name in a bare checkout, seeds that are printed, what a device test needs, and what a run demands.

Tests run in any order and in several processes at once (`pytest -n 2`): ports, folders and environment variables are each test's own, and what is
shared (Triton's disk cache) is made to be. None depends on the kind of CPU, how many cores there are, what else runs or what time it takes: they count.
`python tests/conditions.py` runs them under other tiles, thread counts and load.

Many tests have long lists of cases. `FIRST` of each list (marker `first`: another number), drawn by the seed, run before all others; TRIPORT_MINUTES=20
(what `make test` gives) leaves out what of the rest has not begun by then, with its reason. `make test MINUTES=` runs everything, however long it takes.
"""

import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib.util
import inspect
import os
import random
import shutil
import signal
import sys
import time
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# hypothesis times what it draws and what it runs; here tests count.
settings.register_profile("counts", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("counts")

ROOT = Path(__file__).resolve().parent.parent
if importlib.util.find_spec("triport") is None:  # not installed: the folders are the package
    module = types.ModuleType("triport")
    module.__path__ = [str(ROOT)]
    sys.modules["triport"] = module

os.environ.setdefault("TRIPORT_TRUST_CACHE", "1")  # whosever the folder of temporary files is; tests/test_trust.py asks
SEED = int(os.environ.setdefault("TRIPORT_SEED", str(random.SystemRandom().randrange(1 << 31))))  # to the workers of `-n` by the environment
#: minutes after which only the first cases of tests begin, None: no such limit
MINUTES = float(os.environ["TRIPORT_MINUTES"]) if os.environ.get("TRIPORT_MINUTES") else None
STARTED = float(os.environ.setdefault("TRIPORT_STARTED", str(time.time())))  # of the whole run, as SEED is
#: how many cases of a test come first
FIRST = 3
#: seconds after which what a test started is taken to hang, on however slow and busy a machine
HANGS = 900
#: the start of a user's file of ops: a kernel, and `double`, which launches it
DOUBLE = '''
import torch, triton, triton.language as tl
from triport.ops import Case, Op

@triton.jit
def scale_kernel(x_ptr, out_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * FACTOR, mask=offs < n)

def double(x):
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), FACTOR=2, BLOCK=1024)
    return out

'''
#: what TRIPORT_DEMAND may name -> words of the reasons for which tests are skipped that need it
TOOLS = {"qemu": ("qemu",), "browser": ("chromium", "selenium"), "disassembler": ("llvm-22",), "mca": ("llvm-mca",), "readelf": ("readelf",), "gdb": ("gdb is not",),
         "g++": ("g++", "C compiler"), "userland": ("TRIPORT_USERLAND",), "sshd": ("sshd",), "tritonparse": ("tritonparse",), "nvrtc": ("nvrtc",),
         "extras": ("shtab is not", "pandas is not", "jsonschema is not"), "plugin": ("triport is not installed",),
         "gpu": ("without GPU support", "sees no GPU", "ROCm build", "cuda-core")}
#: what skips are about -> words of their reasons. A skip that has none of them is a failure in a run with demands: no test goes unseen
KNOWN = {"a GPU": ("gpu", "hopper", "cuda", "rocm", "nccl", "nvcc"),
         "a program": ("is not installed", "not found", "c compiler", "g++", "llvm-", "qemu", "sshd", "gdb", "valgrind", "triport_userland"),
         "a library": ("could not import", "tutorials", "built without proton"),
         "another torch or Triton": ("this torch", "torch 2.", "this triton", "triton 3.", "triton refuses", "dynamo of torch"),
         "another machine": ("empty parameter set", "x86", "this system", "this process", "no fork", "mounted", "folder of temporary files", "it can, here", "runs on linux"),
         "no case": ("takes fp32", "of integers", "takes the first three", "there is no --format"),
         "time": ("minutes were over",)}
#: what one of the later cases of a test is marked by
LATER = pytest.StashKey[bool]()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in a shell's background: what these processes start would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
DEMANDED = tuple(filter(None, (x.strip() for x in os.environ.get("TRIPORT_DEMAND", "").split(","))))


def pytest_report_header(config):
    demanded = f"; skips for want of {', '.join(DEMANDED)} are failures (TRIPORT_DEMAND)" if DEMANDED else ""
    return f"triport: inputs from TRIPORT_SEED={SEED}{demanded}"


def refused(reason: str) -> str | None:
    """Why a skip for this reason is a failure in a run that demands what is missing; None where it is not."""
    for name in DEMANDED:
        if any(words.lower() in reason.lower() for words in TOOLS[name]):
            return f"TRIPORT_DEMAND asks for {name}, and this would be skipped: {reason}"
    if DEMANDED and not any(word in reason.lower() for words in KNOWN.values() for word in words):
        return f"TRIPORT_DEMAND is set, and a skip for this reason is not among the known of tests/conftest.py: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _demand((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _demand((yield))


def _demand(report):
    """A report whose skip is a failure where the run demands what was missing."""
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        why = refused(report.longrepr[2])
        if why:
            report.outcome, report.longrepr = "failed", why
    return report


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    if terminalreporter.stats.get("failed"):  # -q leaves the header out
        terminalreporter.write_line(f"inputs were from TRIPORT_SEED={SEED}")


def pytest_configure(config):
    config.addinivalue_line("markers", "first(n): of this test n cases come first, 0: none, where the minutes of a run are counted (TRIPORT_MINUTES)")
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU")
    config.addinivalue_line("markers", "userland: runs a riscv64 Debian under QEMU")
    unknown = [name for name in DEMANDED if name not in TOOLS]
    if unknown:
        raise pytest.UsageError(f"TRIPORT_DEMAND: unknown {', '.join(unknown)}; it takes {', '.join(TOOLS)}, with commas between")
    if getattr(config.option, "numprocesses", None):  # threads for each worker: two at least, so that there is something to share out
        os.environ.setdefault("OMP_NUM_THREADS", str(max(2, len(os.sched_getaffinity(0)) // config.option.numprocesses)))
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # they share cores: a thread that spins keeps another worker's from its own


@pytest.fixture
def seed(request):
    """A seed of this test's own, from the run's printed one."""
    return (SEED + sum(map(ord, request.node.nodeid))) % (1 << 31)


@pytest.fixture(scope="module", autouse=True)
def compiled_code_goes(request):
    """What a module's kernels were compiled to, a megabyte of texts and code for some, goes with the module: Triton keeps it as long as the kernel."""
    yield
    if "triton" in sys.modules:
        from triport.backends.dispatch import quick
        from triton.runtime.jit import JITFunction
        for kernel in vars(request.module).values():
            if isinstance(kernel, JITFunction):
                kernel.device_caches.clear()
                quick.forget(kernel)
        gc.collect()
        getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)(0)  # glibc keeps what is free otherwise


@pytest.fixture(scope="module", autouse=True)
def by_the_cpu(request):
    """Plain kernels of the language's tests, and of modules that say BY_THE_CPU, are on the CPU's tensors: beside a GPU Triton's own driver would serve them."""
    if "language" not in request.path.parts and not getattr(request.module, "BY_THE_CPU", False):
        yield
        return
    import triton  # noqa: F401, first: it looks for drivers itself
    from triport.backends.dispatch import drivers
    with drivers.serving("cpu"):
        yield


@pytest.fixture
def tmp_cache(tmp_path, monkeypatch):
    """A Triton cache of this test's own: what it launches is compiled."""
    from triton import knobs
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    return tmp_path


@pytest.fixture(params=["native", "x86-64-v3", "x86-64-v2"])
def cpu_row(request, monkeypatch):
    """The module's kernels by the vectors of this machine's CPU, and by those of lesser ones that it has as well: the last do not fuse."""
    import triton
    from triport.backends.cpu.llvm import targets
    native = targets.native()
    made = native if request.param == "native" else dataclasses.replace(targets.get(request.param), name="native")
    if request.param != "native" and (not native.isa.startswith(("AVX", "SSE")) or made.vector_bits > native.vector_bits):
        pytest.skip(f"this machine's CPU has not what {request.param} has")
    monkeypatch.setattr(targets, "native", lambda: made)
    for name, kernel in list(vars(request.module).items()):
        if isinstance(kernel, triton.JITFunction):
            monkeypatch.setattr(request.module, name, triton.JITFunction(kernel.fn))  # nothing that is compiled already


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium that resolves no host; its logs hold what pages say ("browser") and ask for ("performance")."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install -e .[test])")
    chrome, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chrome or not driver:
        pytest.skip("chromium and chromedriver were not found: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chrome
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1600,1000", "--host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(flag)
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield made
    made.quit()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """A test that takes a backend which needs a GPU is one of marker `gpu`, and skipped with the reason where there is none. Then the order."""
    for item in items:
        where = getattr(item, "callspec", None) and item.callspec.params.get("where")
        if where == "cuda" and item.callspec.params.get("name") == "lora_linear":
            item.add_marker(pytest.mark.skip(reason="lora_linear has no CUDA C++"))
        if where in ("triton-gpu", "cuda", "auto"):
            item.add_marker(pytest.mark.gpu)
            if (reason := unavailable(where)):
                item.add_marker(pytest.mark.skip(reason=reason))
    if MINUTES is not None:
        _first_cases_first(items)


def _first_cases_first(items):
    """Put the cases of tests beyond `FIRST` behind all others, in each worker's part of the list: pytest-xdist begins by sharing it out in equal runs."""
    cases: dict[str, list] = {}
    for item in items:
        if item.get_closest_marker("skip") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    draw = random.Random(SEED)
    for same in cases.values():
        marker = same[0].get_closest_marker("first")
        for item in draw.sample(same, max(0, len(same) - (marker.args[0] if marker else FIRST))):
            item.stash[LATER] = True
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    kinds = [[item for item in items if (LATER in item.stash) is later] for later in (False, True)]
    items[:] = [item for k in range(workers) for kind in kinds for item in kind[len(kind) * k // workers:len(kind) * (k + 1) // workers]]


def pytest_collection_finish():
    """What imports and collecting made stays: collections of garbage, of which there is one after each module, need not look at it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if LATER in item.stash and time.time() > STARTED + 60 * MINUTES:
        pytest.skip(f"{MINUTES:g} minutes were over: make test MINUTES= runs the later cases of tests, too")


@pytest.fixture
def through_triton():
    """torch.compile on the CPU generates Triton's kernels, in this process and anew."""
    import torch
    import torch._inductor.config
    from triport.backends.dispatch import drivers
    torch._dynamo.reset()
    with torch._inductor.config.patch(cpu_backend="triton", compile_threads=1, fx_graph_cache=False), drivers.serving("cpu"):
        yield
    torch._dynamo.reset()


@pytest.fixture
def own_tiles(monkeypatch):
    """Each target has the tiles of the product's own table, for two threads, whoever runs the tests: by them machine code is judged."""
    import torch
    from triport.ops import tuning
    monkeypatch.delenv("TRIPORT_TUNED", raising=False)
    tuning.tuned.cache_clear()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
    monkeypatch.undo()
    tuning.tuned.cache_clear()


#: who serves the ops in a test of parameter `where`
SERVING = ("triton-cpu", "triton-gpu", "cuda")


@contextlib.contextmanager
def served_by(where: str):
    """Within it a backend serves the ops, and new tensors are on its device."""
    import torch
    from triport import backends
    if where == "triton-cpu":
        yield
        return
    with backends.use(where), torch.device(backends.get(where).device):
        yield


def everywhere(test):
    """Run a test once for each of SERVING, on that backend's device."""
    signature = inspect.signature(test)

    @functools.wraps(test)
    def run(*args, where, **kwargs):
        with served_by(where):
            return test(*args, **kwargs)

    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY)])
    return pytest.mark.parametrize("where", SERVING)(run)


def unavailable(backend: str):
    """The reason why a backend cannot run here, for a visible skip."""
    from triport.backends import get
    return get(backend).unavailable()
