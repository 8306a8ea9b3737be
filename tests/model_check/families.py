"""Model families in miniature, made from their configurations with random weights: vocabulary 128, two layers."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 128
TOKENS = random.Random(0).choices(range(VOCABULARY), k=100)
"""Tokens of a text, for models that have no tokenizer."""
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256}
SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
QWEN3_NEXT = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "shared_expert_intermediate_size": 32,
}
MAMBA2 = {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "expand": 2, "chunk_size": 8}
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 8}
DEEPSEEK = {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
GLM4_MOE = {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, **FACTORS}
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "olmo3": SLIDING,
    "gemma2": {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16, **SLIDING},
    "granite": {
        "logits_scaling": 8.0,
        "embedding_multiplier": 6.0,
        "residual_multiplier": 0.5,
        "attention_dropout": 0.1,
    },
    "cohere": {"logit_scale": 0.25},
    "phi": {"resid_pdrop": 0.1, "embd_pdrop": 0.1},
    "gpt2": {**GPT2, "attn_pdrop": 0.0},
    "starcoder2": {"residual_dropout": 0.1, "embedding_dropout": 0.1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {**EXPERTS, **QWEN3_NEXT},
    "mamba2": MAMBA2,
    "glm4_moe": {**EXPERTS, **GLM4_MOE},
    "deepseek_v2": {**EXPERTS, **DEEPSEEK, **LATENT, "q_lora_rank": None, "num_key_value_heads": 2},
    "deepseek_v3": {**EXPERTS, **DEEPSEEK, **LATENT, "q_lora_rank": 16, "num_key_value_heads": 2},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": EXPERTS,
    "olmoe": {**EXPERTS, "num_experts": 4},
    "phi3": {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32},
}
"""Options of each family beside `SIZES`, chosen so that what is particular to it makes a difference."""

OTHERS = {
    "glm4": {},
    "nemotron": {},
    "stablelm": {"use_qkv_bias": True},
    "mpt": {"d_model": 32, "n_heads": 2, "n_layers": 2, "max_seq_len": 256},
    "falcon": {"num_kv_heads": 1, "head_dim": ...},
    "gptj": {**GPT2, "rotary_dim": 8},
    "llama4_text": {"intermediate_size_mlp": 32, "num_local_experts": 2, "attention_chunk_size": 8},
    "bloom": {"n_layer": 2, "n_head": 2},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 2, "ffn_dim": 32},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1},
    "afmoe": {**EXPERTS, **SLIDING, "num_local_experts": 4, "num_dense_layers": 1, "num_shared_experts": 1},
}
"""The same for families that the learner computes in a way of their own, or not at all; `...` leaves an option out."""


def built_once(temporary: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that returns a family's folder, and makes it at the first call."""
    return cache(lambda family: build(temporary.mktemp(family), family))


def build(folder, family, *, factors=None, **options):
    """Save a family's random float32 model to a folder, with biases and buffers that are not 0."""
    if factors:
        options["rope_parameters"] = LONGROPE | factors
    with torch.random.fork_rng():
        torch.manual_seed(0)
        options = {**SIZES, **(FAMILIES | OTHERS)[family], **options}
        config = AutoConfig.for_model(family, **{name: value for name, value in options.items() if value is not ...})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if name.endswith("bias"):
                    tensor.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder
