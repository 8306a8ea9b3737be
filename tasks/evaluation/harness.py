"""Runs lm-evaluation-harness on a policy, and converts its results to tables of questions and rollouts.

A benchmark of the package is then compared like any other: paired by question, with the same intervals, corrections and
margins. Its documents are the questions, and a document's metric is the score of its single response.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.evaluation.harness_spec import HarnessBenchmark
from tasks.failures import InfrastructureError, MistakeError
from tasks.generation.config import EngineConfig
from tasks.generation.engine_variables import choose_runner
from tasks.tables.parquet import build_table
from tasks.tables.schemas import EVALUATION_ROLLOUTS, PROMPTS, UNKNOWN_END, canonical_json

THINKING_ENDS = "</think>"
"""End of the thinking part of a response, which filters and metrics ignore. Only used with the chat template."""
MOST_WARNINGS = 5
"""Maximum number of different warnings of the package that are logged."""

logger = logging.getLogger(__name__)


class Answered(NamedTuple):
    """The documents of a benchmark with the responses of a policy, and the package's warnings."""

    documents: list[dict[str, Any]]
    warnings: list[str]


class HarnessError(InfrastructureError):
    """Raised if the process that runs lm-evaluation-harness fails."""


def build_request(benchmark: HarnessBenchmark, engine: EngineConfig, policy: Path, *, gpu: bool) -> dict[str, Any]:
    """Return the request to the package, in the format of `tasks.evaluation.harness_child`.

    Args:
        benchmark: the options of the benchmark.
        engine: the options of the engine that is used for all other benchmarks.
        policy: the model folder.
        gpu: True if there is a GPU.
    """
    vllm = benchmark.backend == "vllm"
    ours = {
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "enforce_eager": engine.is_eager(gpu=gpu),
        **({"gpu_memory_utilization": engine.share_of_gpu} if gpu else {}),
        **engine.vllm,
    }
    return benchmark.model_dump(exclude={"fingerprint", "margin"}) | {
        "arguments": {
            "pretrained": str(policy),
            "dtype": engine.dtype,
            **({"think_end_token": THINKING_ENDS} if benchmark.chat_template else {}),
            **(ours if vllm else {"max_length": engine.max_model_len}),
        },
        "batch_size": "auto" if vllm else benchmark.batch_size,
        "device": "cuda" if gpu else "cpu",
        "variables": choose_runner(engine),
    }


def ask(request: Mapping[str, Any]) -> Answered:
    """Run the package on a policy in a separate process, and log its warnings.

    Raises:
        MistakeError: a task, metric or filter that the package does not have, or an option that its tasks ignore.
        HarnessError: the process failed. The message is the last line of its error output.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "result.json")
        asked.write_text(json.dumps(request))
        command = [sys.executable, "-m", "tasks.evaluation.harness_child", str(asked), str(answered)]
        variables = {**os.environ, **request["variables"]}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)  # noqa: S603 - our own module
        if done.returncode or not answered.is_file():
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise HarnessError(f"harness benchmark {request['name']!r}: lm-eval failed: {lines[-1]}")
        result = json.loads(answered.read_text())
    if "mistake" in result:
        raise MistakeError(result["mistake"])
    answers = Answered(**result)
    if not answers.documents:
        raise MistakeError(f"harness benchmark {request['name']!r}: its tasks have no documents")
    for warning in answers.warnings[:MOST_WARNINGS]:
        logger.warning(f"harness benchmark {request['name']!r}: lm-eval: {warning}")
    if left := answers.warnings[MOST_WARNINGS:]:
        logger.warning(f"harness benchmark {request['name']!r}: lm-eval: {len(left)} more warnings")
    return answers


def questions(documents: Sequence[Mapping[str, Any]], benchmark: HarnessBenchmark) -> pa.Table:
    """Return `PROMPTS` of a benchmark's documents. The source of each is its task."""
    rows = [
        {
            "prompt_id": _compute_id(document),
            "domain": benchmark.name,
            "source": document["task"],
            "row": document["number"],
            "messages": [{"role": "user", "content": document["question"]}],
            "verifier": f"lm-eval {benchmark.metric}",
            "ground_truth": canonical_json(document["target"]),
            "metadata": "{}",
        }
        for document in documents
    ]
    return build_table(rows, PROMPTS, f"questions of {benchmark.name}")


def rollouts(documents: Sequence[Mapping[str, Any]], benchmark: HarnessBenchmark, policy: str) -> pa.Table:
    """Return `EVALUATION_ROLLOUTS` of the responses of a policy. `policy` is its digest."""
    rows = [
        {
            "benchmark": benchmark.name,
            "prompt_id": _compute_id(document),
            "sample": 0,
            "response": document["response"],
            "num_tokens": document["tokens"],
            "finish_reason": UNKNOWN_END,
            "score": document["value"],
            "passed": document["value"] == 1,
            "rewards": [],
            "policy": policy,
        }
        for document in documents
    ]
    return build_table(rows, EVALUATION_ROLLOUTS, f"rollouts of {benchmark.name}")


def _compute_id(document: Mapping[str, Any]) -> str:
    """Return the id of a document, which does not depend on the policy's chat template."""
    text = canonical_json([document["task"], document["number"], document["digest"]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
