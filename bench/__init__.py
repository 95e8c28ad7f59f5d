"""Measuring ops: `clock` times, `check` compares, `roofline` finds the machine's limits, `runner` puts a run together,
`results` keeps it as JSON and `report` prints it."""
