"""Built-in prompts: fixed ones to tune and to measure on, and endless ones to learn from."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import accumulate, islice
from pathlib import Path

CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "arithmetic",
    "code",
    "extraction",
    "knowledge",
    "editing",
)

_DATA = Path(__file__).with_name("prompt_data")
_BASE_LANGUAGE = "english"  # its rules serve a language that lacks a rule of its own
_SLOT = re.compile(r"\{(?:(\w+)=)?(\w+(?:-\w+)?)\}")
_NUMBERS = re.compile(r"(\d+)-(\d+)")
_MAX_DRAWS = 5

Rules = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's message and its kind, one of ``CATEGORIES``."""

    text: str
    category: str


def bench_prompts() -> tuple[Prompt, ...]:
    """Return the prompts that speeds are measured on, three of each category."""
    return _read_prompts("bench.toml")


def tune_prompts() -> tuple[Prompt, ...]:
    """Return the prompts that settings are chosen on, none of them in ``bench_prompts``."""
    return _read_prompts("tune.toml")


@cache
def copy_prompts() -> tuple[Prompt, ...]:
    """Return ten prompts whose answers repeat a text of 1,000 to 2,000 tokens in them."""
    paths = sorted((_DATA / "copy").glob("*.txt"))
    return tuple(Prompt(path.read_text(encoding="utf-8").strip(), "editing") for path in paths)


def training_prompts(count: int, seed: int = 0) -> Iterator[str]:
    """Yield ``count`` distinct prompts in eight languages, the same for one seed everywhere.

    A smaller count gives the beginning of a larger one. At least 200,000 can be had.
    """
    return islice(_distinct_prompts(random.Random(seed)), count)


@cache
def _read_prompts(name: str) -> tuple[Prompt, ...]:
    table = tomllib.loads((_DATA / name).read_text(encoding="utf-8"))
    return tuple(Prompt(entry["text"].strip(), entry["category"]) for entry in table["prompt"])


@cache
def _read_languages() -> tuple[tuple[Rules, int], ...]:
    """Return each language's rules, and the sum of the weights up to and with its own."""
    paths = sorted((_DATA / "training").glob("*.toml"))
    tables = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in paths}
    weights = [table.pop("weight") for table in tables.values()]
    rules = [tables[_BASE_LANGUAGE] | table for table in tables.values()]
    return tuple(zip(rules, accumulate(weights), strict=True))


def _distinct_prompts(rng: random.Random) -> Iterator[str]:
    seen: set[bytes] = set()
    while True:
        prompt = _draw("prompt", _draw_language(rng), rng, set())
        prompt = re.sub(r"(?<=\S) +(?=[ \n])", "", prompt).strip()  # what empty texts leave
        digest = blake2b(prompt.encode(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield prompt


def _draw_language(rng: random.Random) -> Rules:
    languages = _read_languages()
    point = rng.random() * languages[-1][1]
    return next(rules for rules, limit in languages if point < limit)


def _draw(rule: str, rules: Rules, rng: random.Random, used: set[str]) -> str:
    """Return a number of the range, or a text of the list, that ``rule`` names.

    ``used`` holds the texts that the same prompt has used; they are avoided, not excluded.
    """
    # Of a generator's methods, random() alone is promised to stay the same.
    if numbers := _NUMBERS.fullmatch(rule):
        low, high = map(int, numbers.groups())
        return str(low + int(rng.random() * (high - low + 1)))
    texts = rules[rule]
    for _ in range(_MAX_DRAWS):
        text = texts[int(rng.random() * len(texts))]
        if text not in used:
            break
    used.add(text)
    return _fill(text, rules, rng, used)


def _fill(text: str, rules: Rules, rng: random.Random, used: set[str]) -> str:
    """Replace the slots of a text: ``{rule}``, ``{2-9}``, ``{a=rule}`` and then ``{a}``."""
    bound: dict[str, str] = {}

    def fill(slot: re.Match[str]) -> str:
        label, rule = slot.groups()
        if rule in bound:
            return bound[rule]
        new = _draw(rule, rules, rng, used)
        if label:
            bound[label] = new
        return new

    return _SLOT.sub(fill, text)
