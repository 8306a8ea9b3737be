"""The client of a code server: a response and its tests go out, the proportion that passes comes back.

    RemoteCode ── POST /judge {response, ground_truth, options} ──► tasks.verifiers.code.server
               ◄── {value, passed, detail, error, version} ────────┘

What a proportion is worth (`reward`, `min_proportion`) is decided here, so that one server serves runs that reward
differently. The limits decide which tests pass; a server refuses those that are not its own.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from tasks.config import Config
from tasks.verifiers.calls import Messages
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.http import PASSING, Client, Traffic, read_key
from tasks.verifiers.scores import CannotJudge, GroundTruthError, Score

MAX_REQUEST_BYTES = 16 * 2**20
DIFFERENT_LIMITS = 409
"""What a server says to limits that are not its own: that does not pass."""


class Reply(Config):
    """What a server makes of a response.

    Attributes:
        value: the proportion of tests that pass, in [0, 1].
        passed: all of them do.
        detail: one line for people.
        error: why the response could not be judged; None where it was.
        version: the code that judged.
    """

    value: float = Field(ge=0, le=1, strict=True)
    passed: bool = Field(strict=True)
    detail: str
    error: str | None
    version: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.passed != (self.value == 1.0) or (self.error is not None and self.value):
            raise ValueError(f"value {self.value:g}, passed {self.passed} and error {self.error!r:.80} contradict")
        return self


@cache
def version() -> str:
    """16 hex digits over the files that judge: where they are the same, so is the score of a response.

    Unlike a stage's digest it leaves out what they import for other ends, so that a change to another verifier asks for
    no new server. Interpreter and isolation are the server's own.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in (here.parent / "clocks.py", here.parent / "responses.py", *sorted(here.rglob("*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class RemoteCode:
    """A `Correspondent` that has a code server judge."""

    def __init__(self, config: CodeConfig) -> None:
        """Open no connection yet.

        Raises:
            ValueError: `token_env` names a variable that holds no token.
        """
        assert config.remote is not None, "only where a server is named"
        self._config = config
        self._traffic = Traffic()
        token = read_key("token_env", config.remote.token_env)
        passing = PASSING - {DIFFERENT_LIMITS}
        self._client = Client("the code server", config.remote.url, config.remote, self._traffic, token, passing)

    async def judge(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """The score that a process of ours would give under the same options.

        Raises:
            GroundTruthError: a ground truth that is no JSON.
            CannotJudge: too large for a request; a server that refuses, fails, is too slow, runs other code or answers
                what is no judgement; a judgement that is an error there.
        """
        if not isinstance(response, str):
            raise CannotJudge(f"the response is of type {type(response).__name__}, not a string")
        content = _content({"response": response, "ground_truth": ground_truth, "options": self._config.limits()})
        reply = await self._client.judgement(partial(self._ask, content))
        return Score(self._config.worth(reply.value), reply.passed, reply.detail)

    async def close(self) -> None:
        """Close the connections; judgements in flight fail."""
        await self._client.close()

    def usage(self) -> dict[str, float]:
        """The counters of `Traffic`, each as `code_server/...`."""
        return {f"code_server/{name}": value for name, value in self._traffic.as_dict().items()}

    async def _ask(self, content: bytes, deadline: float) -> Reply:
        body = await self._client.post("/judge", content, deadline)
        try:
            reply = Reply.model_validate_json(body)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"])) or "the whole of it"
            raise self._client.failed(f"gave no judgement: {where}: {problem['msg']}") from None
        if reply.version != version():
            raise self._client.failed(
                f"runs other code (version {reply.version}, here {version()}): start it from the same commit"
            )
        if reply.error is not None:
            raise self._client.failed(f"could not judge: {reply.error}")
        return reply


def _content(request: dict[str, Any]) -> bytes:
    try:
        content = json.dumps(request).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise GroundTruthError(f"no JSON: {error}") from None
    if len(content) > MAX_REQUEST_BYTES:
        raise CannotJudge(
            f"response and tests take {len(content)} bytes, more than the {MAX_REQUEST_BYTES} of a request"
        )
    return content
