"""`math`: sentences that choose an option, and letters that choose none.

Each row is a response, a reference and whether the response earns the reward.
"""

import pytest

from tasks.verifiers import mathematics

RESPONSES = {
    "sentences that choose": [
        ("The correct option is D.", "D", True), ("The correct choice is (B).", "B", True),
        ("The right option is: **B**", "B", True), ("Hence option C is correct.", "C", True),
        ("So the sum is 12, thus (D) is the correct answer.", "D", True),
        ("Option **C** is correct, because it is cold.", "C", True), ("We choose option B.", "B", True),
        (r"The correct option is \(C\).", "C", True), ("The correct option is C) 12 cm.", "C", True),
        (r"\boxed{12} is the sum. Hence option C is correct.", "C", True),
        ("Option A is correct. No, B is right.", "B", True), ("The correct option is not C.", "C", False),
        ("Therefore the correct answer choice is B.", "B", True), ("Thus, the answer must be (D).", "D", True),
        ("I would choose C.", "C", True), ("Only option A is correct.", "A", True),
        ("We choose A. The sum is 5.", "5", True), ("The answer must be (D).", "A", False),
        ("Hence option C is incorrect.", "C", False), ("Hence option C is not correct.", "C", False),
        ("If option C is correct, D is wrong.", "C", False), ("Option C is correct? No.", "C", False),
        ("Options A and C are correct.", "C", False), ("Option A is correct. No, B is right.", "A", False),
    ],
    "marks around a letter": [
        ("ANSWER: `D`", "D", True), ('Answer: "D"', "D", True), ("It is cold.\n\n`D`", "D", True),
        ("ANSWER: `D`", "A", False), (r"\boxed{`D`}", "D", True),
    ],
    "several letters": [
        ("ANSWER: ACD", "A,C,D", True), (r"\boxed{A, C}", "AC", True), (r"\boxed{A \text{ and } C}", "AC", True),
        ("Answer: (A), (C)", "AC", True), (r"\boxed{C, A}", "AC", True), (r"\boxed{AC}", "A,C,D", False),
        (r"\boxed{A, B, C}", "AC", False), (r"\boxed{A \text{ or } C}", "AC", False), (r"\boxed{CA}", "A,C", False),
        (r"\boxed{A}", "AC", False), (r"\boxed{X, Y}", "XY", False),
    ],
    "a letter that begins a sentence, or that is denied": [
        ("ANSWER: I don't know", "I", False), ("Answer: I cannot determine this", "I", False),
        ("Answer: I, as a model, cannot say.", "I", False), (r"\boxed{A \text{ triangle}}", "A", False),
        ("Answer: A slow reaction", "A", False), ("Answer: B is incorrect", "B", False),
        ("Answer: B isn't right", "B", False), ("Answer: (B) is wrong", "B", False),
        ("Answer: B - incorrect", "B", False), ("Answer: option B was ruled out", "B", False),
        ("Answer: B, which is cold", "B", True), ("Answer: C because it grows", "C", True),
        ("Answer: A is correct", "A", True), ("Answer: B) incorrect", "B", True),
        ("Answer: C is the right option", "C", True), ("Answer: I", "I", True),
    ],
    "arrows and other signs before an answer": [
        ("Final answer \u2192 **81**", "81", True), ("Final answer -> 81", "81", True),
        (r"Final answer $\rightarrow 81$", "81", True), ("**Final answer** => 81", "81", True),
        ("Final answer = 81", "81", True), ("Final answer \u2192 -5", "5", False),
        ("Final answer \u2192 **81**", "18", False),
    ],
}  # fmt: skip


def rows_of(table):
    return [pytest.param(*row, id=f"{group}:{row[0]}~{row[1]}") for group, rows in table.items() for row in rows]


@pytest.mark.parametrize(("response", "reference", "passes"), rows_of(RESPONSES))
def test_a_response_chooses_what_it_says_is_right(response, reference, passes):
    assert mathematics.judge(response, reference).passed == passes
