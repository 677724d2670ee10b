"""The built-in prompts: what they are, that they stay, and that no benchmark is in them."""

import hashlib
import json
import random
import statistics
from collections import Counter
from itertools import pairwise

import pytest

from redrafter_mlx import prompts
from redrafter_mlx.prompts import (
    CATEGORIES,
    bench_prompts,
    copy_prompts,
    training_prompts,
    tune_prompts,
)

GOLDEN_BENCH = "3c2169c6a79e4f832ac33cbe0bc34892e8ae1e9043c902ebd64603176848b959"
GOLDEN_TUNE = "f88bb15e89a9d19ec8007bccca4623ff97b80e37e2ff4f7fe11a05f0dba2d978"
GOLDEN_TRAINING = "8e2f3ef6935553d5eaea6a1e076754a691d9c1e2eca3051744035027949abbb5"
RUN_WORDS = 8


def digest(texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def runs_of_words(texts):
    """Return every run of eight words, without case and punctuation."""
    runs = set()
    for text in texts:
        kept = "".join(letter if letter.isalnum() else " " for letter in text.lower())
        words = kept.split()
        runs |= {tuple(words[i : i + RUN_WORDS]) for i in range(len(words) - RUN_WORDS + 1)}
    return runs


def fixed_texts(found):
    return [prompt.text for prompt in found]


def test_bench_prompts_are_three_of_each_category():
    assert Counter(prompt.category for prompt in bench_prompts()) == dict.fromkeys(CATEGORIES, 3)


def test_tune_prompts_are_twelve_of_every_category():
    assert len(tune_prompts()) == 12
    assert {prompt.category for prompt in tune_prompts()} == set(CATEGORIES)


def test_copy_prompts_are_ten_with_a_long_text():
    assert len(copy_prompts()) == 10
    for prompt in copy_prompts():
        assert prompt.category == "editing"
        # 1,174 to 1,816 tokens of SmolLM2's; tables and logs have fewer characters to a token.
        assert 3_500 <= len(prompt.text) <= 8_000
        task = prompt.text.partition("\n")[0]
        assert len(task) < 500


def test_fixed_prompts_repeat_nothing_of_each_other():
    """Law: what is tuned on is not what is measured on, not even in part."""
    all_prompts = [*bench_prompts(), *tune_prompts(), *copy_prompts()]
    assert len(set(fixed_texts(all_prompts))) == 46
    assert all(text == text.strip() and text for text in fixed_texts(all_prompts))
    runs = [runs_of_words([text]) for text in fixed_texts(all_prompts)]
    assert sum(map(len, runs)) == len(set().union(*runs))


def test_fixed_prompts_stay_as_they_are():
    """Speeds of two versions compare only where the prompts are the same."""
    assert digest(fixed_texts(bench_prompts())) == GOLDEN_BENCH
    assert digest(fixed_texts(tune_prompts())) == GOLDEN_TUNE


def test_training_prompts_stay_as_they_are():
    """Law: one seed gives the same prompts on every machine and with every Python."""
    assert digest(training_prompts(100)) == GOLDEN_TRAINING
    assert digest(training_prompts(100, seed=0)) == GOLDEN_TRAINING
    assert digest(training_prompts(100, seed=1)) != GOLDEN_TRAINING


@pytest.mark.parametrize("seed", [0, 7])
def test_training_prompts_are_distinct_and_a_smaller_count_is_a_beginning(seed):
    found = list(training_prompts(3_000, seed))
    assert len(found) == len(set(found)) == 3_000
    assert list(training_prompts(40, seed)) == found[:40]
    assert list(training_prompts(0, seed)) == []


@pytest.mark.slow
def test_200_000_training_prompts_are_distinct():
    digests = {hashlib.sha256(prompt.encode()).digest() for prompt in training_prompts(200_000)}
    assert len(digests) == 200_000


def test_training_prompts_are_as_long_as_those_of_users():
    texts = [text for text in training_prompts(2_000) if text.isascii()]
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) <= 4
    assert 10 <= statistics.median(lengths) <= 30
    assert max(lengths) >= 200
    assert sum(length >= 60 for length in lengths) >= len(lengths) // 20
    assert sum("\n\n" in text for text in texts) >= len(texts) // 10


