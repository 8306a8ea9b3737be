"""Defines the options of the training objective; the defaults give the OlmoRL objective.

This module does not import torch: recipes are also parsed on machines without torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from tasks.config.fields import choose_tag
from tasks.config.loading import Config
from tasks.recipe.correction import CorrectionConfig
from tasks.recipe.own import OwnAdvantage, OwnFunction, OwnSurrogate

Advantage = Literal[
    "group_mean", "group_norm", "leave_one_out", "reinforce_pp", "reinforce_pp_baseline", "maxrl", "pass_at_k"
]
Normalization = Literal["none", "group", "batch"]
Aggregation = Literal["token", "sequence", "constant"]
RewardAggregation = Literal["sum_then_normalize", "normalize_then_sum"]
Surrogate = Literal["ppo", "cispo", "gspo", "dppo"]
KLEstimator = Literal["k1", "k2", "k3"]
BinaryDivergence = Literal["tv", "kl"]

_NORMALIZATION_OF: dict[Advantage, Normalization] = {
    "group_mean": "none",
    "group_norm": "group",
    "leave_one_out": "none",
    "reinforce_pp": "batch",
    "reinforce_pp_baseline": "batch",
    "maxrl": "none",
    "pass_at_k": "none",
}


class DPPOConfig(Config):
    """The trust region of `surrogate: dppo` and its penalty, with the defaults of prime-rl's `default_loss_fn`.

    A token's divergence is that between the policy and the engine, which sampled it: with p its probability under the
    policy that is being trained and q under the engine, `tv` is `abs(p - q)`, and `kl` is
    `q log(q / p) + (1 - q) log((1 - q) / (1 - p))` (DPPO, Qi et al. 2026, arXiv:2602.04879, eq. 13 and 14).
    """

    divergence: BinaryDivergence = "tv"
    """Divergence that `low` and `high` bound: total variation or KL, each of the sampled token against all others. The
    paper uses 0.15 and 0.2 for `tv`, 0.05 for `kl`."""
    low: float = Field(default=0.2, ge=0)
    """Largest divergence of tokens that became less likely: if the advantage is negative, tokens beyond it are dropped.
    prime-rl's `dppo_mask_low`."""
    high: float = Field(default=0.2, ge=0)
    """Largest divergence of tokens that became more likely: if the advantage is positive, tokens beyond it are dropped.
    prime-rl's `dppo_mask_high`."""
    kl_weight: float = Field(default=1e-3, ge=0)
    """Weight of the penalty `log(pi / pi_rollout)^2` in the loss, on all trained tokens, dropped ones too (Kimi K2.5,
    arXiv:2602.02276). prime-rl's `kl_tau`, for an `adv_tau` of 1. With 0, there is none."""


