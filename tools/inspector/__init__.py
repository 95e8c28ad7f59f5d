"""The inspector behind `triport asm`: any kernel's machine code, one schema for every ISA, hot loops, a verdict.

    code.py      requests -> `Code`: the stages of a kernel for a target       text.py     assembly text -> `Function`s
    isa/         one classifier per ISA: mnemonic and operands -> `Class`      flow.py     blocks and loops
    stats.py     counts per loop                                               verdict.py  VECTOR, PARTLY or SCALAR, and why
    disassembly.py, relocations.py  objects, linked or not yet                  retries.py  loops that are none: atomic stores that are tried again
    weights.py   how much of the work each loop does, by trips.py (rounds), remainder.py (loops that take what another leaves), lanes.py (what is
                 in a register) and registers.py (which registers an instruction uses)
    cause.py     what verdicts and causes are                                  gpu/        regions, figures, verdicts and causes of GPU code
    terminal.py, page.py, diff.py                                              views of a `Report`
"""
