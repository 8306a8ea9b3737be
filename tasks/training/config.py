"""Options of a training run. Pydantic only: parsing a recipe must load neither torch nor vllm."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.config import Config, RunTime
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.training.learner.config import LearnerConfig, LoraConfig, OptimizerConfig, UpdatesConfig
from tasks.training.objective.config import ObjectiveConfig
from tasks.training.prompt_options import ActiveResampling, DynamicResampling, PromptsConfig, ReplayConfig, Resampling


class ActorsConfig(Config):
    """The actors: independent vLLM engines."""

    count: RunTime[int] = Field(1, gt=0)
    """Engines, each on `engine.tensor_parallel_size` GPUs where there are GPUs. With fewer, training goes on."""
    engine: EngineConfig = EngineConfig()
    """How each engine runs."""
    updates: Literal["in_flight", "drained", "barrier", "static"] = "in_flight"
    """When an engine takes new weights. `in_flight`: at once, in the middle of its responses (PipelineRL, OlmoRL).
    `drained`: once its responses are finished, and it begins none before. `barrier`: all engines together, once all
    have finished theirs. `static`: as `drained`, and it begins no response before all that it was given together are
    finished (static batching, Olmo 2)."""
    sync_every: int = Field(1, ge=1)
    """Steps between weights that engines are given (Axolotl's `vllm_sync_interval`). More make fewer updates, and
    responses whose policy is up to so many steps older; the last step's are always given."""
    keep_cache: bool = True
    """Whether responses go on with the KV cache of older weights; without, an update computes it again."""
    min_num_seqs: RunTime[int] = Field(1, ge=1)
    """An engine whose KV cache overflows is given fewer sequences at a time than `engine.max_num_seqs`, and more again
    where there is room; never fewer than this (`tasks.training.actors.concurrency`)."""
    prefetch: RunTime[int] = Field(8, ge=0)
    """Samples that wait in an engine beyond those, so that it need not ask for the next. With as many as a group has,
    groups are not spread over engines, whose slowest would set their pace."""
    cpus: RunTime[float] = Field(1.0, ge=0)
    """CPU cores that an actor reserves in Ray."""
    max_restarts: RunTime[int] = Field(3, ge=0)
    """How often a dead engine is replaced within `restart_window_seconds`; then its place stays empty until the time is
    over, and where every place is empty, the run fails."""
    restart_window_seconds: RunTime[float] = Field(3600, gt=0)
    start_timeout_seconds: RunTime[float] = Field(1800, gt=0)
    """How long an engine may take to load, once the cluster has room for it."""
    update_timeout_seconds: RunTime[float] = Field(600, gt=0)
    """How long it may take new weights."""
    hang_seconds: RunTime[float] = Field(300, gt=0)
    """An engine that is to generate and has made no token for so long hangs."""


class RewardsConfig(Config):
    """Where responses are judged while training."""

    workers: RunTime[int] = Field(1, gt=0)
    """Verifier processes."""
    retries: RunTime[int] = Field(1, ge=0)
    """How often a judgement that failed (not: that was 0) is repeated, while others of its verifier succeed, before the
    response leaves its group."""
    patience_seconds: RunTime[float] = Field(900, ge=0)
    """How long a response waits for a verifier of which every judgement fails, such as one whose endpoint is away,
    before it leaves its group."""


class ValidationConfig(Config):
    """Prompts that are kept out of training, and answered by the policy as it is every so many steps.

    One actor keeps that policy until it has answered all of them, while the others and the learner go on.
    """

    every: int = Field(50, ge=1)
    """Steps between two validations; the initial and the last policy are validated besides. A policy that is due while
    another is still being validated is left out, and the log says so."""
    prompts: int = Field(64, gt=0)
    """How many of the mixture are kept out of training, chosen by their ids and `seed`."""
    samples: int = Field(4, gt=0)
    """Responses to each, sampled as in training."""
    hand_over: Literal["last", "best"] = "last"
    """The policy that the run ends in: the `last`, or the validated one with the highest mean score (`best`), which is
    kept in `policies/` of the run folder in any case."""


class AlarmsConfig(Config):
    """Thresholds beyond which a run says what goes wrong, and what to do (`docs/alarms.md`). null: never."""

    window: int = Field(5, ge=1)
    """Steps whose mean is compared."""
    min_entropy: float | None = Field(0.05, ge=0)
    """Of the policy, nats per token."""
    max_mismatch: float | None = Field(0.2, gt=0)
    """Between the log-probabilities of engine and learner, nats per token."""
    max_truncated: float | None = Field(0.5, gt=0)
    """Share of the trained responses that were cut off."""
    min_reward_std: float | None = Field(0.02, ge=0)
    """Standard deviation of a group's scores, mean over judged groups."""
    max_zero_variance: float | None = Field(0.9, gt=0)
    """Share of the judged groups that teach nothing."""
    max_clipped: float | None = Field(0.2, gt=0)
    """Share of the trained tokens above the upper clip bound."""
    max_staleness_dropped: float | None = Field(0.25, gt=0)
    """Groups dropped as stale, over judged ones."""
    max_unjudged: float | None = Field(0.05, gt=0)
    """Share of the responses that cannot be judged."""
    min_length_growth: float | None = Field(0.25, gt=0)
    """Mean length of the trained responses, over that of the first `window` steps."""
    max_length_growth: float | None = Field(4.0, gt=0)
    """Mean length of the trained responses, over that of the first `window` steps."""
    max_grad_norm: float | None = Field(10.0, gt=0)
    """Gradient norm, over its median in the last 100 steps."""


class TrainingConfig(Config):
    """One training run, OlmoRL-style: asynchronous, group-relative, with verifiable rewards."""

    steps: int = Field(1, ge=1)
    """Batches of rollouts, each with one optimizer step unless `updates` asks for more."""
    updates: UpdatesConfig = UpdatesConfig()
    """Optimizer steps of a batch."""
    groups_per_step: int = Field(8, gt=0)
    """Prompts whose groups make one batch."""
    sampling: SamplingConfig = SamplingConfig()
    """Group size, limits and temperature; the learner's probabilities are taken at the same temperature."""
    resampling: Resampling = ActiveResampling()
    """What becomes of a group that teaches nothing, because its rewards are all equal."""
    replay: ReplayConfig | None = None
    """With `resampling.kind = none`, groups that were trained on take the place of those that teach nothing."""
    prompts: PromptsConfig = PromptsConfig()
    """Which prompts are sampled, and when: retirement, deferred re-rolling, curriculum."""
    async_steps: int = Field(2, ge=0)
    """Batches of groups that may be sampled ahead of the learner, in flight or waiting. 0: actors and learner take
    turns, and an actor takes new weights before it samples for the next batch."""
    deterministic: bool = False
    """With `async_steps` 0, a run without GPUs can be repeated exactly on machines of one kind: responses are drawn
    from seeds, and each of them alone, because a kernel's rounding depends on what else is in its batch."""
    max_staleness: int = Field(4, ge=0)
    """How many steps old the policy may be that sampled a token which is trained on."""
    beyond_staleness: Literal["drop", "abort", "mask"] = "drop"
    """What becomes of a group with older tokens. `drop`: another takes its place once it would be trained on. `abort`:
    the same, and what of it is being generated is given up at once. `mask`: it is trained on without those tokens."""
    lora: LoraConfig | None = None
    """Train an adapter in place of all weights. None: all weights."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """See there. `validation: null`: none."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """See there. `validation: null`: none."""
    learner: LearnerConfig = LearnerConfig()
    """See there. `validation: null`: none."""
    actors: ActorsConfig = ActorsConfig()
    """See there. `validation: null`: none."""
    rewards: RewardsConfig = RewardsConfig()
    """See there. `validation: null`: none."""
    validation: ValidationConfig | None = None
    """See there. `validation: null`: none."""
    alarms: RunTime[AlarmsConfig] = AlarmsConfig()
    """See there. `validation: null`: none."""
    checkpoint_every: RunTime[int] = Field(10, ge=1)
    """Steps between checkpoints; the last step is always saved. The tokens of the steps since the newest one are held
    in memory, for a learner that is lost."""
    export_every: RunTime[int | None] = Field(None, ge=1)
    """Steps between policies that are handed over while the run goes on, as Hugging Face folders `policies/step_<n>` of
    the run folder, each as large as the model. null: the last one alone, as `policy`."""
    keep_rollouts: RunTime[bool] = True
    """Write every finished response, with its rewards and its fate, to compressed files `rollouts/*.parquet` of the run
    folder."""
    log_completions: RunTime[int] = Field(0, ge=0)
    """Responses of each batch that are printed while training."""
    stall_seconds: RunTime[float] = Field(1800, gt=0)
    """No group decided for this long while the learner waits: the run fails with a diagnosis. A learner that needs as
    long for one thing counts as lost."""
    trackers: RunTime[list[Literal["wandb", "mlflow"]]] = Field([])
    """Services that get the metrics of each step beside `metrics.jsonl` and TensorBoard: Weights & Biases, MLflow. Each
    needs its package, the extra of its name."""
    seed: int = 0
    """Seed of the prompts' order after the first epoch, of the learner, and of `deterministic` responses."""

    @property
    def is_synchronous(self) -> bool:
        """Whether actors and learner work in turns, and never at the same time (`async_steps` is 0)."""
        return self.async_steps == 0

    @property
    def samples_in_rounds(self) -> bool:
        """Whether a dropped group is left to the next round, and not replaced at once."""
        return isinstance(self.resampling, DynamicResampling)

    @model_validator(mode="after")
    def _samples_from_the_policy(self) -> Self:
        if self.sampling.samples < 2:
            raise ValueError(
                f"sampling.samples is {self.sampling.samples}: a group needs at least 2 to compare with each other"
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
        if self.checkpoint_every % self.actors.sync_every:
            raise ValueError(
                f"deterministic: a run that goes on from a checkpoint gives its weights to engines; checkpoint_every = "
                f"{self.checkpoint_every} must be a multiple of actors.sync_every = {self.actors.sync_every}"
            )
