"""Lets the policy try again, at a discount, if the verifier rejects its answer.

policy: an answer ──► verifier: fails ──► Try again. ──► policy: another one ──► verifier ──► reward * discount
"""

from __future__ import annotations

from contextlib import suppress

from tasks.environments.interface import EpisodeOver, Generate, Judgement, Outcome, Prompt

WRONG = "That is not right."
"""First words of the message to the policy after an answer that fails."""


async def second_try(
    prompt: Prompt, generate: Generate, *, attempts: int = 2, discount: float = 0.5, reasons: bool = False
) -> Outcome:
    """Verify each answer until one passes, and reward the last with its score times `discount` per earlier attempt.

    Args:
        prompt: calls the verifier.
        generate: continues the conversation.
        attempts: maximum number of answers.
        discount: factor on the score for each earlier attempt, in [0, 1].
        reasons: True to show the verifier's reason to the policy. The reasons of `math` and `chat_reference` contain
            the reference, and the reasons of `code` quote assertion messages, so a policy would learn to copy them: do
            not use this option with these verifiers. `precise_if` names the constraints that are broken.

    Raises:
        ValueError: If an option is out of range.
    """
    if attempts < 1:
        raise ValueError(f"second_try: attempts is {attempts}, and must be 1 or more")
    if not 0 <= discount <= 1:
        raise ValueError(f"second_try: discount is {discount}, and must be from 0 to 1")
    turn = await generate()
    judgement = await prompt.judge(turn.text)
    attempt = 1
    with suppress(EpisodeOver):  # the last answer counts, whatever limit leaves no further one
        while not judgement.passed and attempt < attempts and not turn.last:
            turn = await generate(_format_answer(judgement, prompt) if reasons else f"{WRONG} Try again.")
            judgement = await prompt.judge(turn.text)
            attempt += 1
    return Outcome(judgement.score * discount ** (attempt - 1), judgement.passed)


def _format_answer(judgement: Judgement, prompt: Prompt) -> str:
    return f"{WRONG} {prompt.plain(judgement.detail)}\nTry again."
