"""Caches rollouts: responses by policy, sampling, prompt and sample, and verdicts by verifier, prompt and text.

    <folder>/responses-<digest>/    by policy and by everything in `describe_generation`
    <folder>/verdicts-<digest>/     by policy; what a verdict depends on besides the text is in its key (`JudgedBy`)

A new version of the engine or of this project's code thus generates responses again, and only texts that are new cost
a verdict. A change of one verifier keeps the verdicts of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.rollouts.episodes import contents_of
from tasks.rollouts.judged_by import JudgedBy
from tasks.rollouts.response_identity import compute_environment_digest, describe_generation
from tasks.rollouts.row_store import Key, RowStore
from tasks.tables.parquet import storable
from tasks.tables.schemas import RESPONSES, REWARDS, json_digest, messages_key
from tasks.verifiers import Score

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

FORMAT = 5
"""Version of the cache's layout. Entries of other versions are not read."""

CACHED_RESPONSES = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        *list(RESPONSES)[1:],
        pa.field("temporary", pa.bool_(), nullable=False),
    ]
)
"""Schema of cached responses, whose `key` is from `RolloutCache.compute_keys`.

A temporary response is an episode with a temporary failure (`EpisodeEnd.may_pass`). The next attempt plays it again.
"""

VERDICTS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
        pa.field("passed", pa.bool_(), nullable=False),
        pa.field("rewards", REWARDS, nullable=False),
        pa.field("detail", pa.string()),
    ]
)
"""Schema of cached verdicts.

`key` and `number` are from `RolloutCache.verdict_keys`, and the other columns are the fields of `Verdict`. A response
that could not be scored has no verdict.
"""

BATCH_ROWS = 4096
"""Number of rows per table when responses are read in parts."""


class Verdict(NamedTuple):
    """The verdict on one response, as stored in the columns of `ROLLOUTS`.

    Attributes:
        score: the score in [0, 1], or None if the response could not be scored.
        passed: True if the prompt's verifier accepts the response. None if the response could not be scored.
        rewards: name and value of each reward before its weight is applied. The value is None if a reward does not
            apply. None instead of the list if the response could not be scored.
        detail: a human-readable line from the verifier. None if there is none or the response could not be scored.
        error: the reason why the response could not be scored, or None if it was scored.
    """

    score: float | None
    passed: bool | None
    rewards: Sequence[dict[str, str | float | None]] | None
    detail: str | None = None
    error: str | None = None

    @classmethod
    def from_score(cls, score: Score) -> Verdict:
        """Convert a verifier's score to a verdict."""
        if score.error is not None:
            return cls(None, None, None, error=score.error)
        rewards = [{"name": part.name, "value": part.value} for part in score.rewards]
        return cls(score.value, score.passed, rewards, storable(score.detail) or None)


@dataclass(frozen=True)
class RolloutCache:
    """The cached responses of one policy with the same options, and the verdicts on all responses of this policy.

    Attributes:
        responses: rows of `CACHED_RESPONSES`.
        verdicts: rows of `VERDICTS`.
        judged_by: what the verdicts depend on.
    """

    responses: RowStore
    verdicts: RowStore
    judged_by: JudgedBy

    @classmethod
    def open(
        cls,
        filesystem: AbstractFileSystem,
        folder: str,
        policy: str,
        engine: EngineConfig,
        sampling: SamplingConfig,
        judged_by: JudgedBy,
    ) -> RolloutCache:
        """Open the cache below `folder`. Entries are shared by all calls with equal arguments.

        Args:
            filesystem, folder: as for `RowStore`.
            policy: digest of the model.
            engine, sampling: options of generation.
            judged_by: what the verdicts depend on.
        """
        judged = {"format": FORMAT, "policy": policy}
        generated = judged | describe_generation(engine, sampling)
        of_responses, of_verdicts = json_digest(generated)[:16], json_digest(judged)[:16]
        return cls(
            RowStore(filesystem, f"{folder}/responses-{of_responses}", CACHED_RESPONSES, temporary="temporary"),
            RowStore(filesystem, f"{folder}/verdicts-{of_verdicts}", VERDICTS, number="number"),
            judged_by,
        )

    def compute_keys(self, prompts: pa.Table) -> list[str]:
        """Return the keys of the responses to prompts (a table of `PROMPTS`).

        Ground truths and verifiers may change without a new response. But an episode depends on everything that its
        environment may request, and so does its key.
        """
        columns = ["messages", "environment", "verifier", "ground_truth"]
        return [
            messages_key(row["messages"]) if row["environment"] is None else self._compute_episode_key(row)
            for row in prompts.select(columns).to_pylist()
        ]

    def _compute_episode_key(self, row: Mapping[str, Any]) -> str:
        content = [messages_key(row["messages"]), row["environment"], row["verifier"], row["ground_truth"]]
        requested = [
            self.judged_by.compute_digest(row),
            self.judged_by.compute_program_digest(),
            self.judged_by.compute_environment_digest(),
        ]
        return json_digest([content, requested, compute_environment_digest(row["environment"])])[:32]

    def compute_verdict_key(self, row: Mapping[str, Any], group: Sequence[str] | None = None) -> str:
        """Return the key of the verdicts on responses to a prompt (a row of `PROMPTS`).

        If a reward scores all responses together, `group` contains them in order. The key is then different for
        another number of samples or another response in the group.
        """
        return json_digest(
            [self.judged_by.compute_digest(row), row["prompt_id"], *([] if group is None else [list(group)])]
        )[:32]


