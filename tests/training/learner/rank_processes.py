"""Learner ranks in processes that are used again: starting one, with torch and DeepSpeed, takes longer than its test.

A process joins one torch.distributed world for good. What a learner leaves behind in it is one more thing that the next
one's results may not depend on; where a test asks what a new process knows, it takes a fresh one.
"""

import gc
from collections import defaultdict

import numpy as np

from tasks.training.learner.rank import LearnerRank


class RankProcess:
    """Inside a Ray actor: one `LearnerRank` after the other."""

    def become(self, config, folder):
        self._rank = None
        gc.collect()
        self._rank = LearnerRank(config, folder)

    def call(self, method, *arguments):
        return getattr(self._rank if hasattr(self._rank, method) else self, method)(*arguments)

    def reference_passes(self):
        """Forward passes of the reference policy so far; 0 where there is none."""
        reference = self._rank.trainer.reference
        return reference.passes if reference else 0

    def deepspeed_keys(self):
        """Values that DeepSpeed's engine has of keys that pass through."""
        engine = self._rank.trainer.engine
        zero = engine._config.zero_config
        offload = zero.offload_optimizer
        return {
            "overlap_comm": engine.optimizer.overlap_comm,
            "reduce_bucket_size": engine.optimizer.reduce_bucket_size,
            "offload": None if offload is None else offload.device,
            "steps_per_print": engine.steps_per_print(),
        }

    def loads(self, folder, dtype):
        """Load a model whole and in parts: its size, both peaks, the rank's part, and tensors that differ. Collective.

        Sizes are bytes.
        """
        import deepspeed
        import torch

        from tasks.training.learner.deepspeed_config import make_deepspeed_config
        from tasks.training.learner.policy import Policy
        from tests.training.learner.live_memory import LiveBytes

        config = self._rank.trainer._config
        policies, peaks = [], []
        for sharding in (None, make_deepspeed_config(config, dtype)):
            with LiveBytes() as memory:
                policies.append(Policy.load(folder, dtype=getattr(torch, dtype), sharding=sharding))
            peaks.append(memory.peak)
            del memory
        whole, sharded = policies
        ours = dict(sharded.named_parameters())
        differ = [] if whole.state_dict().keys() == sharded.state_dict().keys() else ["names"]
        for name, parameter in whole.named_parameters():
            with deepspeed.zero.GatheredParameters([ours[name]]):
                if not torch.equal(ours[name].data, parameter.data):
                    differ.append(name)
        buffers = dict(sharded.named_buffers())
        for name, buffer in whole.named_buffers():
            if buffers[name].dtype != buffer.dtype or not torch.equal(buffers[name], buffer):
                differ.append(name)
        size = sum(parameter.nbytes for parameter in whole.parameters())
        part = sum(parameter.ds_tensor.nbytes for parameter in sharded.parameters())
        return size, *peaks, part, differ

    def trains_its_own_expert(self):
        """Take a gradient of experts that are modules, of which this rank's row chooses another. Collective.

        Returns each expert's gradient, summed over ranks.
        """
        import deepspeed
        import torch
        from torch import nn

        from tasks.training.learner.sharding import gather_experts_together

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.experts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))

            def forward(self, row):
                return self.experts[torch.distributed.get_rank()](row)

        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
            "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        }
        model = nn.Sequential(Block())
        gather_experts_together(model)
        engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
        row = torch.ones(1, 4, requires_grad=True)  # as that of any block within a model
        engine.backward(engine(row).sum() * torch.distributed.get_world_size())
        full = deepspeed.utils.safe_get_full_grad
        return [full(expert.weight).sum().item() for expert in model[0].experts]

    def whole_state(self):
        """What all ranks hold together, as float32 arrays: parameters, moments, step, learning rate. Collective."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        engine = self._rank.trainer.engine
        parameters = {name: own for name, own in engine.module.named_parameters() if own.requires_grad}
        state = {name: safe_get_full_fp32_param(own) for name, own in parameters.items()}
        for moment in ("exp_avg", "exp_avg_sq"):
            state |= {
                f"{name} {moment}": safe_get_full_optimizer_state(own, moment) for name, own in parameters.items()
            }
        optimizer = engine.optimizer.optimizer
        [step] = {float(moments["step"]) for moments in optimizer.state.values()}
        [rate] = {group["lr"] for group in optimizer.param_groups}
        arrays = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        return arrays | {"step": np.array(step), "learning_rate": np.array(rate)}


class RankHandle:
    """Looks like the Ray handle of a `LearnerRank`."""

    def __init__(self, process):
        self.process = process

    def __getattr__(self, method):
        return _Method(self.process, method)


class _Method:
    def __init__(self, process, name):
        self._process = process
        self._name = name

    def remote(self, *arguments):
        return self._process.call.remote(self._name, *arguments)


class RankProcesses:
    """Processes by the number of ranks in their world and their place in it."""

    def __init__(self, ray):
        self._ray = ray
        self._free = defaultdict(list)
        self._taken = []

    def take(self, world, rank, config, folder, *, fresh=False):
        """The handle of a new rank, in a process that is free, or in a new one, for which those that are free end."""
        free = self._free[world, rank]
        while fresh and free:
            self._ray.kill(free.pop())
        process = free.pop() if free else self._ray.remote(RankProcess).options(num_cpus=0).remote()
        self._taken.append((world, rank, process))
        process.become.remote(config, folder)
        return RankHandle(process)

    def give_back(self):
        """Every rank is done with; those of one world stay together, because they were taken together."""
        for world, rank, process in self._taken:
            self._free[world, rank].append(process)
        self._taken.clear()
