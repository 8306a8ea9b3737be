r"""A Python tool: the code that the policy writes is run, and its output comes back, until a turn has no code.

    policy: Let me count. ```python    ──► sandbox ──► tool: 3 ──► policy: There are 3. ──► verifier
            len("abc")
            ```

An episode is a session, as in a notebook: what its code defined stays, the value of a last expression is shown, and an
exception is shown and ends nothing. No process lives between two turns: the state is made anew by running all earlier
code again, with its output discarded, and the new code after it, as one program in the sandbox of `code`. So nothing
has to be held, moved or resumed, and the limits of one test (`code.test_seconds`, `code.memory_mib`) hold for all code
of an episode together. `random` and NumPy's global generator begin with the same seed each time; what reads the clock
or other randomness may differ from one run to the next. Code that did not reach its end (out of time or memory, or
`os._exit`) is no part of the state.

The program and its output are the policy's: it can forge what it reads itself, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from tasks.environments.interface import Generate, Prompt
from tasks.verifiers.code.running import MAX_OUTPUT_CHARS, Execution
from tasks.verifiers.responses import strip_thinking

FENCED = r"```(?:python|py)[ \t]*\n(.*?)```"
"""Pattern of a fenced block of Python, whose one group is the code."""
ROLES = ("tool", "user")
"""Roles that turns with output may have."""

RunProgram = Callable[[str, int], Awaitable[Execution]]
"""Runs a program, and returns at most so many characters of its output: `VerifierPool.run_program`, for one."""
RUN_PROGRAM: ContextVar[RunProgram] = ContextVar("run_program")
"""The function that runs the programs of an episode; the process of environments sets it."""

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
    """Run the code of each turn and hand its output back, until a turn has none; the verifier judges that turn.

    Args:
        prompt: makes output plain.
        generate: continues the conversation.
        pattern: regular expression of a piece of code, which is its one group; `.` matches line ends, too. All pieces
            of a turn are one program. Where the answer itself is a fenced program, give another pattern, such as
            `<run>(.*?)</run>`.
        role: role of the turns with output: `tool`, or `user` for a chat template that refuses `tool`.
        max_output_chars: most characters of an output; of a longer one, head and tail.

    Raises:
        ValueError: an option is out of its range.
        RuntimeError: this process has no sandbox for programs.
    """
    code_in = _compiled(pattern)
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
        run = await run_program(session(earlier, code), max_output_chars)
        if not run.ending:
            earlier.append(code)
        turn = await generate([{"role": role, "content": prompt.plain(shown(run))}])


def session(earlier: list[str], code: str) -> str:
    """Return a program that runs `earlier` pieces of code silently, and `code` after them."""
    return f"{_SESSION}\n_session(globals(), {earlier!r}, {code!r})\n"


def shown(run: Execution) -> str:
    """Return what the policy reads of an execution."""
    note = ""
    if run.timed_out:
        note = "[The code took longer than it may. What it defined is lost.]"
    elif run.ending:
        note = f"[The code did not reach its end: {run.ending}. What it defined is lost.]"
    output = run.output.rstrip()
    return "\n".join(filter(None, (output, note))) or "(no output)"


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except (re.error, TypeError) as error:
        raise ValueError(f"python_tool: pattern {pattern!r} is no regular expression: {error}") from None
    if compiled.groups != 1:
        raise ValueError(f"python_tool: pattern {pattern!r} has {compiled.groups} groups, and must have one, the code")
    return compiled


def check_options(name: str, role: str, max_output_chars: int) -> None:
    """Raise `ValueError` where an option of the environment `name` is out of its range."""
    if role not in ROLES:
        raise ValueError(f"{name}: role is {role!r}; accepted: {', '.join(ROLES)}")
    if not isinstance(max_output_chars, int) or not 0 < max_output_chars <= MAX_OUTPUT_CHARS:
        raise ValueError(f"{name}: max_output_chars is {max_output_chars}; accepted: 1 to {MAX_OUTPUT_CHARS}")
