"""The files of the runs of `make gpu-check`: they are valid on a GPU, too, and their prompts have tokens."""

import json

import pytest
import torch

from tasks.config.loading import load_yaml
from tasks.gpu_check import small_run
from tasks.gpu_check.sizes import FULL, TINY
from tasks.gpu_check.time_sharing import END, save_tokenizer
from tasks.inputs.files import DataFile, EvaluationFile
from tasks.inputs.overrides import with_overrides
from tasks.tables.parquet import read_table
from tasks.tables.schemas import MIXTURE
from tasks.verifiers.functions import check_ground_truth


@pytest.mark.parametrize("gpu", [True, False])
def test_the_files_of_a_run_are_valid(tmp_path, monkeypatch, gpu):
    monkeypatch.setattr(small_run, "has_gpu", lambda: gpu)
    sizes = FULL if gpu else TINY
    files = small_run.write_files(tmp_path, tmp_path, sizes, steps=3)
    recipe = with_overrides(str(files["training"]), ["placement=time_shared"] if gpu else [])
    assert (recipe.steps, recipe.cluster.gpus_per_node) == (3, int(gpu))
    assert with_overrides(str(files["training"]), []).placement == ("shared" if gpu else "auto")
    data = load_yaml(DataFile, files["data"])
    assert [reward.function for reward in data.sources[0].rewards] == [small_run.REWARD]
    assert load_yaml(EvaluationFile, files["evaluation"]).sampling.max_tokens == sizes.run_response


def test_a_mixture_has_all_prompts_and_their_reward(tmp_path):
    rows = read_table(small_run.write_mixture(tmp_path / "mixture.parquet"), MIXTURE).to_pylist()
    assert [row["messages"][0]["content"] for row in rows] == small_run.make_prompt_texts()
    assert len({row["prompt_id"] for row in rows}) == len(rows) == 32
    check_ground_truth(json.loads(rows[0]["ground_truth"]))


@pytest.mark.long
def test_the_tokenizer_has_the_characters_of_all_prompts_and_words_by_their_ids(tmp_path):
    from transformers import AutoTokenizer

    small_run.save_random_model(tmp_path / "model", TINY.model, torch.float32, device="cpu")
    save_tokenizer(tmp_path / "model", TINY.model.vocabulary)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert len(tokenizer) == TINY.model.vocabulary
    for text in small_run.make_prompt_texts():
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.convert_ids_to_tokens([0, 7, TINY.model.vocabulary - 1]) == ["w0", "w7", END]
    assert tokenizer.decode([1, 2, 41]) == "w1w2w41"
