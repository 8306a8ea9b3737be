"""Checks a learner rank that trains a whole model: memory, speed, LoRA, and offloading and reloading of states."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.gpu_check.results import Findings, SkippedError
from tasks.gpu_check.sizes import Sizes
from tasks.gpu_check.timing import measure_median_seconds, measure_seconds, read_bytes_in_use, read_peak_bytes, release
from tasks.recipe.gpu_shares import PlacementOption
from tasks.recipe.run import TrainingConfig
from tasks.sizing import roofline
from tasks.sizing.rank_memory import estimate_learner_memory
from tasks.sizing.roofline import GB, Gpu
from tasks.training.learner.packing import MicroBatch, Sequence, pack
from tasks.training.learner.rank import LearnerRank

if TYPE_CHECKING:
    from tasks.training.learner.trainer import Trainer

APART = 0.15
"""Largest difference between the peak memory and what `plan` computes, as a fraction of the latter."""
ROWS = 2
"""Number of micro-batches of an optimizer step: the second one adds to the gradients of the first."""
PROMPT = 16
"""Number of tokens of each sequence that are not trained."""
LORA = {"rank": 16, "alpha": 32}
"""Options of the adapter that is trained."""


class LearnerChecks:
    """The checks that train the model in one folder; a trainer built by one check is reused by the next."""

    def __init__(self, sizes: Sizes, folder: Path) -> None:
        """`folder` contains the model that is trained, as `save_random_model` writes it."""
        self._sizes = sizes
        self._folder = folder
        self._trainer: Trainer | None = None
        self._others = 0  # bytes on the GPU that do not belong to the trainer

    def check_training(self, findings: Findings) -> None:
        """Train all weights on packed rows: memory compared with `plan`, trained tokens/s, MFU."""
        self._train(findings, self.build(findings, self.config(self._sizes.row)), self._sizes.row, mfu=True)

    def check_without_recomputing(self, findings: Findings) -> None:
        """Train all weights on shorter rows, storing all activations: memory compared with `plan`."""
        self.close()
        config = self.config(self._sizes.short_row, gradient_checkpointing=False)
        self._train(findings, self.build(findings, config), self._sizes.short_row)
        self.close()

    def check_offloading(self, findings: Findings) -> None:
        """Move all states of the trained learner to main memory and back; the policy must not change."""
        if self._trainer is None:
            raise SkippedError("no learner was built: see the check before.")
        trainer, row = self._trainer, self.rows(self._sizes.row)[:1]
        before, used = trainer.logprobs(row)[0], read_bytes_in_use()
        if trainer.engine.device.type != "cuda":
            raise SkippedError("there is no GPU to offload states from.")
        for turn in ("first", "second"):
            findings.figures[f"offload_states, {turn} time, s"] = measure_seconds(trainer.offload_states)
            findings.figures[f"GPU memory left, {turn} time, GB"] = read_bytes_in_use() / GB
            findings.figures[f"reload_states, {turn} time, s"] = measure_seconds(trainer.reload_states)
        findings.figures["GPU memory before, GB"] = used / GB
        findings.figures["GPU memory afterwards, GB"] = read_bytes_in_use() / GB
        same = np.array_equal(before, trainer.logprobs(row)[0])
        findings.require(same, "Log-probabilities changed while the states were in main memory.")
        norm = trainer.step(row, _count_trained(row), 1e-6).grad_norm
        findings.require(math.isfinite(norm), f"The gradient norm of the next step is {norm}.")

    def check_lora(self, findings: Findings) -> None:
        """Train an adapter with frozen weights: memory compared with `plan`, trained tokens/s."""
        self.close()
        trainer = self.build(findings, self.config(self._sizes.row, lora=LORA))
        frozen = next(own for name, own in trainer.policy.named_parameters() if ".base_layer." in name)
        before = frozen.detach().clone()
        self._train(findings, trainer, self._sizes.row)
        findings.require(torch.equal(before, frozen), "LoRA changed a frozen weight.")
        self.close()

    def close(self) -> None:
        """Drop the trainer, and release its memory."""
        self._trainer = None
        release()

    def config(
        self,
        row: tuple[int, ...],
        *,
        gradient_checkpointing: bool = True,
        lora: dict[str, int] | None = None,
        placement: PlacementOption = "apart",
        more: Mapping[str, Any] | None = None,
    ) -> TrainingConfig:
        """Return the options of a run that trains on rows with sequences of these lengths; `more` are the learner's."""
        tokens = sum(row)
        learner = {
            "micro_batch_tokens": tokens,
            "logprob_chunk_tokens": self._sizes.chunk,
            "gradient_checkpointing": gradient_checkpointing,
            **(more or {}),
        }
        engine = {"max_model_len": tokens + 1}
        return TrainingConfig.model_validate({
            "learner": learner,
            "actors": {"engine": engine},
            "sampling": {"samples": 2, "max_tokens": tokens},
            "lora": lora,
            "placement": placement,
        })  # fmt: skip

    def build(self, findings: Findings, config: TrainingConfig) -> Trainer:
        """Return a new trainer of one rank; record its optimizer, attention and type in the findings."""
        self._others = read_bytes_in_use()
        rank = LearnerRank(config, str(self._folder))
        findings.figures["seconds to build"] = measure_seconds(
            lambda: rank.setup(0, 0, 1, ("127.0.0.1", _find_free_port()))
        )
        self._trainer = rank.trainer
        optimizer = type(rank.trainer.engine.optimizer.optimizer)
        findings.figures["optimizer"] = f"{optimizer.__module__}.{optimizer.__name__}"
        findings.figures["attention"] = str(rank.trainer.policy.model.config._attn_implementation)
        findings.figures["dtype"] = str(next(rank.trainer.policy.parameters()).dtype).removeprefix("torch.")
        return rank.trainer

    def rows(self, lengths: tuple[int, ...]) -> list[MicroBatch]:
        """Return `ROWS` rows of random tokens in sequences of these lengths, as if an engine had sampled them."""
        return [pack(self.sequences(lengths, seed), sum(lengths))[0][0] for seed in range(ROWS)]

    def sequences(self, lengths: tuple[int, ...], seed: int = 0) -> list[Sequence]:
        """Return the sequences of the row number `seed`."""
        random = np.random.default_rng(seed)

        def make_sequence(length: int) -> Sequence:
            ids = random.integers(self._sizes.model.vocabulary, size=length).tolist()
            n = length - PROMPT
            return Sequence(ids[:PROMPT], ids[PROMPT:], [-1.0] * n, float(random.normal()))

        return [make_sequence(length) for length in lengths]

    def _train(self, findings: Findings, trainer: Trainer, lengths: tuple[int, ...], *, mfu: bool = False) -> None:
        backward, update = self.measure(findings, trainer, lengths, mfu=mfu)
        self._compare_memory(findings, trainer, backward, update)

    def measure(
        self, findings: Findings, trainer: Trainer, lengths: tuple[int, ...], *, mfu: bool = False
    ) -> tuple[int, int]:
        """Take steps on packed rows: trained tokens/s and, if it is wanted, MFU.

        Returns:
            The peaks of GPU memory in the forward and backward passes, and in the optimizer's step, bytes.
        """
        rows = self.rows(lengths)
        norms: list[float] = []
        before_step: list[int] = []
        take_step = trainer.engine.step

        def take_measured_step() -> None:
            before_step.append(read_peak_bytes(reset=True))
            take_step()

        def step() -> None:
            norms.append(trainer.step(rows, _count_trained(rows), 1e-6).grad_norm)

        findings.figures["tokens of a row"] = rows[0].num_tokens
        findings.figures["rows of a step"] = len(rows)
        findings.figures["first step, s"] = measure_seconds(step)  # the optimizer creates its moments at the end of it
        findings.figures["GPU memory between steps, GB"] = (read_bytes_in_use() - self._others) / GB
        read_peak_bytes(reset=True)
        trainer.engine.step = take_measured_step
        try:
            step()
            backward, update = before_step[-1], read_peak_bytes(reset=True)
        finally:
            del trainer.engine.step  # restores the method of the class
        seconds = measure_median_seconds(step, self._sizes.steps)
        findings.figures["step, s"] = seconds
        findings.figures["trained tokens/s"] = _count_trained(rows) / seconds
        findings.require(all(math.isfinite(n) and n > 0 for n in norms), f"Gradient norms are {norms}.")
        gpu = find_gpu_here()
        if mfu and gpu:
            findings.figures["MFU"] = roofline.compute_flops_utilization(
                sum(row.num_tokens for row in rows) / seconds,
                self._sizes.model,
                gpu,
                gpus=1,
                context=self._sizes.context,
                training=True,
            )
        return backward - self._others, update - self._others

    def _compare_memory(self, findings: Findings, trainer: Trainer, backward: int, update: int) -> None:
        computed = estimate_learner_memory(self._sizes.model, trainer._config)
        findings.figures["peak memory by plan, GB"] = computed.total / GB
        for use, size in computed.uses.items():
            findings.figures[f"  {use}, GB"] = size / GB
        if not torch.cuda.is_available():
            return
        findings.figures["  of other checks, GB"] = self._others / GB
        findings.figures["  reserved, GB"] = torch.cuda.max_memory_reserved() / GB
        compare_peaks(findings, backward, update, computed.total)


