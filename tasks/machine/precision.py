"""Selects the data type of weights and activations for `dtype: auto`.

On GPUs it is bfloat16. Processors without instructions for bfloat16 (with AVX2 only, as in most laptops) compute it
several times slower than float32, and float32 is used. `RLVR_CPU_DTYPE=bfloat16` or `=float32` overrides this, to test
on one kind of processor what happens on the other.

The selected type is a property of the machine and not part of a stage's input: results of stages are cached under
`auto`. A local cache belongs to one machine, and on a cluster the engines and learners of a stage run on GPUs. Cached
responses, which machines of both kinds may share, are cached under the selected type.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Literal

from tasks.failures import MistakeError

Dtype = Literal["bfloat16", "float16", "float32"]
Auto = Literal["auto"]
HeadDtype = Literal["model", "float32"]
"""Type of the logits that a head computes: the type of the model's other layers, or float32."""

CPU_DTYPE = "RLVR_CPU_DTYPE"
"""Environment variable with the type for `auto` without a GPU. It overrides the choice by processor."""
SLOWER_AT_MOST = 1.5
"""Maximum time of a bfloat16 matrix product, relative to float32, at which bfloat16 is used to save memory.

Typical values are far from this threshold: 0.3 with AVX-512's bfloat16, and 4 with AVX2.
"""

_ROWS, _INNER, _OUTER = 128, 576, 1536


def resolve(dtype: Dtype | Auto, *, gpu: bool) -> Dtype:
    """Return `dtype`, or for `auto` the best type for a process with or without a GPU.

    torch is imported only for `auto` without a GPU.

    Raises:
        MistakeError: `RLVR_CPU_DTYPE` names another type than bfloat16 and float32.
    """
    if dtype != "auto":
        return dtype
    return "bfloat16" if gpu or is_bfloat16_fast() else "float32"


def is_bfloat16_fast() -> bool:
    """Return whether this processor computes bfloat16 about as fast as float32 or faster.

    oneDNN has this information. If torch was built without oneDNN, matrix products are timed for half a second.
    """
    if (asked := _read_asked()) is not None:
        return asked == "bfloat16"
    import torch

    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # torch built without oneDNN
        fast, usual = (measure_product_rate(dtype, seconds=0.25) for dtype in ("bfloat16", "float32"))
        return fast * SLOWER_AT_MOST >= usual


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the kernel lists instructions that make bfloat16 fast in torch. Does not import torch."""
    if (asked := _read_asked()) is not None:
        return asked == "bfloat16"
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        return False
    return bool(words & {"avx512bw", "bf16"})


def _read_asked() -> str | None:
    """Return the type in `RLVR_CPU_DTYPE`, or None if it is not set."""
    asked = os.environ.get(CPU_DTYPE) or None
    if asked not in (None, "bfloat16", "float32"):
        raise MistakeError(f"{CPU_DTYPE} = {asked}: without a GPU, auto can be bfloat16 or float32")
    return asked


def measure_product_rate(dtype: str, seconds: float) -> float:
    """Measure a matrix product as in decoding with a small model. Return floating point operations per second.

    Args:
        dtype: name of a torch type.
        seconds: time during which the product is repeated. The fastest repetition counts, so that other processes have
            little influence.
    """
    import torch

    kind = getattr(torch, dtype)
    rows, weight = torch.ones(_ROWS, _INNER, dtype=kind), torch.ones(_OUTER, _INNER, dtype=kind)
    best, started = float("inf"), time.perf_counter()
    with torch.no_grad():
        torch.nn.functional.linear(rows, weight)  # the first one prepares the kernel
        while best == float("inf") or time.perf_counter() - started < seconds:
            began = time.perf_counter()
            torch.nn.functional.linear(rows, weight)
            best = min(best, time.perf_counter() - began)
    return 2 * _ROWS * _INNER * _OUTER / best


def report_float32(option: str, used: str) -> None:
    """Print one line to stderr if the option was `auto` and the type in use is float32. Called once per stage."""
    if option == "auto" and used == "float32":
        print("this processor computes bfloat16 slowly: float32 is used", file=sys.stderr, flush=True)
