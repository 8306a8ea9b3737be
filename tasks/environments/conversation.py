r"""Tokenises the messages between two turns of the policy, with the text that the chat template puts around them.

    sampled                          inserted                                            sampled
    I guess 5 . <|im_end|>   \n <|im_start|> user \n higher <|im_end|> \n <|im_start|> assistant \n   7 <|im_end|>

The template is applied to a dummy conversation that ends in a marker as the assistant's turn, followed by the inserted
messages. Only the text after the marker is tokenised, so the tokens of earlier turns never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.generation.chat_template import ChatTemplateError, variables_of
from tasks.storage.model_folder import loading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKER = "0123456789"
"""The dummy assistant turn. No template changes or trims digits."""


class ChatTemplate:
    """Continues a conversation with the chat template of a policy."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any]) -> None:
        """Create a conversation from a tokenizer with a chat template.

        Args:
            tokenizer: a Hugging Face tokenizer.
            variables: values of the template's variables (`SamplingConfig.chat_template_kwargs`).

        Raises:
            ChatTemplateError: If the template has no such variable.
        """
        self._tokenizer = tokenizer
        self._options = variables_of(tokenizer, variables)
        added = tokenizer.added_tokens_decoder.items()
        self._specials = {number: token.content for number, token in added if token.special}

    @classmethod
    def of_model(cls, model: Path, variables: Mapping[str, Any]) -> ChatTemplate:
        """Return the conversation of a policy, given its Hugging Face folder.

        Raises:
            ModelError: If the tokenizer cannot be loaded.
            ChatTemplateError: If the template has no such variable.
        """
        from transformers import AutoTokenizer

        with loading(model):
            return cls(AutoTokenizer.from_pretrained(model), variables)

    @property
    def control_tokens(self) -> list[str]:
        """Texts of the control tokens, which an inserted message may not contain."""
        return sorted(self._specials.values())

    def begun(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of a whole conversation, up to the start of the policy's next turn.

        Args:
            messages: messages of the conversation.
            tools: schemas of the tools that the policy may call.

        Raises:
            ChatTemplateError: If the template refuses the messages.
        """
        return self._tokenizer.encode(self._rendered(messages, list(tools) or None), add_special_tokens=False)

    def inserted(self, messages: Sequence[Mapping[str, str]], last_token: int) -> list[int]:
        """Return the tokens from the end of a turn of the policy to the start of its next one.

        Args:
            messages: messages to insert between the two turns.
            last_token: the last token of the policy's turn. If it is a control token, it ends the turn, and the
                template's own end token is left out.

        Raises:
            ChatTemplateError: If the template refuses the messages.
        """
        before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARKER}]
        text = self._rendered([*before, *messages])
        _, marker, text = text.partition(MARKER)
        if not marker:
            raise ChatTemplateError(f"the chat template of {self._tokenizer.name_or_path} leaves out earlier turns")
        end = next((content for content in self._specials.values() if text.startswith(content)), "")
        if last_token in self._specials:
            text = text.removeprefix(end)
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _rendered(self, messages: Sequence[Mapping[str, str]], tools: list[Any] | None = None) -> str:
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=tools,
                tokenize=False,
                add_generation_prompt=True,
                **self._options,
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ChatTemplateError(
                f"the chat template of {self._tokenizer.name_or_path} refuses turns of {roles}: {error}"
            ) from error
        assert isinstance(text, str)
        return text