def compare_peaks(findings: Findings, backward: float, update: float, computed: float) -> None:
    """Compare the peak memory with what `plan` computes; all are bytes.

    Args:
        findings: gets the measurements, and a fault if they differ by more than `APART`.
        backward: peak of the forward and backward passes.
        update: peak of the optimizer's step.
        computed: peak that `plan` computes.
    """
    peak = max(backward, update)
    findings.figures["peak memory, GB"] = peak / GB
    findings.figures["  forward and backward, GB"] = backward / GB
    findings.figures["  optimizer step, GB"] = update / GB
    findings.require(
        abs(peak - computed) <= APART * computed,
        f"Peak memory is {peak / GB:.1f} GB, and plan computes {computed / GB:.1f}: more than {APART:.0%} apart.",
    )


def check_fp8(findings: Findings, sizes: Sizes) -> None:
    """Time the first matrix product of the MLP in bfloat16 and in FP8; the learner itself does not use FP8."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        raise SkippedError("there is no GPU with FP8 (Ada, Hopper or later).")
    shape = (sizes.row_tokens, sizes.model.hidden, sizes.model.intermediate)
    a = torch.randn(shape[0], shape[1], dtype=torch.bfloat16, device="cuda")
    b = torch.randn(shape[2], shape[1], dtype=torch.bfloat16, device="cuda")
    scale = torch.ones((), device="cuda")
    narrow = [side.to(torch.float8_e4m3fn) for side in (a, b)]

    def compute_in_fp8() -> torch.Tensor:
        left, right = narrow
        return torch._scaled_mm(
            left, right.T, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    products: dict[str, Callable[[], torch.Tensor]] = {"bfloat16": lambda: a @ b.T, "FP8": compute_in_fp8}
    for name, product in products.items():
        findings.figures[f"{name}, TFLOP/s"] = 2 * math.prod(shape) / measure_median_seconds(product, 20) / 1e12


def find_gpu_here() -> Gpu | None:
    """Return the datasheet of this machine's first GPU, by its name, or None if it is not known."""
    if not torch.cuda.is_available():
        return None
    return roofline.find_gpu(torch.cuda.get_device_name())


def _count_trained(rows: list[MicroBatch]) -> int:
    return int(sum(row.mask.sum() for row in rows))


def _find_free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
