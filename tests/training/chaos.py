"""`make chaos`: real runs in which processes of each kind are killed at random moments.

Each seed is a run of its own, with two kills; half of its prompts are episodes of two turns. What can be replaced is,
in place; after the death of the driver, or of Ray itself, the next start continues from the newest checkpoint.
`CHAOS_SEEDS` is another number of seeds than 20.
"""

import contextlib
import functools
import itertools
import math
import os
import random
import threading
import time
import uuid

import psutil
import pytest

from tasks.generation.environment_spec import EnvironmentSpec
from tasks.recipe.run import TrainingConfig
from tasks.tables.parquet import read_table
from tasks.training.records.response_files import TRAINING_ROLLOUTS
from tests.training.driven import check_groups, metrics, run
from tests.training.mixtures import HAS_AN_E, mixture
from tests.training.processes import role

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SEEDS = int(os.environ.get("CHAOS_SEEDS", "20"))
ENVIRONMENT, FORK_SERVER = "environment", "environments' fork server"
"""The process of one episode after another, and the one that these are forked from and end with."""
REPLACED = (
    *("engine's actor", "vLLM's engine core", "learner rank", "judge", "verifier worker", "code sandbox"),
    *(ENVIRONMENT, FORK_SERVER),
)
"""What is replaced while the run goes on."""
WAITED_FOR = "ray's gcs"
"""Ray's processes wait for it for a minute, in which a run may come to its end."""
ENDING = ("driver", "raylet", WAITED_FOR)
"""With whom the run ends, and goes on at the next start."""
KINDS = (*REPLACED, *ENDING)
RECIPE = TrainingConfig.model_validate(
    {
        "steps": 40,
        "groups_per_step": 2,
        # Some tokens in twenty end a turn, which the tiny model hardly ever does. An episode has room for two turns.
        "sampling": {"samples": 4, "max_tokens": 64, "stop_token_ids": list(range(20, 32))},
        "optimizer": {"learning_rate": 1e-6},
        "learner": {"cpu_threads": 1, "micro_batch_tokens": 256, "dtype": "float32"},
        "actors": {"engine": {"max_model_len": 160, "max_num_seqs": 16, "cpu_threads": 1}},
        "alarms": {"max_truncated": None},
        "checkpoint_every": 4,
        "stall_seconds": 240,
    }
)
FIRST_SAVED = 4
SLOWEST = 1.0
"""Seconds of a step, at least, after the first kill: Ray takes some to count a node as dead, and the run must not have
ended by then."""
LATEST = 0.5
"""Seconds after a step: some steps, and well before the end of the run."""
WORDS = ("sea", "river", "rain", "dog", "fox", "sum", "word", "answer")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Prompts whose responses are judged for their letters, and run as programs; of every other one a second turn."""
    truth = {
        "rewards": [
            {"verifier": "precise_if", "weight": 1.0, "ground_truth": HAS_AN_E},
            {"verifier": "code", "weight": 0.5, "ground_truth": {"tests": ["assert answer() == 2"]}},
        ]
    }
    contents = [f"Write a sentence about the {word}" for word in WORDS]
    again = EnvironmentSpec("tests.environments.rooms.again", turns=2).to_json()
    folder, environments = tmp_path_factory.mktemp("mixture"), [again, None] * (len(contents) // 2)
    return mixture(folder, contents, verifier="weighted", truth=truth, environments=environments)


def kills_of(seed):
    """Two kills: the step after which, seconds after that, and the kind; seeds in a row take turns at the kinds."""
    draw = random.Random(seed)
    kinds = [draw.choice(REPLACED), KINDS[seed % len(KINDS)]]
    steps = sorted(draw.sample(range(FIRST_SAVED, RECIPE.steps // 2), len(kinds)))
    return {step: (draw.uniform(0, LATEST), kind) for step, kind in zip(steps, kinds, strict=True)}


def strike(kills, folder, figures):
    """Arrange for the kill that follows this step."""
    if any(step < figures["step"] for step in kills):
        time.sleep(SLOWEST)
    if figures["step"] in kills:
        seconds, kind = kills[figures["step"]]
        threading.Timer(seconds, kill_one, [kind, folder]).start()


def kill_one(kind, folder):
    """SIGKILL to a process of this kind; one that has just been killed and is not there yet is waited for."""
    me = psutil.Process()
    while True:
        for process in itertools.chain([me] if kind == "driver" else [], me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it has just ended
                if process is me or kind_of(process) == kind:
                    with (folder / "killed").open("a") as file:
                        file.write(f"{kind}\n")
                    process.kill()
                    return
        time.sleep(0.05)


def kind_of(process):
    """Its role, by which an environment's process and the one that it was forked from are told apart."""
    name, parent = role(process), process.parent()
    return FORK_SERVER if name == ENVIRONMENT and parent and role(parent) != ENVIRONMENT else name


