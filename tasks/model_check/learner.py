"""Compares the learner with the model's own forward pass.

    structure   in float32, learner, model and export must agree, before and after an update
    rounding    in 16 bits, the learner's distance from float32 must be about that of the model
    head        with `head_dtype: float32`, the learner's head must not round to 16 bits

Errors of packing, RoPE, head, dropout or names are errors of structure. In float32 they are found even if they are a
thousand times smaller than the rounding of 16 bits. The check needs one process with one copy of the model and its
gradients, and no engine, Ray or DeepSpeed. It runs on a GPU if that has the memory, else on the CPU.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tasks.failures import MistakeError, one_line
from tasks.machine.precision import Dtype, HeadDtype
from tasks.machine.progress import Begin
from tasks.model_check.casting import compute_in_dtype, float32_head
from tasks.model_check.causes import Causes
from tasks.model_check.comparison import (
    FLOAT32,
    TIMES_PLAIN,
    Difference,
    Figures,
    ModelCheckError,
    compute_difference,
    compute_tolerance,
    compute_typical_error,
)
from tasks.model_check.forward import compute_plain_logprobs, compute_row_logprobs
from tasks.model_check.groups import find_kind, split_into_groups
from tasks.model_check.tensors import choose_device, compute_size, copy_to_memory, ensure_own_memory, use_merged_weights
from tasks.model_check.text import STRIDE, cut, make_cuttings
from tasks.recipe.learner import LoraConfig
from tasks.storage.model_folder import ModelError, list_weight_files
from tasks.training.learner import attention
from tasks.training.learner.adapter import merge_adapter, write_adapter
from tasks.training.learner.architecture import fix_rope
from tasks.training.learner.fused_layers import fuse
from tasks.training.learner.packing import MicroBatch, pack
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.learner.policy import EAGER, Policy, choose_attention
from tasks.training.learner.weight_files import copy_all_but_weights

STEP = 0.005
"""Smallest step of the update, as a multiple of the root mean square of the tensor."""
LARGEST_STEP = 8 * STEP
"""Largest step of the update. A third of it is still more than the rounding of bfloat16."""
SHORT, SHORTER = 24, 17
"""Number of tokens of the short sequences."""
LONGEST = 4200
"""Largest number of tokens at which a sequence longer than the original RoPE window is affordable."""
LONGEST_PRODUCT = 1e13
"""Largest product of tokens and weights without a GPU: a minute of 64 cores."""
ROUNDING_LENGTHS = (24, 48, 80, 17, 33, 64, 100)
"""Number of tokens of each sequence that is used to measure rounding."""
ROUNDING_TOKENS = 2000
"""Total number of predicted tokens of these sequences. With this many, the median error varies by a tenth over
texts."""
ADAPTER, INITIAL_ADAPTER = "adapter", "initial_adapter"
"""Names of the folders of the updated and of the initial adapter, inside the folder of the export."""


class LearnerCheck:
    """Checks a model in the learner, without an engine.

    Attributes:
        policy: the model in the learner; after `check` its weights are the updated ones.
        dtype: the learner's type.
        figures: the measured differences, by what was compared.
        begin: called with what is compared, when the comparison begins.
    """

    def __init__(
        self,
        folder: Path,
        tokens: Sequence[int],
        *,
        dtype: Dtype,
        longest: int,
        lora: LoraConfig | None = None,
        head_dtype: HeadDtype = "model",
        gradient_checkpointing: bool = False,
        fused_layers: bool = False,
        begin: Begin = lambda _: None,
    ) -> None:
        """Load the model.

        Args:
            folder: a Hugging Face model folder.
            tokens: token ids of a text; the check cuts it into sequences.
            dtype: the learner's type.
            longest: the context of the engines, tokens.
            lora: the adapter that is trained instead of the weights.
            head_dtype: type of the logits, in the learner and in the model's own forward pass.
            gradient_checkpointing: the learner's option.
            fused_layers: whether the learner replaces functions of its layers by fused ones.
            begin: called with what is compared, when the comparison begins.

        Raises:
            ModelError: the learner cannot compute the model.
            ModelCheckError: the tokenizer returns no tokens for the text.
        """
        if not tokens:
            raise ModelCheckError(f"model {folder}: its tokenizer returns no tokens for a text")
        self._folder = folder
        self._tokens = tokens
        self._longest = longest
        self._lora = lora
        self._device = choose_device(folder)
        self.begin = begin
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._float32_head = head_dtype == "float32"
        self.policy = Policy.load(
            folder,
            dtype=self.dtype,
            longest=longest,
            lora=lora,
            gradient_checkpointing=gradient_checkpointing,
            float32_head=self._float32_head,
        )
        self._set_attention(self.dtype)
        self.policy.to(self._device).train()
        if fused_layers:
            fuse(self.policy.model, self._device)
        self._other_version = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._list_trained()}
        self.figures = Figures(folder)

    def check(self, export: Path | None = None) -> dict[str, Difference]:
        """Run all checks, and return the differences, by what was compared.

        Args:
            export: folder for the updated policy and, with LoRA, for both adapters. Default: a temporary folder.

        Raises:
            ModelCheckError: two of them differ by more than rounding.
            ModelError: the learner cannot compute the model.
        """
        sequences = self.sequences()
        with contextlib.ExitStack() as stack:
            folder = export or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            with self._handle_layer_errors():
                self._compare("the learner and the model's own forward pass", sequences)
            if self.dtype != torch.float32:
                self._check_rounding()
                if self._float32_head:
                    self._check_head()
            self._write_adapter(folder / INITIAL_ADAPTER)
            if self._lora:  # B begins as 0, and without it A has no gradient
                self._update(sequences, last=False)
            self._update(sequences, last=True)
            updated = self._compare("the learner and the model's own forward pass, after an update,", sequences)
            self._write_adapter(folder / ADAPTER)
            self._export(folder)
            self._read_back(folder, sequences, updated)
        return self.figures

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Return the learner's log-probabilities of each response, nats, float32."""
        [batches] = pack(list(sequences), sum(s.length for s in sequences), **self.policy.rows)
        values: dict[int, Tensor] = {}
        with torch.no_grad():
            for batch in batches:
                row = self._forward(batch)
                for index in set(batch.sequence_ids[0].tolist()) - {-1}:
                    values[index] = row[torch.from_numpy(batch.sequence_ids[0] == index)]
        return [values.get(i, torch.zeros(0)) for i in range(len(sequences))]

    def _forward(self, batch: MicroBatch) -> Tensor:
        names = ("input_ids", "position_ids", "sources", "targets", "mask")
        arrays = {name: torch.from_numpy(getattr(batch, name)).to(self._device) for name in names}
        logprobs: Tensor = self.policy(**arrays, temperature=1.0)[0][0]
        return logprobs.cpu()

    def plain(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Return the log-probabilities of the model's own forward pass, one sequence at a time."""
        with float32_head(self.policy.model) if self._float32_head else contextlib.nullcontext():
            return compute_plain_logprobs(self.policy.model, sequences)

    @contextlib.contextmanager
    def compute_in_dtype(self, dtype: torch.dtype, rounded: torch.dtype | None = None) -> Iterator[None]:
        """Run learner and model in `dtype` within the block; see `casting.compute_in_dtype`."""
        with compute_in_dtype(self.policy.model, dtype, rounded):
            self._set_attention(dtype)
            try:
                yield
            finally:
                self._set_attention(self.dtype)

    def _set_attention(self, dtype: torch.dtype) -> None:
        """Set the attention that the learner uses for `dtype` on this device."""
        model = self.policy.model
        name = attention.NAME if self._device.type == "cpu" else choose_attention(model.config, dtype)
        if model.config._attn_implementation != name:
            model.set_attn_implementation(name)

    def exact(self, sequences: Sequence[TokenSequence], rounded: torch.dtype | None = None) -> list[Tensor]:
        """Return the learner's log-probabilities in float32, nats, with weights rounded to the type `rounded`."""
        with self.compute_in_dtype(torch.float32, rounded):
            return self.logprobs(sequences)

    def compute_usual_error(
        self, sequences: Sequence[TokenSequence], exact: Sequence[Tensor], dtype: torch.dtype
    ) -> float:
        """Return the typical error of the model's own forward pass in `dtype`, nats."""
        with self.compute_in_dtype(dtype):
            return compute_typical_error(self.plain(sequences), exact)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """Return prompts for an engine: all sequences of this check, and `count` prompts of `length` tokens."""
        more = [cut(self._tokens, length, number * STRIDE) for number in range(count)]
        return [[*s.prompt_ids, *map(int, s.response_ids)] for s in [*self.sequences(), *more]]

    def leave_device(self) -> None:
        """Move the policy to main memory; `return_to_device` undoes this."""
        self.policy.cpu()
        torch.cuda.empty_cache()

    def return_to_device(self) -> None:
        """Move the policy back to the device of the check."""
        self.policy.to(self._device)

    @contextlib.contextmanager
    def restore_initial_weights(self) -> Iterator[None]:
        """Use the weights from before the update within the block."""
        with self.restore_old_weights([name for name, _ in self._list_trained()]):
            yield

    @contextlib.contextmanager
    def restore_old_weights(self, names: Iterable[str]) -> Iterator[None]:
        """Use the values from before the update for the named tensors within the block."""
        tensors = dict(self._list_trained())
        names = list(names)
        self._swap(tensors, names)
        try:
            yield
        finally:
            self._swap(tensors, names)

    @property
    def tied(self) -> str | None:
        """Name of the embedding if it is trained and also the head's weight, else None."""
        model = self.policy.model
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        return next((name for name, tensor in self._list_trained() if tensor is embedding is head), None)

    @contextlib.contextmanager
    def restore_old_embedding(self, name: str, *, head: bool) -> Iterator[None]:
        """Use the old values of a tied embedding within the block, in the head only or in the embedding only."""
        module = self.policy.model.get_output_embeddings()
        tied = module.weight
        values = self._other_version[name] if head else tied
        module.weight = torch.nn.Parameter(values.detach().to(self._device, copy=True), requires_grad=False)
        try:
            with contextlib.nullcontext() if head else self.restore_old_weights([name]):
                yield
        finally:
            module.weight = tied

    def _swap(self, tensors: dict[str, torch.nn.Parameter], names: Iterable[str]) -> None:
        for name in names:
            stored, parameter = self._other_version[name], tensors[name]
            self._other_version[name] = parameter.detach().to("cpu", copy=True)
            parameter.data.copy_(stored)

    def _list_trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        tensors = self.policy.adapter_parameters() if self._lora else self.policy.checkpoint_parameters()
        return ((name, tensor) for name, tensor in tensors if tensor.requires_grad)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of the trained tensors by group (`split_into_groups`)."""
        return split_into_groups(dict(self._list_trained()))

    def sequences(self) -> list[TokenSequence]:
        """Return two short sequences and, between them, one beyond the RoPE window if that is affordable."""
        config = self.policy.model.config.get_text_config()
        rope = getattr(config, "rope_parameters", None) or {}
        window = rope.get("original_max_position_embeddings") or getattr(config, "sliding_window", None) or 0
        long = window + 8
        if long > min(LONGEST, self._longest) or self._limit_tokens(long) < long:
            long = 0
        return [
            cut(self._tokens, min(length, self._longest)) for length in (SHORT, max(long, SHORT), min(SHORT, SHORTER))
        ]

    def _limit_tokens(self, tokens: int) -> int:
        """Return `tokens`, or less if there is no GPU and the CPU would need more than about a minute."""
        if self._device.type != "cpu":
            return tokens
        weights = sum(parameter.numel() for parameter in self.policy.parameters())
        return max(min(tokens, int(LONGEST_PRODUCT / weights)), 1)

    def _compare(self, what: str, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Compare learner and model in float32; return the model's log-probabilities."""
        self.begin(what)
        with self.compute_in_dtype(torch.float32):
            plain = self.plain(sequences)
            difference = compute_difference(self.logprobs(sequences), plain)
            causes = Causes(self.policy, self.logprobs, self.plain)
            self.figures.require(what, difference, FLOAT32, lambda: causes.describe_cause(sequences))
        return plain

    @contextlib.contextmanager
    def _handle_layer_errors(self) -> Iterator[None]:
        """Replace errors of layers that do not support packed rows within the block.

        Raises:
            ModelError: instead of these errors.
        """
        try:
            yield
        except (MistakeError, torch.OutOfMemoryError):
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"model {self._folder}: the learner does not support models of the type "
                f"`{self.policy.model.config.model_type}`; use another model. Its forward pass on packed rows failed "
                f"with {type(error).__name__}: {one_line(error)}"
            ) from error

    def _check_rounding(self) -> None:
        """Compare the learner's error in 16 bits with that of the model's own forward pass."""
        name = str(self.dtype).removeprefix("torch.")
        self.begin(what := f"the learner in {name} and in float32")
        sequences = self._make_rounding_sequences()
        with self.compute_in_dtype(torch.float32):
            exact = self.plain(sequences)
        usual = self.compute_usual_error(sequences, exact, self.dtype)
        self.figures.require(
            what,
            compute_typical_error(self.logprobs(sequences), exact),
            compute_tolerance(usual, TIMES_PLAIN),
            lambda: f" (the model's own forward pass: {usual:.2g}); the likely cause is its attention in {name}",
        )

    def _check_head(self) -> None:
        """Compare the learner's float32 head with the model's on equal hidden states, which 16 bits have rounded.

        The rounding of a head in 16 bits is found, which the comparison of whole models does not tell from theirs.
        """
        self.begin(what := "the learner's head and the model's own in float32")
        sequence = cut(self._tokens, min(max(ROUNDING_LENGTHS), self._longest))
        with float32_head(self.policy.model):
            theirs = compute_row_logprobs(self.policy.model, sequence)
        self.figures.require(
            what,
            compute_difference(self.logprobs([sequence]), [theirs]),
            FLOAT32,
            lambda: "; the likely cause is a head that the learner does not compute in float32 (`head_dtype`)",
        )

    def _update(self, sequences: Sequence[TokenSequence], *, last: bool) -> None:
        """Change every trained tensor by the sign of its gradient, which the learner's code path computes.

        Steps are larger for kinds of tensors that change the policy less, so that old values of any kind are detected.

        Raises:
            ModelCheckError: a tensor has no gradient in the `last` update.
        """
        [batches] = pack(list(sequences), sum(s.length for s in sequences), **self.policy.rows)
        for batch in batches:
            logprobs = self._forward(batch)
            (logprobs * torch.linspace(-1, 2, len(logprobs))).sum().backward()
        effects: dict[str, float] = {}
        for name, parameter in self._list_trained():
            if parameter.grad is None or (last and not bool(parameter.grad.any())):
                raise ModelCheckError(f"model {self._folder}: no gradient reaches {name}")
            kind = find_kind(name, parameter)
            effects[kind] = effects.get(kind, 0.0) + compute_size(parameter) * float(parameter.grad.float().abs().sum())
        strongest = max(effects.values())
        with torch.no_grad():
            for name, parameter in self._list_trained():
                assert parameter.grad is not None
                effect = effects[find_kind(name, parameter)]
                step = min(STEP * strongest / effect, LARGEST_STEP) if effect > 0 else STEP
                parameter.add_(parameter.grad.sign(), alpha=step * compute_size(parameter))
                parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the policy's tensors as in its checkpoint, in main memory."""
        own = copy_to_memory(self.policy.checkpoint_parameters())
        if self._lora:
            own = merge_adapter(own, copy_to_memory(self.policy.adapter_parameters()), self._lora)
        named = self.policy.in_checkpoint(own | copy_to_memory(self.policy.checkpoint_buffers()))
        return {name: ensure_own_memory(tensor) for name, tensor in named.items()}

    def _write_adapter(self, folder: Path) -> None:
        if self._lora:
            write_adapter(folder, copy_to_memory(self.policy.adapter_parameters()), self._lora)

    def _export(self, folder: Path) -> None:
        tensors = self.tensors()
        self._compare_names(set(tensors))
        copy_all_but_weights(self._folder, folder, str(self.policy.model.dtype).removeprefix("torch."))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def _compare_names(self, ours: set[str]) -> None:
        """Compare the names in the export with the names in the initial checkpoint, which engines load."""
        theirs: set[str] = set()
        for path in list_weight_files(self._folder):
            with safe_open(path, framework="pt") as file:
                theirs |= set(file.keys())
        if unknown := sorted(ours - theirs):
            raise ModelCheckError(
                f"model {self._folder}: the learner names a tensor {unknown[0]} ({len(unknown)} such), which the "
                "checkpoint does not have and engines would not take; the likely cause is experts, or other tensors "
                "that transformers joins"
            )

    def _read_back(self, folder: Path, sequences: Sequence[TokenSequence], ours: list[Tensor]) -> None:
        """Load the export with transformers, and compare it in float32 with the policy, whose result was `ours`."""
        self.begin(what := "the learner and the export, read back,")
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
        model.to(self._device)
        with compute_in_dtype(model, torch.float32):
            theirs = compute_plain_logprobs(model, sequences)
        if self._lora:  # merging rounded the weights
            with use_merged_weights(self.policy, self._lora), self.compute_in_dtype(torch.float32):
                ours = self.plain(sequences)
        self.figures.require(what, compute_difference(theirs, ours), FLOAT32, str)

    def _make_rounding_sequences(self) -> list[TokenSequence]:
        lengths = [min(length, self._longest) for length in ROUNDING_LENGTHS]
        return make_cuttings(self._tokens, lengths, self._limit_tokens(ROUNDING_TOKENS))
