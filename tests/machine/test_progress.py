"""How far a stage has come: lines where there is no terminal."""

import subprocess
import sys

from tests.paths import ROOT

STAGE = """
import sys, time
from pathlib import Path
from tasks.machine import progress
from tasks.flyte.stages import progress as shown

progress.LINE_SECONDS = 0.05
log = Path(sys.argv[1])

def wait_for(text):
    while text not in log.read_text():
        time.sleep(0.01)

with shown("rollouts", 4) as advance:
    wait_for("rollouts: 0/4")
    advance(2, "reward 0.50", done=3)
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


def test_a_log_has_a_line_now_and_then_and_one_at_the_end(tmp_path):
    code, lines = run(tmp_path, "advance()")
    assert code == 0
    assert lines[0] == "rollouts: 0/4, 0:00:00 so far"
    middle = next(line for line in lines if "3/4" in line)
    assert middle.endswith("left, reward 0.50")
    assert "/s, " in middle
    assert lines[-1].startswith("rollouts: 4/4, ")
    assert "\r" not in "".join(lines)


def test_a_stage_that_fails_says_how_far_it_came(tmp_path):
    code, lines = run(tmp_path, "raise SystemExit(3)")
    assert code == 3
    assert lines[-1].startswith("rollouts: 3/4, ")
