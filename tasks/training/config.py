"""Options of a training run. Pydantic only: parsing a recipe must load neither torch nor vllm."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.config import Config, RunTime
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.vllm_arguments import (
    ENGINE_REFUSED_IN_TRAINING,
    SAMPLING_REFUSED_IN_TRAINING,
    refused_in_training,
)
from tasks.training import gpu_shares
from tasks.training.learner.config import LearnerConfig, LoraConfig, OptimizerConfig, UpdatesConfig
from tasks.training.objective.config import ObjectiveConfig
from tasks.training.prompt_options import ActiveResampling, DynamicResampling, PromptsConfig, ReplayConfig, Resampling


class ActorsConfig(Config):
    """The actors: vLLM engines that generate independently of one another, each in a process of its own."""

    count: RunTime[int] = Field(1, gt=0)
    """Number of engines, each on `engine.tensor_parallel_size` GPUs where there are GPUs, times the other parallel
    sizes in `engine.vllm`. Where some of them are lost, training continues with the others."""
    engine: EngineConfig = EngineConfig()
    """Options of every engine: model length, memory, parallelism."""
    updates: Literal["in_flight", "drained", "barrier", "static"] = "in_flight"
    """Time at which an engine takes new weights. `in_flight`: at once, in the middle of its responses (PipelineRL,
    OlmoRL). `drained`: when its responses are finished; it begins no others before. `barrier`: all engines together,
    when all have finished their responses. `static`: as `barrier`, and an engine begins no response before all those
    that it was given together are finished (static batching, Olmo 2)."""
    sync_every: int = Field(1, ge=1)
    """Steps between two versions of the weights that engines are given (Axolotl's `vllm_sync_interval`). A larger
    number makes fewer updates, and responses of a policy that is older by up to this number of steps. The weights of
    the last step are always given."""
    keep_cache: bool = True
    """true: unfinished responses continue with the KV cache that older weights computed. false: an update computes
    the cache again."""
    min_num_seqs: RunTime[int] = Field(1, ge=1)
    """Smallest number of sequences that an engine is given at a time. An engine whose KV cache overflows is given fewer
    than `engine.max_num_seqs`, down to this number, and more again when its cache has space."""
    prefetch: RunTime[int] = Field(8, ge=0)
    """Samples that wait inside an engine beyond the sequences that it runs, so that it is never without work. With as
    many as a group has, a group is not spread over engines, the slowest of which would set its pace."""
    cpus: RunTime[float] = Field(1.0, ge=0)
    """CPU cores that every actor reserves in Ray."""
    max_restarts: RunTime[int] = Field(3, ge=0)
    """Number of times that an actor slot replaces a lost engine within `restart_window_seconds`. Beyond it, the slot
    stays empty until the oldest loss is older than that; where all slots are empty for this reason, the run fails."""
    restart_window_seconds: RunTime[float] = Field(3600, gt=0)
    """Length of the time window within which `max_restarts` limits the losses of an actor slot, seconds."""
    start_timeout_seconds: RunTime[float] = Field(1800, gt=0)
    """Longest time that an engine may take to load, once the cluster has resources for it, seconds."""
    update_timeout_seconds: RunTime[float] = Field(600, gt=0)
    """Longest time that an engine may take to load new weights, seconds."""
    hang_seconds: RunTime[float] = Field(300, gt=0)
    """Time without a new token after which an engine that has something to generate counts as lost, seconds."""


class RewardsConfig(Config):
    """The reward workers, which judge responses while training."""

    workers: RunTime[int | None] = Field(None, gt=0)
    """Number of verifier processes. They are on the controller's machine, or beside the judge where the run serves one
    on GPUs. null: the cores of the machine that ranks and actors leave, or 8 for each GPU of the judge."""
    retries: RunTime[int] = Field(1, ge=0)
    """Number of times that a judgement which failed with an error is repeated while others of its verifier succeed;
    then the response leaves its group. A score of 0 is no error. An exception of a reward function of yours is not
    repeated, unless the network or a service is its cause."""
    patience_seconds: RunTime[float] = Field(900, ge=0)
    """Longest time that a response waits for a verifier whose judgements all fail, such as one whose endpoint cannot be
    reached, before the response leaves its group, seconds."""


class ValidationConfig(Config):
    """Validation while training: the policy answers prompts that it is never trained on.

    One actor stays at the validated version until it has answered all prompts, while the other actors and the learner
    continue.
    """

    every: int = Field(50, ge=1)
    """Steps between two validations; the initial and the last policy are validated too. A policy that is due while
    another is still being validated is skipped, with a warning in the log."""
    prompts: int = Field(64, ge=0)
    """Number of prompts of the mixture that validation takes out of training, chosen by their ids and `seed`. 0: the
    policy answers benchmarks alone."""
    samples: int = Field(4, gt=0)
    """Responses to every such prompt, sampled as in training."""
    hand_over: Literal["last", "best"] = "last"
    """Policy that the run ends with: the `last` one, or the validated one of the highest mean score (`best`), which is
    stored in `policies/` of the run folder in either case. The score is that of the prompts that are taken out of
    training; without any, the mean over benchmarks."""


class AlarmsConfig(Config):
    """Thresholds of the alarms that a run logs, each with its cause and remedy (`docs/alarms.md`). null: no alarm."""

    window: int = Field(5, ge=1)
    """Number of steps whose mean is compared with a threshold."""
    min_entropy: float | None = Field(0.05, ge=0)
    """Smallest entropy of the policy, nats per token."""
    max_entropy: float | None = Field(None, gt=0)
    """Largest entropy of the policy, nats per token; it depends on the model and the temperature (Axolotl's guide:
    0.5)."""
    min_reward: float | None = Field(None)
    """Smallest mean score of the judged responses, after shaping, from step 20 on; it depends on the rewards (Axolotl's
    guide: 0.15 within 20 steps)."""
    max_mismatch: float | None = Field(0.2, gt=0)
    """Largest difference between the log-probabilities of engine and learner, nats per token."""
    max_truncated: float | None = Field(0.5, gt=0)
    """Largest share of the trained responses that reached the length limit."""
    min_reward_std: float | None = Field(0.02, ge=0)
    """Smallest standard deviation of a group's scores, mean over judged groups."""
    max_zero_variance: float | None = Field(0.9, gt=0)
    """Largest share of the judged groups that carry no gradient."""
    max_clipped: float | None = Field(0.2, gt=0)
    """Largest share of the trained tokens above the upper clip bound."""
    max_staleness_dropped: float | None = Field(0.25, gt=0)
    """Largest number of groups dropped as stale, as a share of the judged groups."""
    max_unjudged: float | None = Field(0.05, gt=0)
    """Largest share of the responses that could not be judged."""
    min_length_growth: float | None = Field(0.25, gt=0)
    """Smallest mean length of the trained responses, as a multiple of that of the first `window` steps."""
    max_length_growth: float | None = Field(4.0, gt=0)
    """Largest mean length of the trained responses, as a multiple of that of the first `window` steps."""
    max_grad_norm: float | None = Field(10.0, gt=0)
    """Largest gradient norm, before it is clipped (Axolotl's guide: above 10 a run is unstable)."""
    max_grad_norm_growth: float | None = Field(10.0, gt=0)
    """Largest gradient norm, as a multiple of its median over the last 100 steps."""


class TrainingConfig(Config):
    """One training run, OlmoRL-style: asynchronous, group-relative, with verifiable rewards."""

    steps: int = Field(1, ge=1)
    """Number of batches that are trained on, each with one optimizer step unless `updates` asks for more."""
    updates: UpdatesConfig = UpdatesConfig()
    """Optimizer steps on one batch."""
    groups_per_step: int = Field(8, gt=0)
    """Number of groups in a batch; a group holds the responses to one prompt."""
    sampling: SamplingConfig = SamplingConfig()
    """Group size, length limit and temperature of responses; the learner computes probabilities at the same
    temperature."""
    resampling: Resampling = ActiveResampling()
    """Treatment of groups that carry no gradient, because all their scores are equal (zero-variance groups)."""
    replay: ReplayConfig | None = None
    """Replay buffer: with `resampling.kind = none`, groups that were trained on take the place of zero-variance groups.
    null: no group is trained on again."""
    prompts: PromptsConfig = PromptsConfig()
    """Choice and order of prompts: retirement, deferred re-rolling, curriculum."""
    async_steps: int = Field(2, ge=0)
    """Number of batches whose groups may be sampled ahead of the learner, in flight or waiting. 0: a synchronous run,
    in which actors and learner work in turns, and actors take new weights before they sample for the next batch."""
    deterministic: bool = False
    """true: a run can be repeated exactly, on machines of one kind without GPUs and with `async_steps` 0. Responses
    are then drawn from seeds, and one at a time, because a kernel's rounding depends on what else is in its batch."""
    max_staleness: int = Field(4, ge=0)
    """Largest age of the policy that sampled a token which is trained on, in steps."""
    beyond_staleness: Literal["drop", "abort", "mask"] = "drop"
    """Treatment of a group with tokens older than `max_staleness`. `drop`: it is dropped when it would be trained on,
    and another is sampled. `abort`: the same, and a group in flight is dropped as soon as it is too old. `mask`: it is
    trained on without these tokens."""
    lora: LoraConfig | None = None
    """Adapter that is trained in place of the model's weights (LoRA). null: all weights are trained."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """Loss, advantages, KL penalty and off-policy correction."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer and learning rate schedule."""
    learner: LearnerConfig = LearnerConfig()
    """Number, memory and fault tolerance of the learner ranks."""
    actors: ActorsConfig = ActorsConfig()
    """Number, updates and fault tolerance of the inference engines."""
    placement: RunTime[gpu_shares.PlacementOption] = "auto"
    """GPUs of learner ranks and engines. `apart`: each has GPUs of its own. `shared`: every GPU has one rank and one
    engine, both in its memory at the same time; there are as many engines as ranks, each on one GPU. `turns`: the same,
    but the engine sleeps while the rank computes, and the rank's states are in main memory while the engine generates.
    `auto`: where the machines have too few GPUs for apart, shared, or turns if the memory of the GPUs is known to be
    too small for that. Without GPUs auto and shared have no meaning, and turns is refused."""
    rewards: RewardsConfig = RewardsConfig()
    """Verifier processes that judge responses while training."""
    validation: ValidationConfig | None = None
    """Validation on prompts that are never trained on. null: no validation."""
    model_check: RunTime[bool] = True
    """Compare learner, model and engine before the first rollout; a difference beyond rounding ends the run
    (`docs/troubleshooting.md`). false: they are not compared, for a model whose differences are known and accepted."""
    alarms: RunTime[AlarmsConfig] = AlarmsConfig()
    """Thresholds of the metrics beyond which a run logs an alarm."""
    checkpoint_every: RunTime[int] = Field(10, ge=1)
    """Steps between two checkpoints that can be gone back to: the newest of them stays until the next one is complete,
    beside the newest two checkpoints of either kind. The last step is always saved, and its checkpoint stays alone once
    the run has ended."""
    recover_every: RunTime[int | None] = Field(10, ge=1)
    """Steps without a checkpoint after which another is taken, for recovery alone: it stays until two newer ones are
    complete. The tokens of these steps are held in memory, to repeat them when the learner is lost. null: none is."""
    export_every: RunTime[int | None] = Field(None, ge=1)
    """Steps between two policies that are exported during the run, as Hugging Face folders `policies/step_<n>` of the
    run folder, each as large as the model. null: only the last policy is exported, as `policy`."""
    keep_rollouts: RunTime[bool] = True
    """true: every finished response is written, with its rewards and its fate, to compressed files
    `rollouts/*.parquet` of the run folder."""
    log_completions: RunTime[int] = Field(0, ge=0)
    """Number of responses of every batch that are printed during the run."""
    stall_seconds: RunTime[float] = Field(1800, gt=0)
    """Longest time that the learner waits without any group being decided, seconds; then the run fails with a
    diagnosis. A learner that takes longer for one call counts as lost."""
    trackers: RunTime[list[Literal["wandb", "mlflow"]]] = Field([])
    """Services that receive the metrics of every step beside `metrics.jsonl` and TensorBoard: Weights & Biases, MLflow.
    Each needs its package, which the extra of its name installs."""
    seed: int = 0
    """Seed of the order of prompts after the first epoch, of the learner, of the choice of validation prompts, and of
    `deterministic` responses."""

    @property
    def steps_between_checkpoints(self) -> int:
        """Largest number of steps between two checkpoints."""
        return min(self.checkpoint_every, self.recover_every or self.checkpoint_every)

    @property
    def gpus(self) -> int:
        """Number of GPUs that learner ranks and engines take together; `auto` counts as apart."""
        apart = self.learner.ranks + self.actors.count * self.actors.engine.gpus
        return self.learner.ranks if self.shares_gpus else apart

    @property
    def shares_gpus(self) -> bool:
        """Return whether every GPU has a learner rank and an engine, at the same time or in turns."""
        return self.placement in ("shared", "turns")

    @property
    def takes_turns(self) -> bool:
        """Return whether learner ranks and engines are in the memory of their GPUs in turns."""
        return self.placement == "turns"

    @property
    def as_many_engines_as_ranks(self) -> bool:
        """Return whether every learner rank can have an engine on its GPU."""
        return gpu_shares.can_share(self.learner.ranks, self.actors.count, self.actors.engine)

    @property
    def shares_of_gpu(self) -> tuple[float, float]:
        """Shares of a GPU's memory that an engine takes, and that a learner rank may take."""
        return gpu_shares.shares(self.placement, self.actors.engine.gpu_memory_utilization)

    @property
    def is_synchronous(self) -> bool:
        """Return whether actors and learner work in turns, and never at the same time (`async_steps` is 0)."""
        return self.async_steps == 0

    @property
    def samples_in_rounds(self) -> bool:
        """Return whether prompts are sampled in rounds (dynamic resampling): no dropped group is replaced at once."""
        return isinstance(self.resampling, DynamicResampling)

    @model_validator(mode="after")
    def _samples_from_the_policy(self) -> Self:
        if self.sampling.samples < 2:
            raise ValueError(
                f"sampling.samples is {self.sampling.samples}: a group needs at least 2 samples to compare"
            )
        if self.sampling.seed is not None:
            raise ValueError(
                f"sampling.seed = {self.sampling.seed}: training draws every response anew; seed the run with `seed`"
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
        if self.sampling.guided_regex and self.objective.correction.kind == "none":
            raise ValueError(
                "sampling.guided_regex: responses are drawn from the policy's tokens that can match, which is not the "
                "policy; objective.correction weighs the one against the other, kind = none does not"
            )
        return self

    @model_validator(mode="after")
    def _passes_to_vllm_what_training_allows(self) -> Self:
        engine = self.actors.engine
        if engine.server is not None:
            raise ValueError(
                "actors.engine.server: training needs engines of its own, which take new weights in the middle of "
                "responses and return the log-probability of every token that they drew; a server does neither"
            )
        reason = refused_in_training("sampling.vllm", self.sampling.vllm, SAMPLING_REFUSED_IN_TRAINING)
        reason = reason or refused_in_training("actors.engine.vllm", engine.vllm, ENGINE_REFUSED_IN_TRAINING)
        if reason:
            raise ValueError(reason)
        for name in engine.coarse:
            if self.objective.correction.kind == "none":
                raise ValueError(
                    f"actors.engine.vllm.{name}: the engine then draws from another distribution than the learner's; "
                    "objective.correction weighs the one against the other, kind = none does not"
                )
            if self.model_check:
                raise ValueError(
                    f"actors.engine.vllm.{name}: the engine then differs from the learner by more than rounding, and "
                    "model_check would end the run; set model_check: false"
                )
        return self

    @model_validator(mode="after")
    def _shares_gpus_one_to_one(self) -> Self:
        engines, ranks, zero_stage = self.actors.count, self.learner.ranks, self.learner.zero_stage
        if reason := gpu_shares.refusal(self.placement, ranks, engines, self.actors.engine, zero_stage):
            raise ValueError(reason)
        return self

    @model_validator(mode="after")
    def _liger_computes_its_loss(self) -> Self:
        if self.learner.liger is True and self.objective.entropy_coefficient > 0:
            raise ValueError(
                f"learner.liger = true: its kernel has no gradient of an entropy, and objective.entropy_coefficient is "
                f"{self.objective.entropy_coefficient:g}; set liger to auto"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.samples_in_rounds and not self.is_synchronous:
            raise ValueError(
                f"resampling.kind = dynamic samples in rounds and needs async_steps = 0, not {self.async_steps}; "
                "resampling.kind = active samples ahead of the learner"
            )
        if self.replay and self.resampling.kind != "none":
            raise ValueError(
                f"replay: with resampling.kind = {self.resampling.kind}, new groups take the place of those that teach "
                "nothing, and none is left for replayed ones; set resampling.kind = none, or leave replay out"
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
                f"groups_per_step ({self.groups_per_step}) is no multiple of updates.minibatches "
                f"({self.updates.minibatches})"
            )
        if self.objective.force_on_policy_ratio and self.updates != UpdatesConfig():
            raise ValueError(
                f"objective.force_on_policy_ratio is right for one update per batch; updates asks for "
                f"{self.updates.minibatches * self.updates.epochs}"
            )
        overlong = self.objective.shaping.overlong
        if overlong is not None and overlong.max_length - overlong.cache >= self.sampling.max_tokens:
            raise ValueError(
                f"objective.shaping.overlong penalises from {overlong.max_length - overlong.cache} tokens on, which "
                f"sampling.max_tokens ({self.sampling.max_tokens}) never exceeds"
            )
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
