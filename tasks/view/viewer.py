"""Writes the logs of a view and opens Inspect's viewer on them, each in a process of Inspect's environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import tasks
from tasks.view.responses import ResponseTables, ViewError
from tasks.view.selection import Log

HOST = "127.0.0.1"
"""The address on which the viewer listens: this machine alone."""
PORT = 7575
"""The first port that a viewer takes if the user names none."""
TITLE = "<title>Inspect View</title>"
"""A part of the page in a bundle."""
APP = '<div id="app"></div>'
"""The element of this page that the viewer replaces when it runs, which no browser lets it do from a file."""
NOTICE = """<p style="font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem">
The viewer needs a file server. If this text stays, run <code>python -m http.server --bind 127.0.0.1 --directory
FOLDER</code>, FOLDER being the folder of this page, and open <code>http://127.0.0.1:8000</code>.</p>"""
START = "import sys; sys.path.append(sys.argv.pop(1)); from tasks.view.{module} import main; main()"
"""Program of a process in Inspect's environment. The folder of this project comes last on its path: as its first entry,
packages that are installed next to this project would replace Inspect's."""
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "XDG_CACHE_HOME", "XDG_DATA_HOME")


def write_logs(
    environment: Path, tables: ResponseTables, logs: Sequence[Log], folder: Path, wrote: Callable[[str, int], None]
) -> None:
    """Write logs to `folder`, in a process of Inspect's environment.

    Args:
        environment: Inspect's environment.
        tables: the tables of the run.
        logs: the logs.
        folder: the folder of logs, which may not exist.
        wrote: is called with the path of each log and its number of responses when it is written.

    Raises:
        ViewError: the process failed. The message is the last line of its error output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    request = {
        "run": str(tables.run.resolve()),
        "folder": str(folder.resolve()),
        "prompts": [str(path.resolve()) for path in tables.prompts],
        "ledger": tables.ledger and str(tables.ledger.resolve()),
        "logs": [log.to_json() for log in logs],
    }
    with tempfile.TemporaryDirectory() as scratch, Path(scratch, "errors.txt").open("w+") as errors:
        asked = Path(scratch, "request.json")
        asked.write_text(json.dumps(request))
        command = [*_build_command(environment, "child"), str(asked)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=_make_env()) as child:  # noqa: S603
            assert child.stdout is not None
            for line in child.stdout:
                wrote(*json.loads(line))
        if child.returncode:
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [f"exit status {child.returncode}"]
            raise ViewError(f"the logs of {tables.run} cannot be written: {lines[-1]}")


def check_replaceable(folder: Path) -> None:
    """Check that a bundle may be written to a folder: it is new, empty, or contains an earlier bundle.

    Raises:
        ViewError: it contains something else.
    """
    page = folder / "index.html"
    if folder.exists() and any(folder.iterdir()) and not (page.is_file() and TITLE in page.read_text(errors="replace")):
        raise ViewError(f"--bundle {folder}: the folder contains something else; name an empty or a new one")


def write_bundle(environment: Path, logs: Path, folder: Path) -> None:
    """Write a static copy of the viewer and the logs to `folder`, which any file server can show.

    Opened as a file, its page says that it needs one.

    Raises:
        ViewError: the folder contains something else, or Inspect cannot write it.
    """
    check_replaceable(folder)
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        str(environment / "bin" / "inspect"),
        "view",
        "bundle",
        "--log-dir",
        str(logs),
        "--output-dir",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_make_env())  # noqa: S603
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ViewError(f"--bundle {folder}: Inspect cannot write it: {lines[-1]}")
    page = folder / "index.html"
    text = page.read_text()
    if APP not in text:
        raise ViewError(f"--bundle {folder}: the page of this version of Inspect has no {APP}")
    page.write_text(text.replace(APP, APP.replace("><", f">{NOTICE}<")))


def find_free_port(wanted: int | None) -> int:
    """Return the port to listen on: `wanted`, or the first free port from `PORT` on if it is None.

    Raises:
        ViewError: `wanted` is taken.
    """
    if wanted is None:
        return next(port for port in range(PORT, 1 << 16) if _is_free(port))
    if not _is_free(wanted):
        raise ViewError(f"--port {wanted}: the port is taken; name another one, or leave --port out to use a free one")
    return wanted


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of a server that has ended do not occupy its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def serve(environment: Path, logs: Path, port: int) -> None:
    """Show the logs on `HOST` until this process is interrupted or terminated. The viewer ends with it.

    Raises:
        ViewError: the viewer ended.
    """
    command = [*_build_command(environment, "server"), str(os.getpid()), str(environment / "bin" / "inspect")]
    command += ["view", "start", "--log-dir", str(logs), "--recursive"]
    command += ["--host", HOST, "--port", str(port), "--no-trust-content", "--display", "none", "--log-level", "error"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as an interrupt, so that callers remove their logs
    with tempfile.TemporaryDirectory() as own:
        # Inspect notes the process of each port in this folder, and would end an earlier one, whatever it is by now.
        variables = _make_env() | {"XDG_DATA_HOME": own}
        with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as child:  # noqa: S603
            try:
                status = child.wait()
            except KeyboardInterrupt:
                child.terminate()
                return
    raise ViewError(f"the viewer on port {port} ended with status {status}")


def _build_command(environment: Path, module: str) -> list[str]:
    """Return the command that runs `main` of a module of `tasks.view` in Inspect's environment, without arguments."""
    root = Path(tasks.__path__[0]).parent
    return [str(environment / "bin" / "python"), "-c", START.format(module=module), str(root)]


def _make_env() -> dict[str, str]:
    """Return the variables of Inspect's processes. Keys of services, which it would never need, are not among them."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}
