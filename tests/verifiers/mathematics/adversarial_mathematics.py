r"""Responses that must earn nothing from `math`, whatever they cost or claim.

To add one, append a row. `test_mathematics_adversarial.py` judges each of `COSTLY` in a process with limits: it must
end as 0 or by a limit, and the others as 0, with a reason and without an error.
"""

from __future__ import annotations

from typing import NamedTuple

REFERENCE = "7"


class Adversarial(NamedTuple):
    """A response that is wrong, hostile or both, and why it might have been taken for right or broken the judge."""

    id: str
    response: str
    ground_truth: object
    why: str


def _boxed(id_: str, inside: str, why: str, ground_truth: object = REFERENCE) -> Adversarial:
    return Adversarial(id_, rf"so it is \boxed{{{inside}}}", ground_truth, why)


def _grid(kind: str, cells: list[list[str]]) -> str:
    return rf"\begin{{{kind}}}" + r"\\".join("&".join(row) for row in cells) + rf"\end{{{kind}}}"


_DEEP = 20_000

COSTLY = [
    _boxed("tower", "10^{10^{10}}", "Python would write out ten thousand million digits"),
    _boxed("tower-of-nines", "9^{9^{9^{9^{9}}}}", "the exponent alone does not fit into memory"),
    _boxed("left-tower", "((((9^9)^9)^9)^9)^{99}", "grows as fast from the left"),
    _boxed("negative-tower", "2^{-10^{10^{10}}}", "small values cost as much as large ones"),
    _boxed("huge-power", "2^{20000000000}", "2.5 GB of one integer"),
    _boxed("fraction-of-powers", r"\frac{3^{10^{9}}}{7^{10^{9}}}", "two huge integers and their common divisor"),
    _boxed("factorial", "100000000!", "a factorial of 750 million digits"),
    _boxed("double-factorial", "10000000!!", "the grammar reads a factorial of a factorial"),
    _boxed("binomial", r"\binom{10^{12}}{10^{11}}", "two factorials and a quotient"),
    _boxed("integral", r"\int_0^1 e^{\sin(x^{x^x})} \cos(e^{x^7}) dx", "no closed form; numerics do not converge soon"),
    _boxed("nested-integrals", r"\int_0^1" * 12 + " x" + " dx" * 12, "twelve integrals inside each other"),
    _boxed("sum", r"\sum_{n=1}^{10^{12}} \frac{1}{n^2+n!}", "a million million terms"),
    _boxed("infinite-sum", r"\sum_{n=1}^{\infty} \frac{\sin(n!)}{n^n}", "an infinite sum without closed form"),
    _boxed("product", r"\prod_{n=1}^{10^{9}} (1+\frac{1}{n!})", "a thousand million factors"),
    _boxed(
        "derivative", r"\frac{d}{dx} " * 40 + r"e^{\sin(\cos(x^{x}))}", "forty derivatives, each longer than the last"
    ),
    _boxed("limit", r"\lim_{x \to 0} \frac{\sin(\tan(x^{99}))-\tan(\sin(x^{99}))}{x^{693}}", "a series of 700 terms"),
    _boxed("expansion", r"(a+b+c+d+e+f+g)^{300} - 7", "an expansion of thousands of millions of terms", "x+y"),
    _boxed("simplify", "+".join(rf"\sqrt{{{n}+\sqrt{{x+{n}}}}}" for n in range(2, 90)), "nested radicals", "x+1"),
    _boxed(
        "trigonometry", r"\cdot ".join(rf"\sin({n}x+{n})" for n in range(1, 60)), "simplify tries every rewriting", "x"
    ),
    _boxed("equation-system", "+".join(f"x^{{{n}}}" for n in range(60)) + "=0", "roots of degree 59", "x^2=y"),
    _boxed("matrix", _grid("pmatrix", [["1"] * 100] * 100), "10^4 cells"),
    _boxed(
        "determinant",
        _grid("vmatrix", [[f"x_{r}^{c}" for c in range(9)] for r in range(9)]),
        "a symbolic determinant of 9 x 9",
    ),
    _boxed("long-sum", "+".join(["x"] * 5000), "five thousand terms"),
    _boxed("long-number", "9" * 15_000, "Python refuses to read integers of over 4,300 digits"),
    _boxed("long-decimal", "7." + "0" * 9_000 + "1", "nine thousand decimals that differ from 7"),
    _boxed("huge-exponent", "1e999999999", "a float's exponent of nine digits"),
    _boxed("huge-scientific", r"7 \times 10^{999999999}", "ten to a thousand million"),
    _boxed("tiny-scientific", r"7 \times 10^{-999999999}", "one over it", "0"),
    _boxed("gcd-bomb", r"\gcd(10^{10^{9}}, 7)", "a function of a number that cannot be written out"),
    _boxed("mod-bomb", r"10^{10^{10}} \bmod 9", "modular powers are cheap only for who knows it", "1"),
    Adversarial("megabyte", r"\boxed{" + r"\frac{1}{2}+" * 90_000 + "8}", REFERENCE, "1 MB of well-formed LaTeX"),
    Adversarial("megabyte-of-prose", "the answer is " * 70_000, REFERENCE, "70,000 phrases and no answer"),
]

