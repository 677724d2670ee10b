"""What drafts, compared at equal rows, with plain decoding's text on every side."""

from __future__ import annotations

from redrafter_mlx.bench.sources import line, run, sources
from redrafter_mlx.config import BeamShape, GenerationConfig
from redrafter_mlx.decoding.stats import DecodeStats
from tests.toy import toy_drafter, toy_model, toy_target


def test_every_side_writes_the_plain_text_with_no_more_rows_than_the_others() -> None:
    target = toy_target()
    model = toy_model(target, toy_drafter(target))
    base = GenerationConfig(max_tokens=30, beam=BeamShape(1, 5, 4), is_adaptive=False)
    kv_cache, prompt = target.make_kv_cache(), [7, 3, 9, 1] * 4
    found = {
        name: run(side, kv_cache, prompt)
        for name, side in sources(model, base).items()
        if name != "adaptive"
    }
    expected, plain = found["plain"]
    assert plain.verified_rows == plain.num_rounds
    for name, (tokens, stats) in found.items():
        assert tokens == expected, name
        assert stats.verified_rows <= 4 * stats.num_rounds
    assert not found["drafter"][1].accepted_by_source.keys() - {"drafter"}
    assert not found["lookup"][1].accepted_by_source.keys() - {"lookup"}


def stats_of(tokens: int, rounds: int, seconds: float) -> DecodeStats:
    stats = DecodeStats(emitted_tokens=tokens, num_rounds=rounds, verified_rows=3 * rounds)
    stats.decode_seconds = seconds
    return stats


def test_a_line_compares_prompt_by_prompt() -> None:
    mine = [stats_of(11, 5, 1.0), stats_of(21, 10, 1.0), stats_of(11, 5, 2.0)]
    plain = [stats_of(11, 10, 2.0), stats_of(21, 20, 4.0), stats_of(11, 10, 2.0)]
    told = line("both", mine, plain)
    assert "2.000 tokens/round, 10.00 tokens/s, over plain 2.000 (1.00 to 4.00), rows 3.00" in told
