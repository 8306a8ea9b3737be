"""The fixture by which tests of this process read from the stand-in."""

from __future__ import annotations

import pytest

from tests.hub.cards import repositories
from tests.hub.server import serving


@pytest.fixture
def stand_in_hub(tmp_path, monkeypatch):
    """The address of a stand-in with all repositories, in the place of the hub; caches of this test alone.

    A process of its own needs HF_ENDPOINT and HF_HOME instead, which the libraries read once, when they are imported.
    """
    import datasets.config
    from huggingface_hub import HfFileSystem

    with serving(repositories()) as address:
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(
            datasets.config, "HUB_DATASETS_URL", f"{address}/datasets/{{repo_id}}/resolve/{{revision}}/{{path}}"
        )
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
        monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "datasets" / "downloads")
        HfFileSystem.clear_instance_cache()
        yield address
        HfFileSystem.clear_instance_cache()
