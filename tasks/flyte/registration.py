"""What travels with a task when it is registered: the digest of its code, and the secrets that its pods are given."""

from __future__ import annotations

import os
from typing import Any

from tasks.failures import MistakeError
from tasks.lineage.code_digest import code_digest

CODE = "RLVR_CODE"
"""Environment variable of a pod: the digest of the code that its task was registered with."""

SECRETS = "RLVR_SECRETS"
"""Environment variable where tasks are registered: the secrets of the cluster that pods see as environment variables.

`HF_TOKEN=rlvr/hub JUDGE_KEY=rlvr/judge`: the variable, the secret's group and its key.
"""


class OtherCodeError(MistakeError):
    """A pod whose image holds other code than its task was registered with: its result would have the wrong key."""


def options(module: str) -> dict[str, Any]:
    """Arguments of flytekit's `task` and `dynamic` for a function of `module`.

    Raises:
        ValueError: `RLVR_SECRETS` is malformed.
    """
    from flytekit import Secret

    environment, secrets = {CODE: code_digest(module)}, []
    if given := os.environ.get(SECRETS):
        # A dynamic task declares in its pod what it starts, and gives it the same secrets.
        environment[SECRETS] = given
        for each in given.split():
            variable, _, place = each.partition("=")
            group, _, key = place.partition("/")
            if not (variable and group and key):
                raise ValueError(f"{SECRETS}: {each!r} must be VARIABLE=GROUP/KEY")
            secrets.append(Secret(group, key, mount_requirement=Secret.MountType.ENV_VAR, env_var=variable))
    return {"environment": environment, "secret_requests": secrets or None}


def check_code(module: str) -> None:
    """Refuse to run in a pod under the name of other code.

    Raises:
        OtherCodeError: the code here is not what was registered.
    """
    registered = os.environ.get(CODE)
    if registered is not None and registered != code_digest(module):
        raise OtherCodeError(
            f"{module} was registered with other code than this image holds: register with --copy all, or build the "
            "images from the code that is registered"
        )
