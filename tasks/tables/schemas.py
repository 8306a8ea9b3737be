"""The columns of the tables that cross a stage boundary, the identities in them, and the summary of a stage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, Self, get_args

import pyarrow as pa

Domain = Literal["math", "code", "precise_if", "chat"]
"""Name of a domain that has verifiers of its own; a source may name any other."""
DOMAINS: tuple[Domain, ...] = get_args(Domain)

Message = dict[str, str]


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


TEXT = pa.large_string()
"""The type of text columns that may hold more than 2 GiB in one piece, where the offsets of Arrow's other type
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
"""The table of prompts, one a row.

`prompt_id` comes from `prompt_id()`. `row` is the number of the prompt's row in its source, from 0. `ground_truth` and
`metadata` are JSON text; `metadata` has what the user keeps (`columns`), what the messages held beside role and content
(`messages`) and the number of assistant's turns left off (`answers_left_off`). `cluster` is the same for prompts that
stay on one side of the split into training and held-out prompts: the key of the first of them
(`tasks.tables.texts.prompt_keys`) in hex digits; null for a prompt that is like no other. `environment` is JSON text
(`tasks.environments.spec.EnvironmentSpec`); null for a prompt that is answered in a single turn.
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
    "unjudged",
    "environment",
]
"""The fault for which a row is set aside.

- `malformed`: it is no row;
- `unusable`: it has no prompt or ground truth that could be used;
- `length`: its prompt is too long or too short;
- `language`: its prompt is of another language;
- `ground_truth`: its own verifier rejects its ground truth;
- `contaminated`: its prompt holds a question of an evaluation set;
- `control_tokens`: its prompt holds a control token of the model;
- `duplicate`, `near_duplicate`: another row has the same prompt, or nearly the same;
- `unjudged`: none of its rollouts could be judged;
- `environment`: its verifier needs data or a package that the environment lacks.
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
    ]
)
"""The table of rows set aside, one a row: the `Stage`, the `Kind`, the row's number in its source from 0, the reason,
and the value at fault.

`prompt_id` is null for a row that became no prompt; `clashed_with` is the prompt that stays instead, where one does.
"""

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
"""The type of the turns of an episode after its prompt: those of the policy (`sampled`, with the tokens that it
sampled) and those of the environment, the last of which before a turn of the policy has the tokens of all of them.
Those of a conversation that was begun `anew` are all that the policy saw from then on."""

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
"""The table of responses before they are judged, one completion a row.

Of an episode, `response` is the last turn, and `turns` has all that follow the prompt; null for a single response.
`outcome` is JSON text, the reward that an environment gave or its failure (`tasks.generation.interface.EpisodeEnd`);
null where the verifier judges.
"""

UNKNOWN_END = "unknown"
"""The `finish_reason` of a response of which it is not known how it ended."""

REWARDS = pa.list_(pa.struct([_column("name", pa.string()), _column("value", pa.float64(), nullable=True)]))
"""The type of the rewards of a response by name, before their weights, the verifier's own first; null for one that does
not apply. It is empty where the verifier's score is the only reward."""

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
"""The table of judged responses, one completion a row; where it could not be judged, `score`, `passed` and `rewards`
are null and `error` has the reason.

`score` is in [0, 1], the weighted mean where a prompt has several rewards. `passed` is the verdict of the prompt's own
verifier, whatever other rewards pay (`tasks.verifiers.scores.Score.passed`). `detail` is the verifier's own line on it:
the answer that it read, and what was wrong.
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
"""The table of prompts with the results of the initial checkpoint: of the judged rollouts `pass_rate` is the share that
passes, in [0, 1], and `mean_score` the mean score, which the difficulty filter reads. All four are null where no
difficulty was measured (`difficulty: null`)."""

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
"""The table that compares several checkpoints, or ways to use one, on the same prompts: a row for each prompt and
variant."""

MIXTURE = pa.schema([*GRADED, _column("repeat", pa.int32()), _column("order", pa.int64())])
"""The table of graded prompts in the order of training (`order` counts from 0).

A prompt that is up-sampled has several rows; `repeat` counts its earlier ones.
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
"""The table of sampled groups, one a row: times in seconds since the run began, policy versions, scores, and fate.

A null among `scores` is a response that could not be judged; these come last, and `detail` has their number and reason.
"""

