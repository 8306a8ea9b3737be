"""Defines the schemas of the tables that are passed between stages, the ids in them, and the summary of a stage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, Self, get_args

import pyarrow as pa

Domain = Literal["math", "code", "precise_if", "chat"]
"""Name of a domain with dedicated verifiers. A source may use any other name."""
DOMAINS: tuple[Domain, ...] = get_args(Domain)

Message = dict[str, str]


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


TEXT = pa.large_string()
"""The type of text columns that may contain more than 2 GiB in one chunk. The offsets of Arrow's other text type would
overflow."""

MESSAGES = pa.list_(pa.struct([_column("role", pa.string()), _column("content", TEXT)]))

PROMPTS = pa.schema(
    [
        _column("prompt_id", pa.string()),
        _column("domain", pa.string()),
        _column("source", pa.string()),
        _column("row", pa.int64()),
        _column("messages", MESSAGES),
        _column("verifier", pa.string()),
        _column("ground_truth", TEXT),
        _column("metadata", TEXT),
        _column("cluster", pa.string(), nullable=True),
        _column("environment", TEXT, nullable=True),
    ]
)
"""The table of prompts, one per row.

- `prompt_id` is from `prompt_id()`.
- `row` is the index of the prompt's row in its source, from 0.
- `ground_truth` and `metadata` are JSON. `metadata` contains the columns that the user keeps (`columns`), the fields of
  the messages in addition to role and content (`messages`), and the number of removed assistant turns
  (`answers_left_off`).
- `cluster` is the same for prompts that stay on one side of the split into training and held-out prompts. It is the key
  of the first of them (`tasks.tables.texts.compute_prompt_keys`) in hex digits, or null if no other prompt is similar.
- `environment` is JSON (`tasks.generation.environment_spec.EnvironmentSpec`), or null for a prompt that is answered in
  a single turn.
"""

Stage = Literal["sourcing", "cleaning", "difficulty", "mixing", "evaluation"]
Kind = Literal[
    "malformed",
    "unusable",
    "length",
    "language",
    "ground_truth",
    "contaminated",
    "control_tokens",
    "duplicate",
    "near_duplicate",
    "contradicting_duplicate",
    "unjudged",
    "environment",
]
"""The reason for which a row is filtered out.

- `malformed`: it is not a row;
- `unusable`: it has no usable prompt or ground truth;
- `length`: its prompt is too long or too short;
- `language`: its prompt is in another language;
- `ground_truth`: its verifier rejects its ground truth;
- `contaminated`: its prompt contains a question of an evaluation set;
- `control_tokens`: its prompt contains a control token of the model;
- `duplicate`, `near_duplicate`: another row has the same prompt, or nearly the same;
- `contradicting_duplicate`: another row has the same prompt with another answer, and one is wrong (`math`);
- `unjudged`: none of its rollouts could be scored;
- `environment`: its verifier needs data or a package that is not installed.
"""

SET_ASIDE = pa.schema(
    [
        _column("stage", pa.string()),
        _column("kind", pa.string()),
        _column("source", pa.string()),
        _column("row", pa.int64()),
        _column("prompt_id", pa.string(), nullable=True),
        _column("clashed_with", pa.string(), nullable=True),
        _column("reason", pa.string()),
        _column("value", pa.string()),
        _column("clashed_text", pa.string(), nullable=True),
    ]
)
"""The table of rows that were filtered out: the `Stage`, the `Kind`, the row's index in its source (from 0), the
reason, and the offending value.

`prompt_id` is null for a row that did not become a prompt. `clashed_with` is the prompt that is kept instead, if any,
or for `contaminated` the question of the evaluation set, whose text is `clashed_text`.
"""

READ = "read"
"""Key of the counts of each source (`tasks.sourcing.reading`) in the footers of tables of `SET_ASIDE`."""

DUPLICATE_OF = "duplicate of row "
"""Start of the reason of a row that repeats an earlier row of its source. The number of that row follows."""

EPISODE_TURNS = pa.list_(
    pa.struct(
        [
            _column("role", pa.string()),
            _column("content", TEXT),
            _column("sampled", pa.bool_()),
            _column("anew", pa.bool_()),
            _column("token_ids", pa.list_(_column("item", pa.int32()))),
        ]
    )
)
"""The type of the turns of an episode after its prompt.

