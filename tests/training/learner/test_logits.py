"""The functions of a chunk, compiled for a CPU in place of a GPU, beside the plain ones."""

import logging
import re

import pytest
import torch

from tasks.machine.gpus import GpuError
from tasks.training.learner import logits
from tasks.training.learner.logits import Blocks, Shape, compiled, prepare_for_device

pytestmark = pytest.mark.usefixtures("one_thread")

V = 300
ROUNDING = {torch.bfloat16: 2**-9, torch.float32: 2**-24}
"""Largest relative error of rounding to the nearest number of a type."""
HEADS = {
    "plain": (Shape(1.0, None, 1.0), False, False),
    "scale, cap and bias": (Shape(0.5, 3.0, 0.6), True, False),
    "scale, bias and entropy": (Shape(0.5, None, 0.6), True, True),
    "cap and entropy": (Shape(1.0, 3.0, 1.0), False, True),
}
"""A shape, whether there is a bias, and whether the entropy has a gradient. Compiling a case takes some 10 seconds."""
GPU = torch.device("cuda")


def chunk(rows, dtype, *, bias, entropy):
    """A product [rows, V], bias, targets, and the factors of log-probabilities and entropies."""
    g = torch.Generator().manual_seed(rows)
    product, biases = (4 * torch.randn(*shape, generator=g).to(dtype) for shape in ((rows, V), (V,)))
    of_logprobs, of_entropy = torch.randn(2, rows, generator=g)
    targets = torch.randint(0, V, (rows,), generator=g)
    return product, biases if bias else None, targets, of_logprobs, of_entropy if entropy else None


def tensors_of_rows(code):
    """Number of tensors [rows, V] that a compiled function makes."""
    return len(re.findall(rf"empty_strided\w*\(\(\w+, {V}\)", code))


@pytest.mark.complete
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize(("shape", "bias", "entropy"), HEADS.values(), ids=HEADS.keys())
def test_compiled_functions_compute_what_plain_ones_do_for_any_number_of_rows(shape, bias, entropy, dtype):
    torch._dynamo.reset()
    compiled.cache_clear()
    for rows in (24, 7):
        product, biases, targets, *factors = chunk(rows, dtype, bias=bias, entropy=entropy)
        before, blocks = product.clone(), Blocks(product.device, V, rows)
        ours = compiled(logits.values)(product, biases, targets, shape)
        slope = compiled(logits.compute_slope)(product, biases, targets, *factors, shape)
        assert torch.equal(product, before)
        theirs = logits.values(before.clone(), biases, targets, shape, blocks=blocks)
        # values and logits are below 32; the order of V sums differs, and functions such as exp by a few roundings
        for our, their in zip(ours, theirs, strict=True):
            torch.testing.assert_close(our, their, rtol=0, atol=32 * 8 * ROUNDING[torch.float32])
        expected = logits.compute_slope(before.clone(), biases, targets, *factors, shape, blocks=blocks)
        assert slope.dtype == expected.dtype == (torch.float32 if bias else dtype)
        # in 16 bits a difference in float32 can round to the next number
        torch.testing.assert_close(
            slope, expected, rtol=2 * ROUNDING[slope.dtype], atol=32 * 32 * ROUNDING[torch.float32]
        )


@pytest.mark.complete
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_compiled_functions_of_a_plain_head_make_no_tensor_of_the_vocabulary_but_the_gradient(dtype):
    """The plain ones make one or two for values, and as many for the gradient."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    compiled.cache_clear()
    product, bias, targets, *factors = chunk(24, dtype, bias=False, entropy=False)
    shape = Shape(1.0, None, 1.0)
    _, [code] = run_and_get_code(compiled(logits.values), product, bias, targets, shape)
    assert tensors_of_rows(code) == 0
    _, [code] = run_and_get_code(compiled(logits.compute_slope), product, bias, targets, *factors, shape)
    assert tensors_of_rows(code) == 1


def test_on_a_gpu_functions_are_compiled_and_elsewhere_they_use_blocks(monkeypatch):
    monkeypatch.setattr(logits, "check_compiler", lambda: None)
    logits.can_compile.cache_clear()
    blocks = Blocks(torch.device("cpu"), V, 8)
    assert prepare_for_device(logits.values, GPU, blocks) is compiled(logits.values)
    assert prepare_for_device(logits.values, torch.device("cpu"), blocks).keywords == {"blocks": blocks}


def test_on_a_gpu_without_a_compiler_functions_are_plain_and_one_line_says_so(monkeypatch, caplog):
    def missing():
        raise GpuError("there is no C compiler")

    monkeypatch.setattr(logits, "check_compiler", missing)
    logits.can_compile.cache_clear()
    blocks = Blocks(GPU, V, 8)
    with caplog.at_level(logging.WARNING):
        functions = [prepare_for_device(function, GPU, blocks) for function in (logits.values, logits.compute_slope)]
    assert [function.keywords for function in functions] == [{"blocks": blocks}] * 2
    [line] = caplog.messages
    assert "not compiled" in line
    assert "no C compiler" in line


@pytest.fixture(autouse=True)
def _machine_is_asked_again():
    yield
    logits.can_compile.cache_clear()
