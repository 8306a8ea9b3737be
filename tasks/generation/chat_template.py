"""Tokenises prompts with the model's chat template and the variables that a configuration sets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from tasks.environments.spec import EnvironmentSpec
from tasks.failures import MistakeError
from tasks.storage.model_folder import date_variables

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatTemplateError(MistakeError):
    """The model's chat template refuses a prompt, or lacks a variable of `sampling.chat_template_kwargs`."""


def encode(
    tokenizer: PreTrainedTokenizerBase, prompts: Iterable[Mapping[str, Any]], variables: Mapping[str, Any]
) -> list[list[int]]:
    """Return the tokens of each prompt, up to the beginning of the response.

    If the template uses the date, it gets `model_folder.TODAY`, unless `variables` contains one that it prefers.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        prompts: rows of a table of `PROMPTS` (or with more columns).
        variables: `SamplingConfig.chat_template_kwargs`.

    Raises:
        ChatTemplateError: the template refuses a prompt, has no support for tools and an environment has some, does
            not have one of the variables, or this function sets the variable itself.
    """
    from jinja2 import TemplateError

    apply = tokenizer.apply_chat_template
    options = {"add_generation_prompt": True, "return_dict": False, **variables_of(tokenizer, variables)}
    encoded = []
    for prompt in prompts:
        try:
            tools = cast(Any, _tools_of(tokenizer, prompt))  # a list of schemas may hold functions, too
            encoded.append(list(cast("Iterable[int]", apply(prompt["messages"], tools=tools, **options))))
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in prompt["messages"])
            raise ChatTemplateError(
                f"prompt {prompt['prompt_id']} of source {prompt['source']!r} (roles: {roles}): the chat template of "
                f"{tokenizer.name_or_path} refuses it: {error}"
            ) from error
    return encoded


def _tools_of(tokenizer: PreTrainedTokenizerBase, prompt: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the schemas of the tools that the policy may call, or None if the prompt's environment has no tools.

    Raises:
        ChatTemplateError: the chat template has no support for tools.
    """
    environment = EnvironmentSpec.from_json(prompt["environment"])
    if environment is None or not environment.tools:
        return None
    schemas = [tool["schema"] for tool in environment.tools]
    if not re.search(r"\btools\b", tokenizer.get_chat_template(tools=schemas)):
        raise ChatTemplateError(
            f"source {prompt['source']!r}: the chat template of {tokenizer.name_or_path} has no room for "
            "environment.tools: take a model that was trained to call tools, or describe them in the prompt"
        )
    return schemas


def variables_of(tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the chat template: `variables`, and the date if the template uses it.

    Raises:
        ChatTemplateError: the template has no such variable, or the pipeline sets it itself.
    """
    fixed = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"}
    for name in variables:
        if name in fixed or not re.search(rf"\b{re.escape(name)}\b", tokenizer.get_chat_template()):
            why = (
                "it is set here" if name in fixed else f"the template of {tokenizer.name_or_path} has no such variable"
            )
            raise ChatTemplateError(f"sampling.chat_template_kwargs: {name}: {why}; leave it out")
    return {**date_variables(tokenizer.get_chat_template()), **variables}
