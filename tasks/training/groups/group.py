"""Defines prompts, the groups of responses sampled from them, and the scored groups that are trained on.

    Prompt ──► Group: samples, each WAITING ──► GENERATING ──► JUDGING ──► JUDGED
                 │                     ▲             │
                 │                     └─ actor lost ┘
                 │ all samples scored
                 ▼
               JudgedGroup: the scored responses, and the time at which it was finished; immutable

A group that enters a run leaves it with exactly one outcome (`records.ledger.Fate`), either scored or earlier:

    trained         a step was taken on it (again: `replayed`)
    zero_variance   its scores are all equal, so that it carries no gradient
    stale           the policy that sampled it is older than `max_staleness` allows
    failed          its prompt cannot be answered, too few responses could be scored, or the step was not finite
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

from tasks.generation import chat_template
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.generation.interface import Completion
from tasks.objective import compute_shaped_reward
from tasks.objective.rounding import are_equal
from tasks.recipe.objective import ObjectiveConfig, ShapingConfig
from tasks.tables.schemas import Message
from tasks.verifiers import Reward, Score


@dataclass(frozen=True)
class Prompt:
    """A prompt of the training mixture: one row of the table, tokenised.

    Attributes:
        prompt_id: id of the row.
        domain: name of the domain, such as `math`. Rewards are reported by domain.
        messages: the conversation to answer.
        verifier: name of the verifier that scores responses.
        ground_truth: parsed JSON value that the verifier compares responses with.
        token_ids: the conversation, tokenised with the model's chat template.
        pass_rate: share of correct responses under the initial checkpoint, 0 to 1, or None if it was not measured.
        environment: the environment that answers between the turns of an episode. Optional. If None, a response is a
            single turn.
        source: name of the source of the data file.
        metadata: the prompt's metadata, as JSON of an object.
    """

    prompt_id: str
    domain: str
    messages: list[Message]
    verifier: str
    ground_truth: Any
    token_ids: list[int]
    pass_rate: float | None = 0.0
    environment: EnvironmentSpec | None = None
    source: str = ""
    metadata: str = "{}"

    @classmethod
    def from_row(cls, row: Mapping[str, Any], token_ids: list[int]) -> Prompt:
        """Create a prompt from its tokens and a row of `schemas.PROMPTS`, or of a table with more columns."""
        return cls(
            prompt_id=row["prompt_id"],
            domain=row["domain"],
            messages=row["messages"],
            verifier=row["verifier"],
            ground_truth=json.loads(row["ground_truth"]),
            token_ids=token_ids,
            pass_rate=row.get("pass_rate"),
            environment=EnvironmentSpec.from_json(row["environment"]),
            source=row["source"],
            metadata=row["metadata"],
        )


class Stage(Enum):
    """Stage of a sample between the prompt and the score."""

    WAITING = "waiting"
    """The sample waits for an actor."""
    GENERATING = "generating"
    """An actor generates the sample's response."""
    JUDGING = "judging"
    """The response is generated, and the verifier scores it."""
    JUDGED = "judged"
    """The sample has a score, or the reason why there is none."""


