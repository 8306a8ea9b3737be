"""Tokenises prompts with the model's chat template and the variables that a configuration sets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tasks.failures import MistakeError, one_line
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.storage.model_folder import make_date_variables

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


FIRST_PROBE = 7_000_000_001
"""Content of the first message of a probe. No template trims, escapes or changes digits."""


class ChatTemplateError(MistakeError):
    """The chat template refuses messages or leaves some out, or lacks a variable of `sampling.chat_template_kwargs`."""


def make_probe(roles: Sequence[str]) -> list[dict[str, str]]:
    """Return messages of these roles whose contents are different numbers, to find each of them in a rendered text."""
    return [{"role": role, "content": str(FIRST_PROBE + index)} for index, role in enumerate(roles)]


def check_rendered(text: str, probe: Sequence[Mapping[str, str]], name: str) -> None:
    """Raise `ChatTemplateError` if a text that was rendered from a probe lacks one of its messages.

    Args:
        text: the rendered text.
        probe: the messages of `make_probe` that the text must contain.
        name: name of the model.
    """
    for message in probe:
        if message["content"] not in text:
            roles = ", ".join(message["role"] for message in probe)
            raise ChatTemplateError(
                f"the chat template of {name} leaves out a message of the role {message['role']!r} here (roles: "
                f"{roles}): use a role that it renders, such as 'user', or another place for the message"
            )


def get_model_name(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the name of a tokenizer's model for messages."""
    return tokenizer.name_or_path or "this tokenizer"


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
        ChatTemplateError: the template refuses a prompt or leaves a message of it out, has no support for tools and an
            environment has some, does not have one of the variables, or this function sets the variable itself.
    """
    apply = tokenizer.apply_chat_template
    options = {"add_generation_prompt": True, "return_dict": False, **fill_variables(tokenizer, variables)}
    encoded = []
    rendered: set[tuple[Any, ...]] = set()  # roles of prompts whose messages are known to be rendered
    for prompt in prompts:
        roles = tuple(message["role"] for message in prompt["messages"])
        tools = cast(Any, _get_tools(tokenizer, prompt))  # a list of schemas may hold functions, too
        try:
            if (roles, bool(tools)) not in rendered:
                probe = make_probe(roles)
                check_rendered(
                    str(apply(probe, tools=tools, tokenize=False, **options)), probe, get_model_name(tokenizer)
                )
                rendered.add((roles, bool(tools)))
            encoded.append(list(cast("Iterable[int]", apply(prompt["messages"], tools=tools, **options))))
        except Exception as error:  # templates are programs: they may raise anything
            where = f"prompt {prompt['prompt_id']} of source {prompt['source']!r} (roles: {', '.join(roles)})"
            if isinstance(error, ChatTemplateError):
                raise ChatTemplateError(f"{where}: {error}") from None
            raise ChatTemplateError(
                f"{where}: the chat template of {get_model_name(tokenizer)} refuses it: {one_line(error)}"
            ) from error
    return encoded


def _get_tools(tokenizer: PreTrainedTokenizerBase, prompt: Mapping[str, Any]) -> list[dict[str, Any]] | None:
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
            f"source {prompt['source']!r}: the chat template of {get_model_name(tokenizer)} has no room for "
            "environment.tools: take a model that was trained to call tools, or describe them in the prompt"
        )
    return schemas


def fill_variables(tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the chat template: `variables`, and the date if the template uses it.

    Raises:
        ChatTemplateError: the template has no such variable, or the pipeline sets it itself.
    """
    fixed = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"}
    for name in variables:
        if name in fixed or not re.search(rf"\b{re.escape(name)}\b", tokenizer.get_chat_template()):
            why = (
                "it is set here"
                if name in fixed
                else f"the template of {get_model_name(tokenizer)} has no such variable"
            )
            raise ChatTemplateError(f"sampling.chat_template_kwargs: {name}: {why}; leave it out")
    return {**make_date_variables(tokenizer.get_chat_template()), **variables}
