"""Families of models in miniature: the learner beside the model's own forward pass, and the export read back."""

import shutil

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from tasks.commands.group import rlvr
from tasks.model_check import check
from tasks.model_check.comparison import FLOAT32, TIMES_PLAIN, ModelCheckError, compute_difference
from tasks.model_check.learner import ADAPTER, INITIAL_ADAPTER, LearnerCheck
from tasks.model_check.options import CheckedOptions
from tasks.recipe.learner import LearnerConfig, LoraConfig
from tasks.storage.model_folder import ModelError
from tasks.training.learner import policy
from tasks.training.learner.adapter import WEIGHTS
from tasks.training.learner.architecture import LogitsShape
from tasks.training.learner.policy import Policy
from tests.model_check.families import FAMILIES, TOKENS, build, built_once

AGREEMENT = 1e-4
TYPES = ["float32", "bfloat16"]
OTHER_PLACES = ["gemma2", "phi", "deepseek_v2", "deepseek_v3"]
"""Families whose learner rounds in other places than the plain forward pass, also on CPUs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return built_once(tmp_path_factory)


def check_of(folder, longest=256, tokens=TOKENS, **options):
    return LearnerCheck(folder, tokens, longest=longest, **{"dtype": "float32", **options})


@pytest.mark.parametrize(("dtype", "comparisons"), [("float32", 3), ("bfloat16", 4)])
def test_each_comparison_has_a_line_when_it_begins_with_its_number(folder, monkeypatch, capsys, dtype, comparisons):
    monkeypatch.setattr(check, "tokenize_text", lambda _: TOKENS)
    figures = check.check_model(folder("llama"), CheckedOptions(learner=LearnerConfig(dtype=dtype)), engine=False)
    assert len(figures) == comparisons
    lines = [line for line in capsys.readouterr().err.splitlines() if "comparison" in line]
    numbers = [f"model check: comparison {number} of {comparisons}" for number in range(1, comparisons + 1)]
    assert [line.rpartition(": ")[0] for line in lines] == numbers


def structure(figures):
    """The largest difference of those that are taken in float32."""
    return max(apart.nats for apart in figures.values() if apart.tolerance == FLOAT32)


def rounding(figures):
    """The learner's error in 16 bits, and that of the model's own forward pass."""
    [error] = [apart for what, apart in figures.items() if "in float32" in what]
    return error.nats, error.tolerance / TIMES_PLAIN


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_learner_and_export_have_the_models_own_policy_before_and_after_an_update(folder, family, dtype):
    figures = check_of(folder(family), dtype=dtype).check()
    assert len(figures) == (3 if dtype == "float32" else 4)
    assert structure(figures) < AGREEMENT


class PlainHead(LogitsShape):
    """The function of a head that scales and bounds nothing, whatever the configuration."""

    @classmethod
    def from_config(cls, config):
        return cls()


token_logprobs = policy.token_logprobs


def without_bias(*arguments, bias, **options):
    return token_logprobs(*arguments, **options)


def as_it_was(model_or_config, *_):
    return model_or_config


BROKEN = [
    ("granite", policy, "LogitsShape", PlainHead, "scale of the logits, of 0.12"),
    ("cohere", policy, "LogitsShape", PlainHead, "scale of the logits, of 0.25"),
    ("gemma2", policy, "LogitsShape", PlainHead, "soft cap of the logits"),
    ("phi", policy, "token_logprobs", without_bias, "bias of the head"),
    ("lfm2", policy, "carries_state", lambda model: False, "packing"),
    ("qwen3_next", policy, "carries_state", lambda model: False, "packing"),
    ("mamba2", policy, "carries_state", lambda model: False, "packing"),
    ("gpt2", policy, "without_randomness", as_it_was, "dropout"),
    ("starcoder2", policy, "without_randomness", as_it_was, "dropout"),
    ("phi", policy, "without_randomness", as_it_was, "dropout"),
    ("phi3", policy, "fix_rope", as_it_was, "RoPE that depends on the length"),
    ("glm4_moe", Policy, "checkpoint_buffers", lambda self: iter(()), "lacks .*e_score_correction_bias"),
    ("mixtral", policy, "revert_weight_conversion", lambda model, tensors: tensors, "names a tensor .*experts"),
]
"""A family, what the learner does for it, what takes its place here, and the cause that the check then names."""
OF_NAMES = ("checkpoint_buffers", "revert_weight_conversion")
"""Variants whose names are wrong; they change no log-probability, and have no strength."""


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("family", "owner", "name", "instead", "cause"), BROKEN, ids=lambda value: str(value)[:20])
def test_a_learner_without_its_mend_is_refused_with_the_cause(
    folder, monkeypatch, family, owner, name, instead, cause, dtype
):
    monkeypatch.setattr(owner, name, instead)
    check = check_of(folder(family), dtype=dtype)
    with pytest.raises(ModelCheckError, match=cause):
        check.check()
    if name not in OF_NAMES:
        assert structure(check.figures) > 10 * FLOAT32


HEAD = "the learner's head and the model's own in float32"


def with_a_head_of_the_models_type(*arguments, float32, **options):
    return token_logprobs(*arguments, **options)


@pytest.mark.parametrize("family", ["llama", "gemma2", "granite", "phi", "mamba2"])
def test_a_learner_whose_head_keeps_the_models_type_is_refused(folder, monkeypatch, family):
    """A cap, a scale of 0.12, a bias, and hidden states in float32 are among them."""
    check = check_of(folder(family), dtype="bfloat16", head_dtype="float32")
    assert check.check()[HEAD].nats < FLOAT32 / 100
    monkeypatch.setattr(policy, "token_logprobs", with_a_head_of_the_models_type)
    with pytest.raises(ModelCheckError, match=r"the likely cause is a head that .* float32 .`head_dtype`"):
        check_of(folder(family), dtype="bfloat16", head_dtype="float32").check()


def test_a_head_in_float32_is_more_exact_than_one_in_16_bits(folder):
    errors = {}
    for head_dtype in ("model", "float32"):
        check = check_of(folder("phi"), dtype="bfloat16", head_dtype=head_dtype)
        sequences = check.sequences()
        exact = check.exact(sequences)
        errors[head_dtype] = [
            compute_difference(values, exact) for values in (check.logprobs(sequences), check.plain(sequences))
        ]
    assert all(ours < theirs for ours, theirs in zip(errors["float32"], errors["model"], strict=True))


def test_a_learner_in_float32_has_no_head_to_check(folder):
    assert HEAD not in check_of(folder("llama"), head_dtype="float32").check()


def a_third_of_the_fault(check, sequences):
    """The learner's log-probabilities, nearer to the model's own by two thirds of their distance."""
    pairs = zip(broken_logprobs(check, sequences), check.plain(sequences), strict=True)
    return [own + (broken - own) / 3 for broken, own in pairs]


broken_logprobs = LearnerCheck.logprobs


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("family", "owner", "name", "instead", "cause"),
    [variant for variant in BROKEN if variant[2] not in OF_NAMES],
    ids=lambda value: str(value)[:20],
)
def test_a_third_of_the_fault_is_found_too(folder, monkeypatch, family, owner, name, instead, cause, dtype):
    monkeypatch.setattr(owner, name, instead)
    monkeypatch.setattr(LearnerCheck, "logprobs", a_third_of_the_fault)
    with pytest.raises(ModelCheckError, match="the learner and the model's own forward pass differ"):
        check_of(folder(family), dtype=dtype).check()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("options", [{"resid_pdrop": 0.1, "embd_pdrop": 0.0}, {"resid_pdrop": 0.03, "embd_pdrop": 0.0}])
def test_dropout_is_found_at_any_rate(tmp_path, monkeypatch, options, dtype):
    monkeypatch.setattr(policy, "without_randomness", as_it_was)
    with pytest.raises(ModelCheckError, match="dropout"):
        check_of(build(tmp_path, "phi", **options), dtype=dtype).check()


@pytest.mark.parametrize("family", OTHER_PLACES)
def test_the_learners_rounding_is_measured_beside_that_of_the_plain_forward_pass(folder, family):
    error, usual = rounding(check_of(folder(family), dtype="bfloat16").check())
    assert 0 < error != usual > 0


def coarsely(hidden, *arguments, **options):
    """Log-probabilities of hidden states that have lost two bits where they have 16."""
    if hidden.dtype == torch.bfloat16:
        hidden = ((hidden.view(torch.int16) >> 2) << 2).view(torch.bfloat16)
    return token_logprobs(hidden, *arguments, **options)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_a_learner_that_rounds_more_than_its_type_does_is_refused(folder, monkeypatch, family):
    monkeypatch.setattr(policy, "token_logprobs", coarsely)
    with pytest.raises(ModelCheckError, match="the learner in bfloat16 and in float32 differ"):
        check_of(folder(family), dtype="bfloat16").check()


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_that_are_not_finite_are_named(folder, tmp_path, dtype):
    source = shutil.copytree(folder("llama"), tmp_path / "model")
    tensors = load_file(source / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelCheckError, match=r"differ by nan nats: .* not finite"):
        check_of(source, dtype=dtype).check()


def test_a_model_that_rounds_nothing_has_the_tolerance_of_float32(folder, tmp_path):
    source = shutil.copytree(folder("llama"), tmp_path / "model")
    tensors = {name: torch.zeros_like(tensor) for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    check = check_of(source, dtype="bfloat16")
    with pytest.raises(ModelCheckError, match="no gradient reaches"):  # the policy is uniform, whatever the weights
        check.check()
    assert check.figures["the learner in bfloat16 and in float32"] == (0.0, FLOAT32)


@pytest.mark.parametrize(("tokens", "longest"), [(TOKENS, 8), ([5, 7, 9], 256), ([5], 64)])
def test_a_short_text_repeats_and_a_short_context_bounds_it(folder, tokens, longest):
    check = check_of(folder("qwen2"), tokens=tokens, longest=longest, dtype="bfloat16")
    assert structure(check.check()) < AGREEMENT
    assert all(sequence.length <= longest for sequence in check.sequences())


def test_a_tokenizer_that_makes_nothing_of_the_text_is_refused(folder):
    with pytest.raises(ModelCheckError, match="returns no tokens"):
        check_of(folder("llama"), tokens=[])


@pytest.mark.complete
@pytest.mark.parametrize(
    "family", ["gemma2", "phi", "deepseek_v2", "deepseek_v3", "mixtral", "qwen3_moe", "olmoe", "glm4_moe"]
)
def test_forty_cuttings_of_the_text_pass(folder, family):
    """Of models whose learner rounds in other places, and of mixtures of experts, whose routers flip."""
    for start in range(40):
        tokens = TOKENS[start:] + TOKENS[:start]
        check_of(folder(family), tokens=tokens, dtype="bfloat16").check()


@pytest.mark.parametrize("family", ["nemotron", "stablelm", "mpt", "falcon", "gptj", "llama4_text"])
def test_a_model_whose_layers_take_no_packed_rows_is_refused_in_a_sentence(tmp_path, family):
    with pytest.raises(ModelError, match=f"model .*`{family}`"):
        check_of(build(tmp_path, family)).check()


@pytest.mark.parametrize("family", ["bloom", "xglm"])
def test_an_attention_that_sees_a_row_as_one_sequence_is_the_cause(tmp_path, family):
    with pytest.raises(ModelCheckError, match="packing: its attention"):
        check_of(build(tmp_path, family)).check()


@pytest.mark.parametrize("family", ["ernie4_5_moe", "afmoe"])
def test_tensors_that_no_gradient_trains_need_none(tmp_path, family):
    assert structure(check_of(build(tmp_path, family)).check()) < AGREEMENT


def test_rope_that_changes_beyond_the_window_is_refused_and_up_to_it_is_the_same(tmp_path):
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    build(tmp_path, "llama", rope_parameters=dynamic, max_position_embeddings=64)
    with pytest.raises(ModelError, match=r"max_model_len = 128 to 64"):
        check_of(tmp_path, longest=128)
    assert structure(check_of(tmp_path, longest=64).check()) < AGREEMENT


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "olmo3", "gemma2"])
def test_an_adapter_is_checked_as_it_is_trained_and_merged_as_it_is_exported(folder, tmp_path, family, dtype):
    check = check_of(folder(family), dtype=dtype, lora=LoraConfig(rank=4, alpha=8))
    base = {name: tensor.clone() for name, tensor in check.policy.checkpoint_parameters()}
    figures = check.check(tmp_path)
    assert structure(figures) < AGREEMENT
    assert all(torch.equal(base[name], tensor) for name, tensor in check.policy.checkpoint_parameters())
    initial, updated = (load_file(tmp_path / name / WEIGHTS) for name in (INITIAL_ADAPTER, ADAPTER))
    assert initial.keys() == updated.keys()
    assert not any(torch.equal(initial[name], updated[name]) for name in initial)
    written = load_file(tmp_path / "model.safetensors")
    moved = [name for name, tensor in base.items() if not torch.equal(written[name], tensor)]
    assert {name.rpartition(".")[0] + ".lora_A.weight" for name in moved} == {
        name.removeprefix("base_model.model.") for name in initial if "lora_A" in name
    }


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe"])
def test_of_a_mixture_of_experts_the_linear_layers_have_an_adapter_and_experts_stay(folder, family):
    """E5: peft would put nested adapters into experts that transformers joins."""
    check = check_of(folder(family), lora=LoraConfig(rank=4, alpha=8))
    assert structure(check.check()) < AGREEMENT
    adapted = {name.partition(".lora_")[0].rpartition(".")[2] for name, _ in check.policy.adapter_parameters()}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_the_weights_of_before_the_update_come_back_for_the_length_of_a_block(folder):
    check = check_of(folder("llama"))
    before = check.tensors()
    check.check()
    after = check.tensors()
    with check.restore_initial_weights():
        assert all(torch.equal(before[name], tensor) for name, tensor in check.tensors().items())
    assert all(torch.equal(after[name], tensor) for name, tensor in check.tensors().items())
    assert not any(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_other_files_of_weights_are_not_exported(folder, tmp_path):
    source = shutil.copytree(folder("llama"), tmp_path / "model")
    for name in ("pytorch_model.bin", "model.Q4.gguf", "consolidated.00.pth", "model.safetensors.index.json"):
        (source / name).write_text("of the initial model")
    (source / "tokenizer.model").write_text("a tokenizer")
    export = tmp_path / "export"
    export.mkdir()
    check_of(source).check(export)
    names = {path.name for path in export.iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.model"}


def test_the_command_prints_the_differences_of_a_folder(tiny_model):
    done = CliRunner().invoke(rlvr, ["doctor", "model-check", str(tiny_model), "--no-engine", "learner.dtype=float32"])
    assert done.exit_code == 0, done.output
    assert done.output.count(" nats (rounding: 0.0001) between ") == 3
