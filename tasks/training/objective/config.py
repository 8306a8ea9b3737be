"""Options of the training objective; the defaults give the OlmoRL objective.

This module imports no torch: recipes are parsed where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field, model_validator

from tasks.config import Config

Advantage = Literal["group_mean", "group_norm", "leave_one_out", "reinforce_pp", "reinforce_pp_baseline"]
Normalization = Literal["none", "group", "batch"]
Aggregation = Literal["token", "sequence", "constant"]
RewardAggregation = Literal["sum_then_normalize", "normalize_then_sum"]
Surrogate = Literal["ppo", "cispo", "gspo"]
CorrectionKind = Literal["none", "tis", "icepop", "seq_mask_tis", "sequence_truncate", "sequence_mask"]
KLEstimator = Literal["k1", "k2", "k3"]

PER_SEQUENCE = ("seq_mask_tis", "sequence_truncate", "sequence_mask")
"""Kinds of correction whose bounds are on a whole sequence."""

_NORMALIZATION_OF: dict[Advantage, Normalization] = {
    "group_mean": "none",
    "group_norm": "group",
    "leave_one_out": "none",
    "reinforce_pp": "batch",
    "reinforce_pp_baseline": "batch",
}

_BOUNDS: dict[CorrectionKind, tuple[str, ...]] = {
    "none": (),
    "tis": ("max",),
    "icepop": ("min", "max"),
    "seq_mask_tis": ("min", "max"),
    "sequence_truncate": ("max",),
    "sequence_mask": ("max",),
}

TIS_MAX = 2.0
"""Default upper bound rho of truncated importance sampling (Yao et al. 2025)."""


class CorrectionConfig(Config):
    """The correction for the difference between the inference engine's probabilities and the learner's.

    With `w = pi_old / pi_rollout`, the probability of a token under the learner over that under the engine:

    - `none`: every token counts 1;
    - `tis`: `min(w, max)`, truncated importance sampling (Yao et al. 2025; the OlmoRL formula's rho is `max`);
    - `icepop`: `w` where `min <= w <= max`, else 0 (IcePop, token-level mask);
    - `seq_mask_tis`: `w` for sequences whose geometric-mean `w` lies in `[min, max]`, else 0 (NeMo RL, ProRL v2.1);
    - `sequence_truncate`: `min(W, max)` on all tokens of a sequence, W the product of its `w` (TRL's
      `vllm_importance_sampling_mode`, whose `token_truncate` is `tis` and `token_mask` is `icepop` with `min: 0`;
      Axolotl's modes of these names have a lower bound too, `1 / max`);
    - `sequence_mask`: `W` where `W <= max`, else 0 (likewise).
    """

    kind: CorrectionKind = "tis"
    """Kind of correction: `none`; per token `tis` (truncated importance sampling) or `icepop` (mask); per sequence
    `seq_mask_tis`, `sequence_truncate` or `sequence_mask`."""
    min: float | None = Field(default=None, ge=0)
    """Lower bound of the importance weight; needed by `icepop` and `seq_mask_tis`, rejected by the other kinds."""
    max: float | None = Field(default=None, gt=0)
    """Upper bound of the importance weight; 2.0 for `tis` unless given, rejected by `none`, needed by the other kinds.
    """
    off_policy_threshold: float | None = Field(default=None, gt=0)
    """Largest mean of `rollout_logprobs - logprobs` over a sequence of negative advantage, nats; one with a larger mean
    leaves the loss (off-policy sequence masking, DeepSeek-V3.2, arXiv:2512.02556; Axolotl's
    `off_policy_mask_threshold`, for which it names 0.5 as a start). None: no sequence leaves it."""

    @model_validator(mode="before")
    @classmethod
    def _default_max(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("kind", "tis") == "tis" and "max" not in data:
            return {**data, "max": TIS_MAX}
        return data

    @model_validator(mode="after")
    def _bounds_match_kind(self) -> CorrectionConfig:
        takes = _BOUNDS[self.kind]
        for name in ("min", "max"):
            value = getattr(self, name)
            if name in takes and value is None:
                raise ValueError(f"correction.kind = {self.kind} needs correction.{name}")
            if name not in takes and value is not None:
                raise ValueError(f"correction.kind = {self.kind} has no use for correction.{name} = {value}")
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise ValueError(f"correction.min = {self.min} must be below correction.max = {self.max}")
        return self


class KLConfig(Config):
    """The penalty `beta * KL(policy || reference)`, taken in the loss or from the reward."""

    beta: float = Field(default=0.0, ge=0)
    """Weight of the penalty; 0, as in OlmoRL, DAPO and Dr GRPO, needs no reference policy at all. Above 0 every learner
    rank holds the initial checkpoint once more, whole or (with `learner.zero_stage` 3) its part of it, and runs it
    forward on every token; with `lora` it is the policy without its adapter, at no memory."""
    estimator: KLEstimator = "k3"
    """Estimator of the KL per token (Schulman 2020, "Approximating KL divergence"): `k1`, unbiased, of high
    variance; `k2`, biased, never negative; `k3`, unbiased and never negative, GRPO's choice."""
    in_reward: bool = False
    """Subtract the penalty from the reward in place of a term of the loss: `beta` times the sum of the response's
    per-token estimates under the policy before the first update. Advantages are computed from the difference;
    zero-variance groups are determined without it. It is verl's `use_kl_in_reward` for GRPO, Dr GRPO and RLOO; for
    REINFORCE++ verl sums from each token on, and NeMo RL subtracts each token's estimate from its advantage."""
    importance_corrected: bool = False
    """Multiply the KL estimate by `pi / pi_old`, gradient included, which makes the gradient of `k3` unbiased where the
    tokens are the old policy's (DeepSeek-V3.2, arXiv:2512.02556; Axolotl's `use_bias_correction_kl`)."""
    sync_every: int | None = Field(default=None, ge=1)
    """Optimizer steps between updates of the reference policy (TRL's TR-DPO; Axolotl's `sync_ref_model`). None: it
    stays frozen."""
    sync_alpha: float | None = Field(default=None, gt=0, le=1)
    """Share of the policy in the new reference, `alpha policy + (1 - alpha) reference`; 1 replaces it."""

    @property
    def in_loss(self) -> bool:
        """True if the loss has a KL term."""
        return self.beta > 0 and not self.in_reward

    @model_validator(mode="after")
    def _needs_a_reference(self) -> KLConfig:
        given = [
            name for name in ("sync_every", "sync_alpha", "importance_corrected", "in_reward") if getattr(self, name)
        ]
        if self.beta == 0 and given:
            raise ValueError(f"kl.{given[0]} has no use where kl.beta is 0: there is no reference policy")
        if self.in_reward and self.importance_corrected:
            raise ValueError("kl.importance_corrected has no use with kl.in_reward, which has no gradient")
        if (self.sync_every is None) != (self.sync_alpha is None):
            raise ValueError("kl.sync_every and kl.sync_alpha go together: when to move the reference, and how far")
        return self


class OverlongConfig(Config):
    """DAPO's soft overlong punishment (section 3.4, eq. 13), added to the reward."""

    max_length: int = Field(gt=0)
    """Response length from which on the penalty is full, tokens: DAPO's L_max."""
    cache: int = Field(gt=0)
    """Tokens before `max_length` over which the penalty grows linearly from 0: DAPO's L_cache."""
    weight: float = Field(default=1.0, gt=0)
    """Full penalty, which is subtracted from the reward; DAPO's is 1."""

    @model_validator(mode="after")
    def _cache_fits(self) -> OverlongConfig:
        if self.cache > self.max_length:
            raise ValueError(f"overlong.cache = {self.cache} is more than overlong.max_length = {self.max_length}")
        return self


class ShapingConfig(Config):
    """Changes to a verifier's reward before training maximises it, and to truncated responses; by default none."""

    signed: bool = False
    """Map rewards from [0, 1] to [-1, 1] by `2 r - 1` (DAPO, eq. 7)."""
    stop_properly: float | None = Field(default=None, ge=0, le=1)
    """Factor on the reward of a truncated response, from 0 (no reward; ProRLv2's "stop properly" penalty) to 1. None:
    off."""
    overlong: OverlongConfig | None = None
    """Penalty on long responses that grows with the length (DAPO's soft overlong punishment). None: off."""
    filter_truncated: bool = False
    """Take truncated responses out of the loss, but leave them in their group (DAPO's overlong filtering)."""

    @property
    def changes_rewards(self) -> bool:
        """True if an option changes rewards; `filter_truncated` does not."""
        return self.signed or self.stop_properly is not None or self.overlong is not None

    @model_validator(mode="after")
    def _consistent(self) -> ShapingConfig:
        if self.stop_properly is None:
            return self
        conflicts = (
            ("overlong", self.overlong is not None, "both penalise the same responses; take one"),
            ("signed", self.signed, "a truncated response's -1 would rise; take overlong to penalise length"),
            ("filter_truncated", self.filter_truncated, "what is penalised would not be in the loss; take one"),
        )
        for name, given, why in conflicts:
            if given:
                raise ValueError(f"shaping.stop_properly = {self.stop_properly} and shaping.{name}: {why}")
        return self


class ObjectiveConfig(Config):
    """The objective of one training run: advantages, loss, correction and penalties."""

    advantage: Advantage = "group_mean"
    """Computation of advantages from the rewards of a group: `group_mean` (OlmoRL, Dr GRPO), `group_norm` (GRPO, DAPO),
    `leave_one_out` (RLOO), `reinforce_pp` (REINFORCE++) or `reinforce_pp_baseline` (ProRLv2)."""
    normalization: Normalization | None = None
    """Divisor of the advantages in place of the estimator's own: `none`; `group`, the standard deviation of the group's
    rewards, for `leave_one_out` that of the other rewards; `batch`, mean and deviation over all tokens of the batch, as
    REINFORCE++ has it. `leave_one_out` with `group` is NeMo RL's `use_leave_one_out_baseline` and `normalize_rewards`.
    None: that of the estimator: `group` for `group_norm`, `batch` for both of REINFORCE++'s, else `none`."""
    reward_aggregation: RewardAggregation = "sum_then_normalize"
    """Use of several rewards of one prompt: `sum_then_normalize` computes advantages from their weighted sum;
    `normalize_then_sum` (GDPO, Liu et al. 2026) normalises each by its deviation within the group first, and so needs
    `advantage: group_norm`."""
    shaping: ShapingConfig = Field(default_factory=ShapingConfig)
    """Changes to the rewards, before advantages are computed."""
    aggregation: Aggregation = "token"
    """Divisor of a token's term: `token`, the tokens of the global batch (DAPO, OlmoRL); `sequence`, its sequence's
    tokens times the sequences of the global batch (GRPO); `constant`, `constant_length` times the sequences of the
    global batch (Dr GRPO)."""
    constant_length: int | None = Field(default=None, gt=0)
    """Divisor per sequence of `aggregation: constant`, tokens; rejected by the other aggregations."""
    surrogate: Surrogate = "ppo"
    """Surrogate objective: `ppo`, the clipped ratio of each token; `cispo`, clipped weights on the plain policy
    gradient (MiniMax-M1, arXiv:2506.13585, eq. 4); `gspo`, the clipped ratio of the whole sequence (Zheng et al. 2025,
    arXiv:2507.18071), which needs `aggregation: sequence`."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """Distance below 1 at which the importance ratio is clipped: where the advantage is negative, a ratio below
    `1 - clip_low` has no gradient."""
    clip_high: float = Field(default=0.28, ge=0)
    """Distance above 1 at which the importance ratio is clipped: where the advantage is positive, a ratio above
    `1 + clip_high` has no gradient. The default is DAPO's (section 4.1)."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound c of dual-clip PPO (Ye et al. 2020, arXiv:1912.09729, eq. 5): where the advantage A is negative, a token's
    term is at least `c A`. None: unbounded."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the objective, which is aggregated as the surrogate is; 0 in every source."""
    correction: CorrectionConfig = Field(default_factory=CorrectionConfig)
    """Correction for the difference between the engine's and the learner's probabilities."""
    kl: KLConfig = Field(default_factory=KLConfig)
    """Penalty on the divergence from a reference policy."""
    force_on_policy_ratio: bool = False
    """Take the policy's own detached log-probabilities as the old ones in the importance ratio, which is then 1 and
    never clipped (NeMo RL, ProRL v2.1). Only right for one update per rollout."""

    @model_validator(mode="after")
    def _length_matches_aggregation(self) -> ObjectiveConfig:
        if self.aggregation == "constant" and self.constant_length is None:
            raise ValueError("aggregation = constant needs constant_length")
        if self.aggregation != "constant" and self.constant_length is not None:
            raise ValueError(
                f"aggregation = {self.aggregation} has no use for constant_length = {self.constant_length}"
            )
        return self

    @model_validator(mode="after")
    def _surrogate_matches(self) -> ObjectiveConfig:
        if self.surrogate == "gspo" and self.aggregation != "sequence":
            raise ValueError(
                f"surrogate = gspo is a ratio of sequences: it needs aggregation = sequence, not {self.aggregation}"
            )
        if self.surrogate == "cispo" and self.dual_clip is not None:
            raise ValueError(f"surrogate = cispo has no use for dual_clip = {self.dual_clip}: its weights are bounded")
        return self

    @model_validator(mode="after")
    def _rewards_match_advantage(self) -> ObjectiveConfig:
        if self.advantage == "reinforce_pp" and self.normalization == "group":
            raise ValueError(
                "normalization = group divides by the deviation of a group, whose mean advantage = reinforce_pp does "
                "not subtract: give advantage = group_norm, or normalization = batch"
            )
        if self.reward_aggregation == "normalize_then_sum" and self.normalization not in (None, "group"):
            raise ValueError(
                "reward_aggregation = normalize_then_sum normalises by the group's deviation: it has no use for "
                f"normalization = {self.normalization}"
            )
        if self.reward_aggregation == "normalize_then_sum" and self.advantage != "group_norm":
            raise ValueError(
                "reward_aggregation = normalize_then_sum normalises by the group's deviation: it needs advantage = "
                f"group_norm, not {self.advantage}"
            )
        if self.reward_aggregation == "normalize_then_sum" and (self.shaping.changes_rewards or self.kl.in_reward):
            raise ValueError(
                "reward_aggregation = normalize_then_sum never forms the sum that shaping (signed, stop_properly, "
                "overlong) and kl.in_reward change: give one of them"
            )
        return self

    @property
    def normalized_by(self) -> Normalization:
        """The divisor of the advantages: `normalization`, or that of the estimator where it is None."""
        return self.normalization or _NORMALIZATION_OF[self.advantage]

    def denominator(self, num_tokens: Iterable[int]) -> float:
        """Return the divisor of the loss of a global batch, for `LossInputs.denominator`.

        Args:
            num_tokens: trained tokens of every sequence of the global batch, over all micro-batches and ranks; of an
                episode begun anew, those of all its pieces together. A sequence without any has left the loss and is
                not counted.

        Returns:
            Tokens for `token`, sequences for `sequence`, sequences times `constant_length` for `constant`.
        """
        trained = [n for n in num_tokens if n > 0]
        if self.aggregation == "token":
            return float(sum(trained))
        return float(len(trained) * (self.constant_length or 1))
