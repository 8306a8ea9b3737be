"""The real pipeline on a tiny random model: real engine, real learner, real cache, in a process of its own."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tasks.flyte.local_run import INTERRUPTED
from tasks.tables.content_digest import file_digest
from tasks.tables.parquet import read_metadata, read_table
from tasks.tables.schemas import EVALUATION, GRADED, LEDGER, MIXTURE
from tests.paths import ROOT
from tests.programs import started
from tests.reporting.reader import Reader
from tests.tiny_model import build
from tests.training.mixtures import HAS_AN_E

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.engine,
    pytest.mark.timeout(1800),  # the fixture has five engines, one after the other
]

PYFLYTE = str(Path(sys.executable).with_name("pyflyte"))
STEPS = 3
GAIN = {"before": "", "after": "", "gain": "+"}
ENGINE = {"max_model_len": 256, "max_num_seqs": 32, "cpu_threads": 1}


class Laptop:
    """A home folder of its own, with the three files and the model of a tiny run."""

    def __init__(self, home: Path, steps: int = STEPS) -> None:
        self.home = home
        self.outputs = home / "outputs" / "latest"
        self.environment = os.environ | {
            "HOME": str(home),
            "RLVR_OUTPUTS": str(home / "outputs"),
            "RLVR_RUNS": str(home / "runs"),
            "FLYTE_SDK_LOCAL_SANDBOX": str(home / "flyte"),
        }
        prompts = [{"prompt": f"Write word number {i}.", **HAS_AN_E} for i in range(24)]
        (home / "prompts.jsonl").write_text("\n".join(json.dumps(row) for row in prompts))
        source = {
            "name": "letters",
            "domain": "precise_if",
            "verifier": "precise_if",
            "loader": {"kind": "jsonl", "path": str(home / "prompts.jsonl")},
            "columns": {"prompt": "prompt", "instruction_ids": "instruction_ids", "kwargs": "kwargs"},
        }
        self.data = {
            "name": "tiny",
            "sources": [source],
            "difficulty": {"max_mean_score": 1.0, "sampling": {"samples": 4, "max_tokens": 16}, "engine": ENGINE},
            "mixture": {"heldout": 4},
        }
        self.training = {
            "model": {"source": {"kind": "folder", "path": str(build(home / "model"))}},
            "steps": steps,
            "groups_per_step": 2,
            "sampling": {"samples": 4, "max_tokens": 16},
            "learner": {"micro_batch_tokens": 256, "cpu_threads": 1},
            "actors": {"engine": ENGINE},
            "checkpoint_every": 1,
        }
        self.evaluation = {"sampling": {"samples": 2, "max_tokens": 16, "seed": 5}, "engine": ENGINE}

    def command(self) -> list[str]:
        arguments = []
        for option in ("data", "training", "evaluation"):
            path = self.home / f"{option}.yaml"
            path.write_text(yaml.safe_dump(getattr(self, option)))
            arguments += [f"--{option}", str(path)]
        return [PYFLYTE, "run", "workflows/rlvr.py", "rlvr", *arguments]

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command or self.command(), cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        self.log = done.stderr
        return done.stdout

    def summary(self) -> dict:
        return json.loads((self.outputs / "summary.json").read_text())

    def processes(self) -> list[psutil.Process]:
        """Everything that runs with this home."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HOME") == str(self.home) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def metrics(self) -> list[str]:
        """The lines of its only training run, a step each."""
        (path,) = self.home.glob("runs/*/metrics.jsonl")
        return path.read_text().splitlines()


