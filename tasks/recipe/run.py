"""Defines the options of a training run. Imports only pydantic: parsing a recipe must load neither torch nor vllm."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.config.loading import Config, RunTime
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.vllm_arguments import (
    ENGINE_REFUSED_IN_TRAINING,
    HEAD_QUANTISED_BY,
    SAMPLING_REFUSED_IN_TRAINING,
    refuse_in_training,
)
from tasks.machine.precision import HeadDtype
from tasks.recipe import gpu_shares
from tasks.recipe.alarms import AlarmsConfig
from tasks.recipe.learner import LearnerConfig, LoraConfig, OptimizerConfig, UpdatesConfig
from tasks.recipe.objective import ObjectiveConfig
from tasks.recipe.prompts import ActiveResampling, DynamicResampling, PromptsConfig, ReplayConfig, Resampling


class ActorsConfig(Config):
    """The actors: vLLM engines that generate independently of each other, each in a separate process."""

    count: RunTime[int] = Field(1, gt=0)
    """Number of engines. With GPUs, each uses `engine.tensor_parallel_size` of them, times the other parallel sizes in
    `engine.vllm`. If some engines are lost, training continues with the others."""
    engine: EngineConfig = EngineConfig()
    """Options of every engine: model length, memory, parallelism."""
    updates: Literal["in_flight", "drained", "barrier", "static"] = "in_flight"
    """When an engine takes new weights. `in_flight`: immediately, in the middle of its responses (PipelineRL, OlmoRL).
    `drained`: when its responses are finished; it starts no new ones until then. `barrier`: all engines together, when
    all have finished their responses. `static`: like `barrier`, and an engine starts a new batch of responses only when
    all responses of its previous batch are finished (static batching, Olmo 2)."""
    sync_every: int = Field(1, ge=1)
    """Number of steps between two weight updates of the engines (Axolotl's `vllm_sync_interval`). With a larger number
    there are fewer updates, and responses come from a policy that is up to this number of steps older. The weights of
    the last step are always sent."""
    keep_cache: bool = True
    """If true, unfinished responses continue with the KV cache that older weights computed. If false, it is recomputed
    after each update."""
    min_num_seqs: RunTime[int] = Field(1, ge=1)
    """Smallest number of sequences that an engine runs at a time. If its KV cache overflows, an engine gets fewer than
    `engine.max_num_seqs`, down to this number, and more again when its cache has space."""
    prefetch: RunTime[int] = Field(8, ge=0)
    """Number of samples that wait inside an engine in addition to the sequences that it runs, so that it is never idle.
    If this is at least the group size, a group is not distributed over several engines, and does not wait for the
    slowest of them."""
    cpus: RunTime[float] = Field(1.0, ge=0)
    """CPU cores that every actor reserves in Ray."""
    max_restarts: RunTime[int] = Field(3, ge=0)
    """Number of times that an actor slot replaces a lost engine within `restart_window_seconds`. After that, the slot
    stays empty until the oldest loss has left the window. If all slots are empty for this reason, the run fails."""
    restart_window_seconds: RunTime[float] = Field(3600, gt=0)
    """Length of the time window within which `max_restarts` limits the losses of an actor slot, seconds."""
    start_timeout_seconds: RunTime[float] = Field(1800, gt=0)
    """Longest time that an engine may take to load, once the cluster has resources for it, seconds."""
    update_timeout_seconds: RunTime[float] = Field(600, gt=0)
    """Longest time that an engine may take to load new weights, seconds."""
    hang_seconds: RunTime[float] = Field(300, gt=0)
    """Time without a new token after which an engine with unfinished responses counts as lost, seconds."""


class RewardsConfig(Config):
    """The reward workers, which score responses during training."""

    workers: RunTime[int | None] = Field(None, gt=0)
    """Number of verifier processes. They run on the controller's machine, or next to the LLM judge if the run serves
    one on GPUs. If null, the number of cores of the machine that ranks and actors do not reserve, or 8 per GPU of the
    LLM judge."""
    retries: RunTime[int] = Field(1, ge=0)
    """Number of times that scoring a response is retried after an error while the verifier succeeds on other responses.
    After that, the response is dropped from its group. A score of 0 is not an error. An exception in your own reward
    function is not retried, unless it comes from the network or a service."""
    patience_seconds: RunTime[float] = Field(900, ge=0)
    """Longest time that a response waits for a verifier that fails on all responses, such as one with an unreachable
    endpoint, before the response is dropped from its group, seconds."""


class ValidationConfig(Config):
    """Validation during training: the policy answers prompts that it is never trained on.

    One actor stays at the validated version until it has answered all prompts, while the other actors and the learner
    continue.
    """

    every: int = Field(50, ge=1)
    """Steps between two validations; the initial and the last policy are validated too. A policy that is due while
    another is still being validated is skipped, with a warning in the log."""
    prompts: int = Field(64, ge=0)
    """Number of prompts of the mixture that are held out for validation, chosen by their ids and `seed`. If 0,
    validation uses only benchmarks."""
    samples: int = Field(4, gt=0)
    """Number of responses to each validation prompt, sampled as in training."""
    hand_over: Literal["last", "best"] = "last"
    """Policy that the run returns: the `last` one, or the validated one with the highest mean score (`best`), which is
    stored in `policies/` of the run folder in either case. The score is the mean over the held-out prompts or, if there
    are none, over benchmarks."""


class TrainingConfig(Config):
    """One training run, OlmoRL-style: asynchronous, group-relative, with verifiable rewards."""

    steps: int = Field(1, ge=1)
    """Number of batches to train on, each with one optimizer step unless `updates` sets more."""
    updates: UpdatesConfig = UpdatesConfig()
    """Optimizer steps on one batch."""
    groups_per_step: int = Field(8, gt=0)
    """Number of groups in a batch; a group contains the responses to one prompt."""
    sampling: SamplingConfig = SamplingConfig()
    """Group size, length limit and temperature of responses; the learner computes probabilities at the same
    temperature."""
    resampling: Resampling = ActiveResampling()
    """Handling of groups without a gradient, because all their scores are equal (zero-variance groups)."""
    replay: ReplayConfig | None = None
    """Replay buffer: with `resampling.kind = none`, groups from earlier steps replace zero-variance groups. If null, no
    group is trained on again."""
    prompts: PromptsConfig = PromptsConfig()
    """Choice and order of prompts: retirement, deferred re-rolling, curriculum."""
    async_steps: int = Field(2, ge=0)
    """Number of batches whose groups may be sampled ahead of the learner, in flight or waiting. If 0, the run is
    synchronous: actors and learner alternate, and actors take new weights before they sample the next batch."""
    deterministic: bool = False
    """If true, a run can be reproduced exactly, on machines of one kind without GPUs and with `async_steps` 0.
    Responses are then sampled with fixed seeds and one at a time, because a kernel's rounding depends on what else is
    in its batch."""
    max_staleness: int = Field(4, ge=0)
    """Largest age, in steps, of the policy that sampled a trained token."""
    beyond_staleness: Literal["drop", "abort", "mask"] = "drop"
    """Handling of a group with tokens older than `max_staleness`. `drop`: it is dropped when it would be trained on,
    and another is sampled. `abort`: like `drop`, but a group in flight is also dropped as soon as it is too old.
    `mask`: it is trained on without these tokens."""
    lora: LoraConfig | None = None
    """Adapter that is trained instead of the model's weights (LoRA). If null, all weights are trained."""
    routing_replay: bool = False
    """If true, the learner uses the experts that the engine chose for each token, in a mixture of experts (Rollout
    Routing Replay, R3, Ma et al. 2025, arXiv:2510.11370). If false, rounding lets it choose other experts for some
    tokens, whose probabilities then differ by far more than rounding. The learner computes the weights of the experts
    itself, so that gradients reach the router. The reference policy chooses its own experts. Routes take a byte for
    each token, layer and chosen expert, or two if there are more than 256 experts: in memory, in checkpoints and with
    `keep_tokens`. The default memory and disk of pods do not count them: set `cluster.head.memory_gib` and
    `cluster.head.disk_gib`. This requires GPUs, a model of the type `qwen2_moe`, `qwen3_moe`, `olmoe` or `flex_olmo`,
    and prompts without an environment. The routes of vLLM on a GPU were not tried yet."""
    head_dtype: HeadDtype = "model"
    """Type of the logits and their gradient, in the learner, the reference policy, the engines of training and the
    model check together. `model`: the type of the other layers. `float32`: no logit is rounded to 16 bits, so that
    engine and learner agree better (ScaleRL, arXiv:2510.13786). Weights, and with them updates and exports, keep their
    type. Steps take longer (on a CPU with bfloat16 by 18 to 47% for a model of 135M parameters; on GPUs this was not
    measured). A learner or an engine that computes in float32 anyway does not change. Difficulty and evaluation do not
    follow; their `engine.vllm` takes `hf_overrides: {head_dtype: float32}`."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """Loss, advantages, KL penalty and off-policy correction."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer and learning rate schedule."""
    learner: LearnerConfig = LearnerConfig()
    """Number, memory and fault tolerance of the learner ranks."""
    actors: ActorsConfig = ActorsConfig()
    """Number, updates and fault tolerance of the inference engines."""
    placement: RunTime[gpu_shares.PlacementOption] = "auto"
    """Assignment of GPUs to learner ranks and engines. `apart`: each has its own GPUs. `shared`: every GPU has one rank
    and one engine, both in its memory at the same time; there are as many engines as ranks, each on one GPU.
    `time_shared`: like `shared`, but with time sharing: the engine sleeps while the rank computes, and the rank's
    states are in main memory while the engine generates. `auto`: `apart` if there are enough GPUs; otherwise `shared`,
    or `time_shared` if the memory of the GPUs is known to be too small for `shared`. Without GPUs `auto` and `shared`
    have no effect, and `time_shared` is an error."""
    rewards: RewardsConfig = RewardsConfig()
    """Verifier processes that score responses during training."""
    validation: ValidationConfig | None = None
    """Validation on prompts that are never trained on. If null, validation is off."""
    model_check: RunTime[bool] = True
    """If true, learner, model and engine are compared before the first rollout, and a difference beyond rounding ends
    the run (`docs/troubleshooting.md`). If false, they are not compared, for a model with known and accepted
    differences."""
    alarms: RunTime[AlarmsConfig] = AlarmsConfig()
    """Thresholds of the metrics beyond which a run logs an alarm."""
    checkpoint_every: RunTime[int] = Field(10, ge=1)
    """Number of steps between two checkpoints that are kept as restore points. The newest of them is kept until the
    next one is complete, in addition to the newest two checkpoints of either kind. The last step is always saved, and
    only its checkpoint is kept once the run has ended."""
    recover_every: RunTime[int | None] = Field(10, ge=1)
    """Number of steps without a checkpoint after which one is taken for recovery only: it is kept until two newer ones
    are complete. The tokens of these steps are kept in memory, to repeat the steps if the learner is lost. If null,
    such checkpoints are off."""
    export_every: RunTime[int | None] = Field(None, ge=1)
    """Number of steps between two exports of the policy during the run, as Hugging Face folders `policies/step_<n>` in
    the run folder, each as large as the model. If null, only the last policy is exported, as `policy`."""
    keep_rollouts: RunTime[bool] = True
    """If true, every finished response is written, with its rewards and its outcome, to compressed files
    `rollouts/*.parquet` in the run folder."""
    keep_tokens: RunTime[float] = Field(0, ge=0, le=1)
    """Share of the groups whose responses are written with their tokens, chosen by the number of the group: token ids,
    log-probabilities under engine and learner, loss mask and advantage, as columns of `rollouts/*.parquet`. It adds up
    to 12 bytes for each token of these groups to the disk, and the routes with `routing_replay`. A run that has ended
    is not repeated for it. If 0, no tokens are written, and the learner returns no log-probabilities."""
    log_completions: RunTime[int] = Field(0, ge=0)
    """Number of responses of every batch that are printed during the run."""
    stall_seconds: RunTime[float] = Field(1800, gt=0)
    """Longest time that the learner waits without a group being accepted or dropped, seconds; then the run fails with a
    diagnosis. A learner that takes longer for one call counts as lost; its ranks wait for each other for 10 minutes
    more (DeepSpeed's limit would be 10 minutes in all)."""
    trackers: RunTime[list[Literal["wandb", "mlflow"]]] = Field([])
    """Services that receive the metrics of every step, in addition to `metrics.jsonl` and TensorBoard: Weights &
    Biases, MLflow. Each needs its package, which the extra of the same name installs."""
    seed: int = 0
    """Seed of the order of prompts after the first epoch, of the learner, and of `deterministic` responses."""

    @property
    def steps_between_checkpoints(self) -> int:
        """Largest number of steps between two checkpoints."""
        return min(self.checkpoint_every, self.recover_every or self.checkpoint_every)

    @property
    def gpus(self) -> int:
        """Number of GPUs that learner ranks and engines use together; `auto` counts as apart."""
        apart = self.learner.ranks + self.actors.count * self.actors.engine.gpus
        return self.learner.ranks if self.shares_gpus else apart

    @property
    def shares_gpus(self) -> bool:
        """Return whether every GPU has a learner rank and an engine, at the same time or with time sharing."""
        return self.placement in ("shared", "time_shared")

    @property
    def takes_turns(self) -> bool:
        """Return whether learner ranks and engines use time sharing of their GPUs."""
        return self.placement == "time_shared"

    @property
    def as_many_engines_as_ranks(self) -> bool:
        """Return whether every learner rank can have an engine on its GPU."""
        return gpu_shares.can_share(self.learner.ranks, self.actors.count, self.actors.engine)

    @property
    def engine_share(self) -> float:
        """Share of a GPU's memory that an engine uses."""
        return gpu_shares.compute_engine_share(self.placement, self.actors.engine.gpu_memory_utilization)

    def compute_rank_share(self, memory: float, layer: float) -> float:
        """Return the share of a GPU of `memory` bytes that a learner rank may use.

        `layer` is the size of the model's largest layer, bytes.
        """
        reserved = gpu_shares.compute_reserved_share(memory, layer)
        return gpu_shares.compute_rank_share(self.placement, self.actors.engine.gpu_memory_utilization, reserved)

    @property
    def is_synchronous(self) -> bool:
        """Return whether actors and learner alternate and never work at the same time (`async_steps` is 0)."""
        return self.async_steps == 0

    @property
    def samples_in_rounds(self) -> bool:
        """Return whether prompts are sampled in rounds (dynamic resampling).

        Then no dropped group is replaced immediately.
        """
        return isinstance(self.resampling, DynamicResampling)

    @field_validator("placement", mode="before")
    @classmethod
    def _check_placement_name(cls, value: Any) -> Any:
        if value == "turns":
            raise ValueError("turns is called time_shared now")
        return value

    @model_validator(mode="after")
    def _check_sampling(self) -> Self:
        if self.sampling.samples < 2:
            raise ValueError(
                f"sampling.samples is {self.sampling.samples}: a group needs at least 2 samples to compare"
            )
        if self.sampling.seed is not None:
            raise ValueError(
                f"sampling.seed = {self.sampling.seed}: training samples every response again; seed the run with `seed`"
            )
        if self.sampling.max_tokens >= self.actors.engine.max_model_len:
            raise ValueError(
                f"sampling.max_tokens ({self.sampling.max_tokens}) leaves no room for a prompt in "
                f"actors.engine.max_model_len ({self.actors.engine.max_model_len})"
            )
        if self.sampling.top_p != 1.0 or self.sampling.top_k or self.sampling.min_p or self.sampling.temperature == 0:
            raise ValueError(
                "sampling: training needs temperature above 0, top_p 1.0, top_k 0 and min_p 0; a truncated "
                "distribution is not the policy's, and every importance weight would be wrong"
            )
        if self.sampling.guided_regex and not self.objective.corrects_engine:
            raise ValueError(
                "sampling.guided_regex: responses are sampled from the policy's tokens that can match, which is not "
                "the policy; objective.correction corrects for this, kind = none does not"
            )
        return self

    @model_validator(mode="after")
    def _check_kept_tokens(self) -> Self:
        if self.keep_tokens and not self.keep_rollouts:
            raise ValueError(
                f"keep_tokens = {self.keep_tokens:g}: tokens are columns of the responses, which keep_rollouts = false "
                "does not write; set keep_rollouts: true, or keep_tokens: 0"
            )
        return self

    @model_validator(mode="after")
    def _check_vllm_options(self) -> Self:
        engine = self.actors.engine
        if engine.server is not None:
            raise ValueError(
                "actors.engine.server: training needs its own engines, which take new weights in the middle of "
                "responses and return the log-probability of every token that they sampled; a server does neither"
            )
        reason = refuse_in_training("sampling.vllm", self.sampling.vllm, SAMPLING_REFUSED_IN_TRAINING)
        reason = reason or refuse_in_training("actors.engine.vllm", engine.vllm, ENGINE_REFUSED_IN_TRAINING)
        if reason:
            raise ValueError(reason)
        for name in engine.coarse:
            if not self.objective.corrects_engine:
                raise ValueError(
                    f"actors.engine.vllm.{name}: the engine then draws from another distribution than the learner's; "
                    "objective.correction corrects for this, kind = none does not"
                )
            if self.model_check:
                raise ValueError(
                    f"actors.engine.vllm.{name}: the engine then differs from the learner by more than rounding, and "
                    "model_check would end the run; set model_check: false"
                )
        return self

    @model_validator(mode="after")
    def _check_head_dtype(self) -> Self:
        method = self.actors.engine.vllm.get("quantization")
        if self.head_dtype == "float32" and method in HEAD_QUANTISED_BY:
            raise ValueError(
                f"head_dtype = float32: actors.engine.vllm.quantization = {method} can quantise the head, which vLLM "
                "then computes in no other type; set head_dtype: model, or a method that leaves the head as it is, "
                "such as fp8"
            )
        return self

    @model_validator(mode="after")
    def _check_placement(self) -> Self:
        engines, ranks, zero_stage = self.actors.count, self.learner.ranks, self.learner.zero_stage
        if reason := gpu_shares.find_obstacle(self.placement, ranks, engines, self.actors.engine, zero_stage):
            raise ValueError(reason)
        return self

    @model_validator(mode="after")
    def _check_learner(self) -> Self:
        if self.learner.liger is True and self.objective.entropy_coefficient > 0:
            raise ValueError(
                f"learner.liger = true: its kernel has no gradient of an entropy, and objective.entropy_coefficient is "
                f"{self.objective.entropy_coefficient:g}; set liger to auto"
            )
        if self.learner.ranks_with_a_copy > 1 and self.objective.kl.beta > 0 and self.lora is None:
            raise ValueError(
                "learner.deepspeed: zero_optimization.zero_hpz_partition_size: DeepSpeed makes its groups of ranks for "
                f"one model, and objective.kl.beta = {self.objective.kl.beta:g} needs a reference policy as a second "
                "one; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.samples_in_rounds and not self.is_synchronous:
            raise ValueError(
                f"resampling.kind = dynamic samples in rounds and needs async_steps = 0, not {self.async_steps}; "
                "resampling.kind = active samples ahead of the learner"
            )
        if self.replay and self.resampling.kind != "none":
            raise ValueError(
                f"replay: with resampling.kind = {self.resampling.kind}, new groups replace groups without a "
                "gradient, and none is left for replayed ones; set resampling.kind = none, or leave replay out"
            )
        if self.lora and self.objective.kl.sync_every:
            raise ValueError(
                "lora and objective.kl.sync_every: the reference is the model without its adapter; give one"
            )
        if self.actors.sync_every > self.max_staleness + 1:
            raise ValueError(
                f"actors.sync_every = {self.actors.sync_every}: before engines are given new weights, every group is "
                f"older than max_staleness = {self.max_staleness}; raise it to {self.actors.sync_every - 1} or more"
            )
        if self.validation and self.validation.every % self.actors.sync_every:
            raise ValueError(
                f"validation.every = {self.validation.every}: engines have only every actors.sync_every = "
                f"{self.actors.sync_every}th policy; give a multiple of it"
            )
        self._check_deterministic()
        if self.groups_per_step % self.updates.minibatches:
            raise ValueError(
                f"groups_per_step ({self.groups_per_step}) is not a multiple of updates.minibatches "
                f"({self.updates.minibatches})"
            )
        if self.objective.force_on_policy_ratio and self.updates != UpdatesConfig():
            raise ValueError(
                f"objective.force_on_policy_ratio is right for one update per batch; updates asks for "
                f"{self.updates.minibatches * self.updates.epochs}"
            )
        if (self.objective.pass_at_k or 0) > self.sampling.samples:
            raise ValueError(
                f"objective.pass_at_k = {self.objective.pass_at_k} is more than the samples of a prompt: raise "
                f"sampling.samples ({self.sampling.samples}), or lower pass_at_k"
            )
        overlong = self.objective.shaping.overlong
        if overlong is not None and overlong.max_length - overlong.cache >= self.sampling.max_tokens:
            raise ValueError(
                f"objective.shaping.overlong penalises from {overlong.max_length - overlong.cache} tokens on, which "
                f"sampling.max_tokens ({self.sampling.max_tokens}) never exceeds"
            )
        return self

    @model_validator(mode="after")
    def _check_routing_replay(self) -> Self:
        if not self.routing_replay:
            return self
        engine = self.actors.engine
        refused = {
            "lora": (self.lora, "the reference is the same model without its adapter, and would replace the routes"),
            "learner.torch_compile": (self.learner.torch_compile, "compiled layers would keep the routes of one row"),
            "actors.engine.model_runner = v1": (
                engine.model_runner == "v1",
                "only vLLM's second runner returns routes",
            ),
            "actors.engine.vllm.enable_prefix_caching = false": (
                engine.vllm.get("enable_prefix_caching") is False,
                "vLLM stores routes with the blocks of its prefix cache",
            ),
        }
        for name, (is_given, reason) in refused.items():
            if is_given:
                raise ValueError(f"routing_replay and {name}: {reason}; leave one of them out")
        return self

    def _check_deterministic(self) -> None:
        if not self.deterministic:
            return
        needs = (
            ("async_steps", self.async_steps, 0),
            ("actors.count", self.actors.count, 1),
            ("actors.engine.max_num_seqs", self.actors.engine.max_num_seqs, 1),
        )
        for name, value, needed in needs:
            if value != needed:
                raise ValueError(
                    f"deterministic: what is sampled depends on timing with {name} = {value}; set {needed}"
                )
        steps = {"checkpoint_every": self.checkpoint_every, "recover_every": self.steps_between_checkpoints}
        for name, every in steps.items():
            if every % self.actors.sync_every:
                raise ValueError(
                    f"deterministic: a run that resumes gives the weights of its checkpoint to engines; {name} = "
                    f"{every} must be a multiple of actors.sync_every = {self.actors.sync_every}"
                )
