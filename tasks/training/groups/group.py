"""What the controller handles: prompts, and the groups of responses sampled from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.generation import chat_template
from tasks.generation.interface import Completion
from tasks.tables.schemas import Message
from tasks.training.objective import ObjectiveConfig, ShapingConfig, shaped_reward
from tasks.verifiers import Reward, Score


@dataclass(frozen=True)
class Prompt:
    """A row of the mixture, tokenised.

    `ground_truth` is the parsed JSON value, `pass_rate` the prompt's under the initial checkpoint.
    """

    prompt_id: str
    domain: str
    messages: list[Message]
    verifier: str
    ground_truth: Any
    token_ids: list[int]
    pass_rate: float = 0.0


class Stage(Enum):
    """Where a sample stands."""

    WAITING = "waiting"
    """For an actor."""
    GENERATING = "generating"
    JUDGING = "judging"
    JUDGED = "judged"


@dataclass(eq=False)
class Sample:
    """One response of a group, or what will be one.

    Attributes:
        index: its place within the group, from 0.
        actor: index of the actor that was given it last; -1 before.
        began_under: version of the policy that generates it, or generated it, from its beginning; None before.
        completion: set once it is generated.
        score: set once it is judged; `Score.error` says that it cannot be.
    """

    group: Group
    index: int
    stage: Stage = Stage.WAITING
    actor: int = -1
    began_under: int | None = None
    completion: Completion | None = None
    score: Score | None = None


class Unjudged(NamedTuple):
    """A response that could not be judged: how many tokens it has, and why there is no judgement."""

    num_tokens: int
    reason: str


@dataclass(eq=False)
class Group:
    """All responses to one prompt that are compared with each other (a GRPO group).

    Times are seconds since the run began. Once all `samples` are judged, there stand in the order of `completions`:
    `scores`, which training maximises, `rewards`, what those are made of (empty where the verifier's score is all), and
    whether each is right (`passed`). Groups differ in size then: a response without a judgement is in `unjudged` and
    nowhere else.

    Attributes:
        lost_at: places whose actors were lost while they generated for this group, one for each loss.
        replays: how often it was taken out of the replay buffer; its fate was decided before.
    """

    number: int
    prompt: Prompt
    sampled_at: float
    policy_version: int
    samples: list[Sample] = field(default_factory=list)
    lost_at: list[int] = field(default_factory=list)
    replays: int = 0
    completions: list[Completion] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    finished_at: float | None = None
    rewards: list[tuple[Reward, ...]] = field(default_factory=list)
    passed: list[bool] = field(default_factory=list)
    unjudged: list[Unjudged] = field(default_factory=list)
    _first_version: int | None = None

    @classmethod
    def of(cls, number: int, prompt: Prompt, samples: int, *, sampled_at: float, policy_version: int) -> Group:
        """A group whose samples all wait for an actor."""
        group = cls(number, prompt, sampled_at, policy_version)
        group.samples = [Sample(group, index) for index in range(samples)]
        return group

    @property
    def actors(self) -> list[int]:
        """Who generated its finished samples."""
        return sorted({sample.actor for sample in self.samples if sample.completion})

    @property
    def first_version(self) -> int:
        """The oldest policy that sampled a token of this group, those that are being generated included."""
        if self.finished_at is not None:
            if self._first_version is None:  # asked for whenever a group is decided, for all that are ready
                self._first_version = min(self._versions(), default=self.policy_version)
            return self._first_version
        begun = [sample.began_under for sample in self.samples if sample.stage is Stage.GENERATING]
        done = [span.version for sample in self.samples if sample.completion for span in sample.completion.versions]
        return min([*(version for version in begun if version is not None), *done], default=self.policy_version)

    @property
    def last_version(self) -> int:
        """The newest policy that sampled a token of this group."""
        return max(self._versions(), default=self.policy_version)

    def _versions(self) -> Iterator[int]:
        return (span.version for completion in self.completions for span in completion.versions)

    @property
    def all_judged(self) -> bool:
        """Whether every sample is judged."""
        return all(sample.stage is Stage.JUDGED for sample in self.samples)

    @property
    def errors(self) -> list[str]:
        """Of each sample that cannot be judged, why not."""
        return [sample.score.error for sample in self.samples if sample.score and sample.score.error is not None]

    def take_judgements(self, shaping: ShapingConfig) -> None:
        """All samples are judged: fill in what follows from it, and shape the rewards."""
        pairs = [(sample.completion, sample.score) for sample in self.samples if sample.completion and sample.score]
        assert len(pairs) == len(self.samples)
        self.unjudged = [Unjudged(len(c.token_ids), score.error) for c, score in pairs if score.error is not None]
        judged = [(completion, score) for completion, score in pairs if score.error is None]
        self.completions = [completion for completion, _ in judged]
        self.scores = [shaped_reward(score.reward, len(c.token_ids), c.truncated, shaping) for c, score in judged]
        self.rewards = [score.rewards for _, score in judged]
        self.passed = [score.passed for _, score in judged]

    def teaches_nothing(self, objective: ObjectiveConfig) -> str:
        """Why the group carries no gradient; empty where it does.

        All scores are equal or, for GDPO, each of the rewards' values; or no response is left in the loss.
        """
        if objective.shaping.filter_truncated and all(completion.truncated for completion in self.completions):
            return "every response was truncated"
        if objective.reward_aggregation == "sum_then_normalize":
            return f"every score is {self.scores[0]:g}" if max(self.scores) == min(self.scores) else ""
        columns = zip(*self.components(), strict=True)
        varies = any(len({part.value for part in column if part.value is not None}) > 1 for column in columns)
        return "" if varies else "no reward varies"

    def components(self) -> list[tuple[Reward, ...]]:
        """The rewards of each completion; its score as the only one where there are no others."""
        return [
            rewards or (Reward("score", 1.0, score),) for rewards, score in zip(self.rewards, self.scores, strict=True)
        ]


def why_unjudged(reasons: Sequence[str], samples: int) -> str:
    """One line about a group of which `samples` responses were sampled; empty where all were judged."""
    return f"{len(reasons)} of {samples} responses could not be judged: {reasons[0]}" if reasons else ""


def read_prompts(mixture: pa.Table, tokenizer: Any, variables: Mapping[str, Any]) -> list[Prompt]:
    """The rows of a mixture as prompts, in their order, with the chat template applied.

    Args:
        mixture: a table of `schemas.MIXTURE`.
        tokenizer: a Hugging Face tokenizer with a chat template.
        variables: of the template.

    Raises:
        ChatTemplateError: it has no such variable.
    """
    rows = mixture.sort_by("order").to_pylist()
    token_ids = chat_template.encode(tokenizer, (row["messages"] for row in rows), variables)
    return [
        Prompt(
            prompt_id=row["prompt_id"],
            domain=row["domain"],
            messages=row["messages"],
            verifier=row["verifier"],
            ground_truth=json.loads(row["ground_truth"]),
            token_ids=tokens,
            pass_rate=row["pass_rate"],
        )
        for row, tokens in zip(rows, token_ids, strict=True)
    ]
