"""GSM8K, MBPP, IFEval's prompts and self-instruct's tasks through all data stages, with real rollouts on a sample."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import yaml

from tasks.tables.parquet import read_table
from tasks.tables.schemas import COMPARED, GRADED, MIXTURE, PROMPTS, ROLLOUTS, SET_ASIDE
from tests.paths import DATA, ROOT
from tests.tiny_model import build
from tests.verifiers.chat.fake_endpoint import FakeEndpoint, graded

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.engine,
    pytest.mark.complete,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA} (set RLVR_TEST_DATA)"),
]

ROWS = 24
PROGRAM = """
import json, sys
from pathlib import Path
from flytekit.types.directory import FlyteDirectory
from tasks.config.loading import load_yaml
from tasks.inputs.files import DataFile, Recipe
from workflows.data import data
home = Path(sys.argv[1])
files = {"data": load_yaml(DataFile, home / "data.yaml"), "training": load_yaml(Recipe, home / "training.yaml")}
made = data(model=FlyteDirectory(str(home / "model")), **files)
print(json.dumps({name: str(getattr(made, name)) for name in sys.argv[2:]}))
"""
SCHEMAS = {
    "prompts": PROMPTS,
    "rollouts": ROLLOUTS,
    "graded": GRADED,
    "selected": GRADED,
    "compared": COMPARED,
    "mixture": MIXTURE,
    "heldout": GRADED,
    "set_aside": SET_ASIDE,
}


def source(name, domain, verifier, file, **columns):
    return {
        "name": name,
        "domain": domain,
        "verifier": verifier,
        "limit": ROWS,
        "loader": {"kind": "jsonl", "path": str(DATA / file)},
        "columns": columns,
    }


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The outputs of the data stages, of a tiny model whose answers are random."""
    home = tmp_path_factory.mktemp("data")
    other = str(build(home / "other", seed=1))
    data = {
        "name": "real",
        "sources": [
            source(
                "gsm8k",
                "math",
                "math",
                "gsm8k_train.jsonl",
                prompt="question",
                ground_truth="answer",
                ground_truth_pattern="#### (.+)",
            ),
            source("mbpp", "code", "code", "mbpp.jsonl", prompt="text", tests="test_list"),
            source(
                "ifeval",
                "precise_if",
                "precise_if",
                "ifeval_prompts.jsonl",
                prompt="prompt",
                instruction_ids="instruction_id_list",
                kwargs="kwargs",
            ),
            source("self-instruct", "chat", "chat_open", "self_instruct_seed_tasks.jsonl", prompt="instruction"),
        ],
        "evaluation_sets": [
            {
                "name": "gsm8k-test",
                "loader": {"kind": "jsonl", "path": str(DATA / "gsm8k_test.jsonl")},
                "prompt": "question",
            }
        ],
        "difficulty": {
            "max_mean_score": 1.0,
            "early_stopping": True,
            "shard_prompts": 40,
            "sampling": {"samples": 4, "max_tokens": 16, "seed": 3},
            "engine": {"max_model_len": 256, "max_num_seqs": 64, "cpu_threads": 1},
            "compared": {"other": {"model": {"source": {"kind": "folder", "path": other}}}},
        },
        "mixture": {"heldout": 0.1, "temperature": "inf", "max_repeats": 2},
    }
    training = {"sampling": {"max_tokens": 16}, "actors": {"engine": {"max_model_len": 240}}}
    environment = os.environ | {"RLVR_RUNS": str(home / "runs"), "FLYTE_SDK_LOCAL_SANDBOX": str(home / "flyte")}
    build(home / "model")
    with FakeEndpoint(lambda _: graded(3)) as endpoint:
        data["verifiers"] = {"judge": {"url": endpoint.url, "model": "judge"}}
        for name, content in (("data", data), ("training", training)):
            (home / f"{name}.yaml").write_text(yaml.safe_dump(content))
        command = [sys.executable, "-c", PROGRAM, str(home), *SCHEMAS]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    paths = json.loads(done.stdout.splitlines()[-1])
    return {name: read_table(paths[name], schema) for name, schema in SCHEMAS.items()}


def by_source(table):
    return Counter(table.column("source").to_pylist())


def test_every_row_is_graded_or_set_aside(tables):
    assert by_source(tables["graded"]) + by_source(tables["set_aside"]) == Counter(
        dict.fromkeys(("gsm8k", "mbpp", "ifeval", "self-instruct"), ROWS)
    )


def test_what_does_not_fit_training_is_set_aside_before_it_is_sampled(tables):
    long = [row for row in tables["set_aside"].to_pylist() if row["stage"] == "difficulty"]
    assert long
    assert all("actors.engine.max_model_len of training is 240" in row["reason"] for row in long)
    assert not {row["prompt_id"] for row in long} & set(tables["rollouts"].column("prompt_id").to_pylist())


def test_a_prompt_whose_fate_is_decided_has_fewer_rollouts(tables):
    # Below 1.0 of four is decided by the first failure.
    drawn = Counter(tables["rollouts"].column("prompt_id").to_pylist())
    assert set(drawn.values()) <= {1, 2, 3, 4}
    assert 1 in drawn.values()


def test_the_mixture_has_domains_in_equal_shares_and_nothing_that_is_held_out(tables):
    mixture = tables["mixture"]
    counts = Counter(mixture.column("domain").to_pylist())
    assert max(counts.values()) - min(counts.values()) <= 1
    ids = set(mixture.column("prompt_id").to_pylist())
    assert not ids & set(tables["heldout"].column("prompt_id").to_pylist())


def test_another_checkpoint_answers_the_same_prompts(tables):
    compared = tables["compared"].to_pylist()
    variants = Counter(row["variant"] for row in compared)
    assert variants["initial"] == variants["other"] > 0
    assert {row["num_rollouts"] for row in compared if row["variant"] == "other"} == {4}
