"""Defines the environment that a task is registered with: the digest of its code, the address of runs, and secrets."""

from __future__ import annotations

import os
from typing import Any

from tasks.failures import MistakeError
from tasks.lineage.code_digest import code_digest
from tasks.storage.locations import RUNS

CODE = "RLVR_CODE"
"""Environment variable of a pod with the digest of the code that its task was registered with."""

SECRETS = "RLVR_SECRETS"
"""Environment variable, set where tasks are registered, that names the cluster's secrets for the pods.

`HF_TOKEN=rlvr/hub JUDGE_KEY=rlvr/judge`: the variable, the secret's group and its key.
"""


class OtherCodeError(MistakeError):
    """Raised if a pod's code differs from its task's registered code, so that the cache key would be wrong."""


def make_options(module: str) -> dict[str, Any]:
    """Return the arguments of flytekit's `task` and `dynamic` for a function of `module`: environment and secrets.

    Raises:
        MistakeError: `RLVR_SECRETS` is malformed.
    """
    from flytekit import Secret

    environment, secrets = {CODE: code_digest(module)}, []
    if "://" in (runs := os.environ.get(RUNS, "")):  # a local folder does not exist in a pod
        environment[RUNS] = runs
    if given := os.environ.get(SECRETS):
        # A dynamic task declares its tasks in its pod, with the same secrets.
        environment[SECRETS] = given
        for text in given.split():
            variable, _, address = text.partition("=")
            group, _, key = address.partition("/")
            if not (variable and group and key):
                raise MistakeError(f"{SECRETS}: {text!r} must be VARIABLE=GROUP/KEY")
            secrets.append(Secret(group, key, mount_requirement=Secret.MountType.ENV_VAR, env_var=variable))
    return {"environment": environment, "secret_requests": secrets or None}


def check_code(module: str) -> None:
    """Raise an error in a pod whose code differs from the code that the task of `module` was registered with.

    Raises:
        OtherCodeError: the digests differ.
    """
    registered = os.environ.get(CODE)
    if registered is not None and registered != code_digest(module):
        raise OtherCodeError(
            f"{module} was registered with other code than this image contains: register with --copy all, or build the "
            "images from the code that is registered"
        )
