"""Sets of code, instructions and chat, and mixtures of all domains, in the shape of their cards (`tests.hub.cards`)."""

from __future__ import annotations

import json

import pyarrow as pa

from tests.hub.files import TURN, card, lines, numbered, parquet, question
from tests.hub.server import Repository

CONSTRAINTS = (
    ("punctuation:no_comma", None, "Use no commas."),
    ("change_case:english_lowercase", None, "Write in lowercase."),
    ("length_constraints:number_sentences", {"relation": "at least", "num_sentences": 2}, "Write two sentences."),
    ("detectable_format:title", None, "Give a title, in double angular brackets."),
)
"""Constraints of IFEval with their arguments and wording; one of them needs NLTK's data."""

FUNCTIONS = ("add", "larger", "smaller", "first", "second", "product")
"""Names of functions of two numbers."""


def asked(set_name: str, number: int) -> str:
    """A prompt of chat that shares few words with others."""
    return question(set_name, number)[0].replace("How many remain", "Tell a story of what remains")


def assertions(name: str) -> list[str]:
    """Tests of a function, as assertions."""
    return [f"assert {name}(1, 2) in (1, 2, 3)", f"assert {name}(0, 0) == 0"]


def constrained(set_name: str, number: int) -> tuple[str, str, str]:
    """A prompt with two constraints, their text, and what checks them, as the text of a Python literal."""
    chosen = [CONSTRAINTS[number % 4], CONSTRAINTS[(number + 1) % 4]]
    wording = " ".join(words for _, _, words in chosen)
    truth = [{"instruction_id": [name for name, _, _ in chosen], "kwargs": [given for _, given, _ in chosen]}]
    return f"{asked(set_name, number)} {wording}", wording, str(truth)


def if_multi_constraints() -> Repository:
    """`allenai/IF_multi_constraints_upto5`: prompts with up to five constraints.

    Read: the split, `messages`, `ground_truth` (text of a Python list of one object with `instruction_id` and
    `kwargs`), `key`, `constraint` and `constraint_type`, in a public loader and verifier of the set. Not read: names of
    files, and types but for these.
    """
    rows = []
    for number in range(8):
        text, wording, truth = constrained("if", number)
        rows.append(
            {
                "key": f"if-{number}",
                "messages": [{"role": "user", "content": text}],
                "ground_truth": truth,
                "dataset": "ifeval",
                "constraint_type": "multi",
                "constraint": wording,
            }
        )
    files = {
        "README.md": card({"default": {"train": "data/train-*"}}),
        "data/train-00000-of-00001.parquet": parquet(rows),
    }
    return Repository("dataset", "allenai/IF_multi_constraints_upto5", files)


def acecode() -> Repository:
    """`TIGER-Lab/AceCode-87K`: questions and assertions.

    Read: all columns and their types, and `data/train-*`, in the card
    (https://huggingface.co/datasets/TIGER-Lab/AceCode-87K/blob/main/README.md, at 1321630).
    """
    inference = pa.struct(
        [
            ("completion", pa.string()),
            ("completion_id", pa.int64()),
            ("model_name", pa.string()),
            ("pass_rate", pa.float64()),
        ]
    )
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("source", pa.string()),
            ("question", pa.string()),
            ("test_cases", pa.list_(pa.string())),
            ("inferences", pa.list_(inference)),
            ("context_messages", pa.list_(TURN)),
        ]
    )
    rows = [
        {
            "id": f"oss_{number}",
            "source": "oss",
            "question": f"Write `{name}` of two numbers. {asked('acecode', number)}",
            "test_cases": assertions(name),
            "inferences": [{"completion": "", "completion_id": 0, "model_name": "m", "pass_rate": 0.5}],
            "context_messages": [[{"role": "user", "content": name}]],
        }
        for number, name in enumerate(FUNCTIONS)
    ]
    files = {
        "README.md": card({"default": {"train": "data/train-*"}}),
        "data/train-00000-of-00001.parquet": parquet(rows, schema),
    }
    return Repository("dataset", "TIGER-Lab/AceCode-87K", files)


