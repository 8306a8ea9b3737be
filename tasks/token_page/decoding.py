"""Decodes single tokens, with escapes for bytes that are not text on their own.

A character may be divided between tokens, so that a tokenizer cannot decode one of them. Therefore the bytes of a token
are taken from its entry in the vocabulary, which has one of these forms:

    byte level    each byte is a printable character: `Ġsea` is " sea" (GPT-2, Llama 3, Qwen)
    fallback      `<0xF0>` is a byte, and `▁` a space (SentencePiece, Llama 2)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.storage.model_folder import convert_load_errors

LINE_END = "\u21b5"
"""The mark of a line end."""
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
"""The character that SentencePiece writes for a space."""


class TokenTexts:
    """Returns the texts of tokens by their ids."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a Hugging Face tokenizer."""
        self._tokenizer = tokenizer
        self._added = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}
        self._bytes_of = _make_byte_table() if _is_byte_level(tokenizer) else None
        self._known: dict[int, str] = {}

    @classmethod
    def from_model(cls, folder: Path) -> TokenTexts:
        """Load the tokenizer in a model folder.

        Raises:
            ModelError: it cannot be loaded.
        """
        from transformers import AutoTokenizer

        with convert_load_errors(folder):
            return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token. All characters are printable, or a line end or tab."""
        for number in set(ids) - self._known.keys():
            self._known[number] = visible(self._bytes(number))
        return [self._known[number] for number in ids]

    def _bytes(self, number: int) -> bytes:
        if number in self._added:
            return self._added[number].encode(errors="backslashreplace")
        token = self._tokenizer.convert_ids_to_tokens(number)
        if token is None:  # the head of some models is larger than the vocabulary
            return f"<token {number}>".encode()
        if self._bytes_of is not None and all(character in self._bytes_of for character in token):
            return bytes(self._bytes_of[character] for character in token)
        if byte := _FALLBACK.fullmatch(token):
            return bytes([int(byte[1], 16)])
        return token.replace(_SPACE, " ").encode(errors="backslashreplace")


def visible(content: bytes) -> str:
    """Return bytes as text, with escapes for bytes that are not UTF-8 and for characters that are not visible.

    A line end is a mark and a line end, so that a token of line ends can be seen and pointed at.
    """
    text = content.decode(errors="backslashreplace")
    shown = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown).replace("\n", f"{LINE_END}\n")


def _is_byte_level(tokenizer: Any) -> bool:
    """Return whether the characters of the vocabulary's entries are bytes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and '"ByteLevel"' in json.dumps(json.loads(backend.to_str())["decoder"])


def _make_byte_table() -> dict[str, int]:
    """Return the byte of each character: a printable Latin-1 character is its byte, and others follow from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
