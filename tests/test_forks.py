"""A process that forks while other threads compile and launch: its children find every lock free."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, threading, time
import triport.backends.cpu.llvm.compile  # whose locks are the most
import triport.backends.cpu.run.unwritten, triport.backends.cpu.run.shadow
from triport.backends import forks
places = [place for place, _ in forks._locks]
assert places == sorted(places) and set(places) == set(range(5)), places
for _, lock in list(forks._locks):
    held = threading.Event()

    def hold():
        with lock:
            held.set()
            time.sleep(0.2)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    other.join()
    assert os.waitpid(child, 0)[1] == 0, "a child waits for a thread of its parent's"
    assert lock.acquire(timeout=5), "the parent kept it"
    lock.release()
print("free")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_children_find_locks_free():
    done = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "free\n", done.stderr
