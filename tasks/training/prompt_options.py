"""Options for the choice of prompts, and for groups that carry no gradient (zero-variance groups)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, RunTime


class ActiveResampling(Config):
    """Active sampling (OlmoRL): a zero-variance group is dropped, and another prompt is sampled at once instead."""

    kind: Literal["active"] = "active"
    """Name of this kind of resampling."""
    max_dropped_groups: RunTime[int] = Field(256, ge=1)
    """Largest number of zero-variance groups that are replaced for one batch before the run fails, because its prompts
    give no signal. The same number limits the groups of one batch that failed or grew stale."""


class DynamicResampling(Config):
    """Dynamic sampling (DAPO, section 3.2; ProRLv2): whole rounds of prompts, until enough groups carry a gradient.

    The groups of a round that exceed the batch wait for the next one, as long as `max_staleness` allows.
    """

    kind: Literal["dynamic"] = "dynamic"
    """Name of this kind of resampling."""
    batch_multiplier: float = Field(1.0, ge=1)
    """Prompts of a round as a multiple of `groups_per_step`, rounded up."""
    max_rounds: RunTime[int] = Field(10, ge=1)
    """Largest number of rounds for one batch before the run fails, because its prompts give no signal."""
    metric: Literal["reward", "score", "passed"] = "reward"
    """Quantity that must differ within a group that is trained on: `reward`, the score after shaping; `score`, the
    verifier's before it (NeMo RL); or `passed`, whether a response is right (DAPO, eq. 11; verl's
    `filter_groups.metric: acc`)."""


class NoResampling(Config):
    """No resampling: every group is trained on, zero-variance groups included (GRPO, Dr GRPO, ProRL v2.1)."""

    kind: Literal["none"] = "none"
    """Name of this kind of resampling."""
    max_dropped_groups: RunTime[int] = Field(256, ge=1)
    """Largest number of groups of one batch that failed or grew stale, and were replaced, before the run fails."""


class RetirementConfig(Config):
    """Retirement of solved prompts: they are sampled no more, because their groups carry no gradient."""

    pass_rate: float = Field(1.0, gt=0, le=1)
    """Share of a group's judged responses that must pass for its prompt to count as solved by this group."""
    consecutive_groups: int = Field(1, ge=1)
    """Number of successive groups of a prompt that must count as solved before the prompt retires."""
    when_all_solved: Literal["fail", "stop"] = "fail"
    """Outcome of a run that has no prompt left: `fail` ends it with an error, `stop` ends it early with its policy."""


class RerollConfig(Config):
    """Deferred re-rolling (Axolotl): a prompt whose responses have no reward at all is tried again with a later policy.

    The rewards are the scores before shaping: a response with a partial one, for its format say, counts. Such prompts
    are noted from the first step on. One that its epoch draws in the meantime waits no longer.
    """

    start_fraction: float = Field(0.5, ge=0, lt=1)
    """Share of `steps` after which waiting prompts are sampled again (Axolotl's `reroll_start_fraction`)."""
    max_groups: int = Field(1, ge=1)
    """Largest number of waiting prompts that are sampled again for one batch (Axolotl's `reroll_max_groups`)."""
    max_tries: int = Field(3, ge=2)
    """Number of groups of a prompt without any reward after which it is no longer tried between epochs."""


class CurriculumConfig(Config):
    """A curriculum: prompts from easy to hard, by the pass rates that the difficulty stage has measured."""

    band: float = Field(0.1, ge=0, lt=1)
    """Share of the mixture within which the position of a prompt varies at random, drawn from the run's seed. 0: the
    order is that of pass rates, and of the epoch's shuffle where these are equal."""
    epochs: int | None = Field(1, ge=1)
    """Number of epochs that are ordered from easy to hard; later ones are shuffled. null: all epochs."""


class ReplayConfig(Config):
    """A replay buffer (Axolotl): groups that were trained on are trained on again in place of zero-variance groups.

    The learner's log-probabilities of a replayed group are those of the policy that is trained now, as of any group
    (Axolotl's `replay_recompute_logps: true`); the engine's are those under which it was sampled, and
    `objective.correction` weighs the one against the other. A group leaves the buffer when `max_staleness` would drop
    it.
    """

    size: int = Field(100, ge=1)
    """Largest number of groups in the buffer; those with the largest spread of scores stay (Axolotl's
    `replay_buffer_size`). Their tokens are held in memory and in checkpoints."""
    max_replays: int = Field(1, ge=1)
    """Number of times that a group may be trained on again."""


class PromptsConfig(Config):
    """Options that change which prompts are sampled, and when."""

    retirement: RetirementConfig | None = None
    """Retirement of prompts that the policy has solved. null: no prompt retires."""
    reroll: RerollConfig | None = None
    """Deferred re-rolling of prompts without a right response. null: they wait for their next epoch."""
    curriculum: CurriculumConfig | None = None
    """Order of prompts from easy to hard. null: the mixture's order, and shuffled from the second epoch on."""


Resampling = Annotated[ActiveResampling | DynamicResampling | NoResampling, Field(discriminator="kind")]
"""One of the three kinds of resampling, distinguished by `kind`."""
