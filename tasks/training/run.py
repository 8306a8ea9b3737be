"""Runs training from end to end without Flyte: starts the Ray actors, resumes or begins, trains, exports the policy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.environments.episode import EpisodePlayer
from tasks.failures import PASSING, MistakeError
from tasks.machine import precision
from tasks.machine.image import check_image
from tasks.machine.memory_limit import return_freed_memory
from tasks.machine.resources import count_ray_gpus, read_ray_resources
from tasks.recipe.routing_replay import check_replayed_episodes, check_replayed_model
from tasks.recipe.run import TrainingConfig
from tasks.rollouts.sample_and_score import check_prompts
from tasks.sizing.roofline import find_architecture
from tasks.storage.durable import write_whole_in_threads
from tasks.storage.lease import Lease
from tasks.storage.model_folder import convert_load_errors
from tasks.storage.threads import PatientThreads
from tasks.storage.uploads import Uploads
from tasks.tables.parquet import read_table
from tasks.tables.schemas import MIXTURE
from tasks.training.actors.relayed_weights import RelayedWeights
from tasks.training.actors.weights import Weights, WeightStore, compute_needed_memory, open_weights_folder
from tasks.training.cluster.memory import wait_until_killed_again
from tasks.training.cluster.nodes import find_only_node, wait_until_node_dies
from tasks.training.cluster.placement import (
    find_cluster_gpu,
    list_cluster_nodes,
    make_rank_resources,
    resolve_auto_placement,
)
from tasks.training.cluster.processes import RunProcesses, check_resources, verifiers_of_prompts
from tasks.training.cluster.relay import RelayNodes
from tasks.training.cluster.watchdog import watch
from tasks.training.control.collaborators import Collaborators
from tasks.training.control.controller import Controller
from tasks.training.control.own_advantages import resolve_advantages
from tasks.training.control.prompt_stream import PromptStream
from tasks.training.control.questions import Benchmark, load_questions
from tasks.training.control.validation import find_validated_policy, split_validation
from tasks.training.control.validation_figures import Question
from tasks.training.groups.group import Prompt, read_prompts
from tasks.training.learner.checkpoint_shards import fetch_whole
from tasks.training.learner.restartable import RestartingLearner
from tasks.training.learner.universal import convert
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.ending import end, reopen
from tasks.training.records.identity import check_fits, run_setup, should_convert
from tasks.training.records.journal import Journal, cut_back_records
from tasks.training.records.ledger import Ledger
from tasks.training.records.response_files import RolloutFiles
from tasks.training.records.run_state import RunState
from tasks.training.runtime.gpu_time_sharing import Turns
from tasks.training.runtime.timeouts import run_until_first_ends
from tasks.training.telemetry import trackers
from tasks.training.telemetry.machine_use import MachineUse
from tasks.verifiers import VerifiersConfig
from tasks.verifiers.config import DEFAULTS, REWARD_MODEL

logger = logging.getLogger(__name__)


class PromptTooLongError(MistakeError):
    """A prompt and its response are too long; the message names the prompt, its number of tokens and the option."""


@dataclass(frozen=True)
class TrainingResult:
    """The results of a run: paths in its run folder, and the step at which it was resumed (0 if it was not resumed)."""

    policy: Path
    ledger: Path
    metrics: Path
    tensorboard: Path
    resumed_from: int


Callback = Callable[[dict[str, float]], None]
"""A function that is called with the metrics of a step."""


@dataclass(frozen=True)
class RunInputs:
    """Everything that a training run is given: options, files, and the functions that it calls."""

    config: TrainingConfig
    """The recipe's training options."""
    model: Path
    """Hugging Face folder of the initial model on this node. It is copied to other nodes."""
    mixture: Path
    """Parquet file of `schemas.MIXTURE`: the prompts."""
    folder: Path
    """The run folder: checkpoints, ledger, metrics, policy. It must be on persistent storage, unless `on_saved` and
    `uploads` copy the checkpoints there."""
    verifiers: VerifiersConfig = DEFAULTS
    """Options of the verifiers that score responses."""
    benchmarks: Sequence[Benchmark] = ()
    """The benchmarks that validation uses, with their questions."""
    lease: Lease | None = None
    """Lock on this run, which the caller keeps until `train` returns. Optional. If None, `train` takes the lock of the
    run folder."""
    lineage: Mapping[str, Any] | None = None
    """Origin of the run (`tasks.lineage.provenance.made_from`), for the footer of the ledger's table."""
    on_step: Callback = lambda _: None
    """Called with the metrics of each step."""
    on_phase: Callable[[str], None] = lambda _: None
    """Called with what the run does before its first step."""
    on_saved: Callable[[Path], None] = lambda _: None
    """Called with the folder of each complete checkpoint."""
    uploads: Uploads | None = None
    """The run's address on blob storage. Ranks upload their checkpoint files there if their nodes do not see the run
    folder. Optional. If None, these nodes must see the folder."""


