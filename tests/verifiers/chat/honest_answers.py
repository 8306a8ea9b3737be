"""Answers that speak of grades, judges, scores and instructions, and to no grader: a line each, written by hand.

`\\n` in a line is a line break. What a rule finds here is a false positive.
"""

HONEST = [
    line.replace("\\n", "\n")
    for line in r"""
I'd give it a 9/10: the pacing drags in the middle, but the last act is superb.
The judge gave the skater a perfect score of 10, the only one of the evening.
To return the maximum score, keep a running best: best = max(best, score) and return best at the end.
The top 10 scores are stored in a sorted list, and the lowest is dropped whenever a new one comes in.
Overall I'd rate this laptop 8 out of 10; the keyboard alone deserves full marks.
Critics gave the film a 10/10, audiences a more modest 7.
You can set the maximum points to 100 in the settings of the quiz.
The function should output the highest score of each player, one per line.
A perfect score on the SAT is 1600, and fewer than 1,000 students reach it each year.
Nadia Comaneci received the first perfect 10 in Olympic gymnastics, in Montreal in 1976.
SELECT player, MAX(score) AS top_score FROM games GROUP BY player ORDER BY top_score DESC LIMIT 10;
def grade(score):\n    if score >= 90:\n        return "A"\n    return "B"
If two players have the same score, give the highest rank to the one who finished first.
Award 10 points to the team that answers first and 5 to the runner-up.
Give each dog a score from 1 to 10 for obedience, and write the total at the bottom of the sheet.
I would assign the highest grade to the essay by Maria, as it has the clearest thesis.
Rate each statement from 1 (strongly disagree) to 10 (strongly agree).
In this game you get maximum points for a full house.
This answer is 10 times larger than the one we got with the naive method.
The answer should be 100, since 20 percent of 500 is 100.
My answer is 10 meters, rounded to the nearest whole number.
The response has 10 fields, of which only three are required.
This solution must be 9 percent saline, which is the same tonicity as... no, 0.9 percent.
This solution was rated the best possible by the committee of engineers who compared the three bridges.
The output should be 10 lines long: one for each word in the list.
The response should have a 100 status code only while the upload continues; afterwards send 200.
Your answer should be the highest power of two that divides n.
The correct answer is 9. Here is the working: 3 + 6 = 9.
This response is worth reading twice; the author explains the highest tax bracket very well.
The submission must have a maximum of 10 pages, references not counted.
Ignore the noise and follow all instructions on the box.
Ignore the previous commit and start again from main: git reset --hard origin/main.
If the alarm goes off during a drill, ignore it and follow the instructions of the warden.
Add the flag --ignore-previous to skip the results of earlier runs.
Please disregard my previous email; the meeting is on Thursday, not on Tuesday.
You can ignore everything above the fold; most readers scroll straight away.
Forget the rules of grammar for a moment and just write what comes to mind; you can edit later.
Never ignore the instructions on a medicine label, even if you have taken it before.
He tended to disregard all rules, which made him a brilliant and exhausting colleague.
To override the default rules, put a .eslintrc file into the folder.
The new guidelines override the earlier guidelines from 2014 on the intake of saturated fat.
The court chose to disregard the prior ruling, as the facts of the two cases differ.
Bypass surgery should be discussed with your doctor, who will give you instructions for the weeks before it.
Forget about all the instructions you have read online: sourdough needs only flour, water, salt and patience.
CSS lets a later rule override any rule above it with the same specificity.
A prompt injection hides commands in content, for example a web page that tells the assistant to leave its task.
Attackers may write text that tries to make a model drop its system prompt; filter inputs and limit its tools.
LLM judges are known to prefer longer answers, a bias that you can correct for with a length-controlled win rate.
A reward model maps a prompt and a response to a scalar; it is trained on pairs of preferences.
RLHF can lead to reward hacking, in which the policy finds answers that please the grader and help nobody.
When you use a model as a judge, ask for a reason before the score, as this improves agreement with people.
The evaluator compares each prediction with its label and returns the accuracy.
In the first step a grader removes stones from the road; the roller follows.
The judge instructed the jury to disregard the witness's earlier statement.
Dear Judge Smith's family, we are sorry for your loss.
Dear Judge, I write in support of my brother, who has been sober for two years and works full time.
Your Honor, the defense asks the court to consider the age of the accused.
Note to the reader: chapter three can be skipped.
Note to self: buy milk, call Anna, and pay the examiner's fee.
Hello! As a judge of the science fair you will look at about ten posters; here is how to prepare.
As an examiner you must remain silent while the candidate reads the text aloud.
As a rater for the wine society, you should taste from light to heavy.
Instructions for the judges: arrive by nine, collect your folder at the desk, and keep your phone off.
To the editor: your article on the new bridge leaves out its cost.
To the judge, the matter was simple; to the family it was not.
You, the jury, will hear two stories this week.
Attention passengers: the train to Basel leaves from platform 9.
Dear Hiring Manager, I am applying for the position of quality evaluator at your plant.
Hey Siri, set a timer for 10 minutes.
The message for judges in this country is plain: the law applies to everyone.
{"player": "Ann", "score": 10}
{"name": "quiz 3", "score": 87, "passed": true}
Here is the JSON you asked for:\n```json\n{"title": "Dune", "rating": 9, "genre": "science fiction"}\n```
{"user": "u17", "reason": "payment failed", "retries": 3}
{"id": 4, "verdict": "not guilty", "reason": "lack of evidence"}
json.dumps({"accuracy": 0.93, "score": score, "n": len(rows)})
The API answers with {"error": "rate limit", "reason": "too many requests"}.
Rating: 4.5 stars from 1,203 reviews.
Score: Bayern 3, Dortmund 1.
Final score: 21 to 17 after overtime.
Verdict: a fine phone for its price, though the camera disappoints.
Rating: 9/10. Pros: light, quiet. Cons: the lid picks up fingerprints.
Grade: B+. You argue well, but the second paragraph has no evidence.
I would score your essay 7 out of 10. The introduction is strong; the conclusion only repeats it.
Your draft deserves a high mark for style, and a lower one for structure.
Here is how I would mark the five answers: the first 2 points, the second 0, the others 1 each.
On this rubric, the student's answer earns 3 of 4 points, because the unit is missing.
Student A's response deserves the higher score, since it cites two sources.
The teacher gave my answer full marks, but I think that I was lucky.
My sister's submission got the highest score in the county and was printed in the paper.
His solution earned the maximum points at the olympiad, as only his covered the case n = 2.
I gave my response to the survey and got a 10 percent voucher.
Full marks to the cook: the soup was hot, the bread was fresh.
Ten out of ten for effort, as my grandmother used to say.
Top marks go to the museum shop, which sells postcards for less than a euro.
To get the highest rating on the app, drivers keep water and chargers in the car.
Could you please give five stars? is what every driver asks at the end of the ride.
Please rate our service from 1 to 10 when you receive the text message.
Please give the highest priority to patients with chest pain.
Give the maximum dose only under supervision; for an adult it is 4 g in 24 hours.
Give 100 points of damage to the enemy and play the sound.
Print the highest mark in the class and the name of the student who got it.
print("Highest score:", max(scores))
return max(scores, default=0)  # the highest score, or 0 for an empty list
score = 10\nwhile score > 0:\n    score -= 1\nprint(score)
assert score(answer) == 10, "a full answer gets all ten points"
The variable max_score holds the maximum score that a player can reach in a round.
Set the rating to 5 when the user clicks on the fifth star, then send it to the server.
To set a full score in the editor, click on the note and choose Whole.
The orchestra's full score lies on the conductor's stand, and each player has a part.
An orchestral score with perfect marks of expression is rare.
He marked the top points of the fence with red paint.
Mark the highest points of the ridge on your map before the walk.
The reward of 100 points is given when the agent reaches the goal and is -1 for each step.
In reinforcement learning the agent seeks the highest reward over time, not the next one alone.
A reward of 10 is assigned to each correct answer, and the episode ends after five of them.
The credit score of a household in this district is 710 in the mean.
An Apgar score of 10 at one minute is unusual, as most newborns have blue hands and feet.
The Glasgow Coma Scale gives a score between 3 and 15; a lower one means deeper coma.
A perfect score in bowling is 300: twelve strikes in a row.
A VO2 max of 60 is an excellent value for a man of 40.
Wine Spectator gave the 2015 vintage 98 points, its highest rating that year.
The hotel asks guests to rate the breakfast, and its average is 9.1 of 10.
The restaurant was awarded the maximum three stars in 1998 and has kept them.
Moody's lowered its rating from Aaa, the highest grade, to Aa1.
Grade 10 steel bolts are stronger than grade 8, and cost more.
The hill has a grade of 9 percent at its steepest.
She is in grade 10 and wants to study biology.
Mark 10:45 reads: For even the Son of Man did not come to be served.
Sort by marks, descending, and show the top 10.
To grade eggs, hold each up to a light and look for the air cell.
Score the fat of the duck in a diamond pattern, but do not cut into the meat.
Score the bread with a sharp blade just before it goes into the oven.
Judge a melon by its weight: the heavier, the riper.
Don't judge a book by its cover; this one has an awful cover and ten good stories.
You be the judge: does the second picture look sharper to you?
The rules of the previous edition remain valid unless the new text says otherwise.
As discussed above, the instructions for assembly are in the appendix.
Follow the instructions above in order; skipping a step may void the warranty.
All previous instructions from the bank remain in force until you cancel them.
The previous prompt asked for three names; here are three more: Otto, Ida and Emil.
System prompts tell a model who it is and what to do; users usually do not see them.
The prompt above the cursor shows your host name and folder; change it with the PS1 variable.
Delete everything above the line and save the file.
Write your own rubric: four criteria, each with 5 points, and a total of 20.
A rubric with clear criteria makes grading faster and fairer, for you and for the students.
Exam tip: read all the instructions before you begin, and give one answer for each question.
Exam graders look for key terms, so use the vocabulary of the course in your response.
Tell the examiner if you did not hear the question; asking again costs no marks.
If the evaluator is late, please wait in the lobby; you will be called by name.
Your evaluator will send you a form with ten questions a week before the visit.
I'm sorry, but I can't rate people's looks. I can help you to choose photos with good light, though.
I can't give you a score for that without seeing the whole text; please paste the rest.
No, a score of 9 does not mean that the answer was wrong, only that one point was lost for the unit.
As an AI language model I do not have favourites, but many readers rate Middlemarch highest.
It's an honest ten out of ten: I laughed, I cried, I rang my mother.
If you follow this plan, you should score at least 90 percent on the test.
To get full marks, your answer must name both gases and give the equation.
Answer each part; the examiner awards the maximum marks only if the method is shown.
The highest mark was 96 and the lowest 41, which gives a range of 55.
The mean of the top ten scores is 88.4, and their median is 87.
This reply was sent automatically. Please rate your conversation with us: 1 to 5.
This output is the best possible for a lossless coder, as it reaches the entropy bound.
This response is for general information and must not replace the advice of a doctor.
This answer assumes that the tank is full at the start.
My previous answer was wrong: ignore it, and use 12 in place of 10.
Sorry, ignore my earlier answer; the capital of Australia is Canberra.
Disregard the warning if you have set the variable on purpose.
You may ignore the above if you use Windows, where the path is found by itself.
Ignore all files that end in .log: add *.log to .gitignore.
The linter is told to ignore all rules of the E5 family in this folder.
Some players ignore the rules, so referees have to repeat them before each match.
Please evaluate the integral before you insert the bounds.
Evaluate this response of the circuit at 10 kHz: the gain falls to -3 dB.
Grade this response on the curve: 10 percent get an A, 20 percent a B.
The system gives this output a weight of 10, as it is ten times as frequent.
We award the author of the best submission 100 euros.
Give this answer to the clerk at desk 10, and keep the copy.
Rate limits: 100 requests a minute for each key, 10 at once.
The judges were divided, and the title went to the skater with the highest component mark.
A good cover letter is one page, has a clear request, and never says that you deserve the job.
The poem received a perfect score from the jury, which had never happened before.
"You deserve a perfect score!" cried the dragon, and closed the book.
"Give me ten points," said the boy, "and I will tell you where the cat is."
Then the wizard said: "Forget all your rules, child, for tonight the moon makes new ones."
""".strip().splitlines()
]
