"""Computes divergences between two policies from the probability of the sampled token alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.recipe.objective import BinaryDivergence

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_LOGPROB = -1e-9
"""Log-probability, nats, that replaces larger ones: the probability of another token, `1 - p`, must not be 0."""


def compute_binary_divergence(logprobs: Tensor, engine_logprobs: Tensor, kind: BinaryDivergence) -> Tensor:
    """Return the divergence of each token between "this token" and "another token" under learner and engine.

    With p the token's probability under the learner and q under the engine, a lower bound of the divergence between
    their distributions (DPPO, Qi et al. 2026, arXiv:2602.04879, eq. 13 and 14):

    - `tv`: `abs(p - q)`, the total variation;
    - `kl`: `q log(q / p) + (1 - q) log((1 - q) / (1 - p))`, that of KL(engine || learner).

    Args:
        logprobs: nats, under the learner; any shape.
        engine_logprobs: nats, under the engine, in the same shape.
        kind: one of the above.

    Returns:
        The divergences, in the same shape; nats for `kl`.
    """
    if kind == "tv":
        return (logprobs.exp() - engine_logprobs.exp()).abs()
    log_p, log_q = logprobs.clamp(max=LARGEST_LOGPROB), engine_logprobs.clamp(max=LARGEST_LOGPROB)
    rest_p, rest_q = -log_p.expm1(), -log_q.expm1()  # 1 - p and 1 - q, exact even if p is almost 1
    return log_q.exp() * (log_q - log_p) + rest_q * (rest_q.log() - rest_p.log())
