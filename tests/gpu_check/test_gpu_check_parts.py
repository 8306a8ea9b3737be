"""The parts of `make gpu-check`: which checks run, and what is left of a part that hangs, crashes or cannot run."""

import json
import pkgutil
import subprocess
import sys

import pytest
import torch

from tasks.config.loading import SpecError
from tasks.failures import MistakeError
from tasks.gpu_check import launching, page
from tasks.gpu_check.imports import run_for_last_line
from tasks.gpu_check.launching import collect_machine_facts, launch, read_results, write_all
from tasks.gpu_check.learning import LearnerChecks
from tasks.gpu_check.part import UNFINISHED, PartTask, run_part
from tasks.gpu_check.parts import PARTS, VARIANTS, selected, variant_check
from tasks.gpu_check.results import Result, SkippedError, run_check
from tasks.gpu_check.rewards import share_of_ones
from tasks.gpu_check.sizes import FULL, TINY
from tasks.gpu_check.variants import VariantChecks
from tests.paths import ROOT

LEARNER = list(PARTS["B"].checks)
VARIANT_CHECKS = [variant_check(name) for name in VARIANTS]


def task_of(folder, part="B", checks=("attention", "policy", "training")):
    return PartTask(part, list(checks), True, folder, folder, 60)


@pytest.mark.parametrize(
    ("only", "variants", "expected"),
    [
        (None, None, {letter: list(part.checks) for letter, part in PARTS.items()}),
        (["B"], None, {"B": LEARNER}),
        (["time sharing", "policy", "attention"], None, {"B": ["attention", "policy"], "D": ["time sharing"]}),
        (["A", "B"], [], {"A": ["imports", "operators"], "B": [*LEARNER[: -len(VARIANTS)]]}),
        (["attention"], ["plain"], {"B": ["attention", "variant plain"]}),
        (["variant plain"], None, {"B": ["variant plain"]}),
        (["B"], ["plain"], {"B": [name for name in LEARNER if name not in VARIANT_CHECKS] + ["variant plain"]}),
    ],
)
def test_checks_are_chosen_by_name_and_by_letter_in_the_order_of_the_parts(only, variants, expected):
    chosen = selected(only, variants)
    assert chosen == expected
    assert list(chosen) == sorted(chosen)


@pytest.mark.parametrize(
    ("option", "names", "meant"),
    [("--only", ["A", "polcy"], "(did you mean 'policy'?)"), ("--variants", ["compile"], "(did you mean 'compiled'?)")],
)
def test_an_unknown_name_is_one_sentence_with_the_nearest(option, names, meant):
    with pytest.raises(SpecError) as error:
        selected(*((names, None) if option == "--only" else (None, names)))
    assert str(error.value).startswith(f"{option}: no ")
    assert meant in str(error.value)


@pytest.mark.long
def test_an_unknown_name_on_the_command_line_is_an_error_without_a_traceback():
    command = [sys.executable, "-m", "tasks.gpu_check", "--only", "polcy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: --only: no check or part is called 'polcy'")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [("liger", "no liger-kernel"), ("compiled", "no g++"), ("fused", "no g++"), ("fa4", "no flash-attn-4")],
)
def test_a_variant_that_cannot_run_here_is_skipped(tmp_path, monkeypatch, name, reason):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    check = VariantChecks(TINY, tmp_path, LearnerChecks(TINY, tmp_path)).make_check(name)
    result = run_check(name, check)
    assert (result.status, result.reason) == ("skipped", reason)


def test_a_variant_that_does_not_fit_into_the_gpus_memory_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (80e9, 80e9))
    checks = VariantChecks(FULL, tmp_path, LearnerChecks(FULL, tmp_path))
    checks._check_memory(checks._learner.config(FULL.row))
    with pytest.raises(SkippedError, match="needs 85 GB by plan, and 80 GB are free"):
        checks._check_memory(checks._learner.config(FULL.row, more=VARIANTS["every-2nd-layer"].learner))


