"""`triport boards`: what runs over ssh have left on boards, in ~/.cache/triport, and its removal."""

from __future__ import annotations

import json
import os
import time

from . import exits

EXAMPLES = (
    "triport boards me@k1",
    "triport boards clean ssh:me@k1:2222",
    "triport boards clean ssh:k1,ssh:k3",
    "triport boards list ssh:me@k1",
)
_DO = ("list", "clean")


def add(parser):
    parser.add_argument("words", nargs="*", metavar="list|clean|HOST", help="list what is there (default) or remove it; the board, as ssh:me@k1:2222 or me@k1, several with "
                        "commas between them (default: $TRIPORT_SPINE)")
    parser.add_argument("--json", action="store_true", help="one JSON object for each board")


def _asked(words: list[str]) -> tuple[str, list]:
    """(list or clean, the boards' runners)."""
    from ..backends.base import Error, suggest
    from ..backends.spine import runner

    do, rest = (words[0], words[1:]) if words and words[0] in _DO else ("list", words)
    if len(rest) > 1:
        raise Error(suggest("word", rest[0], _DO) + "; behind it goes one board, or several with commas between them" if do == "list" and rest is words
                    else f"{' '.join(rest)}: several boards are named with commas between them: {','.join(rest)}")
    text = rest[0] if rest else os.environ.get("TRIPORT_SPINE", "")
    if not text:
        raise Error(f"say which board: triport boards{' clean' if do == 'clean' else ''} ssh:me@k1, or TRIPORT_SPINE in the environment")
    kinds = ("ssh:", "qemu:", "local")
    found = [runner.get(name) for name in runner.names(",".join(part if part.startswith(kinds) or not part else f"ssh:{part}" for part in text.split(",")))]
    for one in found:
        if not isinstance(one, runner.Ssh):
            raise Error(f"{one.name}: nothing is left there; only boards over ssh are sent copies")
    return do, found


def run(args) -> int:
    from ..backends.base import Error

    do, found = _asked(args.words)
    rows, failed = [], 0
    for board in found:
        try:
            kept, others = board.clean() if do == "clean" else board.kept()
            rows.append({"runner": board.name, "done": do, "bundles": [vars(k) for k in kept], "bytes": sum(k.nbytes for k in kept), "others": others})
        except Error as e:
            if len(found) == 1:
                raise
            failed += 1
            rows.append({"runner": board.name, "done": "", "reason": str(e)})
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows:
            _show(row)
    return exits.USAGE if failed == len(found) else exits.WRONG if failed else exits.GOOD


def _show(row: dict):
    if not row["done"]:
        print(row["reason"])
        return
    size = f"{len(row['bundles'])} bundle{'s' * (len(row['bundles']) != 1)}, {row['bytes'] / 1e6:.1f} MB"
    others = f"; {row['others']} other entries there are not triport's" + " and stay" * (row["done"] == "clean") if row["others"] else ""
    print(f"{row['runner']}: {'removed ' if row['done'] == 'clean' else ''}{size} in ~/.cache/triport{others}")
    for k in row["bundles"] if row["done"] == "list" else ():
        print(f"    {k['digest'][:12]}  {time.strftime('%Y-%m-%d %H:%M', time.localtime(k['time']))}  {k['nbytes'] / 1024:6.0f} KiB  {k['program']}")
