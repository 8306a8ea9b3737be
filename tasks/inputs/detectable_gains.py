"""Formats the smallest gains that the evaluation of a run would detect, before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.files import DataFile, EvaluationFile
from tasks.inputs.text_table import table_lines
from tasks.statistics.assumptions import CORRELATION, RATE, SHARED, estimate_detectable_gain

HEAD = ("smallest gain that is detected", "questions", "samples", "points")


def format_detectable_gains(data: DataFile, evaluation: EvaluationFile) -> str:
    """Return a table with a line for the held-out prompts and for each benchmark, and the assumptions above it.

    `-` is a number of questions that is only known when they are read.
    """
    rows = [HEAD, *(_make_row(*asked) for asked in _list_asked(data, evaluation))]
    assumptions = (
        f"gains at a chance of 80% and p < 0.05, if the pass rate is {RATE:.0%}, samples of a question correlate by "
        f"{CORRELATION:g}, and the questions' pass rates by {SHARED:g} between the policies:"
    )
    return "\n".join([assumptions, *table_lines(rows, words=1)])


def _list_asked(data: DataFile, evaluation: EvaluationFile) -> Iterator[tuple[str, int | None, int]]:
    """Yield the name, the number of questions and the samples of each, of everything that is evaluated."""
    yield "held-out prompts", _count_heldout(data), evaluation.sampling.samples
    for benchmark in evaluation.benchmarks:
        yield benchmark.name, _count_questions(benchmark), benchmark.sampling.samples
    for one in evaluation.harness:
        yield one.name, None, 1


def _count_heldout(data: DataFile) -> int | None:
    """Return the number of held-out prompts, or None if a share of the prompts is held out or domains are unknown."""
    domains = {source.domain for source in data.sources}
    mixture, numbers = data.mixture, []
    for domain in domains:
        if domain is None:
            return None
        share = mixture.domains.get(domain)
        number = mixture.heldout if share is None or share.heldout is None else share.heldout
        if not isinstance(number, int):
            return None
        numbers.append(number)
    return sum(numbers)


def _count_questions(benchmark: BenchmarkFile) -> int | None:
    """Return the number of questions that the card and the limit imply, or None if a filter chooses some of them."""
    source = benchmark.source
    if source.where:
        return None
    known = [number for number in (source.limit, benchmark.rows) if number is not None]
    return min(known) if known else None


def _make_row(name: str, questions: int | None, samples: int) -> tuple[str, str, str, str]:
    if questions is None or questions < 2:
        return name, "-" if questions is None else f"{questions}", f"{samples}", "-"
    return name, f"{questions:,}", f"{samples}", f"{100 * estimate_detectable_gain(questions, samples):.1f}"
