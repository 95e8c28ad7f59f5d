"""What the files of faulty and of right kernels share: how a launch is told to be one, and how what is reported is compared.

The lines that are at fault end with the comment `# here`, in the kernel that `fault` is given.
"""

import inspect

import pytest
from triport import checking

ALL = "bounds,race,uninit,overflow"


def lines(kernel) -> set[int]:
    """The lines of a kernel, or of a function that it calls, that end with `# here`."""
    texts, first = inspect.getsourcelines(kernel.fn)
    at = {first + n for n, text in enumerate(texts) if text.rstrip().endswith("# here")}
    assert at, f"{kernel.fn.__name__}: a line is to end with `# here`"
    return at


class Faults:
    """The faulty launches of one kind. `faults(kernel, argument=..., program=..., lane=..., element=...)` decorates a function that launches."""

    def __init__(self, kind: str):
        self.kind, self.cases = kind, []

    def __call__(self, kernel, **wanted):
        def note(launch):
            self.cases.append(pytest.param(kernel, launch, wanted, id=launch.__name__))
            return launch

        return note

    def found(self, kernel, launch, wanted, kinds: str = ALL):
        """The launch is reported: of this kind only, at those lines only, and as `wanted` says."""
        with checking.checks(kinds), pytest.raises(checking.CheckError) as caught:
            launch()
        reports = caught.value.reports
        assert {r.kind for r in reports} == {self.kind}, caught.value
        assert {r.line for r in reports} == lines(kernel), caught.value
        for name, value in wanted.items():
            assert getattr(reports[0], name) == value, f"{name}: {getattr(reports[0], name)}, not {value}\n{caught.value}"


class Right:
    """Right launches: `@right` decorates a function that launches, and says whether the results are right or gives nothing."""

    def __init__(self):
        self.cases = []

    def __call__(self, launch):
        self.cases.append(pytest.param(launch, id=launch.__name__))
        return launch
