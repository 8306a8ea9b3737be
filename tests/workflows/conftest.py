"""The pipeline with its own local cache, and with light stand-ins for the tasks that need an engine."""

import json
import shutil
import zlib
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from flytekit import current_context
from flytekit.core import local_cache
from flytekit.core.testing import task_mock
from flytekit.types.file import FlyteFile

from tasks.difficulty.rollout_tasks import SUMMARY, Split, judge_rollouts, roll_out, split_prompts
from tasks.evaluation import harness
from tasks.evaluation.answers import add_answers
from tasks.evaluation.harness_task import Harnessed, evaluate_by_harness
from tasks.evaluation.task import Evaluated, evaluate_policy
from tasks.flyte.ray_job import RayJobTask
from tasks.flyte.run_names import run_id
from tasks.flyte.stages import make_output_folder, to_local
from tasks.generation.models import PackagedGguf
from tasks.generation.task import PreparedModel, prepare_model
from tasks.model_check.task import check_model
from tasks.tables.content_digest import seal
from tasks.tables.parquet import build_table, read_table, validate, write_table
from tasks.tables.schemas import EVALUATION_ROLLOUTS, LEDGER, PROMPTS, RESPONSES, ROLLOUTS, SET_ASIDE, StageSummary
from tasks.training.task import Trained, train_policy
from tests.workflows.containers import image_environments, registered

EVALUATED = (evaluate_policy, evaluate_by_harness)
HEAVY = (prepare_model, check_model, split_prompts, roll_out, judge_rollouts, train_policy, *EVALUATED)


def summary(stage: str) -> StageSummary:
    facts = {"tokens_per_second": 100.0} if stage == "training" else {}
    return StageSummary(stage, datetime.now(UTC), 1.0, f"{stage} ran", facts, run=run_id())


def _difficulty(row) -> int:
    """A number that a prompt has by its text, whatever its ground truth is."""
    return zlib.adler32(row["messages"][-1]["content"].encode())


