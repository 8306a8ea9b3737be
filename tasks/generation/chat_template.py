"""Prompts as tokens: the model's chat template, with the variables that a configuration sets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tasks.failures import MistakeError
from tasks.tables.schemas import Message


class ChatTemplateError(MistakeError):
    """The model's chat template takes no such variable."""


def encode(tokenizer: Any, conversations: Iterable[list[Message]], variables: Mapping[str, Any]) -> list[list[int]]:
    """The tokens of each conversation, up to where the response begins.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        conversations: messages of each.
        variables: `SamplingConfig.chat_template_kwargs`.

    Raises:
        ChatTemplateError: the template would ignore one of them, or it is set by whoever applies the template.
    """
    taken = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"}
    for name in variables:
        if name in taken or not re.search(rf"\b{re.escape(name)}\b", tokenizer.get_chat_template()):
            why = (
                "it is set here" if name in taken else f"the template of {tokenizer.name_or_path} has no such variable"
            )
            raise ChatTemplateError(f"sampling.chat_template_kwargs: {name}: {why}; leave it out")
    return [
        list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **variables))
        for messages in conversations
    ]