def until(holds, seconds):
    """Waits until `holds()`; an error when it takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not (result := holds()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.5)
    return result


@pytest.fixture(scope="module")
def laptop(tmp_path_factory):
    """After the one whole run of `make test`."""
    made = Laptop(tmp_path_factory.mktemp("laptop"))
    made.first_output = made.run()
    made.first = made.outputs.resolve()
    return made


def interrupt(laptop):
    """The metrics of a run that was interrupted after its first checkpoint."""
    with (laptop.home / "interrupted.txt").open("w") as printed:
        process = subprocess.Popen(
            laptop.command(),
            cwd=ROOT,
            env=laptop.environment,
            stdout=subprocess.DEVNULL,
            stderr=printed,
            start_new_session=True,
        )

    def checkpoint():
        assert process.poll() is None, "the run ended before its first checkpoint"
        return list(laptop.home.glob("runs/*/checkpoints/step_????????/state.json"))

    until(checkpoint, seconds=400)
    os.killpg(process.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches every process in the foreground
    process.wait(timeout=120)
    until(lambda: not laptop.processes(), seconds=60)
    printed = (laptop.home / "interrupted.txt").read_text()
    assert re.search(
        r"training: interrupted; \d+ of \d+ steps are in the checkpoint in \S+: the same command ", printed
    )
    assert INTERRUPTED in printed
    return laptop.metrics()


def test_the_run_ends_with_a_summary_a_report_and_a_policy(laptop):
    assert "pass rate" in laptop.first_output
    assert str(laptop.outputs.resolve() / "report.html") in laptop.first_output.replace("\n", "")
    summary = laptop.summary()
    assert 0 <= summary["before"] <= 1
    assert summary["gain_low"] <= summary["gain"] <= summary["gain_high"]
    assert summary["stage_order"][:2] == ["model", "model check"]
    mixture = read_table(laptop.outputs / "mixture.parquet", MIXTURE)
    heldout = read_table(laptop.outputs / "heldout.parquet", GRADED)
    assert not set(mixture["prompt_id"].to_pylist()) & set(heldout["prompt_id"].to_pylist())
    fates = read_table(laptop.outputs / "ledger.parquet", LEDGER).to_pandas()
    assert (fates[fates.fate == "trained"].groupby("step").size() == 2).all()
    figures = read_table(laptop.outputs / "evaluation.parquet", EVALUATION)
    compared = set(zip(figures["policy"].to_pylist(), figures["baseline"].to_pylist(), strict=True))
    assert compared == {("before", None), ("after", None), ("after", "before")}


def test_each_table_says_by_what_code_from_what_and_where_it_was_made(laptop):
    for path in laptop.outputs.glob("*.parquet"):
        footer = read_metadata(path)
        assert {"inputs", "spec", "spec_digest", "seed", "code_version", "image"} <= set(footer), path.name
        assert footer["image"] == f"this environment, Python {platform.python_version()}"
    ledger, mixture = (read_metadata(laptop.outputs / f"{name}.parquet") for name in ("ledger", "mixture"))
    assert ledger["inputs"]["mixture"] == file_digest(laptop.outputs / "mixture.parquet")
    assert (ledger["spec"]["training"]["steps"], mixture["seed"]) == (STEPS, 0)


@pytest.mark.complete
def test_after_ctrl_c_finished_stages_come_from_the_cache_and_training_goes_on_from_the_checkpoint(tmp_path):
    steps = 8  # some are left after the first checkpoint
    laptop = Laptop(tmp_path, steps)
    before = interrupt(laptop)
    first_output = laptop.run()
    cached = {name: stage["cached"] for name, stage in laptop.summary()["stages"].items()}
    assert cached["rollouts"]
    assert not cached["training"]
    after = laptop.metrics()
    assert [json.loads(line)["step"] for line in after] == list(range(steps))
    assert 0 < len(before) < steps
    assert after[0] == before[0]  # what was trained before is not trained again
    tokens = sum(json.loads(line)["trained_tokens"] for line in after)
    printed = " ".join(first_output.split())
    assert f"{steps} steps, {tokens:,.0f} tokens trained" in printed  # in all attempts
    done = re.search(r"training: (\d+) of 8 steps are done: resumed from the checkpoint in", laptop.log)
    assert done
    assert f"; resumed after step {done[1]}" in printed
    [folder] = laptop.home.glob("runs/*/rollouts")
    assert f"responses {folder}" in printed


def test_the_policy_loads_in_transformers(laptop):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(laptop.outputs / "policy")
    assert model.num_parameters() > 0
    assert AutoTokenizer.from_pretrained(laptop.outputs / "policy").chat_template


def test_the_report_alone_tells_a_reader_what_was_done_and_how_to_do_it_again(laptop, tmp_path):
    summary, reader = laptop.summary(), Reader((laptop.outputs / "report.html").read_text())
    assert reader.after("rlvr-flyte: tiny") == ["trained from model"]  # with what data, from which model
    mixture = read_table(laptop.outputs / "mixture.parquet", MIXTURE)
    assert reader.row("precise_if", "letters")[2] == str(mixture.num_rows)
    assert reader.after("Training") == [f"{STEPS} optimizer steps"]
    time, cost = reader.after("Time of all stages")[0], reader.after("Cost")[0]
    assert re.fullmatch(r"(\d+ min )?[\d.]+ s", time)
    assert re.fullmatch(r"[\d.]+ (GPU hours, [\d.]+ )?core hours", cost)
    assert float(cost.split(" ")[0]) > 0
    before, after, gain = (f"{100 * summary[name]:{sign}.1f}" for name, sign in GAIN.items())
    assert reader.after("Held-out pass rate") == [f"{before}% → {after}%"]
    low, high = (f"{100 * summary[name]:+.1f}" for name in ("gain_low", "gain_high"))
    assert any(line.startswith(f"{gain} points ({low} to {high}), p = ") for line in reader.lines)
    assert not any(reader.stages().values())

    for name in ("Data", "Training", "Evaluation"):
        (tmp_path / f"{name.lower()}.yaml").write_text(reader.text(f"{name}: "))
    program, *words = reader.text("To run it again").split()
    assert program == "rlvr"
    laptop.run(*started(program), *(word.replace("RUN", str(tmp_path)) for word in words))
    again = laptop.summary()
    assert all(stage["cached"] for stage in again["stages"].values())
    assert (again["before"], again["after"], again["gain"]) == (summary["before"], summary["after"], summary["gain"])


def examples():
    """The commands of the documents that run a part of the pipeline; `make test` runs those of a single task."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(page.read_text() for page in pages).replace("\\\n", " ")
    commands = re.findall(r"^((?:rlvr|pyflyte) run (?!--).*)$", text, re.MULTILINE)
    return [pytest.param(command, marks=() if " tasks/" in command else pytest.mark.complete) for command in commands]