class StandIns:
    """Deterministic outputs of the right shape, and a count of how often each task really ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: Counter[str] = Counter()
        self.made = 0
        self.learns = True
        self.ends = "stop"

    @property
    def none(self) -> Path:
        """A table of no set-aside rows."""
        path = self.folder / "none.parquet"
        return path if path.exists() else write_table(path, build_table([], SET_ASIDE, "none"), SET_ASIDE)

    def new(self, name: str) -> Path:
        self.ran[name.split(".", maxsplit=1)[0]] += 1
        self.made += 1
        return self.folder / f"{self.made}-{name}"

    def prepare_model(self, spec):
        folder = self.new("prepare_model")
        folder.mkdir()
        (folder / "weights").write_text("initial" if isinstance(spec.source, PackagedGguf) else spec.name)
        return PreparedModel(make_output_folder(seal(folder)), summary("model"))

    def check_model(self, model, options):
        self.ran["check_model"] += 1
        return summary("model check")

    def rollouts(self, prompts, samples: int, policy: str, *, able: bool = False) -> pa.Table:
        rows = [
            {
                "prompt_id": row["prompt_id"],
                "sample": sample,
                "response": f"{policy} {sample}",
                "num_tokens": 5,
                "finish_reason": self.ends,
                "score": float(_difficulty(row) % samples > sample or able),
                "passed": bool(_difficulty(row) % samples > sample or able),
                "rewards": [],
                "error": None,
                "policy": policy,
            }
            for row in read_table(to_local(prompts), PROMPTS).to_pylist()
            for sample in range(samples)
        ]
        return build_table(rows, ROLLOUTS, "stand-in")

    def shard(self, stage: str, table: pa.Table, schema: pa.Schema, **facts: float) -> FlyteFile:
        """A table of a mapped task, with its summary."""
        made = summary(stage)
        made.facts |= facts | {"verifiers": {}}
        path = self.new(f"{stage}.parquet")
        return FlyteFile(str(write_table(path, validate(table, schema, stage), schema, {SUMMARY: made.to_json()})))

    def split_prompts(self, prompts, model, spec, rows, room, within, available, verifiers):
        path = shutil.copy(to_local(prompts), self.new("split_prompts.parquet"))
        return Split([FlyteFile(str(path))], FlyteFile(str(self.none)))

    def roll_out(self, prompts, model, spec, judging, initial, verifiers):
        table = self.rollouts(prompts, spec.sampling.samples, "initial")
        facts = {"generated": 0, "spared": 0, "output_tokens": 0, "generation_seconds": 1.0}
        return self.shard("roll_out", table, RESPONSES, **facts)

    def judge_rollouts(self, prompts, responses, model, spec, initial, verifiers):
        return self.shard(
            "judge_rollouts", self.rollouts(prompts, spec.sampling.samples, "initial"), ROLLOUTS, judged=0
        )

    def train_policy(self, model, mixture, config, verifiers, questions, asked):
        folder = self.new("train_policy")
        (folder / "policy").mkdir(parents=True)
        (folder / "policy" / "weights").write_text(f"trained {config.steps}" if self.learns else "initial")
        (folder / "tensorboard").mkdir()
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 0, "reward": 0.5, "seconds": 1.0}) + "\n")
        ledger = write_table(folder / "ledger.parquet", build_table([], LEDGER, "none"), LEDGER)
        return Trained(
            make_output_folder(seal(folder / "policy")),
            FlyteFile(str(ledger)),
            FlyteFile(str(folder / "metrics.jsonl")),
            make_output_folder(folder / "tensorboard"),
            summary("training"),
        )

    def evaluate_policy(self, policy, prompts, config, initial, verifiers, questions, asked):
        weights = (to_local(policy) / "weights").read_text()
        path = self.new("evaluate_policy.parquet")
        ways = {"heldout": config.sampling, **{one.name: one.sampling for one in asked.benchmarks}}
        parts = [
            add_answers(
                self.rollouts(file, sampling.samples, weights, able=weights.startswith("trained")),
                read_table(to_local(file), PROMPTS),
                name,
            )
            for file, (name, sampling) in zip((prompts, *questions), ways.items(), strict=True)
        ]
        table = write_table(path, pa.concat_tables(parts), EVALUATION_ROLLOUTS)
        return Evaluated(FlyteFile(str(table)), FlyteFile(str(self.none)), summary("evaluation"))

    def evaluate_by_harness(self, policy, benchmark, engine):
        able = (to_local(policy) / "weights").read_text().startswith("trained")
        documents = [
            {
                "task": benchmark.tasks[0],
                "number": number,
                "digest": str(number),
                "question": f"Which is number {number}?",
                "target": "this",
                "response": "this" if able or number % 2 else "that",
                "value": float(able or number % 2),
                "tokens": 1,
            }
            for number in range(20)
        ]
        path = self.new("evaluate_by_harness.parquet")
        answers = write_table(path, harness.rollouts(documents, benchmark, "policy"), EVALUATION_ROLLOUTS)
        asked = write_table(f"{path}-asked", harness.questions(documents, benchmark), PROMPTS)
        return Harnessed(FlyteFile(str(answers)), FlyteFile(str(asked)), summary(f"harness: {benchmark.name}"))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty local cache, with what it points at in `flyte`: stand-ins must never reach the user's."""
    monkeypatch.setattr(local_cache, "CACHE_LOCATION", str(tmp_path / "cache"))
    monkeypatch.setattr(local_cache.LocalTaskCache, "_initialized", False)
    (tmp_path / "flyte").mkdir()
    monkeypatch.setattr(current_context(), "_working_directory", str(tmp_path / "flyte" / "user_space"))
    monkeypatch.setenv("RLVR_OUTPUTS", str(tmp_path / "outputs"))
    yield tmp_path
    local_cache.LocalTaskCache._initialized = False


@pytest.fixture
def stand_ins(own_cache, monkeypatch):
    """The heavy tasks replaced, and no Ray started for them."""
    monkeypatch.setattr(RayJobTask, "pre_execute", lambda _, parameters: parameters)
    made = StandIns(own_cache)
    with ExitStack() as stack:
        for heavy in HEAVY:
            mock = stack.enter_context(task_mock(heavy))
            mock.side_effect = getattr(made, heavy.name.rsplit(".", 1)[-1])
        yield made


@pytest.fixture(scope="session")
def environments(tmp_path_factory):
    """The folder of programs of each image's environment."""
    return image_environments(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def cluster(environments, tmp_path_factory):
    """An engine with the registered workflows and an empty bucket."""
    with registered(environments, tmp_path_factory.mktemp("registered")) as propeller:
        yield propeller
