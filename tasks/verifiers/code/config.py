"""Options of the code verifier. Pydantic only."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.config import Config


class RemoteConfig(Config):
    """Somebody else's isolation: the code server of this project (`python -m tasks.verifiers.code.server`) elsewhere.

    Attributes:
        url: such as `http://code.internal:8440`.
        token_env: name of the environment variable with the server's token; None where it wants none.
        concurrency: requests that may be under way at one time.
        timeout_seconds: of one request, waiting for the server's own places included.
        retries: how often a request that failed is repeated before the judgement is an error.
    """

    url: str
    token_env: str | None = None
    concurrency: int = Field(32, gt=0)
    timeout_seconds: float = Field(60.0, gt=0)
    retries: int = Field(3, ge=0)


class CodeConfig(Config):
    """How responses that are programs are run and rewarded.

    Attributes:
        reward: `proportion` of the tests that pass (OlmoRL's variant a), or `all_or_nothing` (variant b).
        min_proportion: with `proportion`, a smaller one counts as 0.
        isolation: `namespaces` (bubblewrap), `landlock` (where user namespaces are not to be had), or `auto`: the first
            of the two that works here. Both add a system call filter and resource limits. Where neither works no code
            runs, and every judgement is an error that says so.
        remote: run code elsewhere instead.
        python: interpreter that runs the code; None is the one that runs this, without its installed packages.
        test_seconds: wall time of one test.
        total_seconds: wall and CPU time of all tests of a response.
        memory_mib: address space of the process that runs a response.
        output_bytes: standard output of a program; more than that fails its test.
        disk_mib: size of the only folder that a response can write to; there is none under `landlock`.
    """

    reward: Literal["proportion", "all_or_nothing"] = "proportion"
    min_proportion: float = Field(0.0, ge=0, le=1)
    isolation: Literal["auto", "namespaces", "landlock"] = "auto"
    remote: RemoteConfig | None = None
    python: str | None = None
    test_seconds: float = Field(2.0, gt=0)
    total_seconds: float = Field(4.0, gt=0)
    memory_mib: int = Field(512, ge=64)
    output_bytes: int = Field(1 << 20, gt=0)
    disk_mib: int = Field(16, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reward == "all_or_nothing" and self.min_proportion:
            raise ValueError("min_proportion is for reward: proportion; all_or_nothing is the strictest of all")
        if self.test_seconds > self.total_seconds:
            raise ValueError(
                f"test_seconds ({self.test_seconds:g}) is more than total_seconds ({self.total_seconds:g})"
            )
        return self
