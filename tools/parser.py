"""The commands' parser: argparse, whose errors are one sentence and name what was probably meant, and whose --help ends in examples.

argparse prints a usage of many lines before an error, and knows nothing of near misses before Python 3.14.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap

from . import exits


class Formatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal, and no wider than lines are read."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=28, width=min(shutil.get_terminal_size().columns, 120) - 2)

    def _fill_text(self, text, width, indent):
        # Line by line: a list stays one, and what a line has too much goes below it.
        def wrapped(line: str) -> str:
            below = len(line) - len(line.lstrip())
            return textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent + " " * (below and below + 2))

        return "\n".join(map(wrapped, text.splitlines()))


class Parser(argparse.ArgumentParser):
    """A parser of one command, or of all. examples: lines of the shell that --help ends in."""

    def __init__(self, *args, examples: tuple[str, ...] = (), **kwargs):
        kwargs.setdefault("formatter_class", Formatter)
        super().__init__(*args, **kwargs)
        self.examples = examples
        # "-5x3" and "-1s" are values, whatever is wrong with them: no option begins with a digit, and argparse sees it so of plain numbers
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def format_help(self) -> str:
        said = "examples:\n" + "".join(f"  {line}\n" for line in self.examples)
        return super().format_help() + (f"\n{said}" if self.examples else "")

    def error(self, message: str):
        self.exit(exits.USAGE, f"{self.prog}: {message}\nmore: {self.prog} --help\n")

    def parse_known_args(self, args=None, namespace=None):
        args = sys.argv[1:] if args is None else list(args)
        self._refuse_unknown(args)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args=None, namespace=None):
        found, extra = self.parse_known_args(args, namespace)
        if extra:
            # What a command's parser left over comes back through the parser of all.
            chosen = self._command(getattr(found, "command", None))
            chosen.error(f"unknown {'option' if extra[0].startswith('-') else 'argument'} {extra[0]!r}")
        return found

    def commands(self) -> dict[str, Parser]:
        """The parsers of commands below this one."""
        return next((a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)), {})

    def _command(self, name: str | None) -> Parser:
        return self.commands().get(name, self)

    def _refuse_unknown(self, args: list[str]):
        """Ends with a sentence for a long option that this parser lacks: before anything is found to be missing, of which that is the cause."""
        rest = any(a.nargs in (argparse.REMAINDER, argparse.PARSER) for a in self._actions)
        known = self._option_string_actions
        for text in args:
            if text == "--" or rest and not text.startswith("-"):
                return
            name = text.partition("=")[0]
            if name.startswith("--") and " " not in name and not any(k.startswith(name) for k in known):
                self.error(_unknown("option", name, [k for k in known if k.startswith("--")]))

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            if isinstance(action, argparse._SubParsersAction):
                self.error(_unknown("command", str(value), action.choices))
            self.error(f"{'/'.join(action.option_strings) or action.dest}: {_unknown('value', str(value), action.choices)}")


def _unknown(kind: str, name: str, known) -> str:
    from ..backends.base import suggest
    return suggest(kind, name, known)


