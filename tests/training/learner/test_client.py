"""The controller's end of the learner, with ranks that answer as they are told: which error means what."""

import asyncio
from pathlib import Path

import pytest
import ray

from tasks.machine.memory_limit import MemoryLimitError
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import KNOWN, Architecture
from tasks.training.actors.broadcast import RelayError
from tasks.training.learner.client import GpuMemoryError, LearnerLostError, RankReport, RayLearner, StepReport
from tasks.training.learner.packing import Sequence
from tasks.training.learner.rank_files import RankFiles
from tests.training.stand_ins import never, run_in_virtual_time


class Rank:
    """A handle of a learner rank: `answer()` is what every method's call waits for."""

    def __init__(self, answer):
        self.answer = answer

    def __getattr__(self, _name):
        return self

    def remote(self, *_arguments):
        return self.answer()


def raising(error):
    async def answer():
        await asyncio.sleep(1)
        raise error

    return answer


def in_a_rank(error):
    """As Ray hands over what a rank's own code raised."""
    return ray.exceptions.RayTaskError("step", f"Traceback ... {error}", error).as_instanceof_cause()


def learner(*answers):
    ranks = iter(answers)
    return RayLearner(lambda _: Rank(next(ranks)), TrainingConfig(learner={"ranks": len(answers)}))