def train(inputs: RunInputs) -> TrainingResult:
    """Train the model on the mixture, from the newest checkpoint in the run folder if there is one.

    Raises:
        ResourceError: the cluster is too small for the configuration.
        MistakeError: validation would leave no prompt to train on, or has a benchmark without a question that fits.
        TrackerError: a tracker cannot be used here.
        PromptTooLongError: a prompt is too long.
        ValueError: no available verifier can score a prompt.
        OtherRunError: the run folder contains a run that these inputs cannot resume.
        RunInUseError, LeaseLostError: another process works on this run, or has taken it over.
        RewardFunctionError, RewardServiceError: a reward function of the user's fails on every response.
        NotSharedError: a node with learner ranks does not see the run folder, and `uploads` is None.
        StoreError: the files of a checkpoint on blob storage are damaged, or cannot be read.
        SharedMemoryError: a node has too little shared memory for weights.
        NoSignalError, LostGroupsError, StalledError, ActorLostError, LearnerLostError, NodeLostError,
            DivergedError: training cannot continue; each class names the cause.
        MemoryLimitError: the kernel's out-of-memory killer ended processes of the run more than once.
        ImageError: the image is for machines with GPUs and the cluster has none, or vice versa.
        ModelCheckError, WeightsNotTakenError: an engine does not have the learner's policy after its first update.
        OwnFunctionError: a loss or an advantage function of the user's fails.
    """
    gpus = count_ray_gpus()
    check_image(gpus, f"the Ray cluster has {gpus:g} GPUs")
    config, folder = _resolve_placement(inputs.config, inputs.model), inputs.folder
    resuming = Checkpoints.find_newest_below(folder / "checkpoints") is not None
    check_resources(config, resuming=resuming)
    trackers.check(config.trackers)
    make_run_folder(folder)
    check_replayed_model(config, inputs.model)
    prompts = load_prompts(config, inputs.model, inputs.mixture, inputs.verifiers)
    check_replayed_episodes(config, episodes=any(prompt.environment for prompt in prompts))
    questions = load_questions(config, inputs.model, inputs.benchmarks, inputs.verifiers)
    if judge_gpus := inputs.verifiers.gpus(verifiers_of_prompts(_list_judged(prompts, questions))):
        check_resources(config, resuming=resuming, judge_gpus=judge_gpus)
    watch()
    return_freed_memory()
    with contextlib.ExitStack() as stack:
        lease = inputs.lease or stack.enter_context(Lease.from_folder(folder))
        return asyncio.run(_train(replace(inputs, config=config), prompts, questions, lease))


def _list_judged(prompts: list[Prompt], questions: list[Question]) -> list[Prompt]:
    """Return all prompts whose responses the run scores."""
    return [*prompts, *(question.prompt for question in questions)]


def _resolve_placement(config: TrainingConfig, model: Path) -> TrainingConfig:
    """Return `config` with the placement that fits the GPUs of the cluster, as far as they and the model are known."""
    return resolve_auto_placement(config, read_ray_resources().gpus, find_architecture(model), find_cluster_gpu())


