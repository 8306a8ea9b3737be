"""Fused functions of layers: they compute what a model's own functions do, and only in the model they are for."""

import gc
import weakref

import deepspeed
import pytest
import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from transformers import AutoModelForCausalLM

from tasks.failures import MistakeError
from tasks.model_check.comparison import ModelCheckError, compute_typical_error
from tasks.model_check.learner import LearnerCheck
from tasks.recipe.learner import LearnerConfig, LoraConfig
from tasks.recipe.run import TrainingConfig
from tasks.training.learner import fused_layers
from tasks.training.learner.exactness import is_as_exact
from tasks.training.learner.fused_layers import MLPS, NORMS, ROTARY, fuse, switched_off
from tasks.training.learner.policy import Policy
from tasks.training.learner.trainer import Trainer
from tests.model_check.families import TOKENS, VOCABULARY, built_once

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TYPES = [torch.float32, torch.bfloat16]
LENGTHS = [40, 7, 23]
COUNTS = {
    "llama": {NORMS: 2 * 2 + 1, ROTARY: 2, MLPS: 2},
    "qwen2": {NORMS: 2 * 2 + 1, ROTARY: 2, MLPS: 2},
    "qwen3": {NORMS: 2 * 4 + 1, ROTARY: 2, MLPS: 2},
    "olmo3": {NORMS: 2 * 4 + 1, ROTARY: 2, MLPS: 2},
    "gemma2": {ROTARY: 2, MLPS: 2},
    "deepseek_v3": {NORMS: 2 * 4 + 1, ROTARY: 2, MLPS: 2},
    "mamba2": {NORMS: 2 + 1},
    "gpt2": {},
}
"""Number of modules of a family in miniature, of two layers, whose forward pass is replaced."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return built_once(tmp_path_factory)


@pytest.fixture
def not_compiled(monkeypatch):
    """Functions that would be compiled run as they are: the same numbers, without seconds of compilation."""
    monkeypatch.setattr(fused_layers, "compiled", lambda function: function)
    monkeypatch.setattr(fused_layers, "_PRODUCTS", {})


@pytest.fixture
def maybe_compiled(request, compiled):
    if compiled:
        torch._dynamo.reset()  # it compiles a function for at most 8 kinds of tensors in a process
    else:
        request.getfixturevalue("not_compiled")


def families(*names, compiled):
    """Names of families, and whether functions are compiled, which takes half a minute for each family on a CPU."""
    slow = [pytest.param(name, True, marks=pytest.mark.complete, id=f"{name}, compiled") for name in compiled]
    return pytest.mark.parametrize(("family", "compiled"), [*((name, False) for name in names), *slow])


def packed(policy):
    """Log-probabilities of a packed row of random tokens, `[n]`."""
    generator = torch.Generator().manual_seed(1)
    row = torch.randint(VOCABULARY, (1, sum(LENGTHS)), generator=generator)
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    sources = torch.arange(sum(LENGTHS) - 1)[None]
    logprobs, _ = policy(row, positions, sources, row[:, 1:], positions[:, 1:] > 0, 1.0)
    return logprobs[0]


def gradients(policy, logprobs):
    (logprobs * torch.linspace(-1, 2, len(logprobs))).sum().backward()
    gradients = {name: p.grad.float() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    norm = torch.nn.utils.get_total_norm(list(gradients.values()))
    return {name: gradient / norm for name, gradient in gradients.items()}


def computed(policy):
    logprobs = packed(policy)
    return logprobs.detach(), gradients(policy, logprobs)


def distance(ours, theirs):
    return sum(float((ours[name] - theirs[name]).square().sum()) for name in theirs) ** 0.5


@families("llama", "qwen3", "olmo3", "gemma2", "deepseek_v3", "mamba2", compiled=["qwen3", "olmo3", "gemma2"])
def test_in_float32_log_probabilities_and_gradients_stay(folder, maybe_compiled, family):
    policy = Policy.load(folder(family), dtype=torch.float32).train()
    expected, expected_gradients = computed(policy)
    assert dict(fuse(policy.model, CPU).counts) == COUNTS[family]
    logprobs, ours = computed(policy)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours, expected_gradients, atol=1e-5, rtol=1e-5)


@families("llama", "qwen2", "olmo3", "gemma2", compiled=["qwen2", "olmo3"])
def test_in_bfloat16_errors_are_those_of_the_models_own_functions(folder, maybe_compiled, family):
    exact, exact_gradients = computed(Policy.load(folder(family), dtype=torch.float32).train())
    policy = Policy.load(folder(family), dtype=torch.bfloat16).train()
    plain, plain_gradients = computed(policy)
    assert dict(fuse(policy.model, CPU).counts) == COUNTS[family]
    logprobs, ours = computed(policy)
    assert compute_typical_error([logprobs], [exact]) < 1.5 * compute_typical_error([plain], [exact])
    assert distance(ours, exact_gradients) < 1.5 * distance(plain_gradients, exact_gradients)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", COUNTS)
def test_each_type_has_the_same_functions_replaced(folder, not_compiled, family, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder(family), dtype=dtype)
    assert dict(fuse(model, CPU).counts) == COUNTS[family]


@pytest.mark.parametrize("dtype", TYPES)
def test_gemmas_norm_which_multiplies_by_1_more_than_its_weight_stays(folder, not_compiled, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder("gemma2"), dtype=dtype)
    assert "something else" in fuse(model, CPU).reasons[NORMS]
    assert not any("forward" in vars(module) for module in model.modules() if "Norm" in type(module).__name__)


def broken(function):
    """A function whose results are 2% too large."""

    def scaled(*arguments):
        values = function(*arguments)
        return tuple(1.02 * value for value in values) if isinstance(values, tuple) else 1.02 * values

    return scaled


rms_norm = nn.functional.rms_norm
BROKEN = {
    NORMS: (nn.functional, "rms_norm", lambda *arguments: 1.02 * rms_norm(*arguments)),
    ROTARY: (fused_layers, "compiled", lambda one: broken(one) if "rotary" in one.__name__ else one),
    MLPS: (fused_layers, "compiled", lambda one: one if "rotary" in one.__name__ else broken(one)),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_function_is_not_used(folder, not_compiled, monkeypatch, kind, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder("olmo3"), dtype=dtype)
    monkeypatch.setattr(*BROKEN[kind])
    replacements = fuse(model, CPU)
    assert set(replacements.counts) == {NORMS, ROTARY, MLPS} - {kind}
    assert "something else" in replacements.reasons[kind]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_function_is_refused_by_the_model_check(folder, not_compiled, monkeypatch, kind, dtype):
    monkeypatch.setattr(fused_layers, "is_as_exact", lambda *_: True)
    monkeypatch.setattr(*BROKEN[kind])
    check = LearnerCheck(folder("qwen3"), TOKENS, longest=256, dtype=dtype, fused_layers=True)
    with pytest.raises(ModelCheckError, match="cause is a fused function"):
        check.check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@families("qwen3", "olmo3", compiled=["olmo3"])
def test_the_model_check_accepts_fused_functions(folder, maybe_compiled, family, dtype):
    check = LearnerCheck(folder(family), TOKENS, longest=256, dtype=dtype, fused_layers=True)
    assert any("forward" in vars(module) for module in check.policy.modules())
    check.check()


def own_functions(model):
    """The functions that a model's modules would run, and what the attention finds under the name of the rotation."""
    attention = type(model.model.layers[0].self_attn)
    functions = {type(module): type(module).forward for module in model.modules()}
    return functions, attention.forward.__globals__["apply_rotary_pos_emb"]


