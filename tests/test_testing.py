"""triport.testing, the pytest plugin: small projects of tests, each run by a pytest of its own."""

import os
import re
import subprocess
import sys
import textwrap

import pytest
from conftest import HANGS, ROOT

#: what the files of tests below begin with
KERNEL = '''
import pytest, torch, triton, triton.language as tl

@triton.jit
def add_one(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

def launch(n=1000, BLOCK=128, device="cpu", **options):
    x = torch.randn(n, device=device)
    y = torch.empty_like(x)
    add_one[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, BLOCK=BLOCK, **options)
    assert torch.equal(y, x + 1)
'''


@pytest.fixture
def project(tmp_path):
    """Runs pytest over files; gives (exit code, counts by outcome, what it printed)."""
    pytest.importorskip("triport.testing", reason="triport is not installed")
    loaded = ["-p", "triport.testing.plugin"]  # and no other: what is installed for pytest is as it may be

    def run(files, *args, kernel=True, env=None):
        for name, text in ({"test_it.py": files} if isinstance(files, str) else files).items():
            head = KERNEL if kernel and name.startswith("test_") else ""
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name).write_text(head + textwrap.dedent(text))
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TRITON_CPU_CHECK"))}
        done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *loaded, *args], cwd=tmp_path,
                              env={**clean, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(env or {})}, capture_output=True, text=True, timeout=HANGS)
        told = done.stdout + done.stderr
        last = [line for line in told.splitlines() if re.search(r" in [\d.:]+", line)][-1:]
        counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)", last[0].split(" in ")[0]) if last else []
        return done.returncode, {word: int(n) for n, word in counts}, told

    return run


def test_importing_it_imports_no_torch():
    pytest.importorskip("triport.testing", reason="triport is not installed")
    code = "import sys, pytest; before = set(sys.modules); import triport.testing.plugin; print(sorted(set(sys.modules) - before))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANGS).stdout
    assert {name for name in eval(told) if not name.startswith("triport")} == set() and "triport.testing.session" not in told


def test_without_an_option_nothing_is_switched_on(project):
    code, counts, told = project('''
        def test_plain():
            import os
            from triton import knobs
            from triton.runtime.jit import JITFunction
            assert not knobs.runtime.launch_enter_hook.calls and JITFunction.run.__module__ == "triton.runtime.jit"
            assert "TRITON_CPU_CHECK" not in os.environ and "to" not in vars(torch.Tensor)
            launch()

        @pytest.mark.triton_kernel
        def test_marked_without_a_launch():
            pass
        ''', "--strict-markers")
    assert code == 0 and counts == {"passed": 2}, told
    assert "Triton" not in told


# --- checks -----------------------------------------------------------------------------------------------------------

CHECKS = '''
@triton.jit
def unmasked(y, BLOCK: tl.constexpr):
    tl.store(y + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 1.0)

def test_environment():
    import os
    print("checks:", os.environ["TRITON_CPU_CHECK"])

def test_outside(triton_kernel_report):
    try:
        unmasked[(3,)](torch.empty(20), BLOCK=8)
    finally:
        print("reports:", [r.kind for r in triton_kernel_report.reports])

def test_outside_by_another_error():
    try:
        unmasked[(3,)](torch.empty(20), BLOCK=8)
    except RuntimeError as e:
        raise ValueError("it failed") from e

def test_right():
    launch()
'''


@pytest.mark.parametrize("given,said", [("--triton-check", "bounds,race"), ("--triton-check=race,bounds,overflow", "bounds,race,overflow")])
def test_checks_are_in_the_environment_and_summed_up(project, given, said):
    code, counts, told = project(CHECKS, given, "-rA", "test_it.py")
    assert code == 1 and counts == {"passed": 2, "failed": 2}, told
    assert f"checks: {said}\n" in told and "reports: ['bounds']" in told
    summary = told[told.index("Triton checks"):]
    assert re.search(r"unmasked: 2 reports\n  bounds at \S+test_it.py:17, program \(2, 0, 0\) in test_it.py::test_outside and 1 more", summary), summary


@pytest.mark.first(0)
def test_workers_of_xdist_check_and_report(project):
    pytest.importorskip("xdist")
    code, counts, told = project(CHECKS, "--triton-check=bounds", "--triton-launches", "-p", "xdist", "-n", "2")
    assert counts == {"passed": 2, "failed": 2}, told
    assert "unmasked: 2 reports" in told and "2 kernels in 3 tests; 1 test launched none" in told


