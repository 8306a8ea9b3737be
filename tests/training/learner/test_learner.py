"""The learner on a tiny model: it learns what it is told, and neither packing, ZeRO stage nor rank count change that.

Ranks run as Ray actors, as in a training run, so that the tests' own process joins no torch.distributed world.
"""

import asyncio
import math
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tasks.recipe.run import TrainingConfig
from tasks.storage.tensor_digest import compute_contents
from tasks.training.control.batch import select_with_gradient
from tasks.training.learner.packing import Sequence
from tasks.training.learner.weight_files import BUFFERS
from tests.model_check.families import build

pytestmark = pytest.mark.engine

RATE = 1e-3


def values(ask):
    """What a learner answers about `SEQUENCES`, as lists that can be compared."""
    return [found.tolist() for found in asyncio.run(ask(SEQUENCES))]


SEQUENCES = [
    Sequence([5, 6, 7], [10, 20, 30, 40], [-5.0] * 4, 1.0),
    Sequence([5, 6, 7], [11, 21, 31], [-5.0] * 3, -1.0),
    Sequence([50, 60], [70, 80, 90, 100, 110, 120], [-5.0] * 6, 0.5),
    Sequence([50, 60], [71, 81], [-5.0] * 2, -0.5),
]


@pytest.fixture(scope="module")
def learner(processes, tiny_model):
    """A function that starts a `RayLearner` with the given options; all end with the test that started them."""
    from tasks.training.learner.client import RayLearner

    def start(objective=(), lora=None, fresh=False, folder=tiny_model, **options):
        learner = {"cpu_threads": 1, "cpus": 0, **options}
        config = TrainingConfig.model_validate({"learner": learner, "objective": dict(objective), "lora": lora})

        def create(rank):
            return processes.take(config.learner.ranks, rank, config, str(folder), fresh=fresh)

        learner = RayLearner(create, config)
        asyncio.run(learner.start())
        return learner

    start.end = processes.give_back
    return start


@pytest.fixture(autouse=True)
def ended(learner):
    """End the learners of each test, so that their processes are free for the next."""
    yield
    learner.end()


def test_ranks_without_a_place_say_what_they_need_and_what_there_is(ray, tiny_model):
    from tasks.training.learner.client import LearnerLostError, RayLearner
    from tasks.training.learner.rank import LearnerRank

    config = TrainingConfig.model_validate({"learner": {"ranks": 1, "cpus": 8, "init_timeout_seconds": 1}})
    remote = ray.remote(LearnerRank).options(num_cpus=8)
    handles = []

    def create(_rank):
        handles.append(remote.remote(config, str(tiny_model)))
        return handles[-1]

    with pytest.raises(
        LearnerLostError, match=r"the learner's rank waits .* \(8 CPUs .* of 2 CPUs are free and 0 of 0 GPUs"
    ):
        asyncio.run(RayLearner(create, config).start())
    ray.kill(handles[0])


def step(learner, sequences=SEQUENCES):
    """One optimizer step on the sequences; returns its metrics."""
    denominator = TrainingConfig().objective.denominator(sequence.num_trained for sequence in sequences)
    return asyncio.run(learner.step(sequences, denominator, RATE)).metrics


def weights(learner, path):
    from safetensors.torch import load_file, save_file

    written = asyncio.run(learner.write_weights(path))
    tensors = load_file(path)
    assert written.contents == compute_contents(tensors)
    save_file(tensors, path.with_name("expected"))
    assert path.read_bytes() == path.with_name("expected").read_bytes()
    return tensors


def largest_change(a, b):
    assert a.keys() == b.keys()
    return max(float((a[name].float() - b[name].float()).abs().max()) for name in a)


