"""Loads the tokenizer that cuts the prompts of an LLM judge to its context."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load_tokenizer(tokenizer: str, revision: str | None) -> Any:
    """Return the tokenizer in a folder, or of a hub id with a revision.

    Raises:
        ValueError: it cannot be loaded.
    """
    if not Path(tokenizer).is_dir() and revision is None:
        raise ValueError(f"tokenizer {tokenizer!r}: neither a folder nor a hub id with a revision")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(tokenizer, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"tokenizer {tokenizer!r} cannot be loaded: {error}") from error
