"""The progress of a stage: its rate and time left by hand, and its lines where there is no terminal."""

import io
import re
import subprocess
import sys
import time

import pytest
from rich.console import Console

from tasks.machine import progress
from tasks.machine.progress import Activity, Meter, track_activity, track_progress
from tests.paths import ROOT

STAGE = """
import sys, time
from pathlib import Path
from tasks.machine import progress
from tasks.flyte.stages import progress as track

progress.LINE_SECONDS = 0.05
log = Path(sys.argv[1])

def wait_for(text):
    while text not in log.read_text():
        time.sleep(0.01)

with track("rollouts", 4) as advance:
    wait_for("rollouts: 0/4")
    advance(done=2)
    wait_for("rollouts: 2/4")
    advance(1, "reward 0.50")
    wait_for("rollouts: 3/4")
    {last}
"""


def run(tmp_path, last):
    log = tmp_path / "log"
    log.touch()
    with log.open("a") as file:
        done = subprocess.run(
            [sys.executable, "-c", STAGE.format(last=last), str(log)], cwd=ROOT, stdout=file, stderr=file, timeout=120
        )
    return done.returncode, [line for line in log.read_text().splitlines() if line.startswith("rollouts")]


@pytest.mark.long
def test_a_log_has_a_line_now_and_then_and_one_at_the_end(tmp_path):
    code, lines = run(tmp_path, "advance()")
    assert code == 0
    assert lines[0] == "rollouts: 0/4, 0:00:00 so far"
    middle = next(line for line in lines if "3/4" in line)
    assert middle.endswith("/s, reward 0.50")
    assert "left" not in middle  # a rate of less than a minute predicts nothing
    assert lines[-1].startswith("rollouts: 4/4, ")
    assert "\r" not in "".join(lines)


@pytest.mark.long
def test_the_last_line_of_a_stage_that_fails_is_how_far_it_came(tmp_path):
    code, lines = run(tmp_path, "raise SystemExit(3)")
    assert code == 3
    assert lines[-1].startswith("rollouts: 3/4, ")


@pytest.fixture
def clock():
    """A clock of which the test sets the time: `clock[0]`, in seconds."""
    return [100.0]


@pytest.fixture
def meter(clock):
    return Meter("training: steps", 14, clock=lambda: clock[0])


def test_the_time_left_is_the_work_left_at_the_rate_since_the_first_unit(meter, clock):
    clock[0] += 120  # an engine starts
    meter.advance()
    assert (meter.estimate_seconds_left(), meter.speed()) == (None, "")
    clock[0] += 180
    meter.advance(2)  # 2 steps in 180 s are 90 s a step, and 11 are left: 990 s
    assert meter.estimate_seconds_left() == pytest.approx(990)
    assert meter.line() == "training: steps: 3/14, 0:05:00 so far, 0.7/min, 0:16:30 left of this stage"
    clock[0] += 3300
    meter.advance(11, note="mean score 0.42")
    assert (
        meter.line() == "training: steps: 14/14, 1:00:00 so far, 0.2/min, 0:00:00 left of this stage, mean score 0.42"
    )


def test_no_time_is_given_before_a_minute_was_measured(clock):
    meter = Meter("rollouts", 480, clock=lambda: clock[0])
    meter.advance(10)
    clock[0] += 59
    meter.advance(100)
    assert (meter.estimate_seconds_left(), meter.speed()) == (None, "1.7/s")
    clock[0] += 1
    assert meter.estimate_seconds_left() == pytest.approx(370 * 60 / 100)


def test_work_of_an_earlier_attempt_is_not_this_ones_speed(meter, clock):
    meter.advance(done=11)  # 10 steps were done before
    clock[0] += 120
    meter.advance()
    assert meter.estimate_seconds_left() == pytest.approx(2 * 120)


def test_a_stage_that_is_resumed_begins_at_the_units_that_are_done(meter, clock):
    meter.advance(0, note="resumed after step 11", done=11)
    clock[0] += 300  # an engine starts
    assert meter.line() == "training: steps: 11/14, 0:05:00 so far, resumed after step 11"
    meter.advance(done=12)
    clock[0] += 120
    meter.advance(done=13)
    assert meter.line() == "training: steps: 13/14, 0:07:00 so far, 0.5/min, 0:02:00 left of this stage"


def test_until_the_first_unit_the_line_says_what_happens_instead(clock):
    meter = Meter("rollouts", 4, "the engine is loading", clock=lambda: clock[0])
    assert meter.line() == "rollouts: 0/4, 0:00:00 so far, the engine is loading"
    meter.advance(note="mean score 0.50")
    assert "loading" not in meter.line()


def test_a_stage_that_has_ended_has_no_time_left_and_says_why_it_stopped_early(meter, clock):
    meter.advance()
    clock[0] += 120
    meter.advance()
    assert "left of this stage" in meter.line()
    meter.advance(0, note="stopped early")
    meter.end()
    assert "left of this stage" not in meter.line()
    assert meter.line().endswith(", stopped early")
    assert meter.line().startswith("training: steps: 2/14, ")


def test_a_terminal_has_a_bar_with_the_same_figures(monkeypatch):
    monkeypatch.setattr(progress, "MEASURED_SECONDS", 0.0)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=160)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    with track_progress("rollouts", 4) as advance:
        advance(1)
        advance(3, note="mean score 0.50")
    text = terminal.file.getvalue()
    assert "rollouts mean score 0.50" in text
    assert "4/4" in text
    assert "left of this stage" in text


def test_work_that_cannot_be_counted_has_a_line_when_it_begins_and_its_time(clock, monkeypatch, capsys):
    activity = Activity("model", clock=lambda: clock[0])
    activity.begin("converting")
    clock[0] += 90
    assert activity.line() == "model: converting, 0:01:30 so far"
    activity.begin("checking")
    assert activity.line() == "model: checking, 0:00:00 so far"
    with track_activity("model check") as begin:
        assert capsys.readouterr().err == ""
        begin("loading")
        assert capsys.readouterr().err == "model check: loading\n"
        begin("comparing")
        assert capsys.readouterr().err == "model check: comparing\n"


def test_long_work_repeats_its_line(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    lines = []
    monkeypatch.setattr(progress, "_print", lines.append)
    with track_activity("model") as begin:
        begin("downloading")
        while len(lines) < 3:
            time.sleep(0.005)
    assert lines[0] == "model: downloading"
    assert all(re.fullmatch(r"model: downloading, 0:00:\d\d so far", line) for line in lines[1:])


def test_a_terminal_shows_the_work_that_is_done_now(monkeypatch):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=160)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    with track_activity("model") as begin:
        begin("converting")
    assert "model: converting, 0:00:00 so far" in terminal.file.getvalue()