class KLConfig(Config):
    """The penalty `beta * KL(policy || reference)`, in the loss or subtracted from the reward."""

    beta: float = Field(default=0.0, ge=0)
    """Weight of the penalty. If 0, as in OlmoRL, DAPO and Dr GRPO, no reference policy is loaded. Otherwise every
    learner rank stores a second copy of the initial checkpoint (with `learner.zero_stage` 3, its shard of it) and runs
    its forward pass on every token. With `lora` the reference is the policy without its adapter, and needs no
    memory."""
    estimator: KLEstimator = "k3"
    """Estimator of the KL per token (Schulman 2020, "Approximating KL divergence"): `k1`, unbiased, of high
    variance; `k2`, biased, never negative; `k3`, unbiased and never negative, GRPO's choice. In the loss, what counts
    is the gradient: that of `k1` is zero on average and is refused unless `importance_corrected` makes it right, that
    of `k2` is right and would become wrong by it, that of `k3` is right by it, and about right without."""
    in_reward: bool = False
    """If true, subtract the penalty from the reward instead of adding a term to the loss: `beta` times the sum of the
    response's per-token estimates under the policy before the first update. Advantages are computed from the penalised
    reward; zero-variance groups are determined without the penalty. This is verl's `use_kl_in_reward` for GRPO, Dr GRPO
    and RLOO. For REINFORCE++, verl sums from each token on, and NeMo RL subtracts each token's estimate from its
    advantage."""
    importance_corrected: bool = False
    """If true, multiply the KL estimate by `pi / pi_old`, with its gradient. This makes the gradient of `k3` unbiased
    if the old policy sampled the tokens (DeepSeek-V3.2, arXiv:2512.02556; Axolotl's `use_bias_correction_kl`)."""
    sync_every: int | None = Field(default=None, ge=1)
    """Optimizer steps between updates of the reference policy (TRL's TR-DPO; Axolotl's `sync_ref_model`). If null, it
    stays frozen."""
    sync_alpha: float | None = Field(default=None, gt=0, le=1)
    """Share of the policy in the new reference, `alpha policy + (1 - alpha) reference`; with 1, the policy replaces the
    reference."""

    @property
    def in_loss(self) -> bool:
        """True if the loss has a KL term."""
        return self.beta > 0 and not self.in_reward

    @model_validator(mode="after")
    def _check_reference(self) -> KLConfig:
        given = [
            name for name in ("sync_every", "sync_alpha", "importance_corrected", "in_reward") if getattr(self, name)
        ]
        if self.beta == 0 and given:
            raise ValueError(f"kl.{given[0]} has no effect if kl.beta is 0: there is no reference policy")
        if self.in_reward and self.importance_corrected:
            raise ValueError("kl.importance_corrected has no use with kl.in_reward, which has no gradient")
        if self.in_loss and self.estimator == "k1" and not self.importance_corrected:
            raise ValueError(
                "kl.estimator = k1 in the loss has a gradient of zero on average: set kl.importance_corrected or "
                "kl.in_reward, or take k2 or k3"
            )
        if self.importance_corrected and self.estimator == "k2":
            raise ValueError(
                "kl.importance_corrected makes the gradient of k2, which is that of the divergence, wrong: leave it "
                "out, or take k3"
            )
        if (self.sync_every is None) != (self.sync_alpha is None):
            raise ValueError("kl.sync_every and kl.sync_alpha go together: when to move the reference, and how far")
        return self


class OverlongConfig(Config):
    """DAPO's soft overlong punishment (section 3.4, eq. 13), added to the reward."""

    max_length: int = Field(gt=0)
    """Response length in tokens at which the penalty is full: DAPO's L_max."""
    cache: int = Field(gt=0)
    """Number of tokens before `max_length` over which the penalty grows linearly from 0: DAPO's L_cache."""
    weight: float = Field(default=1.0, gt=0)
    """Full penalty, subtracted from the reward; 1 in DAPO."""

    @model_validator(mode="after")
    def _check_cache(self) -> OverlongConfig:
        if self.cache > self.max_length:
            raise ValueError(f"overlong.cache = {self.cache} is more than overlong.max_length = {self.max_length}")
        return self


class ShapingConfig(Config):
    """Changes to a verifier's reward before training maximises it, and to truncated responses. By default, none."""

    signed: bool = False
    """If true, map rewards from [0, 1] to [-1, 1] by `2 r - 1` (DAPO, eq. 7)."""
    stop_properly: float | None = Field(default=None, ge=0, le=1)
    """Factor on the reward of a truncated response, from 0 (no reward; ProRLv2's "stop properly" penalty) to 1. If
    null, it is off."""
    overlong: OverlongConfig | None = None
    """Penalty on long responses that grows with the length (DAPO's soft overlong punishment). If null, it is off."""
    filter_truncated: bool = False
    """If true, remove truncated responses from the loss, but keep them in their group (DAPO's overlong filtering)."""

    @property
    def changes_rewards(self) -> bool:
        """True if an option changes rewards; `filter_truncated` does not."""
        return self.signed or self.stop_properly is not None or self.overlong is not None

    @model_validator(mode="after")
    def _check_consistency(self) -> ShapingConfig:
        if self.stop_properly is None:
            return self
        conflicts = (
            ("overlong", self.overlong is not None, "both penalise the same responses; choose one"),
            ("signed", self.signed, "a truncated response's -1 would rise; take overlong to penalise length"),
            ("filter_truncated", self.filter_truncated, "what is penalised would not be in the loss; choose one"),
        )
        for name, given, why in conflicts:
            if given:
                raise ValueError(f"shaping.stop_properly = {self.stop_properly} and shaping.{name}: {why}")
        return self


