r"""Rewrites notations that the grammar does not support as LaTeX that it does.

4*pi*r**2, np.arcsin(10/13), abs(y), exp(-x)   the notation of programs
\frac\pi3, \frac{1}\pi, \binom n2, \sqrt\pi    arguments without braces
\tg x, \lg 5, \cot^{-1} 3, arsinh 2            functions by other names, and their inverses
C_5^2, C(5, 2), ^5C_2                          binomial coefficients of numbers
y^{\prime}, x^-2                               primes, and powers without braces
"""

from __future__ import annotations

import re

_SAME = """
sqrt sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arcsec arccsc arcsinh arccosh arctanh log
ln exp pi infty gcd"""
_OTHER = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "acot": "arccot", "asinh": "arcsinh", "acosh": "arccosh",
    "atanh": "arctanh", "arsinh": "arcsinh", "arcosh": "arccosh", "artanh": "arctanh", "arctg": "arctan",
    "arcctg": "arccot", "cosec": "csc", "ctg": "cot", "cotg": "cot",
}  # fmt: skip
_COMMANDS = _OTHER | {"tg": "tan", "lg": "log_{10}", "sh": "sinh", "ch": "cosh", "th": "tanh", "cth": "coth"}
_NAMES = {name: name for name in _SAME.split()} | _OTHER
FUNCTIONS = "|".join(sorted((*_NAMES, "abs"), key=len, reverse=True))
"""Pattern of the names of functions and constants that are written without a backslash."""

_MODULE = re.compile(r"(?<![A-Za-z\\.])(?:np|numpy|math|sympy)\.(?=[a-z])")
_NAME = re.compile(rf"(?<![\\A-Za-z])({'|'.join(sorted(_NAMES, key=len, reverse=True))})(?![A-Za-z])")
_COMMAND = re.compile(rf"\\({'|'.join(sorted(_COMMANDS, key=len, reverse=True))})(?![A-Za-z])")
_OPERATOR = re.compile(r"\\(?:operatorname\*?\s*\{\s*(tg|lg|sh|ch|th|cth)|(?:mathrm|text)\s*\{\s*(tg|lg))\s*\}")
_FORWARD = r"(?:sin|cos|tan|cot|sec|csc)h?|coth"
_INVERSE = re.compile(rf"\\({_FORWARD})\s*\^\s*(?:\{{\s*-\s*1\s*\}}|-1(?![0-9.]))")
_POWER = re.compile(r"(?<=[\w)}\]])\s?\*\*\s?(?=[\w({\\-])")
_BARE_EXPONENT = re.compile(r"\^\s*(-\s*(?:[0-9]+(?:\.[0-9]+)?|[A-Za-z])(?![A-Za-z0-9])|[0-9]+\.[0-9]+)")
_PRIMES = re.compile(r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|(\\prime)(?![A-Za-z]))")
_CALL = re.compile(
    r"(?<![\\A-Za-z])([Aa]bs|cbrt|floor|ceil|ceiling|factorial|log10|log2|sqrt|tg|lg)\s*\(|\\(sqrt)\s*\("
)
_AROUND = {
    "abs": ("|", "|"), "Abs": ("|", "|"), "cbrt": (r"\sqrt[3]{", "}"), "sqrt": (r"\sqrt{", "}"),
    "floor": (r"\lfloor ", r" \rfloor "), "ceil": (r"\lceil ", r" \rceil "), "ceiling": (r"\lceil ", r" \rceil "),
    "factorial": ("(", ")!"), "log10": (r"\log_{10}(", ")"), "log2": (r"\log_{2}(", ")"), "tg": (r"\tan (", ")"),
    "lg": (r"\log_{10}(", ")"),
}  # fmt: skip
_TAKES = re.compile(r"\\(frac|binom|sqrt)(?![A-Za-z])")
_ARGUMENT = re.compile(r"\s*(?:(?P<brace>\{)|(?P<bare>[0-9A-Za-z]|\\[A-Za-z]+))")
_TAKING = ("\\frac", "\\sqrt", "\\binom", "\\left", "\\right", "\\text", "\\mathrm", "\\mathbb")
_BRACKET = re.compile(r"\\.|[(){}]", re.DOTALL)
_COUNT = r"\s*\{?\s*([0-9]{1,4})\s*\}?"
_CHOICES = re.compile(
    rf"(?<![A-Za-z\\])C(?:\s*_{_COUNT}\s*\^{_COUNT}|\s*\(\s*([0-9]{{1,4}})\s*,\s*([0-9]{{1,4}})\s*\))"
    rf"|(?<![0-9A-Za-z)}}\]!])(?:\{{\}})?\s*[\^_]{_COUNT}\s*C\s*_{_COUNT}"
)
_OTHER_LETTER = re.compile(r"(?<![A-Za-z\\])(?!C\s*[_(])[A-Za-z]")