def test_a_run_that_finds_nothing_says_so(project):
    code, counts, told = project("def test_it():\n    launch()\n    launch()\n", "--triton-check=bounds")
    assert code == 0 and "nothing found in 2 launches" in told


@pytest.mark.parametrize("option,says", [("--triton-check=bonds", "did you mean 'bounds'?"), ("--triton-cpu-as=h10", "did you mean 'h100'?"),
                                         ("--triton-lint=eror", "did you mean 'error'?"), ("--triton-check=", "names no kind: it takes bounds, "),
                                         ("--triton-check=,", "names no kind"), ("--triton-cpu-as=", "Known: a10, "), ("--triton-lint=", "Known: error, ")])
def test_what_is_mistyped_is_a_usage_error(project, option, says):
    code, _, told = project("def test_it(): pass", option)
    assert code == 4 and f"{option.split('=')[0]}" in told and says in told and "Traceback" not in told


@pytest.mark.parametrize("none", ("off", "0", "none"))
def test_checks_can_be_off(project, none):
    code, counts, told = project("def test_it(): launch()", f"--triton-check={none}")
    assert code == 0 and counts == {"passed": 1} and "checks of" not in told and "Triton checks" not in told


def test_the_help_names_the_kinds():
    plugin = pytest.importorskip("triport.testing.plugin", reason="triport is not installed")
    from triport.backends import checking
    assert plugin.KINDS == ", ".join(checking.KINDS)


PAGE = (ROOT / "docs" / "testing.md").read_text()


@pytest.mark.parametrize("options, ended", [((), {"skipped": 6}), (("--triton-cpu", "-k", "one_launch or 1024 or six_warps"), {"passed": 3}),
                                            (("--triton-cpu", "--triton-check", "--triton-launches"), {"passed": 3, "failed": 2, "skipped": 1})], ids=" ".join)
def test_the_page_shows_what_happens(project, options, ended):
    """docs/testing.md's kernel has forgotten a mask on purpose: without checks only sizes that its block divides may be launched."""
    conftest, tests, fixture = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    head = KERNEL[:KERNEL.index("@triton.jit")]
    code, counts, told = project({"conftest.py": head + conftest, "test_scale.py": head + tests + fixture}, *options, kernel=False)
    assert counts == ended and code == ("failed" in ended), told
    if "--triton-check" in options:
        assert "bounds, 24 times in all" in told and "marked triton_kernel (scale_kernel), and it launched no Triton kernel" in told


# --- launches ---------------------------------------------------------------------------------------------------------


def test_launches_are_counted_by_test(project):
    code, counts, told = project('''
        @triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256})], key=["n"])
        @triton.jit
        def tuned(y, n, BLOCK: tl.constexpr):
            i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(y + i, i, mask=i < n)

        def test_many():
            for _ in range(3):
                launch()

        @pytest.mark.triton_kernel("add_one")
        def test_one():
            launch()

        def test_tuned():
            tuned[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](torch.empty(100), 100)

        def test_an_op():
            import triport.ops as ops
            for _ in range(4):
                ops.softmax(torch.randn(8, 8))

        @pytest.mark.triton_kernel
        def test_none():
            torch.randn(3) + 1

        @pytest.mark.triton_kernel("add_one", "tuned")
        def test_another():
            launch()
        ''', "--triton-launches")
    assert code == 1 and counts == {"passed": 4, "failed": 2}, told
    assert "it launched no Triton kernel" in told and "tuned was not launched; launched were add_one" in told
    rows = re.findall(r"^ +(\d+) +[\d.]+ ms +test_it.py::(\w+): (.*)$", told, re.M)
    assert [int(n) for n, _, _ in rows] == sorted((int(n) for n, _, _ in rows), reverse=True)
    seen = {test: (int(n), rest) for n, test, rest in rows}
    assert seen["test_many"] == (3, "add_one x3") and seen["test_an_op"][0] == 4 and "test_none" not in seen
    total, rest = seen["test_tuned"]
    assert total > 2 and rest.endswith(f"{total - 1} of them the autotuner's")
    assert "launched none" in told