@pytest.mark.parametrize("example", examples())
def test_the_examples_of_the_documents_run(laptop, example):
    other_mixture = {"seed": 4, "heldout": 4}
    files = {
        "data": laptop.data | {"mixture": other_mixture},
        "recipe": laptop.training,
        "evaluation": laptop.evaluation,
        "mixture": other_mixture,
        "base": laptop.training | {name: str(laptop.home / f"{name}.yaml") for name in ("data", "evaluation")},
        "experiment": {
            "name": "seeds",
            "recipe": str(laptop.home / "my_base.yaml"),
            "variants": {"as-it-is": {}, "another-seed": {"training": {"seed": 1}}},
        },
    }
    for name, content in files.items():
        (laptop.home / f"my_{name}.yaml").write_text(yaml.safe_dump(content))
    program, *words = example.replace("outputs/latest", str(laptop.first)).replace("my_", f"{laptop.home}/my_").split()
    laptop.run(*started(program), *words)
    if "experiment" not in example:
        assert " so far" not in laptop.log, "only the mixture is another: no long stage runs again"


def test_a_prompts_life_is_told_from_its_source_to_the_steps_that_trained_on_it(laptop):
    ledger = read_table(laptop.first / "ledger.parquet", LEDGER).to_pylist()
    trained = next(row for row in ledger if row["fate"] == "trained")
    identity, folder = trained["prompt_id"][:12], str(laptop.first)
    told = laptop.run(sys.executable, "-m", "tasks.commands", "trace", identity, "--run", folder)
    for words in ("from        row ", "difficulty  ", "mixture     to train on", f"trained at step {trained['step']}"):
        assert words in told
