"""Extends click's completion for Bash to words that contain `=`, at which Bash divides a command line."""

from __future__ import annotations

from click.shell_completion import BashComplete, CompletionItem, add_completion_class

UNFINISHED = "    if [[ ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace; fi\n"
"""Line of the completion function: Bash adds no space after a key, whose value follows, or a folder."""

END = "    return 0\n"
"""The last line of click's completion function."""


class OverridesInBash(BashComplete):
    """The completion of options and of `KEY=VALUE` in Bash."""

    source_template = BashComplete.source_template.replace(END, UNFINISHED + END)

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the incomplete one, and the incomplete one, which Bash may have divided at `=`."""
        args, incomplete = super().get_completion_args()
        self._key = ""
        if incomplete == "=":
            self._key, incomplete = f"{args.pop()}=", ""
        elif len(args) > 1 and args[-1] == "=":
            self._key = f"{args[-2]}="
            del args[-2:]
        return args, f"{self._key}{incomplete}"

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return the completions of the last of the words that Bash has made of the incomplete one."""
        items = super().get_completions(args, incomplete)
        return [CompletionItem(item.value.removeprefix(self._key), item.type, item.help) for item in items]


def install() -> None:
    """Register `OverridesInBash` in this process, so that click uses it for completion in Bash."""
    add_completion_class(OverridesInBash)
