"""Measuring ops: `clock` times, `check` compares, `roofline` finds the machine's limits, `runner` puts a run of ops on backends together, `study` one of
whatever callables there are, `results` keeps it as JSON and `report` prints it; `scaling` fits how times grow. `models` are studies of whole examples."""
