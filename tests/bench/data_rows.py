"""Rows like a published set of mathematics, for the benchmark of the data stages.

A prompt has 50 to 300 words: numbers, formulas and signs among words. Of the rows 5% repeat an earlier prompt and its
answer with other white space and case, 5% differ from an earlier prompt in one word, 1% contain a question of the
evaluation set, 1% have no answer, and 5% have letters outside of ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import IO

import numpy as np

SHORTEST, LONGEST = 50, 300
"""Words of a prompt."""
VOCABULARY = 5000
QUESTIONS = 500
"""Questions of the evaluation set, of 20 words each."""
BATCH = 10_000
SAME, NEAR, ASKED, EMPTY, FOREIGN = 0.05, 0.05, 0.01, 0.01, 0.05

Words = np.ndarray[tuple[int], np.dtype[np.str_]]


def write_rows(count: int, folder: Path) -> None:
    """Write `rows.jsonl` with `count` rows and `questions.jsonl`, which both have `question` and `answer`."""
    random = np.random.default_rng(5)
    words = vocabulary(random)
    questions = [" ".join(random.choice(words, 20)) for _ in range(QUESTIONS)]
    with (folder / "questions.jsonl").open("w") as file:
        _write(file, ((question, str(number)) for number, question in enumerate(questions)))
    with (folder / "rows.jsonl").open("w") as file:
        for start in range(0, count, BATCH):
            _write(file, _rows(random, words, questions, range(start, min(start + BATCH, count))))


def vocabulary(random: np.random.Generator) -> Words:
    """Return words, of which a tenth are numbers, a twentieth formulas, and a tenth end in a sign."""
    words = np.array(["".join(letters) for letters in product(ascii_lowercase, repeat=4)], dtype=object)
    words = random.choice(words, VOCABULARY, replace=False)
    kinds = random.random(VOCABULARY)
    numbers = random.integers(1, 1000, VOCABULARY)
    words[kinds < 0.1] = [str(number) for number in numbers[kinds < 0.1]]
    formulas = (kinds >= 0.1) & (kinds < 0.15)
    words[formulas] = [rf"$\frac{{x^{number % 9}}}{{{number}}}$" for number in numbers[formulas]]
    signed = (kinds >= 0.15) & (kinds < 0.25)
    words[signed] += random.choice([".", ",", "?"], signed.sum()).astype(object)
    return words


def _rows(random: np.random.Generator, words: Words, questions: list[str], numbers: range) -> list[tuple[str, str]]:
    """Return the prompts and answers of the rows with these numbers. A repeated prompt is one of these rows, too."""
    size = len(numbers)
    counts = random.integers(SHORTEST, LONGEST + 1, size)
    ends = np.cumsum(counts)
    drawn = words[random.integers(0, VOCABULARY, ends[-1])]
    kinds = np.searchsorted(np.cumsum([SAME, NEAR, ASKED, EMPTY, FOREIGN]), random.random(size), side="right")
    earlier = (random.random(size) * np.arange(size)).astype(int)
    rows: list[tuple[str, str]] = []
    for row, kind in enumerate(kinds.tolist()):
        text, answer = " ".join(drawn[ends[row] - counts[row] : ends[row]]), str(numbers[row])
        if kind < 2 and row:
            text, answer = rows[earlier[row]]
            text = f"{text.upper()} \n" if kind == 0 else text.replace(" ", " however ", 1)
        elif kind == 2:
            text += f" {questions[row % len(questions)]}"
        elif kind == 3:
            answer = ""
        elif kind == 4:
            text += " für alle θ ≤ x²"
        rows.append((text, answer))
    return rows


def _write(file: IO[str], rows: Iterable[tuple[str, str]]) -> None:
    file.writelines(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in rows)