def policy_logprob(folder, sequence):
    """Mean log-probability of the response's tokens under the Hugging Face model in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([sequence.prompt_ids + sequence.response_ids])
    with torch.no_grad():
        logprobs = model(ids).logits[0, len(sequence.prompt_ids) - 1 : -1].log_softmax(-1)
    return float(logprobs.gather(1, torch.tensor(sequence.response_ids)[:, None]).mean())


def test_rewarded_responses_become_likelier_and_the_policy_comes_out_whole(learner, tiny_model, tmp_path):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    before = [policy_logprob(tiny_model, sequence) for sequence in SEQUENCES]
    trainer = learner(dtype="bfloat16")
    for _ in range(3):
        metrics = step(trainer)
    assert metrics["num_tokens"] == 15
    assert metrics["num_sequences"] == 4
    assert 0 < metrics["entropy"] < 6  # nats; log(288) = 5.66
    assert metrics["grad_norm"] > 0
    asyncio.run(trainer.export(tmp_path / "policy"))
    after = [policy_logprob(tmp_path / "policy", sequence) for sequence in SEQUENCES]
    for sequence, old, new in zip(SEQUENCES, before, after, strict=True):
        assert (new > old) == (sequence.advantage > 0)

    # the weights that actors load and the exported policy are the same tensors, under the checkpoint's names
    sent = weights(trainer, tmp_path / "sent.safetensors")
    assert sent.keys() == load_file(tiny_model / "model.safetensors").keys()
    assert largest_change(sent, load_file(tmp_path / "policy" / "model.safetensors")) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.bfloat16)
    for name, tensor in sent.items():
        assert torch.equal(model.state_dict()[name], tensor)
    assert AutoTokenizer.from_pretrained(tmp_path / "policy").chat_template


@pytest.mark.parametrize("zero_stage", [pytest.param(1, marks=pytest.mark.complete), 2])
def test_in_float32_the_log_probabilities_are_the_models_and_the_policy_is_handed_over_to_the_last_digit(
    learner, tiny_model, tmp_path, zero_stage
):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    sent = []
    for tokens in (2048, 20):  # one micro-batch, and several whose gradients are summed
        trainer = learner(dtype="float32", zero_stage=zero_stage, micro_batch_tokens=tokens)
        for sequence, logprobs in zip(SEQUENCES, asyncio.run(trainer.logprobs(SEQUENCES)), strict=True):
            assert sum(logprobs) / len(logprobs) == pytest.approx(policy_logprob(tiny_model, sequence), abs=1e-4)
        step(trainer)
        sent.append(weights(trainer, tmp_path / f"sent-{tokens}.safetensors"))
    assert {tensor.dtype for tensor in sent[0].values()} == {torch.float32}
    assert disagreement(load_file(tiny_model / "model.safetensors"), *sent) < 0.01

    asyncio.run(trainer.export(tmp_path / "policy"))
    assert load_file(tiny_model / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")  # in the type that the folder says
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in sent[1].items())


def disagreement(start, a, b):
    """Share of the weights that the step moved in one case and moved elsewhere in the other.

    Adam's first step is the learning rate times the gradient's sign: where a gradient is nearly 0, rounding decides.
    """
    moved = differ = 0
    for name, first in start.items():
        moved += int((a[name] != first).sum())
        differ += int((a[name].float() - b[name].float()).abs().gt(RATE).sum())
    return differ / moved


@pytest.fixture(scope="module")
def one_step(learner, tiny_model, tmp_path_factory):
    """Metrics and weights of one step from the initial checkpoint, by the learner's options and the sequences."""

    def run(sequences=SEQUENCES, **options):
        trainer = learner(**options)
        metrics = step(trainer, sequences)
        changed = weights(trainer, tmp_path_factory.mktemp("weights") / "w.safetensors")
        learner.end()
        return metrics, changed

    return run


ROW_EACH = {"zero_stage": 2, "micro_batch_tokens": 8}
"""Each sequence in a row of its own, padded: gradients of 4 micro-batches accumulate."""
COPIES = {"zero_optimization": {"zero_hpz_partition_size": 2}}


