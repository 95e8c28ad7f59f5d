"""triport's ops: `triport.ops.softmax(x)`, and the same as `torch.ops.triport.softmax`.

To add an op write `ops/<op>.py` in the order of the others, and name it here and in `registry.NAMES`.
"""

from ..backends import platforms

platforms.need_triton("triport.ops")  # before the first import of it below

from . import batched  # noqa: E402, F401  (products of two batches, for vmap)
from .add_mul_act import add_mul_act, add_mul_act_  # noqa: E402
from .add_relu import add_relu  # noqa: E402
from .gelu import gelu  # noqa: E402
from .lora_linear import lora_linear  # noqa: E402
from .matmul import matmul  # noqa: E402
from .matmul_softmax import matmul_softmax  # noqa: E402
from .records import Case, Op  # noqa: E402
from .softmax import softmax  # noqa: E402
from .square import square  # noqa: E402
from .user import cuda_op, extension_op  # noqa: E402

from ..backends import of_torch  # noqa: E402
from . import registry  # noqa: E402  (the records, by name)

of_torch.warn()

__all__ = ["Case", "Op", "add_mul_act", "add_mul_act_", "add_relu", "cuda_op", "extension_op", "gelu", "lora_linear", "matmul", "matmul_softmax",
           "registry", "softmax", "square"]
