"""Computes the default sizes of training pods, and the memory of the controller's pod.

A machine has 8 cores and 64 GiB per GPU (`tasks.kubernetes.pods`). For the steps since the newest checkpoint, the
controller stores 12 bytes per response token: its id, the engine's log-probability and the learner's, 4 bytes each. The
learner's log-probabilities of a batch pass through Ray's object store.
"""

from __future__ import annotations

from math import ceil

from tasks.recipe.prompts import DynamicResampling
from tasks.recipe.run import TrainingConfig

GIB = 2**30

MEAN_SHARE = 14_628 / 32_768
"""Ratio of the mean length of Olmo 3's responses to their limit. The same ratio is assumed for prompt and response
together relative to the context."""

TOKEN_BYTES = 12
"""Bytes per token of a step in the controller's memory: its id and two log-probabilities, 4 bytes each."""

OBJECT_BYTES = 48.5
"""Measured bytes per token in Ray's object store while log-probabilities are computed."""

CONTROLLER_GIB = 4.0
"""GiB of the controller and of Ray's head, without the data of a run."""

VERIFIER_GIB = 0.3
"""GiB of a verifier process."""

HEAD_CORES = 16
"""Default number of cores of the head. The controller and Ray need 2, and responses are verified on the others."""

VERSIONS = 3
"""Maximum number of versions of the weights in shared memory: one that is being read, the newest, and the next."""

SLACK = 1.25
"""Factor of the head's default memory over its computed need."""


def compute_head_needs(config: TrainingConfig, cores: int, mean_tokens: float | None = None) -> dict[str, float]:
    """Return the GiB that each component of the head needs, by name.

    Args:
        config: the recipe's training options.
        cores: number of cores of the head. This is also the number of verifier processes, unless `rewards.workers` sets
            it.
        mean_tokens: mean length of a prompt and its response, in tokens. Optional. If None, `MEAN_SHARE` of the
            engine's context.
    """
    mean = mean_tokens or MEAN_SHARE * config.actors.engine.max_model_len
    batch = config.groups_per_step * config.sampling.samples * mean
    updates = config.steps_between_checkpoints * config.updates.epochs
    rounds = config.resampling.batch_multiplier if isinstance(config.resampling, DynamicResampling) else 1
    return {
        "controller and Ray": CONTROLLER_GIB,
        "steps since a checkpoint": updates * batch * TOKEN_BYTES / GIB,
        "groups in flight": max(config.async_steps, 1) * rounds * batch * TOKEN_BYTES / GIB,
        "object store": batch * OBJECT_BYTES / GIB,
        "verifiers": (config.rewards.workers or cores) * VERIFIER_GIB,
    }


def compute_head_memory_gib(config: TrainingConfig, cores: int) -> int:
    """Return the default memory of the head in GiB: its need with slack, rounded up to a multiple of 8, at least 32."""
    return max(32, 8 * ceil(SLACK * sum(compute_head_needs(config, cores).values()) / 8))


def shared_memory_gib(gpus: int, weights_gib: float | None) -> int:
    """Return the size of `/dev/shm` in GiB for a machine with ranks or engines.

    It is 8 GiB per GPU or, if larger, 1 GiB per GPU and `VERSIONS` times the weights.

    Args:
        gpus: number of GPUs of the machine.
        weights_gib: size of the policy's weights in GiB. None if it is not known, or if only an adapter is trained.
    """
    return max(8 * gpus, gpus + ceil(VERSIONS * (weights_gib or 0)))
