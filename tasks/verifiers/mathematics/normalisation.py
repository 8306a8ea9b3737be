r"""Normalises the text of an answer before it is compared.

`tidy` removes text without mathematical meaning (dollar signs, `\text`, LaTeX spacing, a final full stop). It converts
Unicode to LaTeX (halves, minus and times signs, roots, powers), words to commands ("50 percent", "pi"), plain notation
to LaTeX (`plain_notation`), upright units to words (`units`) and number words to digits (`number_words`). It never
changes a value.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from tasks.verifiers.mathematics.number_words import convert_to_digits
from tasks.verifiers.mathematics.plain_notation import convert_to_latex, replace_operators
from tasks.verifiers.mathematics.units import convert_upright_units

MAX_ANSWER_CHARS = 4_000
"""Maximum length of an answer in characters."""
MAX_DEPTH = 60
"""Maximum nesting depth of brackets in an answer."""

_SYMBOLS = str.maketrans(
    {
        "\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\ufe63": "-", "\uff0d": "-",
        "\u00d7": r"\times ", "\u22c5": r"\cdot ", "\u00b7": r"\cdot ", "\u2217": "*", "\u00f7": "/", "\u2044": "/",
        "\u2215": "/", "\u00b1": r"\pm ", "\u2213": r"\mp ", "\u221e": r"\infty ", "\u03c0": r"\pi ",
        "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\neq ", "\u2248": r"\approx ", "\u222a": r"\cup ",
        "\u2229": r"\cap ", "\u2208": r"\in ", "\u2205": r"\emptyset ", "\u211d": r"\mathbb{R}", "\u00b0": r"^\circ ",
        "\u03b1": r"\alpha ", "\u03b2": r"\beta ", "\u03b8": r"\theta ", "\u03bb": r"\lambda ", "\u03c6": r"\phi ",
        "\u200b": None, "\u200c": None, "\u200d": None, "\u2060": None, "\ufeff": None, "\n": " ", "\r": " ",
        "\t": " ", "\u27e8": "(", "\u27e9": ")", "\u2236": ":", "\u3001": ",", "\u3002": ".",
    }
)  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR = re.compile("([0-9]?)([\u00bc-\u00be\u2150-\u215e\u2189])")
_ROOT = re.compile(r"\u221a\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+(?:\.[0-9]+)?|[A-Za-z]))")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")

_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox|underline|operatorname\*?)\s*\{([^{}]*)\}")
_NOTHING = re.compile(
    r"(?<!\\)\\(?:[!()]|(?:left|right|middle|[bB]igg?[lr]?|displaystyle|limits|bf|rm)(?![A-Za-z]))|(?<=[0-9])'(?=\s|$)|(?<!\\)\\$"
)
_SPACE = re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|~")
_BRACED_COMMA = re.compile(r"\s*\{\s*,\s*\}\s*")
_COLON = re.compile(r"\{\s*:\s*\}|\\(?:colon|ratio)(?![A-Za-z])")
_GROUP_GAP = r"\s*(?:,\s*\\!|\{\s*,\s*\}|\{?(?<!\\)\\[,;:!> ]\}?|[\u00a0\u2009\u202f])\s*"
_GROUPED = re.compile(rf"(?<![0-9.,])[1-9][0-9]{{0,2}}(?:{_GROUP_GAP}[0-9]{{3}})+(?!{_GROUP_GAP}[0-9]|[0-9])")
_GROUP_GAPS = re.compile(_GROUP_GAP)
_FRACTION = re.compile(r"\\[dtc](frac|binom)(?![A-Za-z])")
_SCRIPT = re.compile(r"([_^])\s*([0-9]+)(?=[\s(])")
_ARGUMENT_GAP = re.compile(r"(\\[A-Za-z]+|\})\s+(?=\{)")
_PERCENT = re.compile(r"\\%|(?<=[0-9}])\s*(?:percent(?:age)?|per cent|pct)\b", re.IGNORECASE)
_SECONDS = re.compile(r"(?<=[0-9}])\s*\b(arc)?sec\.?(?=\s*(?:$|/))")
_NEGATED = re.compile(r"\\not\s*(=|\\in(?![A-Za-z]))")
_INFINITY = re.compile(r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])")
_ANGLES = {r"\langle": "(", r"\rangle": ")"}
_CHOOSE = re.compile(r"\{([^{}]+)\\choose\s*([^{}]+)\}")
_BLACKBOARD = re.compile(r"\\mathbb\s*([A-Z])")
_SUCH_THAT = re.compile(r"\s*\\mid(?![A-Za-z])\s*")
_DOTS = re.compile(r"\\[lcd]?dots(?![A-Za-z])")
_OR = re.compile(r"\\(?:lor|vee|land|wedge)(?![A-Za-z])")
_APPROXIMATELY = re.compile(r"\\(?:simeq|cong)(?![A-Za-z])")
_DELIMITER = re.compile(r"(?<!\\)\$(?![0-9])|(?<=[^\s\\])\$")
_NEGATIVE = re.compile(r"\s*(?:negative|minus)\s+(?=[0-9.\\])", re.IGNORECASE)
_LEAD = re.compile(r"(?:=|\\(?:approx|sim|thicksim)(?![A-Za-z])|(?:approximately|about|roughly)\b)\s*", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<![0-9,.])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])")
_SPACED_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(?: [0-9]{3})+(?:\.[0-9]+)?")
_QUOTED = re.compile(r"`+([^`']*)[`']+|\"([^\"]*)\"|'([^']*)'|\u201c([^\u201d]*)\u201d|\u2018([^\u2019]*)\u2019")
_BRACKETS = re.compile(r"[()\[\]{}]")
_OPENING = re.compile(r"\\.|[({\[]|[)}\]]", re.DOTALL)


@lru_cache(maxsize=4096)  # references and the answers of a group repeat
def tidy(text: str) -> str:
    """Return an answer in normalised spelling; the result may be empty."""
    text = _GROUPED.sub(lambda number: _GROUP_GAPS.sub("", number.group()), text.replace("-$", "-"))
    text = _to_ascii(text)
    text = convert_upright_units(_COLON.sub(":", _BRACED_COMMA.sub(",", text)))
    text = remove_text_commands(replace_operators(text))
    text = _SPACE.sub(" ", _NOTHING.sub("", text))
    text = _FRACTION.sub(r"\\\1", text)
    text = _ARGUMENT_GAP.sub(r"\1", _SCRIPT.sub(r"\1{\2}", text))
    text = _NEGATED.sub(_convert_negation, text.replace("\\varnothing", "\\emptyset"))
    text = convert_to_latex(_INFINITY.sub(r"\\infty ", _PERCENT.sub("%", _SECONDS.sub(r" \1seconds", text))))
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = _DOTS.sub("...", _SUCH_THAT.sub("|", _BLACKBOARD.sub(r"\\mathbb{\1}", text)))
    for command, bracket in _ANGLES.items():
        text = text.replace(command, bracket)
    text = _DELIMITER.sub(" ", _APPROXIMATELY.sub(r"\\approx", _OR.sub(" or ", text)))
    text = " ".join(text.split())
    if not _BRACKETS.search(text):  # inside brackets, 1,234 may be two members
        text = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), text)
    text = _LEAD.sub("", text.strip(" *$"), count=1) if _LEAD.match(text.strip(" *$")) else text
    text = _remove_quotes(text.strip(" *$"))
    if negative := _NEGATIVE.match(text):
        text = f"-{text[negative.end() :]}"
    if not text.endswith("..."):  # dots mean that more follows
        text = text.rstrip(" .,;:").strip(" *$")
    if _SPACED_THOUSANDS.fullmatch(text):
        return text.replace(" ", "")
    digits = convert_to_digits(text)
    return text if digits == text else _PERCENT.sub("%", digits)


def remove_text_commands(text: str) -> str:
    r"""Return LaTeX with \text and similar commands replaced by their content, including nested ones."""
    for _ in range(2):
        text = _TEXT.sub(r" \1 ", text)
    return text


def find_refusal(text: str) -> str | None:
    """Return the reason why an answer is rejected without a comparison, or None.

    An unusually long or deeply nested answer would use up a worker's whole time limit.
    """
    if len(text) > MAX_ANSWER_CHARS:
        return f"is {len(text)} characters long; read are answers of at most {MAX_ANSWER_CHARS}"
    depth = deepest = 0
    for bracket in _OPENING.findall(text):
        depth += (bracket in "({[") - (bracket in ")}]")
        deepest = max(deepest, depth)
    return f"is nested {deepest} deep; read are answers of at most {MAX_DEPTH}" if deepest > MAX_DEPTH else None


def _to_ascii(text: str) -> str:
    if text.isascii():
        return text.translate(_SYMBOLS)
    text = unicodedata.normalize("NFC", text)
    text = _VULGAR.sub(lambda half: f"{half[1]}{' ' * bool(half[1])}{unicodedata.normalize('NFKC', half[2])}", text)
    text = _RAISED.sub(lambda power: f"^{{{power.group().translate(_SUPERSCRIPTS)}}}", text)
    text = _LOWERED.sub(lambda index: f"_{{{index.group().translate(_SUBSCRIPTS)}}}", text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2] or root[3]}}}", text)
    return _NOT_ASCII.sub(_convert_to_ascii, text.translate(_SYMBOLS))


def _remove_quotes(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    return next(group for group in quoted.groups() if group is not None).strip(" *$") if quoted else text


def _convert_negation(match: re.Match[str]) -> str:
    return r"\neq " if match[1] == "=" else r"\notin "


def _convert_to_ascii(character: re.Match[str]) -> str:
    """Return digits of other scripts and full-width letters as ASCII, and any other character unchanged."""
    digit = unicodedata.decimal(character.group(), None)
    return unicodedata.normalize("NFKC", character.group()) if digit is None else str(digit)
