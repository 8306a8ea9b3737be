"""An engine does not start in a pod whose image is for machines of the other kind."""

import pytest

from tasks.generation.config import EngineConfig
from tasks.generation.engine_output import EngineOutput
from tasks.generation.engine_start import load
from tasks.generation.interface import EngineUse
from tasks.machine import image
from tasks.machine.image import ACCELERATOR, IN_A_POD, NAME, ImageError, check_image
from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.chat.server import serve


@pytest.fixture
def pod(monkeypatch):
    """A function that makes this process one of a pod, whose image is of the kind that it is given."""

    def of(kind):
        monkeypatch.setenv(IN_A_POD, "a1b2")
        monkeypatch.setenv(NAME, "rlvr-training:v1")
        monkeypatch.setenv(ACCELERATOR, kind)

    return of


@pytest.mark.parametrize(
    ("kind", "gpus", "sentence"),
    [
        (
            "cuda",
            0,
            r"image rlvr-training:v1 has engines for GPUs .*=cuda.* this pod has 0 GPUs: .*ACCELERATOR=none",
        ),
        (
            "none",
            8,
            r"image rlvr-training:v1 has engines for CPUs .*=none.* this pod has 8 GPUs: .*ACCELERATOR=none",
        ),
        ("rocm", 8, "RLVR_ACCELERATOR of image rlvr-training:v1 is 'rocm'"),
    ],
)
def test_an_engine_is_refused_in_an_image_that_cannot_run_it(pod, kind, gpus, sentence):
    pod(kind)
    with pytest.raises(ImageError, match=sentence):
        check_image(gpus, f"this pod has {gpus} GPUs")


@pytest.mark.parametrize(("kind", "gpus"), [("cuda", 1), ("none", 0), ("", 0), ("", 8)])
def test_an_engine_starts_where_the_image_suits_it_or_does_not_say(pod, kind, gpus):
    pod(kind)
    check_image(gpus, f"this pod has {gpus} GPUs")


@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize("kind", ["cuda", "none"])
def test_local_runs_are_untouched(monkeypatch, kind, gpus):
    monkeypatch.setenv(ACCELERATOR, kind)
    monkeypatch.delenv(IN_A_POD, raising=False)
    check_image(gpus, f"this pod has {gpus} GPUs")


def test_engines_and_judges_that_a_stage_serves_ask_before_they_start(pod, monkeypatch, tmp_path):
    pod("none")
    monkeypatch.setattr(image, "count_pod_gpus", lambda: 1)
    with pytest.raises(ImageError):
        load("model", EngineConfig(), EngineOutput(tmp_path / "output"), EngineUse())
    with pytest.raises(ImageError), serve(JudgeConfig(model="model")):
        raise AssertionError("it serves")
    with serve(JudgeConfig(model="model", url="https://judge.example/v1")) as elsewhere:
        assert elsewhere.url == "https://judge.example/v1"


def test_each_set_of_images_says_how_it_is_built():
    assert set(image.BUILD_FOR) == {"cuda", "none"}
