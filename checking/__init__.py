"""Checked runs of Triton kernels on the CPU: `with triport.checking.checks("bounds,race"):`, or TRITON_CPU_CHECK=1 in the environment."""

from ..backends.checking import KINDS, CheckError, Report, checks, enable, keeping_going

__all__ = ["KINDS", "CheckError", "Report", "checks", "enable", "keeping_going"]
