"""Generates instruction-following prompts: a topic and one to five constraints that `precise_if` can verify.

Each constraint samples its checker's arguments and states them in the prompt (`constraints`). The constraints of a
prompt can be satisfied by one answer (`conflicts`). As in IF-RLVR (Pyatkin et al. 2025,
https://arxiv.org/abs/2507.02833), they come from IFEval and from the paper's training constraints.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tasks.sourcing.generators import TooFewPromptsError
from tasks.sourcing.generators.conflicts import ALONE, can_combine
from tasks.sourcing.generators.constraints import CONSTRAINTS
from tasks.sourcing.generators.topics import TOPICS
from tasks.verifiers.instructions.needs import NLTK_NEEDS

DEFAULT_CONSTRAINTS = tuple(name for name in CONSTRAINTS if name not in NLTK_NEEDS)
"""The constraints that can be verified without NLTK data."""

ATTEMPTS_PER_PROMPT = 200
"""Maximum number of attempts to generate a new prompt."""


def generate(
    size: int, constraints: Sequence[str], min_constraints: int, max_constraints: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield `size` distinct rows `{prompt, instruction_ids, kwargs}`.

    The first constraint rotates, so that each occurs about equally often, except constraints that are compatible with
    few others. The number of constraints is sampled uniformly from the range, and the others from the compatible ones.

    Args:
        size: the number of rows.
        constraints: ids of the constraints to sample from.
        min_constraints: minimum number of constraints of a prompt.
        max_constraints: maximum number of constraints of a prompt.
        seed: seed of all sampling.

    Raises:
        TooFewPromptsError: the topics and constraints do not give that many distinct prompts.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    first_ones = [name for name in constraints if min_constraints == 1 or name not in ALONE] or constraints
    for number in range(size):
        first = first_ones[number % len(first_ones)]
        for _ in range(ATTEMPTS_PER_PROMPT):
            row = _make_prompt(rng, first, constraints, rng.randint(min_constraints, max_constraints))
            if row is not None and row["prompt"] not in seen:
                break
        else:
            raise TooFewPromptsError(
                f"found {number} distinct prompts of the {size} asked for: allow more constraints than "
                f"{list(constraints)}, a wider range than {min_constraints} to {max_constraints}, or a smaller size"
            )
        seen.add(row["prompt"])
        yield row


def _make_prompt(rng: random.Random, first: str, constraints: Sequence[str], count: int) -> dict[str, Any] | None:
    """Return a prompt with `count` constraints, or None if too few are compatible with those already sampled."""
    topic, ids = rng.choice(TOPICS), [first]
    while len(ids) < count:
        fitting = [name for name in constraints if name not in ids and can_combine([*ids, name])]
        if not fitting:
            return None
        ids.append(rng.choice(fitting))
    drawn = [CONSTRAINTS[name](rng, topic) for name in ids]
    text = " ".join([topic.task, *(sentence for sentence, _ in drawn)])
    return {
        "prompt": "\n".join(line.strip() for line in text.splitlines()),
        "instruction_ids": ids,
        "kwargs": [kwargs for _, kwargs in drawn],
    }
