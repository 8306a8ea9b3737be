"""Prompts, the groups of responses sampled from them, and the judged groups that are trained on.

    Prompt ──► Group: samples, each WAITING ──► GENERATING ──► JUDGING ──► JUDGED
                 │                     ▲             │
                 │                     └─ actor lost ┘
                 │ all samples judged
                 ▼
               JudgedGroup: the responses with a judgement, their scores, and when it was finished; never changes

A group that enters a run leaves it with exactly one fate (`records.ledger.Fate`), judged or before:

    trained         a step was taken on it (again: `replayed`)
    zero_variance   judged, but its scores are all equal, so that it carries no gradient
    stale           the policy that sampled it is older than `max_staleness` allows
    failed          its prompt cannot be answered, too few responses could be judged, or the step was not finite
    unused          the run ended before a step needed it
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.environments.spec import EnvironmentSpec
from tasks.generation import chat_template
from tasks.generation.interface import Completion
from tasks.tables.schemas import Message
from tasks.training.objective import ObjectiveConfig, ShapingConfig, shaped_reward
from tasks.verifiers import Reward, Score


@dataclass(frozen=True)
class Prompt:
    """A prompt of the training mixture: one row of the table, tokenised.

    Attributes:
        prompt_id: id of the row.
        domain: name of the domain, such as `math`, by which rewards are reported.
        messages: the conversation that is to be answered.
        verifier: name of the verifier that judges responses.
        ground_truth: parsed JSON value that the verifier compares responses with.
        token_ids: the conversation under the model's chat template.
        pass_rate: share of right responses under the initial checkpoint, 0 to 1; None where it was not measured.
        environment: the environment that answers between the turns of an episode; None: a response is a single turn.
    """

    prompt_id: str
    domain: str
    messages: list[Message]
    verifier: str
    ground_truth: Any
    token_ids: list[int]
    pass_rate: float | None = 0.0
    environment: EnvironmentSpec | None = None

    @classmethod
    def of_row(cls, row: Mapping[str, Any], token_ids: list[int]) -> Prompt:
        """Return the prompt in a row of `schemas.PROMPTS`, or of a table with more columns, and its tokens."""
        return cls(
            prompt_id=row["prompt_id"],
            domain=row["domain"],
            messages=row["messages"],
            verifier=row["verifier"],
            ground_truth=json.loads(row["ground_truth"]),
            token_ids=token_ids,
            pass_rate=row.get("pass_rate"),
            environment=EnvironmentSpec.from_json(row["environment"]),
        )


class Stage(Enum):
    """Stage of a sample on its way from a prompt to a judgement."""

    WAITING = "waiting"
    """The sample waits for an actor."""
    GENERATING = "generating"
    """An actor generates the sample's response."""
    JUDGING = "judging"
    """The response is generated, and the verifier judges it."""
    JUDGED = "judged"
    """The sample has a judgement, or the reason why there is none."""


@dataclass(eq=False)
class Sample:
    """One sample of a group: a response, or the request for one.

    Attributes:
        group: the group that the sample belongs to.
        index: number of the sample within the group, from 0.
        stage: stage of the sample; changed by `Window` alone.
        actor: index of the actor slot that was given the sample last; -1 before.
        began_under: version of the policy under which the response was begun; None before.
        recorded: the turns of an unfinished episode, which another actor or a resumed run continues; None before the
            first one.
        environment_seconds: seconds in which the environment, not the policy, had the episode, since an actor was last
            given the sample; 0 for a single response.
        completion: the response, once it is generated.
        score: the verifier's judgement, once there is one; `Score.error` is the reason where none is possible.
    """

    group: Group
    index: int
    stage: Stage = Stage.WAITING
    actor: int = -1
    began_under: int | None = None
    recorded: Completion | None = None
    environment_seconds: float = 0.0
    completion: Completion | None = None
    score: Score | None = None