@pytest.fixture(scope="module")
def a_row_each(one_step):
    return one_step(**ROW_EACH)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"micro_batch_tokens": 64}, id="packing, with shared prompts, instead of 4 accumulated rows"),
        pytest.param({"zero_stage": 3, "ranks": 2}, id="ZeRO 3 on two ranks"),
        pytest.param(
            {"sequences": [SEQUENCES[i] for i in (3, 1, 0, 2)]},
            id="the order of micro-batches",
            marks=pytest.mark.complete,
        ),
        pytest.param({"logprob_chunk_tokens": 2}, id="chunks of the projection", marks=pytest.mark.complete),
        pytest.param({"zero_stage": 1}, id="ZeRO 1", marks=pytest.mark.complete),
        pytest.param({"zero_stage": 3}, id="ZeRO 3", marks=pytest.mark.complete),
        pytest.param(
            {"zero_stage": 3, "ranks": 2, "deepspeed": COPIES, "fresh": True},
            id="a second copy of the weights",
            marks=pytest.mark.complete,
        ),
        pytest.param({"fused_layers": True}, id="fused functions of layers", marks=pytest.mark.complete),
        pytest.param(
            {"fused_layers": True, "zero_stage": 3, "ranks": 2, "gradient_checkpointing": True},
            id="fused functions of layers, recomputed, with ZeRO 3 on two ranks",
            marks=pytest.mark.complete,
        ),
        pytest.param({"ranks": 2}, id="two ranks", marks=pytest.mark.complete),
    ],
)
def test_what_a_step_teaches_does_not_depend_on(one_step, a_row_each, tiny_model, options):
    from safetensors.torch import load_file

    start = load_file(tiny_model / "model.safetensors")
    expected, reference = a_row_each
    metrics, changed = one_step(**{**ROW_EACH, **options})
    assert largest_change(start, reference) >= RATE / 2
    for name in ("loss", "num_tokens", "num_sequences", "entropy", "mismatch"):
        # the same sums in another order, of values with bfloat16's 8 bits
        assert metrics[name] == pytest.approx(expected[name], rel=1e-2), name
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-2)
    assert disagreement(start, reference, changed) < 0.02


@pytest.mark.parametrize(("ranks", "stage", "tokens"), [(1, 2, 64), pytest.param(2, 3, 8, marks=pytest.mark.complete)])
def test_logprobs_are_those_of_each_sequence_alone(learner, tiny_model, ranks, stage, tokens):
    logprobs = asyncio.run(learner(ranks=ranks, zero_stage=stage, micro_batch_tokens=tokens).logprobs(SEQUENCES))
    assert [len(row) for row in logprobs] == [len(sequence.response_ids) for sequence in SEQUENCES]
    for row, sequence in zip(logprobs, SEQUENCES, strict=True):
        # bfloat16 holds 8 bits, of logits of about 1
        assert sum(row) / len(row) == pytest.approx(policy_logprob(tiny_model, sequence), abs=0.02)


def test_of_several_updates_the_first_has_a_ratio_of_1_and_later_ones_have_left_it(learner):
    trainer = learner()
    old = asyncio.run(trainer.logprobs(SEQUENCES))
    batch = [replace(sequence, old_logprobs=values) for sequence, values in zip(SEQUENCES, old, strict=True)]
    first, second = (asyncio.run(trainer.step(batch, 15, RATE)).metrics for _ in range(2))
    assert (first["ratio"], first["ratio_max"], first["clip_low"], first["clip_high"]) == (1, 1, 0, 0)
    assert second["ratio_max"] > 1.01
    assert second["loss"] < first["loss"]
    # the engine's part is measured against the old policy, whatever the update has done since
    assert second["mismatch"] == first["mismatch"]


KL = {"beta": 0.5, "estimator": "k3"}


def reference_passes(ray, trainer):
    return sum(ray.get([rank.reference_passes.remote() for rank in trainer._ranks]))


def test_without_a_penalty_there_is_no_reference_and_no_pass_of_it(ray, learner):
    trainer = learner()
    assert "kl" not in step(trainer)
    assert reference_passes(ray, trainer) == 0


@pytest.mark.complete
def test_a_batch_of_which_nothing_is_trained_moves_nothing(learner, tiny_model, tmp_path):
    from safetensors.torch import load_file

    trainer = learner()
    metrics = step(trainer, [replace(sequence, mask=[False] * len(sequence.response_ids)) for sequence in SEQUENCES])
    assert (metrics["loss"], metrics["num_tokens"], metrics["grad_norm"]) == (0, 0, 0)
    assert largest_change(weights(trainer, tmp_path / "w"), load_file(tiny_model / "model.safetensors")) == 0


