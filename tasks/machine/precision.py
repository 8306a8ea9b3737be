"""Which type weights and activations have where a configuration says `dtype: auto`.

On GPUs it is bfloat16. Processors differ: without instructions of its own for it (AVX2 alone: most laptops) a processor
computes bfloat16 several times slower than float32. There float32 is used.

What `auto` becomes is a property of the machine and no part of a stage's input: results are cached under `auto`. A
local cache belongs to one machine, and on a cluster the engines and learners of a stage run on GPUs. Whoever wants
results of one precision apart from those of another writes the type down.
"""

from __future__ import annotations

import sys
import time
from typing import Literal

Dtype = Literal["bfloat16", "float16", "float32"]
Auto = Literal["auto"]

SLOWER_AT_MOST = 1.5
"""bfloat16 takes half the memory: it is used as long as a product in it takes no longer than this many times float32's.
Processors are far from it on both sides: 0.3 with AVX-512's bfloat16, 4 with AVX2."""

_ROWS, _INNER, _OUTER = 128, 576, 1536


def resolve(dtype: Dtype | Auto, *, gpu: bool) -> Dtype:
    """`dtype`, or what `auto` means for a process with or without a GPU. Loads torch only for `auto` without one."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if gpu or bfloat16_is_fast() else "float32"


def bfloat16_is_fast() -> bool:
    """Whether this processor is meant to compute in bfloat16: oneDNN says so, or where it is not asked, a stopwatch.

    torch builds without oneDNN have nobody to ask; there half a second of matrix products decides.
    """
    import torch

    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # torch built without oneDNN
        fast, usual = (product_rate(dtype, seconds=0.25) for dtype in ("bfloat16", "float32"))
        return fast * SLOWER_AT_MOST >= usual


def product_rate(dtype: str, seconds: float) -> float:
    """Floating point operations per second of a matrix product as a small model's decoding has them, all threads.

    The best of those within `seconds`, so that other processes disturb it little.
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


def say(asked: str, used: str) -> None:
    """One line on the terminal where `auto` became float32; a stage says it once."""
    if asked == "auto" and used == "float32":
        print("this processor computes bfloat16 slowly: float32 is used", file=sys.stderr, flush=True)