def played(seed, model, prompts, folder):
    """Play a run to its end; returns how many starts it took, and who was killed."""
    folder.mkdir()
    kills = kills_of(seed) if seed is not None else {}
    killed = folder / "killed"
    for start in range(1, 4):
        if run(RECIPE, model, prompts, folder, watch=functools.partial(strike, kills)) == 0:
            return start, killed.read_text().splitlines() if killed.exists() else []
        kills = {}
    raise AssertionError(f"{folder}: three starts, and no end")


@pytest.fixture(scope="module")
def undisturbed(tiny_model, prompts, tmp_path_factory):
    """The figures of a run in which nobody is killed, and how far its policy has moved."""
    folder = tmp_path_factory.mktemp("runs") / uuid.uuid4().hex
    assert played(None, tiny_model, prompts, folder) == (1, [])
    check_groups(folder, RECIPE)
    assert not lost_episodes(folder)
    return metrics(folder), distance(folder / "policy", tiny_model)


def distance(policy, model):
    """Of two policies' weights, in which what a run learned lasts: of nothing that was lost and begun anew."""
    from safetensors.torch import load_file

    after, before = (load_file(folder / "model.safetensors") for folder in (policy, model))
    return math.sqrt(sum(float((after[name].double() - before[name].double()).square().sum()) for name in before))


def check_alike(rows, others):
    """Rewards of two runs differ by no more than chance would have them, and engine and learner agree in both."""
    for name in ("batch_reward", "response_length"):
        mine, theirs = ([row[name] for row in each] for each in (rows, others))
        error = math.sqrt((variance(mine) + variance(theirs)) / len(mine))
        assert abs(sum(mine) - sum(theirs)) / len(mine) <= 4 * error, name
    assert all(row["mismatch"] < 0.02 for row in rows if row["staleness_max"] == 0)


def variance(values):
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def lost_episodes(folder):
    """The number of episodes whose environment was killed; none of them has a score, and all others are whole."""
    tables = [
        read_table(file, TRAINING_ROLLOUTS).to_pylist() for file in sorted((folder / "rollouts").glob("*.parquet"))
    ]
    rows = [row for table in tables for row in table]
    lost = [row for row in rows if (row["detail"] or "").startswith("environment ")]
    assert all((row["score"], row["passed"]) == (None, None) for row in lost)
    for row in rows:
        if row["turns"] and row not in lost:
            cut = row["finish_reason"] == "length" or row["num_tokens"] == RECIPE.sampling.max_tokens
            assert sum(turn["sampled"] for turn in row["turns"]) == 2 or cut, row
    assert any(len(row["turns"]) == 3 for row in rows)
    return len(lost)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_outlives_the_death_of_any_of_its_processes(seed, undisturbed, tiny_model, prompts, tmp_path):
    folder = tmp_path / uuid.uuid4().hex
    starts, killed = played(seed, tiny_model, prompts, folder)
    print(f"\nseed {seed}: killed {', '.join(killed)}; {starts} starts")
    assert killed
    ending = {kind for kind in killed if kind in ENDING}
    assert starts == 1 + bool(ending) or (starts == 1 and ending == {WAITED_FOR})
    environment_died = not {ENVIRONMENT, FORK_SERVER}.isdisjoint(killed)
    check_groups(folder, RECIPE, may_fail=environment_died)
    lost = lost_episodes(folder)
    print(f"seed {seed}: {lost} episodes lost")
    assert environment_died or not lost
    rows, moved = undisturbed
    check_alike(metrics(folder), rows)
    print(f"seed {seed}: its policy moved by {distance(folder / 'policy', tiny_model) / moved:.3f} of the undisturbed")
    assert distance(folder / "policy", tiny_model) == pytest.approx(moved, rel=0.2)
