"""Rollouts that were paid for: responses by policy, sampling, prompt and sample, and verdicts on them by judging."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tasks.config import result_options
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.row_store import Key, RowStore
from tasks.lineage.code_digest import code_digest
from tasks.tables.schemas import RESPONSES, canonical_json, messages_key
from tasks.verifiers import VerifiersConfig

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

FORMAT = 1
"""Of what is kept; another one finds nothing of this one."""

KEPT_RESPONSES = pa.schema([pa.field("key", pa.string(), nullable=False), *[RESPONSES.field(i) for i in range(1, 5)]])
"""Responses by `tasks.tables.schemas.messages_key`: another ground truth needs no other responses."""

VERDICTS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("response", pa.string(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
    ]
)
"""Scores by `prompt_id`; `response` is the digest of the text that was judged. What could not be judged is not kept."""

BATCH_ROWS = 4096
"""Rows of a part of a table of responses."""


@dataclass(frozen=True)
class RolloutCache:
    """What was paid for: the responses of one policy, sampled in one way, and the verdicts on them of one judging."""

    responses: RowStore
    verdicts: RowStore

    @classmethod
    def at(
        cls,
        filesystem: AbstractFileSystem,
        place: str,
        policy: str,
        engine: EngineConfig,
        sampling: SamplingConfig,
        judging: str,
    ) -> RolloutCache:
        """Those that are kept below `place`.

        Args:
            filesystem, place: as for `RowStore`.
            policy: digest of the model.
            engine, sampling: how responses are sampled. Neither how many there are nor the context, which all fit into,
                makes others of them.
            judging: see `judging_digest`.
        """
        told = {
            "format": FORMAT,
            "policy": policy,
            "sampling": {name: value for name, value in result_options(sampling).items() if name != "samples"},
            "dtype": engine.dtype,
            "seed": engine.seed,
        }
        folder = f"{place}/{hashlib.sha256(canonical_json(told).encode()).hexdigest()[:16]}"
        return cls(
            RowStore(filesystem, f"{folder}/responses", KEPT_RESPONSES),
            RowStore(filesystem, f"{folder}/verdicts-{judging[:16]}", VERDICTS),
        )


def judging_digest(verifiers: VerifiersConfig, initial: str) -> str:
    """What verdicts depend on: how is judged, by which code, and, where it judges, the initial checkpoint's digest."""
    judge = verifiers.judge
    by_initial = judge is not None and verifiers.with_initial(Path(initial)) is not verifiers
    told = [result_options(verifiers), code_digest("tasks.verifiers"), initial if by_initial else ""]
    return hashlib.sha256(canonical_json(told).encode()).hexdigest()


def responses(prompts: pa.Table, counts: Sequence[int], kept: RolloutCache) -> Iterator[pa.Table]:
    """`RESPONSES` in parts: of each prompt, in their order, those that are kept of its first `counts`."""
    wanted: list[Key] = []
    ids: list[str] = []
    columns = (prompts.column("prompt_id").to_pylist(), prompts.column("messages").to_pylist(), counts)
    for name, messages, count in zip(*columns, strict=True):
        key = messages_key(messages)
        there = [(key, number) for number in range(count) if (key, number) in kept.responses]
        wanted += there
        ids += [name] * len(there)
    for start in range(0, len(wanted), BATCH_ROWS):
        part = slice(start, start + BATCH_ROWS)
        found = kept.responses.read(wanted[part]).drop_columns("key")
        yield found.add_column(0, RESPONSES.field(0), pa.array(ids[part], pa.string())).cast(RESPONSES)


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def verdict(prompt_id: str, number: int, response: str, score: float) -> dict[str, Any]:
    return {"key": prompt_id, "sample": number, "response": _text_digest(response), "score": score}


def verdicts_of(keys: Sequence[Key], texts: Sequence[str], kept: RowStore) -> list[float | None]:
    """The scores that are kept; None for a response that has none, or another text than the one that was judged."""
    there = [index for index, key in enumerate(keys) if key in kept]
    found = kept.read([keys[index] for index in there])
    scores: list[float | None] = [None] * len(keys)
    columns = (there, found["response"].to_pylist(), found["score"].to_pylist())
    for index, digest, score in zip(*columns, strict=True):
        if digest == _text_digest(texts[index]):
            scores[index] = score
    return scores


def known_scores(prompt_id: str, key: str, numbers: Sequence[int], kept: RolloutCache) -> dict[int, float | None]:
    """The scores of these responses of a prompt, all of which are there."""
    texts = kept.responses.read([(key, number) for number in numbers])["response"].to_pylist()
    scores = verdicts_of([(prompt_id, number) for number in numbers], texts, kept.verdicts)
    return dict(zip(numbers, scores, strict=True))
