"""Sets of mathematics, in the shape of their cards (`tests.hub.cards`)."""

from __future__ import annotations

import json

import pyarrow as pa

from tests.hub.files import TURN, card, lines, numbered, parquet
from tests.hub.server import Repository

VERL = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
        ("extra_info", pa.struct([("index", pa.string())])),
    ]
)
"""Columns of verl's sets."""


def gsm8k() -> Repository:
    """`openai/gsm8k` at 740312a: `main` and `socratic`, train and test, https://huggingface.co/datasets/openai/gsm8k.

    Read: the configuration, both columns and `main/train-00000-of-00001.parquet`, in loaders of public repositories.
    """
    configs = {name: {split: f"{name}/{split}-*" for split in ("train", "test")} for name in ("main", "socratic")}
    files = {
        f"{name}/{split}-00000-of-00001.parquet": parquet(gsm8k_rows(split))
        for name, splits in configs.items()
        for split in splits
    }
    return Repository(
        "dataset",
        "openai/gsm8k",
        {"README.md": card(configs), **files},
        commit="740312add88f781978c0658806c59bc2815b9866",
        former_names=("gsm8k",),
    )


def gsm8k_rows(split: str) -> list[dict]:
    """Twelve rows to train on, of which the first has an answer with a comma, or four to test with."""
    rows = [
        {"question": text, "answer": f"It is <<10+{answer}-10={answer}>>{answer}.\n#### {answer}"}
        for _, text, answer in numbered(f"gsm8k {split}", 12 if split == "train" else 4)
    ]
    if split == "train":
        rows[0] = {"question": "Ann has 600 pens and buys 601. How many?", "answer": "She has 1,201 pens.\n#### 1,201"}
    return rows


def dapo_math_17k() -> Repository:
    """`BytedTsinghua-SIA/DAPO-Math-17k` at 6587709, https://huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k.

    One file, `data/dapo-math-17k.parquet`, in verl's columns: the questions stand in it a hundred times over, in a
    prompt that asks for "Answer:" on the last line. Not read: all of it.
    """
    asked = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on "
        'its own line after "Answer:".'
    )
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": [{"content": asked.format(text), "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"00000000-0000-0000-0000-{number:012}"},
        }
        for number, text, answer in numbered("dapo", 10)
    ]
    return Repository(
        "dataset",
        "BytedTsinghua-SIA/DAPO-Math-17k",
        {"README.md": b"---\nlicense: apache-2.0\n---\n", "data/dapo-math-17k.parquet": parquet(rows * 3, VERL)},
        commit="65877096c24ffa7abc4e4fa5edb95cf3413a5674",
    )


def dapo_math_17k_processed() -> Repository:
    """`open-r1/DAPO-Math-17k-Processed`: `all`, `en` and `cn`; questions without their format, answers in `solution`.

    Read: the configurations, the split, `en/train-00000-of-00001.parquet` and the columns `prompt`, `solution`,
    `data_source`, `ability`, `reward_model` and `extra_info`, in loaders of public repositories. Not read: the names of
    other files.
    """
    rows = [
        {
            "prompt": text,
            "solution": answer,
            "data_source": "math_dapo",
            "ability": "MATH",
            "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": str(number)},
        }
        for number, text, answer in numbered("processed")
    ]
    configs = {name: {"train": f"{name}/train-*"} for name in ("all", "cn", "en")}
    files = {f"{name}/train-00000-of-00001.parquet": parquet(rows) for name in configs}
    return Repository("dataset", "open-r1/DAPO-Math-17k-Processed", {"README.md": card(configs, "all"), **files})


def open_reasoner_zero() -> Repository:
    """`Open-Reasoner-Zero/orz_math_57k_collection`: one JSON file, a list of pairs of turns.

    Read: `orz_math_57k_collection.json`, and in it `[0]["value"]` and `[1]["ground_truth"]["value"]` of each pair, in
    two public loaders. Not read: the keys `from`, and the card.
    """
    pairs = [
        [
            {"from": "human", "value": text},
            {"from": "assistant", "ground_truth": {"value": answer}},
        ]
        for _, text, answer in numbered("orz")
    ]
    files = {"README.md": b"", "orz_math_57k_collection.json": json.dumps(pairs, indent=2).encode()}
    return Repository("dataset", "Open-Reasoner-Zero/orz_math_57k_collection", files)


