r"""Tokenises the messages between two turns of the policy, with the text that the chat template puts around them.

    sampled                          inserted                                            sampled
    I guess 5 . <|im_end|>   \n <|im_start|> user \n higher <|im_end|> \n <|im_start|> assistant \n   7 <|im_end|>

The template is applied to a dummy conversation that ends in a marker as the assistant's turn, followed by the inserted
messages. Only the text after the marker is tokenised, so the tokens of earlier turns never change. A message that the
template leaves out is refused, and the end of the policy's turn appears once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.failures import one_line
from tasks.generation.chat_template import ChatTemplateError, check_rendered, fill_variables, get_model_name, make_probe
from tasks.storage.model_folder import convert_load_errors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKER = "0123456789"
"""The dummy assistant turn. No template changes or trims digits."""
BEFORE = ({"role": "user", "content": "?"}, {"role": "assistant", "content": MARKER})
"""The dummy conversation before inserted messages."""
COMPOSED = 4
"""Upper bound of the characters that a normalizer of a tokenizer, such as NFC, composes into one."""


class ChatTemplate:
    """Continues a conversation with the chat template of a policy. Its methods may be called in several threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any]) -> None:
        """Create a conversation from a tokenizer with a chat template.

        Args:
            tokenizer: a Hugging Face tokenizer.
            variables: values of the template's variables (`SamplingConfig.chat_template_kwargs`).

        Raises:
            ChatTemplateError: If the template has no such variable.
        """
        self._tokenizer = tokenizer
        self._options = fill_variables(tokenizer, variables)
        self._added = {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}
        specials = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._specials = {
            number: self._added[number] for number in {*specials, *tokenizer.all_special_ids} & {*self._added}
        }
        self._chars = COMPOSED * max(map(len, tokenizer.get_vocab()))
        self._headers: dict[tuple[str, ...], str] = {}
        self._begun: set[tuple[Any, ...]] = set()
        tokenizer.encode("")  # the first call turns truncation and padding off, which threads may not do at one time

    @classmethod
    def from_model(cls, model: Path, variables: Mapping[str, Any]) -> ChatTemplate:
        """Return the conversation of a policy, given its Hugging Face folder.

        Raises:
            ModelError: If the tokenizer cannot be loaded.
            ChatTemplateError: If the template has no such variable.
        """
        from transformers import AutoTokenizer

        with convert_load_errors(model):
            return cls(AutoTokenizer.from_pretrained(model), variables)

    @property
    def control_tokens(self) -> list[str]:
        """Texts of the control tokens, which an inserted message may not contain."""
        return sorted(self._specials.values())

    def may_fit(self, messages: Sequence[Mapping[str, str]], tokens: int) -> bool:
        """Return False if the messages are certain to have more than `tokens` tokens.

        Only characters are counted: no token has more of them than the longest of the vocabulary.
        """
        return sum(len(message["content"]) for message in messages) <= tokens * self._chars

    def begun(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of a whole conversation, up to the start of the policy's next turn.

        Args:
            messages: messages of the conversation.
            tools: schemas of the tools that the policy may call.

        Raises:
            ChatTemplateError: If the template refuses the messages, or leaves one of them out.
        """
        schemas = list(tools) or None
        roles = tuple(message["role"] for message in messages)
        if (roles, bool(tools)) not in self._begun:
            probe = make_probe(roles)
            check_rendered(self._render(probe, schemas), probe, get_model_name(self._tokenizer))
            self._begun.add((roles, bool(tools)))
        return self._encode(self._render(messages, schemas))

    def inserted(self, messages: Sequence[Mapping[str, str]], last_token: int) -> list[int]:
        """Return the tokens from the end of a turn of the policy to the start of its next one.

        Args:
            messages: messages to insert between the two turns.
            last_token: the last token of the policy's turn. If it is a control token, it ends the turn, and the
                template's own end of the turn is left out.

        Raises:
            ChatTemplateError: If the template refuses the messages, or leaves one of them out.
        """
        text = self._render_after_marker(messages)
        header = _find_common_beginning(text, self._render_header(tuple(message["role"] for message in messages)))
        return self._encode_after(last_token, text[self._ended(header, last_token) :])

    def _render_header(self, roles: tuple[str, ...]) -> str:
        """Return the text between the policy's turn and the content of the first of some messages."""
        if roles not in self._headers:
            probe = make_probe(roles)
            text = self._render_after_marker(probe)
            check_rendered(text, probe, get_model_name(self._tokenizer))
            self._headers[roles] = text.partition(probe[0]["content"])[0] if probe else text
        return self._headers[roles]

    def _ended(self, header: str, last_token: int) -> int:
        """Return how many characters of `header` are the end of the policy's turn, which its last token replaces.

        A template ends a turn with one token, with several, or with none: then the next message's header does.
        """
        last = self._added.get(last_token)
        if last is None or (
            last_token not in self._specials and last not in _find_common_beginning(header, self._closing)
        ):
            return 0
        if last in header:
            return header.index(last) + len(last)
        ends = list(self._control.finditer(_find_common_beginning(header, self._closing)))
        if ends:
            return ends[-1].end()
        # An end does not depend on what comes next, and the header of a role does.
        first = self._control.match(_find_common_beginning(header, self._next).lstrip())
        return header.index(first[0]) + len(first[0]) if first else 0

    @cached_property
    def _closing(self) -> str:
        """The text after the assistant's turn if it is the last message. Empty if the template refuses that."""
        return self._try_render_after_marker(prompt=False)

    @cached_property
    def _next(self) -> str:
        """The text between two turns of the assistant. Empty if the template refuses that."""
        return self._try_render_after_marker(prompt=True)

    @cached_property
    def _control(self) -> re.Pattern[str]:
        longest_first = sorted(self._specials.values(), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def _try_render_after_marker(self, *, prompt: bool) -> str:
        try:
            return self._render_after_marker((), prompt=prompt)
        except ChatTemplateError:
            return ""

    def _render_after_marker(self, messages: Sequence[Mapping[str, str]], *, prompt: bool = True) -> str:
        _, marker, text = self._render([*BEFORE, *messages], prompt=prompt).partition(MARKER)
        if not marker:
            raise ChatTemplateError(f"the chat template of {get_model_name(self._tokenizer)} leaves out earlier turns")
        return text

    def _render(
        self, messages: Sequence[Mapping[str, str]], tools: list[Any] | None = None, *, prompt: bool = True
    ) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=tools,
                    tokenize=False,
                    add_generation_prompt=prompt,
                    **self._options,
                )
            )
        except Exception as error:  # templates are programs: they may raise anything
            roles = ", ".join(message["role"] for message in messages)
            raise ChatTemplateError(
                f"the chat template of {get_model_name(self._tokenizer)} refuses turns of {roles}: {one_line(error)}"
            ) from error

    def _encode_after(self, last_token: int, text: str) -> list[int]:
        """Return the tokens of a text behind the policy's last token.

        A tokenizer treats the beginning of a text differently, and a control token may take the spaces next to it.
        """
        lead = self._added.get(last_token, MARKER)
        both, first = self._encode(lead + text), self._encode(lead)
        return both[len(first) :] if both[: len(first)] == first else self._encode(text)

    def _encode(self, text: str) -> list[int]:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:
            raise ChatTemplateError(
                f"the tokenizer of {get_model_name(self._tokenizer)} does not accept the text: {one_line(error)}"
            ) from error


def _find_common_beginning(text: str, other: str) -> str:
    """Return the longest common beginning of two texts."""
    return "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))
