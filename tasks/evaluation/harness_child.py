"""Runs lm-evaluation-harness on one policy. The package imports a lot and keeps the GPU, so this is its own process.

python -m tasks.evaluation.harness_child REQUEST RESULT

REQUEST is a JSON file, as `tasks.evaluation.harness` writes it. RESULT is a JSON file: an object with `documents` and
the package's `warnings`, or with `mistake`, an error message for the user.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module  # not pinned in the images: its version is part of the cache keys
from numbers import Real
from pathlib import Path
from typing import Any

from tasks.config.loading import close_match
from tasks.failures import MistakeError, one_line

THINKING = "<think>"
"""Beginning of a response whose thinking is not closed: the package cuts off closed thinking."""


@contextmanager
def record_warnings() -> Iterator[list[str]]:
    """Yield a list that collects the package's warnings while the block runs, each once and in one line."""
    warnings: list[str] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = one_line(record.getMessage())
            if line not in warnings:
                warnings.append(line)

    recorder = Recorder(logging.WARNING)
    package = logging.getLogger("lm_eval")
    package.addHandler(recorder)
    try:
        yield warnings
    finally:
        package.removeHandler(recorder)


def ask(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run the package on a policy, and return its documents, each with the response and the metric's value.

    Args:
        request: `name` of the benchmark; `tasks`, `include_path`, `metric`, `filter`, `num_fewshot`, `limit`,
            `gen_kwargs` and `chat_template` of its options; `backend`, `arguments` of the model, `batch_size` and
            `device`.

    Raises:
        MistakeError: a task, metric or filter that the package does not have, or an option that its tasks ignore.
    """
    manager = import_module("lm_eval.tasks").TaskManager(
        include_path=request["include_path"], metadata=request["arguments"]
    )
    where = f"harness benchmark {request['name']!r}"
    for name in request["tasks"]:
        if name not in manager.all_tasks:
            raise MistakeError(f"{where}: lm-eval has no task {name!r}{close_match(name, manager.all_tasks)}")
    tasks = manager.load(list(request["tasks"]))["tasks"]
    for name, task in tasks.items():
        if request["metric"] not in task.aggregation():
            known = ", ".join(task.aggregation())
            raise MistakeError(f"{where}: task {name!r} has no metric {request['metric']!r}; it has: {known}")
    _check_options(where, tasks, request)
    filters = {name: _filter(where, name, task, request["filter"]) for name, task in tasks.items()}
    results = import_module("lm_eval.evaluator").simple_evaluate(
        model=request["backend"],
        model_args=request["arguments"],
        tasks=list(tasks.values()),
        num_fewshot=request["num_fewshot"],
        batch_size=request["batch_size"],
        device=request["device"],
        limit=request["limit"],
        gen_kwargs=request["gen_kwargs"] or None,
        bootstrap_iters=0,
        apply_chat_template=request["chat_template"],
        task_manager=manager,
    )
    return [
        _make_document(where, name, sample, request["metric"], thinks=request["chat_template"])
        for name, samples in results["samples"].items()
        for sample in samples
        if sample["filter"] == filters[name]
    ]


def _check_options(where: str, tasks: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    """Raise `MistakeError` for an option that the package would ignore."""
    shots = request["num_fewshot"]
    fixed = [name for name, task in tasks.items() if task.get_config("num_fewshot") == 0]
    if shots and fixed:
        raise MistakeError(f"{where}: num_fewshot = {shots}: task {fixed[0]!r} is fixed at 0 examples; leave it out")
    if request["gen_kwargs"] and not any(task.get_config("output_type") == "generate_until" for task in tasks.values()):
        raise MistakeError(f"{where}: gen_kwargs: its tasks compare given answers and generate none; leave it out")


def _filter(where: str, name: str, task: Any, wanted: str | None) -> str:
    """Return the name of the filter of a task's metric."""
    known = [listed["name"] for listed in task.config.filter_list or ()] or ["none"]
    if wanted is None and len(known) == 1:
        return str(known[0])
    if wanted in known:
        return str(wanted)
    given = "several filters" if wanted is None else f"no filter {wanted!r}"
    raise MistakeError(f"{where}: task {name!r} has {given}; give filter, one of: {', '.join(known)}")


def _make_document(where: str, task: str, sample: Mapping[str, Any], metric: str, *, thinks: bool) -> dict[str, Any]:
    """Return a document of the result. If the policy `thinks`, unclosed thinking scores 0, as in other benchmarks."""
    value = sample[metric]
    if not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise MistakeError(f"{where}: task {task!r}: the metric {metric!r} is not a share of a document: {value!r:.80}")
    response = _get_response(sample)
    return {
        "task": task,
        "number": sample["doc_id"],
        "digest": sample["doc_hash"],
        "question": str(sample["arguments"][0][0]),
        "target": str(sample["target"]),
        "response": response,
        "value": 0.0 if thinks and response.lstrip().startswith(THINKING) else float(value),
    }


def _get_response(sample: Mapping[str, Any]) -> str:
    """Return the generated text, or the most likely choice."""
    first = sample["resps"][0][0]
    if isinstance(first, str):
        return first
    likelihoods = [float(given[0]) for given in sample["filtered_resps"]]
    best = likelihoods.index(max(likelihoods))
    return str(sample["arguments"][best][1])


def _count_tokens(documents: Sequence[dict[str, Any]], folder: str) -> Iterator[dict[str, Any]]:
    """Yield the documents with the length of their responses in tokens of the policy."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for document in documents:
        yield document | {"tokens": len(tokenizer.encode(document["response"], add_special_tokens=False))}


def main() -> None:
    """Process the request given on the command line."""
    request = json.loads(Path(sys.argv[1]).read_text())
    try:
        with record_warnings() as warnings:
            documents = list(_count_tokens(ask(request), request["arguments"]["pretrained"]))
        result: Any = {"documents": documents, "warnings": warnings}
    except MistakeError as mistake:
        result = {"mistake": str(mistake)}
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