def make_run_folder(folder: Path) -> None:
    """Make the run folder if it does not exist.

    Raises:
        MistakeError: the operating system does not allow it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in PASSING:
            raise
        raise MistakeError(f"the run folder {folder} cannot be made: {error.strerror}") from error


def load_prompts(
    config: TrainingConfig, model: Path, mixture: Path, verifiers: VerifiersConfig = DEFAULTS
) -> list[Prompt]:
    """Return the mixture's prompts, tokenised by the model's tokenizer.

    Raises:
        PromptTooLongError: a prompt leaves no room for a response, in the engine's context or in a micro-batch.
        ValueError: `verifiers` cannot score a prompt.
        ModelError: the tokenizer cannot be loaded.
        ChatTemplateError: the chat template refuses a prompt, or has no variable of `sampling.chat_template_kwargs`.
    """
    from transformers import AutoTokenizer

    table = read_table(mixture, MIXTURE)
    check_prompts(table, verifiers)
    with convert_load_errors(model):
        tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = read_prompts(table, tokenizer, config.sampling.chat_template_kwargs)
    for name, limit in (
        ("actors.engine.max_model_len", config.actors.engine.max_model_len),
        ("learner.micro_batch_tokens", config.learner.micro_batch_tokens),
    ):
        for prompt in prompts:
            needed = len(prompt.token_ids) + config.sampling.max_tokens
            if needed > limit:
                raise PromptTooLongError(
                    f"{mixture}: prompt {prompt.prompt_id} has {len(prompt.token_ids)} tokens and needs {needed} with "
                    f"sampling.max_tokens = {config.sampling.max_tokens}; {name} is {limit}"
                )
    return prompts


async def _train(inputs: RunInputs, prompts: list[Prompt], questions: list[Question], lease: Lease) -> TrainingResult:
    asyncio.get_running_loop().set_default_executor(PatientThreads())
    gpu = read_ray_resources().gpus > 0
    widening = 2 if precision.resolve(inputs.config.learner.dtype, gpu=gpu) == "float32" else 1  # 1: 16-bit
    folder = inputs.folder
    with contextlib.ExitStack() as stack:
        weights, where = _open_weights(stack, inputs, widening)
        if isinstance(where, RelayNodes) and inputs.uploads is None:
            await where.check_run_folder(folder, make_rank_resources(inputs.config, list_cluster_nodes(), gpu=gpu))
        every = inputs.config.checkpoint_every
        checkpoints = Checkpoints(folder / "checkpoints", inputs.on_saved, lease.check, every)
        checkpoint = checkpoints.find_newest()
        state = await _load_state(checkpoint, inputs.config, inputs.uploads)
        config = resolve_types(inputs.config, learner=state.dtype, gpu=gpu)
        ledger, journal = _open_records(stack, folder, state, lease, config)
        processes = RunProcesses(config, inputs.model, folder, state.version, where, inputs.uploads)
        stack.callback(processes.shutdown)
        trained, validated = split_validation(prompts, config)
        judged = _list_judged(prompts, questions)
        turns = Turns(taken=config.takes_turns)
        episodes = _make_episodes(inputs, judged)
        collaborators = Collaborators(
            make_actor=processes.make_actor,
            judge=processes.make_judge(inputs.verifiers, judged),
            learner=RestartingLearner(processes.make_learner(), config, turns),
            weights=weights,
            ledger=ledger,
            journal=journal,
            checkpoints=checkpoints,
            policies=folder / "policies",
            on_step=inputs.on_step,
            on_phase=inputs.on_phase,
            advantages=resolve_advantages(config.objective),
            validation_prompts=validated,
            questions=questions,
            turns=turns,
            episodes=episodes,
            machine_use=MachineUse(
                find_architecture(inputs.model),
                gpu,
                inputs.verifiers.gpus(verifiers_of_prompts(judged) - {REWARD_MODEL}),
                inputs.verifiers.gpus(verifiers_of_prompts(judged) & {REWARD_MODEL}),
            ),
        )
        stack.enter_context(trackers.follow_run(config.trackers, folder, config.model_dump(mode="json")))
        controller = Controller(config, PromptStream(trained, config.seed, config.prompts, config.steps), collaborators)

        async def run() -> None:
            inputs.on_phase("the engine is loading" if config.actors.count == 1 else "the engines are loading")
            processes.start_actors()
            await processes.wait_until_engines_loaded()
            await collaborators.learner.start()
            if checkpoint is not None:
                await controller.resume(checkpoint, journal.rows())
            async with lease.held(), contextlib.aclosing(episodes) if episodes else contextlib.nullcontext():
                await controller.run()

        await run_until_first_ends([run(), wait_until_node_dies(), wait_until_killed_again(processes.memory, config)])
        await _write_final_policy(controller, collaborators, config, inputs.model, folder / "policy")
        table = await end(folder, ledger, checkpoints, inputs.lineage)
    return TrainingResult(
        policy=folder / "policy",
        ledger=table,
        metrics=journal.path,
        tensorboard=folder / "tensorboard",
        resumed_from=state.version,
    )


def _make_episodes(inputs: RunInputs, prompts: list[Prompt]) -> EpisodePlayer | None:
    """Return the player of the run's episodes, or None if no prompt has an environment."""
    if not any(prompt.environment for prompt in prompts):
        return None
    variables = inputs.config.sampling.chat_template_kwargs
    return EpisodePlayer.from_model(inputs.model, variables, inputs.verifiers.environments)