def test_the_fixture_has_the_launches_so_far(project):
    code, counts, told = project('''
        def test_it(triton_kernel_report):
            assert not triton_kernel_report.launches
            launch(num_warps=2)
            launch(200, BLOCK=64)
            first, second = triton_kernel_report.launches
            assert (first.kernel, first.grid, first.constexprs, first.options) == ("add_one", (8, 1, 1), {"BLOCK": 128}, {"num_warps": 2})
            assert (second.grid, second.constexprs, second.options) == ((4, 1, 1), {"BLOCK": 64}, {})
            assert first.seconds > 0 and triton_kernel_report.seconds >= first.seconds and triton_kernel_report.kernels == {"add_one": 2}
            assert not first.reports and "add_one[8, 1, 1]" in str(triton_kernel_report)

        def test_nothing_stays_behind():
            from triton import knobs
            assert not knobs.runtime.launch_enter_hook.calls
        ''')
    assert code == 0 and counts == {"passed": 2}, told


# --- lint -------------------------------------------------------------------------------------------------------------

LINTED = '''
@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((M, N), tl.float32)
    for step in range(STEPS):
        acc = tl.dot(tl.load(a + step * M * K + m[:, None] * K + k[None, :]), tl.load(b + step * K * N + k[:, None] * N + n[None, :]), acc)
    tl.store(c + m[:, None] * N + n[None, :], acc)

def multiply(M, N, K, **options):
    product[(1,)](torch.randn(2, M, K).half(), torch.randn(2, K, N).half(), torch.empty(M, N), M, N, K, 2, **options)

def test_fine():
    launch(num_warps=8)
    multiply(32, 32, 16, num_stages=2)

def test_warps():
    launch(num_warps=3)

def test_too_many_warps():
    launch(num_warps=64)

def test_options():
    launch(waves_per_eu=2)

def test_flat():
    multiply(16, 16, 8)

def test_large():
    multiply(128, 256, 64, num_stages=4)
'''


def test_lint_warns_of_what_no_gpu_takes(project):
    code, counts, told = project(LINTED, "--triton-lint", "--triton-cpu-as=a10", "-k", "not fine")
    assert code == 0 and counts["passed"] == 5, told
    section = told[told.index("no GPU would take (as NVIDIA A10)"):]
    for text in ("add_one: num_warps=3 is no power of two\n    in test_it.py::test_warps", "add_one: num_warps=64 is 2048 threads",
                 "add_one: waves_per_eu= is no option", "has K = 8, and it takes 16 at least for f16",
                 "product: its products' operands take 144 KiB of shared memory at num_stages=4, and a block has 99 KiB"):
        assert text in section, text


def test_lint_as_error_fails_the_tests(project):
    code, counts, told = project(LINTED, "--triton-lint=error", "--triton-cpu-as=l4")
    assert code == 1 and counts == {"passed": 1, "failed": 5}, told
    assert "No GPU would take:\nadd_one: num_warps=3 is no power of two" in told


def test_lint_is_by_the_stated_gpu_and_off_when_told(project):
    code, counts, told = project(LINTED, "--triton-lint=error", "-k", "large or fine")  # an H100 has 227 KiB
    assert code == 0 and counts["passed"] == 2, told
    code, counts, told = project(LINTED, "--triton-cpu", "--triton-lint=off", "-k", "warps")
    assert code == 0 and "no GPU would take" not in told


def test_a_block_of_over_a_million_elements_is_refused_by_triton(project):
    code, counts, told = project('''
        def test_block():
            launch(BLOCK=1 << 21)
        ''', "--triton-lint")
    assert code == 1 and "exceeds triton maximum tensor numel" in told


