"""Estimates pass@k, the probability that at least one of k samples of a prompt passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def estimate_pass_at_k(samples: Sequence[int] | np.ndarray, passed: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the unbiased estimate of pass@k for every prompt and every k from 1 to the most samples of any prompt.

    If c of n samples pass, it is the share of the subsets of k samples that contain a passing one:
    `1 - C(n - c, k) / C(n, k)` (Chen et al. 2021, arXiv:2107.03374, eq. 1). For k = n it is 1 if any passes, else 0.

    Args:
        samples: number of scored samples of each prompt, `[prompts]`.
        passed: number of these samples that pass, `[prompts]`.

    Returns:
        `[prompts, most samples]` in [0, 1], column k - 1 for k; NaN if a prompt has fewer than k samples.

    Raises:
        ValueError: a prompt has more passing samples than samples, or a negative number.
    """
    n, c = np.asarray(samples, dtype=int)[:, None], np.asarray(passed, dtype=int)[:, None]
    if np.any(c < 0) or np.any(c > n):
        raise ValueError("the number of samples that pass must lie between 0 and the number of samples")
    drawn = np.arange(np.max(n, initial=0))  # before draw j, from 0, n - j samples are left, n - c - j of them failed
    # C(n - c, k) / C(n, k) is the product over the first k draws of the probability that one more fails. Every factor
    # is in [0, 1], so that nothing overflows; for k > n - c one of them is exactly 0.
    all_fail = np.cumprod(np.maximum(n - c - drawn, 0) / np.maximum(n - drawn, 1), axis=1)
    return np.where(drawn < n, 1 - all_fail, np.nan)


def count_blocks(samples: np.ndarray, k: int) -> int:
    """Return the number of disjoint blocks of k samples, summed over prompts; `samples` is `[prompts]`."""
    return int(np.sum(np.asarray(samples) // k))
