"""Computes the disk that a pod needs, by its role, from what the code writes, how many times, and to which folder.

Sizes in bytes, for `P` trained parameters (all of the model's, or an adapter's) and weights of `w` bytes (2, or 4 in
float32):

    checkpoint        12 P          master weights and AdamW's two moments in float32, one shard per rank
                      w P           the weights, written by rank 0; not under ZeRO 3 (`Trainer.save`)
    reference         w P or 4 P    in addition, if `objective.kl` moves the reference policy (`learner.reference`)
    universal form    12 P          of a checkpoint that other learner ranks saved (`learner.universal`)
                      w P           the weights; under ZeRO 3 instead rank 0's shard, 12 P / ranks
                      12 P          a second copy of the optimizer's tensors, during the conversion
    policy            w             bytes for each parameter of the model; under LoRA it is merged (`Trainer.export`)
    kept tokens       12            bytes for each token of a trained group that is kept (`keep_tokens`), if all
                                    responses reach the limit of their length

Contents of a pod's disk at its fullest, without the slack:

    pod               in every run                                    a resume by other learner ranks
    all in one pod    model, four checkpoints, policies, tokens       the universal form in addition
    learner           model, shards of three checkpoints, a policy    model, the universal form, a shard
    head              model, policies, tokens                         model, a whole checkpoint, its universal form
    actors            model                                           -
    engine            the initial model, the model that it samples    -
    model check       model, its export                               -

Four checkpoints are the newest `parts.KEEP`, the newest of `checkpoint_every`, and an unfinished one
(`records.checkpoint`). Nodes that do not see the run folder only have shards of the newest `KEEP` checkpoints and of an
unfinished one (`learner.rank_files`). In that case the complete universal form is copied to every node of the learner.
Folders on a mounted volume do not count as disk of the pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tasks.kubernetes.pod_templates import is_on_volume
from tasks.sizing.pod_sizes import GIB
from tasks.sizing.rank_memory import OPTIMIZER
from tasks.sizing.roofline import WEIGHT, Architecture
from tasks.training.learner.checkpoint_shards import KEEP
from tasks.training.records.checkpoint import is_due
from tasks.training.records.kept_tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from tasks.kubernetes.pods import PodConfig
    from tasks.recipe.run import TrainingConfig

SLACK_GIB, SLACK_ON_CPUS_GIB = 20, 5
"""GiB for caches, logs and tables, which are not computed, with GPUs and without."""

Folder = Literal["runs", "downloads", "hub"]
"""Folder that an item is written to: the folder of runs, Flyte's downloads, or the cache of the Hugging Face hub."""

EXACT = 4
"""Bytes of a float32 number."""


class StoredModels(NamedTuple):
    """The models that a run stores in files.

    Attributes:
        parameters: number of parameters of the policy.
        trained: number of trained parameters, which are all parameters or an adapter's.
        judge_gib: size in GiB of the judge and the reward models that the run downloads and serves.
    """

    parameters: int
    trained: int
    judge_gib: float = 0.0

    @property
    def weights_gib(self) -> float:
        """Size of the policy's weights in 16 bits, in GiB."""
        return WEIGHT * self.parameters / GIB

    @classmethod
    def from_model(cls, model: Architecture, config: TrainingConfig, judge_gib: float = 0.0) -> StoredModels:
        """Return the sizes of a model and of its trained parameters.

        An adapter is assumed to have all linear layers except the head, even if `lora.target_modules` names fewer.
        """
        if config.lora is None:
            return cls(model.parameters, model.parameters, judge_gib)
        queries, keys = model.heads * model.head_size, model.kv_heads * model.head_size
        attention = 2 * (model.hidden + queries) + 2 * (model.hidden + keys)
        experts = model.experts.layers if model.experts else 0
        shared = model.experts.shared if model.experts else 0
        mlps = (model.layers - experts) * 3 * (model.hidden + model.intermediate)
        if shared:
            mlps += experts * 3 * (model.hidden + shared)
        return cls(model.parameters, config.lora.rank * (model.layers * attention + mlps), judge_gib)


