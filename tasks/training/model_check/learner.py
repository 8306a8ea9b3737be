"""The learner's code path beside the model's own forward pass: before and after an update, and the export read back.

Needs no engine, no Ray and no DeepSpeed: one process, one copy of the model and its gradients. It is computed on a GPU
that holds them, and without one by the CPU.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tasks.machine.precision import Dtype
from tasks.storage.model_folder import weight_bytes, weight_files
from tasks.training.actors.engine_check import ModelCheckError
from tasks.training.learner import attention
from tasks.training.learner.adapter import merged, write_adapter
from tasks.training.learner.architecture import fix_rope
from tasks.training.learner.config import LoraConfig
from tasks.training.learner.packing import MicroBatch, pack
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.learner.policy import EAGER, Policy
from tasks.training.learner.rounding import rounding
from tasks.training.learner.weight_files import copy_all_but_weights

STEP = 0.005
"""Size of the update of every weight, in root mean squares of its tensor: above the rounding of 16 bits, and so small
that SmolLM2's log-probabilities in bfloat16 stay within the tolerance after it (with 0.05 they are off by 0.6 nats)."""
SHORT, SHORTER = 24, 17
"""Tokens of the sequences that are packed beside the longest."""
LONGEST = 4200
"""Tokens up to which a sequence longer than the original RoPE window is affordable."""
LONGEST_PRODUCT = 1e13
"""Largest product of tokens and weights without a GPU: a minute of 64 cores."""
PROMPT = 4
"""Tokens of each sequence that are not predicted."""
MEMORY = 3
"""Free memory that a GPU must have to compute the check, in sizes of the weights: they, their gradients, the rest."""
REPEATED = 0.1
"""Share of the tolerance within which a pass of the learner repeats itself."""
LIKELY = "; the likely cause is"
"""Words between a difference and its cause."""
RANDOM = "dropout, or another part that is random in training"
"""Cause of a learner that differs from itself."""
ADAPTER, INITIAL_ADAPTER = "adapter", "initial_adapter"
"""Folders of the updated and of the initial adapter, in that of the export."""


class Difference(NamedTuple):
    """A mean difference of log-probabilities, nats, and the largest that counts as rounding."""

    nats: float
    tolerance: float


