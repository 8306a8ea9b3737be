"""What the objective may be asked to do, with defaults that give the OlmoRL objective.

This module imports no torch: recipes are parsed where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, model_validator

from tasks.config import Config

Advantage = Literal["group_mean", "group_norm", "leave_one_out", "reinforce_pp", "reinforce_pp_baseline"]
Aggregation = Literal["token", "sequence", "constant"]
RewardAggregation = Literal["sum_then_normalize", "normalize_then_sum"]
Surrogate = Literal["ppo", "cispo", "gspo"]
CorrectionKind = Literal["none", "tis", "icepop", "seq_mask_tis", "sequence_truncate", "sequence_mask"]
KLEstimator = Literal["k1", "k2", "k3"]

PER_SEQUENCE = ("seq_mask_tis", "sequence_truncate", "sequence_mask")
"""Corrections whose bounds are on a whole sequence."""

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
    """How the difference between the inference engine and the learner is corrected.

    With `w = pi_old / pi_rollout`, the probability of a token under the learner over that under the engine:

    - `none`: every token counts 1;
    - `tis`: `min(w, max)`, truncated importance sampling (Yao et al. 2025; the OlmoRL formula's rho is `max`);
    - `icepop`: `w` where `min <= w <= max`, else 0 (IcePop, token-level mask);
    - `seq_mask_tis`: `w` for sequences whose geometric-mean `w` lies in `[min, max]`, else 0 (NeMo RL, ProRL v2.1);
    - `sequence_truncate`: `min(W, max)` on all tokens of a sequence, W the product of its `w` (TRL and Axolotl's
      `vllm_importance_sampling_mode`, whose `token_truncate` is `tis` and `token_mask` is `icepop` with `min: 0`);
    - `sequence_mask`: `W` where `W <= max`, else 0 (likewise).
    """

    kind: CorrectionKind = "tis"
    """One of the above."""
    min: float | None = Field(default=None, ge=0)
    """Lower bound; needed by `icepop` and `seq_mask_tis`, rejected by the others."""
    max: float | None = Field(default=None, gt=0)
    """Upper bound; 2.0 for `tis` unless given, rejected by `none`, needed by the others."""
    off_policy_threshold: float | None = Field(default=None, gt=0)
    """Nats; a sequence of negative advantage over whose tokens `rollout_logprobs - logprobs` has a larger mean leaves
    the loss (off-policy sequence masking, DeepSeek-V3.2, arXiv:2512.02556; Axolotl's `off_policy_mask_threshold`, for
    which it names 0.5 as a start). None: no sequence does."""

    @model_validator(mode="before")
    @classmethod
    def _default_max(cls, data: Any) -> Any:
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
    """The penalty `beta * KL(policy || reference)`, in the loss or in the reward."""

    beta: float = Field(default=0.0, ge=0)
    """Weight of the penalty; 0, as in OlmoRL, DAPO and Dr GRPO, needs no reference policy at all. Above 0 every learner
    rank holds the initial checkpoint once more, whole, and runs it forward on every token."""
    estimator: KLEstimator = "k3"
    """Schulman's per-token estimators, see `tasks.training.objective.kl`."""
    in_reward: bool = False
    """Take `beta` times the response's KL, the sum of its tokens' estimates under the policy before the first update,
    from its reward, in place of a term of the loss (NeMo RL's `use_kl_in_reward`). Advantages are made of what is left;
    which groups are trained on is decided without it."""
    importance_corrected: bool = False
    """Multiply the estimate by `pi / pi_old`, gradient included, which makes the gradient of `k3` unbiased where the
    tokens are the old policy's (DeepSeek-V3.2, arXiv:2512.02556; Axolotl's `use_bias_correction_kl`)."""
    sync_every: int | None = Field(default=None, ge=1)
    """Optimizer steps between updates of the reference policy (TRL's TR-DPO; Axolotl's `sync_ref_model`). None: it
    stays frozen."""
    sync_alpha: float | None = Field(default=None, gt=0, le=1)
    """Share of the policy in the new reference, `alpha policy + (1 - alpha) reference`; 1 replaces it."""

    @property
    def in_loss(self) -> bool:
        """Whether the loss has a term of it."""
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
    """L_max, tokens; the full penalty from here on."""
    cache: int = Field(gt=0)
    """L_cache, tokens before `max_length` over which the penalty grows linearly."""
    weight: float = Field(default=1.0, gt=0)
    """The full penalty."""

    @model_validator(mode="after")
    def _cache_fits(self) -> OverlongConfig:
        if self.cache > self.max_length:
            raise ValueError(f"overlong.cache = {self.cache} is more than overlong.max_length = {self.max_length}")
        return self


class ShapingConfig(Config):
    """What becomes of a verifier's reward, see `tasks.training.objective.shaping`. By default nothing."""

    signed: bool = False
    """Rewards from -1 to 1 in place of 0 to 1 (DAPO)."""
    stop_properly: float | None = Field(default=None, ge=0, le=1)
    """Factor on the reward of a truncated response, from 0 (no reward; ProRLv2) to 1. None: off."""
    overlong: OverlongConfig | None = None
    """Penalty that grows with the length. None: off."""
    filter_truncated: bool = False
    """Truncated responses leave the loss, and stay in their group (DAPO's overlong filtering)."""

    @property
    def changes_rewards(self) -> bool:
        """Whether a reward may come out as another."""
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
    """The objective of one training run."""

    advantage: Advantage = "group_mean"
    """How rewards become advantages, see `compute_advantages`."""
    reward_aggregation: RewardAggregation = "sum_then_normalize"
    """Where a prompt has several rewards, `sum_then_normalize` makes advantages of their weighted sum;
    `normalize_then_sum` (GDPO) normalises each within its group first, see `normalize_then_sum`. The latter is a
    normalisation by the group's deviation, and so needs `advantage: group_norm`."""
    shaping: ShapingConfig = Field(default_factory=ShapingConfig)
    """Of the rewards, before anything else."""
    aggregation: Aggregation = "token"
    """What a token's term is divided by: `token`, the tokens of the global batch (DAPO, OlmoRL); `sequence`, its
    sequence's tokens times the sequences of the global batch (GRPO); `constant`, `constant_length` times the sequences
    of the global batch (Dr GRPO)."""
    constant_length: int | None = Field(default=None, gt=0)
    """Tokens, the divisor of `constant`; rejected by the other aggregations."""
    surrogate: Surrogate = "ppo"
    """`ppo`, the clipped ratio of each token; `cispo`, clipped weights on the plain policy gradient; `gspo`, the
    clipped ratio of the whole sequence, which goes with `aggregation: sequence` alone; see
    `tasks.training.objective.surrogate`."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The importance ratio's gradient stops below `1 - clip_low` where the advantage is negative."""
    clip_high: float = Field(default=0.28, ge=0)
    """The same above `1 + clip_high` where it is positive. The default is DAPO's (section 4.1)."""
    dual_clip: float | None = Field(default=None, gt=1)
    """C above 1: where the advantage is negative, the term is no less than c times it. None: unbounded."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the mean entropy that is added to what is maximised; 0 in every source."""
    correction: CorrectionConfig = Field(default_factory=CorrectionConfig)
    """Engine-learner correction."""
    kl: KLConfig = Field(default_factory=KLConfig)
    """Penalty towards a reference policy."""
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

    def denominator(self, num_tokens: Iterable[int]) -> float:
        """What the loss of a global batch is divided by, for `LossInputs.denominator`.

        Args:
            num_tokens: trained tokens of every sequence of the global batch, over all micro-batches and ranks. A
                sequence without any has left the loss and is not counted.

        Returns:
            Tokens for `token`, sequences for `sequence`, sequences times `constant_length` for `constant`.
        """
        trained = [n for n in num_tokens if n > 0]
        if self.aggregation == "token":
            return float(sum(trained))
        return float(len(trained) * (self.constant_length or 1))
