r"""Runs the Python code that the policy writes and returns its output, until a turn has no code.

    policy: Let me count. ```python    ──► sandbox ──► tool: 3 ──► policy: There are 3. ──► verifier
            len("abc")
            ```

An episode is a session, as in a notebook: definitions persist, the value of a last expression is shown, and an
exception is shown but does not end the session. No process is kept between two turns. Instead, each turn reruns all
earlier code with its output discarded, followed by the new code, as one program in the sandbox of `code`. No process
state has to be stored or resumed, and the limits of one test (`code.test_seconds`, `code.memory_mib`) apply to all code
of an episode together. `random` and NumPy's global generator start with the same seed each time; results that depend on
the clock or on other randomness may differ between runs. Code that did not finish (out of time or memory, or
`os._exit`) is not part of the state.

The policy controls the program and its output: it can forge the output that it reads, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from tasks.environments.interface import Generate, Prompt
from tasks.verifiers.code.running import MAX_OUTPUT_CHARS, Execution
from tasks.verifiers.responses import strip_thinking

FENCED = r"```(?:python|py)[ \t]*\n(.*?)```"
"""Pattern of a fenced Python block; its one group is the code."""
ROLES = ("tool", "environment", "user")
"""Allowed roles of turns with output."""

RunProgram = Callable[[str, int], Awaitable[Execution]]
"""Runs a program and returns at most the given number of characters of its output, like `VerifierPool.run_program`."""
RUN_PROGRAM: ContextVar[RunProgram] = ContextVar("run_program")
"""The function that runs the programs of an episode; the environment process sets it."""

_SESSION = """
def _session(names, earlier, code):
    import ast, linecache, os, random, sys, traceback
    del names["_session"]

    def run(number, text):
        file = f"<code {number}>"
        linecache.cache[file] = len(text), None, text.splitlines(True), file
        try:
            tree = ast.parse(text, file)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, file, "exec"), names)
            if last is not None:
                exec(compile(ast.Interactive([last]), file, "single"), names)
        except BaseException as error:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename != file:
                frames = frames.tb_next
            print("".join(traceback.format_exception(type(error), error, frames)).rstrip())

    random.seed(0)
    if "numpy" in sys.modules and any("random" in text for text in (*earlier, code)):
        sys.modules["numpy"].random.seed(0)  # which loads it: most code would pay for nothing
    sys.stderr = sys.stdout
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    output = os.dup(1)
    os.dup2(2, 1)  # standard error leads nowhere
    for number, text in enumerate(earlier, 1):
        run(number, text)
    sys.stdout.flush()
    os.dup2(output, 1)
    os.close(output)
    run(len(earlier) + 1, code)

"""


async def python_tool(
    prompt: Prompt,
    generate: Generate,
    *,
    pattern: str = FENCED,
    role: str = "tool",
    max_output_chars: int = 2000,
) -> None:
    """Run the code of each turn and insert its output, until a turn has no code; the verifier scores that turn.

    Args:
        prompt: escapes control tokens in outputs.
        generate: continues the conversation.
        pattern: regular expression of a code block; its one group is the code. `.` also matches newlines. All code
            blocks of a turn form one program. If the answer itself is a fenced program, use another pattern, such as
            `<run>(.*?)</run>`.
        role: role of the turns with output: `tool`, or `environment` or `user` for a chat template that does
            not render `tool`.
        max_output_chars: maximum characters of an output; the middle of a longer one is removed.

    Raises:
        ValueError: If an option is out of range.
        RuntimeError: If this process has no sandbox for programs.
    """
    code_in = _compile(pattern)
    check_options("python_tool", role, max_output_chars)
    run_program = RUN_PROGRAM.get(None)
    if run_program is None:
        raise RuntimeError("python_tool: this process has no sandbox for programs")
    earlier: list[str] = []
    turn = await generate()
    while not turn.last:
        code = "\n".join(code_in.findall(strip_thinking(turn.text)))
        if not code.strip():
            return
        run = await run_program(build_program(earlier, code), max_output_chars)
        if not run.ending:
            earlier.append(code)
        turn = await generate([{"role": role, "content": prompt.plain(format_output(run))}])


def build_program(earlier: list[str], code: str) -> str:
    """Return a program that runs `earlier` code blocks silently, followed by `code`."""
    return f"{_SESSION}\n_session(globals(), {earlier!r}, {code!r})\n"


def format_output(run: Execution) -> str:
    """Return the text that the policy reads after an execution."""
    note = ""
    if run.timed_out:
        note = "[The code exceeded its time limit. Its definitions are lost.]"
    elif run.ending:
        note = f"[The code did not finish: {run.ending}. Its definitions are lost.]"
    output = run.output.rstrip()
    return "\n".join(filter(None, (output, note))) or "(no output)"


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except (re.error, TypeError) as error:
        raise ValueError(f"python_tool: pattern {pattern!r} is not a regular expression: {error}") from None
    if compiled.groups != 1:
        raise ValueError(f"python_tool: pattern {pattern!r} has {compiled.groups} groups, and must have one, the code")
    return compiled


def check_options(name: str, role: str, max_output_chars: int) -> None:
    """Raise `ValueError` if an option of the environment `name` is out of range."""
    if role not in ROLES:
        raise ValueError(f"{name}: role is {role!r}; accepted: {', '.join(ROLES)}")
    if not isinstance(max_output_chars, int) or not 0 < max_output_chars <= MAX_OUTPUT_CHARS:
        raise ValueError(f"{name}: max_output_chars is {max_output_chars}; accepted: 1 to {MAX_OUTPUT_CHARS}")
