"""A vLLM worker's extension for engines in FP8 without a GPU: rounds weights to FP8, for which vLLM has only GPU code.

Importing this module changes the process, which is a worker's alone.
"""

import torch
from vllm import _custom_ops as ops

from tasks.generation import weight_transfer

LARGEST = torch.finfo(torch.float8_e4m3fn).max


class WorkerExtension(weight_transfer.WorkerExtension):
    """That of whole models."""


def _rounded(weight, scale):
    """A tensor in FP8, divided by the scale of all of it."""
    return (weight.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


ops.scaled_fp8_quant = _rounded