def compute_verdict_number(text: str, sample: int, group: Sequence[str] | None = None) -> int:
    """Return the number of the verdict on a response, which identifies it among those with the same key.

    It is a digest of the text, so that equal responses have one verdict, whichever engine generated them. In a group,
    whose texts are in the key, it is the sample, because a reward may depend on the order.
    """
    if group is not None:
        return sample
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], signed=True)


def responses(prompts: pa.Table, counts: Sequence[int], cache: RolloutCache) -> Iterator[pa.Table]:
    """Yield cached responses as tables of `RESPONSES`, in the order of prompts and samples.

    Args:
        prompts: a table of `PROMPTS`.
        counts: for every prompt, the number of responses to read, from the first one on. Responses that are not cached
            are left out.
        cache: the cache. The responses to these prompts must have been looked up (`RowStore.find`).
    """
    wanted: list[Key] = []
    ids: list[str] = []
    columns = (prompts.column("prompt_id").to_pylist(), cache.compute_keys(prompts), counts)
    for name, key, count in zip(*columns, strict=True):
        cached = [(key, number) for number in range(count) if (key, number) in cache.responses]
        wanted += cached
        ids += [name] * len(cached)
    for start in range(0, len(wanted), BATCH_ROWS):
        part = slice(start, start + BATCH_ROWS)
        rows = cache.responses.read(wanted[part]).drop_columns(["key", "temporary"])
        yield rows.add_column(0, RESPONSES.field(0), pa.array(ids[part], pa.string())).cast(RESPONSES)


def make_verdict_row(key: Key, verdict: Verdict) -> dict[str, Any]:
    """Return the row of `VERDICTS` of a verdict with this key and number."""
    columns = {name: value for name, value in verdict._asdict().items() if name != "error"}
    return {"key": key[0], "number": key[1], **columns}


def find_verdicts(keys: Sequence[Key], verdicts: RowStore) -> list[Verdict | None]:
    """Return the cached verdict on each response, or None if there is none.

    Args:
        keys: `RolloutCache.compute_verdict_key` and `compute_verdict_number` of each response.
        verdicts: rows of `VERDICTS`.
    """
    cached = [index for index, key in enumerate(keys) if key in verdicts]
    rows = verdicts.read([keys[index] for index in cached])
    known: list[Verdict | None] = [None] * len(keys)
    columns = (rows[name].to_pylist() for name in ("score", "passed", "rewards", "detail"))
    for index, *verdict in zip(cached, *columns, strict=True):
        known[index] = Verdict(*verdict)
    return known


def find_scores(
    row: Mapping[str, Any], key: str, numbers: Sequence[int], cache: RolloutCache
) -> dict[int, float | None]:
    """Return the cached scores of samples `numbers` of a prompt, or None for samples without a verdict.

    The responses must all be cached. `row` is the prompt's row of `PROMPTS`, and `key` is the key of its responses
    (`RolloutCache.compute_keys`).
    """
    texts = [content.identity for content in contents_of(cache.responses.read([(key, n) for n in numbers]))]
    judged = cache.compute_verdict_key(row)
    keys = [(judged, compute_verdict_number(text, number)) for text, number in zip(texts, numbers, strict=True)]
    scores = (verdict.score if verdict else None for verdict in find_verdicts(keys, cache.verdicts))
    return dict(zip(numbers, scores, strict=True))
