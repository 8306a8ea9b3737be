"""Makes the files of repositories: tables, lines of JSON, cards; and questions that no two rows have in common."""

from __future__ import annotations

import io
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq

TURN = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def parquet(rows: list[dict], schema: pa.Schema | None = None) -> bytes:
    """The rows as a Parquet file."""
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), content)
    return content.getvalue()


def card(configs: dict[str, dict[str, str]], default: str | None = None) -> bytes:
    """A README whose header names the configurations, with a file pattern for each of their splits."""
    listed = [
        {
            "config_name": name,
            "data_files": [{"split": split, "path": path} for split, path in splits.items()],
            **({"default": True} if name == default else {}),
        }
        for name, splits in configs.items()
    ]
    return f"---\nconfigs: {json.dumps(listed)}\n---\n".encode()


def lines(rows: list[dict]) -> bytes:
    """The rows as JSON Lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


NOUNS = [
    *("anchor", "barrel", "candle", "drum", "engine", "feather", "garden", "hammer"),
    *("island", "jacket", "kettle", "ladder", "mirror", "needle", "orange", "pencil"),
    *("quilt", "rocket", "saddle", "teapot", "umbrella", "violin", "wagon", "yarn"),
    *("zipper", "acorn", "basket", "cherry", "desk", "eagle"),
]

ANSWERS = (3, 8)
"""The answers of most questions: few, so that a model of random weights may give the right one."""


def question(set_name: str, number: int) -> tuple[str, str]:
    """A question of arithmetic that shares few words with others, and its answer, one of `ANSWERS`."""
    draw = random.Random(f"{set_name} {number}")
    things, answer = draw.sample(NOUNS, 5), ANSWERS[number % 2]
    taken = 10 + number
    text = (
        f"The {things[0]} shop has {taken + answer} {things[1]}s beside a {things[2]}, and the {things[3]} of "
        f"{set_name} takes {taken}. How many remain for the {things[4]}?"
    )
    return text, str(answer)


def numbered(set_name: str, count: int = 8) -> list[tuple[int, str, str]]:
    """Questions of a set, each with its number and answer."""
    return [(number, *question(set_name, number)) for number in range(count)]