@pytest.mark.complete
@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.complete)])
def test_a_penalty_is_0_at_first_and_draws_the_policy_back_later(ray, learner, stage):
    trainer = learner(zero_stage=stage, objective={"kl": KL}, dtype="float32")
    first, second = step(trainer), step(trainer)
    assert (first["kl"], first["kl_loss"]) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6))
    assert second["kl"] > 1e-3
    assert second["kl_loss"] == pytest.approx(0.5 * second["kl"], rel=1e-3)
    alone, again = (step(learner_without_penalty(learner, stage))["grad_norm"] for _ in range(2))
    assert alone == pytest.approx(again, rel=1e-6)
    assert abs(second["grad_norm"] / alone - 1) > 1e-4
    assert reference_passes(ray, trainer) > 0


def test_in_the_reward_the_reference_is_asked_for_the_penalty_alone(ray, learner):
    trainer = learner(objective={"kl": {**KL, "in_reward": True}})
    ours, reference = values(trainer.logprobs), values(trainer.reference_logprobs)
    assert reference == ours
    passes = reference_passes(ray, trainer)
    assert "kl" not in step(trainer)
    assert reference_passes(ray, trainer) == passes > 0
    assert values(trainer.reference_logprobs) == reference
    assert values(trainer.logprobs) != ours


def learner_without_penalty(learner, stage):
    """One that has taken the same first step."""
    trainer = learner(zero_stage=stage, dtype="float32")
    step(trainer)
    return trainer


def test_a_reference_that_is_replaced_at_every_step_leaves_no_distance(learner):
    trainer = learner(objective={"kl": {**KL, "sync_every": 1, "sync_alpha": 1.0}})
    assert [step(trainer)["kl"] for _ in range(3)] == pytest.approx([0, 0, 0], abs=1e-6)


def test_a_reference_that_follows_halfway_is_nearer_than_one_that_stays(learner):
    def third(**sync):
        trainer = learner(objective={"kl": {**KL, **sync}})
        return [step(trainer)["kl"] for _ in range(3)][-1]

    assert 0 < third(sync_every=2, sync_alpha=0.5) < third()


@pytest.mark.complete
def test_a_saved_reference_goes_on_exactly(learner, tmp_path):
    options = {"objective": {"kl": {**KL, "sync_every": 1, "sync_alpha": 0.5}}}
    first = learner(**options)
    step(first)
    asyncio.run(first.save(tmp_path / "saved"))
    expected = step(first)  # while it is written
    asyncio.run(first.wait_until_written())
    learner.end()
    second = learner(fresh=True, **options)
    asyncio.run(second.load(tmp_path / "saved"))
    assert step(second)["kl"] == expected["kl"] > 0