def test_training_prompts_are_tidy():
    for text in training_prompts(2_000):
        assert text == text.strip()
        assert "  " not in text.replace("\n    ", "\n").lstrip() or "```" in text
        assert " \n" not in text
        assert prompts._SLOT.search(text) is None


def test_languages_have_their_shares():
    rng = random.Random(3)
    languages = prompts._read_languages()
    names = [rules["weekday"][0] for rules, _ in languages]
    assert len(set(names)) == len(names) == 8
    counts = Counter(prompts._draw_language(rng)["weekday"][0] for _ in range(8_000))
    limits = [0, *(limit for _, limit in languages)]
    shares = [(upper - lower) / limits[-1] for lower, upper in pairwise(limits)]
    assert shares[names.index("Monday")] == 0.6
    for name, share in zip(names, shares, strict=True):
        assert counts[name] / 8_000 == pytest.approx(share, abs=0.02)


def slots_of(text):
    return [slot.groups() for slot in prompts._SLOT.finditer(text)]


def test_every_slot_of_every_text_can_be_filled():
    for rules, _ in prompts._read_languages():
        for text in (text for texts in rules.values() for text in texts):
            labels = set()
            for label, rule in slots_of(text):
                if numbers := prompts._NUMBERS.fullmatch(rule):
                    assert int(numbers[1]) < int(numbers[2]), text
                else:
                    assert rule in rules or rule in labels, (rule, text)
                assert label not in rules
                labels.add(label)


def test_every_rule_is_used():
    paths = sorted((prompts._DATA / "training").glob("*.toml"))
    languages = prompts._read_languages()
    for path, (rules, _) in zip(paths, languages, strict=True):
        reached, fresh = set(), {"prompt"}
        while fresh:
            reached |= fresh
            texts = (text for rule in fresh for text in rules[rule])
            named = {rule for text in texts for _, rule in slots_of(text)}
            fresh = (named & rules.keys()) - reached
        own = set(prompts.tomllib.loads(path.read_text(encoding="utf-8"))) - {"weight"}
        assert own - reached == set(), path.name


def test_no_text_stands_twice_in_a_rule():
    """But for the kinds of English prompts and the programming languages, which are weighted so."""
    for rules, _ in prompts._read_languages():
        for name, texts in rules.items():
            if name not in {"prompt", "plang"}:
                kept = [text for text in texts if text]
                assert len(kept) == len(set(kept)), name


def test_a_label_repeats_its_text_and_others_differ():
    rules = {"name": ["Ada", "Ben", "Cem", "Dora"], "pair": ["{a=name} and {name}; {a}"]}
    for seed in range(50):
        text = prompts._draw("pair", rules, random.Random(seed), set())
        first, second = text.partition(";")[0].split(" and ")
        assert text.endswith(f"; {first}")
        assert first != second


def test_a_rule_with_too_few_texts_repeats_them():
    rules = {"only": ["x"], "all": ["{only}{only}{only}"]}
    assert prompts._draw("all", rules, random.Random(0), set()) == "xxx"


def test_numbers_reach_both_ends_of_their_range():
    rng = random.Random(0)
    assert {prompts._draw("2-5", {}, rng, set()) for _ in range(200)} == {"2", "3", "4", "5"}


def test_no_prompt_shares_eight_words_with_mt_bench(shared):
    path = shared / "data" / "mt_bench" / "question.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    questions = [turn for line in lines for turn in json.loads(line)["turns"]]
    theirs = runs_of_words(questions)
    assert len(theirs) > 3_000
    fixed = fixed_texts([*bench_prompts(), *tune_prompts(), *copy_prompts()])
    assert runs_of_words([*fixed, *training_prompts(4_000, seed=5)]) & theirs == set()


def test_neighbouring_prompts_differ_in_kind():
    """Any short stretch of them is varied: few begin like the one before."""
    starts = [text.split()[0] for text in training_prompts(500)]
    assert sum(first == second for first, second in pairwise(starts)) < 50
