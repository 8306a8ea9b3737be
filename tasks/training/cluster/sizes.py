"""Default sizes of the pods of training, by what they hold, and the memory of the controller's pod.

A machine has 8 cores and 64 GiB for each GPU that it holds (`tasks.pods`). The controller holds, for each token of a
response, 12 bytes in a step since the newest checkpoint: its id, the engine's log-probability and the learner's, of 4
bytes each. The learner's log-probabilities of a batch pass through Ray's object store.
"""

from __future__ import annotations

from math import ceil

from tasks.training.config import TrainingConfig
from tasks.training.prompt_options import DynamicResampling

GIB = 2**30

MEAN_SHARE = 14_628 / 32_768
"""Mean length of Olmo 3's responses over their limit; of a context, prompt and response together, the same."""

TOKEN_BYTES = 12
"""Bytes of a token in a step that the controller holds: its id and two log-probabilities, of 4 bytes each."""

OBJECT_BYTES = 48.5
"""Bytes of a token in Ray's object store while log-probabilities are computed, as measured."""

CONTROLLER_GIB = 4.0
"""GiB of the controller and of Ray's head, apart from what a run holds."""

VERIFIER_GIB = 0.3
"""GiB of a verifier process."""

HEAD_CORES = 16
"""Cores of the head by default: the controller and Ray need 2, and responses are judged on the others."""

VERSIONS = 3
"""Versions of the weights in shared memory at most: one that is read, the newest, and the next."""

SLACK = 1.25
"""Factor by which the head's default memory exceeds what is computed for it."""


def head_needs(config: TrainingConfig, cores: int, mean_tokens: float | None = None) -> dict[str, float]:
    """Return the GiB that each part of the head's work needs, by the part's name.

    Args:
        config: the recipe's training options.
        cores: cores of the head, on which as many verifier processes run unless `rewards.workers` gives a number.
        mean_tokens: mean length of a prompt and its response, tokens; None: `MEAN_SHARE` of the engine's context.
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


def head_memory_gib(config: TrainingConfig, cores: int) -> int:
    """Return the memory of the head by default, GiB: what it needs and a slack, in steps of 8, and 32 at least."""
    return max(32, 8 * ceil(SLACK * sum(head_needs(config, cores).values()) / 8))


def shared_memory_gib(gpus: int, weights_gib: float | None) -> int:
    """Return the size of `/dev/shm` of a machine with ranks or engines: 8 GiB a GPU, and `VERSIONS` of the weights.

    Args:
        gpus: GPUs of the machine.
        weights_gib: size of the policy's weights; None: it is not known, or only an adapter is trained.
    """
    return max(8 * gpus, gpus + ceil(VERSIONS * (weights_gib or 0)))