def test_a_python_without_torch_is_one_sentence(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(MistakeError, match=r"torch does not load in .*python, .*: ModuleNotFoundError: No module"):
        collect_machine_facts()


def test_every_check_has_one_name():
    names = [name for part in PARTS.values() for name in part.checks]
    assert len({*names, *PARTS}) == len(names) + len(PARTS)


def test_a_part_whose_packages_are_missing_is_skipped_without_a_process(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("vllm", "ray") else name)
    monkeypatch.setattr(launching.subprocess, "Popen", None)
    [result] = launch(task_of(tmp_path, "E", PARTS["E"].checks))
    assert (result.status, result.reason) == ("skipped", "no vLLM, no Ray")


def test_measurements_are_in_the_file_while_a_check_runs(tmp_path):
    task, seen = task_of(tmp_path), []

    def first(findings):
        findings.figures["step, s"] = 2.5
        seen.extend(json.loads(task.results.read_text()))

    def second(findings):
        seen.extend(json.loads(task.results.read_text()))
        raise RuntimeError("no")

    run_part(task, {"attention": first, "policy": second})
    running, done, next_one = seen
    assert (running["figures"], running["reason"]) == ({"step, s": 2.5}, UNFINISHED)
    assert (done["name"], done["status"], done["figures"]) == ("attention", "passed", {"step, s": 2.5})
    assert (next_one["name"], next_one["reason"]) == ("policy", UNFINISHED)
    assert [row["status"] for row in json.loads(task.results.read_text())] == ["passed", "failed"]


def test_what_a_stopped_part_has_measured_stays(tmp_path):
    task = task_of(tmp_path)
    rows = [Result("attention", "passed", 1.0, {"a": 1}, ""), Result("policy", "failed", 0.0, {"b": 2}, UNFINISHED)]
    task.results.write_text(json.dumps([vars(row) for row in rows]))
    results = read_results(task, "The part was stopped.")
    assert [(one.name, one.status, one.reason) for one in results] == [
        ("attention", "passed", ""),
        ("policy", "failed", "The part was stopped."),
        ("training", "skipped", "The part ended before."),
    ]
    assert results[1].figures == {"b": 2}


def test_a_part_that_ends_before_its_first_check_has_failed(tmp_path):
    results = read_results(task_of(tmp_path), "The process was killed by SIGSEGV.")
    assert [one.status for one in results] == ["failed", "skipped", "skipped"]
    assert results[0].reason == "The process was killed by SIGSEGV."


@pytest.mark.long
def test_every_part_has_a_function_that_makes_its_checks():
    assert all(callable(pkgutil.resolve_name(part.source)) for part in PARTS.values())


STOPPED = """
import sys
from pathlib import Path
from tasks.gpu_check.launching import launch
from tasks.gpu_check.part import PartTask
from tasks.verifiers.process_limits import list_children

folder = Path(sys.argv[1])
[result] = launch(PartTask("A", ["imports"], True, folder, folder, float(sys.argv[2])))
assert not list_children(), list_children()
print(result.status, result.reason)
"""


@pytest.mark.long
def test_a_part_that_takes_too_long_is_killed_with_its_children(tmp_path):
    command = [sys.executable, "-c", STOPPED, str(tmp_path), "1.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("failed The part was stopped after 1.5 s, its time limit; see ")


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print('x'); print('1.0, 2 s')", ("1.0, 2 s", "")),
        ("import os; os.abort()", ("", "it ended with -6")),
        ("raise ImportError('undefined symbol: x')", ("", "ImportError: undefined symbol: x")),
    ],
)
def test_a_library_that_does_not_load_is_a_reason(program, expected):
    assert run_for_last_line((program,), 60) == expected


def test_the_reward_is_the_share_of_ones():
    texts = ["w11 w2", "w1", "none"]
    assert share_of_ones([[{"role": "assistant", "content": text}] for text in texts]) == [2 / 3, 1, 0]


RESULTS = {
    "A": [Result("imports", "passed", 20.0, {"torch": "2.11.0, 2.1 s"}, "")],
    "B": [
        Result("attention", "passed", 3.0, {"attention": "varlen", "dq: relative error": 0.002}, ""),
        Result("policy", "passed", 2.0, {"gradient of layer 1: relative error": 0.003}, ""),
        Result("training", "failed", 31.0, {"trained tokens/s": 21342.3, "rows of a step": 2}, "Too much | memory."),
    ],
    "E": [Result("pipeline", "skipped", 0.0, {}, "no vLLM")],
}


def results_file(folder, gpu="NVIDIA H200"):
    write_all(folder / "gpu.json", {"gpu": gpu, "torch": "2.11.0", "python": "3.12.1"}, RESULTS)
    return folder / "gpu.json"


def test_the_page_has_the_table_between_its_markers(tmp_path):
    text = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    (tmp_path / "page.md").write_text(text)
    for _ in range(2):
        page.main([str(results_file(tmp_path)), str(tmp_path / "page.md")])
        assert (tmp_path / "page.md").read_text().splitlines() == [
            "before",
            page.BEGIN,
            "On one NVIDIA H200 (torch 2.11.0; 56 s in all):",
            "",
            "| | check | s | measured |",
            "|---|---|---|---|",
            "| A | imports | 20 | torch: 2.11.0, 2.1 s |",
            "| B | attention | 3 | attention: varlen |",
            "| B | policy | 2 | passed |",
            "| B | training | 31 | failed: Too much / memory. trained tokens/s: 21,342 |",
            "| E | pipeline | 0 | skipped: no vLLM |",
            page.END,
            "after",
        ]


def test_the_documents_have_the_markers():
    text = (ROOT / page.PAGE).read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1


def test_a_page_without_markers_and_results_without_a_gpu_are_refused(tmp_path):
    (tmp_path / "page.md").write_text("text")
    with pytest.raises(MistakeError, match="must contain the lines"):
        page.write_page(results_file(tmp_path), tmp_path / "page.md")
    with pytest.raises(MistakeError, match="measured without a GPU"):
        page.format_page_table(results_file(tmp_path, "none"))
    with pytest.raises(MistakeError, match="must be a file that make gpu-check"):
        page.format_page_table(tmp_path / "page.md")


def test_the_summary_names_what_did_not_pass():
    lines = page.summary(RESULTS).splitlines()
    assert lines[2].split()[:1] == ["B"]
    assert lines[2].split()[-4:] == ["2", "1", "0", "36.0"]
    assert "    failed: training: Too much | memory." in lines
    assert "    skipped: pipeline: no vLLM" in lines
