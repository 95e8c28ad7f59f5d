"""Signals while a kernel runs: Python's handlers run as between two instructions, and what they raise ends the launch. Kernels here wait for a flag that
nobody sets; where nothing ended them a thread would after `RESCUE` seconds, and the script says so."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from conftest import HANGS

RESCUE = 60
SETUP = f"""
import os, signal, sys, threading, time
import torch, triton, triton.language as tl
from triport.backends.dispatch import replay
from triport.ops.dispatch import direct, launch

@triton.jit
def waiting_kernel(flag_ptr, started_ptr, out_ptr, WHO: tl.constexpr):
    pid = tl.program_id(0)
    if (WHO < 0) | (pid == WHO):
        tl.atomic_add(started_ptr, 1)
        seen = tl.atomic_add(flag_ptr, 0)
        while seen == 0:
            seen = tl.atomic_add(flag_ptr, 0)
    tl.store(out_ptr + pid, pid + 1)

@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)

torch.set_num_threads(int(os.environ.get("TEAM", "1")))
N = 5
flag, started = (torch.zeros(1, dtype=torch.int32) for _ in range(2))
rescued = threading.Event()

def plain(flag, started, who):
    out = torch.zeros(N, dtype=torch.int32)
    waiting_kernel[(N,)](flag, started, out, WHO=who)
    return out

def rescue():
    time.sleep({RESCUE})
    rescued.set()
    flag.fill_(1)
threading.Thread(target=rescue, daemon=True).start()

def when_it_runs(do):
    '''Call `do` in another thread as soon as a program waits.'''
    started.zero_()
    view = started.numpy()
    def wait():
        while not view[0]:
            time.sleep(0.01)
        do()
    threading.Thread(target=wait, daemon=True).start()

def send(number):
    when_it_runs(lambda: os.kill(os.getpid(), number))

def all_is_well():
    x, y = torch.randn(9000), torch.randn(9000)
    out = torch.empty_like(x)
    add_kernel[(9,)](x, y, out, 9000, BLOCK=1024)
    assert torch.equal(out, x + y)
    assert plain(torch.ones_like(flag), started, -1).tolist() == [1, 2, 3, 4, 5]
    a = torch.randn(300, 300, dtype=torch.float64)
    assert torch.allclose(a @ torch.linalg.inv(a), torch.eye(300, dtype=torch.float64), atol=1e-6)
    assert not rescued.is_set(), "the kernel went on until it was rescued"

def interrupted(launch, error=KeyboardInterrupt, number=signal.SIGINT):
    send(number)
    try:
        launch()
    except error:
        return
    raise AssertionError("the launch returned")
"""


@pytest.fixture
def run(tmp_path):
    """What a script printed, and how it ended."""

    def run(code: str, ends: int = 0, **env) -> str:
        path = tmp_path / "script.py"
        path.write_text(SETUP + textwrap.dedent(code))
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=HANGS, env={**os.environ, **env})
        assert done.returncode == ends, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.mark.parametrize("team, threads", [("1", "openmp"), ("2", "openmp"), ("2", "own")])
def test_ctrl_c_ends_a_launch_and_the_process_goes_on(run, team, threads):
    """All programs wait, or one that the calling thread or another one runs."""
    run("""
        all_is_well()
        for who in (-1, 0, N - 1, -1):
            interrupted(lambda: plain(flag, started, who))
            all_is_well()
        """, TEAM=team, TRIPORT_THREADS=threads)


@pytest.mark.first(1)
@pytest.mark.parametrize("team", ["1", "2"])
def test_a_replayed_launch_is_ended_too(run, team):
    run("""
        def body(flag, started, who):
            out = torch.empty(N, dtype=torch.int32)
            launch(waiting_kernel, (N,), flag, started, out, WHO=who)
            return out
        one = torch.ones_like(flag)
        for who in (-1, 0, N - 1):
            for _ in range(3):
                assert direct(body, (one, started), who).tolist() == [1, 2, 3, 4, 5]
            assert replay.find(replay.key_of(body, (flag, started), (who,))) is not None
            interrupted(lambda: direct(body, (flag, started), who))
            assert direct(body, (one, started), who).tolist() == [1, 2, 3, 4, 5]
            all_is_well()
        """, TEAM=team)


@pytest.mark.first(1)
@pytest.mark.parametrize("team, threads", [("1", "openmp"), ("2", "openmp"), ("2", "own")])
def test_a_handler_that_returns_lets_the_launch_go_on(run, team, threads):
    """It is the user's, installed between two launches, and may use tensors and launch kernels."""
    run("""
        all_is_well()
        told = []
        def handler(number, frame):
            told.append((number, frame.f_code.co_name))
            x = torch.arange(3000.)
            out = torch.empty_like(x)
            add_kernel[(3,)](x, x, out, 3000, BLOCK=1024)
            assert torch.equal(out, 2 * x)
            flag.numpy()[:] = 1  # torch would let the main thread go on, and end the process in the middle of it
        for number, who in ((signal.SIGINT, -1), (signal.SIGUSR1, 0), (signal.SIGTERM, N - 1)):
            signal.signal(number, handler)
            flag.zero_()
            send(number)
            assert plain(flag, started, who).tolist() == [1, 2, 3, 4, 5]
            assert [n for n, _ in told] == [number], told
            told.clear()
            all_is_well()
        """, TEAM=team, TRIPORT_THREADS=threads)


