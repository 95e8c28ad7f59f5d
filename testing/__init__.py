"""A pytest plugin for projects with Triton kernels: a GPU's tests on a CPU, checked kernels, launches by test, what no GPU would take (docs/testing.md).

`plugin.py` has the options and imports nothing until one is given; `session.py` is a run with one. `gpu.py` is the GPU that is not there: `marks.py` knows its
tensors, `tensors.py` moves them, `cuda.py` answers for torch.cuda, `gpus.py` has its sizes. `launches.py` sees launches, `lint.py` judges them,
`summary.py` prints the end.
"""