DEEP = [
    _boxed("deep-braces", "{" * _DEEP + "7" + "}" * _DEEP, "recursion in the grammar"),
    _boxed("deep-parentheses", "(" * 4_000 + "7" + ")" * 4_000, "recursion in the grammar"),
    _boxed("deep-fractions", r"\frac{1}{" * 2_000 + "2" + "}" * 2_000, "recursion in the grammar and in SymPy"),
    _boxed("deep-roots", r"\sqrt{" * 2_000 + "49" + "}" * 2_000, "recursion in the grammar and in SymPy"),
    _boxed("deep-powers", "x^{" * 2_000 + "2" + "}" * 2_000, "recursion in the grammar and in SymPy"),
    _boxed("deep-sets", r"\{" * 2_000 + "7, 8" + r"\}" * 2_000, "recursion over members"),
    _boxed("deep-text", r"\text{" * 2_000 + "8" + "}" * 2_000, "recursion over commands"),
    _boxed("minus-flood", "-" * 3_999 + "7", "an odd number of signs", "7"),
    _boxed("factorial-flood", "8" + "!" * 3_000, "factorial of factorial of ..."),
    _boxed("continued-fraction", "1+" + r"\frac{1}{1+" * 55 + "2" + "}" * 55, "just under the depth that is read"),
]

FLOODS = [
    Adversarial("boxes", r"\boxed{" * 150_000, REFERENCE, "openings without an end"),
    Adversarial("boxes-closed", r"\boxed{" * 2_500 + "8" + "}" * 2_500, REFERENCE, "boxes in boxes in boxes"),
    Adversarial("dollars", "$" * 1_000_000, REFERENCE, "a million delimiters"),
    Adversarial("dollar-pairs", "$ $" * 300_000, REFERENCE, "formulas without content"),
    Adversarial("dollar-letters", "$a " * 300_000, REFERENCE, "formulas that end where the next begins"),
    Adversarial("brackets", r"\[" * 500_000, REFERENCE, "a quadratic search, if each opening looks for its end"),
    Adversarial("bracket-text", r"\[ x " * 200_000, REFERENCE, "the same with something between"),
    Adversarial("parens", r"\( x " * 200_000, REFERENCE, "the same with parentheses"),
    Adversarial("tags", "<answer>" * 100_000, REFERENCE, "a quadratic search for the closing tag"),
    Adversarial("closing-tags", "</answer>" * 100_000, REFERENCE, "ends without a beginning"),
    Adversarial("hashes", "#" * 1_000_000, REFERENCE, "separators without a number"),
    Adversarial("stars", "answer" + "*" * 1_000_000 + " 7 8", REFERENCE, "backtracking over markdown"),
    Adversarial("spaces", "answer is" + " " * 1_000_000, REFERENCE, "backtracking over white space"),
    Adversarial("lines", "answer is" + "\n" * 1_000_000, REFERENCE, "backtracking over lines"),
    Adversarial("commas", "1," * 500_000, REFERENCE, "separators of thousands that separate nothing"),
    Adversarial("thousands", "1" + ",111" * 200_000, REFERENCE, "a number of 600,000 digits"),
    Adversarial("slashes", "1/" * 500_000, REFERENCE, "a fraction of fractions"),
    Adversarial("words", r"\boxed{" + "a-' " * 900 + "1}", "Tuesday", "backtracking over words"),
    Adversarial("unit-words", r"\boxed{8" + " square" * 500 + "}", REFERENCE, "backtracking over units"),
    Adversarial("commands", r"\boxed{" + r"\text{a}" * 480 + "}", REFERENCE, "one pass per command would be quadratic"),
    Adversarial(
        "members", r"\boxed{" + ",".join(str(n) for n in range(900)) + "}", "1, 2", "hundreds of answers at once"
    ),
    Adversarial("backslashes", "\\" * 1_000_000, REFERENCE, "escapes of escapes"),
    Adversarial("nul", "\x00" * 1000 + r"\boxed{" + "\x00}", REFERENCE, "NUL bytes"),
    Adversarial("nul-inside", "\\boxed{8\x007}", REFERENCE, "a NUL byte that ends a C string"),
    Adversarial("surrogate", "\\boxed{\ud800}", REFERENCE, "half a character, which cannot be encoded"),
    Adversarial("bidi", "\\boxed{\u202e7\u202c1}", "71", "shows as another number than it is"),
    Adversarial("combining", "\\boxed{8" + "\u0301" * 3_000 + "}", REFERENCE, "three thousand accents on one digit"),
    Adversarial("zero-width", "\\boxed{\u200b}", REFERENCE, "an answer that nobody can see"),
]

