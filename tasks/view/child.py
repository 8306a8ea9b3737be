"""Writes logs of Inspect, in a separate environment, because the package needs other versions than this project.

    {"logs": [...], "prompts": [...], "ledger": ..., "folder": ...}  ──► folder/training/step-00041-trained.eval, ...

The request is a JSON file, as `tasks.view.viewer` writes it. Each line of the output is the path of a log that was
written and its number of responses. Only pyarrow, Inspect's public API and modules that need no other package are
imported. One log is in memory at a time.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module  # the package is not in the environment that checks types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.view import mapping
from tasks.view.responses import Rows, read_columns, read_rows

Prompts = dict[str, dict[str, Any]]
PROMPT_COLUMNS = (
    "prompt_id",
    "domain",
    "source",
    "row",
    "messages",
    "verifier",
    "ground_truth",
    "metadata",
    "environment",
)


class PromptTables:
    """The prompts of a run's tables. The prompts of the logs are read once, and stay in memory as Arrow tables."""

    def __init__(self, paths: Sequence[str], wanted: pa.Array) -> None:
        self._tables: list[pa.Table] = []
        self._places: dict[str, tuple[int, int]] = {}
        for path in paths:
            with pq.ParquetFile(path) as file:
                names = [name for name in PROMPT_COLUMNS if name in file.schema_arrow.names]
                for number in range(file.metadata.num_row_groups):
                    ids = file.read_row_group(number, columns=["prompt_id"])["prompt_id"]
                    rows = [
                        row
                        for row, (known, is_wanted) in enumerate(
                            zip(ids.to_pylist(), pc.is_in(ids, value_set=wanted).to_pylist(), strict=True)
                        )
                        if is_wanted and known not in self._places
                    ]
                    if rows:
                        table = file.read_row_group(number, columns=names).take(pa.array(rows, pa.int64()))
                        for row, known in enumerate(table["prompt_id"].to_pylist()):
                            self._places.setdefault(known, (len(self._tables), row))
                        self._tables.append(table)

    def find(self, prompt_id: str) -> dict[str, Any] | None:
        """Return the row of a prompt, or None if no table has it."""
        if prompt_id not in self._places:
            return None
        table, row = self._places[prompt_id]
        return self._tables[table].slice(row, 1).to_pylist()[0]


def make_samples(
    log: Mapping[str, Any], prompts: PromptTables, spreads: Mapping[int, float], cache: dict[tuple[str, int], pa.Table]
) -> Iterator[dict[str, Any]]:
    """Yield the samples of a log, as `tasks.view.mapping` makes them, group by group.

    A second group of responses to the same prompt, as in training, is a separate sample.
    """
    rows = [row for part in log["rows"] for row in read_rows(Rows(**part), cache)]
    by_group: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_group[row["group"] if log["kind"] == "training" else row["prompt_id"]].append(row)
    taken: set[str] = set()
    for group, members in by_group.items():
        prompt_id = members[0]["prompt_id"]
        prompt = prompts.find(prompt_id)
        identity = prompt_id if prompt_id not in taken else f"{prompt_id}-{group}"
        taken.add(identity)
        if log["kind"] == "flipped":
            yield from _make_flipped(log["sides"], members, prompt, identity)
            continue
        for epoch, row in enumerate(sorted(members, key=lambda row: row["sample"]), 1):
            if spreads.get(row.get("group", -1)) is not None:
                row["advantage_spread"] = spreads[row["group"]]
            yield mapping.sample(row, prompt, identity, epoch)


def _make_flipped(
    sides: Sequence[str], members: Sequence[dict[str, Any]], prompt: Mapping[str, Any] | None, identity: str
) -> Iterator[dict[str, Any]]:
    by_policy = {
        policy: sorted((row for row in members if row["policy"] == policy), key=lambda row: row["sample"])
        for policy in sides
    }
    for number in range(max(map(len, by_policy.values()))):
        pair = [(policy, rows[number] if number < len(rows) else None) for policy, rows in by_policy.items()]
        yield mapping.make_flipped_sample(pair, prompt, identity, number + 1)


