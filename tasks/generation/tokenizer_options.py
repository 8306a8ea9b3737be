"""Replaces the chat template and the special tokens of a model, before any stage loads its tokenizer.

recipe: model.chat_template, model.special_tokens
    ──► the model's folder (`change_tokenizer`) ──► difficulty, engines, learner, evaluation, exported policies
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jinja2 import Environment, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from pydantic import BeforeValidator, model_validator

from tasks.config.fields import PathMark
from tasks.config.loading import Config, close_match
from tasks.failures import one_line
from tasks.storage.durable import remove
from tasks.storage.model_folder import CHAT_TEMPLATE, ModelError, convert_load_errors, make_date_variables

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAT_TEMPLATES = Path(__file__).parents[2] / "data_specs" / "chat_templates"
"""Folder of the built-in chat templates."""
ENDING = ".jinja"
"""Extension that distinguishes the path of a chat template from the name of a built-in one."""
OTHER_TEMPLATES = ("chat_template.json", "additional_chat_templates")
"""Files and folders of a model with further chat templates, which transformers would prefer or choose between."""


class _Generation(Extension):
    """The block `{% generation %}` of transformers' chat templates, which marks the assistant's text."""

    tags = {"generation"}  # noqa: RUF012 (the attribute of jinja2's class)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _read_template(value: Any) -> Any:
    """Return the text of a chat template that is given by its name or path, and any other value unchanged.

    Raises:
        ValueError: the template or file does not exist, or the text is not a chat template.
    """
    if not isinstance(value, str):
        return value
    text = value if "{" in value else _load_template(value)
    try:
        Environment(extensions=[_Generation, loopcontrols]).parse(text)  # noqa: S701 (nothing is rendered)
    except TemplateSyntaxError as error:
        raise ValueError(f"not a chat template: line {error.lineno}: {error.message}") from None
    if "messages" not in text:
        raise ValueError("not a chat template: it does not use `messages`")
    return text


def _load_template(name: str) -> str:
    """Return the text of a chat template, by the name of a built-in one or by a path that ends in .jinja."""
    if name.endswith(ENDING):
        try:
            return Path(name).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror}") from None
        except UnicodeError:
            raise ValueError("not UTF-8 text") from None
    known = sorted(path.stem for path in CHAT_TEMPLATES.glob(f"*{ENDING}"))
    if name not in known:
        raise ValueError(
            f"no built-in chat template {name!r}{close_match(name, known)}; give a path that ends in {ENDING}, or one "
            f"of: {', '.join(known)}"
        )
    return (CHAT_TEMPLATES / f"{name}{ENDING}").read_text(encoding="utf-8")


ChatTemplateText = Annotated[
    str | None,
    PathMark("specification", lambda value, _: value.endswith(ENDING)),
    BeforeValidator(_read_template),
]
"""The type of an option with the text of a chat template, or null. A file may give a path or a built-in name."""


@cache
def find_template_name(text: str) -> str:
    """Return the name of the built-in chat template with this text, or "the recipe's own"."""
    names = [path.stem for path in sorted(CHAT_TEMPLATES.glob(f"*{ENDING}")) if path.read_text() == text]
    return names[0] if names else "the recipe's own"


class SpecialTokens(Config):
    """Special tokens of a model's tokenizer (Axolotl's `special_tokens`). Each is a token of the vocabulary.

    If null, the model's own is kept.
    """

    bos_token: str | None = None
    """Token at the beginning of a text."""
    eos_token: str | None = None
    """Token that ends a response. It also becomes `eos_token_id` of the model's configuration."""
    pad_token: str | None = None
    """Token that fills up batches in programs that load the policy. Nothing is padded here."""
    unk_token: str | None = None
    """Token in place of text that the vocabulary cannot represent."""

    @model_validator(mode="after")
    def _has_one(self) -> SpecialTokens:
        if not self.given:
            raise ValueError("give at least one of the special tokens, or leave it out")
        return self

    @property
    def given(self) -> dict[str, str]:
        """The tokens to replace, by name."""
        return self.model_dump(exclude_none=True)


def change_tokenizer(folder: Path, chat_template: str | None, tokens: SpecialTokens | None) -> None:
    """Replace the chat template and the special tokens in a model's folder, and render a message with them.

    Args:
        folder: a Hugging Face model folder, which is changed.
        chat_template: text of the template. If None, the model's own is kept.
        tokens: special tokens. If None, the model's own are kept.

    Raises:
        ModelError: the vocabulary lacks one of the tokens, or the template fails on a single message of a user.
    """
    if chat_template is not None:
        _write_template(folder, chat_template)
    if tokens is not None:
        _write_tokens(folder, tokens.given)
    if chat_template is not None:
        from transformers import AutoTokenizer

        with convert_load_errors(folder):
            _check_renders(AutoTokenizer.from_pretrained(folder))


def change_loaded(
    tokenizer: PreTrainedTokenizerBase, chat_template: str | None, tokens: SpecialTokens | None
) -> PreTrainedTokenizerBase:
    """Change a loaded tokenizer as `change_tokenizer` changes its folder, and return it.

    Raises:
        ModelError: as `change_tokenizer`.
    """
    if tokens is not None:
        _find_ids(tokenizer, tokens.given)
        for name, token in tokens.given.items():
            setattr(tokenizer, name, token)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
        _check_renders(tokenizer)
    return tokenizer


def _write_template(folder: Path, text: str) -> None:
    """Make `text` the only chat template of a model's folder."""
    (folder / CHAT_TEMPLATE).write_text(text, encoding="utf-8")
    for name in OTHER_TEMPLATES:
        remove(folder / name)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    if config.pop("chat_template", None) is not None:
        _write_json(folder / "tokenizer_config.json", config)


def _write_tokens(folder: Path, tokens: Mapping[str, str]) -> None:
    """Replace special tokens in the tokenizer's configuration, and their ids in the model's."""
    from transformers import AutoTokenizer

    with convert_load_errors(folder):
        ids = _find_ids(AutoTokenizer.from_pretrained(folder), tokens)
    model_ids = {f"{name}_id": number for name, number in ids.items() if name != "unk_token"}
    for name, changes in (
        ("tokenizer_config.json", tokens),
        ("special_tokens_map.json", tokens),
        ("config.json", model_ids),
        ("generation_config.json", model_ids),
    ):
        path = folder / name
        if path.is_file():
            _write_json(path, {**json.loads(path.read_text()), **changes})


def _find_ids(tokenizer: PreTrainedTokenizerBase, tokens: Mapping[str, str]) -> dict[str, int]:
    """Return the ids of special tokens by name. Raises `ModelError` if one is not in the vocabulary."""
    vocabulary = tokenizer.get_vocab()
    for name, token in tokens.items():
        if token not in vocabulary:
            special = ", ".join(sorted(token.content for token in tokenizer.added_tokens_decoder.values())[:20])
            raise ModelError(
                f"model: special_tokens: {name} = {token!r}: the vocabulary has no such token, and the model has no "
                f"embedding for a new one; tokens that were added to the vocabulary: {special}"
            )
    return {name: vocabulary[token] for name, token in tokens.items()}


def _check_renders(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `ModelError` if the chat template fails on a single message of a user."""
    messages = [{"role": "user", "content": "?"}]
    dates = make_date_variables(tokenizer.get_chat_template())
    try:
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **dates)
    except Exception as error:  # templates are programs: they may raise anything
        raise ModelError(
            f"model: chat_template: it fails on a message of a user: {one_line(error)}; correct the template"
        ) from error


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