def test_what_any_handler_raises_ends_a_launch(run):
    """As that of a time limit does; and what it raises is raised as it is."""
    run("""
        class Late(Exception):
            pass
        def late(number, frame):
            raise Late("too late", number)
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            plain(flag, started, -1)
        except Late as e:
            assert e.args == ("too late", signal.SIGALRM)
            names = []
            while e.__traceback__:
                names.append(e.__traceback__.tb_frame.f_code.co_name)
                e.__traceback__ = e.__traceback__.tb_next
            assert "plain" in names and names[-1] == "late", names
        else:
            raise AssertionError
        all_is_well()
        """)


def test_a_checked_launch_is_ended_too(run):
    run("""
        for who in (-1, 0):
            interrupted(lambda: plain(flag, started, who))
        assert plain(torch.ones_like(flag), started, -1).tolist() == [1, 2, 3, 4, 5] and not rescued.is_set()
        """, TRITON_CPU_CHECK="bounds")


def test_an_ignored_signal_stays_ignored(run):
    run("""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        def both():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
            flag.numpy()[:] = 1  # torch would let the main thread go on, and end the process in the middle of it
        when_it_runs(both)
        assert plain(flag, started, -1).tolist() == [1, 2, 3, 4, 5]
        all_is_well()
        """)


def test_the_default_action_is_the_systems(run):
    run("signal.signal(signal.SIGINT, signal.SIG_DFL)\nsend(signal.SIGINT)\nplain(flag, started, -1)", ends=-signal.SIGINT)


def test_another_threads_launch_is_left_alone(run):
    """The main thread is interrupted, as Python does it."""
    run("""
        out, done = [], threading.Event()
        def work():
            out.append(plain(flag, started, -1))
            done.set()
        send(signal.SIGINT)
        threading.Thread(target=work, daemon=True).start()
        try:
            done.wait()
        except KeyboardInterrupt:
            pass
        assert not out
        interrupted(lambda: plain(torch.zeros_like(flag), started, -1))  # the main thread's own, meanwhile
        assert not out
        flag.fill_(1)
        done.wait()
        assert out[0].tolist() == [1, 2, 3, 4, 5]
        all_is_well()
        """)


@pytest.mark.parametrize("threads", ["openmp", "own"])
def test_a_forked_child_is_interrupted(run, threads):
    run("""
        all_is_well()
        child = os.fork()
        if not child:
            try:
                threading.Thread(target=rescue, daemon=True).start()
                interrupted(lambda: plain(flag, started, -1))
                all_is_well_here = plain(torch.ones_like(flag), started, -1).tolist() == [1, 2, 3, 4, 5] and not rescued.is_set()
                os._exit(0 if all_is_well_here else 3)
            finally:
                os._exit(4)
        assert os.waitpid(child, 0)[1] == 0
        interrupted(lambda: plain(flag, started, -1))
        all_is_well()
        """, TEAM="2", TRIPORT_THREADS=threads)


def test_without_it_signals_wait_until_the_launch_is_over(run):
    """TRIPORT_INTERRUPT=0. The flag is set a second after the signal."""
    code = """
        def both():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
            flag.numpy()[:] = 1  # torch would let the main thread go on, and end the process in the middle of it
        out = torch.zeros(N, dtype=torch.int32)
        when_it_runs(both)
        try:
            waiting_kernel[(N,)](flag, started, out, WHO=-1)
        except KeyboardInterrupt:
            print(out.tolist())
        """
    assert run(code, TRIPORT_INTERRUPT="0") == "[1, 2, 3, 4, 5]\n"
    assert run(code) == "[0, 0, 0, 0, 0]\n"
