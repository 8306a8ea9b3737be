"""A run's tables with responses: of training with episodes, of an evaluation with flipped questions, of difficulty."""

import json

import pyarrow as pa

from tasks.tables.parquet import write_table
from tasks.tables.schemas import EVALUATION, EVALUATION_PROMPTS, EVALUATION_ROLLOUTS, PROMPTS, ROLLOUTS
from tasks.training.records.response_files import TRAINING_ROLLOUTS

HOSTILE = "<script>alert(1)</script> ![x](http://remote.example/a.png) \x1b[31mred\x1b[0m \x00 [a](javascript:alert(2))"
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def write(path, rows, schema):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, pa.Table.from_pylist(rows, schema=schema), schema)


def prompt(name, **about):
    return {
        "prompt_id": name,
        "domain": "math",
        "source": "sums",
        "row": 3,
        "messages": [{"role": "user", "content": f"What is {name}?"}],
        "verifier": "math",
        "ground_truth": json.dumps("42"),
        "metadata": "{}",
        "cluster": None,
        "environment": None,
        **about,
    }


def turn(role, content, *, anew=False):
    sampled = role == "assistant"
    return {"role": role, "content": content, "sampled": sampled, "anew": anew, "token_ids": [1, 2]}


def trained(group, sample, step, fate="trained", version=None, **about):
    return {
        "group": group,
        "sample": sample,
        "prompt_id": f"p{group % 5}",
        "response": f"answer {group}.{sample}",
        "turns": [],
        "num_tokens": 7,
        "finish_reason": "stop",
        "actor": 1,
        "first_version": 0,
        "last_version": (step or 0) if version is None else version,
        "score": sample / 2,
        "passed": sample == 2,
        "rewards": [("math", 1.0), ("format", None)],
        "detail": "expected 42",
        "fate": fate,
        "step": step,
        **about,
    }


def evaluated(policy, name, passed, sample=0, benchmark="heldout", **about):
    return {
        "benchmark": benchmark,
        "prompt_id": name,
        "sample": sample,
        "response": f"{policy} says",
        "num_tokens": 5,
        "finish_reason": "stop",
        "turns": None,
        "outcome": None,
        "score": None if passed is None else float(passed),
        "passed": passed,
        "rewards": None if passed is None else [],
        "detail": None if passed is None else "expected 42",
        "error": "the judge is away" if passed is None else None,
        "policy": policy,
        "answer": "41",
        "answer_class": None,
        **about,
    }


def compared(policy="after", baseline="before", benchmark="all"):
    return {
        "benchmark": benchmark,
        "metric": "pass_rate",
        "policy": policy,
        "baseline": baseline,
        "value": 0.5,
        "low": 0.1,
        "high": 0.9,
        "n": 4,
        "p_value": 0.2,
        "detectable": 0.3,
    }


def write_run(run, address=None):
    """Write a folder of results: `p0` becomes better, `p1` worse, `p2` cannot be scored, and `p3` is hostile."""
    hostile = {"messages": [{"role": "user", "content": HOSTILE}], "metadata": '{"note": "\\ud800"}'}
    prompts = [prompt(f"p{number}", **(hostile if number == 3 else {})) for number in range(5)]
    write(run / "prompts.parquet", prompts, PROMPTS)
    write(
        run / "evaluation_prompts.parquet", [{"benchmark": "heldout", **each} for each in prompts], EVALUATION_PROMPTS
    )
    verdicts = {"before": (False, True, None, False), "after": (True, False, True, False)}
    rows = [
        evaluated(policy, f"p{number}", passed, sample, response=HOSTILE if number == 3 else f"{policy} says")
        for policy, of in verdicts.items()
        for number, passed in enumerate(of)
        for sample in range(2)
    ]
    rows += [evaluated(policy, "p4", True, benchmark="sums") for policy in verdicts]
    write(run / "evaluation_rollouts.parquet", rows, EVALUATION_ROLLOUTS)
    write(run / "evaluation.parquet", [compared(), compared(baseline=None)], EVALUATION)
    initial = evaluated("initial", "p0", True)
    write(run / "rollouts.parquet", [{name: initial[name] for name in ROLLOUTS.names}], ROLLOUTS)
    summary = {"stages": {}} if address is None else {"stages": {}, "responses": str(address)}
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def write_training(folder, steps=4):
    """Write the responses of a run with two trained groups a step and one that is dropped, in two files."""
    rows = [
        trained(group, sample, None if dropped else group // 3, fate, group // 3)
        for group in range(3 * steps)
        for dropped in [group % 3 == 2]
        for fate in ["zero_variance" if dropped else "trained"]
        for sample in range(3)
    ]
    middle = 9 * (steps // 2)
    write(folder / "00000000.parquet", rows[:middle], TRAINING_ROLLOUTS)
    write(folder / "00000001.parquet", rows[middle:], TRAINING_ROLLOUTS)
    return folder
