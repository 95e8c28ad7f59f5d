"""The command line: `triport bench`, `triport devices`."""
