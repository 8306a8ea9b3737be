"""The cost of a run: hours, and money where a price is given, the judge's own included."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tasks.reporting import formats
from tasks.reporting.page import render
from tasks.reporting.sections import cost
from tasks.tables.schemas import StageSummary
from tests.reporting.reader import Reader
from tests.reporting.synthetic_run import report_inputs


def stage(seconds, *, gpus=0.0, judge=0.0, run="this"):
    facts = {"verifiers": {"judge/cost": judge}} if judge else {}
    return StageSummary("a stage", datetime.now(UTC), seconds, "", facts, run=run, cores=1.0, gpus=gpus)


def test_the_price_of_gpu_hours_and_the_judges_cost_are_summed():
    """Half an hour of 8 GPUs at 2.5, and 1.25 for the judge, of which an earlier run paid 1."""
    stages = [stage(1800, gpus=8, judge=0.25), stage(60, judge=1.0, run="earlier")]
    whole = cost(stages, None, 2.5)
    assert (whole.total, whole.judging) == (pytest.approx(4 * 2.5 + 1.25), 1.25)
    assert cost(stages, "this", 2.5).total == pytest.approx(4 * 2.5 + 0.25)
    assert formats.cost(whole) == "11.25 by the given prices, 1.25 of it for judging; 4 GPU hours, 0.52 core hours"


def test_without_a_price_gpu_hours_have_no_total():
    assert cost([stage(3600, gpus=1, judge=1.0)]).total is None
    assert cost([stage(3600)]).total is None
    assert cost([stage(3600, judge=1.5)]).total == 1.5  # nothing but the judge costs anything
    assert cost([stage(3600, gpus=2)], None, 0.0).total == 0


@pytest.mark.parametrize(("amount", "text"), [(1234.5, "1,234.50"), (0.0042, "0.0042"), (0, "0.00")])
def test_amounts_of_money(amount, text):
    assert formats.money(amount) == text


@pytest.mark.long
def test_the_reports_tile_has_the_total():
    reader = Reader(render(replace(report_inputs(), price_per_gpu_hour=3.0)))
    whole, here = reader.after("Cost")
    assert whole == "2.11 by the given prices; 0.7 GPU hours, 0.35 core hours"  # 632 s of 4 GPUs
    assert here.startswith("1.61 by the given prices; 0.54 GPU hours")  # 484 s
