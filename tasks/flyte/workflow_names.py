"""Lists and finds the workflows of a file for `pyflyte run FILE WORKFLOW`.

The patches of this project are applied when flytekit imports FILE, so that what it calls before cannot be replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from flytekit import LaunchPlan
from flytekit.core.base_task import PythonTask
from flytekit.core.workflow import WorkflowBase
from flytekit.exceptions.user import FlyteEntityNotFoundException

from tasks.config.loading import SpecError, close_match


def list_only_workflows(every_name: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Patch flytekit's `Entities.all` to return a file's workflows without the tasks that it imports for them."""

    @wraps(every_name)
    def list_names(self: Any) -> list[str]:
        own = type(self)(self.workflows, [], self.launch_plans) if self.workflows else self
        return every_name(own)

    return list_names


def show_kind_in_help(create_command: Callable[..., Any]) -> Callable[..., Any]:
    """Patch flytekit's `WorkflowCommand._create_command`, whose help calls a workflow that was named a task."""

    @wraps(create_command)
    def create(self: Any, ctx: Any, name: str, params: Any, entity: Any, kind: str) -> Any:
        return create_command(self, ctx, name, params, entity, "workflow" if isinstance(entity, WorkflowBase) else kind)

    return create


def convert_unknown_workflow(error: BaseException) -> SpecError | None:
    """Return the user error for a workflow that a file does not have, or None for any other error."""
    if not isinstance(error, FlyteEntityNotFoundException):
        return None
    module, name = error.args
    content = vars(sys.modules[module])
    known = [name for name, value in content.items() if isinstance(value, WorkflowBase | PythonTask | LaunchPlan)]
    workflows = [name for name in known if isinstance(content[name], WorkflowBase)]
    return SpecError(
        f"{module.replace('.', '/')}.py has no workflow {name!r}{close_match(name, workflows or known)}; it has: "
        f"{', '.join(sorted(workflows or known)) or 'none'}"
    )
