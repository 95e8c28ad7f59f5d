"""`triport COMMAND`: one module a command, each with `add(parser)` and `run(args) -> exit code`.

Data goes to stdout, remarks to stderr. Exit 0 good, 1 a result was wrong, 2 usage.
"""

from __future__ import annotations

import argparse
import importlib
import sys

#: command -> (module, one line)
COMMANDS = {
    "bench": ("bench", "check and time ops on every backend of this machine"),
    "models": ("models", "whole examples, checked and timed variant by variant: MLP, DLRM, ways to write one op"),
    "asm": ("asm", "machine code of any kernel for any target: hot loops, a verdict on their vectors, and why"),
    "profile": ("profile", "where time goes: tables, a trace with every thread, flame graph and page of an op, a function, a model or a script"),
    "export": ("export", "ops as C functions for a board: library, header, a program that checks and times them"),
    "language": ("language", "which operations of Triton's language the CPU compiler takes, on which types"),
    "report": ("report", "results files of any machines as one page of tables and plots that opens offline"),
    "tune": ("tune", "search the ops' tile sizes on this machine and write the table"),
    "devices": ("devices", "list backends: what they would run on, and a proof or the reason why not"),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="triport", description="One op on every backend: run it, check it, time it.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    runs = {}
    for name, (module, line) in COMMANDS.items():
        m = importlib.import_module(f".{module}", __package__)
        m.add(commands.add_parser(name, help=line, description=line))
        runs[name] = m.run
    args = parser.parse_args(argv)
    try:
        return runs[args.command](args)
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as e:
        from ..backends.base import Error
        if not isinstance(e, Error):
            raise
        print(f"triport {args.command}: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