def klear_code() -> Repository:
    """`Kwai-Klear/KlearReasoner-CodeSub-15K`: rows of JSON in verl's columns, in `train_code_rllm_clean.json`.

    Read: the file, in a public catalog of sets of code; the fields, in the card (https://huggingface.co/datasets/
    Kwai-Klear/KlearReasoner-CodeSub-15K/blob/refs%2Fpr%2F2/README.md); that the ground truth is JSON text, in public
    code that prepares the set. Not read: what that text holds, which is taken from checkers of the family that judges
    it (code-r1: `inputs` and `outputs`, or `functional`), and whether the file holds lines or a list.
    """
    truths = [
        {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]},
        {"functional": "def check(candidate):\n    assert candidate(1, 2) == 3\n\ncheck(add)"},
    ]
    rows = [
        {
            "hash": f"{number:032x}",
            "ability": "code",
            "data_source": "coder1_longcot",
            "prompt": [
                {"content": f"You are an expert Python programmer. {asked('klear code', number)}", "role": "user"}
            ],
            "reward_model": {"ground_truth": json.dumps(truths[number % 2]), "style": "rule"},
        }
        for number in range(6)
    ]
    files = {"README.md": b"", "train_code_rllm_clean.json": lines(rows)}
    return Repository("dataset", "Kwai-Klear/KlearReasoner-CodeSub-15K", files)


def synthetic_2_rl() -> Repository:
    """`PrimeIntellect/SYNTHETIC-2-RL`: ten kinds of tasks, which the beginning of `problem_id` tells apart.

    Read: the split; `problem_id`, which begins with `prime_rl_code` for code and is null for some others; `prompt`, as
    text; `verification_info`, JSON text whose `test_cases` are JSON text again, of `inputs`, `outputs` and perhaps
    `fn_name`; and columns of mean rewards, in two public loaders of the set. Neither reads a column of the kind of
    task, which SYNTHETIC-2-SFT-verified has as `task_type`. Not read: names of files, and the card.
    """
    stdio = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    calls = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}
    rows = []
    for number in range(6):
        tests = json.dumps((stdio, calls)[number % 2])
        rows.append(
            {
                "problem_id": f"prime_rl_code_{number}",
                "prompt": f"{asked('synthetic', number)} Write Python code to solve the problem.",
                "verification_info": json.dumps({"style": "rule", "test_cases": tests}),
            }
        )
    _, text, answer = numbered("sky work", 1)[0]
    rows.append(
        {
            "problem_id": "sky_work_math_1",
            "prompt": text,
            "verification_info": json.dumps({"ground_truth": answer}),
        }
    )
    rows.append({"problem_id": None, "prompt": "What is printed?", "verification_info": json.dumps({"code_output": 3})})
    rows = [row | {"Qwen/Qwen3-32B_avg_reward": 0.5, "Qwen/Qwen3-4B_avg_reward": None} for row in rows]
    files = {
        "README.md": card({"default": {"train": "data/train-*"}}),
        "data/train-00000-of-00001.parquet": parquet(rows),
    }
    return Repository("dataset", "PrimeIntellect/SYNTHETIC-2-RL", files)


def nemotron_post_training() -> Repository:
    """`nvidia/Nemotron-Post-Training-Dataset-v1`: splits by category, `code` among them, and no tests.

    Read: the configuration `default`, the splits and `messages`, in public loaders, and that the question of a row of
    code is "-", in a public report about the set. Not read: the other columns
    (https://huggingface.co/datasets/nvidia/Nemotron-Post-Training-Dataset-v1).
    """
    rows = [
        {
            "uuid": str(number),
            "license": "CC BY 4.0",
            "generator": "DeepSeek-R1-0528",
            "version": "v1",
            "category": "code",
            "reasoning": "on",
            "messages": [{"role": "user", "content": "-"}, {"role": "assistant", "content": "def f(): ..."}],
            "metadata": "{}",
        }
        for number in range(3)
    ]
    return Repository(
        "dataset",
        "nvidia/Nemotron-Post-Training-Dataset-v1",
        {"README.md": card({"default": {"code": "data/code-*"}}), "data/code-00000-of-00001.parquet": parquet(rows)},
    )


