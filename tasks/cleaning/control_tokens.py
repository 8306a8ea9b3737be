"""Finds and escapes text in prompts that a model's tokenizer reads as a control token, such as `<|im_end|>`.

Chat templates insert the text of messages unchanged between control tokens, so `<|im_end|>` in a user message would end
it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.tables import texts
from tasks.tables.schemas import PROMPTS, prompt_id

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files of a model folder that define control tokens."""

_MARKER = re.compile(
    r"<\|[^<>|\s]+\|>|<\uff5c[^<>\uff5c\s]+\uff5c>|<</?[A-Z]+>>|\[/?[A-Z_]{2,}\]|</?(?:start|end)_of_[a-z]+>"
)
"""The formats of control tokens in the chat templates of ChatML and Llama 3, DeepSeek, Llama 2, Mistral and Gemma."""
_MARKUP = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
"""The format of added control tokens. Other added tokens, such as runs of spaces, are part of the vocabulary."""


def find_control_tokens(files: Mapping[str, str]) -> list[str]:
    """Return the texts that a model's tokenizer or chat template treats as control tokens, sorted.

    These are the special tokens, other added tokens that occur in the chat template (`<think>`), and text in the
    template that looks like a control token without being a token, such as Llama 2's `[INST]`.

    Args:
        files: the content of `TOKENIZER_FILES` by name, without files that the model does not have.
    """
    read = {name: json.loads(content) for name, content in files.items() if name.endswith(".json")}
    config = read.get("tokenizer_config.json", {})
    templates = [
        files.get("chat_template.jinja", ""),
        *_collect_texts(config.get("chat_template")),
        *_collect_texts(read.get("chat_template.json")),
    ]
    template = "\n".join(templates)
    added = [*read.get("tokenizer.json", {}).get("added_tokens", ()), *config.get("added_tokens_decoder", {}).values()]
    named = {token["content"] for token in added if token.get("special")}
    for source in (config, read.get("special_tokens_map.json", {})):
        for key, value in source.items():
            if key.endswith(("_token", "special_tokens")) and not key.startswith("add_"):
                named.update(_collect_texts(value, "content"))
    in_template = {token["content"] for token in added if _MARKUP.fullmatch(token["content"])}
    named |= {token for token in in_template if token in template} | set(_MARKER.findall(template))
    return sorted(token for token in named if len(token) > 1 and not token.isspace() and not token.isalnum())


def _collect_texts(value: Any, key: str | None = None) -> Iterator[str]:
    """Yield all texts in a JSON value: a text, or lists or objects of these. Of an object with `key`, only its text.

    A chat template is a text, or a list of objects with a name and a template. Special tokens are texts, or objects
    with the key `content`.
    """
    match value:
        case str():
            yield value
        case dict() if isinstance(value.get(key), str):
            yield value[key]
        case list():
            for item in value:
                yield from _collect_texts(item, key)
        case dict():
            yield from _collect_texts(list(value.values()), key)


class ControlTokens:
    """Searches prompts for control tokens.

    Attributes:
        counts: the number of prompts passed to `count` that contain a control token, by their first such token.
    """

    def __init__(self, tokens: list[str]) -> None:
        """Prepare the search.

        Args:
            tokens: the texts of the tokens. If empty, nothing is found.
        """
        self.counts: Counter[str] = Counter()
        longest_first = sorted(tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) if tokens else r"(?!)")
        self._any = "|".join(map(_build_pattern, longest_first))

    def find_first_tokens(self, prompts: pa.Table) -> dict[int, str]:
        """Return the first control token of each prompt that contains one, by row number."""
        tokens: dict[int, str] = {}
        rows = np.flatnonzero(self._has_token(prompts.column("messages")))
        for row, messages in zip(
            rows.tolist(), prompts.column("messages").take(pa.array(rows)).to_pylist(), strict=True
        ):
            hits = (self._pattern.search(message["content"]) for message in messages)
            if (hit := next(filter(None, hits), None)) is not None:
                tokens[row] = hit[0]
        return tokens

    def _has_token(self, messages: pa.ChunkedArray) -> texts.Mask:
        """Return for each prompt whether a message contains a token. Arrow's expressions are faster than Python's."""
        if not self._any:
            return np.zeros(len(messages), bool)
        contents = pc.struct_field(pc.list_flatten(messages), "content")
        has_token = pc.match_substring_regex(contents, self._any).to_numpy()
        has: texts.Mask = np.zeros(len(messages), bool)
        has[pc.list_parent_indices(messages).to_numpy()[has_token]] = True
        return has

    def count(self, prompts: pa.Table) -> pa.Table:
        """Return the prompts unchanged, after adding the prompts that contain a control token to `counts`."""
        self.counts.update(self.find_first_tokens(prompts).values())
        return prompts

    def escape(self, prompts: pa.Table) -> pa.Table:
        """Return the prompts with a space after the first character of each control token, and with new ids."""
        holding = self.find_first_tokens(prompts)
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


def _build_pattern(text: str) -> str:
    """Return an expression of Arrow (RE2) that matches a text, whatever characters it has."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):X}}}" for character in text)


NO_TOKENS = ControlTokens([])
"""A search that finds nothing."""
