"""The questions of somebody who was not there, answered from the text of a report."""

import re

import pytest

from tasks.reporting.page import render
from tests.reporting.reader import Reader
from tests.reporting.synthetic_run import report_inputs


@pytest.fixture(scope="module")
def reader():
    return Reader(render(report_inputs()))


@pytest.mark.long
def test_with_what_data(reader):
    domain, source, prompts, *_ = reader.row("math", "products")
    assert (domain, source, int(prompts)) == ("math", "products", 38)
    assert "name: products" in reader.text("Data: ")


def test_from_which_model(reader):
    assert reader.after("RLVR quickstart") == ["trained from SmolLM2-135M-Instruct"]


def test_for_how_long_and_at_what_cost(reader):
    assert reader.after("Time of all stages") == ["10 min 37 s", "8 min 04 s in this run, the rest came from the cache"]
    assert reader.after("Cost") == [
        "0.7 GPU hours, 0.35 core hours",  # 632 s of 4 GPUs, 637 s of 2 cores
        "0.54 GPU hours, 0.27 core hours in this run",
    ]


def test_how_much_better_and_how_sure(reader):
    assert reader.after("Held-out pass rate") == ["23.4% → 44.5%"]
    assert "+21.1 points (+12.0 to +30.0), p < 0.001" in reader.lines
    assert any("The interval of the gain lies above zero" in line for line in reader.lines)


def test_which_stages_were_cached(reader):
    cached = {"sourcing": True, "difficulty": True, "mixing": True, "training": False, "evaluation": False}
    assert reader.stages() == cached


def test_how_to_run_it_again(reader):
    assert reader.text("To run it again").startswith("rlvr run --data RUN/data.yaml")


def test_from_what_and_where_an_output_was_made(reader):
    _, _, made_from, by, image = reader.row("policy")
    assert re.fullmatch(r"mixture \w{12}, model \w{12}", made_from)
    assert re.fullmatch(r"spec \w{12}, code \w{12}, seed 17", by)
    assert image == "registry.example/team/rlvr-training:v1"
