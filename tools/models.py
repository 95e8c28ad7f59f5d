"""`triport models NAME`: whole examples, each variant checked and then timed."""

from __future__ import annotations

import argparse

from ..bench.models import MODELS


def add(parser):
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
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
    parser = argparse.ArgumentParser(prog=f"triport models {args.model}", description=MODELS[args.model][1], epilog=module.__doc__)
    common.add(parser)
    module.add(parser)
    options = parser.parse_args(args.rest)
    common.settle(options)
    return module.run(options)