def polaris() -> Repository:
    """`POLARIS-Project/Polaris-Dataset-53K`: `problem`, `answer`, and a difficulty from 0/8 to 7/8.

    Read: the columns and the split, in loaders of public repositories. Not read: the name of the file.
    """
    rows = [
        {"problem": text, "answer": answer, "difficulty": f"{number}/8"} for number, text, answer in numbered("polaris")
    ]
    return Repository(
        "dataset", "POLARIS-Project/Polaris-Dataset-53K", {"README.md": b"", "polaris-data-53K.jsonl": lines(rows)}
    )


def acereason_math() -> Repository:
    """`nvidia/AceReason-Math`: `problem` and `answer`, in `math.jsonl`.

    Read: the file, the columns and the split, in loaders of public repositories.
    """
    rows = [{"problem": text, "answer": answer} for _, text, answer in numbered("acereason")]
    return Repository("dataset", "nvidia/AceReason-Math", {"README.md": b"", "math.jsonl": lines(rows)})


def klear_math() -> Repository:
    """`Kwai-Klear/KlearReasoner-MathSub-30K`: rows of JSON in verl's columns.

    Read: the fields, in the card (https://huggingface.co/datasets/Kwai-Klear/KlearReasoner-MathSub-30K/blob/main/
    README.md) and a row of it, in README.md of suu990901/KlearReasoner. Not read: the name of the file.
    """
    rows = [
        {
            "data_source": "math_longcot_math_verify",
            "prompt": [{"content": text, "role": "user"}],
            "ability": "math",
            "reward_model": {"ground_truth": answer, "style": "rule"},
            "__index_level_0__": str(number),
        }
        for number, text, answer in numbered("klear")
    ]
    return Repository(
        "dataset", "Kwai-Klear/KlearReasoner-MathSub-30K", {"README.md": b"", "train_math.json": lines(rows)}
    )


def math12k() -> Repository:
    """`hiyouga/math12k`: `problem` and `answer`, train and test.

    Read: the columns and the splits, in loaders of public repositories. Not read: names of files.
    """
    rows = [{"problem": text, "answer": answer} for _, text, answer in numbered("math12k", 10)]
    files = {f"data/{split}-00000-of-00001.parquet": parquet(rows) for split in ("train", "test")}
    readme = card({"default": {split: f"data/{split}-*" for split in ("train", "test")}})
    return Repository("dataset", "hiyouga/math12k", {"README.md": readme, **files})


def open_math_instruct_2() -> Repository:
    """`nvidia/OpenMathInstruct-2`: splits train, train_1M, train_2M and train_5M.

    Read: the columns and splits, in the card (https://huggingface.co/datasets/nvidia/OpenMathInstruct-2), and
    `data/train_1M-00000-of-00003.parquet`, in loaders of public repositories.
    """
    rows = [
        {"problem": text, "generated_solution": "...", "expected_answer": answer, "problem_source": "augmented_gsm8k"}
        for _, text, answer in numbered("omi", 12)
    ]
    files = {
        f"data/{split}-{part:05}-of-00003.parquet": parquet(rows[part * 4 : part * 4 + 4])
        for split in ("train", "train_1M")
        for part in range(3)
    }
    readme = card({"default": {split: f"data/{split}-*" for split in ("train", "train_1M")}})
    return Repository("dataset", "nvidia/OpenMathInstruct-2", {"README.md": readme, **files})


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
    for setting in OMEGA_SETTINGS:
        rows = [
            {
                "id": f"{setting}_{n}",
                "setting_key": setting,
                "messages": [{"role": "user", "content": text}],
                "ground_truth": answer,
                "dataset": "omega",
            }
            for n, text, answer in numbered(setting, 5)
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


def repositories() -> list[Repository]:
    """All sets of mathematics."""
    return [
        gsm8k(),
        dapo_math_17k(),
        dapo_math_17k_processed(),
        open_reasoner_zero(),
        polaris(),
        acereason_math(),
        klear_math(),
        math12k(),
        open_math_instruct_2(),
        omega_explorative(),
    ]
