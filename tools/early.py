"""Ctrl-C while a command's first modules are imported: "interrupted" and its exit code at once, for there is nothing to clean up yet.

Imported before anything else (`__main__.py`), and small for that reason; `exits.guarded` takes over.
"""

import os
import signal


def _end(number, frame):
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def begin():
    """Take Ctrl-C where Python would raise KeyboardInterrupt: who ignores it goes on ignoring it."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _end)
    except ValueError:  # not the main thread
        pass


def over():
    """Give Ctrl-C back."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