def test_a_reference_in_16_bits_follows_what_each_step_changes_by_less_than_they_hold(tiny_model, tmp_path):
    import torch

    from tasks.training.learner.policy import Policy
    from tasks.training.learner.reference import Reference

    def load():
        return Policy.load(str(tiny_model), dtype=torch.bfloat16, chunk=64)

    policy, reference = load(), Reference(load(), torch.device("cpu"))
    goal = {}
    with torch.no_grad():
        for name, parameter in policy.checkpoint_parameters():
            parameter.copy_(parameter.float() * (1 + 2**-7))  # the next number that there is
            goal[name] = parameter.clone()
    for _ in range(60):
        reference.follow(policy, 0.1)
    followed = dict(reference._policy.checkpoint_parameters())
    assert all(torch.equal(followed[name], goal[name]) for name in goal)
    from safetensors.torch import save_file

    save_file(reference.tensors(), tmp_path / reference.file(0))
    again = Reference(load(), torch.device("cpu"))
    again.load(str(tmp_path))
    assert all(torch.equal(tensor, again.tensors()[name]) for name, tensor in reference.tensors().items())


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("", {"zero_stage": 3, "ranks": 2}),
        pytest.param("", {"zero_stage": 1}, marks=pytest.mark.complete),
        pytest.param("", {"zero_stage": 2, "ranks": 2}, marks=pytest.mark.complete),
        pytest.param("", {"dtype": "float32"}, marks=pytest.mark.complete),
        pytest.param("qwen3_moe", {"zero_stage": 3, "ranks": 2}, marks=pytest.mark.complete),
        pytest.param("glm4_moe", {"zero_stage": 2}, marks=pytest.mark.complete),
        pytest.param("glm4_moe", {"zero_stage": 3}, marks=pytest.mark.complete),
    ],
)
def test_every_version_has_the_policys_tensors_by_the_names_of_the_checkpoint(
    learner, tiny_model, tmp_path, family, options
):
    """`family` is tied, or has experts, which transformers joins, and float32 buffers; written before any step."""
    from safetensors.torch import load_file

    folder = build(tmp_path / family, family) if family else tiny_model
    trainer = learner(folder=folder, **{"dtype": "bfloat16", **options})
    (tmp_path / "weights").mkdir()
    loaded = weights(trainer, tmp_path / "weights" / "v1")
    sent = {name: tensor.clone() for name, tensor in loaded.items()}  # `loaded` is in the file's memory
    start = load_file(folder / "model.safetensors")
    assert sent.keys() == start.keys()
    assert all(tensor.equal(start[name].to(tensor.dtype)) for name, tensor in sent.items())
    step(trainer)
    (tmp_path / "weights" / "v1").unlink()
    after = weights(trainer, tmp_path / "weights" / "v2")  # into the same file
    assert largest_change(sent, after) > 0
    assert largest_change(after, exported(trainer, tmp_path / "policy")) == 0
    assert [path.name for path in (tmp_path / "weights" / BUFFERS).iterdir()] == ["0"]


def test_weights_that_are_no_numbers_are_given_to_nobody(ray, learner, tmp_path):
    from tasks.training.learner.client import LearnerLostError

    trainer = learner()

    def spoil(process, number):
        import torch

        with torch.no_grad():
            next(process._rank.trainer.policy.parameters())[0, 0] = number

    for number in (math.nan, math.inf, -math.inf):
        ray.get(trainer._ranks[0].__ray_call__.remote(spoil, number))
        with pytest.raises(LearnerLostError, match=r"the learner's weights are not finite: \S+ and 0 others"):
            asyncio.run(trainer.write_weights(tmp_path / "weights"))
        assert [path.name for path in tmp_path.iterdir()] == [BUFFERS]


def test_a_rank_without_a_sequence_adds_nothing(learner):
    def grad_norm(ranks):
        denominator = TrainingConfig().objective.denominator([SEQUENCES[0].num_trained])
        return asyncio.run(learner(ranks=ranks).step(SEQUENCES[:1], denominator, RATE)).metrics["grad_norm"]

    assert grad_norm(ranks=2) == pytest.approx(grad_norm(ranks=1), rel=1e-5)


LORA = {"rank": 4, "alpha": 8}


@pytest.mark.parametrize(
    ("stage", "lora"),
    [
        pytest.param(1, None, marks=pytest.mark.complete),
        (2, None),
        pytest.param(3, None, marks=pytest.mark.complete),
        pytest.param(2, LORA, marks=pytest.mark.complete),
        pytest.param(3, LORA, marks=pytest.mark.complete),
    ],
)
def test_a_saved_learner_goes_on_exactly(learner, tmp_path, stage, lora):
    check_that_it_goes_on(learner, tmp_path, zero_stage=stage, lora=lora)


@pytest.mark.complete
def test_a_saved_learner_with_a_second_copy_of_the_weights_goes_on_exactly(learner, tmp_path):
    check_that_it_goes_on(learner, tmp_path, zero_stage=3, ranks=2, deepspeed=COPIES, micro_batch_tokens=8)


def check_that_it_goes_on(learner, tmp_path, **options):
    first = learner(fresh="deepspeed" in options, **options)  # its groups of ranks are for one model in a process
    step(first)
    asyncio.run(first.save(tmp_path / "saved"))
    step(first)  # while it is written
    asyncio.run(first.wait_until_written())
    expected = exported(first, tmp_path / "expected")
    learner.end()
    second = learner(fresh=True, **options)
    asyncio.run(second.load(tmp_path / "saved"))
    step(second)
    assert largest_change(exported(second, tmp_path / "found"), expected) == 0


