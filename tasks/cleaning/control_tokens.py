"""Finds text in prompts that a model's tokenizer reads as a control token, such as `<|im_end|>`, and escapes it.

Chat templates put the text of messages between control tokens as it is: `<|im_end|>` in a user's message ends it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tasks.tables.schemas import PROMPTS, prompt_id

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files of a model folder that name control tokens."""

_MARKER = re.compile(
    r"<\|[^<>|\s]+\|>|<\uff5c[^<>\uff5c\s]+\uff5c>|<</?[A-Z]+>>|\[/?[A-Z_]{2,}\]|</?(?:start|end)_of_[a-z]+>"
)
"""The forms of control tokens in chat templates: those of ChatML and Llama 3, DeepSeek, Llama 2, Mistral and Gemma."""
_MARKUP = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
"""The form that added tokens have; others, such as runs of spaces, are part of the vocabulary."""


def control_tokens(files: Mapping[str, str]) -> list[str]:
    """Return the texts that a model's tokenizer or chat template takes for control tokens, sorted.

    They are the special tokens; the other added tokens that stand in the chat template (`<think>`); and what has the
    form of one there without being a token, as Llama 2's `[INST]`.

    Args:
        files: the content of `TOKENIZER_FILES` by name; files that the model lacks are left out.
    """
    read = {name: json.loads(content) for name, content in files.items() if name.endswith(".json")}
    config = read.get("tokenizer_config.json", {})
    templates = [
        files.get("chat_template.jinja", ""),
        *_texts(config.get("chat_template")),
        *_texts(read.get("chat_template.json")),
    ]
    template = "\n".join(templates)
    added = [*read.get("tokenizer.json", {}).get("added_tokens", ()), *config.get("added_tokens_decoder", {}).values()]
    named = {token["content"] for token in added if token.get("special")}
    for source in (config, read.get("special_tokens_map.json", {})):
        for key, value in source.items():
            if key.endswith(("_token", "special_tokens")) and not key.startswith("add_"):
                named.update(_contents(value))
    in_template = {token["content"] for token in added if _MARKUP.fullmatch(token["content"])}
    named |= {token for token in in_template if token in template} | set(_MARKER.findall(template))
    return sorted(token for token in named if len(token) > 1 and not token.isspace() and not token.isalnum())


def _contents(value: Any) -> Iterator[str]:
    """The texts of special tokens, which are text, objects with `content`, or lists or objects of those."""
    match value:
        case str():
            yield value
        case {"content": str(content)}:
            yield content
        case list():
            for item in value:
                yield from _contents(item)
        case dict():
            yield from _contents(list(value.values()))


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value: a chat template is a text, or a list of objects with a name and a template."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            yield from _texts(list(value.values()))


class ControlTokens:
    """Searches prompts for control tokens.

    Attributes:
        counts: the number of prompts in which a token was the first, of those that `counted` was given.
    """

    def __init__(self, tokens: list[str]) -> None:
        """Prepare the search.

        Args:
            tokens: the texts of the tokens; none: nothing is found.
        """
        self.counts: Counter[str] = Counter()
        longest_first = sorted(tokens, key=len, reverse=True)
        starts = "".join(re.escape(start) for start in sorted({token[0] for token in tokens}))
        # The set of first characters is what is searched for fast.
        pattern = f"(?=[{starts}])(?:{'|'.join(map(re.escape, longest_first))})" if tokens else r"(?!)"
        self._pattern = re.compile(pattern)

    def first_tokens(self, prompts: pa.Table) -> dict[int, str]:
        """Return the first control token of each prompt that holds one, by the prompt's number in the table."""
        tokens: dict[int, str] = {}
        for row, messages in enumerate(prompts.column("messages").to_pylist()):
            hits = (self._pattern.search(message["content"]) for message in messages)
            if (hit := next(filter(None, hits), None)) is not None:
                tokens[row] = hit[0]
        return tokens

    def counted(self, prompts: pa.Table) -> pa.Table:
        """Return the prompts as they are, after adding those that hold a control token to `counts`."""
        self.counts.update(self.first_tokens(prompts).values())
        return prompts

    def escaped(self, prompts: pa.Table) -> pa.Table:
        """Return the prompts with a space after the first character of each control token, and with new identities."""
        holding = self.first_tokens(prompts)
        if not holding:
            return prompts
        changed = {name: prompts.column(name).to_pylist() for name in ("messages", "prompt_id")}
        for row in holding:
            prompt = prompts.slice(row, 1).to_pylist()[0]
            for message in changed["messages"][row]:
                message["content"] = self._pattern.sub(lambda hit: f"{hit[0][0]} {hit[0][1:]}", message["content"])
            truth = json.loads(prompt["ground_truth"])
            changed["prompt_id"][row] = prompt_id(
                changed["messages"][row], prompt["verifier"], truth, prompt["environment"]
            )
        for name, values in changed.items():
            field = PROMPTS.field(name)
            prompts = prompts.set_column(prompts.schema.get_field_index(name), field, pa.array(values, field.type))
        return prompts


NO_TOKENS = ControlTokens([])
"""A search that finds nothing."""
