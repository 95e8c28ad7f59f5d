"""How an op is being called in this thread: what its body and whoever serves it share beside the arguments.

There is one such object, `call`, with a value of its own in each thread. Whoever changes a field puts back what was there.
"""

from __future__ import annotations

import contextlib
import threading

#: a body computes; it runs for the shapes of its results and launches nothing; it launches kernels and nothing else, whatever watches, for a
#: bundle; it computes under no dispatcher, and what it launches is recorded
RUN, SHAPES, EXPORT, RECORD = "run", "shapes", "export", "record"


class Recording:
    """What a body did. launches: (launch function, kernel's code, grid, arguments) of each, or None for something that cannot be done again without
    the body; temporaries: tensors that kernels write before they read them."""

    __slots__ = ("launches", "temporaries")

    def __init__(self):
        self.launches, self.temporaries = [], []


class Call(threading.local):
    """mode: RUN, SHAPES, EXPORT or RECORD. recording: of the body that runs now, where one records. plan: what did the last call that was replayed by
    its tensors (`ops.dispatch.direct`), until somebody has taken it. trial: table of tiles -> the tiles that a search tries now; tiles: the tables of
    another CPU, while code for it is made or looked at, and row: that CPU, a row of the compiler's targets (`ops.tuning`)."""

    mode: str = RUN
    recording: Recording | None = None
    plan = None
    trial: dict | None = None
    tiles: dict | None = None
    row: object = None

    def note_launch(self, run, function, grid, args):
        """A launch happened."""
        if self.recording is not None:
            self.recording.launches.append((run, function, grid, args))

    def note_odd(self):
        """Something happened that cannot be replayed."""
        if self.recording is not None:
            self.recording.launches.append(None)


call = Call()


@contextlib.contextmanager
def calling(mode: str):
    """Within it this thread's bodies run in `mode`."""
    before, call.mode = call.mode, mode
    try:
        yield
    finally:
        call.mode = before


@contextlib.contextmanager
def recording():
    """Within it what a body does is recorded; gives the `Recording`. One that began outside cannot be replayed any more."""
    call.note_odd()
    before, call.recording = call.recording, Recording()
    try:
        with calling(RECORD):
            yield call.recording
    finally:
        call.recording = before
