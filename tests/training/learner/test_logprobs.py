import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from tasks.training.learner.liger import is_installed
from tasks.training.learner.logprobs import token_logprobs

pytestmark = pytest.mark.usefixtures("one_thread")

T, H, V = 23, 16, 50


def inputs(dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(T, H, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, H, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, V, (T,), generator=g)


def plain(hidden, weight, targets, temperature=1.0):
    logprobs = (hidden.double() @ weight.double().T / temperature).log_softmax(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


def gradients(logprobs, *leaves):
    weights = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype)
    return torch.autograd.grad((weights * logprobs).sum(), leaves, retain_graph=True)


def test_uniform_logits_by_hand():
    logprobs, entropy = token_logprobs(torch.zeros(3, H), torch.ones(V, H), torch.tensor([0, 7, 49]))
    torch.testing.assert_close(logprobs, torch.full((3,), 1 / V).log())
    torch.testing.assert_close(entropy, torch.full((3,), float(V)).log())


@pytest.mark.parametrize("chunk", [1, 5, T, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunks_equal_the_whole_in_values_and_gradients(chunk, temperature):
    hidden, weight, targets = inputs()
    logprobs, entropy = token_logprobs(hidden, weight, targets, temperature=temperature, chunk=chunk)
    expected, expected_entropy = plain(hidden, weight, targets, temperature)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, expected_entropy)
    torch.testing.assert_close(gradients(logprobs, hidden, weight), gradients(expected, hidden, weight))


HEADS = {
    "scale": {"scale": 1 / 8},
    "bias": {"bias": True},
    "cap": {"cap": 3.0},
    "all": {"scale": 0.5, "bias": True, "cap": 3.0},
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_a_scale_a_bias_and_a_cap_equal_the_plain_computation(head, entropy_gradient):
    hidden, weight, targets = inputs()
    leaves = [hidden, weight]
    if head.get("bias"):
        head = {**head, "bias": torch.linspace(-1, 2, V, dtype=torch.float64).requires_grad_()}
        leaves.append(head["bias"])
    options = {"temperature": 0.6, "chunk": 5, "entropy_gradient": entropy_gradient}
    logprobs, entropy = token_logprobs(hidden, weight, targets, **head, **options)
    logits = head.get("scale", 1.0) * (hidden @ weight.T + head.get("bias", 0.0))
    if "cap" in head:
        logits = head["cap"] * torch.tanh(logits / head["cap"])
    full = (logits / 0.6).log_softmax(-1)
    expected, expected_entropy = full.gather(1, targets[:, None])[:, 0], -(full.exp() * full).sum(-1)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, expected_entropy)
    if entropy_gradient:
        logprobs, expected = logprobs + 0.3 * entropy, expected + 0.3 * expected_entropy
    torch.testing.assert_close(gradients(logprobs, *leaves), gradients(expected, *leaves))


@pytest.mark.long
def test_gradients_are_those_of_finite_differences():
    hidden, weight, targets = inputs()
    assert torch.autograd.gradcheck(lambda h, w: token_logprobs(h, w, targets, chunk=7)[0], (hidden, weight))


def test_bfloat16_keeps_softmax_and_sums_in_float32():
    hidden, weight, targets = inputs(torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, weight, targets, chunk=4)
    assert logprobs.dtype == entropy.dtype == torch.float32
    expected, _ = plain(hidden, weight, targets)
    # bfloat16 holds 8 bits: logits of about 10 are off by up to 1/32
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=0.1)
    for grad, reference in zip(gradients(logprobs, hidden, weight), gradients(expected, hidden, weight), strict=True):
        assert grad.dtype == torch.bfloat16
        assert (grad - reference).norm() < 0.02 * reference.norm()


def test_entropy_is_detached():
    hidden, weight, targets = inputs()
    logprobs, entropy = token_logprobs(hidden, weight, targets)
    assert not entropy.requires_grad
    assert logprobs.requires_grad


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_entropys_gradient_equals_that_of_the_whole(temperature):
    hidden, weight, targets = inputs()
    ours = token_logprobs(hidden, weight, targets, temperature=temperature, chunk=7, entropy_gradient=True)
    theirs = plain(hidden, weight, targets, temperature)
    for take in (lambda both: both[1], lambda both: both[0] + 0.3 * both[1]):
        torch.testing.assert_close(gradients(take(ours), hidden, weight), gradients(take(theirs), hidden, weight))


@pytest.mark.long
def test_with_the_entropys_gradient_finite_differences_agree():
    hidden, weight, targets = inputs()
    assert torch.autograd.gradcheck(
        lambda h, w: token_logprobs(h, w, targets, chunk=7, entropy_gradient=True), (hidden, weight)
    )


def test_a_frozen_head_gets_no_gradient():
    hidden, weight, targets = inputs()
    logprobs, _ = token_logprobs(hidden, weight.detach(), targets)
    (grad,) = gradients(logprobs, hidden)
    torch.testing.assert_close(grad, gradients(plain(hidden, weight, targets)[0], hidden)[0])


def test_no_tokens_give_no_logprobs_and_zero_gradients():
    hidden, weight, targets = inputs()
    logprobs, entropy = token_logprobs(hidden[:0], weight, targets[:0])
    assert logprobs.shape == entropy.shape == (0,)
    assert all((grad == 0).all() for grad in torch.autograd.grad(logprobs.sum(), (hidden, weight)))


def test_logits_of_any_size_give_finite_values_and_gradients():
    hidden, weight, targets = inputs()
    logprobs, entropy = token_logprobs(hidden * 1e4, weight * 1e4, targets)
    assert logprobs.isfinite().all()
    assert entropy.isfinite().all()
    assert all(grad.isfinite().all() for grad in gradients(logprobs, hidden, weight))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.zeros(5, dtype=torch.long)}, r"got \[23, 16\], \[50, 16\] and \[5\]"),
        ({"lm_head_weight": torch.zeros(V, 3)}, r"got \[23, 16\], \[50, 3\] and \[23\]"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"chunk": 0}, "chunk at least 1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
    hidden, weight, targets = inputs()
    with pytest.raises(ValueError, match=message):
        token_logprobs(**{"hidden": hidden, "lm_head_weight": weight, "targets": targets, **change})


