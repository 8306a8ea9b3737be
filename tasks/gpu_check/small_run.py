"""Defines the runs of `make gpu-check`: a random model, prompts, and the options of recipe, data and evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from tasks.gpu_check.sizes import Sizes, choose_sizes, save_random_model
from tasks.gpu_check.time_sharing import save_tokenizer
from tasks.machine import precision
from tasks.machine.resources import has_gpu
from tasks.storage.durable import write_whole
from tasks.tables.parquet import build_table, write_table
from tasks.tables.schemas import MIXTURE, canonical_json, prompt_id

if TYPE_CHECKING:
    from tasks.gpu_check.part import PartTask

REWARD = "tasks.gpu_check.rewards.share_of_ones"


def make_prompt_texts() -> list[str]:
    """Return the texts of all prompts, of characters that `save_tokenizer` has."""
    return [f"Repeat {first} and {second}." for first in "abcdefgh" for second in "klmn"]


def make_engine_options(sizes: Sizes) -> dict[str, Any]:
    """Return the options of an engine; without a GPU it leaves a core to the learner."""
    options = {"max_model_len": 4 * sizes.run_response, "max_num_seqs": 64, "enforce_eager": True}
    return options if has_gpu() else options | {"cpu_threads": 1, "cpu_kv_cache_gib": 0.25}


def make_training_options(sizes: Sizes, model: Path, steps: int) -> dict[str, Any]:
    """Return the options of a recipe that trains the model in a folder."""
    return {
        "model": {"source": {"kind": "folder", "path": str(model)}},
        "placement": "shared" if has_gpu() else "auto",
        "steps": steps,
        "groups_per_step": 4,
        "sampling": {"samples": 8, "max_tokens": sizes.run_response},
        "optimizer": {"learning_rate": 1e-5},
        "learner": {"micro_batch_tokens": 4 * sizes.run_response},
        "actors": {"engine": make_engine_options(sizes)},
        "cluster": {"gpus_per_node": int(has_gpu())},
        "alarms": {"max_truncated": None},  # a random model does not end its responses
    }


def prepare_run(task: PartTask, name: str, steps: int) -> tuple[Path, dict[str, Path]]:
    """Write the model and the files of a run; return a new folder for the run, and the paths of its files by option."""
    sizes = choose_sizes(dry=task.dry)
    model = prepare_model(task.folder / "run_model", sizes)
    home = task.folder / name
    home.mkdir()
    return home, write_files(home, model, sizes, steps=steps)


def prepare_model(folder: Path, sizes: Sizes) -> Path:
    """Write a random model with its tokenizer to a folder if it is not there, on the CPU; return the folder."""
    if not folder.exists():
        dtype: torch.dtype = getattr(torch, precision.resolve("auto", gpu=has_gpu()))
        with write_whole(folder) as partial:
            save_random_model(partial, sizes.run_model, dtype, device="cpu")
            save_tokenizer(partial, sizes.run_model.vocabulary)
    return folder


def write_files(folder: Path, model: Path, sizes: Sizes, *, steps: int) -> dict[str, Path]:
    """Write data file, recipe and evaluation file of a pipeline to a folder; return their paths by option."""
    rows = folder / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in make_prompt_texts()))
    source = {
        "name": "words",
        "domain": "words",
        "verifier": "function",
        "loader": {"kind": "jsonl", "path": str(rows)},
        "rewards": [{"function": REWARD}],
    }
    sampling = {"samples": 4, "max_tokens": sizes.run_response}
    engine = make_engine_options(sizes)
    files = {
        "data": {
            "name": "gpu-check",
            "sources": [source],
            "difficulty": {"max_mean_score": 1.0, "sampling": sampling, "engine": engine},
            "mixture": {"heldout": 4},
        },
        "training": make_training_options(sizes, model, steps),
        "evaluation": {"sampling": sampling, "engine": engine},
    }
    for option, content in files.items():
        (folder / f"{option}.yaml").write_text(yaml.safe_dump(content))
    return {option: folder / f"{option}.yaml" for option in files}


def write_mixture(file: Path) -> Path:
    """Write a mixture of all prompts, for a run without the stages before; return its path."""
    truth = {"function": REWARD, "columns": {"ground_truth": None}}
    rows = []
    for number, text in enumerate(make_prompt_texts()):
        messages = [{"role": "user", "content": text}]
        row = {
            "prompt_id": prompt_id(messages, "function", truth, None),
            "domain": "words",
            "source": "words",
            "messages": messages,
            "verifier": "function",
            "ground_truth": canonical_json(truth),
            "metadata": "{}",
            "cluster": None,
            "environment": None,
            "row": number,
            "pass_rate": 0.5,
            "mean_score": 0.5,
            "num_rollouts": 8,
            "mean_tokens": 16.0,
            "repeat": 0,
            "order": number,
        }
        rows.append(row)
    return write_table(file, build_table(rows, MIXTURE, "mixture"), MIXTURE)
