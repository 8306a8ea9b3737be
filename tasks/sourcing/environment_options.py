"""The pydantic model behind `environment:` of a source."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from tasks.config import Config, close_match
from tasks.environments.spec import GIVEN
from tasks.sourcing.fields import IMPORT_PATH, Where


class EnvironmentOptions(Config):
    """The environment of a source's prompts, which answers between the turns of an episode (`tasks.environments`)."""

    name: str
    """Name of an environment that comes with the project, such as `guess_number`, or the import path of your own async
    function or class (`tasks.environments.interface`), in the working directory or on the Python path, such as
    `my_rooms.maze`."""
    columns: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Columns of the row that the environment gets as keyword arguments."""
    options: Where = {}  # noqa: RUF012 (pydantic copies defaults)
    """Further keyword arguments, the same for all rows."""
    turns: int = Field(default=8, gt=0)
    """Most turns of the policy in an episode; one that would have more is truncated."""
    turn_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of one turn; a longer one is cut off, and the episode is truncated there. None: as many as
    `sampling.max_tokens` leaves, which bounds all tokens of an episode after its prompt."""
    seconds: float = Field(default=60.0, gt=0)
    """Most wall seconds that the environment may take in one episode, its waits for the policy left out; an episode
    whose environment takes more is truncated."""

    @property
    def path(self) -> str:
        """The import path of the environment."""
        return GIVEN.get(self.name, self.name)

    @field_validator("name")
    @classmethod
    def _is_given_or_a_path(cls, name: str) -> str:
        if name not in GIVEN and not IMPORT_PATH.fullmatch(name):
            raise ValueError(
                f"{name!r} is none of {', '.join(GIVEN)}{close_match(name, GIVEN)}, nor an import path such as "
                "my_rooms.maze"
            )
        return name

    @model_validator(mode="after")
    def _hands_over_each_name_once(self) -> EnvironmentOptions:
        twice = sorted(set(self.columns) & set(self.options))
        if twice:
            raise ValueError(f"{twice[0]!r} is among columns and options: give it once")
        return self