def convert_to_latex(text: str) -> str:
    """Return a text with unsupported notations rewritten as LaTeX; existing LaTeX is unchanged."""
    if "*" in text and not text.lstrip().startswith("*"):  # stars at the start are Markdown for bold
        text = _POWER.sub("^", text)
    if "." in text:
        text = _MODULE.sub("", text)
    if "(" in text:
        text = _convert_calls(text)
    text = _NAME.sub(lambda name: rf"\{_NAMES[name[1]]} ", text)
    if "\\" in text:
        text = _COMMAND.sub(lambda name: rf"\{_COMMANDS[name[1]]} ", text)
        text = _add_braces(_INVERSE.sub(r"\\arc\1 ", text))
    if "^" in text:
        text = _PRIMES.sub(lambda primes: "'" * primes.group().count("prime"), text)
        text = _BARE_EXPONENT.sub(r"^{\1}", text)
    if "C" in text and not _OTHER_LETTER.search(text):
        text = _CHOICES.sub(_convert_binomial, text)
    return text


def replace_operators(text: str) -> str:
    r"""Return LaTeX with named operators replaced by their commands: \tg for \operatorname{tg}."""
    return _OPERATOR.sub(lambda operator: f"\\{operator[1] or operator[2]} ", text)


def _convert_calls(text: str) -> str:
    r"""Return the text with calls such as abs(y) and sqrt(1+(2)) as |y| and \sqrt{1+(2)}; unclosed calls are kept."""
    calls = list(_CALL.finditer(text))
    if not calls:
        return text
    partners = partners_of(text)
    changes = {}
    for call in calls:
        closing = partners.get(call.end() - 1)
        if closing is not None:
            opens, closes = _AROUND[call[1] or call[2]]
            changes[call.start()], changes[closing] = (call.end(), opens), (closing + 1, closes)
    return _apply_changes(text, changes)


def _add_braces(text: str) -> str:
    r"""Return the text with braces around arguments of \frac and \binom, and around a command as argument of \sqrt."""
    takers = list(_TAKES.finditer(text))
    if not takers:
        return text
    partners = partners_of(text)
    changes = {}
    for taker in takers:
        end = taker.end()
        for _ in range(1 if taker[1] == "sqrt" else 2):
            argument = _ARGUMENT.match(text, end)
            if argument is None:
                break
            bare = argument["bare"]
            if bare is None:
                end = partners.get(argument.end() - 1, len(text)) + 1
                continue
            end = argument.end()
            if bare in _TAKING or (taker[1] == "sqrt" and not bare.startswith("\\")):
                break
            changes[argument.start()] = (end, f"{{{bare}}}")
    return _apply_changes(text, changes)


def _apply_changes(text: str, changes: dict[int, tuple[int, str]]) -> str:
    """Return a text with parts replaced; `changes` maps the start of a part to its end and its replacement."""
    parts, end = [], 0
    for start in sorted(changes):
        if start < end:
            continue
        parts += [text[end:start], changes[start][1]]
        end = changes[start][0]
    return "".join([*parts, text[end:]])


def partners_of(text: str) -> dict[int, int]:
    """Return the offsets of closing round brackets and braces by the offset of the opening one, in one pass."""
    partners: dict[int, int] = {}
    opened: dict[str, list[int]] = {"(": [], "{": []}
    for bracket in _BRACKET.finditer(text):
        sign = bracket.group()
        if sign in opened:
            opened[sign].append(bracket.start())
        elif sign in ")}" and (stack := opened["(" if sign == ")" else "{"]):
            partners[stack.pop()] = bracket.start()
    return partners


def _convert_binomial(choices: re.Match[str]) -> str:
    """Return a binomial coefficient of two numbers; C_1^2 is the square of a constant and is unchanged."""
    top, below = (int(number) for number in choices.groups() if number)
    return rf"\binom{{{top}}}{{{below}}}" if top >= below else choices.group()