def exported(learner, folder):
    """The weights of the policy that it hands over."""
    from safetensors.torch import load_file

    asyncio.run(learner.export(folder))
    return load_file(folder / "model.safetensors")


@pytest.mark.complete
def test_an_adapter_moves_the_linear_layers_alone_and_teaches_what_all_weights_would(learner, tiny_model, tmp_path):
    from safetensors.torch import load_file

    before = [policy_logprob(tiny_model, sequence) for sequence in SEQUENCES]
    start = load_file(tiny_model / "model.safetensors")
    trainer = learner(lora=LORA)
    assert largest_change(exported(trainer, tmp_path / "untrained"), start) == 0
    for _ in range(5):
        metrics = step(trainer)
    assert metrics["grad_norm"] > 0
    trained = exported(trainer, tmp_path / "policy")
    moved = {name.split(".")[-2] for name in start if largest_change({"": trained[name]}, {"": start[name]}) > 0}
    assert moved == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    after = [policy_logprob(tmp_path / "policy", sequence) for sequence in SEQUENCES]
    for sequence, old, new in zip(SEQUENCES, before, after, strict=True):
        assert (new > old) == (sequence.advantage > 0)


def test_an_adapter_moves_the_layers_that_are_named(learner, tiny_model, tmp_path):
    from safetensors.torch import load_file

    trainer = learner(lora={**LORA, "target_modules": ["q_proj", "down_proj"]})
    step(trainer)
    start, trained = load_file(tiny_model / "model.safetensors"), exported(trainer, tmp_path / "policy")
    moved = {name.split(".")[-2] for name in start if largest_change({"": trained[name]}, {"": start[name]}) > 0}
    assert moved == {"q_proj", "down_proj"}


def test_a_layer_that_the_model_lacks_is_named_with_those_that_it_has(learner):
    with pytest.raises(ValueError, match=r"lora.target_modules = v_prj: the model has down_proj, gate_proj, k_proj"):
        learner(lora={**LORA, "target_modules": ["q_proj", "v_prj"]})


@pytest.mark.complete
def test_the_adapter_beside_the_policy_is_one_that_peft_reads(learner, tiny_model, tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trainer = learner(lora=LORA)
    for _ in range(3):
        step(trainer)
    merged = exported(trainer, tmp_path / "policy")
    assert largest_change(exported(trainer, tmp_path / "policy"), merged) == 0  # a second time, over the first
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    read = PeftModel.from_pretrained(base, tmp_path / "policy" / "adapter").merge_and_unload().state_dict()
    for name, tensor in merged.items():
        assert torch.equal(read[name].to(tensor.dtype), tensor), name


@pytest.mark.complete
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"zero_stage": 1, "gradient_checkpointing": True},
            id="ZeRO 1, activations recomputed",
            marks=pytest.mark.complete,
        ),
        pytest.param({"zero_stage": 3}, id="ZeRO 3", marks=pytest.mark.complete),
        pytest.param(
            {"zero_stage": 3, "ranks": 2, "gradient_checkpointing": True, "offload_activations": True},
            id="ZeRO 3 on two ranks",
        ),
    ],
)
def test_what_an_adapter_learns_does_not_depend_on(learner, options):
    def two_steps(**options):
        trainer = learner(lora=LORA, **options)
        return [step(trainer) for _ in range(2)]

    for expected, changed in zip(two_steps(**ROW_EACH), two_steps(**{**ROW_EACH, **options}), strict=True):
        assert changed["loss"] == pytest.approx(expected["loss"], rel=1e-2)
        assert changed["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-2)


@pytest.mark.complete
@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.complete), 3])
def test_the_reference_of_an_adapter_is_the_model_without_it(learner, stage):
    trainer = learner(lora=LORA, zero_stage=stage, objective={"kl": KL})
    initial = values(trainer.logprobs)
    kl = [step(trainer)["kl"] for _ in range(5)]
    assert kl[0] == 0
    assert kl[-1] > 1e-4
    assert values(trainer.reference_logprobs) == initial
    assert values(trainer.logprobs) != initial


