"""Repositories of the stand-in, in the shape of what is published.

Names of files, configurations, splits and columns are those of public cards and of public code that reads the sets,
never those of our own data files. "Read" says in which stored public page or repository, on 2026-11-27; "not read" is
what is written down as it is commonly known, and still has to be compared with the card. The rows are our own: a few of
each kind that the set holds.
"""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from tests.hub.server import Repository

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


def gsm8k() -> Repository:
    """`openai/gsm8k` at 740312a: `main` and `socratic`, train and test, https://huggingface.co/datasets/openai/gsm8k.

    Read: the configuration and both columns, in loaders of public repositories. Not read: names of files.
    """

    def rows(first: int, count: int) -> list[dict]:
        return [
            {
                "question": f"Ann has {n:,} pens and buys {n + 1:,} more. How many pens does she have?",
                "answer": f"She has {n} + {n + 1} = <<{n}+{n + 1}={2 * n + 1}>>{2 * n + 1:,} pens.\n#### {2 * n + 1:,}",
            }
            for n in range(first, first + count)
        ]

    configs = {name: {split: f"{name}/{split}-*" for split in ("train", "test")} for name in ("main", "socratic")}
    files = {f"{name}/train-00000-of-00001.parquet": parquet(rows(600, 12)) for name in configs}
    files |= {f"{name}/test-00000-of-00001.parquet": parquet(rows(100, 4)) for name in configs}
    return Repository(
        "dataset",
        "openai/gsm8k",
        {"README.md": card(configs), **files},
        commit="740312add88f781978c0658806c59bc2815b9866",
        former_names=("gsm8k",),
    )


def dapo_math_17k() -> Repository:
    """`BytedTsinghua-SIA/DAPO-Math-17k` at 6587709, https://huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k.

    One file, `data/dapo-math-17k.parquet`, in verl's columns: the questions stand in it a hundred times over, in a
    prompt that asks for "Answer:" on the last line. Not read: all of it.
    """
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
            ("extra_info", pa.struct([("index", pa.string())])),
        ]
    )
    asked = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is {} times {}?\n\nRemember to "
        'put your answer on its own line after "Answer:".'
    )
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": [{"content": asked.format(n, n + 2), "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(n * (n + 2)), "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"00000000-0000-0000-0000-{n:012}"},
        }
        for n in range(10)
    ]
    return Repository(
        "dataset",
        "BytedTsinghua-SIA/DAPO-Math-17k",
        {"README.md": b"---\nlicense: apache-2.0\n---\n", "data/dapo-math-17k.parquet": parquet(rows * 3, schema)},
        commit="65877096c24ffa7abc4e4fa5edb95cf3413a5674",
    )


OMEGA_SETTINGS = ("algebra_func_area", "algebra_linear_equation", "arithmetic_gcd", "logic_gridworld_blocked")
"""Some of the settings, which are configurations (https://github.com/sunblaze-ucb/math_ood, problems/explorative)."""


def omega_explorative() -> Repository:
    """`allenai/omega-explorative` at b04ae8d: a configuration for each setting, with train, test_in and test_out.

    Read: files `<setting>/<split>-00000-of-00001.parquet` and the commit, in omega_500_out.py of olmo-eval; the names
    of settings, in problems/explorative/README.md of sunblaze-ucb/math_ood; the columns, in the card of a set of the
    same authors (https://huggingface.co/datasets/allenai/omega-transformative). Not read: this set's own card.
    """
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("setting_key", pa.string()),
            ("messages", TURN),
            ("ground_truth", pa.string()),
            ("dataset", pa.string()),
        ]
    )
    files = {}
    for number, setting in enumerate(OMEGA_SETTINGS):
        rows = [
            {
                "id": f"{setting}_{n}",
                "setting_key": setting,
                "messages": [{"role": "user", "content": f"{setting}: what is {n} + {number}?"}],
                "ground_truth": str(n + number),
                "dataset": "omega",
            }
            for n in range(5)
        ]
        for split in ("train", "test_in", "test_out"):
            files[f"{setting}/{split}-00000-of-00001.parquet"] = parquet(rows, schema)
    configs = {
        setting: {split: f"{setting}/{split}-*" for split in ("train", "test_in", "test_out")}
        for setting in OMEGA_SETTINGS
    }
    return Repository(
        "dataset",
        "allenai/omega-explorative",
        {"README.md": card(configs), **files},
        commit="b04ae8d4757a2229e8ed65ac6a923e502d0bbb95",
    )


