"""One learner rank: a process with its share of the model under DeepSpeed ZeRO.

The gradient of the global batch is the sum over all micro-batches of all ranks: every micro-batch's loss is already
divided by the global denominator. DeepSpeed averages over ranks, so each loss is multiplied by their number.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.machine import precision
from tasks.storage.durable import whole, writing
from tasks.training.config import TrainingConfig
from tasks.training.learner.client import LearnerLostError
from tasks.training.learner.deepspeed_config import deepspeed_config
from tasks.training.learner.packing import MicroBatch
from tasks.training.learner.universal import TAG, universal_in

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import TCPStore

    from tasks.training.learner.reference import Reference, WithoutAdapter

SHARD = "5GB"
"""The largest file of a policy."""


@dataclass(frozen=True)
class RankReport:
    """One rank's part in an optimizer step: metric sums of its micro-batches, and what all ranks agree on.

    Attributes:
        parts: `LossOutput.metrics` of each micro-batch.
        entropy_sum: entropy in nats, summed over the rank's trained tokens.
        grad_norm: global gradient norm before clipping.
        seconds: wall time of the step on this rank.
    """

    parts: list[dict[str, float]]
    entropy_sum: float
    grad_norm: float
    seconds: float


class LearnerRank:
    """Runs inside a Ray actor; methods that are collective say so and must be called on every rank."""

    def __init__(self, config: TrainingConfig, model_folder: str) -> None:
        self._config = config
        self._folder = model_folder
        self._reference: Reference | WithoutAdapter | None = None
        self._number = -1
        self._answer: Future[Any] = Future()
        self._listening: socket.socket | None = None

    def once(self, number: int, method: str, *arguments: Any) -> Any:
        """Call a method, which has its effect once however often the call comes.

        Ray repeats a call whose answer was lost with a connection, and a step that is taken twice is another policy.

        Args:
            number: of the call; only the newest may come again.
            method: its name.
            *arguments: its arguments.
        """
        if number != self._number:
            self._number, self._answer = number, Future()
            try:
                self._answer.set_result(getattr(self, method)(*arguments))
            except Exception as error:  # raised below, and again where the call comes again
                self._answer.set_exception(error)
        return self._answer.result()

    def address(self) -> tuple[str, int]:
        """Where the other ranks find this one, which is rank 0: this node's address, and a port that is its own by now.

        A port that is merely free may be taken before `setup` has imported what it needs, which takes seconds.
        """
        import ray

        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._listening = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        return ray.util.get_node_ip_address(), self._listening.getsockname()[1]

    def setup(self, rank: int, world: int, address: tuple[str, int]) -> bool:
        """Join the other ranks and build the engine; returns whether rows may share prompts. Collective.

        Args:
            rank: this one's.
            world: how many there are.
            address: what rank 0 returned as its own.
        """
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",  # Ray shows a rank its own devices only
            "MASTER_ADDR": address[0],
            "MASTER_PORT": str(address[1]),
        }
        import deepspeed
        import torch

        options = self._config.learner
        if options.cpu_threads and not gpus:
            torch.set_num_threads(options.cpu_threads)
        torch.manual_seed(self._config.seed)
        # DeepSpeed would compile its own collectives for CPUs here and now, with a C++ compiler; gloo's need none.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        store = self._store(*address) if self._listening else None
        deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
        del store  # which torch has by now
        from tasks.training.learner.policy import Policy

        self._dtype = dtype = precision.resolve(options.dtype, gpu=torch.cuda.is_available())
        policy = Policy.load(
            self._folder,
            dtype=getattr(torch, dtype),
            gradient_checkpointing=options.gradient_checkpointing,
            chunk=options.logprob_chunk_tokens,
            lora=self._config.lora,
        )
        policy.train()
        self._world = world
        self._rank = rank
        self._engine, *_ = deepspeed.initialize(
            model=policy,
            model_parameters=[parameter for parameter in policy.parameters() if parameter.requires_grad],
            config=deepspeed_config(self._config, dtype),
        )
        from tasks.training.learner.background import BackgroundCheckpointEngine

        self._files = BackgroundCheckpointEngine(self._engine._config)
        self._engine.checkpoint_engine = self._files
        self._policy = policy
        self._device = self._engine.device
        if self._config.objective.kl.beta > 0:
            from tasks.training.learner.reference import Reference, WithoutAdapter

            if self._config.lora:
                self._reference = WithoutAdapter(policy)
            else:
                self._reference = Reference(
                    self._folder, self._device, options.logprob_chunk_tokens, getattr(torch, dtype)
                )
        return policy.shares_prompts

    def _store(self, host: str, port: int) -> TCPStore:
        """Where ranks find each other, on the port that is held; torch, which opens one there again, is given this."""
        from torch.distributed import TCPStore

        assert self._listening
        held = self._listening.detach()
        return TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=held)

    def step(self, micro_batches: Sequence[MicroBatch], denominator: float, learning_rate: float) -> RankReport:
        """One optimizer step on this rank's micro-batches. Collective.

        Args:
            micro_batches: as `pack` deals them: equally many on every rank.
            denominator: of the global batch, from `ObjectiveConfig.denominator`.
            learning_rate: of this step.
        """
        started = time.perf_counter()
        reports = [self._accumulate(batch, denominator) for batch in micro_batches]
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        kl, moving = self._config.objective.kl, self._moving_reference()
        if moving and kl.sync_every and kl.sync_alpha and self._engine.global_steps % kl.sync_every == 0:
            moving.follow(self._policy, kl.sync_alpha, self._gathered)
        return RankReport(
            parts=[part for part, _ in reports],
            entropy_sum=sum(entropy for _, entropy in reports),
            grad_norm=float(self._engine.get_global_grad_norm() or 0.0),
            seconds=time.perf_counter() - started,
        )

    def logprobs(self, micro_batches: Sequence[MicroBatch]) -> list[Any]:
        """Log-probabilities under the current policy, `[N]` float32 for each micro-batch. Collective."""
        import torch

        with torch.no_grad():
            return [self._forward(self._row(batch))[0][0].cpu().numpy() for batch in micro_batches]

    def reference_logprobs(self, micro_batches: Sequence[MicroBatch]) -> list[Any]:
        """The same under the reference policy."""
        assert self._reference is not None
        return [self._reference.logprobs(**self._row(batch))[0].cpu().numpy() for batch in micro_batches]

    def reference_passes(self) -> int:
        """Forward passes of the reference policy so far; 0 where there is none."""
        return self._reference.passes if self._reference else 0

    def _forward(self, row: dict[str, Any]) -> tuple[Any, Any]:
        return self._engine(**row, entropy_gradient=self._config.objective.entropy_coefficient > 0)

    def _row(self, batch: MicroBatch) -> dict[str, Any]:
        return {
            "input_ids": self._put(batch.input_ids),
            "position_ids": self._put(batch.position_ids),
            "sources": self._put(batch.sources),
            "targets": self._put(batch.targets),
            "mask": self._put(batch.mask),
            "temperature": self._config.sampling.temperature,
        }

    def _put(self, array: Any) -> Any:
        import torch

        return torch.from_numpy(array.copy()).to(self._device)

    def _accumulate(self, batch: MicroBatch, denominator: float) -> tuple[dict[str, float], float]:
        from tasks.training.objective import LossInputs, policy_loss

        kl = self._config.objective.kl
        row = self._row(batch)
        logprobs, entropy = self._forward(row)
        # Of a single update, the weights of this forward pass are theta_old.
        old = logprobs.detach() if batch.old_logprobs is None else self._put(batch.old_logprobs)
        output = policy_loss(
            LossInputs(
                logprobs=logprobs,
                old_logprobs=old,
                rollout_logprobs=self._put(batch.rollout_logprobs),
                advantages=self._put(batch.advantages),
                mask=row["mask"],
                entropy=entropy,
                ref_logprobs=self._reference.logprobs(**row) if self._reference and kl.in_loss else None,
                denominator=denominator,
                sequence_ids=self._put(batch.sequence_ids),
            ),
            self._config.objective,
        )
        self._engine.backward(output.loss * self._world)
        return {name: float(value) for name, value in output.metrics.items()}, float(entropy.sum())

    def _moving_reference(self) -> Reference | None:
        """The reference where it is more than the initial checkpoint, and has to be kept."""
        from tasks.training.learner.reference import Reference

        moves = self._config.objective.kl.sync_every is not None
        return self._reference if moves and isinstance(self._reference, Reference) else None

    def write_weights(self, path: str) -> None:
        """Write what actors load, atomically. Collective; rank 0 writes.

        The current weights as one safetensors file, or with `lora` the adapter as a folder.
        """
        if self._config.lora:
            from tasks.training.learner.adapter import write_adapter

            adapter = self._on_rank_0(self._policy.adapter_parameters())
            if self._rank == 0:
                with writing(Path(path)):
                    write_adapter(Path(path), adapter, self._config.lora)
        else:
            self._write_whole(path)

    def _write_whole(self, path: str) -> None:
        from safetensors.torch import save_file

        tensors = self._whole()
        if self._rank == 0:
            with whole(Path(path)) as partial, writing(partial):
                save_file(tensors, partial)

    def _whole(self) -> dict[str, Tensor]:
        """The policy's tensors on rank 0, under the checkpoint's names; an adapter is merged."""
        tensors = self._on_rank_0(self._policy.checkpoint_parameters())
        if self._config.lora:
            from tasks.training.learner.adapter import merged

            tensors = merged(tensors, self._on_rank_0(self._policy.adapter_parameters()), self._config.lora)
        return tensors

    def _on_rank_0(self, parameters: Iterable[tuple[str, Any]]) -> dict[str, Tensor]:
        """Whole parameters in main memory, each by itself; on other ranks nothing, though they help to gather them.

        Raises:
            LearnerLostError: weights that are no numbers, which no engine must be given.
        """
        import torch

        tensors: dict[str, Tensor] = {}
        wrong = []
        for name, parameter in parameters:
            full = self._gathered(parameter).detach()
            if self._rank == 0:
                tensors[name] = full.to("cpu", copy=True).contiguous()
                if not torch.stack(full.aminmax()).isfinite().all():  # several times as fast as a look at each number
                    wrong.append(name)
        if wrong:
            raise LearnerLostError(f"the learner's weights are not finite: {wrong[0]} and {len(wrong) - 1} others")
        return tensors

    def _gathered(self, parameter: Any) -> Any:
        if self._config.learner.zero_stage < 3:
            return parameter.data
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.data.clone()

    def export(self, folder: str) -> None:
        """Write the policy as a Hugging Face folder with its tokenizer, in shards of 5 GB. Collective; rank 0 writes.

        Weights have the learner's type, in which engines sampled with them: a run's changes are small, and most would
        be rounded away in 16 bits where the learner has 32.

        With `lora` it is the merged one, and the adapter stands beside it in `adapter/`.
        """
        from huggingface_hub import save_torch_state_dict

        tensors = self._whole()
        if self._rank == 0:
            Path(folder).mkdir(parents=True, exist_ok=True)
            _copy_all_but_weights(Path(self._folder), Path(folder), self._dtype)
            with writing(Path(folder)):
                save_torch_state_dict(tensors, folder, max_shard_size=SHARD)
        if self._config.lora:
            self.write_weights(str(Path(folder) / "adapter"))

    def save(self, folder: str) -> None:
        """Write model, optimizer and reference below `folder`, as they are now, in the background. Collective."""
        frozen = self._config.lora is not None  # what is frozen is in the initial checkpoint
        self._engine.save_checkpoint(folder, tag=TAG, save_latest=False, exclude_frozen_parameters=frozen)
        moving = self._moving_reference()
        if moving and self._rank == 0:
            from safetensors.torch import save_file

            from tasks.training.learner.reference import FILE

            self._files.write(partial(save_file, moving.tensors()), Path(folder) / FILE)

    def is_written(self) -> bool:
        """Whether this rank's part of what `save` began is on the disk; raises what kept it from there."""
        return self._files.is_written()

    def load(self, folder: str) -> None:
        """Restore what `save` wrote, of as many ranks or, where it was converted (`universal`), of any. Collective.

        Raises:
            RuntimeError: the folder holds no checkpoint for this number of ranks.
        """
        import torch

        if (universal := universal_in(Path(folder))).is_dir():
            self._engine._config.load_universal_checkpoint = True  # DeepSpeed's option, known only now
            self._load(universal)
            for state in self._engine.optimizer.optimizer.state.values():
                # DeepSpeed leaves it in main memory, and a fused Adam wants it beside the moments
                state["step"] = torch.as_tensor(state["step"], device=state["exp_avg"].device)
        else:
            self._load(Path(folder))
        if moving := self._moving_reference():
            moving.load(folder)

    def _load(self, folder: Path) -> None:
        path = None
        if (folder / TAG).is_dir():
            whole = self._config.lora is None
            path = self._engine.load_checkpoint(str(folder), tag=TAG, load_module_strict=whole)[0]
        if path is None:
            raise RuntimeError(f"{folder} holds no checkpoint for {self._world} learner ranks")


def _copy_all_but_weights(source: Path, destination: Path, dtype: str) -> None:
    """The files of a Hugging Face folder beside its weights, whose type is said to be `dtype`."""
    import shutil

    for path in source.iterdir():
        if path.is_file() and ".safetensors" not in path.name:
            shutil.copy(path, destination / path.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)  # its name in older files
    (destination / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n")
