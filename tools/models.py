"""`triport models NAME`: whole examples, each variant checked and then timed."""

from __future__ import annotations

import argparse

from ..bench.models import MODELS
from .parser import Parser

EXAMPLES = (
    "triport models",
    "triport models softmax --size small --reps 2",
    "triport models mlp --json mlp.json --plot mlp.png",
    "triport models gelu --help",
)


def add(parser):
    known = "\n".join(f"  {name:8} {line}" for name, (_, line) in MODELS.items())
    parser.epilog = f"models:\n{known}\n\noptions of a model: triport models NAME --help"
    parser.add_argument("model", nargs="?", metavar="NAME", help="a model; without one they are listed")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="its options")


def run(args) -> int:
    if not args.model:
        for name, (_, line) in MODELS.items():
            print(f"{name:8} {line}")
        return 0
    from ..bench import models
    module = models.get(args.model)
    from ..bench.models import common
    options = parser_of(args.model, module, common).parse_args(args.rest)
    common.settle(options)
    return module.run(options)


def parser_of(name: str, module, common) -> Parser:
    """The parser of a model's options: its own, and those of all (`bench.models.common`)."""
    parser = Parser(prog=f"triport models {name}", description=MODELS[name][1], epilog=module.__doc__, formatter_class=argparse.HelpFormatter,
                    examples=(f"triport models {name} --size small --reps 2", f"triport models {name} --json {name}.json --plot {name}.svg"))
    common.add(parser)
    module.add(parser)
    return parser
