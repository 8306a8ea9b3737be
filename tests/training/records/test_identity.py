"""Which run a folder belongs to, and what may go on from its checkpoints."""

import json
from pathlib import Path

import pytest

from tasks.recipe.run import TrainingConfig
from tasks.training.records.identity import check_fits, run_name, run_setup, should_convert
from tasks.training.records.run_state import FORMAT, OtherRunError, RunState
from tasks.verifiers.config import VerifiersConfig
from tests.training.stand_ins import Run, config, prompts

CHECKPOINT = Path("runs/abc/checkpoints/step_00000007")


def name(**options):
    return run_name("model", "mixture", TrainingConfig(**options), VerifiersConfig())


def test_a_run_is_the_same_on_other_machines_and_for_more_steps():
    assert name() == name(steps=2300)
    assert name() == name(actors={"count": 2}, stall_seconds=60.0, learner={"ranks": 2, "zero_stage": 3})


def test_a_run_is_another_one_where_anything_differs_that_it_learns_from():
    others = [name(), name(seed=1), name(groups_per_step=4), name(optimizer={"learning_rate": 1e-5})]
    others.append(run_name("model", "another mixture", TrainingConfig(), VerifiersConfig()))
    assert len(set(others)) == len(others)


def test_the_number_of_steps_counts_where_the_learning_rate_depends_on_it():
    decaying = {"schedule": "cosine"}
    assert name(optimizer=decaying) != name(optimizer=decaying, steps=2300)


def state(version=7, **made):
    beginning = RunState.begin(run_setup(TrainingConfig()))
    return beginning.model_copy(update={"version": version, **made})


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            state(version=21),
            r"the run has taken 21 steps, steps = 20: fewer steps are a separate run, in a separate folder",
        ),
        (
            state(zero_stage=3),
            r"has the learner's state for learner\.zero_stage = 3, not 2: DeepSpeed's universal checkpoints lead "
            r"from 1 to 2 and back, and from 3 to 3\. Go on with 3",
        ),
    ],
)
def test_what_a_run_cannot_go_on_from_is_named_with_the_way_out(before, message):
    with pytest.raises(OtherRunError, match=message):
        check_fits(before, TrainingConfig(steps=20), CHECKPOINT)


@pytest.mark.parametrize(("changed", "expected"), [({}, False), ({"ranks": 4}, True), ({"zero_stage": 1}, True)])
def test_what_other_ranks_saved_is_converted(changed, expected):
    config = TrainingConfig(steps=20)
    check_fits(state(**changed), config, CHECKPOINT)
    assert should_convert(state(**changed), config) == expected


def test_a_run_goes_on_under_other_code_and_says_so(caplog):
    check_fits(state(), TrainingConfig(steps=20), CHECKPOINT)
    assert not caplog.records
    check_fits(state(code="0123456789"), TrainingConfig(steps=20), CHECKPOINT)
    [said] = caplog.messages
    assert "under other code than it was made by (01234567, now" in said


def test_a_finished_run_is_extended(tmp_path):
    Run(tmp_path, config(steps=4), prompts(40)).play()
    extended = Run(tmp_path, config(steps=6), prompts(40)).play()
    assert len(extended.learner.steps) == 2
    assert [row["step"] for row in extended.metrics()] == list(range(6))
    rows = extended.rows()
    assert len({row["group"] for row in rows}) == len(rows)  # what the end of the first run left over is not used twice


def test_code_that_has_one_option_more_goes_on_with_a_run(caplog):
    class ReplayConfig(TrainingConfig):
        one_option_more: bool = False

    later = ReplayConfig(steps=20)
    assert run_name("model", "mixture", later, VerifiersConfig()) == name()
    check_fits(RunState.model_validate_json(state().model_dump_json()), later, CHECKPOINT)
    assert not caplog.records


def test_another_default_is_said_and_other_options_are_refused(caplog):
    before = state(options={**state().options, "objective.clip_low": 0.1})
    check_fits(before, TrainingConfig(steps=20), CHECKPOINT)
    assert caplog.messages == ["objective.clip_low = 0.2 from here on; it was 0.1, the default of other code"]
    with pytest.raises(OtherRunError, match=r"belongs to a run with objective\.clip_high = 0\.28; another run needs"):
        check_fits(state(), TrainingConfig(steps=20, objective={"clip_high": 0.3}), CHECKPOINT)


def test_a_checkpoint_of_another_format_is_named_so_whatever_it_lacks(tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({"format": 1, "version": 3}))
    with pytest.raises(OtherRunError, match=f"has format 1, and this code reads format {FORMAT}"):
        RunState.read(tmp_path)
