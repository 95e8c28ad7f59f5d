"""What other programs take of this machine's cores while something is measured. From Linux's /proc/stat; elsewhere nothing is known."""

from __future__ import annotations

import os
import time

#: others' share of the cores from which on times are not to be trusted, and seconds below which the kernel's ticks (10 ms) are too coarse to say
SHARE, SHORTEST = 0.125, 0.25


def busy_seconds(text: str, cores: set[int]) -> float | None:
    """Seconds since boot that these cores worked, for whomever (steal, which is other machines' work on the same core, included), by the text of
    /proc/stat. None where it does not list them."""
    ticks, found = 0, 0
    for line in text.splitlines():
        name, *fields = line.split() or [""]
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(x) for x in (fields + ["0"] * 8)[:8])  # guests' time is within user's
            ticks += user + nice + system + irq + softirq + steal
            found += 1
    return ticks / os.sysconf("SC_CLK_TCK") if found and found == len(cores) else None


def own_seconds() -> float:
    """CPU seconds of this process and of those that it started and waited for."""
    t = os.times()
    return time.process_time() + t.children_user + t.children_system


def cores_seconds(cores: set[int]) -> float | None:
    """CPU seconds that were used on `cores` since the machine started, by anybody; None where it does not say."""
    try:
        with open("/proc/stat") as f:
            return busy_seconds(f.read(), cores)
    except (OSError, ValueError):
        return None


def taken(everybody: float, own: float, elapsed: float, cores: int) -> str | None:
    """A sentence where others took `SHARE` of the cores or more: `everybody`'s and our `own` CPU seconds in `elapsed` seconds."""
    if elapsed < SHORTEST:
        return None
    others = min(max(everybody - own, 0.0) / elapsed, cores)
    return f"other programs used {others:.1f} of {cores} cores" if others >= SHARE * cores else None


class Watch:
    """From its making on, what others take of the cores that this process may run on."""

    def __init__(self):
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._begun = cores_seconds(self._cores), own_seconds(), time.perf_counter()

    def busy(self, wait: bool = False) -> str | None:
        """A sentence such as "other programs used 1.8 of 2 cores", None where they did not, or where it is not known: also after too short a time, unless
        it is to `wait` for the rest of it."""
        everybody, own, start = self._begun
        if wait and everybody is not None:
            time.sleep(max(0.0, SHORTEST - (time.perf_counter() - start)))
        now = cores_seconds(self._cores)
        if everybody is None or now is None:
            return None
        return taken(now - everybody, own_seconds() - own, time.perf_counter() - start, len(self._cores))

    def fact(self) -> dict[str, str]:
        """{"busy": the sentence} for a run's facts, empty where there is none."""
        busy = self.busy()
        return {"busy": busy} if busy else {}
