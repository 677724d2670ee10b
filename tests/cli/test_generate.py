"""``redrafter-mlx generate``, on fakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redrafter_mlx.config import BeamShape, GenerationConfig, SamplingConfig
from redrafter_mlx.errors import PromptError
from redrafter_mlx.loading.model import default_beam_shape
from tests.cli.conftest import Run
from tests.cli.endless_model import NUM_TOKENS, LetterTokenizer
from tests.cli.fakes import DRAFTER, FakeLibrary
from tests.toy import toy_model, toy_target

ASK = ("generate", "--prompt", "Hi")


def test_stdout_is_the_text_alone(run: Run, library: FakeLibrary) -> None:
    library.notices = ("No drafter was found; decoding plainly.", "Two [bold]words[/bold].")
    result = run(*ASK)
    assert result.exit_code == 0
    assert result.stdout == "Hello there!\n"
    first, second, stats = result.stderr.splitlines()
    assert (first, second) == library.notices
    assert stats == "4 tokens · 3.0 tokens/s · 1.50 tokens/round · first after 0.25 s"


@pytest.mark.parametrize(
    ("pieces", "stdout"),
    [
        (["a\n"], "a\n"),
        (["a", "\n", ""], "a\n"),
        (["a\n", "b"], "a\nb\n"),
        ([""], "\n"),
        (
            ["\x1b[31m", "[bold]x[/bold]", " :smile: ", "é語"],
            "\x1b[31m[bold]x[/bold] :smile: é語\n",
        ),
    ],
)
def test_text_is_passed_on_as_it_is(
    run: Run, library: FakeLibrary, pieces: list[str], stdout: str
) -> None:
    """A pipe gets every character; only a missing last new line is added."""
    library.pieces = pieces
    result = run(*ASK)
    assert result.stdout_bytes == stdout.encode()


def test_cut_answer_says_so(run: Run, library: FakeLibrary) -> None:
    result = run(*ASK, "--max-tokens", "2")
    assert result.stdout == "Hello \n"
    assert result.stderr.endswith(" · cut short\n")


def test_defaults_are_those_of_the_library(run: Run, library: FakeLibrary) -> None:
    run(*ASK)
    assert library.loads == [{"name": "smollm2-135m", "drafter": "auto", "dtype": "auto"}]
    assert library.runs == [(library.chat_prompt(None, "Hi"), GenerationConfig())]  # type: ignore[arg-type]


def test_every_option_reaches_the_library(run: Run, library: FakeLibrary, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    result = run(
        *("generate", "-p", "Hi", "--system", "Be brief", "--model", "m", "--dtype", "float32"),
        *("--max-tokens", "7", "--temp", "0.8", "--top-p", "0.9", "--top-k", "40"),
        *("--min-p", "0.05", "--seed", "3", "--stop", r"\n\n", "--stop", "END"),
        *("--beam-width", "3", "--beam-length", "5", "--drafter", str(tmp_path)),
    )
    assert result.exit_code == 0
    assert library.loads == [{"name": "m", "drafter": tmp_path, "dtype": "float32"}]
    config = GenerationConfig(
        max_tokens=7,
        stop=("\n\n", "END"),
        sampling=SamplingConfig(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05, seed=3),
        beam=BeamShape(beam_width=3, beam_length=5),
    )
    assert library.runs == [(library.chat_prompt(None, "Hi", "Be brief"), config)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("--no-lookup", {"use_lookup": False}),
        ("--lookup-only", {"use_drafter": False}),
        ("--no-adapt", {"is_adaptive": False}),
    ],
)
def test_what_drafts_is_chosen_by_an_option(
    run: Run, library: FakeLibrary, option: str, settings: dict[str, bool]
) -> None:
    run(*ASK, option)
    assert library.runs[0][1] == GenerationConfig(**settings)  # type: ignore[arg-type]


def test_stats_times_some_rounds_and_shows_what_was_accepted(
    run: Run, library: FakeLibrary
) -> None:
    result = run(*ASK, "--stats")
    assert library.runs[0][1].timed_every > 0
    assert "accepted by depth" in result.stderr
    assert "tokens/round" in result.stderr
    assert "guesses kept a round" in result.stderr
    assert "ms of a round, over 1: draft 125.0\n" in result.stderr
    assert "accepted by" not in run(*ASK).stderr


def test_lookup_only_contradicts_no_lookup(run: Run) -> None:
    result = run(*ASK, "--lookup-only", "--no-lookup")
    assert result.exit_code == 2
    assert "contradicts" in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "shape"),
    [
        ("--beam-width", "5", (5, default_beam_shape().beam_length)),
        ("--beam-length", "6", (default_beam_shape().beam_width, 6)),
    ],
)
def test_half_a_beam_takes_the_rest_from_the_device(
    run: Run, library: FakeLibrary, option: str, value: str, shape: tuple[int, int]
) -> None:
    run(*ASK, option, value)
    [(_, config)] = library.runs
    assert config.beam == BeamShape(*shape)


@pytest.mark.parametrize(
    ("options", "thinking"), [([], None), (["--thinking"], True), (["--no-thinking"], False)]
)
@pytest.mark.parametrize("compare", [[], ["--compare"]])
def test_thinking_reaches_the_template(
    run: Run, library: FakeLibrary, options: list[str], thinking: bool | None, compare: list[str]
) -> None:
    run(*ASK, *options, *compare)
    prompt = library.chat_prompt(None, "Hi", thinking=thinking)  # type: ignore[arg-type]
    assert {tuple(asked) for asked, _ in library.runs} == {tuple(prompt)}


@pytest.mark.parametrize("command", [["generate", "--prompt", "Hi"], ["chat"]])
@pytest.mark.parametrize("option", ["--thinking", "--no-thinking"])
def test_a_switch_that_the_template_lacks_is_refused_in_one_line(
    run: Run, library: FakeLibrary, command: list[str], option: str
) -> None:
    """It names the option that was given and no other, and no notice stands before it."""
    library.notices, library.chat_template = ("a notice",), "{{ messages }}"
    result = run(*command, option)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "redrafter-mlx: The model's chat template has no switch for thinking (enable_thinking); "
        f"leave out {option}.\n"
    )


@pytest.mark.parametrize("option", ["--thinking", "--no-thinking"])
def test_raw_prompt_has_no_switch(run: Run, library: FakeLibrary, option: str) -> None:
    result = run(*ASK, "--raw", option)
    assert result.exit_code == 2
    assert f"Invalid value for {option}: a raw prompt has no template" in result.stderr
    assert library.loads == []


def test_prompt_that_is_read_in_parts_is_answered(run: Run, library: FakeLibrary) -> None:
    library.prefill = (30, 60)
    result = run(*ASK)
    assert result.stdout == "Hello there!\n"
    assert "Reading" not in result.stderr


def test_no_drafter(run: Run, library: FakeLibrary) -> None:
    run(*ASK, "--no-drafter")
    assert library.loads[0]["drafter"] is None


@pytest.mark.parametrize(
    ("given", "stop"),
    [(r"a\nb", "a\nb"), (r"\t", "\t"), (r"\\n", r"\n"), (r"\d\\", "\\d\\"), ("é", "é")],
)
def test_stop_strings_know_three_escapes(
    run: Run, library: FakeLibrary, given: str, stop: str
) -> None:
    run(*ASK, "--stop", given)
    assert library.runs[0][1].stop == (stop,)


@pytest.mark.parametrize(
    ("options", "stdin", "prompt"),
    [
        ([], "Hi\n", "Hi"),
        ([], "two\nlines\n\n", "two\nlines\n"),
        (["--raw"], "Hi\n", "Hi\n"),
    ],
)
def test_dash_reads_standard_input(
    run: Run, library: FakeLibrary, options: list[str], stdin: str, prompt: str
) -> None:
    """The new line that a shell adds is no part of a turn, but a raw prompt keeps it."""
    result = run("generate", "--prompt", "-", *options, stdin=stdin)
    assert result.exit_code == 0
    encoded = bytes(token for token in library.runs[0][0] if token > 3)
    assert encoded == prompt.encode()


def test_raw_prompt_has_no_template(run: Run, library: FakeLibrary) -> None:
    run(*ASK, "--raw")
    assert library.runs[0][0] == [1, *b"Hi"]


@pytest.mark.parametrize(
    ("prompt", "stdin", "exit_code", "complaint"),
    [
        ("", "", 2, "The prompt is empty"),
        (" \n", "", 2, "The prompt is empty"),
        ("-", "", 1, "The prompt is empty"),
        ("-", "\n", 1, "The prompt is empty"),
        ("-", b"ab\xff", 1, "Standard input is not UTF-8 at byte 2"),
        ("aß\udcff", "", 2, "The prompt is not UTF-8 at byte 3"),
    ],
)
def test_prompt_that_is_none(
    run: Run,
    library: FakeLibrary,
    prompt: str,
    stdin: str | bytes,
    exit_code: int,
    complaint: str,
) -> None:
    """Wrong usage is what the command line alone shows."""
    result = run("generate", "--prompt", prompt, stdin=stdin)
    assert result.exit_code == exit_code
    assert result.stderr.startswith(f"redrafter-mlx: {complaint}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert library.loads == []


def test_error_of_the_library_leaves_stdout_empty(run: Run, library: FakeLibrary) -> None:
    library.error = PromptError("The prompt has 9 tokens, but the context holds 8; shorten it.")
    for options in ([], ["--json"]):
        result = run(*ASK, *options)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr == f"redrafter-mlx: {library.error}\n"


def read_json(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1
    values: dict[str, Any] = json.loads(text)
    return values


def test_json_is_one_object_with_everything(run: Run, library: FakeLibrary) -> None:
    library.pieces = ["é", "\x1b", "\N{GRINNING FACE}"]
    result = run(*ASK, "--json", "--seed", "5")
    assert result.stdout.isascii()
    assert result.stderr == ""
    values = read_json(result.stdout)
    versions = values.pop("versions")
    assert set(versions) == {"redrafter-mlx", "mlx", "mlx-lm", "transformers", "python"}
    statistics = values.pop("statistics")
    assert statistics["emitted_tokens"] == 3
    assert statistics["tokens_per_round"] == 2.0
    shape = default_beam_shape()
    assert values == {
        "text": "é\x1b\N{GRINNING FACE}",
        "tokens": [10, 11, 12],
        "prompt_tokens": [1, 2, *b"Hi", 3],
        "finish_reason": "stop",
        "settings": {
            "max_tokens": 512,
            "stop": [],
            "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 5},
            "beam": {
                "beam_width": shape.beam_width,
                "beam_length": shape.beam_length,
                "max_rows": shape.max_rows,
            },
            "ignore_eos": False,
            "use_drafter": True,
            "use_lookup": True,
            "is_adaptive": True,
            "timed_every": 0,
        },
        "model": "smollm2-135m",
        "drafter": DRAFTER.to_dict(),
    }


def test_json_without_a_drafter(run: Run, library: FakeLibrary) -> None:
    library.has_drafter = False
    values = read_json(run(*ASK, "--json").stdout)
    assert values["drafter"] is None
    assert values["settings"]["beam"] is None
    assert values["settings"]["use_drafter"] is False


def test_compare_shows_both_speeds_and_that_ids_agree(run: Run, library: FakeLibrary) -> None:
    result = run(*ASK, "--compare")
    assert result.stdout == "Hello there!\n"
    lines = [line.split() for line in result.stderr.splitlines()]
    assert lines[1:4] == [
        ["tokens/s", "tokens/round"],
        ["drafted", "3.0", "1.50"],
        ["plain", "2.0", "1.00"],
    ]
    assert result.stderr.splitlines()[4] == "1.50 times as fast; the same 4 token ids"


def test_compare_with_stats_shows_each_figure_once(run: Run, library: FakeLibrary) -> None:
    """One speed for drafted and one for plain decoding; no timed round slows the compared runs."""
    result = run(*ASK, "--compare", "--stats", "--max-tokens", "3")
    assert result.stderr.splitlines() == [
        "3 tokens · first after 0.25 s · cut short",
        "         tokens/s  tokens/round",
        "drafted       4.0          2.00",
        "plain         2.0          1.00",
        "2.00 times as fast; the same 3 token ids",
        "drafted, the two timed runs together:",
        "accepted by depth: 1.00",
        "accepted by source: drafter 2",
        "2 rounds, 0 of them plain, 0 rows, 1.00 guesses kept a round",
        "ms of a round, over 1: draft 125.0",
    ]
    assert [config.timed_every > 0 for _, config in library.runs] == [True] + 6 * [False]


def test_compare_is_fair(run: Run, library: FakeLibrary) -> None:
    """Both ways are warmed up, then timed in turn with the same prompt and settings."""
    run(*ASK, "--compare", "--max-tokens", "40", "--temp", "1", "--beam-width", "2")
    prompts = [prompt for prompt, _ in library.runs]
    assert all(prompt == prompts[0] for prompt in prompts)
    assert all(config.sampling.temperature == 1.0 for _, config in library.runs)
    beam = library.runs[0][1].beam
    assert beam is not None
    kinds = [
        ("drafted" if config.beam == beam else "plain", config.max_tokens)
        for _, config in library.runs
    ]
    assert {config.beam for _, config in library.runs} == {beam, BeamShape(1, 1)}
    assert kinds == [
        ("drafted", 40),  # the answer that is shown
        ("drafted", 16),
        ("plain", 16),
        ("drafted", 40),
        ("plain", 40),
        ("plain", 40),
        ("drafted", 40),
    ]


@pytest.mark.parametrize(
    ("plain_tokens", "index", "drafted", "plain"),
    [([10, 11, 99, 13], 2, 12, 99), ([10, 11], 2, 12, None), ([10, 11, 12, 13, 14], 4, None, 14)],
)
def test_compare_tells_where_ids_differ(
    run: Run,
    library: FakeLibrary,
    plain_tokens: list[int],
    index: int,
    drafted: int | None,
    plain: int | None,
) -> None:
    library.plain_tokens = plain_tokens
    comparison = read_json(run(*ASK, "--compare", "--json").stdout)["comparison"]
    assert comparison["agrees"] is False
    assert comparison["difference"] == {
        "index": index, "drafted": drafted, "plain": plain, "margin": 0.125,
    }  # fmt: skip
    shown = run(*ASK, "--compare")
    assert f"differ from token {index + 1} on (drafted {drafted}, plain {plain}; " in shown.stderr
    assert "the two best scores are 0.12 apart" in shown.stderr
    assert shown.exit_code == 0


def test_comparison_in_json(run: Run, library: FakeLibrary) -> None:
    result = run(*ASK, "--compare", "--json")
    assert result.stderr == ""
    assert read_json(result.stdout)["comparison"] == {
        "drafted": {"tokens_per_second": 3.0, "tokens_per_round": 1.5},
        "plain": {"tokens_per_second": 2.0, "tokens_per_round": 1.0},
        "num_tokens": 4,
        "difference": None,
        "speedup": 1.5,
        "agrees": True,
    }


def test_one_token_is_too_short_for_a_speed(run: Run, library: FakeLibrary) -> None:
    library.pieces = ["x"]
    comparison = read_json(run(*ASK, "--compare", "--json").stdout)["comparison"]
    assert comparison["speedup"] is None
    assert run(*ASK, "--compare").stderr.endswith("\nthe same 1 token id\n")


@pytest.mark.parametrize("option", [[], ["--no-drafter"], ["--lookup-only"]])
def test_lookups_alone_are_compared_with_plain_decoding(
    run: Run, library: FakeLibrary, option: list[str]
) -> None:
    library.has_drafter = bool(option)
    result = run(*ASK, "--compare", *option)
    assert result.exit_code == 0, result.stderr
    assert "the same 4 token ids" in result.stderr
    configs = [config for _, config in library.runs]
    assert [config.beam for config in configs].count(BeamShape(1, 1)) == 3
    assert sum(config.use_lookup and config.beam is None for config in configs) == 4


def test_nothing_that_drafts_is_not_compared(run: Run, library: FakeLibrary) -> None:
    library.has_drafter = False
    result = run(*ASK, "--compare", "--no-lookup", "--model", "m")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--compare has nothing to compare: m has no drafter, and --no-lookup" in result.stderr
    assert library.runs == []


def test_plain_decoding_of_a_comparison_looks_nothing_up(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real loop that repeats itself: lookups bring more than a token a round, plain one."""
    target = toy_target(6, vocab_size=NUM_TOKENS)
    model = toy_model(target, tokenizer=LetterTokenizer())
    monkeypatch.setattr("redrafter_mlx.loading.model.load", lambda *_, **__: model)
    result = run(*ASK, "--compare", "--json", "--max-tokens", "200", "--no-adapt")
    assert result.exit_code == 0, result.stderr
    comparison = read_json(result.stdout)["comparison"]
    assert comparison["agrees"] and comparison["num_tokens"] == 200
    assert comparison["plain"]["tokens_per_round"] == 1.0
    assert comparison["drafted"]["tokens_per_round"] > 1.0
