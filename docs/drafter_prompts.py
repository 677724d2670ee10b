"""Questions with long answers, made of subjects and forms: part of what the drafter learnt from.

Run it as ``python docs/drafter_prompts.py 8000 --seed 1 > essays.jsonl``. ``redrafter-mlx distill``
reads what it writes. No question is taken from a benchmark.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator


def _items(text: str) -> list[str]:
    return " ".join(text.split()).split("; ")


SUBJECTS = _items("""
photosynthesis; plate tectonics; inflation; supply and demand; the water cycle; black holes;
machine learning; neural networks; blockchain; climate change; renewable energy; nuclear fusion;
vaccines; antibiotics; the immune system; DNA replication; natural selection; evolution; gravity;
thermodynamics; entropy; electromagnetism; sound waves; the periodic table; chemical bonds; acids
and bases; catalysts; osmosis; the nervous system; the human heart; memory and learning; sleep;
stress; depression; anxiety; nutrition; vitamins; diabetes; high blood pressure; physical
exercise; mental health; mindfulness; public speaking; time management; leadership; teamwork;
negotiation; conflict resolution; motivation; procrastination; critical thinking; creativity;
emotional intelligence; remote work; job interviews; starting a small business; marketing;
branding; customer service; project management; budgeting; saving for retirement; the stock
market; bonds and shares; interest rates; taxes; unemployment; globalization; free trade;
monopolies; labor unions; minimum wage; universal basic income; healthcare systems; education
reform; public transport; urban planning; housing prices; immigration; human rights; democracy;
the separation of powers; constitutional law; intellectual property; data privacy; cybersecurity;
encryption; cloud computing; operating systems; databases; computer networks; the internet; search
engines; recommendation systems; computer vision; natural language processing; robotics;
self-driving cars; virtual reality; video games; social media; misinformation; journalism;
photography; cinema; jazz; classical music; opera; impressionism; modern art; architecture;
poetry; the novel; Shakespeare's tragedies; Greek mythology; the Roman Empire; ancient Egypt; the
Silk Road; the Middle Ages; the Renaissance; the Reformation; the Enlightenment; the French
Revolution; the American Civil War; the Industrial Revolution; colonialism; the First World War;
the Second World War; the Cold War; the space race; the civil rights movement; women's suffrage;
apartheid; the fall of the Berlin Wall; the European Union; the United Nations; Buddhism;
stoicism; existentialism; utilitarianism; free will; artificial intelligence ethics; animal
rights; biodiversity; coral reefs; rainforests; deforestation; desertification; recycling; plastic
pollution; ocean currents; volcanoes; earthquakes; hurricanes; tornadoes; weather forecasting; the
solar system; the moon landing; Mars exploration; telescopes; satellites; the Big Bang; dark
matter; relativity; atoms; semiconductors; batteries; solar panels; wind turbines; electric cars;
bridges; airplanes; submarines; 3D printing; nanotechnology; genetics; gene editing; stem cells;
cancer; viruses; bacteria; the digestive system; bones and muscles; pregnancy; childhood
development; adolescence; aging; language acquisition; linguistics; translation; writing systems;
probability; statistics; hypothesis testing; calculus; linear algebra; prime numbers; geometry;
graph theory; algorithms; recursion; sorting algorithms; binary trees; hash tables;
object-oriented programming; functional programming; software testing; version control; agile
development; web design; user experience; mobile apps; open source software; game theory;
behavioral economics; cognitive biases; the placebo effect; psychology of colors; sociology;
anthropology; archaeology; philosophy of science; the scientific method; peer review; coffee;
chocolate; bread baking; fermentation; vegetarian cooking; gardening; beekeeping; bird watching;
hiking; camping; cycling; swimming; marathon running; yoga; football; chess; learning a musical
instrument; learning a foreign language; reading habits; travel on a budget; minimalism;
volunteering; parenting; friendship; marriage; pet care; dogs; cats; horses; elephants; whales;
bees; sharks; penguins; dinosaurs; mushrooms; oceans; rivers; mountains; deserts; islands;
lighthouses; museums; libraries; festivals; fashion; tea; wine; perfume; clocks; maps; trains;
money; banks; insurance; credit scores; e-commerce; supply chains; agriculture; fishing; mining;
forestry; tourism; hotels; restaurants; hospitals; schools; universities; scholarships; elections;
political parties; propaganda; censorship; constitutions; courts; juries; prisons; policing; fire
safety; disaster relief; refugees; poverty; hunger; clean water; sanitation; epidemics; pandemics
""")
FORMS = """
Explain {s} in simple terms.
Explain {s} to a high school student.
What is {s} and why does it matter?
What are the main causes and effects of {s}?
What are the advantages and disadvantages of {s}?
Write an essay about {s}.
Write a short essay on the importance of {s}.
Write an introduction to {s} for beginners.
Write a blog post about {s} with a catchy title.
Write a newspaper article about {s}.
Write a persuasive speech about {s}.
Write a poem about {s}.
Write a short story in which {s} plays a central role.
Write a dialogue between a teacher and a student about {s}.
Write a letter to the editor about {s}.
Write a professional email that invites colleagues to a talk on {s}.
Give an overview of the history of {s}.
Discuss the most important debates around {s}.
Discuss the impact of {s} on society.
How has {s} changed over the last hundred years?
How does {s} affect our everyday life? Give examples.
List ten facts about {s}.
List five common misconceptions about {s} and correct them.
Give me five tips related to {s}.
Create a lesson plan for teaching {s}.
Create a quiz with five questions and answers about {s}.
Summarize what experts know about {s} in three paragraphs.
Describe {s} in detail, using vivid language.
Compare {s} and {t}.
What do {s} and {t} have in common, and how do they differ?
How are {s} and {t} related?
Imagine that you are an expert on {s}. Introduce yourself and answer the questions of an audience.
Pretend to be a journalist and interview someone who works with {s}.
Act as a friendly tutor and teach me the basics of {s}.
You are a time traveler who wants to learn about {s}. Describe what you find.
Outline a research paper about {s}.
Write an outline for a presentation on {s}.
What does the future of {s} look like?
What questions should I ask to understand {s} better?
Write a review of a book about {s}.
Write a product description for a course on {s}.
Draft a social media post about {s}.
What are the ethical questions around {s}?
Give a step-by-step guide to getting started with {s}.
Provide three real-world examples of {s} and explain each.
Analyze the strengths and weaknesses of common arguments about {s}.
""".strip().splitlines()
CODE = _items("""
reverse a linked list; find the longest word in a sentence; count the vowels in a string; compute
the greatest common divisor of two numbers; check whether a number is prime; generate all
permutations of a list; merge two dictionaries; read a text file and count its lines; compute the
factorial of a number; convert temperatures between Celsius and Fahrenheit; find the second
largest number in a list; remove duplicates from a list; sort a list of dictionaries by a key;
implement a stack; implement a queue with two stacks; implement binary search; implement
quicksort; implement bubble sort; traverse a binary tree; find the shortest path in a graph;
validate an email address; parse a CSV file; fetch data from a web API; connect to a SQLite
database; build a simple calculator; simulate rolling dice; play rock, paper, scissors; generate
random passwords; encrypt a message with the Caesar cipher; compute the sum of the digits of a
number; transpose a matrix; multiply two matrices; count word frequencies; find anagrams in a list
of words; flatten a nested list; check balanced parentheses; convert a decimal number to binary;
find the missing number in a sequence; compute the median of a list; draw a triangle of asterisks;
build a to-do list application; create a bank account class; create a class for geometric shapes;
write a unit test for a function; log messages to a file; measure the running time of a function;
schedule a task every hour; scrape the titles of a web page; resize an image; send an email; build
a REST API with two endpoints; make a responsive navigation bar; validate a form; draw a bar
chart; train a linear regression model; cluster points with k-means; split a data set into
training and test parts; tokenize a text
""")
CODE_FORMS = """
Write a Python function to {s}.
Write a Python program to {s} and explain how it works.
Write a JavaScript function to {s}.
Write a Java method to {s}.
How can I {s} in C?
Show me how to {s} step by step, with code.
What is the most efficient way to {s}? Give code and its complexity.
""".strip().splitlines()
PEOPLE = _items("""
a retired detective; a ship's captain; a young inventor; a lonely robot; a medieval knight; a
famous chef; a village doctor; a street musician; a mountain guide; an astronaut on a space
station; a beekeeper; a librarian who never sleeps; a king without a kingdom; a shy wizard; a
marathon runner; a painter who lost her sight; a grandmother with a secret; a boy who talks to
birds; an old fisherman; a queen of thieves; a teacher in a small town; a scientist in Antarctica;
a gardener at a palace; a dragon who is afraid of fire; a clockmaker; a news reporter; a
firefighter; a lawyer in her first trial; a pirate who wants to retire; a ghost in a library; a
tax inspector; a stage magician; a taxi driver at night; a nurse in wartime; a philosopher in a
marketplace; a coach of a losing team; a talking cat; a baker at dawn; a spy at a dinner party; a
farmer in a drought
""")
PEOPLE_FORMS = """
Write a story about {s}.
Write the opening chapter of a novel about {s}.
Describe {s} in two paragraphs.
Write a monologue by {s}.
You are {s}. Tell me about your day.
You are {s}. What advice do you have for young people?
Act as {s} and answer in character: what are you most afraid of?
Write a dialogue between {s} and {t}.
Write a letter from {s} to {t}.
Write a scene in which {s} meets {t}.
Write a poem from the point of view of {s}.
Write a conversation in a restaurant between {s} and {t}.
""".strip().splitlines()
REASON = """
{n} has {a} apples and buys {b} bags with {c} apples each, then gives away half of all. \
How many are left? Explain each step.
A car travels {a} miles in {c} hours. How far does it go in {b} hours at the same speed?
A shirt costs {a} dollars and is reduced by {b} percent. What is the new price?
If {c} workers build a wall in {b} days, how long do {d} workers need? State your assumptions.
The sum of two numbers is {a} and their difference is {c}. Find both numbers.
A rectangle is {b} cm long and {c} cm wide. Find its area, its perimeter and its diagonal.
Solve the equation {c}x - {b} = {a} and verify your answer.
What is the average of {a}, {b}, {c} and {d}? Show your work.
Is {a} a prime number? Explain how you know.
A bag holds {c} red, {d} blue and {b} green balls. What is the probability of drawing a blue one?
{n} is twice as old as her brother, and together they are {a}. How old are they?
Find the next three terms of the sequence {c}, {d}, and explain the pattern that you chose.
A train leaves at {c} a.m. and arrives {b} minutes later. At what time does it arrive?
{n} invests {a}00 dollars at {c} percent interest a year. How much is it worth after {d} years?
Convert {a} kilometers to miles and {b} pounds to kilograms, and show the formulas.
{n} runs faster than Tom, Tom runs faster than Eve. Who is the slowest? Explain your reasoning.
""".strip().splitlines()
NAMES = ("Anna", "Maria", "Sofia", "Clara", "Nadia", "Ruth", "Irene", "Laura", "Mia", "Zara")


def questions(rng: random.Random) -> Iterator[str]:
    """Yield questions without end, some of them twice."""
    while True:
        kind = rng.random()
        if kind < 0.60:
            yield rng.choice(FORMS).format(s=rng.choice(SUBJECTS), t=rng.choice(SUBJECTS))
        elif kind < 0.75:
            yield rng.choice(PEOPLE_FORMS).format(s=rng.choice(PEOPLE), t=rng.choice(PEOPLE))
        elif kind < 0.90:
            yield rng.choice(CODE_FORMS).format(s=rng.choice(CODE))
        else:
            yield _sum(rng)


def _sum(rng: random.Random) -> str:
    ranges = {"a": (24, 240), "b": (10, 60), "c": (2, 9), "d": (3, 12)}
    numbers = {name: rng.randint(low, high) for name, (low, high) in ranges.items()}
    return rng.choice(REASON).format(n=rng.choice(NAMES), **numbers)


def main() -> None:
    """Print as many different questions as are asked for, a JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seen: set[str] = set()
    for question in questions(random.Random(options.seed)):
        if len(seen) >= options.count:
            break
        if question not in seen:
            seen.add(question)
            print(json.dumps({"prompt": question}))  # noqa: T201


if __name__ == "__main__":
    main()
