"""The check of texts: it finds a difference, says where, and never mixes two runs."""

import json

import pytest

from redrafter_mlx.bench import equality
from redrafter_mlx.bench.equality import first_difference, read_records, summarize
from redrafter_mlx.bench.questions import read_questions
from redrafter_mlx.config import GenerationConfig, SamplingConfig
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import CheckpointError, PromptError
from redrafter_mlx.generation import Answer, generate
from tests.toy import toy_drafter, toy_model, toy_target

PROMPT = [1, 2, 3]


def answer_of(tokens: list[int]) -> Answer:
    return Answer("", tuple(tokens), tuple(PROMPT), DecodeStats(), "length")


@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(temperature=1.0, seed=4)])
def test_a_difference_is_found_with_the_gap_between_the_two_best(sampling):
    model = toy_model(toy_target())
    plain = generate(model, PROMPT, GenerationConfig(max_tokens=6, sampling=sampling))
    assert first_difference(model, plain, plain.tokens, sampling) is None
    changed = [*plain.tokens[:4], (plain.tokens[4] + 1) % 50, plain.tokens[5]]
    difference = first_difference(model, plain, changed, sampling)
    assert difference.place == 4
    assert difference.margin > 0.0
    shorter = answer_of(list(plain.tokens[:3]))
    assert first_difference(model, plain, shorter.tokens, sampling).place == 3


def test_where_the_filters_leave_one_token_there_is_no_gap():
    sampling = SamplingConfig(temperature=1.0, top_k=1)
    model, plain = toy_model(toy_target()), answer_of([5, 6])
    difference = first_difference(model, plain, (5, 7), sampling)
    assert (difference.place, difference.margin) == (1, None)


def test_a_summary_counts_tokens_and_rounds_without_the_first_token():
    run = {"emitted": 11, "rounds": 5, "seconds": 1.0, "difference": None}
    parted = run | {"emitted": 7, "rounds": 3, "difference": {"place": 2, "margin": 0.5}}
    records = [{"question_id": 81, "2,4": run}, {"question_id": 82, "2,4": parted}]
    (line,) = summarize(records)
    assert line.startswith("(2,4): 1 of 2 texts equal, 2.0000 tokens a round")
    assert "82 {'place': 2" in line


def test_results_of_other_settings_are_never_gone_on_with(tmp_path):
    path = tmp_path / "results.jsonl"
    assert read_records(path, {"seed": 1}) == []
    path.write_text(json.dumps({"question_id": 81, "settings": {"seed": 1}}) + "\n")
    assert [record["question_id"] for record in read_records(path, {"seed": 1})] == [81]
    with pytest.raises(CheckpointError, match="other settings"):
        read_records(path, {"seed": 2})


def test_questions_are_read_and_a_broken_line_is_named(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question_id": 7, "category": "math", "turns": ["a", "b"]}\n\n{"turns": []}')
    with pytest.raises(PromptError, match="Line 3"):
        read_questions(path)
    path.write_text('{"question_id": 7, "category": "math", "turns": ["a", "b"]}\n')
    (question,) = read_questions(path)
    assert (question.question_id, question.category, question.turns) == (7, "math", ("a", "b"))
    with pytest.raises(PromptError, match=r"none\.jsonl"):
        read_questions(tmp_path / "none.jsonl")


def test_speculative_answers_are_checked_against_plain_ones(monkeypatch):
    target = toy_target()
    model = toy_model(target, toy_drafter(target))
    monkeypatch.setattr(equality, "chat_prompt", lambda model, text: PROMPT)
    question = equality.Question(81, "math", ("Why?",))
    shapes = [equality.parse_shape("2,3"), equality.parse_shape("1,4")]
    record = equality.check_question(model, question, shapes, GenerationConfig(max_tokens=20))
    assert record["question_id"] == 81
    for shape in ("2,3", "1,4"):
        assert record[shape]["difference"] is None
        assert record[shape]["emitted"] == 20
        assert record[shape]["rounds"] <= 19
