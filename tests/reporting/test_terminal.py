"""The last lines of a run, for people and for programs."""

import io
import json
from datetime import UTC, datetime

import pytest
from rich.console import Console

from tasks.reporting.terminal import make_stages_json, make_summary_json, print_summary
from tasks.tables.schemas import StageSummary
from tests.reporting.synthetic_run import evaluation, summaries


def summary(**changes):
    arguments = {
        "run": "this",
        "seconds": 700.0,
        "report": "runs/report.html",
        "tokens_per_second": 312.4,
    }
    return make_summary_json(evaluation(), summaries(), **(arguments | changes))


def printed(found, *, terminal: bool = False, stages=None, **options) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=140, highlight=False)
    print_summary(found, found["report"], stages or summaries(), console, **options)
    return stream.getvalue()


def test_summary_holds_the_promised_keys_and_survives_json():
    found = json.loads(json.dumps(summary(), allow_nan=False))
    assert (found["before"], found["after"], found["seconds"]) == (0.234, 0.445, 700.0)
    assert (found["gain"], found["gain_low"], found["gain_high"]) == (0.211, 0.12, 0.30)
    assert (found["mean_score"]["before"], found["mean_score"]["gain_high"]) == (0.301, 0.28)
    assert set(found["stages"]["training"]) == {"seconds", "cached"}
    assert (found["p_value"], found["n"], found["report"]) == (0.0002, 64, "runs/report.html")
    assert found["stage_order"] == [stage.stage for stage in summaries()]


def test_a_stage_of_another_run_was_cached():
    cached = [name for name, stage in summary()["stages"].items() if stage["cached"]]
    assert cached == ["sourcing: products", "sourcing: sums", "sourcing: constraints", "difficulty", "mixing"]


def test_summary_needs_an_overall_pass_rate():
    with pytest.raises(ValueError, match="benchmark 'all'"):
        make_summary_json(evaluation(("math",)), summaries(), run="this", seconds=1.0, report="r.html")


def test_printed_lines_say_what_a_person_wants_to_know():
    lines = printed(summary())
    assert "23.4% (17.0 to 31.0) -> 44.5% (36.0 to 53.0), gain +21.1 points (+12.0 to +30.0, 95%)" in lines
    assert "mean score  30.1% (24.0 to 37.0) -> 49.8% (42.0 to 58.0), gain +19.7 points" in lines
    assert "64 held-out prompts, p < 0.001, the gain's interval lies above zero" in lines
    assert "detectable with 80% power: 12.6 points" in lines
    assert "11 min 40 s" in lines
    assert "312 tokens/s" in lines
    training = next(line for line in lines.splitlines() if line.startswith("training"))
    assert "6 min 53 s" in training
    assert " run " in training
    assert lines.rstrip().endswith("runs/report.html")


def test_colour_codes_only_on_a_terminal():
    assert "\x1b[" not in printed(summary())
    assert "\x1b[" in printed(summary(), terminal=True)


def test_the_last_lines_name_the_commands_that_show_responses():
    last = printed(summary()).splitlines()[-2]
    assert "rlvr view" in last
    assert "rlvr show" in last


def test_headlines_are_text_not_markup():
    stages = summaries()
    stages[0].headline = "[bold]literal[/bold] [/nothing]"
    stream = io.StringIO()
    print_summary(summary(), "r.html", stages, Console(file=stream, width=140))
    assert "[bold]literal[/bold] [/nothing]" in stream.getvalue()


def test_unknown_figures_are_left_out():
    lines = printed(summary(tokens_per_second=None) | {"p_value": None, "detectable": None, "gain_low": -0.1})
    assert "tokens/s while" not in lines
    assert "are detected" not in lines
    assert "p <" not in lines
    assert "includes zero" in lines


def test_a_policy_that_is_often_truncated_is_a_line():
    found = summary()
    assert [one.partition(" cut off")[0] for one in found["warnings"]] == [
        "policy 'before': responses are",
        "policy 'after': responses are",
    ]
    figures = "(held out 22.0%, math 22.0%, precise_if 22.0%)"
    assert f"warning     policy 'before': responses are cut off at max_tokens {figures}" in printed(found)


@pytest.mark.parametrize(("share", "warned"), [(0.5, True), (0.99, False)])
def test_a_source_that_lost_most_of_its_rows_is_a_line_also_of_a_cached_stage(share, warned):
    stages = summaries()
    loss = {"stage": "merging", "source": "sums", "rows": 190, "lost": 180, "reasons": {"…% like a prompt": 180}}
    next(stage for stage in stages if stage.stage == "mixing").facts["losses"] = [loss]
    lines = printed(summary(), stages=stages, warn_if_lost=share)
    assert ("warning     source 'sums': merging dropped 180 of 190 rows (180 …% like a prompt)" in lines) == warned


def test_each_benchmark_has_its_gain_and_p_value_in_the_last_lines():
    stages = summaries()
    stages[-1].facts |= {"benchmarks": [{"name": "precise_if", "licence": "mit", "asked": 64, "rows": 64}]}
    stages[-1].facts["comparisons"].append(
        {"policy": "after", "baseline": "before", "benchmark": "precise_if", "p_value": 0.02, "adjusted_p_value": 0.04}
    )
    found = make_summary_json(evaluation(), stages, run="this", seconds=700.0, report="r.html")
    assert (
        found["benchmarks"]["precise_if"].items() >= {"before": 0.234, "after": 0.445, "n": 64, "p_value": 0.04}.items()
    )
    lines = printed(found, stages=stages).splitlines()
    [number] = [number for number, line in enumerate(lines) if line.startswith("precise_if  23.4%")]
    assert lines[number + 1].strip() == "64 questions, p = 0.04"
    assert summary()["benchmarks"] == {}


def test_the_summary_has_the_address_of_trainings_responses_and_no_count_of_others():
    made = [
        StageSummary(stage, datetime.now(UTC), 1.0, "", {"rollouts": value})
        for stage, value in {"difficulty": 577, "training": "s3://bucket/rlvr-runs/abc/rollouts"}.items()
    ]
    assert make_stages_json(made, "this")["responses"] == "s3://bucket/rlvr-runs/abc/rollouts"
    assert "responses" not in make_stages_json(made[:1], "this")
