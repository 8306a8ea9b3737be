"""Tokenisation of prompts by the model's chat template, with the variables that a configuration sets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from tasks.failures import MistakeError
from tasks.storage.model_folder import date_variables
from tasks.tables.schemas import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatTemplateError(MistakeError):
    """`sampling.chat_template_kwargs` sets a variable that the model's chat template lacks, or that is fixed."""


def encode(
    tokenizer: PreTrainedTokenizerBase, conversations: Iterable[list[Message]], variables: Mapping[str, Any]
) -> list[list[int]]:
    """Return the tokens of each conversation, up to the beginning of the response.

    A template that asks for the date is given `model_folder.TODAY`, unless `variables` set one that it prefers.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        conversations: the messages of each.
        variables: `SamplingConfig.chat_template_kwargs`.

    Raises:
        ChatTemplateError: the template has no such variable, or this function sets it itself.
    """
    apply = tokenizer.apply_chat_template
    fixed = {*inspect.signature(apply).parameters, "messages"}
    for name in variables:
        if name in fixed or not re.search(rf"\b{re.escape(name)}\b", tokenizer.get_chat_template()):
            why = (
                "it is set here" if name in fixed else f"the template of {tokenizer.name_or_path} has no such variable"
            )
            raise ChatTemplateError(f"sampling.chat_template_kwargs: {name}: {why}; leave it out")
    variables = {**date_variables(tokenizer.get_chat_template()), **variables}
    return [
        list(cast("Iterable[int]", apply(messages, add_generation_prompt=True, return_dict=False, **variables)))
        for messages in conversations
    ]
