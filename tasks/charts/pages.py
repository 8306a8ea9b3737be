"""Renders the parts of a stage's deck other than charts: headline metrics, tables and samples of every source.

Prompts and responses are untrusted text: the templates escape them and keep their line breaks.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup

from tasks.excerpts import episodes
from tasks.excerpts.episodes import ShownEpisode
from tasks.excerpts.texts import shorten

TEXT_CHARS = 1_200
"""Maximum number of characters of a prompt, response or table cell on a deck. Longer ones are cut."""

_SAMPLE_COLUMNS = ("prompt_id", "source", "domain", "messages", "ground_truth")

Sample = tuple[str, list[tuple[str, str | ShownEpisode]]]
"""A box on a deck: its verdict, which determines its colour, and texts or episodes with their names."""


def page(figures: Mapping[str, str], *fragments: str) -> str:
    """Return the HTML of a deck: headline metrics, from names to texts, and then the HTML `fragments` (charts,
    tables, samples) in the given order.
    """
    return _render("page.html.j2", figures=figures, body=Markup("".join(fragments)))  # noqa: S704 - rendered before


def document(title: str, body: str) -> str:
    """Return a whole HTML document with a heading and a deck, for a page that is not shown inside another."""
    return _render("document.html.j2", title=title, body=Markup(body))  # noqa: S704 - rendered before


def render_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> str:
    """Return an HTML table with the columns of the first row and right-aligned numbers. Empty without rows."""
    return _render_table(rows, title) if rows else ""


def render_prompt_samples(prompts: pa.Table, per_source: int = 3) -> str:
    """Return the first prompts of every source with their ground truth, as HTML."""
    sources = {
        source: [_make_prompt_sample(row) for row in rows]
        for source, rows in _take_first_rows(prompts, per_source).items()
    }
    return _render("samples.html.j2", sources=sources)


def render_rollout_samples(prompts: pa.Table, rollouts: pa.Table, per_source: int = 2) -> str:
    """Return the first answered prompts of every source as HTML, each with one response for every verdict it has."""
    answered = prompts.filter(pc.is_in(prompts.column("prompt_id"), rollouts.column("prompt_id").unique()))
    by_source = _take_first_rows(answered, per_source)
    chosen = pa.array([row["prompt_id"] for rows in by_source.values() for row in rows], pa.string())
    responses: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rollouts.filter(pc.is_in(rollouts.column("prompt_id"), chosen)).to_pylist():
        responses[row["prompt_id"]].setdefault(_describe_verdict(row), row)
    sources: dict[str, list[Sample]] = {}
    for source, rows in by_source.items():
        sources[source] = []
        for row in rows:
            by_verdict = sorted(responses[row["prompt_id"]].items())
            answers = [
                (verdict, [(_describe_outcome(answer), ShownEpisode.from_row(answer) or answer["response"])])
                for verdict, answer in by_verdict
            ]
            sources[source] += [_make_prompt_sample(row), *answers]
    return _render("samples.html.j2", sources=sources)


def render_rates(scores: Mapping[str, Sequence[float]], unjudged: int) -> str:
    """Return an HTML table with the mean score, in [0, 1], of each domain's responses so far."""
    rows = [
        {"domain": domain, "responses": len(values), "mean score": sum(values) / max(len(values), 1)}
        for domain, values in sorted(scores.items())
    ]
    return _render_table(rows, note=f"{unjudged:,} could not be scored." if unjudged else "")


@cache
def _load_templates() -> Environment:
    loader = FileSystemLoader([Path(__file__).parent / "templates", episodes.FOLDER])
    # A row may lack a column of the first row. Its cell is then empty.
    environment = Environment(loader=loader, autoescape=True, undefined=ChainableUndefined, trim_blocks=True)
    environment.filters |= {"cell": _format_cell, "shorten": _shorten}
    return environment


def _render(template: str, **values: Any) -> str:
    return _load_templates().get_template(template).render(values)


def _render_table(rows: Sequence[Mapping[str, Any]], title: str = "", note: str = "") -> str:
    numeric = {name for name, value in (rows[0] if rows else {}).items() if _is_number(value)}
    return _render("table.html.j2", rows=rows, title=title, note=note, numeric=numeric)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and value.endswith("%"))


def _take_first_rows(prompts: pa.Table, count: int) -> dict[str, list[dict[str, Any]]]:
    """Return the first `count` prompts of every source, by source."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for batch in prompts.select(_SAMPLE_COLUMNS).to_batches():  # the whole table may not fit into memory
        for source in batch.column("source").unique().to_pylist():
            missing = count - len(rows[source])
            own = pc.indices_nonzero(pc.equal(batch.column("source"), source)).slice(0, missing)
            rows[source] += batch.take(own).to_pylist()
    return dict(sorted(rows.items()))


def _make_prompt_sample(row: Mapping[str, Any]) -> Sample:
    turns = row["messages"]
    text = turns[0]["content"] if len(turns) == 1 else "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
    return "", [("prompt", text), ("ground truth", row["ground_truth"])]


def _describe_verdict(row: Mapping[str, Any]) -> str:
    if row["score"] is None:
        return "unjudged"
    return "passed" if row["passed"] else "failed"


def _describe_outcome(row: Mapping[str, Any]) -> str:
    """Return a response's score, length and end as text."""
    score = f"could not be scored: {row['error']}" if row["score"] is None else f"score {row['score']:g}"
    ends = {"stop": "stopped by itself", "length": "cut at the limit"}
    ended = ends.get(row["finish_reason"], "it is not known how it ended")
    return f"{score}, {row['num_tokens']} tokens, {ended}"


def _shorten(text: str) -> str:
    return shorten(text, TEXT_CHARS)


def _format_cell(value: Any) -> str:
    """Return the text of a table cell: fractions with three digits, thousands separators, and "" for None."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3g}"
        case dict() | list():
            return json.dumps(value, ensure_ascii=False)
    return _shorten(str(value))
