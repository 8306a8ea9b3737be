r"""`math`: responses that state their answer without a form that marks it, in several boxes, or beside words of digits.

Each row is a response, a reference and whether the response earns the reward.
"""

import pytest

from tasks.verifiers import mathematics

RESPONSES = {
    "bare LaTeX": [
        (r"\frac{10}{9}", r"\frac{10}{9}", True), (r"\frac{10}{9}", "9", False), (r"\frac{10}{9}", "10", False),
        (r"The answer is \frac{10}{9}.", "10/9", True), ("Adding up, we are done.\n\\frac{10}{9}", "10/9", True),
        (r"The answer is \frac{10}{9} cm.", "10/9", True), (r"So we get \frac{10}{9} as the total.", "10/9", True),
        (r"We get x = \frac{10}{9}", "10/9", True), (r"**\frac{10}{9}**", "10/9", True), (r"\pi", r"\pi", True),
        (r"The area is 4\pi.", r"4\pi", True), (r"The area is 4\pi.", "4", False),
        (r"It is 3\sqrt{2} cm long.", r"\sqrt{18}", True),
        (r"The value is \sqrt{2}, after 3 steps", r"\sqrt{2}", False), (r"\frac{10}{9} of 3 is 5", "5", True),
        (r"\frac{10}{9} of 3 is 5", "10/9", False), ("Hence f(x) = x^2+1.", "x^2+1", True),
        ("Hence f(x) = x^2.", "2", False), ("So the count is 2^{10}", "1024", True),
        ("So the count is 2^10.", "10", False), ("x^2 + 2x + 1", "(x+1)^2", True),
        (r"The answer is \begin{pmatrix} 1 \\ 2 \end{pmatrix}.", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
        (r"The answer is \left(1, \frac{1}{2}\right)", "(1,0.5)", True),
        (r"The answer is \text{Evelyn}.", "Evelyn", True), (r"The answer is \frac{1}{2} or \frac{1}{3}.", "1/2", False),
        ("First \\frac{1}{2}.\n\nThen it is \\frac{10}{9}.", "10/9", True),
        ("First \\frac{1}{2}.\n\nThen it is \\frac{10}{9}.", "1/2", False),
        (r"\frac{10}{9}" + "\n\nI hope this helps!", "10/9", True), (r"The answer is x = \frac{10}{9}", "10/9", True),
        (r"Answer: \dfrac{10}{9}", "10/9", True), ("\\frac{10}{9}\n", "10/9", True),
        (r"x \in [1, \frac{3}{2}]", "[1,1.5]", True), (r"The final answer is 11,\! 111.", "11111", True),
        (r"It makes 11,\!111", "11111", True), (r"x = 5\%", "5%", True), (r"60^\circ", "60", True),
        (r"The angle is 60^\circ.", "60", True), (r"\frac{10}{", "10", False), ("I paid \\$5", "5", True),
    ],
    "several boxes": [
        (r"So $x = \boxed{1}$ and $x=\boxed{-3}$", "1, -3", True),
        (r"So $x = \boxed{1}$ and $x=\boxed{-3}$.", r"\{1,-3\}", True),
        (r"So $x = \boxed{1}$ and $x=\boxed{-3}$", "-3", False), (r"So $x = \boxed{1}$ and $x=\boxed{-3}$", "1", False),
        (r"\boxed{2} and \boxed{5}", "2,5", True), (r"\boxed{2} and \boxed{5}", "5,2", True),
        (r"\boxed{2}, \boxed{5}", "2,5", True), (r"\boxed{2} \text{ and } \boxed{5}", "2,5", True),
        (r"$\boxed{2}$ or $\boxed{5}$", "2 or 5", True), (r"\boxed{2}, \boxed{3}, and \boxed{5}", "2,3,5", True),
        (r"\boxed{2}, \boxed{3}, and \boxed{5}", "3,5", False), (r"\boxed{2}, \boxed{3}, and \boxed{5}", "5", False),
        (r"\boxed{2} or \boxed{5}", "5", False), (r"A draft is \boxed{2}. It is \boxed{5}", "5", True),
        (r"A draft is \boxed{2}. It is \boxed{5}", "2,5", False),
        (r"\boxed{2}" + "\n\n" + r"and \boxed{5}", "2,5", False), (r"\boxed{2}" + "\n\n" + r"and \boxed{5}", "5", True),
        (r"first \boxed{2}, then \boxed{5}", "2,5", False), (r"first \boxed{2}, then \boxed{5}", "5", True),
        (r"\boxed{2} \boxed{5}", "2", False), (r"\boxed{2}, \boxed{2}", "2", True),
        (r"It is \boxed{2}, that is, \boxed{2}.", "2", True), (r"$x=\boxed{1}$, $y=\boxed{2}$", "(1,2)", True),
        (r"$y=\boxed{2}$, $x=\boxed{1}$", "(1,2)", True), (r"$y=\boxed{1}$, $x=\boxed{2}$", "(1,2)", False),
        (r"\[x=\boxed{1}\] and \[x=\boxed{2}\]", "1,2", True), (r"\(\boxed{1}\) and \(\boxed{2}\)", "1,2", True),
        (r"\boxed{1}, \boxed{2}, \boxed{3}, \boxed{4}, \boxed{5}", "3", False),
        (r"\boxed{1}. \boxed{2}. \boxed{3}.", "2", False), (r"\boxed{(1,2)} and \boxed{(2,1)}", "(1,2),(2,1)", True),
        (r"\boxed{\boxed{5}}", "5", True), (r"\boxed{A} and \boxed{C}", "A, C", True),
        (r"\boxed{A} and \boxed{C}", "C", False), (r"$\boxed{7}$ and not $\boxed{8}$", "7,8", False),
        (r"\boxed{x=1} and \boxed{x=-3}", "1,-3", True), (r"$2 + \boxed{3}$", "3", True),
        (r"\boxed{3} + \boxed{4}", "3,4", False), (r"\boxed{2}; \boxed{5}", "2,5", True),
        (r"\boxed 2 and \boxed 5", "2,5", True), (r"$a_1 = \boxed{2}$, $a_2 = \boxed{5}$", "2,5", True),
        (r"\boxed{2}, \boxed{}", "2", True), ("$x = \\boxed{2},$\n$x = \\boxed{5}$", "2,5", True),
    ],
    "digits of words": [
        ("It is water, H2O", "2", False), ("We use x2y here", "2", False), ("I ran it in Python3", "3", False),
        ("See step2", "2", False), ("He came in 2nd", "2", False), ("The answer is H2O.", "2", False),
        ("There are 7 in a 2-digit number", "7", True), ("There are 7 in a 2-digit number", "2", False),
        ("The total is 12cm", "12", True), ("The total is 12 cm", "12", True), ("There are 5 of H2O", "5", True),
        ("It is v1.5", "5", False), ("It is v1.5", "1.5", False), ("so a_2", "2", False),
        ("The answer is step2.", "2", False), ("#### H2O", "2", False), ("<answer>H2O</answer>", "2", False),
        ("He lives on 42nd", "42", False), ("It is a 3D model of 8", "8", True), ("It has 8 in 3D", "3", False),
        ("It takes 3 s", "3", True), ("It takes 30s", "30", True), ("at 3:30 PM", "3:30", True),
        ("at 3:30 PM", "30", False), ("at 3pm", "3", True), ("The ratio is 2:3.", "2:3", True),
        ("The ratio is 2:3.", "3", False), ("so 1.5e3", "1500", True), ("Total: 5", "5", True), ("n=5", "5", True),
        ("so it is 7x", "7", False), ("(5)", "5", True), ("#5", "5", True), ("$5", "5", True), ("5!", "5", True),
        ("so 3/4", "3/4", True), ("1,234", "1234", True), ("The answer is 7th.", "7", False), ("MP3", "3", False),
        ("COVID-19", "19", True),
    ],
    "one statement among others": [
        (r"Let me see. \boxed{3}, \boxed{4} or \boxed{5}? I say \boxed{4}.", "4", True),
        (r"Options: \boxed{3}, \boxed{4}, \boxed{5}", "4", False),
        (r"Options: \boxed{3}, \boxed{4}, \boxed{5}", "3,4,5", True), (r"\boxed{3},\boxed{4}", "34", False),
        (r"\boxed{1}, \boxed{000}", "1000", False), (r"\boxed{1},\boxed{234}", "1234", False),
        (r"\boxed{12}, \boxed{345}", "12345", False), (r"\boxed{\frac{1}{2}} or \boxed{0.5}", "1/2", False),
        (r"$\boxed{2}$ and $\boxed{3}$ are the roots.", "2,3", True),
        (r"The roots are \boxed{2} and \boxed{3}. So the sum is \boxed{5}.", "5", True),
        (r"The roots are \boxed{2} and \boxed{3}. So the sum is \boxed{5}.", "2,3", False),
        (r"**\boxed{2}** and **\boxed{3}**", "2,3", True), (r"\boxed{2}\text{ and }\boxed{3}", "2,3", True),
        (r"\boxed{2},\quad\boxed{3}", "2,3", True), (r"\boxed{x = 2} \quad \text{or} \quad \boxed{x = 3}", "2,3", True),
        (r"$(\boxed{2}, \boxed{3})$", "(2,3)", True), (r"$(\boxed{3}, \boxed{2})$", "(2,3)", False),
        ("The answer is 5.\n\nThe answer is 6?", "5", False), ("Answer: 5 or 6", "5", False),
        ("The answer is either 5 or 6", "5", False), ("The answer is between 5 and 6", "5", False),
        ("The answer is not 5.", "5", False), ("The answer is 5, not 6.", "5", True),
        ("The answer is 5 and 6.", "5", False), (r"The answer is \frac{1}{2} and \frac{1}{3}.", r"\frac12", False),
        ("The answer is x^2.", "x^2", True), ("The answer is 2x + 3y.", "2x+3y", True),
        ("The answer is 2x + 3.", "2", False), ("The answer is (1, 2).", "(1,2)", True),
        (r"The answer is [0, \infty).", r"[0,\infty)", True), (r"The answer is \{1, 2\}.", r"\{1,2\}", True),
        ("The answer is $5$ or $6$.", "5", False), (r"The answer is 5\%.", "5%", True),
        (r"The answer is \$5.", "5", True), ("The answer is 3:30 PM.", "3:30 PM", True),
        ("The answer is 3:30.", "3:30", True), ("The answer is 1:00.", "12:00", False), ("The answer is B.", "B", True),
        ("The answer is (B).", "B", True), ("The answer is B) 5", "B", True), (r"The answer is \text{(B)}", "B", True),
        ("The answer is A or B.", "A", False), ("so it is 2nd of 3rd", "3", False), ("It is at 10:15", "10:15", True),
        ("costs $1,234.50", "1234.5", True), ("The total: 5.", "5", True), ("It's 5.", "5", True), ("=5", "5", True),
        ("x=5.", "5", True), ("5.", "5", True), ("-5", "-5", True), ("it is -5", "5", False), ("(-5)", "-5", True),
        ("about 5-6", "6", True), ("Thus n = 5^2 = 25", "25", True), ("Thus n = 5^2 = 25.", "5", False),
        ("2^3 apples", "8", True), ("a^2+b^2=c^2 so c=5", "5", True), ("By x_1=3 we have 7", "7", True),
        (r"by \alpha = 3", "3", True), (r"Hence \frac{1}{2}+\frac{1}{3}=\frac{5}{6}.", "5/6", True),
        (r"It is \frac{5}{6}, which is 0.8333.", "5/6", False), (r"It is \frac{5}{6} (in lowest terms).", "5/6", True),
        (r"\dfrac{5}{6}", "5/6", True), (r"$\frac{5}{6}", "5/6", True), (r"\boxed{\frac{5}{6}", "5/6", False),
        (r"\sqrt{2}", "2", False), (r"answer: \sqrt{2}", r"\sqrt2", True), (r"so, \sqrt{2}", r"\sqrt2", True),
        (r"Therefore, x=\sqrt{2}.", r"\sqrt2", True), (r"Therefore \sqrt{2} cm^2", r"\sqrt2", True),
        ("C_6H_{12}", "12", False), ("mod 7", "7", True), ("(mod 7)", "7", True), (r"#### \frac{1}{2}", "1/2", True),
        (r"#### 11,\!111", "11111", True), (r"<answer>\frac{1}{2}</answer>", "1/2", True),
        (r"<answer>It is \frac{1}{2} cm</answer>", "1/2", True), ("<answer>1 or 2</answer>", "1", False),
        ("<answer>H2O</answer>", "H2O", True), ("step 1: 5\nstep 2: 6", "6", True), ("A: 5", "5", True),
        ("I have 5 cats and 2 dogs", "2", True), ("5 > 3", "5", False), ("so 5km", "5", True),
    ],
}  # fmt: skip


def rows_of(table):
    return [pytest.param(*row, id=f"{group}:{row[0]}~{row[1]}") for group, rows in table.items() for row in rows]


@pytest.mark.parametrize(("response", "reference", "passes"), rows_of(RESPONSES))
def test_a_response_passes_only_if_what_it_states_last_is_the_reference(response, reference, passes):
    assert mathematics.judge(response, reference).passed == passes


@pytest.mark.parametrize(
    ("response", "answer", "passes"),
    [("It is 5 of H2O", "5", True), ("H2O", "2", False), ("the 2nd", "2", False), ("#### 12cm", "12", True)],
)
def test_mode_gsm8k_takes_no_digit_of_a_word(response, answer, passes):
    assert mathematics.judge(response, {"answer": answer, "mode": "gsm8k"}).passed == passes