class LogWriter:
    """Writes logs through Inspect's API."""

    def __init__(self, folder: Path, run: str, count: int) -> None:
        self._folder, self._run = folder, run
        self._log, self._model = import_module("inspect_ai.log"), import_module("inspect_ai.model")
        self._scorer, self._tool = import_module("inspect_ai.scorer"), import_module("inspect_ai.tool")
        self._viewer = import_module("inspect_ai.viewer")
        self._began = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=count)

    def write(self, about: Mapping[str, Any], samples: list[dict[str, Any]], number: int) -> None:
        """Write a log with these samples.

        Args:
            about: its path, task, model and metadata (`tasks.view.selection.Log`).
            samples: its samples.
            number: its number in the view. Each log is a second newer than the one before.
        """
        api, created = self._log, (self._began + timedelta(seconds=number)).isoformat()
        identity = hashlib.sha256(about["path"].encode()).hexdigest()[:22]
        means, epochs = mapping.compute_means(samples), max((one["epoch"] for one in samples), default=1)
        prompts = len({one["id"] for one in samples})
        log = api.EvalLog(
            status="success",
            eval=api.EvalSpec(
                created=created,
                task=mapping.make_plain(about["task"]),
                task_id=identity,
                eval_id=identity,
                run_id=hashlib.sha256(self._run.encode()).hexdigest()[:22],
                dataset=api.EvalDataset(name=mapping.make_plain(about["task"]), samples=prompts),
                model=mapping.make_plain(about["model"]),
                config=api.EvalConfig(epochs=epochs),
                metadata=mapping.make_plain({"run": self._run, **about["metadata"]}),
                # Prompts and responses are untrusted: without this, the viewer renders their markdown and links.
                viewer=self._viewer.ViewerConfig(trust_content=False),
            ),
            results=api.EvalResults(
                total_samples=len(samples),
                completed_samples=len(samples),
                scores=[
                    api.EvalScore(
                        name=name,
                        scorer=name,
                        scored_samples=count,
                        unscored_samples=len(samples) - count,
                        metrics={"mean": api.EvalMetric(name="mean", value=value)},
                    )
                    for name, (value, count) in means.items()
                ],
            ),
            stats=api.EvalStats(started_at=created, completed_at=created),
            samples=[self._sample(one, mapping.make_plain(about["model"])) for one in samples],
        )
        path = self._folder / about["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        api.write_eval_log(log, str(path))

    def _sample(self, one: Mapping[str, Any], model: str) -> Any:
        error = one["error"] and self._log.EvalError(message=one["error"], traceback="", traceback_ansi="")
        return self._log.EvalSample(
            id=one["id"],
            epoch=one["epoch"],
            input=[self._message(message, model) for message in one["input"]],
            target=one["target"],
            messages=[self._message(message, model) for message in one["messages"]],
            output=self._model.ModelOutput(model=model),
            model_usage={model: self._model.ModelUsage(output_tokens=one["tokens"], total_tokens=one["tokens"])},
            scores={name: self._scorer.Score(**score) for name, score in one["scores"].items()},
            metadata=one["metadata"],
            error=error,
        )

    def _message(self, one: Mapping[str, Any], model: str) -> Any:
        role, content = one["role"], one["content"]
        about = {key: one[key] for key in ("said_by", "policy", "restarted") if one.get(key) not in (None, role)}
        given: dict[str, Any] = {"content": content, "metadata": about or None}
        if role == "assistant":
            calls = [
                self._tool.ToolCall(id=call["id"], function=call["name"], arguments=call["arguments"])
                for call in one.get("calls", ())
            ]
            return self._model.ChatMessageAssistant(model=one.get("policy", model), tool_calls=calls or None, **given)
        if role == "tool":
            call = one.get("answers") or {}
            return self._model.ChatMessageTool(tool_call_id=call.get("id"), function=call.get("name"), **given)
        kind = self._model.ChatMessageSystem if role == "system" else self._model.ChatMessageUser
        return kind(**given)


def write_logs(request: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Write the logs of a request. Yield the path of each and its number of responses."""
    cache: dict[tuple[str, int], pa.Table] = {}
    prompts = PromptTables(request["prompts"], _collect_prompt_ids(request["logs"]))
    spreads = _read_spreads(request["ledger"])
    writer = LogWriter(Path(request["folder"]), request["run"], len(request["logs"]))
    # The viewer lists the newest file first.
    for number, log in enumerate(reversed(request["logs"])):
        samples = list(make_samples(log, prompts, spreads, cache))
        writer.write(log, samples, number)
        yield log["path"], len(samples)


def _collect_prompt_ids(logs: Sequence[Mapping[str, Any]]) -> pa.Array:
    """Return the ids of the prompts of all logs."""
    wanted: defaultdict[str, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for log in logs:
        for part in log["rows"]:
            wanted[part["file"]][part["row_group"]].update(part["rows"])
    ids: set[str] = set()
    for file, groups in wanted.items():
        for number, table in read_columns(Path(file), ["prompt_id"]):
            if number in groups:
                ids.update(table["prompt_id"].take(pa.array(sorted(groups[number]), pa.int64())).to_pylist())
    return pa.array(sorted(ids), pa.string())


def _read_spreads(ledger: str | None) -> dict[int, float]:
    """Return the standard deviation of the advantages of each group, if there is a ledger."""
    spreads: dict[int, float] = {}
    for _, table in read_columns(Path(ledger), ["group", "advantage_spread"]) if ledger else ():
        columns = (table.column(name).to_pylist() for name in ("group", "advantage_spread"))
        spreads.update((group, spread) for group, spread in zip(*columns, strict=True) if spread is not None)
    return spreads


def main() -> None:
    """Process the request given on the command line."""
    for path, count in write_logs(json.loads(Path(sys.argv[1]).read_text())):
        print(json.dumps([path, count]), flush=True)


if __name__ == "__main__":
    main()
