"""Caches rollouts: responses by policy, sampling, prompt and sample, and verdicts by verifier options and code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tasks.config import result_options
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.episodes import contents_of
from tasks.generation.row_store import Key, RowStore
from tasks.lineage.code_digest import code_digest
from tasks.tables.parquet import storable
from tasks.tables.schemas import RESPONSES, REWARDS, canonical_json, messages_key
from tasks.verifiers import Score, VerifiersConfig

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

FORMAT = 4
"""Version of the cache's layout. Entries of other versions are not read."""

CACHED_RESPONSES = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        *list(RESPONSES)[1:],
        pa.field("temporary", pa.bool_(), nullable=False),
    ]
)
"""Schema of cached responses, whose `key` is from `RolloutCache.keys_of`.

A temporary response is an episode with a temporary failure (`EpisodeEnd.may_pass`). The next attempt plays it again.
"""

VERDICTS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("response", pa.string(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
        pa.field("passed", pa.bool_(), nullable=False),
        pa.field("rewards", REWARDS, nullable=False),
        pa.field("detail", pa.string()),
    ]
)
"""Schema of cached verdicts.

`key` is from `verdict_key`, `response` is the digest of the text that was scored, and the other columns are the fields
of `Verdict`. A response that could not be scored has no verdict.
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
    def of(cls, score: Score) -> Verdict:
        """Convert a verifier's score to a verdict."""
        if score.error is not None:
            return cls(None, None, None, error=score.error)
        rewards = [{"name": part.name, "value": part.value} for part in score.rewards]
        return cls(score.value, score.passed, rewards, storable(score.detail) or None)


@dataclass(frozen=True)
class RolloutCache:
    """The cached responses of one policy with the same sampling options, and their verdicts by the same verifiers.

    Attributes:
        responses: rows of `CACHED_RESPONSES`.
        verdicts: rows of `VERDICTS`.
        judging: `judging_digest` of the verdicts.
    """

    responses: RowStore
    verdicts: RowStore
    judging: str = ""

    @classmethod
    def at(
        cls,
        filesystem: AbstractFileSystem,
        folder: str,
        policy: str,
        engine: EngineConfig,
        sampling: SamplingConfig,
        judging: str,
    ) -> RolloutCache:
        """Open the cache below `folder`. Entries are shared by all calls with equal arguments.

        Args:
            filesystem, folder: as for `RowStore`.
            policy: digest of the model.
            engine, sampling: options of generation. The number of samples and the context length, which every prompt
                fits, do not change a response and are not part of its key.
            judging: `judging_digest` of the verdicts.
        """
        identity = {
            "format": FORMAT,
            "policy": policy,
            "sampling": {name: value for name, value in result_options(sampling).items() if name != "samples"},
            "dtype": engine.dtype,
            "seed": engine.seed,
            "vllm": engine.vllm,
            "server": engine.server and engine.server.model,
        }
        ours = f"{folder}/{hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]}"
        return cls(
            RowStore(filesystem, f"{ours}/responses", CACHED_RESPONSES, temporary="temporary"),
            RowStore(filesystem, f"{ours}/verdicts-{judging[:16]}", VERDICTS),
            judging,
        )

    def keys_of(self, prompts: pa.Table) -> list[str]:
        """Return the keys of the responses to prompts (a table of `PROMPTS`).

        Ground truths and verifiers may change without a new response. But an episode depends on everything that its
        environment may request, and so does its key.
        """
        columns = ("messages", "environment", "verifier", "ground_truth")
        return [
            messages_key(messages) if environment is None else self._episode_key(messages, environment, *truth)
            for messages, environment, *truth in zip(*(prompts[name].to_pylist() for name in columns), strict=True)
        ]

    def _episode_key(self, messages: list[dict[str, str]], environment: str, *truth: str) -> str:
        code = code_digest("tasks.environments")
        identity = [messages_key(messages), environment, *truth, self.judging, code]
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:32]


def judging_digest(verifiers: VerifiersConfig, initial: str) -> str:
    """Return the digest of everything that verdicts depend on: the verifiers' options, their code and their columns.

    Args:
        verifiers: options of the verifiers.
        initial: digest of the initial checkpoint, which is included if this checkpoint is the LLM judge.
    """
    judge = verifiers.judge
    by_initial = judge is not None and verifiers.with_initial(Path(initial)) is not verifiers
    judged_by = [result_options(verifiers), code_digest("tasks.verifiers"), initial if by_initial else ""]
    identity = [*judged_by, VERDICTS.names]
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


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
    columns = (prompts.column("prompt_id").to_pylist(), cache.keys_of(prompts), counts)
    for name, key, count in zip(*columns, strict=True):
        cached = [(key, number) for number in range(count) if (key, number) in cache.responses]
        wanted += cached
        ids += [name] * len(cached)
    for start in range(0, len(wanted), BATCH_ROWS):
        part = slice(start, start + BATCH_ROWS)
        rows = cache.responses.read(wanted[part]).drop_columns(["key", "temporary"])
        yield rows.add_column(0, RESPONSES.field(0), pa.array(ids[part], pa.string())).cast(RESPONSES)


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def verdict_key(prompt_id: str, group: Sequence[str] | None = None) -> str:
    """Return the key of the verdicts on responses to a prompt.

    If a reward scores all responses together, `group` contains them in order. The key is then different for another
    number of samples or another response in the group.
    """
    return prompt_id if group is None else f"{prompt_id}-{_text_digest(canonical_json(list(group)))}"


def verdict_row(key: str, number: int, response: str, verdict: Verdict) -> dict[str, Any]:
    """Return the row of `VERDICTS` for the verdict on sample `number` of a prompt, with the text `response`."""
    columns = {name: value for name, value in verdict._asdict().items() if name != "error"}
    return {"key": key, "sample": number, "response": _text_digest(response), **columns}


def verdicts_of(keys: Sequence[Key], texts: Sequence[str], verdicts: RowStore) -> list[Verdict | None]:
    """Return the cached verdict on each response, or None if there is none or it is for another text.

    Args:
        keys: `verdict_key` and sample of each response.
        texts: the responses (`Content.identity`).
        verdicts: rows of `VERDICTS`.
    """
    cached = [index for index, key in enumerate(keys) if key in verdicts]
    rows = verdicts.read([keys[index] for index in cached])
    matching: list[Verdict | None] = [None] * len(keys)
    columns = (cached, *(rows[name].to_pylist() for name in ("response", "score", "passed", "rewards", "detail")))
    for index, digest, *verdict in zip(*columns, strict=True):
        if digest == _text_digest(texts[index]):
            matching[index] = Verdict(*verdict)
    return matching


def known_scores(prompt_id: str, key: str, numbers: Sequence[int], cache: RolloutCache) -> dict[int, float | None]:
    """Return the cached scores of samples `numbers` of a prompt, or None for samples without a verdict.

    The responses must all be cached. `key` is the key of the prompt's responses (`RolloutCache.keys_of`).
    """
    texts = [content.identity for content in contents_of(cache.responses.read([(key, n) for n in numbers]))]
    verdicts = verdicts_of([(prompt_id, number) for number in numbers], texts, cache.verdicts)
    scores = (verdict.score if verdict else None for verdict in verdicts)
    return dict(zip(numbers, scores, strict=True))