class Stored(NamedTuple):
    """An item that a pod stores: its name for messages, its size in GiB, and its folder."""

    name: str
    gib: float
    folder: Folder


@dataclass(frozen=True)
class DiskNeed:
    """The items that a pod stores on its disk at its fullest.

    Attributes:
        run: items in every run.
        resume: items while a run is resumed by a different number of learner ranks than saved it.
        slack_gib: GiB for everything that is not computed.
    """

    run: tuple[Stored, ...]
    resume: tuple[Stored, ...] = ()
    slack_gib: int = SLACK_GIB

    @property
    def run_gib(self) -> int:
        """The disk that every run needs, in GiB."""
        return self.slack_gib + ceil(sum(item.gib for item in self.run))

    @property
    def gib(self) -> int:
        """The disk that a pod requests by default, in GiB, for a run and for a resume by other ranks."""
        return self.slack_gib + ceil(sum(item.gib for item in self.fullest))

    @property
    def fullest(self) -> tuple[Stored, ...]:
        """The items when they take the most space."""
        return _choose_larger(self.run, self.resume)

    def drop_volumes(self, template: str | dict[str, Any] | None) -> DiskNeed:
        """Return the need without the items on volumes that an inline pod template mounts."""
        if not isinstance(template, dict):
            return self
        run, resume = (
            tuple(item for item in items if not is_on_volume(template, *FOLDERS[item.folder]))
            for items in (self.run, self.resume)
        )
        return DiskNeed(run, resume, self.slack_gib)

    def parts(self, items: tuple[Stored, ...]) -> str:
        """Return the names and GiB of `items`, largest first, and the slack, for a message."""
        by_size = sorted(items, key=lambda item: -item.gib)
        return ", ".join([*(f"{item.name} {item.gib:.1f}" for item in by_size), f"slack {self.slack_gib}"])


FOLDERS: dict[Folder, tuple[str, str]] = {
    "runs": ("RLVR_RUNS", "/root/outputs/runs"),
    "downloads": ("TMPDIR", "/tmp"),  # noqa: S108 (where flytekit's entrypoint makes its folder)
    "hub": ("HF_HOME", "/root/.cache/huggingface"),
}
"""Folders in our images, each with the environment variable that overrides it."""


def add_disk(pod: PodConfig, need: DiskNeed | None) -> PodConfig:
    """Return a pod with the disk that it needs outside of volumes, if that is known and no option sets the disk."""
    if need is None or pod.disk_gib is not None:
        return pod
    return pod.model_copy(update={"disk_gib": need.drop_volumes(pod.template).gib})


def estimate_one_pod(config: TrainingConfig, models: StoredModels, *, gpus: bool) -> DiskNeed:
    """Return the need of a pod with learner, actors and controller.

    Args:
        config: the run's options.
        models: the sizes of its models.
        gpus: whether the pod has GPUs.
    """
    count = _count_checkpoints(config, KEEP + 2)
    run = (
        *_estimate_models(models),
        Stored(
            _format_count(count, "checkpoint", "checkpoints"),
            count * _compute_checkpoint_gib(config, models, gpus=gpus),
            "runs",
        ),
        _estimate_policies(config, models, gpus=gpus),
        *_estimate_kept_tokens(config),
    )
    resumed = (*run, Stored("a checkpoint's universal form", _compute_universal_gib(config, models, gpus=gpus), "runs"))
    return DiskNeed(
        run, _choose_larger(_estimate_conversion(config, models, gpus=gpus), resumed), _slack_gib(gpus=gpus)
    )


