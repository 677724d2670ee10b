"""Which questions are asked: the built-in ones, Apple's, MT-Bench's, and those of a file."""

from __future__ import annotations

import json

import pytest

from redrafter_mlx.bench import suites
from redrafter_mlx.bench.questions import read_questions
from redrafter_mlx.bench.suites import find_suite
from redrafter_mlx.errors import CheckpointError, PromptError
from redrafter_mlx.prompts import bench_prompts

LINES = [
    {"question_id": 81, "category": "writing", "turns": ["One", "Two"]},
    {"question_id": 82, "category": "math", "prompt": ["Three", "Four"], "reference": []},
    {"prompt": "Five"},
]


def write_lines(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_quick_asks_few_of_the_built_in_prompts():
    suite = find_suite("quick")
    texts = {prompt.text for prompt in bench_prompts()}
    assert {question.turns[0] for question in suite.questions} <= texts
    assert len({question.category for question in suite.questions}) == len(suite.questions) == 4
    # Two minutes at 20 tokens a second, four sides, with the plain answers and the warm-up.
    answers = suite.num_trials * len(suite.questions) * 4 + len(suite.questions) + 4 + 6
    assert answers * suite.max_tokens / 20 < 120


def test_paper_is_apples_protocol(shared):
    suite = find_suite("paper")
    (question,) = suite.questions
    assert (question.question_id, suite.max_tokens, suite.ignores_eos) == (81, 200, True)
    assert (suite.widths, suite.lengths) == ((1, 2, 3, 4), (2, 3, 4, 5))
    all_questions = read_questions(shared / "data" / "mt_bench" / "question.jsonl")
    assert question == all_questions[0]


def test_the_prompt_of_the_paper_comes_with_the_package():
    assert find_suite("paper").questions[0].turns[0].startswith("Compose an engaging travel blog")


def test_no_question_of_mt_bench_is_left_out(shared):
    """Apple's loop dropped 13 of the 80 for their characters."""
    suite = find_suite("mt-bench", shared / "data" / "mt_bench" / "question.jsonl")
    assert [question.question_id for question in suite.questions] == list(range(81, 161))
    assert all(len(question.turns) == 2 for question in suite.questions)
    assert len({question.category for question in suite.questions}) == 8
    # Twenty of them hold every category.
    assert len({question.category for question in suite.limited(20).questions}) == 8


def test_questions_of_a_file_may_be_written_in_several_ways(tmp_path):
    path = write_lines(tmp_path / "own.jsonl", *LINES)
    suite = find_suite(str(path))
    assert suite.name == "own.jsonl"
    found = [(one.question_id, one.category, one.turns) for one in suite.questions]
    assert found == [
        (81, "writing", ("One", "Two")),
        (82, "math", ("Three", "Four")),
        (3, "", ("Five",)),
    ]


def test_a_text_keeps_its_line_separators_and_a_file_may_have_a_byte_order_mark(tmp_path):
    path = tmp_path / "own.jsonl"
    line = json.dumps({"turns": ["One\u2028two\x85three"]}, ensure_ascii=False)
    path.write_bytes(f"\ufeff{line}\r\n\r\n{line}".encode())
    found = read_questions(path)
    assert [(one.question_id, one.turns) for one in found] == [
        (number, ("One\u2028two\x85three",)) for number in (1, 3)
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"turns": []}], "Line 1 of .* is no question"),
        ([LINES[0], {"turns": [""]}], "Line 2 of .* is no question"),
        ([{"turns": [1]}], "Line 1 of"),
        ([{"turns": "abc"}], "Line 1 of"),
        ([{"turns": {"a": 1}}], "Line 1 of"),
        ([{"turns": ["\ud800"]}], "Line 1 of"),
        ([["Hi"]], "Line 1 of"),
        ([{"text": "Hi"}], "Line 1 of"),
        ([{"question_id": "x", "turns": ["Hi"]}], "Line 1 of"),
        ([{"question_id": float("inf"), "turns": ["Hi"]}], "Line 1 of"),
        ([LINES[0], LINES[0]], "question_id 81 twice"),
        ([], "has no question"),
    ],
)
def test_a_file_without_questions_is_refused(tmp_path, lines, message):
    with pytest.raises(PromptError, match=message) as error:
        find_suite(str(write_lines(tmp_path / "bad.jsonl", *lines)))
    assert "\n" not in str(error.value)


def test_a_file_called_as_a_suite_is_not_taken_for_it(tmp_path):
    path = write_lines(tmp_path / "paper", *LINES)
    assert find_suite(str(path)).name == str(path)
    assert find_suite("paper").name == "paper"


def test_an_unknown_suite_is_refused():
    with pytest.raises(PromptError, match="no suite or file 'fast'; choose quick, paper, mt-bench"):
        find_suite("fast")


@pytest.mark.parametrize(
    ("limit", "kept"), [(1, [0]), (2, [0, 2]), (3, [0, 1, 2]), (9, [0, 1, 2, 3])]
)
def test_a_limit_spreads_over_the_suite(limit, kept):
    suite = find_suite("quick")
    expected = tuple(suite.questions[place] for place in kept)
    assert suite.limited(limit).questions == expected


def test_a_digest_tells_questions_and_turns_apart(tmp_path):
    suite = find_suite(str(write_lines(tmp_path / "a.jsonl", *LINES[:2])))
    same = find_suite(str(write_lines(tmp_path / "b.jsonl", *LINES[:2])))
    assert suite.digest == same.digest
    others = [
        suite.limited(1),
        suites.replace(suite, num_turns=2),
        find_suite(str(write_lines(tmp_path / "c.jsonl", *LINES[1::-1]))),
    ]
    assert len({suite.digest, *(other.digest for other in others)}) == 4


def test_mt_bench_comes_from_the_hub(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "question.jsonl", *LINES[:2])
    asked = []

    def download(repository, name, *, repo_type):
        asked.append((repository, name, repo_type))
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert len(find_suite("mt-bench").questions) == 2
    assert asked == [("HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl", "dataset")]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionError("no route"), "the Hugging Face Hub cannot be reached"),
        (ValueError("no\nsense"), "no sense"),
    ],
)
def test_where_the_hub_gives_nothing_a_file_is_asked_for(monkeypatch, error, message):
    def download(*_, **__):
        raise error

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(
        CheckpointError, match=rf"\({message}\); give a file .* --questions"
    ) as told:
        find_suite("mt-bench")
    assert "\n" not in str(told.value)
