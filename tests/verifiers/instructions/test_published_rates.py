"""IFEval's and IFBench's four rates, as an evaluation has them, are those of the packages on the same responses.

The questions are those that the benchmarks which ship make of the published rows. IFBench's responses are the published
ones, and IFEval's are made by simple programs, some of which follow the instructions.
"""

import contextlib
import importlib
import io
import json
from statistics import fmean

import pytest

from tasks.evaluation.comparison import compare
from tasks.inputs.benchmarks import find_benchmark
from tasks.rollouts.rollout_cache import Verdict
from tasks.sourcing.loader_specs import JsonlLoader
from tasks.sourcing.prompts import build_prompts
from tasks.tables.parquet import build_table
from tasks.tables.schemas import EVALUATION_ROLLOUTS
from tasks.verifiers import instructions

pytestmark = [pytest.mark.long, pytest.mark.complete]

pytest_plugins = ("tests.verifiers.instructions.published_checkers",)

FOUR = ("pass_rate", "prompt_loose", "instruction_strict", "instruction_loose")
OTHERWISE = {
    # What is left of the response without its first and last line has no letter: theirs takes it for any language.
    "ifeval": [(key, "loose", "language:response_language") for key in (1582, 2596, 3335)],
    # Sentences are counted by NLTK, as AI2 does since.
    "ifbench": [("163", way, "ratio:sentence_type") for way in ("strict", "loose")],
}
"""The verdicts (row, criterion, constraint) that the packages hold followed, and ours, with what was mended, do not."""
PUNCTUATED = "The sun is up, and we walk along the sea until the day is over."


