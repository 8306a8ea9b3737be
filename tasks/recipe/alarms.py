"""Defines the thresholds of the alarms of a training run."""

from __future__ import annotations

from pydantic import Field

from tasks.config.loading import Config


class AlarmsConfig(Config):
    """Thresholds of the alarms that a run logs, with causes and remedies in `docs/alarms.md`.

    A null threshold disables its alarm.
    """

    window: int = Field(5, ge=1)
    """Number of steps over which a metric is averaged before it is compared with its threshold."""
    min_entropy: float | None = Field(0.05, ge=0)
    """Smallest entropy of the policy, nats per token."""
    max_entropy: float | None = Field(None, gt=0)
    """Largest entropy of the policy, nats per token; it depends on the model and the temperature (Axolotl's guide:
    0.5)."""
    min_reward: float | None = Field(None)
    """Smallest mean score of the scored responses, after shaping, from step 20 on; it depends on the rewards (Axolotl's
    guide: 0.15 within 20 steps)."""
    max_mismatch: float | None = Field(0.2, gt=0)
    """Largest difference between the log-probabilities of engine and learner, nats per token."""
    max_truncated: float | None = Field(0.5, gt=0)
    """Largest share of the responses in a batch that reached the length limit."""
    min_reward_std: float | None = Field(0.02, ge=0)
    """Smallest standard deviation of a group's scores, averaged over scored groups."""
    max_zero_variance: float | None = Field(0.9, gt=0)
    """Largest share of the scored groups that have no gradient."""
    max_clipped: float | None = Field(0.2, gt=0)
    """Largest share of the trained tokens above the upper clip bound."""
    max_out_of_bounds: float | None = Field(0.2, gt=0)
    """Largest share of the tokens, or of the sequences, whose weight the correction truncates or drops (ProRLv2, "what
    to monitor")."""
    max_sampling_rounds: float | None = Field(3.0, gt=0)
    """Largest number of rounds of prompts that dynamic resampling takes for a batch (ProRLv2, "what to monitor")."""
    max_staleness_dropped: float | None = Field(0.25, gt=0)
    """Largest number of groups dropped as stale, relative to the number of scored groups."""
    max_unjudged: float | None = Field(0.05, gt=0)
    """Largest share of the responses that could not be scored."""
    min_length_growth: float | None = Field(0.25, gt=0)
    """Smallest mean length of the responses in a batch, as a multiple of the mean over the first `window` steps."""
    max_length_growth: float | None = Field(4.0, gt=0)
    """Largest mean length of the responses in a batch, as a multiple of the mean over the first `window` steps."""
    max_grad_norm: float | None = Field(10.0, gt=0)
    """Largest gradient norm before clipping (Axolotl's guide: above 10 a run is unstable)."""
    max_grad_norm_growth: float | None = Field(10.0, gt=0)
    """Largest gradient norm, as a multiple of its median over the last 100 steps."""
