"""Patches flytekit. All patches are in one table, `PATCHES`.

Flytekit has no hooks for these. Each function here takes the function that it replaces, and calls it for everything
that is not specific to this project. `install` is called by `tasks.flyte.stages`, which every module with a task
imports.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial, wraps
from importlib.metadata import version
from typing import Any, NamedTuple, cast

from flytekit import PodTemplate
from flytekit.configuration import SerializationSettings
from flytekit.core.constants import CACHE_KEY_METADATA, MESSAGEPACK, SERIALIZATION_FORMAT
from flytekit.core.node import Node
from flytekit.core.type_engine import TypeTransformerFailedError
from flytekit.models.annotation import TypeAnnotation
from flytekit.models.literals import Literal, LiteralMap
from flytekit.models.task import Container, Resources
from flytekit.models.types import LiteralType, SimpleType
from pydantic import BaseModel

from tasks.flyte import (
    archive,
    command_line_options,
    local_cache,
    remote_run,
    temporary_folders,
    uploads,
    workflow_names,
)
from tasks.flyte.errors import print_on_terminal, show_in_console
from tasks.flyte.literals import make_input_error, to_json_values
from tasks.flyte.local_run import publish_results
from tasks.kubernetes.pod_templates import add_resources
from tasks.storage.locations import sandbox_folder

CHECKED_VERSION = "1.16.31"
"""The flytekit release that the table was checked against."""

NONE_KNOWN = "none known"
"""The `upstream` of a patch without a related issue or pull request."""

RESOURCES = {
    Resources.ResourceName.CPU: "cpu",
    Resources.ResourceName.MEMORY: "memory",
    Resources.ResourceName.GPU: "nvidia.com/gpu",
    Resources.ResourceName.EPHEMERAL_STORAGE: "ephemeral-storage",
}
"""Kubernetes' names for the resources in Flyte's messages."""


class PatchError(RuntimeError):
    """Raised if the installed flytekit lacks a function that this project replaces."""


class Patch(NamedTuple):
    """One attribute of flytekit that `install` replaces.

    Attributes:
        target: the attribute, as `module:name` or `module:class.name`.
        replacement: takes flytekit's original, and returns the replacement.
        reason: what would go wrong without the patch.
        upstream: URL of the related flytekit issue or pull request, if there is one.
    """

    target: str
    replacement: Callable[[Any], Any]
    reason: str
    upstream: str = NONE_KNOWN


def _drop_schemas(get_literal_type: Callable[..., LiteralType]) -> Callable[..., LiteralType]:
    """Create Flyte's type for a model of this project without the schema of its fields.

    The fields are described in `workflows/schemas` and `docs/options`. Nothing reads them in an interface: forms of the
    console show JSON, and no workflow accesses a field of a promise.
    """

    @wraps(get_literal_type)
    def make_literal_type(self: Any, model: type[BaseModel]) -> LiteralType:
        if not model.__module__.startswith("tasks."):  # a model of a user or of another library
            return get_literal_type(self, model)
        packed = TypeAnnotation({CACHE_KEY_METADATA: {SERIALIZATION_FORMAT: MESSAGEPACK}})  # as flytekit does
        return LiteralType(simple=SimpleType.STRUCT, annotation=packed)

    return make_literal_type


def _read_whole_numbers(to_python_value: Callable[..., Any]) -> Callable[..., Any]:
    """Read whole numbers as integers in a model sent by a form of the console."""

    @wraps(to_python_value)
    def read_python_value(self: Any, ctx: Any, literal: Literal, python_type: type[BaseModel]) -> BaseModel:
        # Flytekit itself sends MessagePack, which keeps integers. A protobuf `Struct` contains only doubles.
        if literal.scalar is None or literal.scalar.generic is None:
            return cast(BaseModel, to_python_value(self, ctx, literal, python_type))
        text = json.dumps(to_json_values(literal.scalar.generic))
        return python_type.model_validate_json(text, strict=False, context={"deserialize": True})  # as flytekit does

    return read_python_value


def _describe_input_errors(literal_map_to_kwargs: Callable[..., dict[str, Any]]) -> staticmethod[..., dict[str, Any]]:
    """Report an input that cannot be read with a short message about its key."""

    @wraps(literal_map_to_kwargs)
    def kwargs(
        ctx: Any, literals: LiteralMap, python_types: dict[str, Any] | None = None, literal_types: Any = None
    ) -> dict[str, Any]:
        try:
            return literal_map_to_kwargs(ctx, literals, python_types, literal_types)
        except TypeTransformerFailedError as error:
            raise make_input_error(error, python_types or {}) from error.__context__

    return staticmethod(kwargs)  # the original is a bound class method, so its class is not passed again


def _show_whole_description(long_description: property) -> property:
    """Extend the long description of a docstring to all of its text except arguments and results."""

    # Without `wraps`, which takes functions and no properties.
    def text(docstring: Any) -> str | None:
        paragraphs = docstring.short_description, long_description.__get__(docstring)
        return "\n\n".join(filter(None, paragraphs)) or None

    return property(text)


def _resolve_templates(with_overrides: Callable[..., Node]) -> Callable[..., Node]:
    """Support pod templates by name in `with_overrides`: replace the template of the node's task in this process."""

    @wraps(with_overrides)
    def apply_overrides(self: Node, *args: Any, **kwargs: Any) -> Node:
        if "pod_template_name" in kwargs:
            name = kwargs.pop("pod_template_name")
            entity = self.run_entity
            # The name is in the metadata of the task and not of the node, so all nodes of the task get it.
            entity._metadata = replace(entity.metadata, pod_template_name=name)
        return with_overrides(self, *args, **kwargs)

    return apply_overrides


