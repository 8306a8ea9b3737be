"""The published mixtures of Olmo 3, in the shape of their cards (`tests.hub.cards`)."""

from __future__ import annotations

import json

import pyarrow as pa

from tests.hub.code_and_chat import asked, assertions, constrained
from tests.hub.files import card, parquet, question
from tests.hub.server import Repository

COLUMNS = [
    ("prompt", pa.string()),
    ("ground_truth", pa.list_(pa.string())),
    ("dataset", pa.list_(pa.string())),
    ("original_dataset", pa.string()),
    ("dataset_source", pa.string()),
]
"""Columns that all three have."""


def rows(name: str) -> list[dict]:
    """Four rows of each of the six kinds, in open-instruct's form: text with a role before each turn."""
    made = []
    for number in range(4):
        text, answer = question(name, number)
        constraints, _, truth = constrained(name, number)
        stdio = json.dumps([{"input": "1 2\n", "output": "3\n"}])
        kinds = {
            "math": (text, answer),
            "code": (f"Write add(a, b). {asked(f'{name} code', number)}", json.dumps(assertions("add"))),
            "code_stdio": (f"Print the sum. {asked(f'{name} stdio', number)}", stdio),
            "ifeval": (constraints, truth),
            "general-quality_ref": (asked(f"{name} reference", number), "Paris"),
            "general-quality": (asked(f"{name} open", number), ""),
        }
        made += [
            {
                "prompt": f"user: {prompt}",
                "ground_truth": [truth],
                "dataset": [kind],
                "original_dataset": kind,
                "dataset_source": f"source/{kind}",
                "key": f"{kind}-{number}",
            }
            for kind, (prompt, truth) in kinds.items()
        ]
    return made


def mixture(name: str, key: str, more: list[tuple[str, pa.DataType]], commit: str = "") -> Repository:
    """The repository of a mixture whose rows have their identity under `key`, and columns of no interest beside."""
    schema = pa.schema([(key, pa.string()), *COLUMNS, *more])
    made = [{key: row.pop("key"), **row} for row in rows(name)]
    files = {
        "README.md": card({"default": {"train": "data/train-*"}}),
        "data/train-00000-of-00001.parquet": parquet(made, schema),
    }
    return Repository("dataset", name, files, commit=commit)


def repositories() -> list[Repository]:
    """All three.

    `allenai/Dolci-Think-RL-7B` at 0fb6466, https://huggingface.co/datasets/allenai/Dolci-Think-RL-7B. Read: all columns
    below, the six values of `dataset`, a list of one, that a prompt is text with `user: ` before it, and that
    `ground_truth` is a list, in two public loaders of the set. Not read: names of files.

    `allenai/Dolci-Think-RL-32B`. Read: `prompt`, `ground_truth` (a list), `dataset` (a list) and `dataset_source`, in
    public loaders of the set. Not read: other columns, names of files, and the number of rows.

    `allenai/Dolci-Instruct-RL`. Read: `id`, `prompt` with `user: ` before it, `ground_truth`, `dataset` (a list),
    `original_dataset`, `dataset_source` and `data_source`, in public loaders of the set. Not read: names of files.
    """
    passed = [("passrate", pa.float64()), ("total_rollouts", pa.int64()), ("total_correct_rollouts", pa.int64())]
    constraints = [("constraint", pa.string()), ("constraint_type", pa.string())]
    return [
        mixture(
            "allenai/Dolci-Think-RL-7B",
            "custom_id",
            passed + constraints,
            commit="0fb6466d31ef3a9dd16985ef635e6429e05a6491",
        ),
        mixture("allenai/Dolci-Think-RL-32B", "custom_id", []),
        mixture("allenai/Dolci-Instruct-RL", "id", [("data_source", pa.string())]),
    ]