class LearnerCheck:
    """The checks of one model in one type that need no engine.

    Attributes:
        policy: the model as the learner has it; `check` leaves its weights updated.
        figures: the differences, by what was compared.
    """

    def __init__(
        self,
        folder: Path,
        tokens: Sequence[int],
        *,
        dtype: Dtype,
        longest: int,
        lora: LoraConfig | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        """Load the model.

        Args:
            folder: a Hugging Face model folder.
            tokens: of a text, from which the sequences are cut.
            dtype: the learner's type.
            longest: the context of the engines, tokens.
            lora: the adapter that is trained in place of the weights.
            gradient_checkpointing: the learner's option.
        """
        self._folder = folder
        self._tokens = tokens
        self._longest = longest
        self._lora = lora
        self._device = _device_of(folder)
        self.policy = Policy.load(
            folder,
            dtype=getattr(torch, dtype),
            longest=longest,
            lora=lora,
            gradient_checkpointing=gradient_checkpointing,
        )
        if self._device.type == "cpu" and torch.cuda.is_available():
            self.policy.model.set_attn_implementation(attention.NAME)
        self.policy.to(self._device).train()
        self._other_version = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._trained()}
        self.tolerance = rounding(dtype)
        self.figures: dict[str, Difference] = {}

    def check(self, export: Path | None = None) -> dict[str, Difference]:
        """Run all checks, and return the differences, by what was compared.

        Args:
            export: folder to which the updated policy is written, with the initial and the updated adapter where there
                is one; None: a temporary one.

        Raises:
            ModelCheckError: two of them differ by more than the type's tolerance.
        """
        sequences = self._sequences()
        with contextlib.ExitStack() as stack:
            folder = export or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ours = self._compare("the learner and the model's own forward pass", sequences)
            if self.tolerance > rounding("float32"):
                self._repeat(sequences, ours)
            self._write_adapter(folder / INITIAL_ADAPTER)
            if self._lora:  # B begins as 0, and without it A has no gradient
                self._update(sequences, last=False)
            self._update(sequences, last=True)
            updated = self._compare("the learner and the model's own forward pass, after an update,", sequences)
            self._write_adapter(folder / ADAPTER)
            self._export(folder)
            self._read_back(folder, sequences, updated)
        return self.figures

    def logprobs(self, sequences: Sequence[TokenSequence], **rows: bool) -> list[Tensor]:
        """Return the learner's log-probabilities of each response, nats, float32; `rows` are options of `pack`."""
        [batches] = pack(list(sequences), sum(s.length for s in sequences), **{**self.policy.rows, **rows})  # type: ignore[arg-type]
        values: dict[int, Tensor] = {}
        with torch.no_grad():
            for batch in batches:
                row = self._forward(batch)
                for index in set(batch.sequence_ids[0].tolist()):
                    values[index] = row[torch.from_numpy(batch.sequence_ids[0] == index)]
        return [values[i] for i in range(len(sequences))]

    def _forward(self, batch: MicroBatch) -> Tensor:
        names = ("input_ids", "position_ids", "sources", "targets", "mask")
        arrays = {name: torch.from_numpy(getattr(batch, name)).to(self._device) for name in names}
        logprobs: Tensor = self.policy(**arrays, temperature=1.0)[0][0]
        return logprobs.cpu()

    def plain(self, sequences: Sequence[TokenSequence], model: PreTrainedModel | None = None) -> list[Tensor]:
        """Return the same from the forward pass of `model`, or of the policy's own, of each sequence alone."""
        with torch.no_grad(), _as_it_is(model or self.policy.model) as own:
            return [_chosen(own(_ids(s, self._device), use_cache=False).logits, s) for s in sequences]

    def prompts(self) -> list[list[int]]:
        """Return the tokens of the sequences that are checked, of which engines are asked for a continuation."""
        return [[*s.prompt_ids, *map(int, s.response_ids)] for s in self._sequences()]

    def leave_device(self) -> None:
        """Move the policy to main memory, from which the next comparison brings it back."""
        self.policy.cpu()
        torch.cuda.empty_cache()

    @contextlib.contextmanager
    def initial_weights(self) -> Iterator[None]:
        """Give the policy its weights of before the update for the length of a block."""
        self._swap_versions()
        try:
            yield
        finally:
            self._swap_versions()

    def _swap_versions(self) -> None:
        for name, parameter in self._trained():
            stored = self._other_version[name]
            self._other_version[name] = parameter.detach().to("cpu", copy=True)
            parameter.data.copy_(stored)

    def _trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return self.policy.adapter_parameters() if self._lora else self.policy.checkpoint_parameters()

    def compare_with(self, what: str, sampled: Sequence[TokenSequence], tolerance: float, cause: str) -> None:
        """Compare the log-probabilities that something else, such as an engine, has reported for its own samples.

        Args:
            what: it, for the message and `figures`.
            sampled: its samples, with `rollout_logprobs`.
            tolerance: largest mean difference, nats.
            cause: the end of the message, which names the likely cause.

        Raises:
            ModelCheckError: they differ by more.
        """
        self.policy.to(self._device)
        theirs = [torch.as_tensor(s.rollout_logprobs, dtype=torch.float32) for s in sampled]
        self._require(f"the learner and {what}", _apart(self.logprobs(sampled), theirs), tolerance, lambda: cause)

    def _require(self, what: str, apart: float, tolerance: float, cause: Callable[[], str]) -> None:
        self.figures[what] = Difference(apart, tolerance)
        if not apart <= tolerance:
            raise ModelCheckError(
                f"model {self._folder}: {what} differ by {apart:.2g} nats on average, where {tolerance:g} is "
                f"rounding{cause()}"
            )

    def _sequences(self) -> list[TokenSequence]:
        """Two short sequences and, where it is possible and affordable, one beyond the original RoPE window."""
        config = self.policy.model.config.get_text_config()
        rope = getattr(config, "rope_parameters", None) or {}
        window = rope.get("original_max_position_embeddings") or getattr(config, "sliding_window", None) or 0
        long = window + 8
        weights = sum(parameter.numel() for parameter in self.policy.parameters())
        if long > min(LONGEST, self._longest) or (self._device.type == "cpu" and long * weights > LONGEST_PRODUCT):
            long = 0
        tokens = itertools.cycle(self._tokens)

        def of(length: int) -> TokenSequence:
            ids = list(itertools.islice(tokens, min(length, self._longest)))
            return TokenSequence(ids[:PROMPT], ids[PROMPT:], [0.0] * (len(ids) - PROMPT), 1.0)

        return [of(SHORT), of(max(long, SHORT)), of(SHORTER)]

    def _compare(self, what: str, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Compare the learner's log-probabilities with those of the model's own forward pass, and return them."""
        ours = self.logprobs(sequences)
        apart = _apart(ours, self.plain(sequences))
        self._require(what, apart, self.tolerance, lambda: f"{LIKELY} {self._cause(sequences)}")
        return ours

    def _repeat(self, sequences: Sequence[TokenSequence], ours: list[Tensor]) -> None:
        """Compare the learner with itself: in 16 bits, rounding would hide a low rate of dropout.

        Kernels that add in another order each time, such as those of experts, are why a pass need not repeat exactly.
        """
        apart = _apart(ours, self.logprobs(sequences))
        self._require("two passes of the learner", apart, REPEATED * self.tolerance, lambda: f"{LIKELY} {RANDOM}")

    def _cause(self, sequences: Sequence[TokenSequence]) -> str:
        """Return what most likely makes the learner differ from the model's own forward pass."""
        short = [sequences[0], sequences[2]]
        if _apart(self.logprobs(sequences), self.logprobs(sequences)) > self.tolerance:
            return RANDOM
        if all(_apart(self.logprobs([s]), self.plain([s])) <= self.tolerance for s in sequences):
            if _apart(self.logprobs(short), self.plain(short)) > self.tolerance:
                return "packing: a recurrent state or a convolution leaks from a sequence into the next of its row"
            return "RoPE that depends on the length of the longest sequence of a row"
        return self._cause_in_head(sequences[0])

    def _cause_in_head(self, sequence: TokenSequence) -> str:
        with torch.no_grad(), _as_it_is(self.policy.model) as own:
            result = own(_ids(sequence, self._device), use_cache=False, output_hidden_states=True)
            head = own.get_output_embeddings()
            product = result.hidden_states[-1] @ head.weight.T
        if (bias := getattr(head, "bias", None)) is not None and bool(bias.any()):
            return "the bias of the head"
        logits, product = result.logits[0].double(), product[0].double()
        ratio = (logits * product).sum() / product.square().sum()
        if torch.allclose(logits, ratio * product, rtol=1e-2, atol=1e-2 * float(logits.abs().max())):
            alike = abs(float(ratio) - 1) < 1e-2
            return "its attention" if alike else f"a scale of the logits, of {float(ratio):.3g}"
        if bool((logits.abs() <= product.abs() * (1 + 1e-2) + 1e-3).all()):
            return "a soft cap of the logits"
        return "a head that is more than a matrix"

    def _update(self, sequences: Sequence[TokenSequence], *, last: bool) -> None:
        """Change every trained tensor by the sign of a gradient that the learner's code path computes.

        Raises:
            ModelCheckError: a tensor has no gradient in the `last` update.
        """
        [batches] = pack(list(sequences), sum(s.length for s in sequences), **self.policy.rows)
        for batch in batches:
            logprobs = self._forward(batch)
            (logprobs * torch.linspace(-1, 2, len(logprobs))).sum().backward()
        with torch.no_grad():
            for name, parameter in self._trained():
                if parameter.grad is None or (last and not bool(parameter.grad.any())):
                    raise ModelCheckError(f"model {self._folder}: no gradient reaches {name}")
                size = STEP * float(parameter.float().square().mean().sqrt()) or STEP
                parameter.add_(parameter.grad.sign(), alpha=size)
                parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the policy's tensors as its checkpoint has them, in main memory."""
        own = _in_memory(self.policy.checkpoint_parameters())
        if self._lora:
            own = merged(own, _in_memory(self.policy.adapter_parameters()), self._lora)
        return self.policy.in_checkpoint(own | _in_memory(self.policy.checkpoint_buffers()))

    def _write_adapter(self, folder: Path) -> None:
        if self._lora:
            write_adapter(folder, _in_memory(self.policy.adapter_parameters()), self._lora)

    def _export(self, folder: Path) -> None:
        tensors = self.tensors()
        self._compare_names(set(tensors))
        copy_all_but_weights(self._folder, folder, str(self.policy.model.dtype).removeprefix("torch."))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def _compare_names(self, ours: set[str]) -> None:
        """Compare the names of the export with those of the initial checkpoint, which is what engines take."""
        theirs: set[str] = set()
        for path in weight_files(self._folder):
            with safe_open(path, framework="pt") as file:
                theirs |= set(file.keys())
        if unknown := sorted(ours - theirs):
            raise ModelCheckError(
                f"model {self._folder}: the learner names a tensor {unknown[0]} ({len(unknown)} such), which the "
                "checkpoint does not have and engines would not take; the likely cause is experts, or other tensors "
                "that transformers joins"
            )

    def _read_back(self, folder: Path, sequences: Sequence[TokenSequence], ours: list[Tensor]) -> None:
        """Load the export by transformers, and compare it with the policy that was written, which gave `ours`."""
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=self.policy.model.dtype, attn_implementation=EAGER, output_loading_info=True
        )
        model, info = loaded
        if missing := sorted(info["missing_keys"]):
            raise ModelCheckError(
                f"model {self._folder}: the export lacks {missing[0]} ({len(missing)} such); the likely cause is a "
                "buffer, which no gradient changes"
            )
        fix_rope(model, self._longest)
        apart = _apart(self.plain(sequences, model.to(self._device)), ours)
        self._require("the learner and the export, read back,", apart, self.tolerance, str)


