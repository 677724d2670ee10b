"""Results that were made up, small enough to check by hand."""

from dataclasses import replace

from redrafter_mlx.bench.results import (
    SCHEMA_VERSION,
    BenchResults,
    Configuration,
    Machine,
    PhaseTimes,
    Trial,
    WeightsRecord,
)

MACHINE = Machine(
    chip="Apple M2 Ultra",
    memory_bytes=64 * 2**30,
    num_cpus=24,
    system="macOS 15.6",
    device="gpu",
    packages={"mlx": "0.32.4", "python": "3.12.1"},
    git_commit="4a996e8",
)
TARGET = WeightsRecord("vicuna-7b", "float16", None, 13_214_154_752, "68202c6fe994ad8b")
DRAFTER = WeightsRecord("vicuna_redrafter", "float16", 4, 241_000_000, "0123456789abcdef")
PLAIN = Configuration(
    name="plain",
    program="redrafter-mlx",
    beam_width=None,
    beam_length=None,
    max_rows=None,
    uses_lookup=False,
    is_adaptive=False,
    max_tokens=21,
    temperature=0.0,
    top_p=1.0,
    seed=0,
    ignores_eos=True,
)
MLX_LM = replace(PLAIN, name="mlx-lm", program="mlx-lm")
LONGER = replace(PLAIN, name="(3,5) fixed", beam_width=3, beam_length=5, max_rows=64)
DRAFTED = replace(
    LONGER, name="(3,4) adapted + lookup", beam_length=4, uses_lookup=True, is_adaptive=True
)
QUESTIONS = ((81, "writing"), (111, "math"))


def plain_trial(name, question, number, decode_seconds):
    return Trial(
        configuration=name,
        question_id=question[0],
        category=question[1],
        turn=1,
        number=number,
        prompt_tokens=66,
        emitted_tokens=21,
        num_rounds=20,
        num_plain_steps=20,
        verified_rows=20,
        drafted_by_depth=(),
        accepted_by_depth=(),
        accepted_by_lookup=0,
        time_to_first_token_seconds=0.125,
        decode_seconds=decode_seconds,
        peak_memory_bytes=14 * 2**30,
        is_compared=True,
        first_difference=None,
        difference_margin=None,
    )


def drafted_trial(name, question, number, decode_seconds):
    depth = 4 if name == LONGER.name else 3
    return replace(
        plain_trial(name, question, number, decode_seconds),
        num_rounds=8,
        num_plain_steps=2 if name == DRAFTED.name else 0,
        verified_rows=8 * (1 + 3 * depth),
        drafted_by_depth=(8,) * depth,
        accepted_by_depth=(6, 3, 2, 1) if depth == 4 else (6, 4, 2),
        accepted_by_lookup=0 if name == LONGER.name else 3,
        peak_memory_bytes=15 * 2**30,
    )


def synthetic_results():
    """Plain decoding at 40 and 50 tokens/s, drafting at twice that, over two passes."""
    trials = []
    for number, slower in enumerate((1.0, 1.25)):
        for question, seconds in zip(QUESTIONS, (0.5, 0.4), strict=True):
            trials += [
                plain_trial("plain", question, number, seconds * slower),
                plain_trial("mlx-lm", question, number, seconds * slower * 0.8),
                drafted_trial(DRAFTED.name, question, number, seconds * slower * 0.5),
                drafted_trial(LONGER.name, question, number, seconds * slower * 0.625),
            ]
    trials[3] = replace(trials[3], first_difference=17, difference_margin=0.00025)
    return BenchResults(
        schema_version=SCHEMA_VERSION,
        started_at="2026-01-31T12:00:00+00:00",
        suite="mt-bench",
        questions_digest="8f4c1d2e",
        machine=MACHINE,
        target=TARGET,
        drafter=DRAFTER,
        configurations=(PLAIN, MLX_LM, DRAFTED, LONGER),
        trials=tuple(trials),
        phases=(PhaseTimes(DRAFTED.name, 8, 0.048, 0.208, 0.008, 0.016, 0.008),),
        notes=("The shape of the draft is a guess.",),
    )
