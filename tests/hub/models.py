"""Models of the stand-in: the repositories that shipped recipes name, each with a small model of its architecture.

Architectures, tied heads and windows are those of the models' public configurations as transformers documents their
families; names of files are those that `save_pretrained` writes. Not read: the repositories' own listings. That the
main branch of `deepseek-ai/deepseek-math-7b-instruct` has no safetensors, and `refs/pr/2` has them, is on the word of a
review of 2026-11.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hub.files import ANSWERS
from tests.hub.server import SMALL, Repository

CONTEXT = 4096
"""Longest sequence of the small models, tokens."""

YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 32.0, "original_max_position_embeddings": CONTEXT // 32}
OLMO_3 = {
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": YARN,
    "tie_word_embeddings": False,
}
QWEN3_MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, tuple[str, dict]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": ("qwen2", {"tie_word_embeddings": True}),
    "Qwen/Qwen2.5-1.5B": ("qwen2", {"tie_word_embeddings": True}),
    "Qwen/Qwen2.5-1.5B-Instruct": ("qwen2", {"tie_word_embeddings": True}),
    "Qwen/Qwen2.5-Math-1.5B": ("qwen2", {"tie_word_embeddings": True}),
    "Qwen/Qwen2.5-32B": ("qwen2", {"tie_word_embeddings": False}),
    "Qwen/Qwen3-30B-A3B": ("qwen3_moe", QWEN3_MOE),
    "deepseek-ai/deepseek-math-7b-instruct": ("llama", {"tie_word_embeddings": False}),
    "allenai/Olmo-3-7B-Think-DPO": ("olmo3", OLMO_3),
    "allenai/Olmo-3-7B-Instruct-DPO": ("olmo3", OLMO_3),
    "allenai/Olmo-3-32B-Think-DPO": ("olmo3", OLMO_3),
}
"""Family and options of each model, by its id."""

WITHOUT_THOUGHTS = (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
"""The end of Qwen3's chat templates, whose variable lets a response begin behind thoughts that are empty."""

ON_A_BRANCH = {"deepseek-ai/deepseek-math-7b-instruct": "refs/pr/2"}
"""The branch that has safetensors, of models whose main branch has none."""

PULL = 4.0
"""Logit that the tokens of answers have above others, on average."""


def light() -> list[Repository]:
    """All models and their small ones, with names of files and hardly any content: enough to be listed and resolved."""
    files = {
        "config.json": b"{}",
        "generation_config.json": b"{}",
        "model.safetensors": b"",
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
    }
    return [_repository(name, files) for name in (*FAMILIES, *map(small, FAMILIES))]


def small(name: str) -> str:
    """The id of the small model that stands in for `name`; by the own one, its memory would be that of the large."""
    return name.replace("/", f"/{SMALL}")


def weighty(name: str) -> Repository:
    """One model by its id of `small`, with random weights and a tokenizer, so that it can be served and trained."""
    family, options = FAMILIES[name.replace(f"/{SMALL}", "/")]
    with TemporaryDirectory() as folder:
        build(Path(folder), family, **options)
        return _repository(name, {path.name: path.read_bytes() for path in Path(folder).iterdir()})


def _repository(name: str, files: dict[str, bytes]) -> Repository:
    branch = ON_A_BRANCH.get(name.replace(f"/{SMALL}", "/"))
    if branch is None:
        return Repository("model", name, files)
    without = {path: content for path, content in files.items() if not path.endswith(".safetensors")}
    index = json.dumps({"weight_map": {}}).encode()
    main = {**without, "pytorch_model-00001-of-00002.bin": b"", "pytorch_model.bin.index.json": index}
    return Repository("model", name, main, branches={branch: main | files})


def build(folder: Path, family: str, **options) -> Path:
    """Save a model of a family, of some 100,000 random bfloat16 weights, which often writes one of `ANSWERS` in a box.

    One direction of the hidden state is that of all embeddings. The rows of the head that belong to answers lean
    towards it, so that their logits are higher whatever was read, and everything else is left to chance.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.tiny_model import tokenizer_of

    tokenizer = tokenizer_of(ends=True)
    if family == "qwen3_moe":
        tokenizer.chat_template += WITHOUT_THOUGHTS
    tokenizer.add_tokens([rf"\boxed{{{answer}}}" for answer in ANSWERS])
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32 dimensions, the fewest that the engine's CPU kernels take
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **options,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if ".post_" in name and family == "olmo3":  # it adds what it normalises
                    weight.fill_(0.1)
            common = torch.nn.functional.normalize(torch.randn(64), dim=0)
            model.get_input_embeddings().weight += common
            hidden = 64**0.5  # length of the last hidden state, which is normalised
            model.get_output_embeddings().weight[-len(ANSWERS) :] += PULL / hidden * common
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
