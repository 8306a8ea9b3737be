"""Defines the options of the correction for the difference between the engine's and the learner's probabilities.

This module does not import torch: recipes are also parsed on machines without torch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tasks.config.loading import Config

CorrectionKind = Literal["none", "tis", "icepop", "seq_mask_tis", "sequence_truncate", "sequence_mask"]
MaskMetric = Literal["ratio", "tv", "binary_tv", "binary_kl"]
MaskLevel = Literal["token", "sequence"]

PER_SEQUENCE = ("seq_mask_tis", "sequence_truncate", "sequence_mask")
"""Kinds of correction with bounds on whole sequences."""

_BOUNDS: dict[CorrectionKind, tuple[str, ...]] = {
    "none": (),
    "tis": ("max",),
    "icepop": ("min", "max"),
    "seq_mask_tis": ("min", "max"),
    "sequence_truncate": ("max",),
    "sequence_mask": ("max",),
}
_OPTIONAL_BOUNDS: dict[CorrectionKind, tuple[str, ...]] = {"tis": ("min",)}

TIS_MAX = 2.0
"""Default upper bound rho of truncated importance sampling (Yao et al. 2025)."""


class MaskConfig(Config):
    """The tokens that leave the loss because the learner's and the engine's probabilities differ too much.

    It drops tokens with `metric` below `min` or above `max`. With `w = pi_old / pi_rollout`, p a token's probability
    under the learner and q under the engine, `metric` is

    - `ratio`: `w`; of a sequence, the geometric mean of its `w` (open-instruct's `rho_mask_lower_bound` and
      `rho_mask_upper_bound`, by token or by sequence);
    - `tv`: `abs(w - 1)`; of a sequence, the mean, which estimates twice the total variation between learner and engine
      (VACO, arXiv:2603.01365, as in open-instruct's `rho_mask_tv_divergence`);
    - `binary_tv`: `abs(p - q)`, and `binary_kl`: `q log(q / p) + (1 - q) log((1 - q) / (1 - p))`; of a sequence, the
      mean. These are the divergences between "this token" and "another token" (DPPO, arXiv:2602.04879, eq. 13 and 14).
    """

    metric: MaskMetric = "ratio"
    """Difference between learner and engine: `ratio` of the probabilities, `tv` (total variation, from the ratio), or
    `binary_tv` and `binary_kl` (from the probability of the token alone)."""
    level: MaskLevel = "token"
    """Unit that is compared and dropped: a `token`, or a whole `sequence`."""
    min: float | None = Field(default=None, gt=0)
    """Smallest `ratio` that is kept; rejected by the other metrics. If null, it is unbounded."""
    max: float | None = Field(default=None, gt=0)
    """Largest `metric` that is kept. If null, it is unbounded."""
    increase_only: bool = False
    """If true, drop only tokens whose update would increase the difference, those with `A log(w) > 0`, as VACO and DPPO
    do."""

    @model_validator(mode="after")
    def _has_bounds(self) -> MaskConfig:
        if self.metric != "ratio" and self.min is not None:
            raise ValueError(f"correction.mask.metric = {self.metric} does not use correction.mask.min = {self.min}")
        if self.min is None and self.max is None:
            raise ValueError("correction.mask needs correction.mask.max, or with metric = ratio correction.mask.min")
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise ValueError(f"correction.mask.min = {self.min} must be below correction.mask.max = {self.max}")
        return self


class CorrectionConfig(Config):
    """The correction for the difference between the inference engine's probabilities and the learner's.

    With `w = pi_old / pi_rollout`, the probability of a token under the learner over that under the engine:

    - `none`: every token has weight 1;
    - `tis`: `min(w, max)`, truncated importance sampling (Yao et al. 2025; the OlmoRL formula's rho is `max`). With
      `min`, it is `max(min, min(w, max))` (NeMo RL #2886; open-instruct's `rho_clamp_lower_bound`);
    - `icepop`: `w` if `min <= w <= max`, else 0 (IcePop, token-level mask);
    - `seq_mask_tis`: `w` for sequences with a geometric mean of `w` in `[min, max]`, else 0 (NeMo RL, ProRL v2.1);
    - `sequence_truncate`: `min(W, max)` for all tokens of a sequence, with W the product of its `w` (TRL's
      `vllm_importance_sampling_mode`, whose `token_truncate` is `tis` and `token_mask` is `icepop` with `min: 0`;
      Axolotl's modes of these names have a lower bound too, `1 / max`);
    - `sequence_mask`: `W` if `W <= max`, else 0 (the same sources).
    """

    kind: CorrectionKind = "tis"
    """Kind of correction: `none`; per token `tis` (truncated importance sampling) or `icepop` (mask); per sequence
    `seq_mask_tis`, `sequence_truncate` or `sequence_mask`."""
    min: float | None = Field(default=None, ge=0)
    """Lower bound of the importance weight; optional for `tis`, required by `icepop` and `seq_mask_tis`, rejected by
    the other kinds."""
    max: float | None = Field(default=None, gt=0)
    """Upper bound of the importance weight; 2.0 by default for `tis`, rejected by `none`, required by the other kinds.
    """
    mask: MaskConfig | None = None
    """Tokens or sequences that are dropped, whatever their weight is; only with `tis` and `none`, since the other kinds
    drop tokens themselves or weigh whole sequences. If null, none is dropped."""
    off_policy_threshold: float | None = Field(default=None, gt=0)
    """Largest mean of `rollout_logprobs - logprobs` over a sequence with negative advantage, nats. Sequences with a
    larger mean are removed from the loss (off-policy sequence masking, DeepSeek-V3.2, arXiv:2512.02556; Axolotl's
    `off_policy_mask_threshold`, which suggests 0.5 as a start). If each token has an advantage, only those tokens of
    such a sequence are removed whose advantage is negative. If null, no sequence is removed."""

    @model_validator(mode="before")
    @classmethod
    def _fill_max(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("kind", "tis") == "tis" and "max" not in data:
            return {**data, "max": TIS_MAX}
        return data

    @model_validator(mode="after")
    def _check_bounds(self) -> CorrectionConfig:
        needed = _BOUNDS[self.kind]
        taken = (*needed, *_OPTIONAL_BOUNDS.get(self.kind, ()))
        for name in ("min", "max"):
            value = getattr(self, name)
            if name in needed and value is None:
                raise ValueError(f"correction.kind = {self.kind} needs correction.{name}")
            if name not in taken and value is not None:
                raise ValueError(f"correction.kind = {self.kind} does not use correction.{name} = {value}")
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise ValueError(f"correction.min = {self.min} must be below correction.max = {self.max}")
        if self.mask is not None and self.kind not in ("none", "tis"):
            raise ValueError(
                f"correction.kind = {self.kind} drops tokens or weighs sequences itself: with correction.mask, give "
                "kind = tis or none"
            )
        return self
