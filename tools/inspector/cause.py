"""What a verdict is made of, the same for CPUs and GPUs: its words, and causes with their remedies."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from .stats import Region, line_of

VECTOR, PARTLY, SCALAR = "VECTOR", "PARTLY", "SCALAR"


@dataclass(frozen=True)
class Cause:
    """Why a loop is slower than it could be: what was seen, what to do, the source line, and what the compiler's plan says of that line."""

    name: str
    text: str
    remedy: str
    line: str = ""
    plan: str = ""


def decided(plan: str, line: str) -> str:
    """The first line of a plan (`--stage plan`) that is about a source line, file:number: what the compiler decided there. "" where it says nothing."""
    number = line.rpartition(":")[2]
    if not number.isdigit():
        return ""
    about = re.compile(rf"\bline {number}:|@{number}\b")
    return next((text.strip() for text in plan.split("\n") if about.search(text)), "")


class Causes(list):
    """The causes of a region, in the order in which they are added."""

    def __init__(self, region: Region):
        super().__init__()
        self.region = region

    def at(self, pick) -> str:
        """file.py:line that most of the instructions come from that `pick` takes; "" without line tables."""
        lines = Counter(line for i in self.region.instructions if pick(i) and (line := line_of(i)))
        return "{}:{}".format(lines.most_common(1)[0][0][0].rpartition("/")[2], lines.most_common(1)[0][0][1]) if lines else ""

    def add(self, name: str, text: str, remedy: str, pick=lambda i: i.what.is_float_work):
        line = self.at(pick)
        self.append(Cause(name, text, remedy, line, decided(self.region.code.stages.get("plan", ""), line)))
