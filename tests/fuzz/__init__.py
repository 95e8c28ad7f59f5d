"""Random kernels whose results must equal numpy's: `python -m tests.fuzz --minutes N`.

`generate` makes a program (`program`: a tree) from a seed, out of random values (`values`, `truth`, `blocks`), places (`places`) and accesses
(`memory`). `source` writes it as a Triton kernel, `evaluate` says by numpy what it must do, `check` compares, in a process of its own
(`worker`). `reduce` makes a failing program small, `repro` writes it as a script.

To add an operation: a row in `operations`, and a place in `values` or `blocks` that makes it."""
