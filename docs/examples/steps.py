"""Functions to profile, one at a time: triport profile docs/examples/steps.py:cdist"""

import torch
from triport import ops

_x, _y = torch.randn(512, 256), torch.randn(256, 384)


def add():
    return _x + _x


def matmul():
    return ops.matmul(_x, _y)


def cdist():
    return torch.cdist(_x, _y.T)


def gelu():
    return ops.gelu(_x)


def softmax():
    return ops.softmax(_x)
