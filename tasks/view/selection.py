"""Decides which logs a view has and which responses are in each, within bounds.

    training      a log per step and outcome        training/step-00041-trained.eval
    evaluation    a log per policy and benchmark    evaluation/heldout-after.eval
    flipped       a log per benchmark, two policies and direction    flipped/heldout-worse-after-vs-before.eval
    difficulty    a log per policy                  difficulty/initial.eval

A group is never divided. A log with more than `PART_RESPONSES` responses or `PART_TOKENS` tokens becomes several, so
that memory is bounded and the browser can list it. Without a selection, each kind has at most `UNASKED` responses, and
a message says what is left out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from tasks.config.loading import close_match
from tasks.view.responses import ResponseTables, Rows, ViewError, read_columns

PART_RESPONSES, PART_TOKENS = 5_000, 8_000_000
"""Maximum number of responses, and of their tokens, in a log."""
UNASKED = 5_000
"""Maximum number of responses of training, of an evaluation and of difficulty in a view without a selection."""
MOST_FLIPPED = 1_000
"""Maximum number of questions in a log of flipped questions."""
STEPS_NAMED = 6
"""Maximum number of steps that a message names."""


Asked = tuple[str, str]
"""A benchmark and a policy."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response: its table, its row there, its group, and its number of tokens."""

    file: str
    row_group: int
    row: int
    prompt_id: str
    group: int | str
    tokens: int


@dataclass
class Log:
    """A log to write.

    Attributes:
        path: its path in the folder of logs, which begins with its kind.
        task: the name that the viewer shows.
        model: the policy.
        rows: the responses.
        metadata: further values of the whole log.
        sides: names of the two policies of a log of flipped questions.
    """

    path: str
    task: str
    model: str
    rows: list[Rows]
    metadata: dict[str, Any] = field(default_factory=dict)
    sides: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of its samples: `training`, `evaluation`, `difficulty` or `flipped`."""
        return self.path.partition("/")[0]

    @property
    def count(self) -> int:
        """The number of responses."""
        return sum(len(part.rows) for part in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the log as JSON values for `tasks.view.child`."""
        return {**asdict(self), "kind": self.kind}


@dataclass
class Selection:
    """The logs of a view in the order of the viewer, and messages on what is left out."""

    logs: list[Log] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def counts(self) -> str:
        """The numbers of responses and logs. Responses to flipped questions are in two logs, and counted once."""
        logs = [log for log in self.logs if log.kind != "flipped"]
        further = len(self.logs) - len(logs)
        return f"{sum(log.count for log in logs):,} responses in {len(logs):,} logs" + (
            f"; questions whose verdict changed are in {further:,} further logs" if further else ""
        )


def select(
    tables: ResponseTables,
    steps: tuple[int, int] | None = None,
    outcome: str | None = None,
    benchmark: str | None = None,
    most: int = UNASKED,
) -> Selection:
    """Return the logs of a view. With `steps` or `outcome` it has only training, with `benchmark` only evaluation.

    Args:
        tables: the tables of the run.
        steps: the first and the last step of training to show, all of whose responses are shown.
        outcome: the outcome of groups of training to show.
        benchmark: the benchmark to show, all of whose responses are shown.
        most: maximum number of responses of each kind in a view without a selection.

    Raises:
        ViewError: the run has no such step, outcome or benchmark. The message names the nearest.
    """
    chosen = Selection()
    everything = steps is None and outcome is None and benchmark is None
    if everything or benchmark is not None:
        _add_evaluation(chosen, tables, benchmark, most)
    if benchmark is None:
        _add_training(chosen, tables, steps, outcome, most)
    if everything:
        _add_difficulty(chosen, tables, most)
    _name_apart(chosen.logs)
    return chosen