def test_a_later_pass_does_not_disturb_the_backward_pass_of_an_earlier_one():
    first, second = inputs(seed=1), inputs(seed=2)
    logprobs, _ = token_logprobs(*first, chunk=5)
    token_logprobs(*second, chunk=5)
    expected, _ = plain(*first)
    torch.testing.assert_close(gradients(logprobs, *first[:2]), gradients(expected, *first[:2]))


@pytest.mark.parametrize(("options", "calls"), [({}, 1), ({"fused": False}, 0), ({"entropy_gradient": True}, 0)])
def test_ligers_kernel_runs_where_it_is_wanted_and_can_serve(monkeypatch, options, calls):
    from tasks.training.learner import liger

    made = []

    def kernel(logits, targets):
        made.append(len(logits))
        slope = logits.softmax(-1)
        return slope.scatter_add_(1, targets[:, None], slope.new_full((len(slope), 1), -1.0))

    monkeypatch.setattr(liger, "can_run", lambda tensor: True)
    monkeypatch.setattr(liger, "softmax_minus_onehot_", kernel)
    hidden, weight = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    targets = torch.arange(6)
    logprobs, _ = token_logprobs(hidden, weight, targets, **options)
    expected = (hidden @ weight.T).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    for ours, theirs in zip(
        torch.autograd.grad(logprobs.sum(), (hidden, weight)),
        torch.autograd.grad(expected.sum(), (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    assert len(made) == calls


THROUGH_LIGER = """
import torch
from tasks.training.learner import liger
from tasks.training.learner.logprobs import token_logprobs

device = "cuda" if torch.cuda.is_available() else "cpu"
for dtype, exact in ((torch.float32, 1e-6), (torch.bfloat16, 2**-7)):
    for temperature in (1.0, 0.7):
        torch.manual_seed(0)
        hidden = torch.randn(23, 16, device=device).to(dtype).requires_grad_()
        weight = torch.randn(500, 16, device=device).to(dtype).requires_grad_()
        targets = torch.randint(0, 500, (23,), device=device)
        upstream = torch.linspace(-1, 2, 23, device=device)
        gradients = []
        for serves in (False, True):
            liger.can_run = lambda tensor: serves
            logprobs, _ = token_logprobs(hidden, weight, targets, temperature=temperature, chunk=5)
            gradients.append(torch.autograd.grad((upstream * logprobs).sum(), (hidden, weight)))
        for ours, theirs in zip(*gradients):
            worst = ((ours - theirs).abs().max() / ours.abs().max()).item()
            print("same" if worst <= exact else f"differs by {worst}")
"""


@pytest.mark.skipif(not is_installed() or find_spec("triton") is None, reason="liger-kernel is not installed")
def test_ligers_kernel_gives_the_same_gradients():
    """On a machine without a GPU, through Triton's interpreter."""
    environment = os.environ if torch.cuda.is_available() else os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", THROUGH_LIGER], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split("\n") == ["same"] * 8 + [""]
