"""Renders the two messages to a judge from a template in `templates/`, conversation, reference and answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tasks.verifiers.chat.config import TEMPLATES, JudgeConfig
from tasks.verifiers.chat.prompt_parts import Material, escape_answer, keep_ends, make_material, make_plain, mark
from tasks.verifiers.scores import CannotJudge, GroundTruthError

if TYPE_CHECKING:
    from jinja2 import Template

WITH_REFERENCE, WITHOUT_REFERENCE = "chat_reference", "chat_open"
"""Names of the chat verifiers with and without a reference."""
MODES = ("grade", "pairwise")
"""Ways to use a reference: grade the answer given the reference, or compare the two (`chat.pairwise`)."""


@dataclass(frozen=True)
class Prompt:
    """The two messages that request a grade from a judge; `answer` is the block of `user` with the answer."""

    system: str
    user: str
    answer: Material

    @property
    def text(self) -> str:
        """Return the system and the user message as one text, to count tokens."""
        return f"{self.system}\n{self.user}"

    @property
    def messages(self) -> list[dict[str, str]]:
        """Both messages in the format of an endpoint."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]


def check_ground_truth(verifier: str, ground_truth: Any) -> None:
    """Raise `GroundTruthError` unless it is `{"reference": text}` for `chat_reference`, or None for `chat_open`.

    With a reference, there may also be a `mode`, one of `MODES`.
    """
    if verifier == WITHOUT_REFERENCE:
        if ground_truth is not None:
            raise GroundTruthError(f"{verifier} expects null, got {ground_truth!r:.200}")
        return
    if verifier != WITH_REFERENCE:
        raise ValueError(f"verifier {verifier!r} is not scored here; accepted: {WITH_REFERENCE}, {WITHOUT_REFERENCE}")
    if not isinstance(ground_truth, dict) or set(ground_truth) - {"mode"} != {"reference"}:
        raise GroundTruthError(f'{verifier} expects {{"reference": "..."}}, got {ground_truth!r:.200}')
    reference, mode = ground_truth["reference"], ground_truth.get("mode", MODES[0])
    if mode not in MODES:
        raise GroundTruthError(f"mode is {mode!r:.200}; accepted: {', '.join(MODES)}")
    if not isinstance(reference, str) or not reference.strip():
        raise GroundTruthError(f"the reference must be a text that is not empty, got {reference!r:.200}")


def is_pairwise(ground_truth: Any) -> bool:
    """Return True if a well-formed ground truth has the mode `pairwise`."""
    return isinstance(ground_truth, dict) and ground_truth.get("mode") == MODES[1]


def turns(messages: Any) -> list[tuple[str, str]]:
    """Return the conversation as pairs of role and content; raises `CannotJudge` if it is missing or malformed."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise CannotJudge("a chat answer cannot be scored without the conversation: give messages")
    conversation = []
    for turn in messages:
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise CannotJudge(f"a turn must contain the texts role and content, got {turn!r:.200}")
        conversation.append((turn["role"], turn["content"]))
    if not any(content.strip() for role, content in conversation if role == "user"):
        raise CannotJudge("the conversation has no turn of the user")
    return conversation


def render(
    config: JudgeConfig,
    verifier: str,
    answer: str,
    ground_truth: Any,
    messages: Any,
    *,
    most: int | None = None,
    omitted_tokens: int = 0,
) -> Prompt:
    """Return the prompt that requests a grade of `answer`, which is given without its thinking part.

    Args:
        config: scale, templates and limits.
        verifier: `chat_reference` or `chat_open`.
        answer: the answer.
        ground_truth: the verifier's ground truth.
        messages: the conversation.
        most: maximum bytes of UTF-8 of the answer to show. Optional. If None, `max_response_chars`.
        omitted_tokens: tokens of the omitted part, or 0 if they are not known.

    Raises:
        CannotJudge: If the conversation is missing or malformed.
        GroundTruthError: If the ground truth is not valid for the verifier.
    """
    check_ground_truth(verifier, ground_truth)
    conversation = _render_conversation(turns(messages))
    blocks = {"conversation": conversation}
    name = config.open_template
    if verifier == WITH_REFERENCE:
        name = config.reference_template
        text, omitted = keep_ends(ground_truth["reference"], config.max_response_chars, make_plain)
        blocks["reference"] = make_material("reference", text, ["reference", conversation.mark, text], omitted)
    text, omitted = keep_ends(answer, config.max_response_chars if most is None else most, escape_answer)
    seen = [verifier, *(block.mark for block in blocks.values()), text]
    blocks["answer"] = make_material("answer", text, ["answer", *seen], omitted, omitted_tokens)
    filled: Any = load_template(name).make_module(
        {"lowest": config.lowest, "highest": config.highest, "reasons": config.reasons, **blocks}
    )
    return Prompt(system=str(filled.system), user=str(filled.user), answer=blocks["answer"])


def _render_conversation(conversation: list[tuple[str, str]]) -> Material:
    safe = [[" ".join(make_plain(role).split()), make_plain(content)] for role, content in conversation]
    # all turns share one mark, which occurs neither in a single content nor in the joined text
    sign = mark(["conversation", safe], "\n".join(content for pair in safe for content in pair))
    text = "\n".join(f"=== {role} {sign} ===\n{content}" for role, content in safe)
    return Material(text, f"=== begin conversation {sign} ===", f"=== end conversation {sign} ===", sign)


@cache
def load_template(name: str) -> Template:
    """Return the template `name` of `templates/`."""
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    return environment.get_template(f"{name}.jinja")