class ObjectiveConfig(Config):
    """The objective of one training run: advantages, loss, correction and penalties."""

    advantage: Annotated[
        Annotated[Advantage, Tag("[name]")] | Annotated[OwnAdvantage, Tag("[mapping]")],
        Discriminator(choose_tag),
    ] = "group_mean"
    """Estimator that computes advantages from the rewards of a group: `group_mean` (OlmoRL, Dr GRPO), `group_norm`
    (GRPO, DAPO), `leave_one_out` (RLOO), `reinforce_pp` (REINFORCE++), `reinforce_pp_baseline` (ProRLv2), `maxrl`
    (MaxRL, arXiv:2602.02710: `(r - mean) / mean`, which weighs prompts with few successes more) or `pass_at_k` (PKPO,
    arXiv:2505.15201: what a sample adds to the best of k). `maxrl` requires rewards that are not negative. Or a
    function of your own, as `{function: my_objective.advantage}` (`docs/extending.md`): it gets the rewards after
    `shaping` and `kl.in_reward`, and nothing changes what it returns, so that it takes no `normalization`."""
    pass_at_k: int | None = Field(default=None, ge=2)
    """Number k of samples whose best reward `advantage: pass_at_k` maximises; rejected by the other estimators. For
    k = 1 use `leave_one_out`. In a group with fewer samples, k is their number; a single sample has an advantage of 0.
    """
    normalization: Normalization | None = None
    """Normalisation of the advantages instead of the estimator's default: `none`; `group`, the standard deviation of
    the group's rewards, or of the other rewards for `leave_one_out`; `batch`, mean and deviation over all tokens of the
    batch, as in REINFORCE++. `leave_one_out` with `group` is NeMo RL's `use_leave_one_out_baseline` and
    `normalize_rewards`. If null, the estimator's default: `group` for `group_norm`, `batch` for both REINFORCE++
    estimators, else `none`."""
    reward_aggregation: RewardAggregation = "sum_then_normalize"
    """Method of combining several rewards of one prompt: `sum_then_normalize` computes advantages from their weighted
    sum; `normalize_then_sum` (GDPO, Liu et al. 2026) first normalises each by its deviation within the group, and
    requires `advantage: group_norm`."""
    shaping: ShapingConfig = Field(default_factory=ShapingConfig)
    """Changes to the rewards, before advantages are computed."""
    aggregation: Aggregation = "token"
    """Divisor of a token's loss term: `token`, the number of tokens in the global batch (DAPO, OlmoRL); `sequence`, the
    number of tokens in its sequence times the number of sequences in the global batch (GRPO); `constant`,
    `constant_length` times the number of sequences in the global batch (Dr GRPO)."""
    constant_length: int | None = Field(default=None, gt=0)
    """Divisor per sequence of `aggregation: constant`, tokens; rejected by the other aggregations."""
    surrogate: Annotated[
        Annotated[Surrogate, Tag("[name]")] | Annotated[OwnSurrogate, Tag("[mapping]")],
        Discriminator(choose_tag),
    ] = "ppo"
    """Surrogate objective: `ppo`, the clipped ratio of each token; `cispo`, clipped weights on the plain policy
    gradient (MiniMax-M1, arXiv:2506.13585, eq. 4); `gspo`, the clipped ratio of the whole sequence (Zheng et al. 2025,
    arXiv:2507.18071), which requires `aggregation: sequence`; `dppo`, the ratio `pi / pi_rollout` without tokens whose
    probability has changed too much (arXiv:2602.04879), which requires `correction: {kind: none}`. Or a loss of your
    own, as `{function: my_objective.loss}` (`docs/extending.md`): `clip_low`, `clip_high` and `dual_clip` then stay at
    their defaults and have no effect, and metrics of clipping are not recorded."""
    dppo: DPPOConfig = Field(default_factory=DPPOConfig)
    """Trust region and penalty of `surrogate: dppo`; rejected by the other surrogates. `clip_low`, `clip_high` and
    `dual_clip` have no use with it."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """Distance below 1 at which the importance ratio is clipped: if the advantage is negative, a ratio below
    `1 - clip_low` has no gradient."""
    clip_high: float = Field(default=0.28, ge=0)
    """Distance above 1 at which the importance ratio is clipped: if the advantage is positive, a ratio above
    `1 + clip_high` has no gradient. The default is DAPO's (section 4.1)."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound c of dual-clip PPO (Ye et al. 2020, arXiv:1912.09729, eq. 5): if the advantage A is negative, a token's
    term is at least `c A`. If null, it is unbounded."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the objective, which is aggregated like the surrogate; 0 in all sources."""
    correction: CorrectionConfig = Field(default_factory=CorrectionConfig)
    """Correction for the difference between the engine's and the learner's probabilities."""
    kl: KLConfig = Field(default_factory=KLConfig)
    """Penalty on the divergence from a reference policy."""
    force_on_policy_ratio: bool = False
    """If true, use the policy's detached log-probabilities as the old ones in the importance ratio, which is then 1 and
    never clipped (NeMo RL, ProRL v2.1). It needs one update per batch. Here the old log-probabilities of a batch's only
    update are the policy's own in any case, so that it changes nothing but, with `kl.in_reward`, rounding."""

    @model_validator(mode="after")
    def _check_length(self) -> ObjectiveConfig:
        if self.aggregation == "constant" and self.constant_length is None:
            raise ValueError("aggregation = constant needs constant_length")
        if self.aggregation != "constant" and self.constant_length is not None:
            raise ValueError(f"aggregation = {self.aggregation} does not use constant_length = {self.constant_length}")
        return self

    @model_validator(mode="after")
    def _check_surrogate(self) -> ObjectiveConfig:
        if self.surrogate == "gspo" and self.aggregation != "sequence":
            raise ValueError(
                f"surrogate = gspo is a ratio of sequences: it needs aggregation = sequence, not {self.aggregation}"
            )
        if self.surrogate == "cispo" and self.dual_clip is not None:
            raise ValueError(f"surrogate = cispo does not use dual_clip = {self.dual_clip}: its weights are bounded")
        if self.surrogate != "dppo" and self.dppo != DPPOConfig():
            raise ValueError(
                f"surrogate = {_format_name(self.surrogate)} does not use dppo: give surrogate = dppo, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_dppo_bounds(self) -> ObjectiveConfig:
        if self.surrogate != "dppo":
            return self
        if self.correction.kind != "none":
            raise ValueError(
                "surrogate = dppo compares the policy with the engine in its ratio: it needs correction.kind = none, "
                f"not {self.correction.kind}"
            )
        for name in ("clip_low", "clip_high", "dual_clip", "force_on_policy_ratio"):
            value, default = getattr(self, name), type(self).model_fields[name].default
            if value != default:
                raise ValueError(
                    f"surrogate = dppo does not use {name} = {value}: leave it at {default}; its bounds are dppo.low "
                    "and dppo.high"
                )
        return self

    @model_validator(mode="after")
    def _check_advantage_options(self) -> ObjectiveConfig:
        if self.advantage == "pass_at_k" and self.pass_at_k is None:
            raise ValueError("advantage = pass_at_k needs pass_at_k, the number of samples")
        if self.advantage != "pass_at_k" and self.pass_at_k is not None:
            raise ValueError(f"advantage = {_format_name(self.advantage)} does not use pass_at_k = {self.pass_at_k}")
        if self.advantage in ("maxrl", "pass_at_k") and self.normalized_by != "none":
            raise ValueError(f"advantage = {self.advantage} does not use normalization = {self.normalization}")
        shaping = self.shaping
        if self.advantage == "maxrl" and (shaping.signed or shaping.overlong is not None or self.kl.in_reward):
            raise ValueError(
                "advantage = maxrl divides by the mean reward, which must not be negative: leave out shaping.signed, "
                "shaping.overlong and kl.in_reward"
            )
        return self

    @model_validator(mode="after")
    def _check_own_functions(self) -> ObjectiveConfig:
        if isinstance(self.surrogate, OwnSurrogate):
            for name in ("clip_low", "clip_high", "dual_clip", "force_on_policy_ratio"):
                value, default = getattr(self, name), type(self).model_fields[name].default
                if value != default:
                    raise ValueError(
                        f"surrogate.function = {self.surrogate.function} does not use {name} = {value}: leave it out, "
                        f"or set {name}: {json.dumps(default)} if the file that this one extends sets it, and give the "
                        "function what it needs in surrogate.options"
                    )
        if isinstance(self.advantage, OwnAdvantage) and self.normalization is not None:
            raise ValueError(
                f"advantage.function = {self.advantage.function} returns advantages that nothing changes any more: "
                f"leave out normalization = {self.normalization}, or set normalization: null if the file that this one "
                "extends sets it"
            )
        return self

    @model_validator(mode="after")
    def _check_rewards(self) -> ObjectiveConfig:
        if self.advantage == "reinforce_pp" and self.normalization == "group":
            raise ValueError(
                "normalization = group divides by the deviation of a group, whose mean advantage = reinforce_pp does "
                "not subtract: give advantage = group_norm, or normalization = batch"
            )
        if self.reward_aggregation == "normalize_then_sum" and self.normalization not in (None, "group"):
            raise ValueError(
                "reward_aggregation = normalize_then_sum normalises by the group's deviation: it does not use "
                f"normalization = {self.normalization}"
            )
        if self.reward_aggregation == "normalize_then_sum" and self.advantage != "group_norm":
            raise ValueError(
                "reward_aggregation = normalize_then_sum normalises by the group's deviation: it needs advantage = "
                f"group_norm, not {_format_name(self.advantage)}"
            )
        if self.reward_aggregation == "normalize_then_sum" and (self.shaping.changes_rewards or self.kl.in_reward):
            raise ValueError(
                "reward_aggregation = normalize_then_sum never forms the sum that shaping (signed, stop_properly, "
                "overlong) and kl.in_reward change: give one of them"
            )
        return self

    @property
    def corrects_engine(self) -> bool:
        """True if the loss takes into account that the engine's probabilities are not the learner's."""
        return self.correction.kind != "none" or self.surrogate == "dppo"

    @property
    def trains_without_advantage(self) -> bool:
        """True if the loss has a penalty or a bonus on every token, also if the token's advantage is 0."""
        penalty = self.kl.in_loss or (self.surrogate == "dppo" and self.dppo.kl_weight > 0)
        return penalty or self.entropy_coefficient > 0

    @property
    def normalized_by(self) -> Normalization:
        """The normalisation of the advantages: `normalization`, or the estimator's default if it is None."""
        default = "none" if isinstance(self.advantage, OwnAdvantage) else _NORMALIZATION_OF[self.advantage]
        return self.normalization or default

    @property
    def own_functions(self) -> dict[str, OwnFunction]:
        """The user's functions, by the option that names them."""
        options = {"surrogate": self.surrogate, "advantage": self.advantage}
        return {name: option for name, option in options.items() if isinstance(option, OwnFunction)}

    @property
    def keeps_equal_rewards(self) -> bool:
        """True if groups of equal rewards count as groups with a gradient (`advantage.keep_equal_rewards`)."""
        return isinstance(self.advantage, OwnAdvantage) and self.advantage.keep_equal_rewards

    def denominator(self, num_tokens: Iterable[int]) -> float:
        """Return the divisor of the loss of a global batch, for `LossInputs.denominator`.

        Args:
            num_tokens: number of trained tokens of every sequence of the global batch, over all micro-batches and
                ranks. For an episode with a restarted conversation, the sum over all its sequences. A sequence without
                trained tokens is not in the loss and is not counted.

        Returns:
            Number of tokens for `token`, of sequences for `sequence`, of sequences times `constant_length` for
            `constant`.
        """
        trained = [n for n in num_tokens if n > 0]
        if self.aggregation == "token":
            return float(sum(trained))
        return float(len(trained) * (self.constant_length or 1))


def _format_name(option: str | OwnFunction) -> str:
    return option if isinstance(option, str) else option.function