LOST = {
    "a rank's death": (ray.exceptions.RayActorError(), "a learner rank was lost"),
    "gloo": (in_a_rank(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed")), "lost the others"),
    "NCCL": (in_a_rank(RuntimeError("NCCL communicator was aborted")), "lost the others"),
    "memory that is broken": (in_a_rank(RuntimeError("CUDA error: uncorrectable ECC error encountered")), "its GPU"),
    "weights": (in_a_rank(LearnerLostError("the learner's weights are not finite: a")), "weights are not finite"),
}
DEFECTS = {
    "a mistake": ValueError("micro_batch_tokens"),
    "an assertion": RuntimeError("CUDA error: device-side assert triggered"),
}


@pytest.mark.parametrize(("error", "message"), LOST.values(), ids=LOST)
def test_what_another_machine_would_not_do_is_a_lost_rank(error, message):
    with pytest.raises(LearnerLostError, match=message):
        run_in_virtual_time(learner(raising(error), never).write_weights(Path("weights")))


@pytest.mark.parametrize("error", DEFECTS.values(), ids=DEFECTS)
def test_what_would_come_again_with_every_rank_is_raised_as_it_is(error):
    with pytest.raises(type(error)) as raised:
        run_in_virtual_time(learner(raising(in_a_rank(error)), never).write_weights(Path("weights")))
    assert raised.value.cause is error


def test_the_news_of_a_death_goes_before_what_it_did_to_the_others():
    async def dies_later():
        await asyncio.sleep(5)
        raise ray.exceptions.RayActorError

    with pytest.raises(LearnerLostError, match="a learner rank was lost"):
        run_in_virtual_time(
            learner(raising(in_a_rank(RuntimeError("something else"))), dies_later).write_weights(Path("weights"))
        )


def test_a_checkpoint_of_ranks_that_were_replaced_meanwhile_is_not_written():
    async def main():
        asked = learner(still_writing)

        async def replaced():
            await asyncio.sleep(10)
            asked._ranks = [Rank(raising(AttributeError("_files")))]  # it knows of no files before it is set up

        done, _ = await asyncio.gather(asked.wait_until_written(), replaced())
        return done

    async def still_writing():
        return False

    assert run_in_virtual_time(main()) is False


def test_ranks_are_numbered_by_node_and_gpu_when_their_nodes_have_the_model():
    numbers, prepared = {}, []

    class Located:
        """A handle of a rank on a node and a GPU, which answers with its location and notes the number it is given."""

        def __init__(self, location):
            self.location = self.address = self.setup = self
            self._location = location

        async def remote(self, *arguments):
            if arguments:
                assert prepared == [{"a", "b"}]
                numbers[self._location] = arguments[1]
            return self._location

    locations = [("b", "9"), ("a", "10"), ("b", "0"), ("a", "2")]

    class Nodes:
        async def prepare_learner(self, nodes, _folder, *, needs_folder):
            await asyncio.sleep(1)
            prepared.append(nodes)
            return set()

    config = TrainingConfig(learner={"ranks": 4})
    of_ranks = RayLearner(lambda rank: Located(locations[rank]), config, files=RankFiles(nodes=Nodes()))
    run_in_virtual_time(of_ranks.start())
    assert numbers == {("a", "2"): 0, ("a", "10"): 1, ("b", "0"): 2, ("b", "9"): 3}


def test_a_full_gpu_is_a_mistake_with_the_sizes_and_the_options_that_help():
    sizes = ("2.00 GiB", "23.69 GiB")
    full = RuntimeError("CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of {}".format(*sizes))
    ranks = learner(raising(in_a_rank(full)))
    ranks._ranks = [Rank(raising(in_a_rank(full)))]
    ranks._config = TrainingConfig.model_validate(
        {"placement": "shared", "actors": {"engine": {"gpu_memory_utilization": 0.4}}}
    )
    with pytest.raises(GpuMemoryError) as error:
        run_in_virtual_time(ranks.export(Path("policy")))
    options = ("learner.micro_batch_tokens", "lora", "actors.engine.gpu_memory_utilization than 0.4")
    assert all(fact in str(error.value) for fact in (*sizes, *options))


@pytest.mark.parametrize(
    "refused",
    [MemoryError("Unable to allocate 99 GiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 99 GiB")],
    ids=repr,
)
def test_more_main_memory_than_there_is_is_a_mistake_that_no_new_rank_meets(refused):
    ranks = learner(raising(in_a_rank(refused)))
    with pytest.raises(MemoryLimitError, match=r"99 GiB; lower learner\.micro_batch_tokens"):
        run_in_virtual_time(ranks.export(Path("policy")))


def test_a_node_that_cannot_be_prepared_loses_its_rank():
    class Nodes:
        async def prepare_learner(self, _nodes, _folder, *, needs_folder):
            raise RelayError("node 10.0.0.2: no space left")

    async def location():
        return "a", "0"

    of_ranks = RayLearner(lambda _: Rank(location), TrainingConfig(), files=RankFiles(nodes=Nodes()))
    with pytest.raises(LearnerLostError, match=r"cannot be prepared: node 10\.0\.0\.2: no space left"):
        run_in_virtual_time(of_ranks.start())


H100 = "NVIDIA H100 80GB HBM3"


def mfu_of_a_step(*gpus, shape=KNOWN["Qwen2.5-7B"], **options):
    """The metric of a step in which ranks on these GPUs trained on 2 of 2 response tokens after 3, in 4 seconds."""

    async def report(gpu, tokens):
        return RankReport(
            [{"num_tokens": tokens, "num_sequences": tokens / 2, "is_oob_count": 0.0}], 0.0, 1.0, 4.0, gpu
        )

    answers = [lambda gpu=gpu, i=i: report(gpu, 2.0 * (i == 0)) for i, gpu in enumerate(gpus)]
    ranks = learner(*answers)
    ranks._config = TrainingConfig.model_validate({"learner": {"ranks": len(gpus)}, **options})
    ranks._shape = shape
    sequence = Sequence([1, 2, 3], [4, 5], [-1.0, -1.0], 1.0)
    step = ranks.step([sequence], 1.0, 1e-6)
    return run_in_virtual_time(step).metrics.get("learner_mfu")


def test_the_learners_mfu_by_hand():
    """Three forward passes of 2 tokens, 3.5 others before one on average, in 4 s, on two GPUs of 989 TFLOP/s."""
    needed = 3 * KNOWN["Qwen2.5-7B"].forward_flops(3.5) * 2
    assert mfu_of_a_step(H100, H100) == pytest.approx(needed / (4 * 2 * 989e12))
    assert mfu_of_a_step(H100, H100, lora={"rank": 8, "alpha": 16}) == pytest.approx(2 / 3 * needed / (4 * 2 * 989e12))


@pytest.mark.parametrize(
    ("gpu", "shape"),
    [("", KNOWN["Qwen2.5-7B"]), ("NVIDIA TITAN RTX", KNOWN["Qwen2.5-7B"]), (H100, None)],
    ids=["a CPU", "a GPU without a datasheet", "a shape that is not known"],
)
def test_where_the_peak_is_not_known_there_is_no_mfu(gpu, shape: Architecture | None):
    assert mfu_of_a_step(gpu, shape=shape) is None


def test_the_mfu_of_several_updates_is_that_of_their_time():
    """10 tokens in 1 s at half the peak, 10 in 3 s at a sixth: 20 in 4 s at a quarter."""
    updates = [
        {"num_tokens": 10.0, "learn_seconds": 1.0, "learner_mfu": 1 / 2},
        {"num_tokens": 10.0, "learn_seconds": 3.0, "learner_mfu": 1 / 6},
    ]
    joined = StepReport.merge([StepReport(metrics) for metrics in updates]).metrics
    assert joined["learner_mfu"] == pytest.approx(1 / 4)