def test_functions_of_other_models_and_of_later_ones_are_the_originals(folder, not_compiled):
    other = AutoModelForCausalLM.from_pretrained(folder("olmo3"), dtype=torch.float32)
    before = own_functions(other)
    policy = Policy.load(folder("olmo3"), dtype=torch.float32)
    fuse(policy.model, CPU)
    assert own_functions(other) == before
    assert not any("forward" in vars(module) for module in other.modules())
    gone = weakref.ref(policy.model)
    del policy
    gc.collect()
    assert gone() is None
    later = AutoModelForCausalLM.from_pretrained(folder("olmo3"), dtype=torch.float32)
    assert own_functions(later) == before
    assert not any("forward" in vars(module) for module in later.modules())


def test_switched_off_the_model_is_its_own_and_afterwards_fused_again(folder, monkeypatch, not_compiled):
    monkeypatch.setattr(fused_layers, "is_as_exact", lambda *_: True)
    policy = Policy.load(folder("qwen3"), dtype=torch.float32)
    with torch.no_grad():
        expected = packed(policy)
        monkeypatch.setattr(*BROKEN[ROTARY])
        fuse(policy.model, CPU)
        broken = packed(policy)
        with switched_off(policy.model):
            assert torch.equal(packed(policy), expected)
        assert torch.equal(packed(policy), broken)
    assert not torch.allclose(broken, expected, atol=1e-3)


@pytest.mark.parametrize("dtype", TYPES)
@families("olmo3", compiled=["olmo3"])
def test_recomputed_layers_use_fused_functions_again(folder, maybe_compiled, family, dtype):
    results = []
    for checkpointing in (False, True):
        policy = Policy.load(folder(family), dtype=dtype, gradient_checkpointing=checkpointing).train()
        fuse(policy.model, CPU)
        results.append(computed(policy))
    torch.testing.assert_close(results[1], results[0], atol=0, rtol=0)


