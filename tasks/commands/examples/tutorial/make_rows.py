import json
import random

random.seed(0)
with open("my_rows.jsonl", "w") as file:
    for _ in range(60):
        a, b = random.randint(1, 9), random.randint(1, 9)
        file.write(json.dumps({"question": f"What is {a} + {b}?", "answer": str(a + b)}) + "\n")
