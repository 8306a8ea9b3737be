"""Options of which prompts are sampled, and of what becomes of the groups that teach nothing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, RunTime


class ActiveResampling(Config):
    """Active sampling (OlmoRL): the next prompt takes the place of a group that teaches nothing, at once."""

    kind: Literal["active"] = "active"
    max_dropped_groups: RunTime[int] = Field(256, ge=1)
    """Groups that teach nothing and are replaced for one batch before the run fails, as the prompts give no signal; and
    as many that failed or grew stale."""


class DynamicResampling(Config):
    """Dynamic sampling (DAPO, section 3.2; ProRLv2): rounds of prompts until enough groups teach something.

    What a round gives beyond the batch waits for the next one, as long as `max_staleness` allows.
    """

    kind: Literal["dynamic"] = "dynamic"
    batch_multiplier: float = Field(1.0, ge=1)
    """Prompts of a round, in batches of `groups_per_step`, rounded up."""
    max_rounds: RunTime[int] = Field(10, ge=1)
    """Rounds for one batch before the run fails: the prompts give no signal."""
    metric: Literal["reward", "passed"] = "reward"
    """What must differ within a group that is kept: `reward`, as it is after shaping (NeMo RL), or `passed`, whether
    the response is right (DAPO, eq. 11; verl's `filter_groups.metric: acc`)."""


class NoResampling(Config):
    """Every group is trained on, those that teach nothing included (GRPO, Dr GRPO, ProRL v2.1)."""

    kind: Literal["none"] = "none"
    max_dropped_groups: RunTime[int] = Field(256, ge=1)
    """Groups that failed or grew stale, and were replaced, before the run fails."""


class RetirementConfig(Config):
    """Prompts that the policy has solved are sampled no more: their groups carry no gradient."""

    pass_rate: float = Field(1.0, gt=0, le=1)
    """Share of a group's judged responses that pass, from which on its prompt counts as solved."""
    visits: int = Field(1, ge=1)
    """Groups of the prompt in a row that must."""
    when_all_solved: Literal["fail", "stop"] = "fail"
    """What becomes of a run of which no prompt is left: it fails, or it ends early (`stop`)."""


class RerollConfig(Config):
    """Deferred re-rolling (Axolotl): prompts of which no response passes wait for a policy that may have improved.

    They are noted from the first step on. A prompt that its epoch draws meanwhile waits no longer.
    """

    start_fraction: float = Field(0.5, ge=0, lt=1)
    """Share of `steps` after which they are sampled again (Axolotl's `reroll_start_fraction`)."""
    max_groups: int = Field(1, ge=1)
    """How many for one batch (Axolotl's `reroll_max_groups`)."""
    max_tries: int = Field(3, ge=2)
    """Groups of a prompt without a response that passes, after which it waits for its epoch alone."""


class CurriculumConfig(Config):
    """Prompts from easy to hard, by their pass rates under the initial checkpoint (the difficulty stage's)."""

    band: float = Field(0.1, ge=0, lt=1)
    """Share of the mixture within which a prompt's place varies, drawn from the run's seed. With 0, the order is that
    of pass rates, and of the epoch's shuffle where those are equal."""
    epochs: int | None = Field(1, ge=1)
    """Epochs that are ordered so; later ones are shuffled. null: every one."""


class ReplayConfig(Config):
    """Replay buffer (Axolotl): groups that were trained on take the place of groups that teach nothing.

    The learner's log-probabilities of a replayed group are those of the policy that is trained now, as of any group
    (Axolotl's `replay_recompute_logps: true`); the engine's are those under which it was sampled, and
    `objective.correction` weighs the one against the other. A group leaves the buffer when `max_staleness` would drop
    it.
    """

    size: int = Field(100, ge=1)
    """Groups that are kept, those with the largest spread of rewards (Axolotl's `replay_buffer_size`). Their tokens are
    held in memory, and are in checkpoints."""
    max_replays: int = Field(1, ge=1)
    """How often a group is trained on again."""


class PromptsConfig(Config):
    """Which prompts are sampled, and when. null: the option is off."""

    retirement: RetirementConfig | None = None
    reroll: RerollConfig | None = None
    curriculum: CurriculumConfig | None = None


Resampling = Annotated[ActiveResampling | DynamicResampling | NoResampling, Field(discriminator="kind")]
