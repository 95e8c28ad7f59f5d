"""Models and small questions that `triport models NAME` checks and times, variant by variant; each module answers one.

A module has `steps(size, device, seed)`, which gives variants by name as functions of no arguments that do one step (what a profiler runs),
`add(parser)` for the options that are its own, and `run(args)`. To add one write a module and a line here.
"""

#: name -> (module below this package, one line)
MODELS = {
    "square": ("square", "x * x as torch.square, as a product, as a power, and by our kernels"),
    "gelu": ("gelu", "GELU five ways: by hand, torch's, torch.compile, Triton, CUDA C++"),
    "softmax": ("softmax", "softmax of rows four ways: by hand, torch's, torch.compile, Triton"),
    "matmul": ("matmul", "products of square matrices over sizes: torch, torch.compile, Triton"),
    "block": ("block", "kernels over rows: BLOCK 1024 against next_power_of_2(n), over row lengths n"),
    "mlp": ("mlp", "an MLP's forward and backward: how time grows with steps, layers, batch and dim"),
    "lora": ("lora", "a linear layer with LoRA, ranks 8 to 64: forward, and forward and backward"),
    "dlrm": ("dlrm", "DLRM on synthetic click data: training, step time and memory"),
    "inductor": ("inductor", "BERT, GPT-2, Llama, ViT, an MLP, DLRM by torch.compile: its C++ against its Triton"),
}


def get(name: str):
    """The module of a model. Raises `Error` for an unknown name."""
    import importlib

    from ...backends.base import Error, suggest
    if name not in MODELS:
        raise Error(suggest("model", name, MODELS))
    return importlib.import_module(f".{MODELS[name][0]}", __name__)