A turn of the policy is marked as `sampled` and has the sampled tokens. Of consecutive turns of the environment, the
last one before a turn of the policy has the tokens of all of them. Turns marked as `anew` restart the conversation: the
policy does not see earlier turns after them.
"""

RESPONSES = pa.schema(
    [
        _column("prompt_id", pa.string()),
        _column("sample", pa.int32()),
        _column("response", TEXT),
        _column("num_tokens", pa.int32()),
        _column("finish_reason", pa.string()),
        _column("turns", EPISODE_TURNS, nullable=True),
        _column("outcome", TEXT, nullable=True),
    ]
)
"""The table of responses before scoring, one completion per row.

For an episode, `response` is the last turn and `turns` contains all turns after the prompt. `turns` is null for a
single response. `outcome` is JSON with the reward from an environment or its failure
(`tasks.generation.interface.EpisodeEnd`), or null if the verifier scores the response.
"""

UNKNOWN_END = "unknown"
"""The `finish_reason` of a response if it is not known how it ended."""

REWARDS = pa.list_(pa.struct([_column("name", pa.string()), _column("value", pa.float64(), nullable=True)]))
"""The type of the rewards of a response by name, before their weights are applied. The verifier's reward is first. The
value is null if a reward does not apply. The list is empty if the verifier's score is the only reward."""

ROLLOUTS = pa.schema(
    [
        *RESPONSES,
        _column("score", pa.float64(), nullable=True),
        _column("passed", pa.bool_(), nullable=True),
        _column("rewards", REWARDS, nullable=True),
        _column("detail", pa.string(), nullable=True),
        _column("error", pa.string(), nullable=True),
        _column("policy", pa.string()),
    ]
)
"""The table of scored responses, one completion per row. If a response could not be scored, `score`, `passed` and
`rewards` are null and `error` contains the reason.

`score` is in [0, 1], and is the weighted mean if a prompt has several rewards. `passed` is the verdict of the prompt's
verifier, independent of other rewards (`tasks.verifiers.scores.Score.passed`). `detail` is a line from the verifier:
the extracted answer, and what was wrong.
"""

GRADED = pa.schema(
    [
        *PROMPTS,
        _column("pass_rate", pa.float64(), nullable=True),
        _column("mean_score", pa.float64(), nullable=True),
        _column("num_rollouts", pa.int32(), nullable=True),
        _column("mean_tokens", pa.float64(), nullable=True),
    ]
)
"""The table of prompts with the results of the initial checkpoint: `pass_rate` is the share of scored rollouts that
pass, in [0, 1], and `mean_score` is their mean score, which the difficulty filter uses. All four columns are null if
difficulty was not measured (`difficulty: null`)."""

COMPARED = pa.schema(
    [
        _column("prompt_id", pa.string()),
        _column("domain", pa.string()),
        _column("source", pa.string()),
        _column("variant", pa.string()),
        _column("pass_rate", pa.float64()),
        _column("mean_score", pa.float64()),
        _column("num_rollouts", pa.int32()),
        _column("mean_tokens", pa.float64()),
    ]
)
"""The table that compares several checkpoints, or several ways to use a checkpoint, on the same prompts, with a row for
each prompt and variant."""

MIXTURE = pa.schema([*GRADED, _column("repeat", pa.int32()), _column("order", pa.int64())])
"""The table of graded prompts in the order of training (`order` counts from 0).

An up-sampled prompt has several rows, and `repeat` is the number of its earlier rows.
"""