def estimate_learner_machine(config: TrainingConfig, models: StoredModels, ranks: int) -> DiskNeed:
    """Return the need of a machine of a Ray cluster with `ranks` learner ranks, including rank 0."""
    part = _compute_checkpoint_gib(config, models, gpus=True, ranks=ranks)
    copied = _compute_universal_gib(config, models, gpus=True) + _compute_reference_gib(config, models, gpus=True)
    count = _count_checkpoints(config, KEEP + 1)
    policy = Stored("a policy", _compute_policy_gib(config, models, gpus=True), "runs")
    run = (
        *_estimate_models(models),
        Stored(_format_count(count, "part of a checkpoint", "parts of checkpoints"), count * part, "runs"),
        policy,
    )
    resume = (
        *_estimate_models(models),
        Stored("a checkpoint's universal form", copied, "runs"),
        Stored("a part of a checkpoint", part, "runs"),
    )
    return DiskNeed(run, resume)


def head(config: TrainingConfig, models: StoredModels) -> DiskNeed:
    """Return the need of the controller's pod if training has several machines."""
    run = (
        Stored("model", models.weights_gib, "downloads"),
        _estimate_policies(config, models, gpus=True),
        *_estimate_kept_tokens(config),
    )
    resumed = (
        *run,
        Stored("a checkpoint of all ranks", _compute_checkpoint_gib(config, models, gpus=True), "runs"),
        Stored("its universal form", _compute_universal_gib(config, models, gpus=True), "runs"),
    )
    return DiskNeed(run, _choose_larger(_estimate_conversion(config, models, gpus=True), resumed))


def estimate_actors_machine(models: StoredModels) -> DiskNeed:
    """Return the need of a machine of a Ray cluster that only has engines."""
    return DiskNeed(_estimate_models(models))


def estimate_model_check(config: TrainingConfig, models: StoredModels, *, gpus: bool) -> DiskNeed:
    """Return the need of the pod that checks the model, in which the engine reads the learner's export."""
    model = Stored("model", models.weights_gib, "downloads")
    export = Stored("its export", _compute_policy_gib(config, models, gpus=gpus), "downloads")
    return DiskNeed((model, export), slack_gib=_slack_gib(gpus=gpus))


def estimate_engine_pod(
    config: TrainingConfig, models: StoredModels, *, gpus: bool, trained: bool = False, sampled_gib: float = 0.0
) -> DiskNeed:
    """Return the need of a pod for difficulty or evaluation, which downloads a policy and the initial model as a judge.

    Args:
        config: the run's options.
        models: the sizes of its models.
        gpus: whether training has GPUs, and therefore these pods too.
        trained: whether the policy may be the trained policy.
        sampled_gib: size in GiB of the largest other model that is sampled from.
    """
    sampled = max(_compute_policy_gib(config, models, gpus=gpus) if trained else models.weights_gib, sampled_gib)
    return DiskNeed(
        (Stored("policy", sampled, "downloads"), *_estimate_models(models)), slack_gib=_slack_gib(gpus=gpus)
    )


def _estimate_models(models: StoredModels) -> tuple[Stored, ...]:
    """Return the initial model, and the judge and the reward models if the run downloads any."""
    initial = Stored("model", models.weights_gib, "downloads")
    return (initial, Stored("judge", models.judge_gib, "hub")) if models.judge_gib else (initial,)


def _estimate_policies(config: TrainingConfig, models: StoredModels, *, gpus: bool) -> Stored:
    """Return the exported policies in the run folder.

    They are the last policy, the policies exported by `export_every`, the policy that is being validated, and the best
    validated policies that checkpoints refer to.
    """
    count = 1 + config.steps // config.export_every if config.export_every else 1
    if config.validation:
        count += 1 + _count_checkpoints(config, KEEP + 1)
    return Stored(
        _format_count(count, "policy", "policies"), count * _compute_policy_gib(config, models, gpus=gpus), "runs"
    )


def _estimate_kept_tokens(config: TrainingConfig) -> tuple[Stored, ...]:
    """Return the tokens in the files of responses, as large as they are if all responses reach their limit."""
    if not config.keep_tokens:
        return ()
    groups = config.keep_tokens * config.steps * config.groups_per_step
    tokens = groups * config.sampling.samples * config.sampling.max_tokens
    return (Stored("kept tokens", TOKEN_BYTES * tokens / GIB, "runs"),)


