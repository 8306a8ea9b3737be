"""Each benchmark that ships makes questions of the published rows, and verdicts that are worked by hand."""

import base64
import json
import pickle
import re
import zlib
from statistics import fmean

import pytest

from data_specs.transforms import contest_problem
from tasks.evaluation.win_rates import read_length_control, read_text
from tasks.failures import MistakeError
from tasks.inputs.benchmarks import BenchmarkFile, find_benchmark
from tasks.sourcing.hub import COMMIT
from tasks.sourcing.loader_specs import JsonlLoader
from tasks.sourcing.loaders import pin
from tasks.sourcing.prompts import build_prompts
from tasks.verifiers import VerifierPool, VerifiersConfig
from tests.hub.benchmarks import livecodebench
from tests.hub.fixture import stand_in_hub  # noqa: F401 - a fixture
from tests.paths import ROOT
from tests.verifiers.chat.fake_endpoint import FakeEndpoint, graded, likeliest, scripted

COUNTS = {
    "aime_2024": 30,
    "aime_2025": 30,
    "alpaca_eval_2": 805,
    "gsm8k": 1_319,
    "humaneval": 164,
    "humaneval_plus": 164,
    "ifbench": 300,
    "ifeval": 541,
    "livecodebench_v3_olmo3": 612,
    "livecodebench_v6": 175,
    "math_500": 500,
    "mbpp": 500,
    "mbpp_plus": 378,
    "minerva_math": 272,
    "omega_olmo3": 500,
    "rlvr_multi_subject": 6_000,
}
"""Benchmarks with questions of their own, and the number that their cards count."""

OLMO_3 = {
    "aime_2024": 32,
    "aime_2025": 32,
    "alpaca_eval_2": 1,
    "gsm8k": 1,
    "humaneval_plus": 10,
    "ifbench": 1,
    "ifeval": 1,
    "math_500": 1,
    "mbpp_plus": 10,
    "minerva_math": 1,
    "rlvr_multi_subject": 1,
}
"""Benchmarks that ship in Olmo 3's protocol as well, and its responses to a question: arXiv:2512.13961, table 16."""

ALONE = {"omega_olmo3": 1, "livecodebench_v3_olmo3": 10}
"""Benchmarks that ship in Olmo 3's protocol alone, and its responses to a question."""


def block(program):
    return f"Here it is.\n```python\n{program}\n```\n"


READS = "a, b = map(int, input().split())\nprint({})"
METHOD = (
    "from typing import List\n\nclass Solution:\n    def above(self, numbers: List[int], limit: int) -> List[int]:\n"
)

RESPONSES = {
    "aime_2024": [
        {r"So \boxed{33}.": 1, r"\boxed{033}": 1, r"\boxed{34}": 0, "Who knows.": 0},
        {r"\boxed{204}": 1},
    ],
    "aime_2025": [{r"\boxed{70}": 1, r"\boxed{7}": 0}, {r"\boxed{336}": 1, r"\boxed{336^\circ}": 1}],
    "alpaca_eval_2": [{"A good answer.": 1, "An answer.": 0}],
    "math_500": [{r"At \boxed{(1, \pi/2)}.": 1, r"\boxed{(\pi/2, 1)}": 0}, {r"\boxed{\frac{3}{2}}": 1}],
    "minerva_math": [
        {r"\boxed{4.5 \times 10^{33}}": 1, r"\boxed{4.5e32}": 0},
        {r"\boxed{2x}": 1, r"\boxed{x^2}": 0},
    ],
    "gsm8k": [{r"\boxed{3}": 1, r"\boxed{8}": 0}, {r"\boxed{8}": 1}, {r"\boxed{4}": 0}, {r"\boxed{8.0}": 1}],
    "omega_olmo3": [{r"\boxed{6}": 1, r"\boxed{12}": 0}, {r"\boxed{1}": 1, r"\boxed{2}": 0}],
    "humaneval": [
        {
            block("def add(a, b):\n    return a + b"): 1,
            block("def add(a, b):\n    return 3"): 0,  # the first of its two tests alone
            block("def sum(a, b):\n    return a + b"): 0,
            block("def add(a, b):\n    return a + b") + block("print(add(1, 2))"): 1,  # a call of it after it
        },
        {block("def less(a, b):\n    return a - b"): 1},
    ],
    "humaneval_plus": [
        {
            block("def add(a, b):\n    return a + b"): 1,
            block("def add(a, b):\n    return a + b if b < 119 else 0"): 0,  # all inputs but the last
            block("def sum(a, b):\n    return a + b"): 0,
        },
        {
            block("def half(a, b):\n    return a / 2 + b / 2"): 1,
            block("def half(a, b):\n    return (a + b) / 2 + 1e-9"): 1,  # as in EvalPlus, floats are close
            block("def half(a, b):\n    return (a + b) // 2"): 0,
        },
    ],
    "mbpp_plus": [
        {block("def larger(a, b):\n    return max(a, b)"): 1, block("def larger(a, b):\n    return b"): 0},
        {
            block("import math\n\ndef hypotenuse(a, b):\n    return math.hypot(a, b)"): 1,
            block("def hypotenuse(a, b):\n    return (a * a + b * b) ** 0.5"): 1,
            block("def hypotenuse(a, b):\n    return 5.0"): 0,  # the test of its prompt alone
        },
    ],
    "livecodebench_v3_olmo3": [{block(READS.format("a + b")): 1, block(READS.format("3")): 0}] * 3,
    "mbpp": [
        {block("def add(a, b):\n    return a + b"): 1, block("def add(a, b):\n    return 1"): 0},
        {block("def larger(a, b):\n    return max(a, b)"): 1},
    ],
    "livecodebench_v6": [
        {block(READS.format("a + b")): 1, block(READS.format("3")): 0},  # the public test alone
        {
            block(f"{METHOD}        return [n for n in numbers if n > limit]"): 1,
            block(f"{METHOD}        return numbers[1:]"): 1,
            block(f"{METHOD}        return tuple(numbers[1:])"): 1,  # as in its checker
            block(f"{METHOD}        return [5]"): 0,  # the public test alone
        },
    ],
    "ifeval": [{"It rains all day": 1, "It rains, and rains": 0}, {"The sun is up": 1, "The moon is up": 0}],
    "ifbench": [
        {"I saw 3 dogs and 2 cats.": 1, "I saw 3 dogs.": 0},
        {"Here are 2:\nI saw 7 stars.": 0, "I saw 7 stars.": 1},  # loosely the first passes as well
    ],
    "rlvr_multi_subject": [{"It is Paris.": 1, "It is Rome.": 0}],
}
"""Responses to the stand-in's questions, in their order, and whether they pass."""