def _add_training(
    chosen: Selection, tables: ResponseTables, steps: tuple[int, int] | None, outcome: str | None, most: int
) -> None:
    if not tables.training:
        if steps is not None or outcome is not None:
            where = f": they are in {tables.elsewhere}" if tables.elsewhere else ""
            raise ViewError(f"{tables.run} has no responses of training on this machine{where}")
        if tables.elsewhere:
            chosen.left_out.append(f"the responses of training are in {tables.elsewhere}, not on this machine")
        return
    logs = _read_training_responses(tables.training)
    outcomes = {fate for _, fate in logs}
    if outcome is not None and outcome not in outcomes:
        raise ViewError(f"--outcome {outcome}: no group of this run has it{_describe_near(outcome, outcomes)}")
    taken = {step for step, fate in logs if fate == "trained"}
    sizes: defaultdict[int, int] = defaultdict(int)
    for (step, fate), responses in sorted(logs.items()):
        sizes[step] += len(responses) if outcome in (None, fate) else 0
    wanted = _choose_steps(chosen, sizes, most) if steps is None else _select_range(steps, list(sizes), taken)
    for step in reversed(wanted):
        for fate in sorted(outcomes if outcome is None else {outcome}):
            if of_log := logs.get((step, fate)):
                chosen.logs += _split_log(
                    f"training/step-{step:05d}-{_make_safe(fate)}",
                    task=f"step {step:05d} {fate}",
                    model="training",
                    responses=of_log,
                    metadata={"step": step, "outcome": fate},
                )


def _choose_steps(chosen: Selection, sizes: Mapping[int, int], most: int) -> list[int]:
    """Return some of the steps, and add to `chosen` how many are left out. `sizes` has their responses."""
    known = [step for step, size in sizes.items() if size]
    wanted = _pick_evenly(known, sum(sizes.values()), most)
    if left := len(known) - len(wanted):
        some = ", ".join(map(str, wanted[:STEPS_NAMED])) + (", ..." if len(wanted) > STEPS_NAMED else "")
        chosen.left_out.append(f"{left:,} of {len(known):,} steps ({some} are shown; --step A:B shows others)")
    return wanted


def _select_range(steps: tuple[int, int], known: Sequence[int], taken: Set[int]) -> list[int]:
    """Return the known steps of a range.

    If there are none, the error names the nearest known step that the training took.

    Groups that no step took have the number after it if the weights of the last step sampled them.
    """
    wanted = [step for step in known if steps[0] <= step <= steps[1]]
    if not wanted:
        last = max(taken or known)
        after = f"; --step {known[-1]} shows groups that were sampled after step {last}" if known[-1] > last else ""
        known = [step for step in known if step <= last]
        nearest = min(known, key=lambda step: min(abs(step - steps[0]), abs(step - steps[1])))
        named = str(steps[0]) if steps[0] == steps[1] else f"{steps[0]}:{steps[1]}"
        raise ViewError(
            f"--step {named}: this run has no responses of it, but of the steps {known[0]} to {known[-1]}; the nearest "
            f"is {nearest}{after}"
        )
    return wanted


def _read_training_responses(files: Iterable[Path]) -> dict[tuple[int, str], list[Response]]:
    """Return the responses by step and outcome. A group that no step took has the step of its newest weights."""
    logs: defaultdict[tuple[int, str], list[Response]] = defaultdict(list)
    names = ["group", "prompt_id", "step", "fate", "last_version", "num_tokens"]
    for path in files:
        for number, table in read_columns(path, names):
            rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
            for (group, fate), of_group in groupby(
                enumerate(rows), key=lambda numbered: (numbered[1][0], numbered[1][3])
            ):
                members = list(of_group)
                step = members[0][1][2]
                if step is None:
                    step = max(row[4] for _, row in members)
                logs[step, fate] += [Response(str(path), number, at, row[1], group, row[5]) for at, row in members]
    return dict(logs)