@dataclass(eq=False)
class Sample:
    """One sample of a group: a response, or the request for one.

    Attributes:
        group: the group that the sample belongs to.
        index: number of the sample within the group, from 0.
        stage: stage of the sample. Only `Window` changes it.
        actor: index of the actor slot that was last given the sample, or -1 before the first.
        began_under: version of the policy that began the response, or None before that.
        recorded: the turns of an unfinished episode, which another actor or a resumed run continues. None before the
            first turn.
        environment_seconds: seconds that the environment has taken since an actor was last given the sample. 0 for a
            single response.
        completion: the response, once it is generated.
        score: the verifier's score, once there is one. If scoring failed, `Score.error` is the reason.
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
    """All samples of one prompt that are compared with each other (a GRPO group), until they are scored.

    Attributes:
        number: number of the group within the run, from 0, in the order in which prompts are sampled.
        prompt: the prompt that all samples answer.
        sampled_at: time at which the group was opened, in seconds since the run began.
        policy_version: newest published version of the policy at that time.
        samples: the samples, in the order of their indices.
        lost_at: slot indices of the actors that were lost while they generated for this group, one for each loss.
    """

    number: int
    prompt: Prompt
    sampled_at: float
    policy_version: int
    samples: list[Sample] = field(default_factory=list)
    lost_at: list[int] = field(default_factory=list)

    @classmethod
    def create(cls, number: int, prompt: Prompt, samples: int, *, sampled_at: float, policy_version: int) -> Group:
        """Create a group with this number of samples, which all wait for an actor."""
        group = cls(number, prompt, sampled_at, policy_version)
        group.samples = [Sample(group, index) for index in range(samples)]
        return group

    @property
    def completions(self) -> list[Completion]:
        """The responses generated so far, in the order of their samples."""
        return [sample.completion for sample in self.samples if sample.completion]

    @property
    def actors(self) -> list[int]:
        """Indices of the slots whose actors generated a response of the group, sorted."""
        return sorted({sample.actor for sample in self.samples if sample.completion})

    @property
    def first_version(self) -> int:
        """Oldest version of the policy that sampled a token of the group, including unfinished responses."""
        begun = [sample.began_under for sample in self.samples if sample.stage is Stage.GENERATING]
        recorded = [sample.recorded for sample in self.samples if sample.recorded and not sample.completion]
        versions = [
            *(version for version in begun if version is not None),
            *_list_versions(self.completions),
            *_list_versions(recorded),
        ]
        return min(versions, default=self.policy_version)

    @property
    def last_version(self) -> int:
        """Newest version of the policy that sampled a token of a finished response of the group."""
        return max(_list_versions(self.completions), default=self.policy_version)

    @property
    def all_judged(self) -> bool:
        """Return whether every sample is scored."""
        return all(sample.stage is Stage.JUDGED for sample in self.samples)

    @property
    def errors(self) -> list[str]:
        """The reasons why samples could not be scored, one for each of these samples."""
        return [sample.score.error for sample in self.samples if sample.score and sample.score.error is not None]


@dataclass(frozen=True)
class JudgedSample:
    """One response with its score.

    Attributes:
        completion: the response.
        score: the value that training maximises, which is the verifier's score after shaping.
        passed: whether the response is correct according to the verifier.
        rewards: the rewards whose weighted sum is the verifier's score. Empty if there is only one reward.
    """

    completion: Completion
    score: float
    passed: bool
    rewards: tuple[Reward, ...]

    @property
    def components(self) -> tuple[Reward, ...]:
        """The rewards of the response. If the verifier returned none, its score is the only reward."""
        return self.rewards or (Reward("score", 1.0, self.score),)


class UnjudgedSample(NamedTuple):
    """The length in tokens of a response that could not be scored, and the reason."""

    num_tokens: int
    reason: str


@dataclass(frozen=True, eq=False)
class JudgedGroup:
    """A group whose samples have all been scored, with the data that training needs. It is immutable.

    A response that could not be scored is in `unjudged` and not in `samples`, so groups may differ in size.

    Attributes:
        sampled: the group as it was sampled.
        samples: the scored responses, in the order in which they were sampled.
        unjudged: the responses that could not be scored.
        finished_at: time of the last score, in seconds since the run began.
        replays: number of times that the group has been taken out of the replay buffer.
    """

    sampled: Group
    samples: tuple[JudgedSample, ...]
    unjudged: tuple[UnjudgedSample, ...]
    finished_at: float
    replays: int = 0

    @classmethod
    def from_group(cls, group: Group, shaping: ShapingConfig, finished_at: float) -> JudgedGroup:
        """Create the scored group from `group`, and shape its scores.

        Raises:
            ValueError: a sample is not scored yet.
        """
        samples, unjudged = [], []
        for sample in group.samples:
            completion, score = sample.completion, sample.score
            if completion is None or score is None:
                raise ValueError(f"group {group.number} has samples that are not scored: it is not ready")
            length = completion.num_tokens
            if score.error is not None:
                unjudged.append(UnjudgedSample(length, score.error))
                continue
            shaped = compute_shaped_reward(score.reward, length, completion.truncated, shaping)
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
        """The scored responses, in the order of `samples`."""
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
        """Return whether each response is correct, in the order of `samples`."""
        return [sample.passed for sample in self.samples]

    @cached_property
    def first_version(self) -> int:
        """Oldest version of the policy that sampled a token of a scored response."""
        return min(_list_versions(self.completions), default=self.sampled.policy_version)

    @cached_property
    def last_version(self) -> int:
        """Newest version of the policy that sampled a token of a scored response."""
        return max(_list_versions(self.completions), default=self.sampled.policy_version)

    def describe_zero_variance(self, objective: ObjectiveConfig) -> str:
        """Return why the group carries no gradient under `objective`, or an empty string if it carries a gradient.

        It carries none if all scores are equal or, for GDPO, if no reward with a nonzero weight varies. It also carries
        none if every response is masked out of the loss. With `advantage.keep_equal_rewards`, equal scores do not
        matter.
        """
        if objective.shaping.filter_truncated and all(completion.truncated for completion in self.completions):
            return "every response was truncated"
        if objective.keeps_equal_rewards:
            return ""
        scores = self.scores
        if objective.reward_aggregation == "sum_then_normalize":
            return f"every score is {scores[0]:g}" if are_equal(scores) else ""
        columns = zip(*(sample.components for sample in self.samples), strict=True)
        weighted = ([part.value for part in column if part.weight and part.value is not None] for column in columns)
        varies = any(values and not are_equal(values) for values in weighted)
        return "" if varies else "no reward varies"


def _list_versions(completions: Sequence[Completion]) -> Iterator[int]:
    return (span.version for completion in completions for span in completion.versions)


def describe_unjudged(reasons: Sequence[str], samples: int) -> str:
    """Return one line about the responses that could not be scored, or an empty string if all were.

    `reasons` contains one reason for each of them, and the line quotes the first. `samples` is the number of sampled
    responses.
    """
    return f"{len(reasons)} of {samples} responses could not be scored: {reasons[0]}" if reasons else ""


def read_prompts(mixture: pa.Table, tokenizer: Any, variables: Mapping[str, Any]) -> list[Prompt]:
    """Return the rows of a mixture as prompts, sorted by the column `order` and tokenised with the chat template.

    Args:
        mixture: a table of `schemas.MIXTURE`.
        tokenizer: a Hugging Face tokenizer with a chat template.
        variables: values of the template's variables.

    Raises:
        ChatTemplateError: the template does not have one of these variables.
    """
    rows = mixture.sort_by("order").to_pylist()
    token_ids = chat_template.encode(tokenizer, rows, variables)
    return [Prompt.from_row(row, tokens) for row, tokens in zip(rows, token_ids, strict=True)]