def follow(name, given, text):
    """A text that follows an instruction of IFEval, where that takes one line."""
    words = {key: value for key, value in given.items() if value is not None}
    programs = {
        "punctuation:no_comma": lambda: text.replace(",", ""),
        "change_case:english_lowercase": text.lower,
        "change_case:english_capital": text.upper,
        "change_case:capital_word_frequency": lambda: f"{text} VERY GOOD",
        "startend:quotation": lambda: f'"{text}"',
        "startend:end_checker": lambda: f"{text} {words['end_phrase']}",
        "detectable_format:title": lambda: f"<<A title>>\n{text}",
        "detectable_format:json_format": lambda: json.dumps({"text": text}),
        "detectable_format:constrained_response": lambda: "My answer is yes.",
        "detectable_format:number_highlighted_sections": lambda: f"{text} {'*one part* ' * words['num_highlights']}",
        "detectable_format:number_bullet_lists": lambda: "\n".join(["* a point"] * words["num_bullets"]),
        "detectable_content:number_placeholders": lambda: f"{text} {'[name] ' * words['num_placeholders']}",
        "detectable_content:postscript": lambda: f"{text}\n{words['postscript_marker']} Bye",
        "keywords:existence": lambda: f"{text} {' '.join(words['keywords'])}",
        "keywords:frequency": lambda: " ".join([text, *[words["keyword"]] * words["frequency"]]),
        "combination:two_responses": lambda: f"{text}\n******\n{text} Again!",
        "combination:repeat_prompt": lambda: f"{words['prompt_to_repeat']}\n{text}",
        "length_constraints:number_words": lambda: " ".join([text] * (words["num_words"] // 10)),
        "length_constraints:number_sentences": lambda: " ".join([text] * words["num_sentences"]),
        "length_constraints:number_paragraphs": lambda: "\n***\n".join([text] * words["num_paragraphs"]),
    }
    return programs.get(name, lambda: text)()


def answered(row, number):
    """A response: one that tries, one that greets before it tries, one whose tries are marked, or the prompt itself."""
    if number % 4 == 3:
        return row["prompt"].strip()
    text = PUNCTUATED
    for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
        text = follow(name, given, text)
    return {0: text, 1: f"Sure, here you are:\n{text}", 2: f"**{text}**"}[number % 4].strip()


def ours(name, path, responses, chosen):
    """The four rates of the chosen rows, through the benchmark's file, the verifier and the comparison."""
    benchmark = find_benchmark(name)
    source = benchmark.source.model_copy(update={"loader": JsonlLoader(kind="jsonl", path=str(path))})
    made = build_prompts(source, benchmark.max_prompt_chars).prompts
    asked = [row for row in made.to_pylist() if row["row"] in chosen]
    rows = [
        {
            "benchmark": benchmark.name,
            "prompt_id": row["prompt_id"],
            "sample": 0,
            "response": "",
            "num_tokens": 1,
            "finish_reason": "stop",
            "policy": "given",
            "answer": None,
            "answer_class": None,
            **Verdict.from_score(
                instructions.judge(responses[row["row"]], json.loads(row["ground_truth"]), row["messages"])
            )._asdict(),
        }
        for row in asked
    ]
    tables = {"given": build_table(rows, EVALUATION_ROLLOUTS, "rollouts")}
    prompts = made.filter([row["row"] in chosen for row in made.to_pylist()])
    found = compare(tables, {benchmark.name: prompts}, "given").table.to_pylist()
    assert len(asked) == len(chosen)
    return {row["metric"]: row["value"] for row in found if row["metric"] in FOUR}


def drawn(row):
    """Whether a package draws an argument of the row's, as it takes the one that is given for none."""
    return any(given.get("n_start") == 0 or not (given.get("letter") or "a").isalpha() for given in row["kwargs"])


def rates(benchmark, rows, followed):
    """The four rates of the lists of what is followed, once the verdicts that are known to differ are ours."""
    for key, way, name in OTHERWISE[benchmark]:
        [number] = [number for number, row in enumerate(rows) if row["key"] == key]
        place = rows[number]["instruction_id_list"].index(name)
        assert followed[way][number][place], (key, way, name)
        followed[way][number][place] = False
    return {
        "pass_rate": fmean(map(all, followed["strict"])),
        "prompt_loose": fmean(map(all, followed["loose"])),
        "instruction_strict": fmean(one for listed in followed["strict"] for one in listed),
        "instruction_loose": fmean(one for listed in followed["loose"] for one in listed),
    }


def test_ifevals_rates_are_those_of_lm_eval(nltk_data, lm_eval, rows, data_file):
    published = importlib.import_module("lm_eval.tasks.ifeval.utils")
    everything = rows("ifeval_prompts.jsonl")
    responses = [answered(row, number) for number, row in enumerate(everything)]
    chosen = [number for number, row in enumerate(everything) if not drawn(row)]
    asked = [everything[number] for number in chosen]
    assert (len(everything), len(asked)) == (541, 539)
    results = [published.process_results(everything[number], [responses[number]]) for number in chosen]
    followed = {way: [list(result[f"inst_level_{way}_acc"]) for result in results] for way in ("strict", "loose")}
    aggregated = published.agg_inst_level_acc(followed["strict"])
    assert aggregated == pytest.approx(fmean(one for listed in followed["strict"] for one in listed))
    found = ours("ifeval", data_file("ifeval_prompts.jsonl"), responses, chosen)
    assert found == pytest.approx(rates("ifeval", asked, followed), abs=1e-12)
    assert 0.1 < found["pass_rate"] < found["prompt_loose"] < 0.9, "the responses tell the two criteria apart"


def test_ifbenchs_rates_are_those_of_its_package(nltk_data, nvidia, ifbench_rows, ifbench_file):
    published = importlib.import_module("ifbench.evaluation_lib")
    responses = [row["response"].strip() for row in ifbench_rows]
    chosen = [number for number, row in enumerate(ifbench_rows) if not drawn(row)]
    asked = [ifbench_rows[number] for number in chosen]
    assert (len(ifbench_rows), len(asked)) == (294, 293)
    outputs = {
        way: [
            judge(example(published, ifbench_rows[number]), {ifbench_rows[number]["prompt"]: responses[number]})
            for number in chosen
        ]
        for way, judge in (
            ("strict", published.test_instruction_following_strict),
            ("loose", published.test_instruction_following_loose),
        )
    }
    followed = {way: [list(output.follow_instruction_list) for output in made] for way, made in outputs.items()}
    for way, made in outputs.items():
        with contextlib.redirect_stdout(io.StringIO()):
            report = published.generate_report(made, way)
        assert report[f"{way}:prompt-level"] == pytest.approx(fmean(map(all, followed[way])))
    found = ours("ifbench", ifbench_file, responses, chosen)
    assert found == pytest.approx(rates("ifbench", asked, followed), abs=1e-12)


def example(published, row):
    """A row as the package of IFBench reads it, without the arguments that are null."""
    return published.InputExample(
        key=row["key"],
        prompt=row["prompt"],
        instruction_id_list=row["instruction_id_list"],
        kwargs=[{name: value for name, value in given.items() if value is not None} for given in row["kwargs"]],
    )