def dolci_think_rl_7b() -> Repository:
    """`allenai/Dolci-Think-RL-7B` at 0fb6466, https://huggingface.co/datasets/allenai/Dolci-Think-RL-7B.

    Read: `dataset` is a list of one name, among the six below, and `custom_id`, in public code that filters the set.
    Not read: the types of `prompt` and `ground_truth`, and the names of files.
    """
    schema = pa.schema(
        [
            ("custom_id", pa.string()),
            ("prompt", pa.string()),
            ("ground_truth", pa.list_(pa.string())),
            ("dataset", pa.list_(pa.string())),
            ("original_dataset", pa.string()),
            ("dataset_source", pa.string()),
        ]
    )
    constraint = [{"instruction_id": ["punctuation:no_comma"], "kwargs": [None]}]
    kinds = {
        "math": ("user: What is 2 + 3?", ["5"]),
        "code": ("user: Write add(a, b).", [json.dumps(["assert add(1, 2) == 3", "assert add(0, 0) == 0"])]),
        "code_stdio": ("user: Print the sum.", [json.dumps([{"input": "1 2\n", "output": "3\n"}])]),
        "ifeval": ("user: Write a line. Use no commas.", [json.dumps(constraint)]),
        "general-quality_ref": ("user: What is the capital of France?", ["Paris"]),
        "general-quality": ("user: Tell me a story.", [""]),
    }
    rows = [
        {
            "custom_id": f"{kind}-{n}",
            "prompt": f"{prompt} ({n})",
            "ground_truth": truth,
            "dataset": [kind],
            "original_dataset": kind,
            "dataset_source": f"source/{kind}",
        }
        for n in range(4)
        for kind, (prompt, truth) in kinds.items()
    ]
    return Repository(
        "dataset",
        "allenai/Dolci-Think-RL-7B",
        {
            "README.md": card({"default": {"train": "data/train-*"}}),
            "data/train-00000-of-00001.parquet": parquet(rows, schema),
        },
        commit="0fb6466d31ef3a9dd16985ef635e6429e05a6491",
    )


def nemotron_post_training() -> Repository:
    """`nvidia/Nemotron-Post-Training-Dataset-v1`: splits by category, `code` among them, and no tests.

    Not read: the columns (https://huggingface.co/datasets/nvidia/Nemotron-Post-Training-Dataset-v1).
    """
    rows = [
        {
            "uuid": str(n),
            "license": "CC BY 4.0",
            "generator": "DeepSeek-R1-0528",
            "version": "v1",
            "category": "code",
            "reasoning": "on",
            "messages": [
                {"role": "user", "content": f"Write f({n})."},
                {"role": "assistant", "content": "def f(): ..."},
            ],
            "metadata": "{}",
        }
        for n in range(3)
    ]
    return Repository(
        "dataset",
        "nvidia/Nemotron-Post-Training-Dataset-v1",
        {"README.md": card({"default": {"code": "data/code-*"}}), "data/code-00000-of-00001.parquet": parquet(rows)},
    )


def gated() -> Repository:
    """A set that the hub lists and whose files it refuses, as that of a model that asks for an agreement."""
    return Repository("dataset", "someone/gated", {"README.md": b"", "data/train-0.parquet": b""}, gated=True)


def qwen_without_tokenizer_json() -> Repository:
    """A model whose tokenizer is `vocab.json` and `merges.txt` alone, without `tokenizer.json`, as in older uploads."""
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 8}
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
    """All of them."""
    return [
        gsm8k(),
        dapo_math_17k(),
        omega_explorative(),
        dolci_think_rl_7b(),
        nemotron_post_training(),
        gated(),
        qwen_without_tokenizer_json(),
    ]