RATES = {
    "aime_2024": (2 / 4 + 1) / 2,
    "aime_2025": (1 / 2 + 1) / 2,
    "alpaca_eval_2": 1 / 2,
    "math_500": (1 / 2 + 1) / 2,
    "minerva_math": 1 / 2,
    "gsm8k": (1 / 2 + 1 + 0 + 1) / 4,
    "omega_olmo3": 1 / 2,
    "humaneval": (2 / 4 + 1) / 2,
    "humaneval_plus": (1 / 3 + 2 / 3) / 2,
    "mbpp": (1 / 2 + 1) / 2,
    "mbpp_plus": (1 / 2 + 2 / 3) / 2,
    "livecodebench_v3_olmo3": 1 / 2,
    "livecodebench_v6": (1 / 2 + 3 / 4) / 2,
    "ifeval": 1 / 2,
    "ifbench": 1 / 2,
    "rlvr_multi_subject": 1 / 2,
}
"""Means over questions of the share of responses that pass."""


@pytest.fixture(scope="module")
def pool():
    """Verifiers, and a judge that grades the right answer first, and prefers a good one."""
    grades = scripted(graded(10), graded(1))

    def reply(request):
        if not request.get("logprobs"):
            return grades(request)
        text = request["messages"][1]["content"]
        first = text.find("A good answer.") if "A good answer." in text else text.find("A plain answer.")
        name = "m" if first < text.find('"model_identifier": "M"') else "M"
        return likeliest({name: 0.8, "m" if name == "M" else "M": 0.2})

    with FakeEndpoint(reply) as endpoint:
        config = VerifiersConfig.model_validate({"judge": {"url": endpoint.url, "model": "judge"}})
        with VerifierPool(1, config) as opened:
            yield opened


def questions(name, **changes):
    benchmark = find_benchmark(name)
    return build_prompts(pin(benchmark.source.model_copy(update=changes)), benchmark.max_prompt_chars)


def test_every_benchmark_is_here():
    shipped = {path.stem for path in BenchmarkFile.folder.glob("*.yaml")}
    assert shipped == COUNTS.keys() | {f"{name}_olmo3" for name in OLMO_3}


def test_the_page_on_evaluation_has_every_benchmark_and_its_protocols():
    page = (ROOT / "docs" / "evaluation.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| `")]
    listed = {name: row[4:6] for row in rows if len(row) == 7 for name in re.findall(r"`(\w+)`", row[1])}
    assert listed.keys() == COUNTS.keys()
    assert {name for name, (_, olmo) in listed.items() if olmo} == OLMO_3.keys() | ALONE.keys()
    assert {name for name, (published, _) in listed.items() if not published} == ALONE.keys()