def _pick_evenly(steps: Sequence[int], responses: int, most: int) -> list[int]:
    """Return steps at equal distances, the first and the last among them, so that about `most` responses are shown."""
    count = max(2, len(steps) * most // max(responses, 1))
    if count >= len(steps):
        return list(steps)
    return sorted({steps[round(number * (len(steps) - 1) / (count - 1))] for number in range(count)})


def _add_evaluation(chosen: Selection, tables: ResponseTables, benchmark: str | None, most: int) -> None:
    if tables.evaluation is None:
        if benchmark is not None:
            raise ViewError(f"{tables.run} has no evaluation, so that --benchmark {benchmark} shows nothing")
        return
    answered, verdicts = _read_evaluation_responses(tables.evaluation)
    benchmarks = list(dict.fromkeys(of for of, _ in answered))
    if benchmark is not None and benchmark not in benchmarks:
        raise ViewError(
            f"--benchmark {benchmark}: this run has none of this name{_describe_near(benchmark, benchmarks)}"
        )
    shown = benchmarks if benchmark is None else [benchmark]
    logs = {key: responses for key, responses in answered.items() if key[0] in shown}
    intervals = _read_intervals(tables)
    share = _compute_share(logs.values(), most if benchmark is None else None)
    for (of, policy), responses in logs.items():
        some = _take_first_groups(responses, share)
        chosen.logs += _split_log(
            f"evaluation/{_make_safe(of)}-{_make_safe(policy)}",
            task=of,
            model=policy,
            responses=some,
            metadata={"benchmark": of, "policy": policy, "results": intervals.get((of, policy), [])},
        )
        if left := len(responses) - len(some):
            chosen.left_out.append(
                f"{left:,} of {len(responses):,} responses of {policy} to {of} (--benchmark {of} shows all)"
            )
    for of in shown:
        for baseline, policy in _list_pairs(tables, [policy for known, policy in answered if known == of]):
            _add_flipped(chosen, of, (baseline, policy), answered, verdicts)


def _read_evaluation_responses(path: Path) -> tuple[dict[Asked, list[Response]], dict[Asked, dict[str, list[bool]]]]:
    """Return the responses, and the verdicts by prompt, by benchmark and policy."""
    answered: defaultdict[Asked, list[Response]] = defaultdict(list)
    verdicts: defaultdict[Asked, dict[str, list[bool]]] = defaultdict(dict)
    names = ["benchmark", "policy", "prompt_id", "sample", "num_tokens", "passed"]
    for number, table in read_columns(path, names):
        columns = (table.column(name).to_pylist() for name in names)
        for at, (of, policy, prompt_id, _, tokens, passed) in enumerate(zip(*columns, strict=True)):
            answered[of, policy].append(Response(str(path), number, at, prompt_id, prompt_id, tokens))
            if passed is not None:
                verdicts[of, policy].setdefault(prompt_id, []).append(passed)
    return answered, verdicts


def _add_flipped(
    chosen: Selection,
    of: str,
    pair: tuple[str, str],
    answered: Mapping[Asked, list[Response]],
    verdicts: Mapping[Asked, Mapping[str, list[bool]]],
) -> None:
    """Add the logs of questions whose pass rate rose or fell from the first policy of `pair` to the second."""
    before, after = (
        {prompt: sum(passed) / len(passed) for prompt, passed in verdicts.get((of, policy), {}).items()}
        for policy in pair
    )
    for name, sign in (("better", 1), ("worse", -1)):
        changed = [prompt for prompt in before if prompt in after and sign * (after[prompt] - before[prompt]) > 0]
        questions = set(changed[:MOST_FLIPPED])
        responses = [
            response for policy in pair for response in answered[of, policy] if response.prompt_id in questions
        ]
        if len(changed) > MOST_FLIPPED:
            chosen.left_out.append(f"{len(changed) - MOST_FLIPPED:,} questions of {of} that became {name}")
        if responses:
            # Rows of both policies to a question have to be in one part: they are divided by question.
            chosen.logs += _split_log(
                f"flipped/{_make_safe(of)}-{name}-{_make_safe(pair[1])}-vs-{_make_safe(pair[0])}",
                task=f"flipped {of}: {name}",
                model=f"{pair[1]} vs {pair[0]}",
                responses=sorted(responses, key=lambda response: response.prompt_id),
                metadata={"benchmark": of, "flipped": name, "questions": len(questions)},
                sides=pair,
            )


def _list_pairs(tables: ResponseTables, policies: Sequence[str]) -> list[tuple[str, str]]:
    """Return the policies that the evaluation compares, each after its baseline."""
    path = tables.run / "evaluation.parquet"
    if not path.is_file():
        return []
    pairs: dict[tuple[str, str], None] = {}
    for _, table in read_columns(path, ["baseline", "policy"]):
        compared = table.filter(pc.is_valid(table["baseline"]))
        for row in compared.to_pylist():
            if row["baseline"] in policies and row["policy"] in policies:
                pairs[row["baseline"], row["policy"]] = None
    return list(pairs)


def _read_intervals(tables: ResponseTables) -> dict[Asked, list[dict[str, Any]]]:
    """Return the rows of `EVALUATION` on a benchmark's policy: metrics with the bounds of their intervals."""
    path = tables.run / "evaluation.parquet"
    intervals: defaultdict[Asked, list[dict[str, Any]]] = defaultdict(list)
    if path.is_file():
        names = ["benchmark", "metric", "policy", "baseline", "value", "low", "high", "n"]
        for _, table in read_columns(path, names):
            for row in table.to_pylist():
                of = "heldout" if row["benchmark"] == "all" else row["benchmark"]
                intervals[of, row["policy"]].append({key: row[key] for key in names[1:] if key != "policy"})
    return intervals


def _add_difficulty(chosen: Selection, tables: ResponseTables, most: int) -> None:
    if tables.difficulty is None:
        return
    answered: defaultdict[str, list[Response]] = defaultdict(list)
    names = ["policy", "prompt_id", "num_tokens"]
    for number, table in read_columns(tables.difficulty, names):
        columns = (table.column(name).to_pylist() for name in names)
        for at, (policy, prompt_id, tokens) in enumerate(zip(*columns, strict=True)):
            answered[policy].append(Response(str(tables.difficulty), number, at, prompt_id, prompt_id, tokens))
    share = _compute_share(answered.values(), most)
    for policy, responses in answered.items():
        some = _take_first_groups(responses, share)
        chosen.logs += _split_log(
            f"difficulty/{_make_safe(policy)}",
            task="difficulty",
            model=policy,
            responses=some,
            metadata={"policy": policy},
        )
        if left := len(responses) - len(some):
            chosen.left_out.append(f"{left:,} of {len(responses):,} responses of difficulty")


def _compute_share(logs: Iterable[Sequence[Response]], most: int | None) -> int | None:
    """Return the maximum number of responses of each log, so that all have about `most`."""
    sizes = [len(responses) for responses in logs]
    return None if most is None or sum(sizes) <= most else max(1, most // len(sizes))


def _take_first_groups(responses: Sequence[Response], most: int | None) -> Sequence[Response]:
    """Return the responses to the first prompts, as many as have at most about `most` responses together."""
    if most is None or len(responses) <= most:
        return responses
    prompts: set[int | str] = set()
    total = 0
    for group, size in Counter(response.group for response in responses).items():
        if total and total + size > most:
            break
        total += size
        prompts.add(group)
    return [response for response in responses if response.group in prompts]


def _split_log(path: str, responses: Sequence[Response], task: str, **about: Any) -> Iterator[Log]:
    """Yield the log, or several logs of parts of its responses. ResponseTables of a group stay together."""
    by_group: defaultdict[int | str, list[Response]] = defaultdict(list)
    for response in responses:
        by_group[response.group].append(response)
    parts: list[list[Response]] = [[]]
    tokens = 0
    for members in by_group.values():
        size = sum(response.tokens for response in members)
        full = len(parts[-1]) + len(members) > PART_RESPONSES or tokens + size > PART_TOKENS
        if full and parts[-1]:
            parts.append([])
            tokens = 0
        parts[-1] += members
        tokens += size
    for number, part in enumerate(parts, 1):
        ending = f"-{number:03d}" if len(parts) > 1 else ""
        of = f" ({number} of {len(parts)})" if len(parts) > 1 else ""
        yield Log(f"{path}{ending}.eval", task=f"{task}{of}", rows=list(_make_rows(part)), **about)


def _make_rows(responses: Iterable[Response]) -> Iterator[Rows]:
    ordered = sorted(responses, key=lambda response: (response.file, response.row_group, response.row))
    for (file, row_group), members in groupby(ordered, key=lambda response: (response.file, response.row_group)):
        yield Rows(file, row_group, [response.row for response in members])


def _name_apart(logs: Iterable[Log]) -> None:
    """Add a number to the paths of logs that have the path of an earlier one: `_make_safe` makes some names equal."""
    taken: set[str] = set()
    for log in logs:
        stem, number = log.path.removesuffix(".eval"), 2
        while log.path.lower() in taken:
            log.path = f"{stem}~{number}.eval"
            number += 1
        taken.add(log.path.lower())


def _make_safe(name: str) -> str:
    """Return a name as a part of a file's name."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip(".") or "_"


def _describe_near(name: str, known: Iterable[str]) -> str:
    """Return the known name that is meant, or some of the known names."""
    names = sorted(known)
    return close_match(name, names) or f"; there are: {', '.join(islice(names, 20)) or 'none'}"
