"""Gaps of torch's Inductor that kernels for the CPU fall into."""

from __future__ import annotations

import contextlib
import sys


def mend():
    """Gaps of torch 2.11 to 2.13 that a fused matrix product on the CPU falls into when Inductor times it: its code for
    `get_raw_stream` is a function of two lines where one line fits (IndentationError in what it generates), the CPU has no
    `device` context, and in 2.11 what stands for one is `pass`. Nothing else changes; a torch without the gaps is left alone."""
    overrides = sys.modules.get("torch._inductor.codegen.cpu_device_op_overrides")
    if overrides is not None and "\n" in overrides.CpuDeviceOpOverrides().import_get_raw_stream_as("f"):
        overrides.CpuDeviceOpOverrides.import_get_raw_stream_as = lambda self, name: f"{name} = lambda _: 0"
    if overrides is not None and overrides.CpuDeviceOpOverrides().device_guard(0) == "pass":
        overrides.CpuDeviceOpOverrides.device_guard = lambda self, index: "torch._ops.contextlib.nullcontext()"
    interfaces = sys.modules.get("torch._dynamo.device_interface")
    if interfaces is not None and interfaces.CpuInterface.device is interfaces.DeviceInterface.device:
        interfaces.CpuInterface.device = staticmethod(lambda device=None: contextlib.nullcontext())
