"""Reads flytekit's configuration of blob storage, for file access outside of Flyte."""

from __future__ import annotations

from typing import Any

from flytekit import FlyteContextManager
from flytekit.configuration import DataConfig
from flytekit.core.data_persistence import get_fsspec_storage_options


def configured(protocol: str) -> dict[str, Any]:
    """Return fsspec's options for a storage protocol, which are empty if flytekit has no configuration for it.

    The configuration is taken from the context: from `FLYTE_AWS_...` etc. in a pod, and from `--config` on the command
    line.
    """
    data_config = FlyteContextManager.current_context().file_access.data_config
    options = get_fsspec_storage_options(protocol, data_config)
    return {} if options == get_fsspec_storage_options(protocol, DataConfig()) else options
