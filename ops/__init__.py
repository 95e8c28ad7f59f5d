"""triport's ops: `triport.ops.softmax(x)`, and the same as `torch.ops.triport.softmax`.

To add an op write `ops/<op>.py` in the order of the others, and name it here and in `registry.NAMES`.
"""

from .add_mul_act import add_mul_act, add_mul_act_
from .add_relu import add_relu
from .gelu import gelu
from .lora_linear import lora_linear
from .matmul import matmul
from .matmul_softmax import matmul_softmax
from .records import Case, Op
from .softmax import softmax
from .square import square
from .user import cuda_op, extension_op

from . import registry  # noqa: E402  (the records, by name)

__all__ = ["Case", "Op", "add_mul_act", "add_mul_act_", "add_relu", "cuda_op", "extension_op", "gelu", "lora_linear", "matmul", "matmul_softmax",
           "registry", "softmax", "square"]
