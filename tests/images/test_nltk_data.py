"""The images hold the NLTK data that checkers of constraints read, from pinned packages."""

import os
import re
from pathlib import Path

import pytest

from images import nltk_data
from tasks.verifiers.instructions.needs import NLTK_NEEDS, TAGGER
from tests.images.environments import ENVIRONMENTS, STAGES


@pytest.fixture
def packages(tmp_path):
    """A folder of unpacked packages."""
    for path, inside in nltk_data.DATA.items():
        file = tmp_path / "packages" / inside / path
        if path.startswith("corpora"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("the")
        else:
            file.mkdir(parents=True)
            (file / Path(TAGGER).name).write_text("{}")
    return tmp_path / "packages"


def test_all_resources_that_constraints_read_are_copied(tmp_path, packages):
    nltk_data.copy(packages, tmp_path / "data")
    needed = {resource for resources in NLTK_NEEDS.values() for resource in resources}
    assert all((tmp_path / "data" / resource).exists() for resource in needed)
    nltk_data.copy(packages, tmp_path / "data")  # over what is there


def test_a_package_without_its_data_is_an_error(tmp_path, packages):
    (packages / "llama_index/core/_static/nltk_cache/corpora/stopwords/english").unlink()
    with pytest.raises(FileNotFoundError, match="stopwords"):
        nltk_data.copy(packages, tmp_path / "data")


def test_the_packages_are_pinned_by_version_and_hash():
    lines = nltk_data.PACKAGES.read_text().replace("\\\n", " ").splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert len(pinned) == 2
    assert all(re.fullmatch(r"[a-z0-9-]+==[\d.]+ +--hash=sha256:[0-9a-f]{64}", line) for line in pinned)


def test_each_image_has_the_data():
    installing = {name for name, stage in STAGES.items() if "-m images.nltk_data" in stage}
    assert installing == {"data", "generation-cuda"}
    assert STAGES["generation-none"].startswith("data AS ")


@pytest.mark.skipif("RLVR_IMAGES" not in os.environ, reason="the environments of the images: make test-images")
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_environment_of_an_image_holds_the_data(name):
    folder = Path(os.environ["RLVR_IMAGES"]) / name / "share" / "nltk_data"
    assert all((folder / path).exists() for path in nltk_data.DATA)
