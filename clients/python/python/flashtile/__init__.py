"""Attention kernels of your own on tensors of PyTorch.

=====================  ==========================================================================
``sdpa``               ``torch.nn.functional.scaled_dot_product_attention``
``flex``               FlexAttention's functions, traced into a kernel whose tiles are skipped
``kernel, builtin``    any kernel of the language, with autograd and ``torch.compile``
``tune``               finds the best schedules for what a function launches
``Bundle``             kernels that were compiled ahead; ``write_bundle`` makes one
=====================  ==========================================================================
"""

from . import _host

_host.hand_over()

from ._ahead import Bundle, Tuned, tune, write_bundle  # noqa: E402
from ._flashtile import (  # noqa: E402
    BUILTINS,
    ArgumentError,
    BundleError,
    DeviceError,
    FlashtileError,
    GradientError,
    KernelError,
    ToolchainError,
    TuneError,
)
from ._flex import FlexKernel, flex, flex_kernel, flex_text  # noqa: E402
from ._kernel import Kernel, builtin, kernel  # noqa: E402
from ._sdpa import sdpa, sdpa_text  # noqa: E402
from ._trace import TraceError  # noqa: E402

__all__ = [
    "BUILTINS",
    "ArgumentError",
    "Bundle",
    "BundleError",
    "DeviceError",
    "FlashtileError",
    "FlexKernel",
    "GradientError",
    "Kernel",
    "KernelError",
    "ToolchainError",
    "TraceError",
    "TuneError",
    "Tuned",
    "builtin",
    "flex",
    "flex_kernel",
    "flex_text",
    "kernel",
    "sdpa",
    "sdpa_text",
    "tune",
    "write_bundle",
]