CODE = [
    _boxed("import", "__import__('os').system('echo 7')", "SymPy's sympify evaluates strings"),
    _boxed("import-plain", "__import__(os).abort()", "the same without quotes"),
    _boxed("eval", r"\text{eval}(\text{exit}(7))", "built-ins by name"),
    _boxed("lambda", "(lambda: 7)()", "a function that returns the answer"),
    _boxed("walrus", "[x:=7, x]", "an assignment that has the answer's value"),
    _boxed("attribute", "Integer(7).__class__", "attributes of SymPy's objects"),
    _boxed("true", "True", "Python's True is 1", "1"),
    _boxed("format", "{0.__class__}%s%(7)", "format strings"),
    _boxed("write", r"\write18{echo 7}", "TeX's shell escape"),
    _boxed("input", r"\input{/etc/passwd}", "TeX's file reader"),
    Adversarial("tag-code", "<answer>print(8) or 7 if True else exit()</answer>", "8 or 7", "code between tags"),
]

HEDGES = [
    _boxed("variable", "x", "a free symbol may be anything"),
    _boxed("infinity", r"\infty", "larger than any answer"),
    _boxed("oo", "oo", "SymPy's own name of infinity"),
    _boxed("nan", "nan", "equal to nothing, itself included"),
    _boxed("zoo", "zoo", "SymPy's complex infinity"),
    _boxed("division-by-zero", r"\frac{7}{0}", "no number"),
    _boxed("zero-by-zero", r"\frac{0}{0}", "any number, some would say", "0"),
    _boxed("infinity-minus-infinity", r"\infty - \infty", "no number", "0"),
    _boxed("infinity-times", r"\infty \cdot 7", "differs from every number by infinity"),
    _boxed("infinity-hidden", r"\frac{7}{1 - 1}", "infinity by another name"),
    _boxed("infinity-for-root", r"\infty 7", "differs from every number by infinity", r"\sqrt{7}"),
    _boxed("infinity-for-variable", r"x + \infty", "differs from every expression by infinity", "x + 7"),
    _boxed("infinite-equation", r"x = \infty", "no solution, like the reference", "x^2 + 7 = 0"),
    _boxed("true-equation", r"7 = \sqrt{49}", "true, like nothing in the reference", "x^2 + 7 = 0"),
    _boxed("empty-set", r"\emptyset", "a part of every set"),
    _boxed("empty-braces", r"\{\}", "a part of every set", r"\{1, 2\}"),
    _boxed("reals", r"\mathbb{R}", "holds every answer"),
    _boxed("all-reals", r"(-\infty, \infty)", "holds every answer"),
    _boxed("integers", r"\mathbb{Z}", "holds the answer"),
    _boxed("interval", "[0, 10]", "holds the answer"),
    _boxed("point-and-more", "[7, 8]", "starts at the answer"),
    _boxed("wider-interval", "(0, 10)", "holds the interval that is asked for", "(1, 2)"),
    _boxed("set", r"\{1,2,3,4,5,6,7,8,9\}", "holds the answer"),
    _boxed("superset", r"\{1,2,3\}", "holds the set that is asked for", r"\{1,2\}"),
    _boxed("list", "7, 8, 9", "one of them is right"),
    _boxed("or", "7 or 8", "one of them is right"),
    _boxed("text-or", r"7 \text{ or } 8 \text{ or } 9", "one of them is right"),
    _boxed("logical-or", r"7 \lor 8", "one of them is right"),
    _boxed("union", r"7 \cup 8", "one of them is right"),
    _boxed("either-sign", r"\pm 7", "one of them is right"),
    _boxed("either-sign-sum", r"6 \pm 1", "5 and 7"),
    _boxed("list-of-accepted", "6, 7", "both references at once, where one must match", ["6", "7"]),
    _boxed("semicolons", "7; 8", "one of them is right"),
    _boxed("equations", "x = 7 or x = 8", "one of them is right"),
    _boxed("rows", r"7 \\ 8", "one of them is right"),
    _boxed("cells", "7 & 8", "one of them is right"),
    _boxed("row", r"\begin{pmatrix} 7 & 8 \end{pmatrix}", "holds the answer"),
    _boxed("cases", r"\begin{cases} 7 \\ 8 \end{cases}", "one of them is right"),
    _boxed("tuple", "(7, 7)", "the answer twice"),
    _boxed("multiset", "7, 7", "the answer twice"),
    _boxed("digits", "1 2 3 4 5 6 7", "every digit"),
    _boxed("digits-that-add-up", "1 2 4", "the grammar adds up what stands side by side"),
    _boxed("parentheses-that-add-up", "(3)(4)", "the grammar adds up what stands side by side"),
    _boxed("braces-that-add-up", "{3}{4}", "the grammar adds up what stands side by side"),
    _boxed("anything", "anything", "claims to be right"),
    _boxed("all", r"\text{all of the above}", "claims to be right"),
    _boxed("correct", r"\text{the correct answer}", "claims to be right"),
    _boxed("identity", "x = x", "true of every answer"),
    _boxed("identity-for-equation", "x = x", "true of every answer", "x = 7"),
    _boxed("identity-of-numbers", "7 = 7", "true, and not the equation that is asked for", "x = 7"),
    _boxed("true-relation", r"0 \le 1", "true, and not the relation that is asked for", r"x \le 7"),
    _boxed("any-relation", r"x \ge x", "true of every number", "x > 7"),
    _boxed("wider-relation", "x > 0", "follows from the relation that is asked for", "x > 7"),
    _boxed("not-equal", r"x \neq 8", "true of the answer"),
    _boxed("unsolvable", "x = x + 1", "no solutions, like the reference", "x^2 + 1 = 0"),
    _boxed("other-variable", "y = 7", "the value is right, the variable is not", "x = 7"),
    _boxed("maximum", r"\max(x, 7)", "7 for some x"),
    _boxed("choices", "(A), (B), (C) or (D)", "one of them is right", "A"),
    _boxed("choice-letters", "ABCD", "one of them is right", "A"),
    _boxed("choice-words", "A B C D", "one of them is right", "A"),
    _boxed("choice-hedge", "A is right but B may be", "one of them is right", "A"),
    _boxed("yes-no", "yes and no", "one of them is right", "yes"),
    _boxed("anagram", "evil", "letters multiply, in any order", "live"),
    _boxed("other-unit", "7 km", "the number is right, the unit is not", "7 m"),
    _boxed("variable-as-unit", "2", "2c is no two of anything", "2c"),
    _boxed("scale", "7 million", "the number in front is right"),
    _boxed("rounds-to-zero", "0.0000001", "rounded to six places it is 0", "0"),
    _boxed("rounds-to-tiny", "0", "rounded to six places it is 0", "0.0000001"),
    _boxed("chopped", r"\frac{e}{10^{20}}", "math-verify cuts off small differences", r"\frac{\pi}{10^{20}}"),
    _boxed("nearly", "7.00001", "right to four places"),
    _boxed("empty", "", "an empty box"),
    _boxed("blank", r"\ \quad \, ", "an empty box that does not look it"),
    _boxed("question-mark", "?", "no answer"),
    Adversarial("boxes-in-a-row", r"\boxed{7} \boxed{8}", REFERENCE, "the last one counts"),
    Adversarial("box-and-tag", r"<answer>7</answer> \boxed{8}", REFERENCE, "the box counts, not whichever is right"),
    Adversarial("tag-of-numbers", "<answer>1 2 3 4 5 6 7</answer>", REFERENCE, "every digit"),
    Adversarial("phrases", "The answer is 7. No: the answer is 8.", REFERENCE, "the last one counts"),
    Adversarial("phrase-or", "The answer is 7 or 8.", REFERENCE, "one of them is right"),
    Adversarial("formulas", "It is $7$, or it is $8$.", REFERENCE, "the last one counts"),
    Adversarial("numbers", "7 8 9", REFERENCE, "the last one counts"),
    Adversarial("thoughts", r"<think>\boxed{7}</think>", REFERENCE, "thoughts are not read"),
    Adversarial("open-thoughts", r"<think>\boxed{7}", REFERENCE, "thoughts are not read, ended or not"),
    Adversarial("reference-itself", "The reference is what you have. I agree with it.", REFERENCE, "an appeal"),
    Adversarial("gsm8k-list", "#### 7 8", {"answer": "7", "mode": "gsm8k"}, "the last one counts"),
    Adversarial("gsm8k-flood", "7 " * 300_000 + "8", {"answer": "7", "mode": "gsm8k"}, "a number among many"),
    Adversarial("gsm8k-sign", "#### -7", {"answer": "7", "mode": "gsm8k"}, "the sign counts"),
    Adversarial("exact-hedge", "<answer>a or b</answer>", {"answer": "a", "mode": "exact"}, "one of them is right"),
    Adversarial(
        "exact-articles", "<answer>the</answer>", {"answer": "a", "mode": "exact"}, "nothing, once articles go"
    ),
    Adversarial("exact-sign", "<answer>5</answer>", {"answer": "-5", "mode": "exact"}, "equal, once punctuation goes"),
]

TABLE = [*COSTLY, *DEEP, *FLOODS, *CODE, *HEDGES]
