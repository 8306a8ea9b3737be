"""Transforms of rows that the data files here name, and patterns for your own (`transform:` of a source)."""

from __future__ import annotations

import base64
import io
import json
import pickle
import re
import zlib
from typing import Any

_TURN = re.compile(r"^(system|user|assistant): ", re.MULTILINE | re.IGNORECASE)


def turns(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its `prompt`, the text of a chat with a role before each turn (`user: ...`), as messages.

    The Dolci mixtures hold prompts in this form, as open-instruct gave them to the policy. Text that begins with no
    role is the user's.
    """
    text = row["prompt"]
    starts = list(_TURN.finditer(text))
    if not starts or starts[0].start() > 0:
        return row
    ends = [*(start.start() for start in starts[1:]), len(text)]
    messages = [
        {"role": start[1].lower(), "content": text[start.end() : end].strip()}
        for start, end in zip(starts, ends, strict=True)
    ]
    return row | {"prompt": messages}


def first_turn(row: dict[str, Any]) -> dict[str, Any]:
    """Return WildChat's row up to its first answer."""
    return row | {"conversation": row["conversation"][:1]}


def with_task_type(row: dict[str, Any]) -> dict[str, Any]:
    """Return SYNTHETIC-2's row with its kind of task as `task_type`: what its `problem_id` has before its number."""
    kind, _, number = (row.get("problem_id") or "").rpartition("_")
    return row | {"task_type": kind if number.isdigit() else ""}


def checked_function(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of HumanEval or HumanEval+ with `tests`: the one call of `check`, which `test` defines."""
    return row | {"tests": [f"check({row['entry_point']})"]}


def checked_script(row: dict[str, Any]) -> dict[str, Any]:
    """Return MBPP+'s row with its script of all tests as `tests`, and the few tests of MBPP after the task."""
    shown = "\n".join(row["test_list"])
    return row | {
        "prompt": f"{row['prompt']}\nYour code must pass these tests:\n{shown}",
        "tests": [row["test"]],
    }


def contest_problem(row: dict[str, Any]) -> dict[str, Any]:
    """Return LiveCodeBench's row with all its tests as `tests`, and the format of the answer after the question.

    A test has its input and output, or, where the row's metadata names a method of LeetCode's class `Solution`, is an
    assertion about a call of it, with an argument as JSON on each line of the input. As in LiveCodeBench's checker a
    tuple is right where a list is expected, but not within one.
    """
    cases = json.loads(row["public_test_cases"]) + _private(row["private_test_cases"])
    method = json.loads(row["metadata"]).get("func_name")
    starter = row["starter_code"]
    asked = f"{_STARTER}\n```python\n{starter}\n```" if starter else _STANDARD_INPUT
    return row | {
        "question_content": f"{row['question_content']}\n\n{asked}",
        "tests": [_asserted(method, case) if method else case for case in cases],
    }


_STARTER = "Answer with the whole program in one block, with its imports; it begins as follows."
_STANDARD_INPUT = (
    "Answer with the whole program in one block. It reads the input from standard input, as the examples show it, and "
    "prints the answer."
)


def _asserted(method: str, case: dict[str, str]) -> str:
    arguments = ", ".join(repr(json.loads(line)) for line in case["input"].split("\n"))
    output = json.loads(case["output"])
    wanted = f"in ({output!r}, {tuple(output)!r})" if isinstance(output, list) else f"== {output!r}"
    return f"assert Solution().{method}({arguments}) {wanted}"


def _private(text: str) -> list[dict[str, str]]:
    """Return the tests of a text that holds them as JSON: plainly, or within a pickle that is compressed."""
    if text.lstrip().startswith("["):
        return json.loads(text)
    return json.loads(_OfText(io.BytesIO(zlib.decompress(base64.b64decode(text)))).load())


class _OfText(pickle.Unpickler):
    """A reader of a pickled text, which a class or function in the pickle cannot make run anything."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Refuse whatever is named."""
        raise pickle.UnpicklingError(f"{module_name}.{global_name} in the pickle of a text")