@dataclass(eq=False)
class Group:
    """All samples of one prompt that are compared with one another (a GRPO group), until they are judged.

    Attributes:
        number: number of the group within the run, from 0, in the order in which prompts are drawn.
        prompt: the prompt that all samples answer.
        sampled_at: time at which the group was opened, seconds since the run began.
        policy_version: newest published version of the policy at that time.
        samples: the samples, in the order of their indices.
        lost_at: indices of the slots whose actors were lost while they generated for this group, one for each loss.
    """

    number: int
    prompt: Prompt
    sampled_at: float
    policy_version: int
    samples: list[Sample] = field(default_factory=list)
    lost_at: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, number: int, prompt: Prompt, samples: int, *, sampled_at: float, policy_version: int) -> Group:
        """Return a new group of this number of samples, all of which wait for an actor."""
        group = cls(number, prompt, sampled_at, policy_version)
        group.samples = [Sample(group, index) for index in range(samples)]
        return group

    @property
    def completions(self) -> list[Completion]:
        """The responses that are generated so far, in the order of their samples."""
        return [sample.completion for sample in self.samples if sample.completion]

    @property
    def actors(self) -> list[int]:
        """Indices of the slots whose actors generated a response of the group, sorted."""
        return sorted({sample.actor for sample in self.samples if sample.completion})

    @property
    def first_version(self) -> int:
        """Oldest version of the policy that sampled a token of the group, unfinished responses included."""
        begun = [sample.began_under for sample in self.samples if sample.stage is Stage.GENERATING]
        recorded = [sample.recorded for sample in self.samples if sample.recorded and not sample.completion]
        versions = [
            *(version for version in begun if version is not None),
            *_versions(self.completions),
            *_versions(recorded),
        ]
        return min(versions, default=self.policy_version)

    @property
    def last_version(self) -> int:
        """Newest version of the policy that sampled a token of a finished response of the group."""
        return max(_versions(self.completions), default=self.policy_version)

    @property
    def all_judged(self) -> bool:
        """Return whether every sample is judged."""
        return all(sample.stage is Stage.JUDGED for sample in self.samples)

    @property
    def errors(self) -> list[str]:
        """The reasons why samples cannot be judged, one for each of these samples."""
        return [sample.score.error for sample in self.samples if sample.score and sample.score.error is not None]


@dataclass(frozen=True)
class JudgedSample:
    """One response with its judgement.

    Attributes:
        completion: the response.
        score: the number that training maximises: the verifier's score after shaping.
        passed: whether the verifier calls the response right.
        rewards: the rewards that the verifier's score is the weighted sum of; empty where it is the only one.
    """

    completion: Completion
    score: float
    passed: bool
    rewards: tuple[Reward, ...]

    @property
    def components(self) -> tuple[Reward, ...]:
        """The rewards of the response; its score as the only reward where the verifier gives no others."""
        return self.rewards or (Reward("score", 1.0, self.score),)


class UnjudgedSample(NamedTuple):
    """A response that could not be judged: its length in tokens, and the reason."""

    num_tokens: int
    reason: str