def _compute_policy_gib(config: TrainingConfig, models: StoredModels, *, gpus: bool) -> float:
    return _width(config, gpus=gpus) * models.parameters / GIB


def _compute_checkpoint_gib(
    config: TrainingConfig, models: StoredModels, *, gpus: bool, ranks: int | None = None
) -> float:
    """Return the size of a checkpoint in GiB, or of the shards of `ranks` ranks, including rank 0, if given."""
    share = 1.0 if ranks is None else min(1.0, ranks / config.learner.ranks)
    is_sharded = config.learner.zero_stage == 3
    weights = 0 if is_sharded else _width(config, gpus=gpus)
    reference = (share if is_sharded else 1.0) * _compute_reference_gib(config, models, gpus=gpus)
    return models.trained * (weights + OPTIMIZER * share) / GIB + reference


def _compute_reference_gib(config: TrainingConfig, models: StoredModels, *, gpus: bool) -> float:
    """Return the size in GiB of the reference policy in a checkpoint.

    It is 0 if there is no reference policy, or if it stays the initial model.
    """
    kl = config.objective.kl
    if config.lora is not None or kl.beta == 0 or kl.sync_every is None:
        return 0.0
    return (EXACT if (kl.sync_alpha or 1) < 1 else _width(config, gpus=gpus)) * models.trained / GIB


def _compute_universal_gib(config: TrainingConfig, models: StoredModels, *, gpus: bool) -> float:
    """Return the size of a checkpoint's universal form in GiB.

    Under ZeRO 3 DeepSpeed adds the state of rank 0 unchanged. The number of ranks that saved the checkpoint is assumed
    to be the number in `config`.
    """
    added = OPTIMIZER / config.learner.ranks if config.learner.zero_stage == 3 else _width(config, gpus=gpus)
    return models.trained * (OPTIMIZER + added) / GIB


def _estimate_conversion(config: TrainingConfig, models: StoredModels, *, gpus: bool) -> tuple[Stored, ...]:
    """Return the items that the controller's pod stores during the conversion, before actors and ranks load.

    DeepSpeed adds the weights after it has removed its second copy of the optimizer's tensors.
    """
    weights = 0 if config.learner.zero_stage == 3 else _width(config, gpus=gpus) * models.trained / GIB
    return (
        Stored("model", models.weights_gib, "downloads"),
        Stored("a checkpoint of all ranks", _compute_checkpoint_gib(config, models, gpus=gpus), "runs"),
        Stored("its universal form", _compute_universal_gib(config, models, gpus=gpus) - weights, "runs"),
        Stored("the making of that", OPTIMIZER * models.trained / GIB, "runs"),
        Stored("a policy", _compute_policy_gib(config, models, gpus=gpus), "runs"),
    )


def _choose_larger(first: tuple[Stored, ...], second: tuple[Stored, ...]) -> tuple[Stored, ...]:
    return max(first, second, key=lambda items: sum(item.gib for item in items))


def _width(config: TrainingConfig, *, gpus: bool) -> int:
    """Return the bytes of a weight in the learner.

    `auto` without GPUs depends on the processor, so the larger float32 is assumed.
    """
    is_wide = config.learner.dtype == "float32" or (config.learner.dtype == "auto" and not gpus)
    return EXACT if is_wide else WEIGHT


def _count_checkpoints(config: TrainingConfig, most: int) -> int:
    """Return the number of checkpoints that a run takes, at most `most`."""
    taken = newest = 0
    for version in range(1, config.steps + 1):
        if taken < most and (version == config.steps or is_due(config, version, newest)):
            taken, newest = taken + 1, version
    return taken


def _format_count(count: int, one: str, several: str) -> str:
    return f"a {one}" if count == 1 else f"{count} {several}"


def _slack_gib(*, gpus: bool) -> int:
    return SLACK_GIB if gpus else SLACK_ON_CPUS_GIB
