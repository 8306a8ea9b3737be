"""The type of weights and activations that `dtype: auto` stands for.

On GPUs it is bfloat16. Processors differ: one without instructions for it (AVX2 alone: most laptops) computes bfloat16
several times slower than float32, and there float32 is used. `RLVR_CPU_DTYPE=bfloat16` or `=float32` overrides this, to
test on one kind of processor what happens on the other.

The type that `auto` becomes is a property of the machine and no part of a stage's input: results are cached under
`auto`. A local cache belongs to one machine, and on a cluster the engines and learners of a stage run on GPUs. To cache
results of two precisions apart, give the type in the configuration.
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

CPU_DTYPE = "RLVR_CPU_DTYPE"
"""Environment variable: the type that `auto` becomes without a GPU, instead of the processor's."""
SLOWER_AT_MOST = 1.5
"""Largest time of a bfloat16 matrix product, in times of float32's, at which bfloat16 is used for its smaller memory.

Processors are far from it on both sides: 0.3 with AVX-512's bfloat16, 4 with AVX2.
"""

_ROWS, _INNER, _OUTER = 128, 576, 1536


def resolve(dtype: Dtype | Auto, *, gpu: bool) -> Dtype:
    """Return `dtype`, or for `auto` the type that suits a process with or without a GPU.

    torch is imported only for `auto` without a GPU.

    Raises:
        MistakeError: `RLVR_CPU_DTYPE` names another type than bfloat16 and float32.
    """
    if dtype != "auto":
        return dtype
    return "bfloat16" if gpu or bfloat16_is_fast() else "float32"


def bfloat16_is_fast() -> bool:
    """Return whether this processor computes bfloat16 about as fast as float32 or faster.

    oneDNN knows. A torch that was built without it is timed, for half a second of matrix products.
    """
    if (asked := _asked()) is not None:
        return asked == "bfloat16"
    import torch

    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # torch built without oneDNN
        fast, usual = (product_rate(dtype, seconds=0.25) for dtype in ("bfloat16", "float32"))
        return fast * SLOWER_AT_MOST >= usual


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the kernel lists instructions with which torch computes bfloat16 fast; imports no torch."""
    if (asked := _asked()) is not None:
        return asked == "bfloat16"
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        return False
    return bool(words & {"avx512bw", "bf16"})


def _asked() -> str | None:
    """Return the type that `RLVR_CPU_DTYPE` names, or None if it is not set."""
    asked = os.environ.get(CPU_DTYPE) or None
    if asked not in (None, "bfloat16", "float32"):
        raise MistakeError(f"{CPU_DTYPE} = {asked}: without a GPU, auto can be bfloat16 or float32")
    return asked


def product_rate(dtype: str, seconds: float) -> float:
    """Measure a matrix product as decoding with a small model has them; return floating point operations per second.

    Args:
        dtype: name of a torch type.
        seconds: time to repeat the product for. The fastest counts, so that other processes disturb it little.
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
    """Print one line to stderr where the option was `auto` and the type in use is float32; called once per stage."""
    if option == "auto" and used == "float32":
        print("this processor computes bfloat16 slowly: float32 is used", file=sys.stderr, flush=True)
