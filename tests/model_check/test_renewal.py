"""Old values of tensors are detected in 16 bits, even if they change log-probabilities by less than rounding does."""

import contextlib

import numpy as np
import pytest
import torch

from tasks.model_check.comparison import ModelCheckError
from tasks.model_check.engine import EMBEDDING, HEAD, EngineComparison, make_prompts
from tasks.model_check.forward import restore_own_functions
from tasks.model_check.groups import LAYER, split_into_groups
from tasks.model_check.learner import LearnerCheck
from tasks.model_check.renewal import compute_correlation, compute_least_correlation, find_old_group
from tasks.recipe.learner import LoraConfig
from tasks.training.learner.packing import Sequence
from tests.model_check.families import TOKENS, build

MODELS = {
    "dense": ("qwen2", None),
    "tied": ("llama", None),
    "experts": ("qwen3_moe", None),
    "adapter": ("qwen2", LoraConfig(rank=4, alpha=8)),
}
FULL, THIRD = 1.0, 1 / 3
"""Shares of the old values in the tensors of an engine that mixes both."""


class Scripted:
    """A stand-in engine: the model's own forward pass in bfloat16, which rounds as an engine does.

    Attributes:
        check: the learner's check of the model, done.
        sampled: 1,000 tokens that it sampled after the update.
    """

    def __init__(self, folder, family, lora):
        self.check = LearnerCheck(build(folder, family), TOKENS, dtype="bfloat16", longest=256, lora=lora)
        self.check.check()
        self.tensors = dict(self.check._list_trained())
        self.sampled = self._sample(make_prompts(self.check, "bfloat16")[3:], 16)
        self.exact = torch.cat(self.check.exact(self.sampled))
        self.changes = EngineComparison(self.check, "bfloat16").changes(self.sampled, self.exact)

    def _sample(self, prompts, tokens):
        ids, draws = torch.tensor(prompts), torch.Generator().manual_seed(0)
        with torch.no_grad(), restore_own_functions(self.check.policy.model) as model:
            for _ in range(tokens):
                probabilities = model(ids, use_cache=False).logits[:, -1].float().softmax(-1)
                ids = torch.cat([ids, torch.multinomial(probabilities, 1, generator=draws)], dim=1)
        length = len(prompts[0])
        return [Sequence(row[:length].tolist(), row[length:].tolist(), [0.0] * tokens, 0.0) for row in ids]

    @contextlib.contextmanager
    def keeping_tied(self, share, *, head):
        """Have old values of the embedding in the head alone, or in all but the head."""
        module, name = self.check.policy.model.get_output_embeddings(), self.check.tied
        tied, old = module.weight, self.check._other_version[name].float()
        mixed = (share * old + (1 - share) * tied.float()).to(tied.dtype)
        module.weight = torch.nn.Parameter((mixed if head else tied).detach().clone(), requires_grad=False)
        with contextlib.nullcontext() if head else self.keeping([name], share):
            yield
        module.weight = tied

    @contextlib.contextmanager
    def keeping(self, names, share):
        """Have old values in `names`: all of them, or a mixture."""
        new = {name: self.tensors[name].detach().clone() for name in names}
        for name in names:
            old = self.check._other_version[name].float()
            self.tensors[name].data.copy_(share * old + (1 - share) * new[name].float())
        yield
        for name in names:
            self.tensors[name].data.copy_(new[name])

    def errors(self, names, share):
        """The errors of an engine that has old values in `names`."""
        with self.keeping(names, share):
            return (torch.cat(self.check.plain(self.sampled)) - self.exact).numpy()

    def found(self, names, share):
        return find_old_group(self.errors(names, share), self.changes)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    made = {}

    def engine(model):
        if model not in made:
            made[model] = Scripted(tmp_path_factory.mktemp(model), *MODELS[model])
        return made[model]

    return engine


def of_layer(engine, layer):
    return [name for name in engine.tensors if (match := LAYER.search(name)) and int(match[1]) == layer]


@pytest.mark.long
@pytest.mark.parametrize("share", [FULL, THIRD], ids=["all", "third"])
@pytest.mark.parametrize("model", MODELS)
def test_each_group_of_tensors_is_found_if_an_engine_keeps_its_old_values(engine, model, share):
    stand_in = engine(model)
    for group, names in stand_in.check.groups.items():
        assert stand_in.found(names, share) is not None, group