@dataclass(frozen=True, eq=False)
class JudgedGroup:
    """A group all of whose samples have been judged: what training needs of it. It never changes.

    A response that could not be judged is in `unjudged` and not in `samples`, so that judged groups differ in size.

    Attributes:
        sampled: the group as it was sampled.
        samples: the responses with a judgement, in the order in which they were sampled.
        unjudged: the responses that could not be judged.
        finished_at: time of the last judgement, seconds since the run began.
        replays: number of times that the group has been taken out of the replay buffer.
    """

    sampled: Group
    samples: tuple[JudgedSample, ...]
    unjudged: tuple[UnjudgedSample, ...]
    finished_at: float
    replays: int = 0

    @classmethod
    def of(cls, group: Group, shaping: ShapingConfig, finished_at: float) -> JudgedGroup:
        """Return the judged group that follows from `group`, with shaped scores.

        Raises:
            ValueError: a sample is not judged.
        """
        samples, unjudged = [], []
        for sample in group.samples:
            completion, score = sample.completion, sample.score
            if completion is None or score is None:
                raise ValueError(f"group {group.number} has samples that are not judged: it is not ready")
            length = completion.num_tokens
            if score.error is not None:
                unjudged.append(UnjudgedSample(length, score.error))
                continue
            shaped = shaped_reward(score.reward, length, completion.truncated, shaping)
            samples.append(JudgedSample(completion, shaped, score.passed, score.rewards))
        return cls(group, tuple(samples), tuple(unjudged), finished_at)

    @property
    def number(self) -> int:
        """Number of the group within the run."""
        return self.sampled.number

    @property
    def prompt(self) -> Prompt:
        """The prompt that all responses answer."""
        return self.sampled.prompt

    @property
    def completions(self) -> list[Completion]:
        """The judged responses, in the order of `samples`."""
        return [sample.completion for sample in self.samples]

    @property
    def scores(self) -> list[float]:
        """The scores that training maximises, in the order of `samples`."""
        return [sample.score for sample in self.samples]

    @property
    def unshaped_scores(self) -> list[float]:
        """The verifier's scores before shaping, in the order of `samples`."""
        scores = [sample.score for sample in self.sampled.samples]
        return [score.reward for score in scores if score is not None and score.error is None]

    @property
    def passed(self) -> list[bool]:
        """Return whether each response is right, in the order of `samples`."""
        return [sample.passed for sample in self.samples]

    @cached_property
    def first_version(self) -> int:
        """Oldest version of the policy that sampled a token of a judged response."""
        return min(_versions(self.completions), default=self.sampled.policy_version)

    @cached_property
    def last_version(self) -> int:
        """Newest version of the policy that sampled a token of a judged response."""
        return max(_versions(self.completions), default=self.sampled.policy_version)

    def zero_variance_reason(self, objective: ObjectiveConfig) -> str:
        """Return why the group carries no gradient under `objective`; an empty text where it carries one.

        It carries none where all scores are equal or, for GDPO, the values of each of the rewards that have a weight;
        or where no response is left in the loss.
        """
        if objective.shaping.filter_truncated and all(completion.truncated for completion in self.completions):
            return "every response was truncated"
        scores = self.scores
        if objective.reward_aggregation == "sum_then_normalize":
            return f"every score is {scores[0]:g}" if max(scores) == min(scores) else ""
        columns = zip(*(sample.components for sample in self.samples), strict=True)
        weighted = ([part.value for part in column if part.weight and part.value is not None] for column in columns)
        varies = any(len(set(values)) > 1 for values in weighted)
        return "" if varies else "no reward varies"


def _versions(completions: Sequence[Completion]) -> Iterator[int]:
    return (span.version for completion in completions for span in completion.versions)


def describe_unjudged(reasons: Sequence[str], samples: int) -> str:
    """Return one line about the responses, of `samples` sampled, that could not be judged; empty where all were.

    `reasons` holds one reason for each of them; the line quotes the first.
    """
    return f"{len(reasons)} of {samples} responses could not be judged: {reasons[0]}" if reasons else ""


def read_prompts(mixture: pa.Table, tokenizer: Any, variables: Mapping[str, Any]) -> list[Prompt]:
    """Return the rows of a mixture as prompts, in the order of the column `order`, tokenised by the chat template.

    Args:
        mixture: a table of `schemas.MIXTURE`.
        tokenizer: a Hugging Face tokenizer with a chat template.
        variables: values of the template's variables.

    Raises:
        ChatTemplateError: the template has no variable of such a name.
    """
    rows = mixture.sort_by("order").to_pylist()
    token_ids = chat_template.encode(tokenizer, rows, variables)
    return [Prompt.of_row(row, tokens) for row, tokens in zip(rows, token_ids, strict=True)]
