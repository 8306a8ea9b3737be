"""`math`: which answers are the same, whichever way they are written, and which only look it."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.verifiers import mathematics
from tasks.verifiers.mathematics.counted import split_noun
from tasks.verifiers.mathematics.normalisation import tidy
from tasks.verifiers.mathematics.plain_numbers import TOLERANCE, parse_plain_number
from tasks.verifiers.mathematics.sets_of_numbers import convert_to_symbols, match_notation
from tasks.verifiers.mathematics.structure import parse_shape
from tasks.verifiers.mathematics.units import split_unit
from tests.examples import examples

SAME = {
    "integers": [
        ("7", "7"), ("7.0", "7"), ("+7", "7"), ("\u22127", "-7"), ("007", "7"), ("1,234", "1234"), ("1{,}234", "1234"),
        (r"1\,234\,567", "1234567"), ("1 234", "1234"), (r"32,\!000", "32000"), ("14 {, }916", "14916"),
        ("\uff11\uff12", "12"), ("\u0663", "3"),
        ("3 million", "3000000"), ("2 dozen", "24"), ("1011_2", "1011"), ("2(3)", "6"), ("(2)(3)", "6"),
    ],
    "fractions": [
        ("3/4", "0.75"), (r"\frac34", "3/4"), (r"\dfrac{3}{4}", "3/4"), (r"\tfrac 3 4", "3/4"), (r"\frac3{4}", "3/4"),
        (r"-\frac{3}{4}", "-0.75"), (r"\frac{-3}{4}", "-3/4"), (r"\frac{3}{-4}", "-3/4"), ("6/8", r"\frac{3}{4}"),
        ("1 1/2", "3/2"), (r"1\frac{1}{2}", "1.5"), (r"-1\frac{1}{2}", "-1.5"), ("\u00bd", "1/2"), ("1\u00bd", "1.5"),
        ("2\u2153", r"\frac{7}{3}"), (r"0.\overline{3}", "1/3"), (r"0.1\overline{6}", "1/6"), ("2:4", "1:2"),
    ],
    "scientific": [
        ("1.2e3", "1200"), (r"1.2 \times 10^3", "1200"), (r"1.2 \cdot 10^{3}", "1200"), ("1.2\u00d710\u00b3", "1200"),
        ("1.2*10^3", "1200"), ("5E-3", "0.005"), (r"1.2\times10^{-3}", "0.0012"), ("10^3", "1000"),
    ],
    "percent": [
        ("50%", "50"), (r"50\%", "0.5"), ("50", "50%"), ("1/2", "50%"), ("50 percent", "50%"), ("12.5%", "12.5"),
        ("12.5%", "1/8"), (r"33\frac{1}{3}\%", "1/3"),
    ],
    "units": [
        ("5 cm", "5"), (r"5\text{ cm}", "5"), (r"5\,\mathrm{cm}", "5"), ("5cm", "5 centimeters"), ("5 m", "5"),
        ("60 km/h", "60 kilometers per hour"), ("60 mph", "60 miles per hour"), (r"25\text{ m}^2", "25"),
        ("25 m\u00b2", "25 square meters"), (r"25\ \text{cm}^{3}", "25 cubic centimeters"), ("9.8 m/s^2", "9.8"),
        ("90 degrees", "90"), (r"90^\circ", "90"), ("90\u00b0", r"90^{\circ}"), ("20 \u00b0C", "20"),
        ("5 hrs", "5 hours"),
        (r"\$18", "18"), ("$18", "18"), ("18 dollars", r"\$18"), ("\u20ac18", "18 euros"), ("12 apples", "12"),
        (r"\frac{1}{2}\text{ hour}", "0.5 hours"), (r"3.0 \times 10^8 \text{ m/s}", "3e8"), (r"x=5\text{ m}", "5"),
    ],
    "letters that are units or variables": [
        (r"\frac{1}{3}\pi r^2 h", r"\frac{\pi r^2h}{3}"), (r"2\pi r h", r"2\pi rh"),
        (r"\frac{1}{2} a h", r"\frac{ah}{2}"),
        ("l w h", "lwh"), ("lwh", r"l\cdot h\cdot w"), ("mgh", "m g h"), ("y^2+3s", "y^2 + 3 s"), ("t=4g", "t = 4 g"),
        ("2 k", "2k"), ("5 m", "5m"), ("6 s", "6"), ("6", r"6\,\mathrm{s}"), (r"3\sqrt2\text{ m}", r"3\sqrt{2}"),
        (r"7\mathrm{~g}", "7"), (r"9.8 \mathrm{m}/\mathrm{s}^2", "9.8"), (r"\frac{1}{2} m v^2", r"\frac{mv^2}{2}"),
        (r"\frac{1}{4} L^2 g", r"\frac{gL^2}{4}"), (r"\text{N}", "N"),
    ],
    "units and signs in other words and scripts": [
        ("12\u5143", "12"), ("12\\text{\u5143}", "12"), ("12 \u0930\u0941\u092a\u092f\u0947", "12"), ("25\u20ac", "25"),
        ("7\uac1c", "7"), ("3\u5c0f\u65f6", "3"),
        ("5\u5343\u514b", "5"), ("6 \u043a\u043c", "6"),
        ("negative 5", "-5"), (r"\text{minus } \frac{1}{2}", "-1/2"), ("3{:}2", "3:2"), (r"4\colon 2", "2:1"),
        ("3\u22362", "3:2"), ("5{:}30", "5:30"), (r"5:30\text{ PM}", r"5{:}30\text{ PM}"),
    ],
    "explained choices": [
        ("C: A slow reaction", "C"), ("B, which is cold", "B"), ("D) hot and dry", "D"), ("C - slow reaction", "C"),
        ("B: not soluble", "B"), ("C : 12", "C"), ("(E) $x^2$", "E"), ("C because I say so", "C"), ("R", "R"),
        ("A. A big one", "A"),
    ],
    "values that need no simplification": [
        (r"\sqrt[3]{-27}", "-3"), (r"\sqrt[5]{-32}", "-2"), (r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}", "1"),
        (r"\sqrt{7+4\sqrt3}", r"2+\sqrt3"), (r"\cos 36^\circ - \cos 72^\circ", r"\frac12"),
        (r"\cos\frac{\pi}{5}\cos\frac{2\pi}{5}", r"\frac14"), ("3^{500}+1", "1+3^{500}"),
        (r"\sqrt{\frac{p}{q}}", r"\frac{\sqrt p}{\sqrt q}"),
        (r"\ln(xy)", r"\ln x + \ln y"), (r"2\ln x", r"\ln x^2"), (r"\sqrt{9y}", r"3\sqrt{y}"),
        (r"\sqrt{uv}", r"\sqrt u\sqrt v"),
        (r"\sqrt{1/k}", r"\frac{1}{\sqrt k}"),
        ("(a+b+c)^{40}", "((c+b+a)^{20})^2"), (r"5^{5^9}", r"5\cdot 5^{5^9-1}"), (r"500000\cdot 499999!", "500000!"),
    ],
    "words and choices": [
        (r"\text{Tuesday}", "tuesday"), (r"\mathrm{No}", "no"), ("(B)", "B"), ("B)", "B"), ("b", "B"), ("B", "(B)"),
        ("B. 12 cm", r"\text{B}"), (r"\textbf{(C)}", "C"), (r"\text{(C) } 12", "C"), ("E", "(E)"), ("A and C", "A, C"),
    ],
    "prefixes": [
        ("x=5", "5"), ("5", "x=5"), ("x = 1,234", "1234"), ("f(x)=2x+1", "2x+1"), ("10 - 3 = 7", "7"), ("y_{1}=3", "3"),
        (r"x \in (1,2)", "(1,2)"), (r"x \approx 3.5", "3.5"), (r"x = \frac13 \approx 0.33", "1/3"),
        ("x = 5+5+1 = 11", "x = 11"),
    ],
    "radicals and functions": [
        (r"3\sqrt{2}", r"\sqrt{18}"), ("\u221a2", r"\sqrt2"), ("2\u221a3", r"2\sqrt{3}"), ("sqrt(2)", r"\sqrt{2}"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"), ("2\u03c0", r"2\pi"), ("2 pi", r"2\pi"), (r"\log_2 8", "3"),
        (r"\frac{\pi}{2}", "pi/2"), (r"\sqrt[3]{8}", "2"), ("5!", "120"), (r"\binom{5}{2}", "10"), ("|-7|", "7"),
        ("1.414214", r"\sqrt{2}"), (r"\infty", "infinity"), (r"-\infty", "-\u221e"), (r"\sin^2 x+\cos^2 x", "1"),
    ],
    "sums and integrals": [
        (r"\sum_{i=1}^{10} i", "55"), (r"\prod_{k=1}^{3} k", "6"), (r"\int_0^1 x dx", "1/2"), (r"{5 \choose 2}", "10"),
        (r"S = \sum_{k=1}^{10} k", "55"), ("10^{400}", "1e400"),
    ],
    "algebra": [
        ("(x+1)^2", "x^2+2x+1"), ("2(x+1)", "2x+2"), (r"\frac{x}{2}", "0.5x"), ("x\u00b2+1", "x^2+1"),
        ("x^2(x+1)", "x^3+x^2"),
    ],
    "complex": [
        ("3+4i", "4i+3"), ("(1+i)^2", "2i"), ("i^2", "-1"), (r"\frac{1}{i}", "-i"), (r"e^{i\pi}", "-1"),
    ],
    "sets and lists": [
        (r"\{1,2\}", r"\{2,1\}"), (r"\{1,1,2\}", r"\{1,2\}"), ("1, 2", "2, 1"), ("1 and 2", "1, 2"), (r"\{7\}", "7"),
        ("5 or -5", r"\pm 5"), ("12 $ and $13", "12, 13"), (r"\pm 5", "5,-5"),
        (r"x=5 \text{ or } x=-5", r"\pm5"), (r"\{\pm 1\}", r"\{-1,1\}"),
        (r"2\pm\sqrt{3}", r"2-\sqrt3, 2+\sqrt3"), (r"1\pm 2i", "1+2i, 1-2i"), (r"\emptyset", r"\{\}"),
        ("(1,2),(3,4)", "(3,4), (1,2)"), ("1/2, 1/3", "0.333333 and 0.5"), ("-2,1", r"\{1,-2\}"),
    ],
    "tuples and intervals": [
        ("(1,2)", "(1.0, 2)"), (r"\left(\frac12, 3\right)", "(0.5,3)"), ("[1,2)", r"\left[1,2\right)"),
        ("x=1, y=2", "(1,2)"), (r"(-\infty, 3]", r"(-\infty,3]"), ("[1,2,3]", "(1,2,3)"),
        ("{1,2}", "(1,2)"), ("(1,2)", "1<x<2"),
        (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty) \cup (-\infty,1)"), (r"\langle 1,2,3\rangle", "(1,2,3)"),
    ],
    "relations": [
        ("x<3", "x < 3"), ("3>x", "x<3"), (r"x \le 3", r"x\leq 3"), ("1<x<2", "1 < x < 2"), ("x\u22652", r"x \geq 2"),
        ("2x+3y=6", "6=2x+3y"), ("y=2x+1", "2x-y+1=0"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1 & 2\\ 3 & 4\end{bmatrix}"),
        (r"\begin{pmatrix}0.5\\1\end{pmatrix}", r"\begin{pmatrix}\frac12\\1\end{pmatrix}"),
        (r"\left[\begin{array}{cc}1 & 2 \\3 & 4\end{array}\right]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", "-2"),
    ],
}  # fmt: skip

DIFFERENT = {
    "numbers": [
        ("7", "8"), ("-7", "7"), ("0.33", "1/3"), ("0.3333", "1/3"), ("12.34", "1234"), ("1.234", "1,234"),
        ("1000000.5", "1000000"), ("1/0", "0"), ("1/0", r"\infty"), ("1 6", "7"), ("(3)(4)", "7"), ("1011_2", "1011_3"),
        ("2" * 31, "2" * 30 + "3"), ("2" * 31 + ".0", "2" * 30 + "3"), ("1.41", r"\sqrt{2}"), ("22/7", r"\pi"),
        ("1/3", "333333/1000000"), ("3:00", "3:30"), ("3 thousand", "3"), ("", "0"),
    ],
    "values close to each other": [
        (r"1-\left(\frac{3}{4}\right)^{300}", r"1-\left(\frac34\right)^{301}"),
        (r"\frac{3^{90}-1}{3^{90}}", r"\frac{3^{90}-2}{3^{90}}"),
        (r"e+10^{-20}", "e"), (r"\sqrt2+2^{-200}", r"\sqrt2"), ("3^{500}+1", "3^{500}"), ("5^{5^9}+1", "5^{5^9}"),
        ("500000!+1", "500000!"), ("499999!", "500000!"), ("x^{2024}+1", "x^{2024}+2"), ("(10^{10})!", "7"),
        (r"\max(x, 9)", "9"), (r"|x-50|+x", "50"),
    ],
    "letters that are units or variables": [
        (r"\frac{1}{3}\pi r^2", r"\frac13\pi r^2 h"), (r"\frac{a+c}{2}", r"\frac{a+c}{2} h"), ("6", "6 s^2"),
        ("x^2+3", "x^2 + 3 s"),
        (r"\frac{\sqrt3}{2}", r"\frac{\sqrt3}{2} s^2"), ("t=4", "t = 4 g"), ("5 g", "5 m"), (r"5\text{ g}", "5 m"),
        ("10s", "10"),
    ],
    "units in other scripts": [
        ("3\u4e07", "3"), ("12\u5143", "13"), ("3\u5c0f\u65f6", "3\u5206\u949f"),
        ("5 \u0442\u044b\u0441\u044f\u0447", "5"), ("3\u03c0", "3"),
    ],
    "a capital letter that is no choice": [
        ("R / 2", "R"), ("N - 1", "N"), ("V h", "V"), ("R^2", "R"), ("2R", "R"), ("T = 5", "T"), ("M over N", "M"),
        ("(R) / 2", "R"),
        ("A) or B)", "A"), ("C because I say so", "I"), ("B is not it", "B"), ("C and others", "C"), ("M'", "M"),
        ("P(A)", "P"), ("B, C", "B"),
    ],
    "percent": [("0.5%", "50"), ("50%", "5"), ("50%", "0.05")],
    "units": [
        ("5 cm", "5 m"), ("18 cents", r"\$18"), ("60 mph", "60 km/h"), ("25 m^2", "25 m^3"),
        ("90 degrees", "90 radians"), ("2c", "2"), ("2", "2c"), ("5m", "5"), ("10t", "10"),
        (r"90^\circ", r"\frac{\pi}{2}"),
    ],
    "words and choices": [("A", "B"), ("AB", "A"), ("A, B", "A"), ("(A) or (B)", "A"), ("live", "evil"), ("4", "five")],
    "order and brackets": [
        ("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"), ("[1,2)", "(1,2]"), ("[1,2]", "[1,2)"), ("(1,2)", r"\{1,2\}"),
        (r"\{1,2\}", "(1,2)"), ("2, 1", "(1,2)"), ("(1,2,3)", "(1,3,2)"),
    ],
    "members": [
        (r"\{1,2\}", r"\{1,2,3\}"), ("1,2,3", "1,2"), ("1,1,2", "1,2"), ("7", "7 or 8"), ("7", r"\pm 7"),
        ("5", r"\{5,6\}"), ("2+\u221a3", r"2\pm\sqrt3"), ("(1,000)", "1000"),
    ],
    "expressions": [
        ("x+1", "x+2"), ("x", "y"), ("7x", "7"), ("i", "-i"), ("3+4i", "4+3i"), ("sin x", "cos x"), ("2x", "x^2"),
        (r"\frac{1}{2}", r"\frac{2}{1}"), (r"-\infty", r"\infty"), (r"\mathbb{R}", r"(0,\infty)"),
    ],
    "relations": [
        ("x<4", "x<3"), (r"x\le 3", "x<3"), ("x>3", "x<3"), ("1<x<2", "1<x<3"), ("y=2x+1", "y=2x+2"), ("x=5", "y=5"),
        ("2x+3y=6", "2x+3y=7"), ("x=x+1", "x^2+1=0"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"),
    ],
}  # fmt: skip


def rows_of(table):
    return [pytest.param(*pair, id=f"{group}:{pair[0]}~{pair[1]}") for group, pairs in table.items() for pair in pairs]


@pytest.mark.parametrize(("answer", "reference"), rows_of(SAME))
def test_one_answer_in_two_spellings_is_one_answer(answer, reference):
    assert mathematics.is_equivalent(answer, reference)
    assert mathematics.judge(rf"so \boxed{{{answer}}}.", reference).passed


@pytest.mark.parametrize(("answer", "reference"), rows_of(DIFFERENT))
def test_what_only_looks_alike_differs(answer, reference):
    assert not mathematics.is_equivalent(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference", "same"),
    [
        ("0.333333", "1/3", True),  # off by one part in a million
        ("0.333332", "1/3", False),
        ("3.141593", "3.1415926536", True),  # above 1, by one in the sixth decimal
        ("3.141591", "3.1415926536", False),
        ("1000000.000001", "1000000", True),
        ("1000000.0000011", "1000000", False),
        ("0.033333", "1/30", False),  # equal to six decimals, and not to one part in a million
        ("0.03333333", "1/30", True),
        ("0.0000001", "0", False),
        ("0", "0.0000001", False),
        ("1.414214", r"\sqrt{2}", True),
        ("1.41421", r"\sqrt{2}", False),
        ("1.000000001e-12", "1e-12", True),
        ("333333/1000000", "1/3", False),  # fractions are exact: no decimal is involved
        ("1000001", "1000000.0", False),
    ],
)
def test_decimals_are_equal_within_the_tolerance_and_not_beyond(answer, reference, same):
    assert mathematics.is_equivalent(answer, reference) == same


@pytest.mark.parametrize("reference", ["50", "0.5", "50%", r"50\%", "1/2", "50 percent"])
def test_a_percent_sign_may_be_left_out_or_be_meant_as_in_math_and_math_verify(reference):
    assert mathematics.is_equivalent("50%", reference)
    assert not mathematics.is_equivalent("51%", reference)


def test_an_unsigned_hundredfold_is_another_number():
    assert not mathematics.is_equivalent("50", "0.5")


FRACTIONS = st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**4)


def spellings(value):
    """A fraction in every form that is exact."""
    sign, top, bottom = "-" if value < 0 else "", abs(value.numerator), value.denominator
    whole, rest = divmod(top, bottom)
    forms = [f"{sign}{top}/{bottom}", rf"{sign}\frac{{{top}}}{{{bottom}}}", rf"\dfrac{{{sign}{top}}}{{{bottom}}}"]
    forms += [
        f"x = {sign}{top}/{bottom}",
        f"${sign}{3 * top}/{3 * bottom}$",
        rf"{sign}\frac{{{top}}}{{{bottom}}} \text{{ cm}}",
    ]
    if whole and rest:
        forms += [f"{sign}{whole} {rest}/{bottom}", rf"{sign}{whole}\frac{{{rest}}}{{{bottom}}}"]
    if bottom == 1:
        forms += [f"{sign}{top}", f"{sign}{top:,}", f"{sign}{top}.00", f"{sign}{top}e0"]
    return forms


@pytest.mark.long
@settings(max_examples=examples(150), deadline=None)
@given(FRACTIONS, FRACTIONS)
def test_forms_of_rational_numbers_agree_with_fractions(left, right):
    for ours in spellings(left):
        for theirs in spellings(right):
            assert mathematics.is_equivalent(ours, theirs) == (left == right), (ours, theirs)
        assert mathematics.is_equivalent(ours, spellings(left)[0])


@settings(max_examples=examples(300), deadline=None)
@given(st.decimals(-(10**6), 10**6, places=8), st.decimals(-(10**-5), 10**-5, places=9))
def test_decimals_agree_with_fractions_and_the_stated_tolerance(number, shift):
    answer, reference = Fraction(number) + Fraction(shift), Fraction(number)
    expected = abs(answer - reference) <= TOLERANCE * min(1, max(abs(answer), abs(reference)))
    assert mathematics.is_equivalent(f"{number + shift:.9f}", f"{number:.9f}") == expected


PIECES = st.sampled_from(
    [
        "\\boxed{", "\\frac", "\\sqrt", "\\text{", "{", "}", "(", ")", "[", "]", "\\{", "\\}", "$", "\\", "^", "_", "=",
        "<", ",", ";", " or ", " and ", "\\pm ", "%", " cm", " km/h", "x", "i", "pi", "7", "1,234", "0.5", "1/2",
        "\\cup ", "\\infty ", "\u00bd", "\u221a", "\u00b2", "\u22127", "\x00", "\ud800", "\u202e", "A", "Tuesday",
        "\\in ",
        "'", "!", "\\mathrm{m}", "{~m}", " m/s", "\\mu m", "abs(", "np.", "\\frac\\pi", "]1,", "\\{x|", "\\mathbb{Z}",
        " apples", " hundredths", "seven ", "C_5^2", " for all ", "k is an integer", "...", "`", "^{\\prime}", "E_{1}",
    ]
)  # fmt: skip
ANSWERS = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)

CHEAP = ANSWERS.filter(lambda text: "!" not in text and text.count("^") + text.count("\u00b2") < 2)


@pytest.mark.long
@settings(max_examples=examples(400), deadline=None)
@given(ANSWERS)
def test_no_text_breaks_the_normaliser_and_its_parts(text):
    tidied = tidy(text)
    assert tidied == tidied.strip()
    parse_plain_number(tidied)
    split_unit(tidied)
    split_noun(tidied)
    match_notation(convert_to_symbols(tidied), "x > 5")
    assert all(isinstance(member, str) for member in parse_shape(tidied).members)


@pytest.mark.long
@settings(max_examples=examples(150), deadline=None)
@given(CHEAP, CHEAP)
def test_no_two_texts_break_the_comparison(answer, reference):
    assert mathematics.is_equivalent(answer, reference) in (True, False)


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None)
@given(ANSWERS.map(lambda text: rf"so \boxed{{{text}}}") | ANSWERS.map(lambda text: f"the answer is {text}"))
def test_an_extracted_answer_equals_itself(response):
    answer = mathematics.extract_answer(response)
    if answer is not None and tidy(answer.text):
        assert mathematics.is_equivalent(answer.text, answer.text)
