"""What goes wrong is said, with what to do, once."""

import pytest

from tasks.inputs.alarms_page import alarms_page
from tasks.recipe.alarms import AlarmsConfig
from tasks.training.telemetry.alarms import ALARMS, REPEAT, Watch
from tests.paths import ROOT
from tests.training.stand_ins import Run, config, prompts

WELL = {
    "entropy": 0.6,
    "mismatch": 0.004,
    "truncated": 0.1,
    "zero_variance": 0.4,
    "clip_high": 0.01,
    "is_oob_ratio": 0.01,
    "sampling_rounds": 1.0,
    "groups": 8.0,
    "samples": 64.0,
    "stale_groups": 0.0,
    "unjudged_samples": 0.0,
    "response_length": 300.0,
    "reward": 0.4,
    "reward_std": 0.2,
    "grad_norm": 0.5,
}
WRONG = {
    "min_entropy": {"entropy": 0.01},
    "max_mismatch": {"mismatch": 0.4},
    "max_truncated": {"truncated": 0.9},
    "min_reward_std": {"reward_std": 0.001},
    "min_length_growth": {"response_length": 20.0},
    "max_zero_variance": {"zero_variance": 0.97},
    "max_clipped": {"clip_high": 0.5},
    "max_out_of_bounds": {"is_oob_ratio": 0.4},
    "max_sampling_rounds": {"sampling_rounds": 6.0},
    "max_staleness_dropped": {"stale_groups": 6.0},
    "max_unjudged": {"unjudged_samples": 32.0},
    "max_length_growth": {"response_length": 3000.0},
    "max_grad_norm_growth": {"grad_norm": 8.0},
    "max_grad_norm": {"grad_norm": 50.0},
    "max_entropy": {"entropy": 5.0},
    "min_reward": {"reward": 0.05},
}
ALL_ON = AlarmsConfig(max_entropy=3.0, min_reward=0.15)
"""Thresholds for every alarm: those of two depend on the task, and are off by default."""


def observed(watch, steps, start=0, **metrics):
    """How many alarms ring in each of these steps."""
    return [watch.observe({"step": start + i, **WELL, **metrics})["alarms"] for i in range(steps)]


def test_a_healthy_run_is_silent(caplog):
    assert observed(Watch(AlarmsConfig()), 50) == [0] * 50
    assert not caplog.messages


def test_every_alarm_has_its_example_here_and_a_threshold():
    assert set(WRONG) == {alarm.option for alarm in ALARMS} == set(AlarmsConfig.model_fields) - {"window"}


@pytest.mark.parametrize("option", WRONG)
def test_what_goes_wrong_is_said_with_its_figures_and_the_way_out(option, caplog):
    watch = Watch(ALL_ON.model_copy(update={"max_grad_norm_growth": None} if option == "max_grad_norm" else {}))
    observed(watch, 20)
    assert observed(watch, 6, start=20, **WRONG[option])[-1] == 1
    [said] = caplog.messages
    assert f"alarms.{option} = " in said
    assert next(alarm.advice[1:] for alarm in ALARMS if alarm.option == option) in said


def test_a_low_reward_is_no_alarm_in_the_first_steps():
    assert observed(Watch(ALL_ON), 21, reward=0.0) == [0] * 20 + [1]


def test_one_bad_step_is_no_alarm():
    watch = Watch(AlarmsConfig())
    observed(watch, 10)
    assert observed(watch, 1, start=10, truncated=1.0) == [0]


def test_what_stays_wrong_is_said_again_after_a_while(caplog):
    observed(Watch(AlarmsConfig()), 5 + REPEAT, entropy=0.0)
    assert len(caplog.messages) == 2


def test_after_a_restart_what_is_usual_is_what_the_run_began_with():
    known = {"step": 0, **WELL}
    watch = Watch(AlarmsConfig())
    watch.recall([known] * 20)
    assert observed(watch, 6, start=20, **WRONG["max_length_growth"])[-1] == 1
    assert observed(Watch(AlarmsConfig()), 6, start=20, **WRONG["max_length_growth"])[-1] == 0


def test_what_two_alarms_look_at_is_averaged_over_the_whole_window():
    watch = Watch(AlarmsConfig(window=4, max_length_growth=2.2))
    observed(watch, 8)
    longer = {"response_length": 2.5 * WELL["response_length"]}
    assert observed(watch, 4, start=8, **longer) == [0, 0, 0, 1]


def test_a_threshold_of_null_is_off():
    assert observed(Watch(AlarmsConfig(min_entropy=None)), 10, entropy=0.0) == [0] * 10


def test_a_metric_that_a_run_does_not_record_rings_nothing():
    watch = Watch(AlarmsConfig())
    assert [watch.observe({"step": step})["alarms"] for step in range(10)] == [0] * 10


def test_the_page_is_that_of_the_code():
    page = ROOT / "docs" / "alarms.md"
    assert page.read_text() == alarms_page(), "make reference"


def test_alarms_ring_in_a_run(tmp_path, caplog):
    async def always_cut(_actor, _prompt):
        return ["half", "half"]

    options = {
        "steps": 6,
        "resampling": {"kind": "none"},
        "alarms": {"min_reward_std": None, "max_zero_variance": None},
    }
    rows = Run(tmp_path, config(**options), prompts(50), always_cut).play().metrics()
    assert [row["alarms"] for row in rows] == [0, 0, 0, 0, 1, 1]
    assert "truncated is 1, above alarms.max_truncated = 0.5" in caplog.text