LEDGER = pa.schema(
    [
        _column("group", pa.int64()),
        _column("prompt_id", pa.string()),
        _column("domain", pa.string()),
        _column("actors", pa.list_(pa.int32())),
        _column("sampled_at", pa.float64()),
        _column("finished_at", pa.float64(), nullable=True),
        _column("first_version", pa.int64()),
        _column("last_version", pa.int64()),
        _column("scores", pa.list_(pa.float64())),
        _column("num_tokens", pa.list_(pa.int32())),
        _column("advantage_spread", pa.float64(), nullable=True),
        _column("fate", pa.string()),
        _column("step", pa.int64(), nullable=True),
        _column("detail", pa.string(), nullable=True),
    ]
)
"""The table of sampled groups, one per row: times in seconds since the run began, policy versions, scores and outcome
(`fate`).

A null in `scores` is a response that could not be scored. Nulls come last, and `detail` has their number and reason.
"""

BEFORE = "before"
"""Name of the initial checkpoint among the policies of an evaluation."""
AFTER = "after"
"""Name of the trained policy."""
HELDOUT = "heldout"
"""Name of the held-out prompts of the mixture as a benchmark."""
EVERYTHING = "all"
"""Name of the held-out prompts of all domains in tables of results, which also have results for each domain."""

EVALUATION_ROLLOUTS = pa.schema(
    [
        _column("benchmark", pa.string()),
        *ROLLOUTS,
        _column("answer", TEXT, nullable=True),
        _column("answer_class", pa.int32(), nullable=True),
    ]
)
"""The table of rollouts of an evaluation.

`benchmark` is `heldout` for the held-out prompts of the mixture. As an output of the pipeline the table contains the
rollouts of all policies, whose names are in `policy`. `answer` is the final answer that the verifier `math` extracts,
or null if it finds none or for other verifiers. `answer_class` is the same number for equal answers to a prompt, if the
benchmark has majority@k.
"""

EVALUATION_PROMPTS = pa.schema([_column("benchmark", pa.string()), *PROMPTS])
"""The table of all prompts of an evaluation, one per row, by benchmark."""

_TEXTS = {"response", "turns", "outcome", "detail"}
VERDICTS = pa.schema([column for column in EVALUATION_ROLLOUTS if column.name not in _TEXTS])
"""The columns of `EVALUATION_ROLLOUTS` that comparisons read, without the texts, which are most of the bytes."""

EVALUATION = pa.schema(
    [
        _column("benchmark", pa.string()),
        _column("metric", pa.string()),
        _column("policy", pa.string()),
        _column("baseline", pa.string(), nullable=True),
        _column("value", pa.float64()),
        _column("low", pa.float64()),
        _column("high", pa.float64()),
        _column("n", pa.int64()),
        _column("p_value", pa.float64(), nullable=True),
        _column("detectable", pa.float64(), nullable=True),
    ]
)
"""The table of evaluation results, with one metric of a policy and its 95% confidence interval per row. `n` is the
number of prompts.

If `baseline` names another policy, the value is the difference from this policy on the same prompts, with its p-value,
which is not corrected for the number of benchmarks, and the smallest difference that they detect with a probability of
80% (`tasks.statistics.intervals.Estimate`). Both are null for a policy's own value. `benchmark` is
`all` or a domain for the held-out prompts of the mixture, otherwise the name of the benchmark. Policy `before` is the
initial checkpoint and `after` is the trained policy.
"""

VALUE_CHARS = 200
"""Maximum number of characters of `value` and `clashed_text` in a row of `SET_ASIDE`. Longer texts are cut."""


def canonical_json(value: Any) -> str:
    """Return `value` as JSON that is equal for equal values: sorted keys, no spaces, unescaped UTF-8."""
    return _CANONICAL.encode(value)


def json_digest(value: Any) -> str:
    """Return the SHA-256 of `canonical_json(value)`, as hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def row_rank(seed: int, row: int) -> bytes:
    """Return the rank of a source's row, a hash. Samples of rows are selected by rank, the smallest first."""
    return hashlib.sha256(f"{seed}:{row}".encode()).digest()


