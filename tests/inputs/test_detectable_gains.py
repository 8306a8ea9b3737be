"""The table of the smallest gains that an evaluation detects, before a run."""

import pytest

from tasks.config.loading import parse
from tasks.inputs.detectable_gains import format_detectable_gains
from tasks.inputs.files import DataFile, EvaluationFile
from tasks.statistics.assumptions import estimate_detectable_gain


def rows(data, evaluation):
    table = format_detectable_gains(parse(DataFile, data), parse(EvaluationFile, evaluation))
    return {" ".join(cells[:-3]): cells[-3:] for cells in map(str.split, table.splitlines()[2:])}


def with_heldout(tmp_path, heldout):
    file = tmp_path / "data.yaml"
    file.write_text(f"extends: quickstart\nmixture.heldout: {heldout}\n")
    return str(file)


def with_benchmarks(tmp_path, text):
    file = tmp_path / "evaluation.yaml"
    file.write_text(f"extends: quickstart\nengine.max_model_len: 65536\n{text}\n")
    return str(file)


def test_each_benchmark_has_the_gain_that_its_questions_and_samples_detect(tmp_path):
    found = rows(with_heldout(tmp_path, 50), with_benchmarks(tmp_path, "benchmarks: [aime_2024, math_500]"))
    samples = parse(EvaluationFile, "quickstart").sampling.samples
    aime_points, math_points = (f"{100 * estimate_detectable_gain(*asked):.1f}" for asked in ((30, 32), (500, 1)))
    assert found["held-out prompts"][:2] == [f"{20 + 6 + 4 + 50}", f"{samples}"], "three domains have their own number"
    [aime] = [cells for name, cells in found.items() if name.startswith("aime")]
    [mathematics] = [cells for name, cells in found.items() if name.startswith("math")]
    assert aime == ["30", "32", aime_points]
    assert mathematics == ["500", "1", math_points]


@pytest.mark.parametrize(
    ("heldout", "text", "name", "expected"),
    [
        (0.02, "", "held-out prompts", ["-", "4", "-"]),
        (8, "harness: [{name: mmlu, tasks: [mmlu]}]", "mmlu", ["-", "1", "-"]),
    ],
)
def test_questions_that_are_not_counted_yet_have_no_gain(tmp_path, heldout, text, name, expected):
    assert rows(with_heldout(tmp_path, heldout), with_benchmarks(tmp_path, text))[name] == expected


def test_a_limit_counts_and_a_filter_leaves_the_number_open(tmp_path):
    for option, questions in (("source.limit: 40", "40"), ("source.where: {answer: 4}", "-")):
        benchmark = tmp_path / "few.yaml"
        benchmark.write_text(f"extends: gsm8k\nname: few\n{option}\n")
        evaluation = with_benchmarks(tmp_path, f"benchmarks: [{benchmark}]")
        assert rows("quickstart", evaluation)["few"][0] == questions
