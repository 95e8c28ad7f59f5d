"""Random kernels whose results must equal numpy's: `python -m tests.fuzz --minutes N`.

`generate` makes a program (`program`) from a seed, `source` writes it as a Triton kernel, `evaluate` computes with numpy what it
must do, `check` compares, `reduce` makes a failing program small, `repro` writes it as a script of its own."""