@pytest.mark.parametrize("name", OLMO_3)
def test_olmo_3s_protocol_asks_the_same_questions_with_the_sampling_of_its_table(name):
    published, olmo = find_benchmark(name), find_benchmark(f"{name}_olmo3")
    assert olmo.name == f"{published.name}-olmo3"
    changed = {"name": olmo.name, "source": published.source.model_copy(update={"name": olmo.name})}
    sampling = {"samples": OLMO_3[name], "max_tokens": 32_768, "temperature": 0.6, "top_p": 0.95}
    changed["sampling"] = published.sampling.model_copy(update=sampling)
    assert olmo == published.model_copy(update=changed)
    assert olmo.sampling != published.sampling


@pytest.mark.parametrize(("name", "samples"), ALONE.items())
def test_sets_that_olmo_3_alone_is_evaluated_on_have_its_sampling(name, samples):
    benchmark = find_benchmark(name)
    sampling = benchmark.sampling
    assert benchmark.name.endswith("-olmo3")
    assert (sampling.samples, sampling.max_tokens, sampling.temperature, sampling.top_p) == (samples, 32_768, 0.6, 0.95)


@pytest.mark.parametrize("name", COUNTS)
def test_a_benchmark_has_the_count_of_its_card_and_a_pinned_source(name):
    benchmark = find_benchmark(name)
    assert benchmark.rows == COUNTS[name]
    assert benchmark.source.name == benchmark.name
    assert benchmark.sampling.seed is not None
    loader = benchmark.source.loader
    files = loader.path if isinstance(loader, JsonlLoader) else loader.files
    address = files[0] if isinstance(files, list) else files
    revision = loader.revision if address is None else address.split("@")[1].split("/")[0]
    assert COMMIT.fullmatch(revision) or (name, revision) == ("rlvr_multi_subject", "main")
    assert benchmark.card.endswith(loader.dataset if address is None else address.split("@")[0].split("hf://")[1])


@pytest.mark.long
@pytest.mark.usefixtures("stand_in_hub")
@pytest.mark.parametrize("name", COUNTS)
def test_verdicts_on_a_benchmarks_questions_are_those_worked_by_hand(name, pool):
    made = questions(name)
    assert made.counts["set_aside"] == made.counts["duplicates"]
    verdicts = [
        [
            pool.submit(row["verifier"], text, json.loads(row["ground_truth"]), row["messages"]).result()
            for text in responses
        ]
        for row, responses in zip(made.prompts.to_pylist(), RESPONSES[name], strict=False)
    ]
    assert not [score.error for scores in verdicts for score in scores if score.error]
    assert [[score.passed for score in scores] for scores in verdicts] == [
        [bool(passes) for passes in responses.values()] for responses in RESPONSES[name]
    ]
    assert fmean(fmean(score.passed for score in scores) for scores in verdicts) == pytest.approx(RATES[name])


@pytest.mark.long
@pytest.mark.usefixtures("stand_in_hub")
def test_the_data_of_alpaca_evals_length_control_is_read_from_the_hub():
    path = find_benchmark("alpaca_eval_2").length_control
    control = read_length_control(read_text(path), path)
    assert control.difficulties == {0: 0.5}
    assert (control.baseline.preferences.tolist(), control.baseline.differences.tolist()) == ([0.6], [-1])
    with pytest.raises(MistakeError, match=r"nowhere.csv: length_control cannot be read"):
        read_text("nowhere.csv")


@pytest.mark.usefixtures("stand_in_hub")
def test_a_prompt_of_mbpp_plus_has_the_assertions_of_mbpp_and_none_of_the_further_tests():
    row = questions("mbpp_plus").prompts.to_pylist()[0]
    assert row["messages"][-1]["content"].endswith("\nYour code must pass these tests:\nassert larger(1, 2) == 2")
    [script] = json.loads(row["ground_truth"])["tests"]
    assert "inputs = " in script
    assert "inputs = " not in row["messages"][-1]["content"]


def rows_of_livecodebench():
    return [json.loads(line) for line in livecodebench().files["test6.jsonl"].splitlines()]


def test_a_contests_problem_has_its_public_tests_before_the_private_ones():
    by_input, by_call = map(contest_problem, rows_of_livecodebench())
    assert [(case["input"], case["output"]) for case in by_input["tests"]] == [("1 2\n", "3\n"), ("5 7\n", "12\n")]
    assert by_call["tests"] == [
        "assert Solution().above([1, 5], 3) in ([5], (5,))",
        "assert Solution().above([], 0) in ([], ())",
    ]
    assert "standard input" in by_input["question_content"]
    assert by_call["question_content"].endswith("        \n```")


class Runs:
    """An object whose pickle calls a function where it is read."""

    def __reduce__(self):
        return (print, ("a pickle ran",))


def test_a_pickle_that_would_run_something_is_refused(capsys):
    row, _ = rows_of_livecodebench()
    text = base64.b64encode(zlib.compress(pickle.dumps(Runs()))).decode()
    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.print"):
        contest_problem(row | {"private_test_cases": text})
    assert capsys.readouterr().out == ""