def test_a_gated_mlp_calls_its_adapters(folder, not_compiled):
    policy = Policy.load(folder("llama"), dtype=torch.float32, lora=LoraConfig(rank=2, alpha=4)).train()
    with torch.no_grad():  # B begins as 0
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(2))
    expected, expected_gradients = computed(policy)
    assert fuse(policy.model, CPU).counts[MLPS] == 2
    logprobs, ours = computed(policy)
    assert sum(".mlp." in name for name in ours) == 2 * 3 * 2
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours, expected_gradients, atol=1e-5, rtol=1e-5)


def test_without_a_compiler_norms_are_replaced_and_the_rest_is_told(folder, monkeypatch):
    def fails(*_):
        raise TorchDynamoException("No working C++ compiler found\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(fused_layers, "compiled", lambda _: fails)
    monkeypatch.setattr(fused_layers, "_PRODUCTS", {})
    model = AutoModelForCausalLM.from_pretrained(folder("llama"), dtype=torch.float32)
    replacements = fuse(model, CPU)
    assert dict(replacements.counts) == {NORMS: 5}
    reason = "the compiler failed: No working C++ compiler found"
    assert replacements.reasons == {ROTARY: reason, MLPS: reason}
    assert str(replacements) == f"norms in 5 modules; not {ROTARY}: {reason}; not {MLPS}: {reason}"


@pytest.mark.complete
def test_a_compiler_that_is_missing_is_noticed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(fused_layers, "_PRODUCTS", {})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    fused_layers.compiled.cache_clear()
    model = AutoModelForCausalLM.from_pretrained(folder("llama"), dtype=torch.float32)
    with torch._inductor.config.patch({"cpp.cxx": (None, str(tmp_path / "no compiler"))}):
        assert set(fuse(model, CPU).counts) == {NORMS}
    fused_layers.compiled.cache_clear()


def test_layers_are_fused_on_gpus_unless_they_are_compiled_or_it_is_switched_off():
    def fuses(gpu, **options):
        return LearnerConfig.model_validate(options).fuses_layers(gpu=gpu)

    assert [fuses(gpu) for gpu in (False, True)] == [False, True]
    assert [fuses(gpu, fused_layers=True) for gpu in (False, True)] == [True, True]
    assert [fuses(gpu, fused_layers=False) for gpu in (False, True)] == [False, False]
    assert not fuses(True, torch_compile=True)
    with pytest.raises(ValueError, match=r"learner\.fused_layers = true: torch_compile"):
        fuses(True, torch_compile=True, fused_layers=True)


@pytest.fixture
def one_rank(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)


def test_a_model_without_such_layers_is_refused_if_they_must_be_fused(folder, one_rank):
    config = TrainingConfig(learner=LearnerConfig(fused_layers=True))
    with pytest.raises(MistakeError, match=r"learner\.fused_layers = true: .* nothing, since the model has no layers"):
        Trainer(config, str(folder("gpt2")))


def test_one_line_says_what_was_replaced(folder, one_rank, not_compiled, monkeypatch, capsys):
    monkeypatch.setattr(deepspeed, "initialize", None)
    with pytest.raises(TypeError, match="not callable"):  # after functions were replaced
        Trainer(TrainingConfig(learner=LearnerConfig(fused_layers=True)), str(folder("gemma2")))
    lines = [line for line in capsys.readouterr().err.splitlines() if "fuses" in line]
    assert lines == [
        "the learner fuses rotary embedding in 2 modules; gated MLPs in 2 modules; not norms: it would compute "
        "something else"
    ]


def norm(hidden, weight):
    """A norm that computes in float32, as transformers' do."""
    wide = hidden.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight).to(hidden.dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_errors_are_compared_with_float64_even_if_a_function_computes_in_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator).to(dtype) for shape in ((16, 64), (64,))]
    unit = torch.finfo(dtype).eps
    assert is_as_exact(norm, norm, inputs)
    assert is_as_exact(lambda *x: nn.functional.rms_norm(x[0], (64,), x[1], 1e-6), norm, inputs)
    assert not is_as_exact(lambda *x: (1 + 4 * unit) * norm(*x), norm, inputs)
    assert not is_as_exact(lambda *x: norm(x[0], x[1].detach() + 0 * x[1]), norm, inputs)  # a wrong gradient
    assert not is_as_exact(lambda *x: norm(*x)[:8].repeat(2, 1), norm, inputs)