BEFORE = "before"
"""Name of the initial checkpoint among the policies of an evaluation."""
AFTER = "after"
"""Name of the trained policy."""
HELDOUT = "heldout"
"""Name of the held-out prompts of the mixture among what policies answer."""
EVERYTHING = "all"
"""Name of the held-out prompts of all domains in tables of results, where each domain has figures as well."""

EVALUATION_ROLLOUTS = pa.schema(
    [
        _column("benchmark", pa.string()),
        *ROLLOUTS,
        _column("answer", TEXT, nullable=True),
        _column("answer_class", pa.int32(), nullable=True),
    ]
)
"""The table of rollouts of an evaluation; `benchmark` is `heldout` for the held-out prompts of the mixture. As an
output of the pipeline it has the rollouts of all policies, and `policy` has their names.

`answer` is what the verifier `math` reads as the final answer; null where it finds none, and for other verifiers.
`answer_class` is the same number for equal answers to a prompt, where the benchmark has majority@k.
"""

EVALUATION_PROMPTS = pa.schema([_column("benchmark", pa.string()), *PROMPTS])
"""The table of everything that the policies of an evaluation were asked, one prompt a row, by benchmark."""

_TEXTS = {"response", "turns", "outcome", "detail"}
VERDICTS = pa.schema([column for column in EVALUATION_ROLLOUTS if column.name not in _TEXTS])
"""The columns of `EVALUATION_ROLLOUTS` that comparisons read: without the texts, which are most of the bytes."""

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
    ]
)
"""The table of evaluation results, one figure of a policy a row with its 95% confidence interval; `n` counts prompts.

Where `baseline` names another policy, the figure is the difference from it, on the same prompts. `benchmark` is `all`
or a domain for the held-out prompts of the mixture, and the name of any other benchmark. Policy `before` is the initial
checkpoint and `after` the trained policy.
"""

VALUE_CHARS = 200
"""Characters of the longest value at fault that a row of `SET_ASIDE` holds; longer ones are cut."""


def canonical_json(value: Any) -> str:
    """Return `value` as JSON text that is equal for equal values: sorted keys, no spaces, readable UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def row_rank(seed: int, row: int) -> bytes:
    """Return the rank of a source's row, a hash, by which samples of its rows are drawn: the smallest first."""
    return hashlib.sha256(f"{seed}:{row}".encode()).digest()


def prompt_id(
    messages: Iterable[Mapping[str, str]], verifier: str, ground_truth: Any, environment: str | None = None
) -> str:
    """Return the identity of a prompt: 32 hex digits over its messages, verifier, ground truth and environment.

    `ground_truth` is a JSON value, `environment` the column of that name.
    """
    return _digest([_turns(messages), verifier, ground_truth, *([] if environment is None else [environment])])


def messages_key(messages: Iterable[Mapping[str, str]]) -> str:
    """Return the identity of the part of a prompt that a policy sees: 32 hex digits over its messages."""
    return _digest(_turns(messages))


def _turns(messages: Iterable[Mapping[str, str]]) -> list[list[str]]:
    return [[turn["role"], turn["content"]] for turn in messages]


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]


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
) -> dict[str, Any]:
    """Return a row of `SET_ASIDE`; a long `value` is cut, and one that is no text becomes JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 3] + "..."
    # The text at fault may be one that no file can hold.
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
    }


@dataclass
class StageSummary:
    """The summary of a stage's run; it is a typed output, so that a cached stage still has one.

    Attributes:
        stage: name of the stage; one that runs several times adds a name for each (`sourcing: gsm8k`).
        started_at: time at which the work began (UTC).
        seconds: wall time of the work.
        headline: one sentence for people.
        facts: further figures for the report and for programs: JSON values.
        run: the run in which the stage ran (`tasks.flyte.stages.run_id`); in another run it came from the cache.
        image: the container image in which the stage ran (`tasks.machine.image.image`).
        cores: CPU cores that it held for `seconds` (`tasks.machine.resources`).
        gpus: GPUs that it held for `seconds`.
    """

    stage: str
    started_at: datetime
    seconds: float
    headline: str
    facts: dict = field(default_factory=dict)  # of dict[str, Any], flytekit warns that it would pickle the values
    run: str = ""
    image: str = ""
    cores: float = 0.0
    gpus: float = 0.0

    def __str__(self) -> str:
        return self.headline

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON values, for the metadata of a table."""
        return asdict(self) | {"started_at": self.started_at.isoformat()}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Make a summary of the values that `as_json` returned."""
        return cls(**{**values, "started_at": datetime.fromisoformat(values["started_at"])})
