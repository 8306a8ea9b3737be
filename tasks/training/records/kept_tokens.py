"""Selects the groups whose tokens are written (`keep_tokens`), and makes the columns of their responses.

engine  ──► token ids, log-probabilities ───────────────────────────────────┐
step    ──► mask, advantage; log-probabilities of the ranks, kept groups only ──► columns of `rollouts/*.parquet`
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.generation.interface import Completion
from tasks.training.learner.packing import Bools, Floats

TOKEN_COLUMNS = (
    pa.field("token_ids", pa.list_(pa.int32())),
    pa.field("engine_logprobs", pa.list_(pa.float32())),
    pa.field("learner_logprobs", pa.list_(pa.float32())),
    pa.field("loss_mask", pa.list_(pa.bool_())),
    pa.field("advantage", pa.float64()),
    pa.field("token_advantages", pa.list_(pa.float32())),
)
"""Columns of a response whose tokens are kept, null for all others. Lists have one element for each token.

An episode has the tokens of all turns, including the tokens that its environment inserted. `engine_logprobs` (nats) are
as the engine reported them, 0 for inserted tokens. `learner_logprobs` (nats) are under the learner's policy before the
first update on the batch, 0 outside the mask. `loss_mask` is true for the tokens in the loss of the step.
`learner_logprobs`, `loss_mask` and `advantage` are null for a response that no step was taken on. `token_advantages` is
null unless a function of the user's returned an advantage for each token; then `advantage` is null.
"""

TOKEN_BYTES = 12.125
"""Bytes per token on the disk, before compression: an id and two log-probabilities of 4 bytes each, and a bit."""


def is_kept(group: int, share: float) -> bool:
    """Return whether the tokens of a group are kept, given the share of all groups whose tokens are.

    The choice depends only on the number of the group and the share, so that a resumed run makes the same. Groups that
    are kept at one share are also kept at every larger share.
    """
    digest = hashlib.sha256(str(group).encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


@dataclass(frozen=True)
class TrainedTokens:
    """Describes the tokens of a response as a step had them.

    Attributes:
        logprobs: `[n]`, nats, under the learner's policy before the first update on the batch; 0 outside the mask.
        mask: `[n]`, true for tokens in the loss.
        advantage: advantage of the response, or `[n]`, the advantages of its tokens.
    """

    logprobs: Floats
    mask: Bools
    advantage: float | Floats


def make_token_columns(completion: Completion, trained: TrainedTokens | None) -> dict[str, Any]:
    """Return the `TOKEN_COLUMNS` of a response; `trained` is None if no step was taken on it."""
    advantage = trained.advantage if trained else None
    return {
        "token_ids": np.asarray(completion.token_ids, np.int32),
        "engine_logprobs": np.asarray(completion.logprobs, np.float32),
        "learner_logprobs": trained.logprobs if trained else None,
        "loss_mask": trained.mask if trained else None,
        "advantage": None if isinstance(advantage, np.ndarray) else advantage,
        "token_advantages": advantage if isinstance(advantage, np.ndarray) else None,
    }
