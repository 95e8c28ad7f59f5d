"""The kernels of a bundle for a K1: hot loops of vector code without spills, calls or fp64, as those compiled in process (test_vectors.py)."""

import pytest
from triport.backends.cpu.llvm import compile as llvm
from triport.backends.cpu.llvm.targets import TARGETS
from triport.backends.spine import library
from triport.backends.spine.trace import trace
from triport.ops import registry
from triport.tools.inspector import files, report, targets, verdict

pytestmark = pytest.mark.usefixtures("own_tiles")
REQUIRED = verdict.requirements("vector>=0.95, spills=0, calls=0, f64=0")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int32"])
@pytest.mark.parametrize("name", registry.NAMES)
def test_hot_loops(name, dtype, tmp_path):
    op, row, goal = registry.get(name), TARGETS["spacemit-x60"], targets.get("spacemit-x60")
    if dtype not in op.dtypes:
        pytest.skip(f"{name} takes {', '.join(op.dtypes)}")
    seen = set()
    for case in op.cases_on("cpu"):
        for launch in trace(op, case, dtype, row).launches:
            key = (launch.kernel.__name__, *map(str, launch.consts.items()))
            if key in seen:
                continue
            seen.add(key)
            path = tmp_path / "kernel.s"
            path.write_text(llvm.emit_assembly(library.compile_kernel(launch, row, launch.kernel.__name__).llir, row))
            r = report.of(files.of_file(path, goal))
            assert not r.failures(REQUIRED), f"{case.name} {launch.consts}: " + "\n".join(r.failures(REQUIRED))
            assert r.unknown == 0
    assert seen