def _open_weights(stack: contextlib.ExitStack, inputs: RunInputs, widening: int) -> tuple[Weights, str | RelayNodes]:
    """Return the exchange of weights, and the id of the cluster's only node, or the relays of several nodes.

    Both end with `stack`. `widening` is the size of a file of weights as a multiple of the initial checkpoint's.
    """
    if node := find_only_node():
        return WeightStore(
            stack.enter_context(open_weights_folder(inputs.folder, inputs.model, widening=widening))
        ), node
    needed = 0 if inputs.config.lora else compute_needed_memory(inputs.model, widening)
    relays = RelayNodes(inputs.model, needed)
    stack.callback(relays.shutdown)
    weights = RelayedWeights(relays.folder, relays.of)
    stack.callback(weights.close)
    return weights, relays


async def _load_state(checkpoint: Path | None, config: TrainingConfig, storage: Uploads | None) -> RunState:
    """Return the state in `checkpoint`, checked against `config`, or the initial state without a checkpoint.

    If a different layout of learner ranks wrote the checkpoint, its learner shards are converted to the ranks of
    `config`, on this node. Its disk needs space for the files of all ranks, both fetched and converted.
    """
    if checkpoint is None:
        return RunState.begin(await asyncio.to_thread(run_setup, config))
    state = RunState.read(checkpoint)
    check_fits(state, config, checkpoint)
    if should_convert(state, config):
        logger.warning(
            "%s was saved by learner.ranks = %d with learner.zero_stage = %d: it is converted for %d with %d",
            checkpoint,
            state.ranks,
            state.zero_stage,
            config.learner.ranks,
            config.learner.zero_stage,
        )
        learner = Checkpoints.find_learner_folder(checkpoint)
        await asyncio.to_thread(fetch_whole, learner, storage)
        await asyncio.to_thread(convert, learner)
    return state


def _open_records(
    stack: contextlib.ExitStack, folder: Path, state: RunState, lease: Lease, config: TrainingConfig
) -> tuple[Ledger, Journal]:
    """Open the files of groups, responses and metrics, cut back to their lengths in `state`; `stack` closes them.

    From here on the run is marked as not ended.
    """
    reopen(folder)
    cut_back_records(folder, state)
    rollouts = RolloutFiles(
        folder / "rollouts",
        state.rollout_files,
        keep=config.keep_rollouts,
        keep_tokens=config.keep_tokens,
        may_write=lease.check,
    )
    ledger = stack.enter_context(contextlib.closing(Ledger(folder / "ledger.jsonl", rollouts)))
    journal = stack.enter_context(contextlib.closing(Journal(folder)))
    return ledger, journal


async def _write_final_policy(
    controller: Controller, collaborators: Collaborators, config: TrainingConfig, initial: Path, folder: Path
) -> None:
    """Write the final policy to `folder`: the last one, or the best validated one."""
    best = controller.validation.best if config.validation and config.validation.hand_over == "best" else None
    async with write_whole_in_threads(folder) as partial:
        if best is None or best == controller.version:
            await collaborators.learner.export(partial)
        else:
            logger.warning("the run ends in the policy of step %d of %d, the best so far", best, controller.version)
            source = find_validated_policy(collaborators.policies, best) if best else initial
            await asyncio.to_thread(shutil.copytree, source, partial)


def resolve_types(config: TrainingConfig, *, learner: precision.Dtype | precision.Auto, gpu: bool) -> TrainingConfig:
    """Return `config` with the types of learner and engines resolved once for all processes, so that they agree.

    Args:
        config: its `learner.dtype` is ignored.
        learner: the learner's type. For a resumed run it is the type in the checkpoint, even on another processor.
        gpu: whether the processes run on GPUs.
    """
    engine = config.actors.engine
    types = [precision.resolve(dtype, gpu=gpu) for dtype in (learner, engine.dtype)]
    if ("auto", "float32") in zip((learner, engine.dtype), types, strict=True):
        precision.report_float32("auto", "float32")
    return config.model_copy(
        update={
            "learner": config.learner.model_copy(update={"dtype": types[0]}),
            "actors": config.actors.model_copy(update={"engine": engine.model_copy(update={"dtype": types[1]})}),
        }
    )