def _write_templates(serialize: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Write an inline pod template whose spec is a mapping into Flyte's message, without Kubernetes' client.

    The primary container gets the image, command and environment of the task's container, and its resources in addition
    to the template's.
    """

    @wraps(serialize)
    def spec(template: PodTemplate, container: Container, settings: SerializationSettings) -> dict[str, Any]:
        if not isinstance(template.pod_spec, dict):
            return serialize(template, container, settings)
        # Other containers, such as sidecars, stay as they are in the template.
        return {
            **template.pod_spec,
            "containers": [
                _merge_container(own, container) if own["name"] == template.primary_container_name else own
                for own in template.pod_spec["containers"]
            ],
        }

    return spec


def _merge_container(own: dict[str, Any], container: Container) -> dict[str, Any]:
    """Return a template's primary container, merged with the container of the task."""
    amounts = container.resources
    requests, limits = (
        {RESOURCES[entry.name]: entry.value for entry in entries} for entries in (amounts.requests, amounts.limits)
    )
    environment = [{"name": name, "value": value} for name, value in (container.env or {}).items()]
    return {
        "image": container.image,  # before the template's fields, so that an image in the template is used instead
        **add_resources(own, requests, limits),
        # After them, because the command is flytekit's own and runs the task.
        "command": container.command,
        "args": container.args,
        "env": [*environment, *own.get("env", [])],  # Kubernetes takes the last value of a name: the template's
    }


def _move_cache(_: str) -> str:  # the target is a constant, and its value is not used
    """Return the folder of the local cache, next to the outputs that it refers to."""
    return str(sandbox_folder() / "cache")


FLYTE, FLYTEKIT = "https://github.com/flyteorg/flyte/issues", "https://github.com/flyteorg/flytekit/pull"

PATCHES = (
    Patch(
        "flytekit.interaction.click_types:literal_type_to_click_type",
        command_line_options.parse_config_files,
        "`pyflyte run` would take a specification as JSON text alone, and of a list of files no more than an empty one",
        f"{FLYTE}/3371",
    ),
    Patch(
        "flytekit.interaction.click_types:FileParamType.convert",
        partial(command_line_options.resolve_output_addresses, folder=False),
        "`pyflyte run` would refuse `flyte://v1/...`, the address of an execution's output, for a file",
    ),
    Patch(
        "flytekit.interaction.click_types:DirParamType.convert",
        partial(command_line_options.resolve_output_addresses, folder=True),
        "`pyflyte run` would refuse `flyte://v1/...`, the address of an execution's output, for a folder",
    ),
    Patch(
        "flytekit.clis.sdk_in_container.run:to_click_option",
        command_line_options.show_short_help,
        "`pyflyte run --help` would print the JSON schema of each specification as the option's help",
    ),
    Patch(
        "flytekit.clis.sdk_in_container.run:Entities.all",
        workflow_names.list_only_workflows,
        "`pyflyte run FILE --help` would list the tasks that a file imports, which are no commands, with its workflows",
    ),
    Patch(
        "flytekit.clis.sdk_in_container.run:WorkflowCommand._create_command",
        workflow_names.show_kind_in_help,
        "the help of a workflow would call it a task",
    ),
    Patch(
        "flytekit.clis.sdk_in_container.run:run_command",
        publish_results,
        "the results of `pyflyte run` would be printed in one line, and be in a folder of a random name",
    ),
    Patch(
        "flytekit.clis.sdk_in_container.run:run_command",  # wraps the patch above, which has the same target
        remote_run.check_launches,
        "a launch without a module of the user's would end in its first pod, after the upload, and an address be read "
        "without the storage that --config names",
    ),
    Patch(
        "flytekit.clis.sdk_in_container.run:run_remote",
        remote_run.add_labels,
        "an execution of `pyflyte run --remote` would have no labels of its files, as one of `launch` has",
    ),
    Patch(
        "flytekit.clis.sdk_in_container.utils:pretty_print_exception",
        print_on_terminal,
        "an error would end a local run with a traceback",
        f"{FLYTEKIT}/2862",
    ),
    Patch(
        "flytekit.clis.sdk_in_container.run:pretty_print_exception",  # imported by name there
        print_on_terminal,
        "an error would end `pyflyte run` with a traceback",
        f"{FLYTEKIT}/2862",
    ),
    Patch(
        "flytekit.remote.remote:FlyteRemote.upload_file",
        uploads.upload_once,
        "a file that is read-only could not be sent, one that is in storage would be sent again, and a launch whose "
        "code cannot be uploaded would end with a traceback that names a temporary archive",
    ),
    Patch(
        "flytekit.tools.fast_registration:ls_files",
        archive.list_all_files,
        "an archive would be sent whatever its size, and be listed by looking at each file of every environment",
    ),
    Patch(
        "flytekit.bin.entrypoint:get_traceback_str",
        show_in_console,
        "an error would stand in Flyte's console below a traceback",
    ),
    Patch(
        "flytekit.core.local_cache:LocalTaskCache.get",
        local_cache.miss_changed_results,
        "the local cache would return addresses of files that are gone or have changed, for the next stage to read",
        f"{FLYTE}/6393",
    ),
    Patch(
        "flytekit.core.local_cache:LocalTaskCache.set",
        local_cache.keep_file_states,
        "the local cache would not know whether the files of a result have changed",
        f"{FLYTE}/6393",
    ),
    Patch(
        "flytekit.core.local_cache:LocalTaskCache.initialize",
        local_cache.replace_damaged_cache,
        "a damaged cache would end every run with an error of SQLite",
    ),
    Patch(
        "flytekit.core.local_cache:CACHE_LOCATION",
        _move_cache,
        "the local cache would lie in the user's home and be shared by all checkouts and projects",
        f"{FLYTE}/5613",
    ),
    Patch(
        "flytekit.extras.pydantic_transformer.transformer:PydanticTransformer.get_literal_type",
        _drop_schemas,
        "a compiled workflow would be larger than what Flyte's gateway passes on, so that the console showed no run, "
        "and a changed description of an option would miss every cached stage on a backend",
    ),
    Patch(
        "flytekit.core.docstring:Docstring.long_description",
        _show_whole_description,
        "Flyte's console, which shows long descriptions alone, would say that a task of one sentence has none",
    ),
    Patch(
        "flytekit.extras.pydantic_transformer.transformer:PydanticTransformer.to_python_value",
        _read_whole_numbers,
        "nothing could be launched from Flyte's console, which sends 24 as 24.0",
    ),
    Patch(
        "flytekit.core.node:Node.with_overrides",
        _resolve_templates,
        "a pod template could be given by name to a task, and not by the files that a run is launched with",
    ),
    Patch(
        "flytekit.tools.translator:_serialize_pod_spec",
        _write_templates,
        "an inline pod template would lose the resources in it, and need Kubernetes' client, which loads for seconds",
    ),
    Patch(
        "flytekit.core.type_engine:TypeEngine.literal_map_to_kwargs",
        _describe_input_errors,
        "a mistake in an input would stand in Flyte's console below the whole input",
    ),
)
"""All attributes of flytekit that this project replaces."""


def find_owner(patch: Patch) -> tuple[Any, str]:
    """Return the module or class that contains the target of `patch`, and the attribute's name.

    Raises:
        PatchError: the installed flytekit has no such attribute.
    """
    module, _, path = patch.target.partition(":")
    outer, _, name = path.rpartition(".")
    # The owner and not the attribute itself, because `setattr` needs both.
    try:
        owner = pkgutil.resolve_name(f"{module}:{outer}" if outer else module)
        getattr(owner, name)
    except (ImportError, AttributeError):
        raise PatchError(
            f"flytekit {version('flytekit')} has no {patch.target}, which tasks/flyte/patches.py replaces "
            f"(checked with flytekit {CHECKED_VERSION}): without the replacement, {patch.reason}"
        ) from None
    return owner, name


@cache  # a second call would wrap every replacement again
def install() -> None:
    """Apply all patches, and have flytekit's temporary folders removed at the end. A second call does nothing.

    Raises:
        PatchError: a target does not exist. In that case no patch is applied.
    """
    # All owners are looked up before the first change, so that a missing target leaves flytekit as it was.
    for (owner, name), patch in [(find_owner(patch), patch) for patch in PATCHES]:
        # Read only now: two patches with one target wrap each other.
        setattr(owner, name, patch.replacement(getattr(owner, name)))
    temporary_folders.remove_at_exit()
