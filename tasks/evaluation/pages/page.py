"""Renders an HTML page for each benchmark, with its questions and the responses of every policy.

A page is self-contained (inline style, no script, no requests), has at most about `PAGE_BYTES` bytes, and states what
it leaves out. Its filters are radio inputs and style rules. Prompts and responses are untrusted text; the template
escapes everything. Equal tables give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.evaluation.pages.selection import Pair, Selection, Shown, select, verdict_of
from tasks.evaluation.questions import with_responses
from tasks.excerpts import episodes
from tasks.excerpts.episodes import MOST_TURNS, ShownEpisode
from tasks.excerpts.texts import Excerpt, limit_of, size

PAGE_BYTES = 4_800_000
"""Approximate maximum size of a page in bytes. Longer texts are shortened to reach it."""
HEAD_BYTES, QUESTION_BYTES, RESPONSE_BYTES, TURN_BYTES = 9_000, 620, 260, 140
"""Size of a page's markup in bytes: before the questions, around a question with two policies, around a response, and
around a turn of an episode."""
TURNS_OF_ALL = 16_000
"""Approximate maximum number of episode turns on a page. All episodes have the same maximum number of turns."""
ANSWER_BYTES, REASON_BYTES = 120, 400
"""Maximum number of bytes of an answer, and of the verifier's detail on a response, on a page."""
CHOSEN_BY = ["prompt_id", "sample", "passed"]
"""Columns of rollouts that are used to select what a page shows."""
_NOTHING = Excerpt("")


