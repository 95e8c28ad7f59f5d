"""`triport COMMAND`: one module a command, each with `add(parser)`, `run(args) -> exit code` and `EXAMPLES`, the lines that its --help ends in.

Data goes to stdout, remarks to stderr; exit codes are those of `exits`. Nothing heavy is imported before a command runs: --help takes no torch.
"""

from __future__ import annotations

from . import early

early.begin()
try:
    import argparse
    import importlib
    import sys

    from . import exits
    from .parser import Parser
except BaseException:
    early.over()
    raise

#: command -> (module, one line)
COMMANDS = {
    "bench": ("bench", "check and time ops on every backend of this machine"),
    "models": ("models", "whole examples, checked and timed variant by variant: MLP, DLRM, ways to write one op"),
    "asm": ("asm", "machine code of any kernel for any target: hot loops, a verdict on their vectors, and why"),
    "profile": ("profile", "where time goes: tables, a trace with every thread, flame graph and page of an op, a function, a model or a script"),
    "check": ("check", "an op, a function or a script with kernels that check their accesses while they run"),
    "export": ("export", "ops as C functions for a board: library, header, a program that checks and times them"),
    "language": ("language", "which operations of Triton's language the CPU compiler takes, on which types"),
    "report": ("report", "results files of any machines as one page of tables and plots that opens offline"),
    "tune": ("tune", "search the ops' tile sizes on this machine and write the table"),
    "boards": ("stored", "what runs over ssh have left on a board, and its removal"),
    "devices": ("devices", "list backends: what they would run on, and a proof or the reason why not"),
}

EXAMPLES = (
    "triport bench --op softmax",
    "triport asm softmax --target spacemit-x60",
    "triport devices",
)


class _Version(argparse.Action):
    """--version: triport's, and those that decide what it makes; from what is installed, without importing it."""

    def __call__(self, parser, namespace, values, option=None):
        parser.exit(exits.guarded("triport", lambda: print(version()) or exits.GOOD))


class _Completion(argparse.Action):
    """--print-completion SHELL: a script for the shell to source."""

    def __call__(self, parser, namespace, values, option=None):
        def run() -> int:
            from . import completion
            print(completion.script(parser, values))
            return exits.GOOD

        parser.exit(exits.guarded("triport", run))


def version() -> str:
    """"triport 0.1.0 (Python 3.11.7, torch 2.13.0, triton 3.9.0, llvmlite 0.50.0)"."""
    from importlib import metadata

    def of(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "from source" if package == "triport" else "missing"

    others = ", ".join(f"{p} {of(p)}" for p in ("torch", "triton", "llvmlite"))
    return f"triport {of('triport')} (Python {sys.version.split()[0]}, {others})"


def parser() -> tuple[Parser, dict]:
    """The parser of everything, and command -> its `run`."""
    top = Parser(prog="triport", description="One op on every backend: run it, check it, time it.", examples=EXAMPLES)
    top.add_argument("--version", nargs=0, action=_Version, help="show the version, and those of what it is built on, and stop")
    top.add_argument("--print-completion", choices=("bash", "zsh", "fish"), action=_Completion, metavar="SHELL",
                     help="print a script that completes commands, options, ops, backends, targets and types in bash, zsh or fish, and stop")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    runs = {}
    for name, (module, line) in COMMANDS.items():
        m = importlib.import_module(f".{module}", __package__)
        below = commands.add_parser(name, help=line, description=line, examples=m.EXAMPLES)
        m.add(below)
        runs[name] = m.run
    return top, runs


def main(argv: list[str] | None = None) -> int:
    return exits.guarded("triport", lambda: _main(argv))


def _main(argv: list[str] | None) -> int:
    top, runs = parser()
    args = top.parse_args(argv)
    if args.command is None:
        # As ruff, uv and argparse's required commands have it: a script that lost its command must not look as if it had done something.
        top.print_help(sys.stderr)
        return exits.USAGE
    return exits.guarded(f"triport {args.command}", lambda: _run(args, sys.argv[1:] if argv is None else argv, runs[args.command]))


def _run(args, argv: list[str], run) -> int:
    on = getattr(args, "on", None)
    if on is not None and not on.strip():  # as of a shell's variable that was not set: not this machine by accident
        from ..backends.base import Error
        raise Error(f"--on {on!r}: there is nothing in it; leave --on out, or name a board: ssh:user@board, qemu:riscv64?vlen=256 or local")
    if "," in (on or ""):
        from . import boards
        return boards.run(args, argv, boards.several(args))
    return run(args)


early.over()  # `main` has its own way, and who only imports this module gets Python's back

if __name__ == "__main__":
    sys.exit(main())
