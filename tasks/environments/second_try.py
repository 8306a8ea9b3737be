"""A second try: the verifier judges a turn, and where it fails the policy may answer once more, for less.

policy: an answer ──► verifier: fails ──► Try again. ──► policy: another one ──► verifier ──► reward * discount
"""

from __future__ import annotations

from tasks.environments.interface import Generate, Judgement, Outcome, Prompt

WRONG = "That is not right."
"""The beginning of what the policy reads after an answer that fails."""


async def second_try(
    prompt: Prompt, generate: Generate, *, attempts: int = 2, discount: float = 0.5, reasons: bool = False
) -> Outcome:
    """Judge each answer until one passes, and reward the last by its score times `discount` for each one before it.

    Args:
        prompt: asks the verifier.
        generate: continues the conversation.
        attempts: most answers.
        discount: worth of an answer relative to the same one an attempt before, in [0, 1].
        reasons: True to hand the verifier's reason back. Those of `math` and `chat_reference` name the reference, and
            those of `code` quote the message of an assertion, so that a policy would learn to copy: leave it off for
            them. `precise_if` names the constraints that are broken.

    Raises:
        ValueError: an option is out of its range.
    """
    if attempts < 1:
        raise ValueError(f"second_try: attempts is {attempts}, and must be 1 or more")
    if not 0 <= discount <= 1:
        raise ValueError(f"second_try: discount is {discount}, and must be from 0 to 1")
    turn = await generate()
    judgement = await prompt.judge(turn.text)
    attempt = 1
    while not judgement.passed and attempt < attempts and not turn.last:
        turn = await generate(_answer_to(judgement, prompt) if reasons else f"{WRONG} Try again.")
        judgement = await prompt.judge(turn.text)
        attempt += 1
    return Outcome(judgement.score * discount ** (attempt - 1), judgement.passed)


def _answer_to(judgement: Judgement, prompt: Prompt) -> str:
    return f"{WRONG} {prompt.plain(judgement.detail)}\nTry again."
