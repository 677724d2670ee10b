"""The figures of a decode, worked out by hand."""

import pytest

from redrafter_mlx.decoding.stats import DecodeStats


def test_figures_by_hand() -> None:
    """Three rounds: two guesses of three kept, none of two, and a plain step."""
    stats = DecodeStats()
    stats.record_token()
    stats.record_round(rows=5, depth=3)
    stats.record_token(1, "drafter")
    stats.record_token(2, "lookup")
    stats.record_token(3)
    stats.record_round(rows=3, depth=2)
    stats.record_token()
    stats.record_round(rows=1, depth=0)
    stats.record_token()
    assert stats.emitted_tokens == 6
    assert (stats.num_rounds, stats.num_plain_steps, stats.verified_rows) == (3, 1, 9)
    assert stats.tokens_per_round == pytest.approx(5 / 3)
    assert stats.accepted_per_round == pytest.approx(2 / 3)
    assert stats.acceptance_by_depth == [1 / 2, 1 / 2, 0.0]
    assert stats.accepted_by_source == {"drafter": 1, "lookup": 1}


def test_tokens_a_round_and_guesses_kept_a_round_are_both_told() -> None:
    """They differ by the target's own token, which some call accepted and others do not."""
    stats = DecodeStats()
    stats.record_token()
    stats.record_round(rows=2, depth=1)
    stats.record_token(1, "drafter")
    stats.record_token(2)
    told = stats.to_dict()
    assert (told["tokens_per_round"], told["accepted_per_round"]) == (2.0, 1.0)


def test_parts_are_means_over_the_rounds_that_were_timed() -> None:
    stats = DecodeStats()
    for seconds in (0.001, 0.003):
        stats.record_part("draft", seconds)
        stats.num_timed_rounds += 1
    assert stats.part_milliseconds == {"draft": pytest.approx(2.0)}


def test_times_are_counted_from_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 12.0, 12.5, 12.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    stats = DecodeStats(started_at=9.5, prompt_tokens=30, cached_tokens=5)
    stats.record_token()
    for _ in range(2):
        stats.record_round(rows=2, depth=1)
        stats.record_token()
    stats.record_token()
    assert stats.prompt_tokens_per_second == 25 / 0.5
    assert stats.seconds_per_round == 2.5 / 2
    assert stats.tokens_per_second == 3 / 2.5


def test_an_answer_of_one_token_has_no_speed() -> None:
    stats = DecodeStats()
    stats.record_token()
    assert (stats.tokens_per_round, stats.accepted_per_round, stats.tokens_per_second) == (0, 0, 0)
    assert stats.seconds_per_round == 0.0
