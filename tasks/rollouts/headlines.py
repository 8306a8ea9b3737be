"""Describes in one line what a stage sampled: how many responses, at what speed, and how many came from the cache."""

from __future__ import annotations


def format_sampling_headline(count: int, what: str, *, generated: int, tokens: int, tokens_per_second: float) -> str:
    """Return the line.

    Args:
        count: number of responses, including those from the cache.
        what: what they are called, such as `rollouts`.
        generated: number of responses that were generated now.
        tokens: number of tokens that were generated now.
        tokens_per_second: speed of the engines while they generated.
    """
    if count and not generated:
        return f"{count:,} {what}, all from the cache"
    cached = f"; {count - generated:,} came from the cache" if count > generated else ""
    return f"{count:,} {what}, {tokens:,} tokens at {tokens_per_second:,.0f} tokens/s{cached}"
