"""What stands beside the charts on a stage's deck: headline figures, tables, and samples of every source.

Prompts and responses are hostile text: all of it is escaped, and its line breaks are kept.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_LIMIT = 1_200  # characters of a text that a deck shows
_COLUMNS = ("prompt_id", "source", "domain", "messages", "ground_truth")

STYLE = """<style>
.page{font-family:system-ui,sans-serif;max-width:60rem;line-height:1.45}
.page h3{margin:1.6rem 0 .4rem}
.page-figures{display:flex;flex-wrap:wrap;gap:.4rem 2rem;margin:0 0 1.2rem}
.page-figures dt{font-size:.8rem;opacity:.75}
.page-figures dd{margin:0;font-size:1.25rem;font-weight:600}
.page table{border-collapse:collapse;font-size:.9rem}
.page th,.page td{text-align:left;padding:.25rem .9rem .25rem 0;border-bottom:1px solid #9da3b055;vertical-align:top}
.page td.n,.page th.n{text-align:right;font-variant-numeric:tabular-nums}
.page-sample{border-left:3px solid #9da3b0;margin:.7rem 0 1.1rem;padding:.1rem 0 .1rem .8rem}
.page-sample.passed{border-color:#179b8b}
.page-sample.failed{border-color:#d05656}
.page-sample.unjudged{border-color:#d97d2e}
.page-sample b{font-size:.8rem}
.page-sample pre{white-space:pre-wrap;overflow-wrap:anywhere;font:.82rem ui-monospace,monospace;margin:.2rem 0 .6rem}
</style>"""


def page(figures: Mapping[str, str], *fragments: str) -> str:
    """A deck: headline figures by what they are, then fragments (charts, tables, samples)."""
    tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures.items())
    return f'{STYLE}<div class="page"><dl class="page-figures">{tiles}</dl>{"".join(fragments)}</div>'


def table(rows: Sequence[Mapping[str, Any]], title: str = "") -> str:
    """Rows with the columns of the first; numbers to the right, fractions as they are read."""
    if not rows:
        return ""
    number = {name: isinstance(value, int | float) for name, value in rows[0].items()}
    head = "".join(f"<th{_right(number[name])}>{escape(_words(name))}</th>" for name in number)
    body = "".join(
        "<tr>" + "".join(f"<td{_right(number[name])}>{_cell(row.get(name))}</td>" for name in number) + "</tr>"
        for row in rows
    )
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f"{heading}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def prompt_samples(prompts: pa.Table, per_source: int = 3) -> str:
    """The first prompts of every source, with their ground truth."""
    parts = []
    for source, rows in _by_source(prompts, per_source).items():
        parts.append(f"<h3>{escape(source)}</h3>")
        for row in rows:
            parts.append(_sample("", [("prompt", _prompt(row)), ("ground truth", row["ground_truth"])]))
    return "".join(parts)


def rollout_samples(prompts: pa.Table, rollouts: pa.Table, per_source: int = 2) -> str:
    """For the first prompts of every source a response that passed and one that did not, where there are such."""
    answered = prompts.filter(pc.is_in(prompts.column("prompt_id"), rollouts.column("prompt_id").unique()))
    by_source = _by_source(answered, per_source)
    shown = pa.array([row["prompt_id"] for rows in by_source.values() for row in rows], pa.string())
    responses: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rollouts.filter(pc.is_in(rollouts.column("prompt_id"), shown)).to_pylist():
        responses[row["prompt_id"]].setdefault(_verdict(row), row)
    parts = []
    for source, rows in by_source.items():
        parts.append(f"<h3>{escape(source)}</h3>")
        for row in rows:
            parts.append(_sample("", [("prompt", _prompt(row)), ("ground truth", row["ground_truth"])]))
            for verdict, response in sorted(responses[row["prompt_id"]].items()):
                parts.append(_sample(verdict, [(_why(response), response["response"])]))
    return "".join(parts)


def rates_so_far(scores: Mapping[str, Sequence[float]], unjudged: int) -> str:
    """The mean score of each domain's responses so far, in [0, 1]."""
    rows = [
        {"domain": domain, "responses": len(each), "mean score": sum(each) / max(len(each), 1)}
        for domain, each in sorted(scores.items())
    ]
    note = f"<p>{unjudged:,} could not be judged.</p>" if unjudged else ""
    return table(rows) + note


def _by_source(prompts: pa.Table, count: int) -> dict[str, list[dict[str, Any]]]:
    """The first prompts of every source."""
    table = prompts.select(_COLUMNS)
    return {
        source: table.filter(pc.equal(table.column("source"), source)).slice(0, count).to_pylist()
        for source in sorted(table.column("source").unique().to_pylist())
    }


def _prompt(row: Mapping[str, Any]) -> str:
    turns = row["messages"]
    return turns[0]["content"] if len(turns) == 1 else "\n".join(f"{each['role']}: {each['content']}" for each in turns)


def _verdict(row: Mapping[str, Any]) -> str:
    if row["score"] is None:
        return "unjudged"
    return "passed" if row["score"] >= 1 else "failed"


def _why(row: Mapping[str, Any]) -> str:
    verdict = f"could not be judged: {row['error']}" if row["score"] is None else f"score {row['score']:g}"
    ended = "stopped by itself" if row["finish_reason"] == "stop" else "cut at the limit"
    return f"{verdict}, {row['num_tokens']} tokens, {ended}"


def _sample(kind: str, texts: Iterable[tuple[str, str]]) -> str:
    inner = "".join(f"<b>{escape(name)}</b><pre>{escape(_short(text))}</pre>" for name, text in texts)
    return f'<div class="page-sample {kind}">{inner}</div>'


def _short(text: str) -> str:
    return text if len(text) <= _LIMIT else f"{text[:_LIMIT]} … ({len(text) - _LIMIT:,} more characters)"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _right(number: bool) -> str:
    return ' class="n"' if number else ""


def _cell(value: Any) -> str:
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
            return escape(json.dumps(value, ensure_ascii=False))
    return escape(_short(str(value)))
