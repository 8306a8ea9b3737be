"""Defines the options for the choice of prompts and for groups without a gradient (zero-variance groups)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.config.loading import Config, RunTime


class ActiveResampling(Config):
    """Active sampling (OlmoRL): a zero-variance group is dropped, and another prompt is sampled immediately instead."""

    kind: Literal["active"] = "active"
    """Kind of resampling."""
    max_dropped_groups: RunTime[int] = Field(256, ge=1)
    """Largest number of zero-variance groups that are replaced for one batch. If there are more, the run fails, because
    its prompts give no signal. The same limit applies to groups of one batch that failed or became stale."""


class DynamicResampling(Config):
    """Dynamic sampling (DAPO, section 3.2; ProRLv2): whole rounds of prompts, until enough groups have a gradient.

    Surplus groups of a round are kept for the next batch, as long as `max_staleness` allows.
    """

    kind: Literal["dynamic"] = "dynamic"
    """Kind of resampling."""
    batch_multiplier: float = Field(1.0, ge=1)
    """Prompts of a round as a multiple of `groups_per_step`, rounded up."""
    max_rounds: RunTime[int] = Field(10, ge=1)
    """Largest number of rounds for one batch. If there are more, the run fails, because its prompts give no signal."""
    metric: Literal["reward", "score", "passed"] = "reward"
    """Quantity that must differ within a group for it to be trained on: `reward`, the score after shaping; `score`, the
    verifier's score before shaping (NeMo RL); or `passed`, whether a response is correct (DAPO, eq. 11; verl's
    `filter_groups.metric: acc`)."""


class NoResampling(Config):
    """No resampling: every group is trained on, zero-variance groups included (GRPO, Dr GRPO, ProRL v2.1)."""

    kind: Literal["none"] = "none"
    """Kind of resampling."""
    max_dropped_groups: RunTime[int] = Field(256, ge=1)
    """Largest number of groups of one batch that failed or became stale and were replaced. If there are more, the run
    fails."""


class RetirementConfig(Config):
    """Retirement of solved prompts: they are not sampled again, because their groups have no gradient."""

    pass_rate: float = Field(1.0, gt=0, le=1)
    """Share of a group's scored responses that must pass for its prompt to count as solved by this group."""
    consecutive_groups: int = Field(1, ge=1)
    """Number of successive groups of a prompt that must count as solved before the prompt retires."""
    when_all_solved: Literal["fail", "stop"] = "fail"
    """Behavior when no prompt is left: `fail` ends the run with an error, `stop` ends it early and keeps its policy."""


class RerollConfig(Config):
    """Deferred re-rolling (Axolotl): a prompt whose responses have no reward at all is tried again with a later policy.

    The rewards are the scores before shaping. A partial reward, for the format for example, counts as a reward. Prompts
    without any reward are recorded from the first step on. A prompt that its epoch samples in the meantime is removed
    from the waiting prompts.
    """

    start_fraction: float = Field(0.5, ge=0, lt=1)
    """Share of `steps` after which waiting prompts are sampled again (Axolotl's `reroll_start_fraction`)."""
    max_groups: int = Field(1, ge=1)
    """Largest number of waiting prompts that are sampled again for one batch (Axolotl's `reroll_max_groups`)."""
    max_tries: int = Field(3, ge=2)
    """Number of groups without any reward after which a prompt is not retried between epochs again."""


class CurriculumConfig(Config):
    """A curriculum that orders prompts from easy to hard, by the pass rates that the difficulty stage has measured."""

    band: float = Field(0.1, ge=0, lt=1)
    """Share of the mixture within which the position of a prompt varies at random, by the run's seed. If 0, prompts are
    ordered by pass rate, and by the epoch's shuffle if pass rates are equal."""
    epochs: int | None = Field(1, ge=1)
    """Number of epochs that are ordered from easy to hard; later ones are shuffled. If null, all epochs are ordered."""


class ReplayConfig(Config):
    """A replay buffer (Axolotl): groups from earlier steps are trained on again instead of zero-variance groups.

    The learner recomputes the log-probabilities of a replayed group with the current policy, as for any group
    (Axolotl's `replay_recompute_logps: true`). The engine's log-probabilities are from the time of sampling, and
    `objective.correction` corrects for the difference. A group is removed from the buffer when `max_staleness` would
    drop it.
    """

    size: int = Field(100, ge=1)
    """Largest number of groups in the buffer; the groups with the largest variation of scores are kept (Axolotl's
    `replay_buffer_size`). Their tokens are kept in memory and in checkpoints."""
    max_replays: int = Field(1, ge=1)
    """Number of times that a group may be trained on again."""


class PromptsConfig(Config):
    """Options that change which prompts are sampled, and when."""

    retirement: RetirementConfig | None = None
    """Retirement of prompts that the policy has solved. If null, no prompt is retired."""
    reroll: RerollConfig | None = None
    """Deferred re-rolling of prompts without a correct response. If null, they are sampled again in the next epoch."""
    curriculum: CurriculumConfig | None = None
    """Order of prompts from easy to hard. If null, prompts are in the mixture's order, and shuffled from the second
    epoch on."""


Resampling = Annotated[ActiveResampling | DynamicResampling | NoResampling, Field(discriminator="kind")]
"""One of the three kinds of resampling, distinguished by `kind`."""
