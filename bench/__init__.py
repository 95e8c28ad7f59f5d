"""Measuring ops: `clock` times, `noise` says what samples are worth and `load` what others do to the machine, `check` compares, `roofline` finds the
machine's limits, `runner` puts a run of ops on backends together, `study` one of whatever callables there are, `results` keeps it as JSON and `report`
prints it; `scaling` fits how times grow. `models` are studies of whole examples."""
