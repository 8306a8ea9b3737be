"""Calls a user's verifiers. Each is a module, named by its import path, such as `my_verifiers.chess`.

    def check_ground_truth(ground_truth) -> None: ...  # raises ValueError with the reason
    def judge(response, ground_truth, messages) -> float: ...  # in [0, 1], or a `tasks.verifiers.Score`

The functions `missing_resources(ground_truth) -> list[str]` and `warm_up()` are optional. The module is imported from
the working directory or the Python path. A ground truth is `{"ground_truth": ...}` with the value that is passed to the
module, optionally with `digest`. This is the digest of the module's file, and of the user's files that it imports, when
the prompts were made.

`judge` runs as math does: in worker processes without network and environment, with limits of CPU time and memory. A
response that exceeds them scores 0. An exception or a result of another form is a failure of the verifier: an error,
and never a score of 0.
"""

from __future__ import annotations

import inspect
import math
from functools import cache, partial
from types import ModuleType
from typing import Any

from tasks.failures import one_line
from tasks.lineage.user_code import find_line, import_user_module, user_code_digest
from tasks.verifiers.calls import Messages
from tasks.verifiers.scores import CannotJudge, FunctionFailure, GroundTruthError, Reward, Score

_KEYS = {"ground_truth", "digest"}
_CALLED_WITH: dict[str, tuple[str, ...]] = {
    "judge": ("response", "ground_truth", "messages"),
    "check_ground_truth": ("ground_truth",),
    "missing_resources": ("ground_truth",),
    "warm_up": (),
}
"""The functions of a module and the positional arguments of their calls. The first two functions are required."""
_REQUIRED = ("judge", "check_ground_truth")


@cache
def load_own_verifier(name: str) -> OwnVerifier:
    """Return the verifier with this import path; its module is imported on first use."""
    return OwnVerifier(name)


def compute_own_digest(name: str) -> str:
    """Return 16 hex digits: the digest of the file of a verifier's module and the user's files that it imports.

    Raises:
        CannotJudge: there is no such module.
    """
    try:
        return user_code_digest(name)
    except ImportError as error:
        raise _failed(name, f": {error}") from error


