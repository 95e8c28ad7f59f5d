"""Several boards at once: `--on ssh:a,ssh:b` runs the command for each, all side by side, each in a process of its own.

What each says is shown board by board, in the order in which they were named, under the board's name; a board that does not answer is a row of the last
table, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from . import exits

#: commands that take several boards
COMMANDS = ("bench", "devices", "tune")
#: options that name a file or folder to write: with several boards, one for each
_WRITTEN = ("json", "csv", "markdown", "artefacts")


def several(args) -> list[str]:
    """The boards that `--on` names. Raises `Error` for what is no list of boards, and for a command that takes one."""
    from ..backends.base import Error
    from ..backends.spine import runner

    if args.command not in COMMANDS:
        raise Error(f"--on {args.on}: triport {args.command} takes one board; {', '.join(COMMANDS)} take several")
    return runner.names(args.on)


@dataclass
class _Part:
    """A board's process. out: what it printed; said: the last sentence in which the command told why it ended."""

    board: str
    process: subprocess.Popen
    out: str = ""
    said: str = ""

    def follow(self, command: str):
        """Wait for it; what it says meanwhile is shown with the board's name."""
        reader = threading.Thread(target=lambda: setattr(self, "out", self.process.stdout.read()))
        reader.start()
        for line in self.process.stderr:
            line = line.rstrip("\n")
            if line.startswith(f"triport {command}: "):
                self.said = line.partition(": ")[2]
            elif line:
                print(f"[{self.board}] {line}", file=sys.stderr)
        reader.join()
        self.process.wait()

    @property
    def result(self) -> str:
        code = self.process.returncode
        if code in (exits.GOOD, exits.WRONG):
            return "ok" if code == exits.GOOD else "wrong or failed rows"
        return self.said or f"exit code {code}"


def run(args, argv: list[str], names: list[str]) -> int:
    """Run the command for all boards. Returns 0 where all is well on all; 2 where none answered; else 1."""
    from ..backends.base import Error

    written = {kind: path for kind in _WRITTEN if isinstance(path := getattr(args, kind, None), Path)}
    if any(str(path) == "-" for path in written.values()):
        raise Error(f"--on {args.on}: with several boards each has a file of its own, and stdout is one; name a file")
    parts = []
    width = {} if "COLUMNS" in os.environ or not sys.stdout.isatty() else {"COLUMNS": str(os.get_terminal_size().columns)}
    try:
        for name in names:
            own = [x for kind, path in written.items() for x in (f"--{kind}", str(_of_board(path, name)))]
            command = [sys.executable, "-m", "triport.tools", *_without(argv, ("--on", *(f"--{kind}" for kind in written))), "--on", name, *own]
            parts.append(_Part(name, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                                      errors="replace", env={**os.environ, **width})))
        threads = [threading.Thread(target=part.follow, args=(args.command,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for part in parts:
            if part.process.poll() is None:
                part.process.terminate()
    _show(args, parts)
    codes = {part.process.returncode for part in parts}
    return exits.GOOD if codes == {exits.GOOD} else exits.WRONG if codes & {exits.GOOD, exits.WRONG} else exits.USAGE


def _show(args, parts: list[_Part]):
    """Each board's output, then a table of what came of each; as JSON a list of what each answered."""
    if args.command == "devices" and args.json:
        answered = [json.loads(p.out) if p.process.returncode in (exits.GOOD, exits.WRONG) else {"runner": p.board, "status": "unavailable", "reason": p.result}
                    for p in parts]
        print(json.dumps(answered, indent=1))
        return
    for part in parts:
        if part.out.strip():
            print(f"== {part.board}\n{part.out.rstrip()}\n")
    wide = max(len("board"), *(len(part.board) for part in parts))
    print(f"{'board':{wide}}  result")
    for part in parts:
        print(f"{part.board:{wide}}  {part.result}")


def _of_board(path: Path, board: str) -> Path:
    """k1.json for board ssh:a: k1-ssh_a.json."""
    return path.with_name(f"{path.stem}-{re.sub(r'[^0-9A-Za-z.@-]+', '_', board).strip('_')}{path.suffix}")


def _without(argv: list[str], options: tuple[str, ...]) -> list[str]:
    """An argument vector without options that take a value."""
    out, skip = [], False
    for word in argv:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif not word.startswith(tuple(f"{o}=" for o in options)):
            out.append(word)
    return out
