"""Options of which prompts are sampled, and of what becomes of the groups that teach nothing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config, RunTime


class ActiveSampling(Config):
    """Active sampling (OlmoRL): the next prompt takes the place of a group that teaches nothing, at once.

    Attributes:
        max_dropped_groups: groups that teach nothing and are replaced for one batch before the run fails, as the
            prompts give no signal; and as many that failed or grew stale.
    """

    kind: Literal["active"] = "active"
    max_dropped_groups: RunTime[int] = Field(256, ge=1)


class DynamicSampling(Config):
    """Dynamic sampling (DAPO, section 3.2; ProRLv2): rounds of prompts until enough groups teach something.

    What a round gives beyond the batch waits for the next one, as long as `max_staleness` allows.

    Attributes:
        batch_multiplier: prompts of a round, in batches of `groups_per_step`, rounded up.
        max_rounds: rounds for one batch before the run fails: the prompts give no signal.
        metric: what must differ within a group that is kept: `reward`, as it is after shaping (NeMo RL), or `passed`,
            whether the response is right (DAPO, eq. 11; verl's `filter_groups.metric: acc`).
    """

    kind: Literal["dynamic"] = "dynamic"
    batch_multiplier: float = Field(1.0, ge=1)
    max_rounds: RunTime[int] = Field(10, ge=1)
    metric: Literal["reward", "passed"] = "reward"


class NoResampling(Config):
    """Every group is trained on, those that teach nothing included (GRPO, Dr GRPO, ProRL v2.1).

    Attributes:
        max_dropped_groups: groups that failed or grew stale, and were replaced, before the run fails.
    """

    kind: Literal["none"] = "none"
    max_dropped_groups: RunTime[int] = Field(256, ge=1)


Resampling = Annotated[ActiveSampling | DynamicSampling | NoResampling, Field(discriminator="kind")]