def test_shared_memory_is_what_the_compiler_takes(tmp_cache):
    """The estimate beside what Triton's compiler says of a product and of products whose operand stays, for three GPUs."""
    import triton
    import triton.language as tl
    from triport.testing import gpus, lint
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    @triton.jit
    def attention(q, k, v, o, n, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
        m, d = tl.arange(0, M), tl.arange(0, D)
        x, acc = tl.load(q + m[:, None] * D + d[None, :]), tl.zeros((M, D), tl.float32)
        for start in range(0, n, N):
            at = (start + tl.arange(0, N))[:, None] * D + d[None, :]
            p = tl.exp2(tl.dot(x, tl.trans(tl.load(k + at))))
            acc = tl.dot(p.to(tl.float16), tl.load(v + at), acc)
        tl.store(o + m[:, None] * D + d[None, :], acc)

    signature = {"q": "*fp16", "k": "*fp16", "v": "*fp16", "o": "*fp32", "n": "i32", "M": "constexpr", "N": "constexpr", "D": "constexpr"}
    for key, stages in (("a100", 3), ("l4", 2), ("h100", 3)):
        gpu = gpus.get(key)
        source = ASTSource(fn=attention, signature=signature, constexprs={"M": 128, "N": 64, "D": 64}, attrs={(i,): [["tt.divisibility", 16]] for i in range(5)})
        made = triton.compile(source, target=GPUTarget("cuda", gpu.arch, 32), options={"num_stages": stages})
        assert lint.shared_bytes(made.asm["ttir"], stages, gpu) == made.metadata.shared, key


# --- a GPU's tests on this CPU ----------------------------------------------------------------------------------------

CONFTEST = '''
import pytest, torch

if not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]

def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="no GPU"))
'''


def test_a_project_that_wants_a_gpu_gets_one(project):
    files = {"conftest.py": CONFTEST, "test_it.py": '''
        DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
        WEIGHT = torch.randn(3, device=DEVICE)

        @pytest.mark.skipif(torch.cuda.get_device_capability()[0] < 9, reason="needs Hopper")
        def test_kernel():
            assert WEIGHT.is_cuda
            launch(device="cuda", num_warps=4)
        '''}
    code, counts, told = project(files, "--triton-cpu", "--triton-launches")
    assert code == 0 and counts == {"passed": 1} and "add_one x1" in told, told
    code, counts, told = project({"conftest.py": CONFTEST}, "--triton-cpu-as=a100")
    assert code == 0 and counts == {"skipped": 1} and "needs Hopper" in told, told
    code, counts, told = project({"conftest.py": CONFTEST})
    assert code == 5, told  # no tests: all of them were left out


@pytest.mark.first(0)
def test_workers_of_xdist_have_a_gpu(project):
    pytest.importorskip("xdist")
    code, counts, told = project('''
        @pytest.mark.parametrize("n", [100, 1000])
        def test_kernel(n):
            launch(n, device="cuda")
        ''', "--triton-cpu", "--triton-lint=error", "-p", "xdist", "-n", "2")
    assert code == 0 and counts["passed"] == 2, told


def test_tensors_of_the_gpu(project):
    code, counts, told = project('''
        import copy, threading

        x = torch.randn(5, 3, device="cuda")

        def test_where_they_are():
            assert x.is_cuda and not x.is_cpu and x.device == torch.device("cuda", 0) and x.get_device() == 0
            assert "device='cuda:0'" in repr(x) and x.type() == "torch.cuda.FloatTensor"
            assert x.cpu().device.type == "cpu" and x.cpu().get_device() == -1 and torch.randn(3).device.type == "cpu"
            for y in (x[1:], x.T, x + 1, x.detach(), x.data, torch.empty_like(x), x.new_zeros(3), x.new_tensor([1]), x[[0, 2]], x.split(2)[1], x.float(),
                      x.half(), copy.deepcopy(x), torch.nn.Parameter(x), torch.zeros(3, device=x.device), torch.cat([x, x]), x.sum(), x.view(-1).long()):
                assert y.is_cuda
            assert not torch.zeros_like(x, device="cpu").is_cuda

        def test_fake_ones():
            """Memory that is not there is nobody's: what torch makes a fake tensor by shares it, and says so."""
            from torch._subclasses.fake_tensor import FakeTensorMode

            with FakeTensorMode() as mode:
                made = [torch.empty(3, device="cuda"), torch.ones(2, 2, device="cuda").T, mode.from_tensor(torch.ones(3, device="cuda"))]
                assert [tuple((t + 1).shape) for t in made] == [(3,), (2, 2), (3,)]
                assert [t.detach().shape for t in made] == [t.shape for t in made]

        def test_makers():
            makers = torch.tensor, torch.as_tensor, torch.asarray
            for device in ("cuda", "cuda:0", torch.device("cuda")):
                assert all(make([1.0, 2.0], device=device).is_cuda for make in makers)
                assert torch.full((2,), 1, device=device).is_cuda and torch.arange(3, device=device).is_cuda
            with torch.device("cuda"):
                assert torch.zeros(2).is_cuda and torch.tensor([1]).is_cuda
            assert torch.zeros(2, pin_memory=True).pin_memory().device.type == "cpu"
            host = torch.zeros(2)
            torch.as_tensor(host, device="cuda").fill_(1)
            assert not host.any()

        def test_moves():
            host = torch.randn(4)
            for y in (host.to("cuda"), host.cuda(), host.to(0), host.cuda(0), host.to(x), host.to(device="cuda", dtype=torch.half), host.to("cuda", torch.half)):
                assert y.is_cuda and y.data_ptr() != host.data_ptr()
            assert host.to("cuda", torch.half).dtype == host.to(x.half()).dtype == torch.half
            assert x.to("cuda") is x and x.cuda() is x and x.to(x.device, torch.float32) is x and host.cpu() is host
            assert x.to("cuda", copy=True).data_ptr() != x.data_ptr() and x.to(torch.half).is_cuda and not x.to(host).is_cuda
            host.copy_(x[:4, 0])
            assert not host.is_cuda and torch.equal(host, x[:4, 0].cpu())
            for wrong in ("cuda:1", 1):
                with pytest.raises(RuntimeError, match="invalid device ordinal"):
                    host.to(wrong)
            with pytest.raises(TypeError, match="Tensor.cpu"):
                x.numpy()
            assert x.cpu().numpy().shape == (5, 3)

        def test_gradients():
            assert torch.nn.Linear(3, 4).to(0).weight.is_cuda and torch.nn.Linear(3, 4).to("cuda", torch.half).bias.is_cuda
            model = torch.nn.Linear(3, 4).cuda()
            assert all(p.is_cuda and isinstance(p, torch.nn.Parameter) for p in model.parameters())
            host = torch.randn(5, 3, requires_grad=True)
            y = model(host.to("cuda"))
            y.square().sum().backward()
            assert model.weight.grad.is_cuda and not host.grad.is_cuda
            torch.optim.Adam(model.parameters()).step()
            plain = host.detach().clone().requires_grad_()
            copy.deepcopy(model).cpu()(plain).square().sum().backward()
            assert host.grad.shape == plain.grad.shape and next(model.cpu().parameters()).device.type == "cpu"

        def test_a_function_of_their_own():
            class Double(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    ctx.save_for_backward(x)
                    return x * 2

                @staticmethod
                def backward(ctx, g):
                    assert g.is_cuda and ctx.saved_tensors[0].is_cuda
                    return g * 2

            leaf = torch.randn(3, device="cuda", requires_grad=True)
            Double.apply(leaf).sum().backward()
            assert leaf.grad.is_cuda and leaf.grad.tolist() == [2, 2, 2]

        def test_threads():
            seen = []
            thread = threading.Thread(target=lambda: seen.append((x + torch.zeros(3, device="cuda")).is_cuda))
            thread.start()
            thread.join()
            assert seen == [True]

        def test_what_is_registered_for_cuda():
            @torch.library.custom_op("triport_test::plus_one", mutates_args=(), device_types="cuda")
            def plus_one(t: torch.Tensor) -> torch.Tensor:
                assert t.is_cuda
                return t + 1

            assert torch.equal(plus_one(x), x + 1) and plus_one(x).is_cuda
            with pytest.raises(NotImplementedError):
                plus_one(x.cpu())

        @pytest.mark.parametrize("how", ["custom", "triton"])
        def test_what_is_registered_for_all_devices(how):
            """Its body is followed as any other code."""
            def plus_two(t: torch.Tensor) -> torch.Tensor:
                out = torch.empty(t.shape, dtype=t.dtype, device=t.device)
                assert out.is_cuda == t.is_cuda and (torch.zeros((), device=t.device) + t).is_cuda == t.is_cuda
                return out.copy_(t + torch.tensor(2.0, device=t.device))

            name = f"triport_test::plus_two_{how}"
            op = torch.library.custom_op(name, plus_two, mutates_args=()) if how == "custom" else torch.library.triton_op(name, plus_two, mutates_args=())
            for t in (x, x.cpu()):
                assert torch.equal(op(t), t + 2) and op(t).is_cuda == t.is_cuda

        def test_what_is_saved(tmp_path):
            import copy, io, pickle
            from collections import OrderedDict
            for t in (x, x.half()[1:], x.cpu()):
                for back in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t)):
                    assert torch.equal(back, t) and back.is_cuda == t.is_cuda
                torch.save({"w": t}, tmp_path / "saved")
                assert torch.load(tmp_path / "saved")["w"].is_cuda == t.is_cuda
                assert not torch.load(tmp_path / "saved", map_location="cpu")["w"].is_cuda
                assert torch.load(tmp_path / "saved", map_location="cuda")["w"].is_cuda

        def test_triports_own_ops():
            import triport.ops as ops
            y = ops.softmax(x)
            assert y.is_cuda
            torch.testing.assert_close(y, torch.softmax(x, -1))

        @pytest.mark.parametrize("device", ["cuda", "cpu"])
        def test_a_kernel_that_torch_wraps(device):
            t = torch.randn(100, device=device)
            y = torch.empty_like(t)
            torch.library.wrap_triton(add_one)[(1,)](t, y, 100, BLOCK=128)
            assert torch.equal(y, t + 1) and y.is_cuda == t.is_cuda

        def test_dynamo_is_reset():
            torch._dynamo.reset()

        @pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float32])
        def test_counts_of_integers(dtype):
            """On the GPU alone, as with torch."""
            t = torch.tensor([0, 1, 1, 7, 3, 7, 9], device="cuda", dtype=dtype)
            got = torch.histc(t, bins=8, min=0, max=7)
            assert got.is_cuda and got.dtype is dtype and got.tolist() == [1, 2, 0, 1, 0, 0, 0, 2] and t.histc(3).tolist() == [3, 1, 3]
            if not dtype.is_floating_point:
                with pytest.raises(NotImplementedError):
                    torch.histc(t.cpu(), bins=8)
        ''', "--triton-cpu")
    assert code == 0 and counts["passed"] == 19, told


def test_kernels_that_live_as_long_as_the_process_go_quietly(project):
    """What a failing test holds lives till the interpreter ends."""
    code, counts, told = project({"held.py": KERNEL, "test_it.py": '''
        import importlib

        def test_held():
            importlib.import_module("held").launch(device="cuda")

        def test_fails():
            assert 0
        '''}, "--triton-cpu")
    assert code == 1 and counts == {"passed": 1, "failed": 1} and "Exception ignored" not in told, told


def test_what_torch_cuda_answers(project):
    code, counts, told = project('''
        def test_device():
            assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
            told = torch.cuda.get_device_properties("cuda")
            assert (told.major, told.minor) == torch.cuda.get_device_capability() == (8, 0) and "A100" in torch.cuda.get_device_name(0)
            assert told.multi_processor_count == 108 and told.total_memory == 80 << 30 and told.shared_memory_per_block_optin == 163 << 10
            assert torch.version.cuda and torch.cuda.is_bf16_supported() and torch.cuda.get_arch_list() == ["sm_80"]
            torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.set_device(0)
            with torch.accelerator.device_index(0), torch.accelerator.device_index(None):
                assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() and torch.get_device_module() is torch.cuda
            with pytest.raises(torch.AcceleratorError):
                torch.accelerator.device_index(1)
            with torch.cuda.device(0), torch.cuda.device_of(torch.ones(1, device="cuda")) as _, torch.cuda.nvtx.range("here"):
                pass
            entered = torch.cuda.device_of(torch.ones(1, device="cuda"))
            assert isinstance(entered, torch.cuda.device) and torch.cuda.get_device_properties(entered) == told

        def test_driver():
            driver = triton.runtime.driver.active
            assert driver.get_current_target().backend == "cpu" and driver.get_active_torch_device().type == "cuda"
            told = driver.utils.get_device_properties(0)
            assert told["multiprocessor_count"] == 108 and told["max_shared_mem"] == 163 << 10

        def test_memory():
            before = torch.cuda.memory_allocated()
            x = torch.empty(1000, 1000, device="cuda")
            y = x[3:]
            del x
            assert torch.cuda.memory_allocated() == before + 4000256 and sum(torch.cuda.mem_get_info()) == (160 << 30) - before - 4000256
            del y
            assert torch.cuda.memory_allocated() == before and torch.cuda.max_memory_allocated() >= before + 4000256
            torch.cuda.reset_peak_memory_stats()
            assert torch.cuda.max_memory_allocated() == before

        def test_streams():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            with torch.cuda.stream(torch.cuda.Stream()) as stream:
                launch(device="cuda")
            torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
            end.record()
            end.synchronize()
            assert begin.elapsed_time(end) > 0 and torch.cuda.current_stream().cuda_stream == 0

        def test_numbers():
            torch.cuda.manual_seed_all(3)
            a = torch.randn(3, device="cuda")
            torch.cuda.manual_seed(3)
            assert torch.equal(a, torch.randn(3, device="cuda"))
            g = torch.Generator(device="cuda").manual_seed(4)
            b = torch.randn(3, device="cuda", generator=g)
            assert torch.equal(b, torch.randn(3, device="cuda", generator=g.manual_seed(4))) and g.device.type == "cuda"
            assert isinstance(torch.default_generator, torch.Generator)

        def test_autocast():
            x = torch.randn(4, 4, device="cuda")
            with torch.autocast("cuda"):
                assert (x @ x).dtype == torch.float16 and torch.is_autocast_enabled() and torch.get_autocast_dtype("cuda") == torch.float16
            with torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16):
                assert (x @ x).dtype == torch.bfloat16 and torch.get_autocast_gpu_dtype() == torch.bfloat16
            assert not torch.is_autocast_enabled() and (x @ x).dtype == torch.float32

        def test_compiled_by_torch():
            x = torch.randn(4, 4, device="cuda")
            y = torch.compile(lambda t: torch.softmax(t, -1) * 2)(x)
            assert y.is_cuda
            torch.testing.assert_close(y, torch.softmax(x, -1) * 2)

        def test_graph():
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                pass

        class Graph(torch.cuda.CUDAGraph):
            pass

        def test_graphs_own():
            assert not isinstance(torch.cuda.current_stream(), torch.cuda.CUDAGraph)
            Graph()

        def test_extension():
            from torch.utils.cpp_extension import load_inline
            load_inline("name", "", "__global__ void f() {}")

        def test_processes():
            import torch.multiprocessing as mp
            mp.spawn(print, nprocs=2)
        ''', "--triton-cpu-as=a100")
    assert code == 0 and counts["passed"] == 7 and counts["skipped"] == 4, told
    assert all(why in told for why in (": torch.cuda.CUDAGraph: a CPU runs", "CUDA C++ runs on a GPU alone", "are no pytest")), told


FOLLOWED = '''
import gc

@triton.jit
def one_more(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

def wrong_relu(x):
    out = torch.empty_like(x)
    one_more[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), B=128)
    return out

@pytest.mark.parametrize("how", ["destroyed", "scoped", "collected", "kept"])
def test_a_librarys_kernels_go_with_it(how):
    x = torch.randn(1000, device="cuda")
    if how == "scoped":
        with torch.library._scoped_library("aten", "IMPL") as lib:
            lib.impl("relu", wrong_relu, "CUDA")
            out = torch.relu(x)
    else:
        lib = torch.library.Library("aten", "IMPL")
        lib.impl("relu", wrong_relu, "CUDA")
        out = torch.relu(x)
        if how == "destroyed":
            lib._destroy()
        elif how == "collected":
            del lib
            gc.collect()
    assert torch.equal(out, x + 1)
    assert torch.equal(torch.relu(x), x + 1 if how == "kept" else x.clamp(min=0))
    if how == "kept":
        lib._destroy()

def test_a_librarys_kernel_is_told_the_gpu():
    seen = []
    def randn(size, *, dtype=None, layout=None, device=None, pin_memory=None):
        seen.append(torch.device(device).type)
        return torch.empty(size, device=device, dtype=dtype).fill_(7)
    with torch.library._scoped_library("aten", "IMPL") as lib:
        lib.impl("randn", randn, "CUDA")
        x = torch.randn((4, 4), device="cuda")
        y = torch.randn((4, 4))
    assert seen == ["cuda"] and x.is_cuda and (x == 7).all() and not y.is_cuda and not (y == 7).any()

@pytest.mark.parametrize("default", [False, True])
def test_where_the_gpu_is_the_default(default):
    if default:
        torch.set_default_device("cuda")
    try:
        with torch.device("cuda"):
            x = torch.zeros(3)
            y = x.to("cuda")
            y.add_(1)
            assert y is x and x.to(x.device) is x and x.cuda() is x and x.is_cuda and not x.is_cpu and x.device == torch.device("cuda", 0)
            assert x.to(torch.float16).is_cuda and x.to("cuda", torch.float16).is_cuda and not x.cpu().is_cuda and x.cpu().is_cpu
            assert x.tolist() == [1, 1, 1] and x.cpu().numpy().tolist() == [1, 1, 1] and x.type() == "torch.cuda.FloatTensor"
            launch(device="cuda")
            with pytest.raises(TypeError):
                x.numpy()
    finally:
        torch.set_default_device(None)

@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_of_casts_are_the_gpus(dtype):
    x = torch.randn(2, 10, device="cuda", dtype=dtype, requires_grad=True)
    x.float().pow(2).sum().backward()
    assert x.grad.is_cuda and x.grad.dtype == dtype
    x.grad = None
    torch.nn.functional.cross_entropy(x.float(), torch.tensor([1, 2], device="cuda")).backward()
    assert x.grad.is_cuda and x.softmax(-1, dtype=torch.float32).is_cuda and torch.autograd.grad(x.log_softmax(-1, dtype=torch.float32).sum(), x)[0].is_cuda
    c = x.detach().cpu().requires_grad_()
    c.to("cuda").float().sum().backward()
    assert not c.grad.is_cuda and not x.to("cpu").is_cuda and x.type_as(x.float()).is_cuda

def test_gradients_that_are_taken_up_as_they_come_or_not():
    x, z = (torch.ones(3, 4, device="cuda", requires_grad=True) for _ in range(2))
    held, host = torch.ones(3, 4, device="cuda"), torch.ones(3, 4, requires_grad=True)
    for loss in (lambda: x.sum(), lambda: (x + z).sum(), lambda: (x.t() * 2).sum(), lambda: (x * x).sum()):
        x.grad = None
        loss().backward()
        assert x.grad.is_cuda and (x.grad + held).is_cuda
    x.grad = None
    x.backward(held)
    assert x.grad.is_cuda and torch.nn.Parameter(x.detach()).is_cuda
    (host.to("cuda") * 2).sum().backward()
    host.sum().backward()
    assert not host.grad.is_cuda and not x.detach().cpu().new_empty_strided((2,), (1,)).is_cuda and not x.new_empty_strided((2,), (1,), device="cpu").is_cuda

@torch.compile(fullgraph=True)
def clamped(x):
    return torch.clamp(x.float() / 3, -1, 1)

@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_is_compiled_runs_eagerly(fullgraph):
    x = torch.randn(100, device="cuda")
    assert torch.equal(torch.compile(lambda x: torch.clamp(x / 3, -1, 1), fullgraph=fullgraph)(x), torch.clamp(x / 3, -1, 1))
    assert torch.equal(clamped(x), torch.clamp(x / 3, -1, 1)) and clamped(x).is_cuda
'''


def test_a_gpus_tensors_are_followed_everywhere(project):
    """A library's kernel does not outlive the library, `torch.device("cuda")` as the default, gradients of casts, `torch.compile(fullgraph=True)`."""
    code, counts, told = project(FOLLOWED, "--triton-cpu")
    assert code == 0 and counts == {"passed": 13}, told


WATCHED_FIRST = '''
import torch, triton, triton.language as tl
from triport.testing import launches

@triton.jit
def copy_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i))

x, out = torch.randn(8), torch.zeros(8)
for _ in range(2):
    with launches.watched() as report:
        copy_kernel[1,](x, out, 8)
    assert [(launch.kernel, launch.grid) for launch in report.launches] == [("copy_kernel", (1, 1, 1))], report.launches
try:
    copy_kernel[1,](torch._neg_view(x), out, 8)
except Exception as e:
    print("refused:", type(e).__name__)
else:
    print("its memory has the other sign:", torch.equal(out, -x))
'''


def test_what_the_plugin_mends_outlives_the_watch_of_the_first_launch(tmp_path):
    """It is laid over Triton's functions at that launch, above what watches; a tensor that torch negates as it reads it was taken as it lies, later on."""
    (tmp_path / "watched.py").write_text(WATCHED_FIRST)
    done = subprocess.run([sys.executable, "watched.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:"), done.stdout