@pytest.mark.parametrize("share", [FULL, THIRD], ids=["all", "third"])
@pytest.mark.parametrize("model", MODELS)
def test_one_layer_is_found_and_so_is_everything(engine, model, share):
    stand_in = engine(model)
    for names in (of_layer(stand_in, 0), of_layer(stand_in, 1), list(stand_in.tensors)):
        assert stand_in.found(names, share) is not None


@pytest.mark.parametrize("share", [FULL, THIRD], ids=["all", "third"])
@pytest.mark.parametrize(("head", "group"), [(True, HEAD), (False, EMBEDDING)])
def test_one_side_of_a_tied_embedding_is_found(engine, head, group, share):
    """E1: a kernel's packed copy of a tied head stays, while the embedding is renewed."""
    stand_in = engine("tied")
    with stand_in.keeping_tied(share, head=head):
        errors = (torch.cat(stand_in.check.plain(stand_in.sampled)) - stand_in.exact).numpy()
    assert find_old_group(errors, stand_in.changes) == group
    assert engine("dense").check.tied is None


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_the_group_is_named_that_is_old(engine, model):
    stand_in = engine(model)
    for names in stand_in.check.groups.values():
        found = stand_in.found(names, FULL)
        assert set(stand_in.check.groups.get(found, [stand_in.check.tied])) & set(names), found


@pytest.mark.parametrize("model", MODELS)
def test_rounding_alone_is_like_no_group(engine, model):
    stand_in = engine(model)
    errors = stand_in.errors([], FULL)
    assert np.abs(errors).max() > 0
    correlations = [compute_correlation(errors, change) for change in stand_in.changes.values()]
    assert max(correlations) < 0.8 * compute_least_correlation(len(errors))


@pytest.mark.parametrize(("model", "group"), [("tied", "model.embed_tokens"), ("dense", "norms and biases")])
def test_an_engine_with_old_tensors_is_refused_by_their_group(engine, model, group):
    stand_in = engine(model)
    with stand_in.keeping(stand_in.check.groups[group], THIRD):
        theirs = stand_in.check.plain(stand_in.sampled)
    answers = [
        Sequence(s.prompt_ids, s.response_ids, values.tolist(), 0.0)
        for s, values in zip(stand_in.sampled, theirs, strict=True)
    ]
    with pytest.raises(ModelCheckError, match=rf"an engine still uses old values of some tensors \({group}.*\)"):
        EngineComparison(stand_in.check, "bfloat16").compare_updated(answers)


def test_values_that_are_all_equal_or_too_few_go_with_nothing():
    many = np.arange(100, dtype=np.float32)
    assert compute_correlation(many, many) == pytest.approx(1)
    assert compute_correlation(many, np.zeros(100, np.float32)) == compute_correlation(many[:1], many[:1]) == 0.0
    assert find_old_group(many, {"a": np.zeros(100, np.float32), "b": many}) == "b"
    assert find_old_group(many[:30], {"b": many[:30]}) is None  # six deviations of 30 tokens are more than 1
    assert find_old_group(many, {}) is None
    assert find_old_group(many[:0], {"b": many[:0]}) is None


def test_tensors_are_grouped_by_kind_and_by_blocks_of_layers():
    matrix, vector = torch.zeros(2, 2), torch.zeros(2)
    tensors = {
        "model.embed_tokens.weight": matrix,
        "model.norm.weight": vector,
        "lm_head.weight": matrix,
        **{f"model.layers.{i}.self_attn.q_proj.weight": matrix for i in range(30)},
        **{f"model.layers.{i}.input_layernorm.weight": vector for i in range(30)},
        **{f"model.layers.{i}.mlp.experts.gate_up_proj": matrix for i in range(30)},
        **{f"model.layers.{i}.mlp.gate.weight": matrix for i in range(30)},
    }
    groups = split_into_groups(tensors)
    assert [name for name in groups if "layer" not in name] == [
        *("model.embed_tokens", "model.norm", "lm_head", "self_attn", "norms and biases", "experts", "mlp")
    ]
    blocks = [name for name in groups if "layer" in name]
    assert len(blocks) == 8
    assert blocks[0] == "layers 0 to 3"
    assert blocks[-1] == "layers 28 to 29"
    assert sum(len(groups[name]) for name in blocks) == 4 * 30
    assert list(split_into_groups({"model.layers.0.mlp.up_proj.weight": matrix})) == ["mlp"]
