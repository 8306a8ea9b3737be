"""Locates the packages of this project."""

from pathlib import Path

PACKAGES = ("data_specs", "images", "tasks", "workflows")
"""Names of the packages."""

HOME = Path(__file__).parents[1]
"""The folder that contains them: a checkout, or the `site-packages` of an environment."""
