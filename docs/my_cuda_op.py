"""An op of one's own in CUDA C++, for `triport bench --op docs/my_cuda_op.py:my_op` beside a GPU: the README shows it."""

from triport.ops import Case, Op, cuda_op

saxpy = cuda_op("saxpy.cu:saxpy<{T}>", "(Tensor x, Tensor y, float a) -> Tensor")

my_op = Op("saxpy", call=lambda x, y, a: saxpy(x, y, a), eager=lambda x, y, a: a * x + y, cases=(Case(((4096, 8192), (4096, 8192)), {"a": 2.0}),),
           nbytes=lambda x, y, a: 3 * x.numel() * x.element_size(), flops=lambda x, y, a: 2 * x.numel(), dtypes=("fp32", "fp16", "bf16"),
           backends=("cuda",))