class BenchmarkPages:
    """The pages of an evaluation. Only the responses on the pages are kept in memory, without their middles."""

    def __init__(
        self,
        asked: Mapping[str, pa.Table],
        answered: Mapping[str, pa.Table],
        pairs: Sequence[Pair],
    ) -> None:
        """Select what the pages show.

        Args:
            asked: the questions of every benchmark, by benchmark name, as tables of `PROMPTS`.
            answered: the rows of `EVALUATION_ROLLOUTS` by policy. Only the columns `CHOSEN_BY` are read.
            pairs: the policies that are compared, each with its baseline.
        """
        self._policies = list(answered)
        self._selections = {
            benchmark: select(with_responses(prompts, _of_benchmark(answered, benchmark)), self._policies, pairs)
            for benchmark, prompts in asked.items()
        }
        self._wanted = {
            (policy, benchmark, row["prompt_id"], row["sample"])
            for benchmark, selection in self._selections.items()
            for policy, row in selection.rows()
        }
        self._most_turns = {
            benchmark: min(MOST_TURNS, max(2, TURNS_OF_ALL // max(sum(1 for _ in selection.rows()), 1)))
            for benchmark, selection in self._selections.items()
        }
        self._rows: dict[tuple[str, str, str, int], dict[str, Any]] = {}

    def read(self, policy: str, rollouts: pa.Table) -> None:
        """Store the responses that the pages show from a batch of a policy's `EVALUATION_ROLLOUTS`."""
        columns = (rollouts.column(name).to_pylist() for name in ("benchmark", "prompt_id", "sample"))
        wanted = [i for i, about in enumerate(zip(*columns, strict=True)) if (policy, *about) in self._wanted]
        for row in rollouts.take(pa.array(wanted, pa.int64())).to_pylist():
            about = (policy, row["benchmark"], row["prompt_id"], row["sample"])
            episode = ShownEpisode.of_row(row, self._most_turns[row["benchmark"]])
            response = Excerpt("") if episode else Excerpt.of(row["response"])
            self._rows[about] = row | {"response": response, "episode": episode, "turns": None, "outcome": None}

    def write(self, folder: Path) -> Path:
        """Write a page for each benchmark, `NAME.html`, after all responses have been read. Return the folder."""
        folder.mkdir(parents=True)
        for benchmark, selection in self._selections.items():
            (folder / f"{benchmark}.html").write_text(self._render(benchmark, selection))
        return folder

    def _render(self, benchmark: str, selection: Selection) -> str:
        pairs = {pair: f"c{number}" for number, pair in enumerate(selection.changes)}
        questions = [self._question(benchmark, shown, pairs) for shown in selection.shown]
        limit = limit_of(_sizes(questions), PAGE_BYTES - _markup(questions))
        return _template().render(
            title=benchmark,
            questions=questions,
            limit=limit,
            selection=selection,
            filters=[
                {
                    "policy": policy,
                    "baseline": baseline,
                    "name": pairs[policy, baseline],
                    "all": counts,
                    "shown": {
                        change: sum(shown.changes[policy, baseline] == change for shown in selection.shown)
                        for change in ("better", "worse")
                    },
                }
                for (policy, baseline), counts in selection.changes.items()
            ],
        )

    def _question(self, benchmark: str, shown: Shown, pairs: Mapping[Pair, str]) -> dict[str, Any]:
        """Return the template variables of a question."""
        prompt = shown.question.prompt
        turns = prompt["messages"]
        text = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
        return {
            "number": shown.number,
            "about": {name: prompt[name] for name in ("prompt_id", "row", "domain", "source", "verifier")},
            "classes": [f"{pairs[pair]}-{change}" for pair, change in shown.changes.items()],
            "changes": [
                {"policy": pair[0], "baseline": pair[1], "change": change}
                for pair, change in shown.changes.items()
                if change in ("better", "worse")
            ],
            "prompt": Excerpt.of(turns[0]["content"] if len(turns) == 1 else text),
            "truth": Excerpt.of(prompt["ground_truth"]),
            "sides": [self._side(benchmark, shown, policy) for policy in self._policies],
        }

    def _side(self, benchmark: str, shown: Shown, policy: str) -> dict[str, Any]:
        """Return the template variables of a policy's responses to a question."""
        answered = shown.question.responses.get(policy, ())
        passed = [row["passed"] for row in answered if row["passed"] is not None]
        prompt = shown.question.prompt["prompt_id"]
        rows = [self._rows[policy, benchmark, prompt, row["sample"]] for row in shown.responses[policy]]
        return {
            "policy": policy,
            "samples": len(answered),
            "judged": len(passed),
            "passes": sum(passed),
            "responses": [
                {
                    "verdict": verdict_of(row),
                    "sample": row["sample"],
                    "score": row["score"],
                    "tokens": row["num_tokens"],
                    "is_cut": row["finish_reason"] == "length",
                    "answer": None if row["answer"] is None else Excerpt.of(row["answer"]).within(ANSWER_BYTES),
                    "reason": Excerpt.of(row["error"] or row["detail"] or "").within(REASON_BYTES),
                    "rewards": ", ".join(_reward(part) for part in row["rewards"] or ()),
                    "text": row["response"],
                    "episode": row["episode"],
                }
                for row in rows
            ],
        }


def _of_benchmark(answered: Mapping[str, pa.Table], benchmark: str) -> pa.Table:
    """Return the columns `CHOSEN_BY` of all policies on a benchmark, with the policies' names."""
    parts = []
    for policy, table in answered.items():
        part = table.select(CHOSEN_BY).filter(pc.equal(table.column("benchmark"), benchmark))
        parts.append(part.append_column("policy", pa.array([policy] * part.num_rows, pa.string())))
    return pa.concat_tables(parts)


def _reward(part: Mapping[str, Any]) -> str:
    return f"{part['name']} {'does not apply' if part['value'] is None else format(part['value'], 'g')}"


def _sizes(questions: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the size in bytes of every text that may be shortened."""
    return [
        excerpt.size
        for question in questions
        for excerpt in (
            question["prompt"],
            question["truth"],
            *(text for side in question["sides"] for response in side["responses"] for text in _texts(response)),
        )
    ]


def _texts(response: Mapping[str, Any]) -> list[Excerpt]:
    episode: ShownEpisode | None = response["episode"]
    return [turn.text for turn in episode.turns] if episode else [response["text"]]


def _markup(questions: Sequence[Mapping[str, Any]]) -> int:
    """Return the approximate size in bytes of everything else."""
    total = HEAD_BYTES + QUESTION_BYTES * len(questions)
    for question in questions:
        total += sum(size(str(value)) for value in question["about"].values())
        for response in (response for side in question["sides"] for response in side["responses"]):
            answer = response["answer"] or _NOTHING
            total += RESPONSE_BYTES + answer.size + response["reason"].size + size(response["rewards"])
            if episode := response["episode"]:
                total += TURN_BYTES * (len(episode.turns) + 2) + episode.end.size
    return total


@cache
def _template() -> Any:
    jinja = Environment(
        loader=FileSystemLoader([Path(__file__).parent, episodes.FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters["count"] = "{:,}".format
    return jinja.get_template("page.html.j2")