def _device_of(folder: Path) -> torch.device:
    """Return the GPU if it has memory for the weights in `folder`, their gradients and a row; else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    free, _ = torch.cuda.mem_get_info()
    return torch.device("cuda" if MEMORY * weight_bytes(folder) < free else "cpu")


def _in_memory(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors}


@contextlib.contextmanager
def _as_it_is(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Give the model transformers' plain attention, and no dropout, for the length of a block."""
    before, training = model.config._attn_implementation, model.training
    model.set_attn_implementation(EAGER)
    try:
        yield model.eval()
    finally:
        model.set_attn_implementation(before)
        model.train(training)


def _ids(sequence: TokenSequence, device: torch.device) -> Tensor:
    return torch.tensor([[*sequence.prompt_ids, *map(int, sequence.response_ids)]], device=device)


def _chosen(logits: Tensor, sequence: TokenSequence) -> Tensor:
    targets = torch.tensor([int(token) for token in sequence.response_ids], device=logits.device)
    own = logits[0, len(sequence.prompt_ids) - 1 : -1].float().log_softmax(-1)
    return own.gather(1, targets[:, None])[:, 0].cpu()


def _apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Largest of the sequences' mean differences, nats; NaN where one of them is."""
    return float(torch.stack([(own - other).abs().mean() for own, other in zip(ours, theirs, strict=True)]).max())
