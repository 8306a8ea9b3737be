"""How long a run will take: the formula by hand, what is said, and when nothing is."""

import pytest
import torch

from tasks.evaluation.spec import EvaluationSpec
from tasks.inputs import estimate
from tasks.inputs.estimate import (
    BESIDE,
    ENGINE,
    LEARNER,
    LENGTH,
    SAMPLED,
    START_SECONDS,
    Size,
    held_out,
    measured,
    said,
    size_of,
    stages,
)
from tasks.inputs.files import DataFile, Recipe, quickstart

DATA = DataFile.model_validate(
    {
        "name": "test",
        "sources": [
            {"name": "a", "domain": "code", "verifier": "code", "loader": {"kind": "functions", "size": 90}},
            {"name": "b", "domain": "chat", "verifier": "chat_open", "loader": {"kind": "topics", "size": 10}},
        ],
        "difficulty": {"sampling": {"samples": 8, "max_tokens": 100}},
        "mixture": {"heldout": 20, "domains": {"chat": {"heldout": 5}, "math": {"heldout": 7}}},
    }
)
EVALUATION = EvaluationSpec.model_validate({"sampling": {"samples": 4, "max_tokens": 100}})
SIZE = Size(parameters=1_000_000, prompts=100)
CORES = 4
RATES = {
    ("engine", "auto"): 2e6 / (1 / BESIDE - ENGINE.overhead) / ENGINE.share,  # a token a second on each core
    ("learner", "auto"): 6e6 / (1 / BESIDE - LEARNER.overhead) / LEARNER.share,
}
LORA = BESIDE * (4 / 6 * (1 / BESIDE - LEARNER.overhead) + LEARNER.overhead)


def recipe(**options):
    given = {"steps": 5, "groups_per_step": 2, "sampling": {"samples": 4, "max_tokens": 100}, "async_steps": 0}
    return Recipe.model_validate(given | options)


def seconds(training):
    return stages(DATA, training, EVALUATION, SIZE, CORES, RATES)


def test_an_engine_of_its_own_has_all_cores():
    found = seconds(recipe())
    assert found["difficulty"] == pytest.approx(START_SECONDS + 100 * 8 * LENGTH * 100 / CORES)
    assert found["evaluation"] == pytest.approx(2 * (START_SECONDS + 25 * 4 * LENGTH * 100 / CORES))


BATCH = 2 * 4 * LENGTH * 100
"""Tokens of a batch, and seconds of one core to generate or to train it."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Engine and learner take turns, on all cores.
        ({}, 5 * BATCH * (SAMPLED + 1) / CORES),
        # Beside each other they share the cores, and two batches are left over.
        ({"async_steps": 2}, ((5 * SAMPLED + 2) + 5) * BATCH / CORES),
        # An engine that may use one core alone decides.
        ({"async_steps": 2, "actors": {"engine": {"cpu_threads": 1}}}, (5 * SAMPLED + 2) * BATCH),
        ({"resampling": {"kind": "none"}}, 5 * BATCH * 2 / CORES),
        ({"updates": {"epochs": 3}}, 5 * BATCH * (SAMPLED + 3) / CORES),
        ({"lora": {"rank": 8, "alpha": 16}}, 5 * BATCH * (SAMPLED + LORA) / CORES),
    ],
)
def test_training_is_what_is_sampled_and_what_is_trained(options, expected):
    assert seconds(recipe(**options))["training"] == pytest.approx(START_SECONDS + expected)


def test_domains_without_a_source_hold_nothing_out():
    assert held_out(DATA) == 20 + 5


def test_of_a_share_the_rows_of_the_domain_are_held_out():
    mixture = DATA.mixture.model_copy(update={"heldout": 0.5, "domains": {}})
    assert held_out(DATA.model_copy(update={"mixture": mixture})) == 45 + 5


def test_the_longest_stage_names_what_makes_it_shorter():
    options = {"difficulty": "samples (8)", "training": "steps (14)", "evaluation": "samples (4)"}
    assert said({"difficulty": 130.0, "training": 400.0, "evaluation": 45.0}, 2, {"float32"}, options) == (
        "about 10 minutes on this machine (2 cores, float32), if nothing is cached: "
        "difficulty 2, training 7, evaluation 1\n"
        "to make it shorter: lower steps (14)"
    )
    hours = said({"difficulty": 4e6, "training": 2e5, "evaluation": 7e3}, 2, {"float32", "bfloat16"}, options)
    assert hours == (
        "about 1,169 hours on this machine (2 cores, bfloat16 and float32), if nothing is cached: "
        "difficulty 1,111, training 56, evaluation 2\n"
        "to make it shorter: lower samples (8)"
    )


def test_a_machine_is_measured_in_the_types_that_are_asked_for_and_left_as_it_was():
    threads = torch.get_num_threads()
    cores, rates = measured(DATA, recipe(learner={"dtype": "float32"}), EVALUATION)
    assert cores >= 1
    assert rates.keys() == {("engine", "auto"), ("learner", "float32")}
    assert min(rates.values()) > 1e6
    assert torch.get_num_threads() == threads


def test_the_quickstart_is_estimated_before_any_work():
    text = estimate.estimate(*quickstart())
    assert text.startswith("about ")
    assert "difficulty.sampling.samples (--data, 8)" in text or "steps (--training, 14)" in text


HUB_MODEL = {"kind": "hub", "name": "a/model", "revision": "0" * 40}
HUB_ROWS = {"kind": "huggingface", "dataset": "a/set", "revision": "0" * 40}


def test_of_an_unknown_size_nothing_is_said():
    assert size_of(DATA, recipe(model={"source": HUB_MODEL})) is None
    source = DATA.sources[0].model_dump() | {"loader": HUB_ROWS}
    unknown = DATA.model_copy(update={"sources": [type(DATA.sources[0]).model_validate(source)]})
    assert size_of(unknown, recipe()) is None
    limited = [type(DATA.sources[0]).model_validate(source | {"limit": 30})]
    assert size_of(unknown.model_copy(update={"sources": limited}), recipe()).prompts == 30


def test_with_a_gpu_nothing_is_said(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert estimate.estimate(*quickstart()) is None
