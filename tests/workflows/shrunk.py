"""Makes a shipped recipe, with its data and evaluation files, small enough for two CPU cores and a model of no size.

What is written extends the shipped file, so that the file itself is what runs. Sizes, counts and machines change, and
what a recipe is about does not: objective, loss, sampling, resampling, verifiers and judges, optimizer, adapters.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tasks.config.loading import load_yaml
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, EvaluationFile, Recipe
from tests.hub.models import CONTEXT, small

TOKENS = 12
"""Most tokens of a response."""

LENGTH = 1024
"""Most tokens of a prompt and its response."""

ENGINE = {
    "max_model_len": LENGTH,
    "max_num_seqs": 16,
    "tensor_parallel_size": 1,
    "enforce_eager": True,
    "cpu_kv_cache_gib": 1,
    "cpu_threads": 1,
}


def one_held_out(shipped: DataFile) -> dict[str, object]:
    """Return the options with which one prompt of every domain is held out; the hub's stand-in has few rows."""
    named = [domain for domain, share in shipped.mixture.domains.items() if share.heldout is not None]
    return {"mixture.heldout": 1} | {f"mixture.domains.{domain}.heldout": 1 for domain in named}


def shrunk_data(name: str, judge: str = "", *, filtered: bool = True) -> dict:
    """Return a data file that extends `data_specs/<name>.yaml`: few prompts made up or held out, short rollouts.

    Args:
        name: the name of the shipped file.
        judge: the address that stands in for the one that the file names for its judge.
        filtered: whether a difficulty filter stays; without, nothing is sampled.
    """
    shipped = load_yaml(DataFile, DATA_SPECS / f"{name}.yaml")
    smaller = {"extends": name} | one_held_out(shipped)
    sources = shipped.model_dump(exclude_unset=True, mode="json")["sources"]
    if any("size" in source["loader"] for source in sources):
        for source in sources:
            source["loader"]["size"] = min(source["loader"]["size"], 16)
        smaller["sources"] = sources
    if getattr(shipped.verifiers.judge, "url", None) is not None:
        smaller["verifiers.judge.url"] = judge
    elif shipped.verifiers.judge is not None:  # the small models have many tokens to a word
        smaller["verifiers.judge.server.max_model_len"] = CONTEXT
    if not filtered:
        smaller["difficulty"] = None
    elif shipped.difficulty is not None:
        smaller |= {"difficulty.sampling": {"samples": 2, "max_tokens": TOKENS}, "difficulty.engine": ENGINE}
    return smaller


def shrunk_benchmark(name: str, folder: Path) -> str:
    """Write a benchmark that extends the shipped one of this name: one short response each; return its path."""
    files = {load_yaml(BenchmarkFile, path).name: path.stem for path in BenchmarkFile.folder.glob("*.yaml")}
    smaller = {"extends": files[name], "sampling": {"samples": 1, "max_tokens": TOKENS}, "majority": []}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(smaller))
    return str(path)


def shrunk(name: str, folder: Path, judge: str = "", model: Path | None = None) -> Path:
    """Write a recipe that extends `workflows/recipes/<name>.yaml`, beside its data and evaluation; return its path.

    One step of two groups of four short responses, on one rank and one engine without a GPU. A model of the hub is
    the small one of that name (`tests.hub.models.small`); one in a package, of 135 million weights, is a folder.

    Args:
        name: the name of the shipped recipe.
        folder: where the three files go.
        judge: the address that stands in for the one that the data file names for its judge.
        model: the folder of the model that stands in for one in a package.
    """
    shipped = load_yaml(Recipe, RECIPES / f"{name}.yaml")
    folder.mkdir(exist_ok=True)
    recipe: dict = {
        "extends": name,
        "data": str(folder / "data.yaml"),
        "evaluation": str(folder / "evaluation.yaml"),
        "steps": 1,
        "groups_per_step": 2,
        "sampling": {"samples": 4, "max_tokens": TOKENS},
        "learner": {"ranks": 1, "micro_batch_tokens": LENGTH, "cpu_threads": 1},
        "actors": {"count": 1, "engine": ENGINE},
        "checkpoint_every": 1,
        "cluster": {"gpus_per_node": 0},
    }
    if shipped.placement == "time_shared":  # which is of GPUs
        recipe["placement"] = "shared"
    if shipped.updates.minibatches > 1:
        recipe["updates.minibatches"] = 2
    if shipped.objective.shaping.overlong is not None:
        recipe["objective.shaping.overlong"] = {"max_length": TOKENS, "cache": TOKENS // 4}
    if shipped.validation is not None:
        benchmarks = [shrunk_benchmark(benchmark.name, folder) for benchmark in shipped.benchmarks]
        prompts = min(shipped.validation.prompts, 2)
        asked = {"benchmarks": benchmarks, "benchmark_sampling": None}
        recipe["validation"] = {"prompts": prompts, "every": 1, **asked}
    source = shipped.model.source
    if source.kind == "hub":
        recipe["model.source"] = source.model_dump(exclude_unset=True) | {"name": small(source.name)}
    else:
        recipe["model.source"] = {"kind": "folder", "path": str(model)}
    greedy = shipped.load_companion(EvaluationFile).sampling.temperature == 0
    evaluation = {
        "extends": shipped.evaluation,
        "sampling": {"samples": 1 if greedy else 2, "max_tokens": TOKENS},
        "engine": ENGINE,
    }
    files = {"recipe": recipe, "data": shrunk_data(shipped.data, judge), "evaluation": evaluation}
    for file, content in files.items():
        (folder / f"{file}.yaml").write_text(yaml.safe_dump(content))
    return folder / "recipe.yaml"
