"""Groups the answers to a math prompt into classes of equal answers, for majority@k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.statistics.majority import answer_classes
from tasks.verifiers.grouped import Scorer


async def group_equal_answers(answers: Sequence[str | None], ground_truth: Any, score: Scorer) -> list[int | None]:
    """Return the class of each answer, by the comparison of the verifier `math` in the prompt's mode.

    Args:
        answers: the answers of one prompt's samples (`stated_answer`), with None for a sample without an answer.
        ground_truth: the parsed ground truth of the prompt.
        score: scores a response by a verifier and a ground truth.
    """
    mode = ground_truth.get("mode", "sympy") if isinstance(ground_truth, dict) else "sympy"

    async def is_equivalent(answer: str, reference: str) -> bool:
        # In a box, every mode reads an answer unchanged. An invalid reference, such as a refusal, is equal to nothing.
        compared = await score("math", f"\\boxed{{{answer}}}", {"answer": reference, "mode": mode})
        return compared.error is None and compared.passed

    return await answer_classes(answers, is_equivalent)
