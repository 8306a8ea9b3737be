"""Flytekit's configuration of blob storage, for what is not Flyte's own file access."""

from __future__ import annotations

from typing import Any

from flytekit import FlyteContextManager
from flytekit.configuration import DataConfig
from flytekit.core.data_persistence import get_fsspec_storage_options


def configured(protocol: str) -> dict[str, Any]:
    """Return fsspec's options of the storage with a protocol; none if flytekit has no configuration of it.

    It is that of the context: of `FLYTE_AWS_...` and the like in a pod, and of `--config` on the command line.
    """
    data_config = FlyteContextManager.current_context().file_access.data_config
    options = get_fsspec_storage_options(protocol, data_config)
    return {} if options == get_fsspec_storage_options(protocol, DataConfig()) else options