def mbpp_rows(split: str, count: int) -> list[dict]:
    """Rows of MBPP's configuration `full`; a split's share no more than a few words with those of another."""
    return [
        {
            "task_id": number,
            "text": f"Write a function {name} ({split}). {asked(f'mbpp {split}', number)}",
            "code": f"def {name}(a, b):\r\n    return a",
            "test_list": assertions(name),
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for number, name in enumerate(FUNCTIONS[:count])
    ]


def mbpp() -> Repository:
    """`google-research-datasets/mbpp` at 4bb6404: `full`, the default, and `sanitized`; it was `mbpp` once.

    Read: configurations, splits, columns, types and file patterns, in the card
    (https://huggingface.co/datasets/mbpp/blob/main/README.md).
    """
    schema = pa.schema(
        [
            ("task_id", pa.int32()),
            ("text", pa.string()),
            ("code", pa.string()),
            ("test_list", pa.list_(pa.string())),
            ("test_setup_code", pa.string()),
            ("challenge_test_list", pa.list_(pa.string())),
        ]
    )
    splits = ("train", "test", "validation", "prompt")
    files = {
        f"full/{split}-00000-of-00001.parquet": parquet(mbpp_rows(split, 6 if split == "train" else 2), schema)
        for split in splits
    }
    configs = {"full": {split: f"full/{split}-*" for split in splits}}
    return Repository(
        "dataset",
        "google-research-datasets/mbpp",
        {"README.md": card(configs, "full"), **files},
        commit="4bb6404fdc6cacfda99d4ac4205087b89d32030c",
        former_names=("mbpp",),
    )


def tulu_3() -> Repository:
    """`allenai/tulu-3-sft-mixture`: chats with their answers.

    Read: columns, types and `data/train-*`, in the card
    (https://huggingface.co/datasets/allenai/tulu-3-sft-mixture/blob/main/README.md).
    """
    turns = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
    schema = pa.schema([("id", pa.string()), ("messages", turns), ("source", pa.string())])
    rows = [
        {
            "id": f"tulu_{number}",
            "messages": [
                {"role": "user", "content": asked("tulu", number)},
                {"role": "assistant", "content": "Once upon a time."},
            ],
            "source": "ai2-adapt-dev/no_robots_converted",
        }
        for number in range(6)
    ]
    files = {
        "README.md": card({"default": {"train": "data/train-*"}}),
        "data/train-00000-of-00001.parquet": parquet(rows, schema),
    }
    return Repository("dataset", "allenai/tulu-3-sft-mixture", files)


def wildchat() -> Repository:
    """`allenai/WildChat-4.8M`: conversations, with what was found out about each turn.

    Read: `conversation`, `language`, `toxic`, `turn`, `redacted`, `model` and the keys of a turn, in the cards of the
    earlier sets of the family (https://huggingface.co/datasets/allenai/WildChat-nontoxic, WildChat-1M-Full);
    `conversation_hash`, `language` and the split of this one, in public loaders. Not read: this set's own card.
    """
    rows = []
    for number in range(8):
        language = "French" if number == 3 else "English"
        turns = [
            {"role": "user", "content": asked("wildchat", number)},
            {"role": "assistant", "content": "Certainly."},
            {"role": "user", "content": "And then?"},
        ]
        about = {
            "country": "France",
            "language": language,
            "redacted": False,
            "toxic": False,
            "turn_identifier": number,
        }
        rows.append(
            {
                "conversation_hash": f"{number:032x}",
                "model": "gpt-4o",
                "conversation": [turn | about for turn in turns],
                "turn": 2,
                "language": language,
                "toxic": number == 5,
                "redacted": False,
            }
        )
    files = {
        "README.md": card({"default": {"train": "data/train-*"}}),
        "data/train-00000-of-00086.parquet": parquet(rows),
    }
    return Repository("dataset", "allenai/WildChat-4.8M", files)


def multi_subject() -> Repository:
    """`virtuoussy/Multi-subject-RLVR`: exam questions, after a system prompt, with short answers.

    Read: `query`, a list of a system's and a user's turn, `label`, and the splits train and test, in public loaders of
    the set. Not read: other columns, and names of files.
    """
    rows = [
        {
            "query": [
                {"role": "system", "content": "Answer the question of an exam."},
                {"role": "user", "content": asked("subjects", number)},
            ],
            "label": "Paris",
            "subject": "General",
        }
        for number in range(6)
    ]
    files = {f"data/{split}-00000-of-00001.parquet": parquet(rows) for split in ("train", "test")}
    readme = card({"default": {split: f"data/{split}-*" for split in ("train", "test")}})
    return Repository("dataset", "virtuoussy/Multi-subject-RLVR", {"README.md": readme, **files})


def repositories() -> list[Repository]:
    """All of them."""
    return [
        if_multi_constraints(),
        acecode(),
        klear_code(),
        synthetic_2_rl(),
        nemotron_post_training(),
        mbpp(),
        tulu_3(),
        wildchat(),
        multi_subject(),
    ]
