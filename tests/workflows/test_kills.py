"""Training's registered command, killed at random moments; each attempt has a machine of its own, and S3."""

import itertools
import json
import os
import random
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import flask
import pytest
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.recipe.run import TrainingConfig
from tasks.tables.parquet import read_table
from tasks.tables.schemas import LEDGER, StageSummary
from tasks.verifiers.config import DEFAULTS
from tests.training.mixtures import mixture
from tests.workflows.containers import files_of, literals, python
from tests.workflows.propeller import Attempt, FailedError

pytestmark = [pytest.mark.complete, pytest.mark.engine, pytest.mark.timeout(900)]

TRAINING = "tasks.training.task.train_policy"
STEPS = 4
SEEDS = int(os.environ.get("RLVR_KILLS", "2"))
"""Number of runs that are killed, by turns at a request to the bucket and by the clock; `make chaos` has five."""
START = 30.0
"""Seconds that an attempt takes to its first checkpoint on two cores, more or less."""
UPLOAD = 25
"""The request to the bucket that is the first of a checkpoint, more or less."""
REQUESTS = 115
"""What a container asks of the bucket from its inputs to its outputs, at least; ten of them upload a checkpoint."""
RESUMED = 50
"""The same of one that goes on from the last checkpoint; twelve of them restore it."""


@pytest.fixture(scope="module")
def inputs(cluster, tiny_model, tmp_path_factory):
    """What training takes, in the bucket; by its seed, so that runs are different ones."""
    files, place = files_of(cluster), f"{cluster.store.prefix}/inputs"
    files.put(str(tiny_model), f"{place}/model", recursive=True)
    words = ("sea", "river", "rain", "dog", "fox", "sum", "word", "answer")
    path = mixture(tmp_path_factory.mktemp("mixture"), [f"Write a sentence about the {word}" for word in words])
    files.put(str(path), f"{place}/mixture.parquet")

    def of(seed):
        config = {
            "seed": seed,
            "steps": STEPS,
            "checkpoint_every": 1,
            "groups_per_step": 2,
            "sampling": {"samples": 4, "max_tokens": 16},
            "learner": {"micro_batch_tokens": 256, "cpu_threads": 1},
            "actors": {"engine": {"max_model_len": 128, "max_num_seqs": 16, "cpu_threads": 1}},
        }
        return literals(
            model=FlyteDirectory(f"{place}/model"),
            mixture=FlyteFile(f"{place}/mixture.parquet"),
            config=TrainingConfig.model_validate(config),
            verifiers=DEFAULTS,
        )

    return of


def at(request, seconds=threading.TIMEOUT_MAX):
    """A kill at the container's n-th request to the bucket, which comes to nothing, or by the clock before that."""

    @contextmanager
    def arranged(kill):
        numbers = itertools.count(1)

        def on_request(*_, **__):
            if next(numbers) == request:
                kill()
                flask.abort(503)

        timer = threading.Timer(seconds, kill)
        timer.start()
        try:
            with flask.request_started.connected_to(on_request):
                yield
        finally:
            timer.cancel()

    return arranged


def newest_checkpoint(cluster, before=()):
    """The version of the newest complete upload of the only run that is not one of `before`; 0: there is none."""
    keys = [key.split("/") for key in cluster.store.keys("rlvr-runs/")]
    versions = [int(key[2][5:13]) for key in keys if key[1] not in before and key[-1] == "manifest.json"]
    return max(versions, default=0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_that_is_killed_at_random_moments_trains_every_step_once(cluster, inputs, tmp_path, seed):
    draw = random.Random(seed)
    others = {key.split("/")[1] for key in cluster.store.keys("rlvr-runs/")}
    before_the_first_checkpoint = at(UPLOAD, draw.uniform(0, START))
    at_any_request = at(draw.randint(1, REQUESTS))
    kills = before_the_first_checkpoint if seed % 2 else at_any_request, at(draw.randint(1, RESUMED))
    for number, killed in enumerate(kills):
        with pytest.raises(FailedError, match="no outputs"):
            cluster.run_task(TRAINING, inputs(seed), Attempt(f"first{seed}", number), killed)
    known = newest_checkpoint(cluster, others)

    # What `recover` does, and another start with equal inputs: an execution that knows nothing of the first.
    outputs = cluster.run_task(TRAINING, inputs(seed), Attempt(f"second{seed}"))

    files = files_of(cluster)
    assert python(outputs["summary"], StageSummary).facts["resumed_from"] == known
    rows = [json.loads(row) for row in files.cat_file(python(outputs["metrics"], str)).splitlines()]
    assert [row["step"] for row in rows] == list(range(STEPS))
    files.get_file(python(outputs["ledger"], str), str(tmp_path / "ledger.parquet"))
    ledger = read_table(tmp_path / "ledger.parquet", LEDGER).to_pylist()
    assert len({row["group"] for row in ledger}) == len(ledger)
    assert Counter(row["step"] for row in ledger if row["fate"] == "trained") == dict.fromkeys(range(STEPS), 2)
    assert newest_checkpoint(cluster, others) == STEPS


def test_a_mistyped_bucket_ends_the_first_attempt_before_any_training(cluster, inputs):
    mistyped = replace(cluster, variables={"RLVR_RUNS": "s3://no-such-bucket/runs"})
    sentence = (
        "the run cannot be stored at s3://no-such-bucket/runs/.*: NoSuchBucket: The specified bucket does not exist"
    )
    with pytest.raises(FailedError, match=sentence) as caught:
        mistyped.run_task(TRAINING, inputs(0))
    assert not caught.value.recoverable
