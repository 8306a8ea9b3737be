"""Files whose stages ask for GPUs are refused in images for CPUs, and the other way round."""

import pytest

from tasks.config.loading import load_yaml
from tasks.difficulty.spec import DifficultySpec
from tasks.generation.config import EndpointConfig, EngineConfig
from tasks.inputs.files import RECIPES, Recipe, load_quickstart
from tasks.inputs.stage_pods import check_images
from tasks.kubernetes.pods import PodConfig
from tasks.machine.image import ACCELERATOR, IN_A_POD, NAME, ImageError

ON_CPUS = {path.stem for path in RECIPES.glob("quickstart*.yaml")}


@pytest.fixture
def pod(monkeypatch):
    monkeypatch.setenv(IN_A_POD, "a1b2")
    monkeypatch.setenv(NAME, "rlvr-data:v1")
    return lambda kind: monkeypatch.setenv(ACCELERATOR, kind)


def files(recipe="quickstart"):
    data, _, evaluation = load_quickstart()
    return data, load_yaml(Recipe, RECIPES / f"{recipe}.yaml"), evaluation


@pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_each_recipe_runs_in_one_set_of_images_and_is_refused_in_the_other(pod, recipe):
    own, other = ("none", "cuda") if recipe in ON_CPUS else ("cuda", "none")
    pod(own)
    check_images(*files(recipe))
    pod(other)
    with pytest.raises(ImageError, match=r"image rlvr-data:v1 .*training asks for [08124]+ GPUs: make images"):
        check_images(*files(recipe))


def test_the_stages_that_do_not_fit_are_named_and_no_others(pod):
    data, training, evaluation = files()
    pod("none")
    with pytest.raises(ImageError) as refused:
        check_images(data, training, evaluation.model_copy(update={"pod": PodConfig(gpus=2)}))
    assert "(RLVR_ACCELERATOR=none), and evaluation asks for 2 GPUs: make images" in str(refused.value)


def test_rollouts_of_a_server_need_no_engine_in_the_image(pod):
    data, training, evaluation = files("one_gpu")
    judged_elsewhere = {"verifiers": data.verifiers.model_copy(update={"judge": None})}
    elsewhere = EngineConfig(server=EndpointConfig(url="https://host/v1", model="policy"))
    pod("cuda")
    rolled_out = DifficultySpec(pod=PodConfig(gpus=0))
    with pytest.raises(ImageError, match="and difficulty asks for 0 GPUs: "):
        check_images(data.model_copy(update={"difficulty": rolled_out} | judged_elsewhere), training, evaluation)
    served = rolled_out.model_copy(update={"engine": elsewhere})
    check_images(data.model_copy(update={"difficulty": served} | judged_elsewhere), training, evaluation)


def test_a_local_run_and_an_image_that_does_not_say_are_not_asked(monkeypatch):
    for kind in ("cuda", "none"):
        monkeypatch.setenv(ACCELERATOR, kind)
        check_images(*files())
    monkeypatch.setenv(IN_A_POD, "a1b2")
    monkeypatch.delenv(ACCELERATOR)
    check_images(*files())
