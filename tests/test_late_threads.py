"""Launches on cores that others take: where threads come late, the next launches begin on the calling thread alone. OpenMP and the kernels are
Python here, so that who is late is decided and no clock decides what is found."""

import ctypes
import struct
import threading
import time

import pytest
from triport.backends.cpu.run import kept, late, launch, pool
from triport.backends.cpu.llvm import targets

PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NUMBER = ctypes.CFUNCTYPE(ctypes.c_int32)
KERNEL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 2, *[ctypes.c_int32] * 3)


class Machine:
    """A pool of its own, an OpenMP of two threads that run one after the other, and launches that are counted."""

    def __init__(self, nanoseconds, credit=late.CREDIT):
        addresses = launch.load_object(kept.emitted("pool", pool.pool_ir, targets.native(), nanoseconds, credit), ["tp_call", "tp_forget"])
        self._call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)(addresses["tp_call"])
        self.forget = ctypes.CFUNCTYPE(None)(addresses["tp_forget"])
        self._parallel, self._number = PARALLEL(self.parallel), NUMBER(lambda: self.thread)
        self.thread, self.wait, self.program, self.told = 0, 0.0, lambda k: None, []

    def parallel(self, region, data, team, flags):
        self.told.append("shared")
        for self.thread in range(team):
            REGION(region)(data)
        time.sleep(self.wait)

    def launch(self, programs, openmp=True) -> list:
        """What happened in a launch, in order: "shared", and the programs' numbers."""
        self.told = told = []

        def kernel(args, scratch, begin, end, gx, gy, gz):
            for k in range(begin, end):
                told.append(k)
                self.program(k)
            return 0
        fn = KERNEL(kernel)
        address = [ctypes.cast(f, ctypes.c_void_p).value for f in (fn, self._parallel, self._number)]
        both = address[1:] if openmp else (0, 0)
        assert self._call(struct.pack("<8Q", address[0], programs, 1, 1, 0, 2 << 32 | 2, *both)) == 0
        assert sorted(k for k in told if k != "shared") == list(range(programs)), "each program once"
        return told


@pytest.fixture(scope="module")
def loaded():
    return Machine(late.LATE), Machine(10**12), Machine(late.LATE, 10**12)


@pytest.fixture
def machine(loaded):
    m = loaded[0]
    m.forget()
    m.wait, m.program = 0.0, lambda k: None
    return m


def test_threads_that_meet_share_every_launch(loaded):
    patient = loaded[1]
    assert [patient.launch(20)[0] for _ in range(5)] == ["shared"] * 5


def test_after_late_threads_launches_begin_alone(machine):
    machine.wait = 0.5
    assert machine.launch(20)[0] == "shared"
    assert "shared" not in machine.launch(20) and "shared" not in machine.launch(3), "what they lost is not lost again"
    machine.program, by = lambda k: (by.add(threading.get_ident()), time.sleep(1e-3)), set()
    machine.launch(6, openmp=False)
    assert by == {threading.get_ident()}, "threads of our own are as late"
    machine.forget()
    assert machine.launch(20)[0] == "shared", "a forked child has other cores to hope for"


def test_launches_alone_last_twice_as_long_where_threads_are_late_again(machine):
    machine.wait = 0.3
    assert machine.launch(2)[0] == "shared"
    machine.wait = 0.0
    time.sleep(1.5)
    assert machine.launch(2)[0] == "shared", "the time alone is over"
    machine.forget()
    machine.wait = 0.3
    for _ in range(2):
        while "shared" not in machine.launch(2):
            time.sleep(0.05)
    begun, machine.wait = time.perf_counter(), 0.0
    while "shared" not in machine.launch(2):
        time.sleep(0.05)
    assert time.perf_counter() - begun > 0.5


def test_long_launches_begin_alone_and_are_shared_then(machine):
    machine.wait = 0.3
    machine.launch(20)
    machine.wait, machine.program = 0.0, lambda k: time.sleep(0.2)
    told = machine.launch(6)
    assert told[0] == 0 and "shared" in told and told[-1] != "shared", "alone for as long as a meeting may lose, and no meeting where nothing is left"


def test_programs_that_take_long_are_not_late_threads(machine):
    """One thread's programs take half a second, the other's nothing: who works is not late."""
    machine.program = lambda k: time.sleep(0.5) if k == 1 else None
    machine.launch(2)
    machine.program = lambda k: None
    assert machine.launch(20)[0] == "shared"


def test_a_little_late_is_worth_it_where_much_was_shared(machine):
    machine.program = lambda k: time.sleep(0.2)
    machine.wait = 0.1
    assert machine.launch(4)[0] == "shared" and machine.launch(2)[0] == "shared"


@pytest.mark.parametrize("credit", [True, False])
def test_what_meetings_saved_pays_for_a_thread_that_is_late(credit, loaded):
    """As far as it is counted: threads that are late for long cost hardly more than those that were late before."""
    m = loaded[2] if credit else loaded[0]
    m.forget()
    m.wait, m.program = 0.0, lambda k: time.sleep(0.2)
    for _ in range(4):
        m.launch(2)
    m.wait, m.program = 0.3, lambda k: None
    assert m.launch(2)[0] == "shared"
    m.wait = 0.0
    assert (m.launch(2)[0] == "shared") == credit