@pytest.mark.complete
def test_leaving_out_what_has_no_gradient_changes_no_weight(learner, tiny_model, tmp_path):
    from safetensors.torch import load_file

    groups = [SEQUENCES[:2], [replace(sequence, advantage=0.0) for sequence in SEQUENCES[2:]]]
    everything = [sequence for group in groups for sequence in group]
    samples = [[[sequence] for sequence in group] for group in groups]
    moving = select_with_gradient(samples, TrainingConfig().objective)
    assert moving == SEQUENCES[:2]
    results = []
    for part in (everything, moving):
        trainer = learner(dtype="float32")
        asyncio.run(trainer.step(part, 15, RATE))
        results.append(weights(trainer, tmp_path / f"{len(part)}.safetensors"))
    assert disagreement(load_file(tiny_model / "model.safetensors"), *results) < 0.001


@pytest.mark.complete
def test_a_folder_without_a_checkpoint_is_named(learner, tmp_path):
    with pytest.raises(RuntimeError, match=r"empty contains no checkpoint for 1 learner ranks"):
        asyncio.run(learner().load(tmp_path / "empty"))


def test_the_port_where_ranks_meet_is_nobody_elses_before_they_do(tiny_model):
    from tasks.training.learner.rank import LearnerRank

    rank = LearnerRank(TrainingConfig(), str(tiny_model))
    _, port = rank.address()
    with socket.socket() as other, pytest.raises(OSError, match="already in use"):
        other.bind(("", port))


def test_a_killed_rank_is_a_lost_learner(ray, tiny_model):
    from tasks.training.learner.client import LearnerLostError, RayLearner
    from tasks.training.learner.rank import LearnerRank

    handle = ray.remote(LearnerRank).options(num_cpus=0).remote(TrainingConfig(), str(tiny_model))
    learner = RayLearner(lambda _: handle, TrainingConfig())
    ray.kill(handle)
    with pytest.raises(LearnerLostError, match="a learner rank was lost"):
        asyncio.run(learner.start())


class AnswersLost:
    """A rank's handle whose first answer to every call is lost, so that the call comes again."""

    def __init__(self, handle):
        self._handle = handle

    def __getattr__(self, name):
        method = getattr(self._handle, name)

        def twice(*arguments):
            method.remote(*arguments)
            return method.remote(*arguments)

        return SimpleNamespace(remote=twice)


@pytest.mark.complete
def test_a_step_whose_answer_was_lost_is_taken_once(learner, tmp_path):
    one, other = learner(dtype="float32"), learner(dtype="float32")
    other._ranks = [AnswersLost(handle) for handle in other._ranks]
    for trainer in (one, other):
        step(trainer)
        step(trainer)
    mine, theirs = weights(one, tmp_path / "mine"), weights(other, tmp_path / "theirs")
    assert all((mine[name] == theirs[name]).all() for name in mine)


@pytest.mark.complete
def test_a_call_that_failed_fails_when_it_is_repeated_as_well(learner, tmp_path):
    trainer = learner()
    trainer._ranks = [AnswersLost(handle) for handle in trainer._ranks]
    with pytest.raises(RuntimeError, match="contains no checkpoint"):
        asyncio.run(trainer.load(tmp_path / "empty"))


OVERLAPPED = {"zero_optimization": {"overlap_comm": True, "reduce_bucket_size": 50_000}, "steps_per_print": 7}
OFFLOADED = {"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": False}}}


@pytest.mark.complete
@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (OVERLAPPED, {"overlap_comm": True, "reduce_bucket_size": 50_000, "steps_per_print": 7, "offload": None}),
        pytest.param(OFFLOADED, {"overlap_comm": False, "offload": "cpu"}, marks=pytest.mark.complete),
    ],
)
def test_keys_of_deepspeed_reach_it_and_the_step_is_the_same(learner, ray, tmp_path, keys, values):
    plain = learner()
    step(plain)
    passed = learner(deepspeed=keys, fresh=True)
    reached = ray.get(passed._ranks[0].deepspeed_keys.remote())
    assert reached == reached | values
    step(passed)
    assert largest_change(weights(plain, tmp_path / "a"), weights(passed, tmp_path / "b")) < 1e-6