class OwnVerifier:
    """Wraps a user's module for the pool, with the interface of `registry.InProcessVerifier`.

    After `warm_up` the module is not reloaded, so that all processes of a run score with the same code. Before, the
    module is imported again if one of its files has changed.
    """

    def __init__(self, name: str) -> None:
        """Create it without importing the module `name`."""
        self._name = name
        self._module: ModuleType | None = None
        self._digest = ""
        self._warm = False
        self._refusal: CannotJudge | None = None

    def load(self, digest: str | None = None) -> ModuleType:
        """Return the module, imported if necessary.

        Args:
            digest: digest of its files when the prompts were made. Optional. If None, it is not checked.

        Raises:
            CannotJudge: it cannot be imported, lacks a function, a function has the wrong signature, or it has changed.
        """
        if not self._warm:
            self._import()
        if self._refusal is not None:
            raise self._refusal
        assert self._module is not None, "it has been imported"
        if digest is not None and digest != self._digest:
            reason = (
                ": its file, or one that it imports, has changed since the prompts were made: read the source again"
            )
            raise _failed(self._name, reason)
        return self._module

    def checked(self, value: Any) -> dict[str, Any]:
        """Return the ground truth with the value of a row and the current digest of the module.

        Raises:
            GroundTruthError: the module refuses the value.
            CannotJudge: as `load`.
        """
        module = self.load()
        self._check(module, value)
        return {"ground_truth": value, "digest": self._digest}

    def check_ground_truth(self, ground_truth: Any) -> None:
        """Raise `GroundTruthError` if the ground truth has another form, or the module rejects its value.

        A module that cannot be imported is reported by `missing_resources`.
        """
        value = _extract_value(ground_truth)
        try:
            module = self.load()
        except CannotJudge:
            return
        self._check(module, value)

    def missing_resources(self, ground_truth: Any) -> list[str]:
        """Return the resources that the module lacks, or why it cannot be called here.

        The import may fail, or its code may have changed since the prompts were made.
        """
        try:
            module = self.load(ground_truth.get("digest"))
        except CannotJudge as reason:
            return [str(reason)]
        missing = getattr(module, "missing_resources", None)
        if missing is None:
            return []
        try:
            return [str(name) for name in missing(_extract_value(ground_truth))]
        except Exception as error:
            return [str(self._convert_error("missing_resources", error))]

    def judge(self, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Return the module's score of a response. Its value is the only reward that counts.

        Raises:
            CannotJudge: the module cannot be imported, raised, or returned neither a number in [0, 1] nor a score.
            MemoryError: the process is out of memory.
        """
        value = _extract_value(ground_truth)
        module = self.load(ground_truth.get("digest"))
        try:
            returned = module.judge(response, value, messages)
        except (MemoryError, GroundTruthError):
            raise
        except CannotJudge as reason:
            raise _failed(self._name, f" could not judge: {one_line(reason)}") from reason
        except (Exception, SystemExit) as error:
            raise self._convert_error("judge", error) from error
        return self._score(returned)

    def warm_up(self) -> None:
        """Import the module and load what it needs; after a failure, every later call raises that error."""
        try:
            module = self.load()
            if hasattr(module, "warm_up"):
                module.warm_up()
        except CannotJudge as reason:
            self._refusal = reason
        except (Exception, SystemExit) as error:
            self._refusal = self._convert_error("warm_up", error)
        self._warm = True

    def _import(self) -> None:
        digest = compute_own_digest(self._name)
        if self._module is not None and digest == self._digest:
            return
        try:
            module = import_user_module(self._name)
        except (Exception, SystemExit) as error:
            reason = f" cannot be imported: {type(error).__name__}: {one_line(error)}{find_line(error, self._name)}"
            raise _failed(self._name, reason) from error
        for function, arguments in _CALLED_WITH.items():
            if problem := _find_problem(module, function, arguments):
                raise _failed(self._name, problem)
        self._module, self._digest = module, digest

    def _check(self, module: ModuleType, value: Any) -> None:
        try:
            module.check_ground_truth(value)
        except ValueError as reason:
            raise GroundTruthError(one_line(reason) or "check_ground_truth refuses it") from reason
        except GroundTruthError:
            raise
        except Exception as error:
            raise GroundTruthError(str(self._convert_error("check_ground_truth", error))) from error

    def _score(self, returned: Any) -> Score:
        if not isinstance(returned, Score):
            value = _parse_number(returned)
            if value is None or not 0 <= value <= 1:
                wanted = " must return a number in [0, 1] or a tasks.verifiers.Score"
                raise _failed(self._name, f": judge{wanted}", f", got {one_line(repr(returned), 100)}")
            return Score(value, value == 1.0, f"returned {value:g}", rewards=(Reward(self._name, 1.0, value),))
        if returned.error is not None:
            raise _failed(self._name, " could not judge", f": {one_line(str(returned.error))}")
        value = float(returned.value)
        recorded = [self._recorded(reward) for reward in returned.rewards]
        rewards = (Reward(self._name, 1.0, value), *recorded)
        detail = one_line(str(returned.detail))
        return Score(value, bool(returned.passed), detail, rewards=rewards, timed_out=bool(returned.timed_out))

    def _recorded(self, reward: Any) -> Reward:
        """Return an additional reward of a score, which is recorded under its name and has weight 0."""
        name, _, given = reward
        value = None if given is None else _parse_number(given)
        if given is not None and value is None:
            raise _failed(self._name, ": a reward of its score must be a finite number", f", got {given!r:.100}")
        return Reward(str(name), 0.0, value)

    def _convert_error(self, function: str, error: BaseException) -> CannotJudge:
        line, kind, text = find_line(error, self._name), type(error).__name__, one_line(error)
        return CannotJudge(
            f"verifier {self._name}: {function} raised {kind}{f': {text}' if text else ''}{line}",
            FunctionFailure(self._name, f"{function} raised {kind}{line}"),
        )


def _extract_value(ground_truth: Any) -> Any:
    if not isinstance(ground_truth, dict) or not {"ground_truth"} <= set(ground_truth) <= _KEYS:
        raise GroundTruthError(f"expected an object with 'ground_truth', got {ground_truth!r:.200}")
    return ground_truth["ground_truth"]


def _find_problem(module: ModuleType, function: str, arguments: tuple[str, ...]) -> str:
    """Return why a function of a module cannot be called, or an empty string if it can or is optional and missing."""
    called = getattr(module, function, None)
    wanted = f"{function}({', '.join(arguments)})"
    if called is None:
        return f" has no {wanted}" if function in _REQUIRED else ""
    if not callable(called):
        return f": {function} is of type {type(called).__name__}, not a function"
    if inspect.iscoroutinefunction(called):
        return f": {function} is async, and a verifier is called as {wanted}"
    try:
        signature = inspect.signature(called)
    except ValueError:  # a C function without a signature
        return ""
    try:
        signature.bind(*arguments)
    except TypeError:
        return f": {function}{signature} cannot be called as {wanted}"
    return ""


def _parse_number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and not isinstance(value, str) else None


_failed = partial(CannotJudge.of_code, "verifier")
