"""Repositories of the stand-in, in the shape of what is published.

Names of files, configurations, splits and columns are those of public cards and of public code that reads the sets,
never those of our own data files. "Read" says in which stored public page or repository, on 2026-11-27; "not read" is
what is written down as it is commonly known, and still has to be compared with the card. The rows are our own: a few of
each kind that the set holds.
"""

from __future__ import annotations

import json

from tests.hub import benchmarks, code_and_chat, dolci, mathematics, models
from tests.hub.server import Repository


def gated() -> Repository:
    """A set that the hub lists and whose files it refuses, as that of a model that asks for an agreement."""
    return Repository("dataset", "someone/gated", {"README.md": b"", "data/train-0.parquet": b""}, gated=True)


def qwen_without_tokenizer_json() -> Repository:
    """A model whose tokenizer is `vocab.json` and `merges.txt` alone, without `tokenizer.json`, as in older uploads."""
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 8}
    config["max_position_embeddings"] = 4096
    return Repository(
        "model",
        "someone/qwen2-tiny",
        {
            "config.json": json.dumps(config).encode(),
            "model.safetensors": (2).to_bytes(8, "little") + b"{}",
            "tokenizer_config.json": json.dumps({"tokenizer_class": "Qwen2Tokenizer"}).encode(),
            "vocab.json": json.dumps({"a": 0, "b": 1, "ab": 2}).encode(),
            "merges.txt": b"#version: 0.2\na b\n",
            "generation_config.json": b"{}",
        },
    )


def repositories() -> list[Repository]:
    """All sets and models that files of ours name, and those of particular kinds.

    The models have files of the names that they have on the hub, which are nearly empty (`models.weighty` has others).
    """
    return [
        *mathematics.repositories(),
        *code_and_chat.repositories(),
        *dolci.repositories(),
        *benchmarks.repositories(),
        *models.light(),
        gated(),
        qwen_without_tokenizer_json(),
    ]
