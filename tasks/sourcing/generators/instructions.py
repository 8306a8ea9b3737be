"""Generates instruction-following prompts: a topic and one to five constraints that `precise_if` can verify.

Each constraint draws its checker's arguments and states them in one plain sentence (`constraints`); those of a prompt
are such that one answer can fulfil them together (`conflicts`). As in IF-RLVR (Pyatkin et al. 2025,
https://arxiv.org/abs/2507.02833), they come from IFEval and from the paper's training constraints.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tasks.sourcing.generators import TooFewPromptsError
from tasks.sourcing.generators.conflicts import ALONE, compatible
from tasks.sourcing.generators.constraints import CONSTRAINTS
from tasks.sourcing.generators.topics import TOPICS
from tasks.verifiers.instructions.needs import NLTK_NEEDS

DEFAULT_CONSTRAINTS = tuple(name for name in CONSTRAINTS if name not in NLTK_NEEDS)
"""The constraints that can be judged without NLTK data."""

ATTEMPTS_PER_PROMPT = 200
"""Draws until a prompt must be a new one."""


def generate(
    size: int, constraints: Sequence[str], min_constraints: int, max_constraints: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield `size` distinct rows `{prompt, instruction_ids, kwargs}`.

    The constraints come first in rotation, so that each occurs about equally often, except those that few others are
    compatible with. The number of constraints is drawn uniformly from the range, and the others from the compatible
    ones.

    Args:
        size: the number of rows.
        constraints: ids of the constraints to draw from.
        min_constraints: constraints of a prompt, at least.
        max_constraints: constraints of a prompt, at most.
        seed: of all draws.

    Raises:
        TooFewPromptsError: the topics and constraints do not give that many distinct prompts.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    first_ones = [name for name in constraints if min_constraints == 1 or name not in ALONE] or constraints
    for number in range(size):
        first = first_ones[number % len(first_ones)]
        for _ in range(ATTEMPTS_PER_PROMPT):
            row = _prompt(rng, first, constraints, rng.randint(min_constraints, max_constraints))
            if row is not None and row["prompt"] not in seen:
                break
        else:
            raise TooFewPromptsError(
                f"found {number} distinct prompts of the {size} asked for: allow more constraints than "
                f"{list(constraints)}, a wider range than {min_constraints} to {max_constraints}, or a smaller size"
            )
        seen.add(row["prompt"])
        yield row


def _prompt(rng: random.Random, first: str, constraints: Sequence[str], count: int) -> dict[str, Any] | None:
    """A prompt with `count` constraints, or None where too few are compatible with those already drawn."""
    topic, ids = rng.choice(TOPICS), [first]
    while len(ids) < count:
        fitting = [name for name in constraints if name not in ids and compatible([*ids, name])]
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