def prompt_id(
    messages: Iterable[Mapping[str, str]], verifier: str, ground_truth: Any, environment: str | None = None
) -> str:
    """Return the id of a prompt: a hash of its messages, verifier, ground truth and environment (32 hex digits).

    `ground_truth` is a JSON value, and `environment` is the value of the column `environment`.
    """
    return prompt_id_of_texts(messages, verifier, canonical_json(ground_truth), environment)


def prompt_id_of_texts(
    messages: Iterable[Mapping[str, str]], verifier: str, ground_truth: str, environment: str | None = None
) -> str:
    """Return the same as `prompt_id` for a ground truth in `canonical_json`, which is not encoded again."""
    return _compute_digest(
        [*_list_turns(messages), verifier, ground_truth, *([] if environment is None else [environment])]
    )


def messages_key(messages: Iterable[Mapping[str, str]]) -> str:
    """Return the id of the part of a prompt that a policy sees: a hash of its messages (32 hex digits)."""
    return _compute_digest(_list_turns(messages))


def _list_turns(messages: Iterable[Mapping[str, str]]) -> list[str]:
    return [text for message in messages for text in (message["role"], message["content"])]


def _compute_digest(parts: list[str]) -> str:
    """Return a hash of the texts. Each follows its length, so that no other texts are hashed as the same ones."""
    return hashlib.sha256("".join([f"{len(part)}:{part}" for part in parts]).encode()).hexdigest()[:32]


def set_aside_row(
    stage: Stage,
    kind: Kind,
    source: str,
    row: int,
    reason: str,
    value: Any,
    *,
    prompt_id: str | None = None,
    clashed_with: str | None = None,
    clashed_text: str | None = None,
) -> dict[str, Any]:
    """Return a row of `SET_ASIDE`. Long texts are cut, and a `value` that is not text is converted to JSON."""
    text = _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    # The offending text may not be encodable as UTF-8.
    reason, text = (part.encode(errors="backslashreplace").decode() for part in (reason, text))
    return {
        "stage": stage,
        "kind": kind,
        "source": source,
        "row": row,
        "prompt_id": prompt_id,
        "clashed_with": clashed_with,
        "reason": reason,
        "value": text,
        "clashed_text": None if clashed_text is None else _cut(clashed_text),
    }


def set_aside_prompt(
    stage: Stage, kind: Kind, prompt: Mapping[str, Any], reason: str, value: str | None = None, **clash: str | None
) -> dict[str, Any]:
    """Return the row of `SET_ASIDE` of a prompt, given by its row of `PROMPTS`.

    Its value is the prompt's last message if `value` is None. `clash` is as for `set_aside_row`.
    """
    shown = prompt["messages"][-1]["content"] if value is None else value
    names = {"prompt_id": prompt["prompt_id"], **clash}
    return set_aside_row(stage, kind, prompt["source"], prompt["row"], reason, shown, **names)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 3] + "..."


@dataclass
class StageSummary:
    """The summary of a stage's run. It is a typed output, so that a cached stage still has one.

    Attributes:
        stage: name of the stage. A stage that runs several times adds a name for each run (`sourcing: gsm8k`).
        started_at: time when the work began (UTC).
        seconds: wall time of the work.
        headline: one human-readable sentence.
        facts: further JSON values for the report and for programs.
        run: id of the run that executed the stage (`tasks.flyte.run_names`). In other runs it came from the cache.
        image: the container image of the stage (`tasks.machine.image.image`).
        cores: number of CPU cores that it used for `seconds` (`tasks.machine.resources`).
        gpus: number of GPUs that it used for `seconds`.
    """

    stage: str
    started_at: datetime
    seconds: float
    headline: str
    facts: dict = field(default_factory=dict)  # for dict[str, Any], flytekit warns that it would pickle the values
    run: str = ""
    image: str = ""
    cores: float = 0.0
    gpus: float = 0.0

    def __str__(self) -> str:
        return self.headline

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values, for the metadata of a table."""
        return asdict(self) | {"started_at": self.started_at.isoformat()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a summary from the values that `to_json` returned."""
        return cls(**{**values, "started_at": datetime.fromisoformat(values["started_at"])})
