"""What was wrong with the published measurements of ReDrafter on MLX cannot happen here.

The numbers are those of a review of apple/ml-recurrent-drafter at bd8586b. Faults of its data are
met in ``bench/published.py`` (tests/bench/test_published.py); here are those of a bench's code.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from redrafter_mlx.bench import sides
from redrafter_mlx.bench.compare import compare
from redrafter_mlx.bench.measure import cells
from redrafter_mlx.bench.peer import load_peer
from redrafter_mlx.bench.plain_answers import PlainAnswers
from redrafter_mlx.bench.questions import Question
from redrafter_mlx.bench.report import report, to_csv
from redrafter_mlx.bench.results import MLX_LM, PLAIN, BenchResults, Trial, from_json, to_json
from redrafter_mlx.bench.session import Place, Session, begin
from redrafter_mlx.bench.sides import OurSide, PeerSide, SideOptions, our_sides
from redrafter_mlx.bench.store import Recorder
from redrafter_mlx.bench.suites import Suite, find_suite
from redrafter_mlx.bench.summary import summarize
from redrafter_mlx.cli.main import PROGRAM_NAME, app
from redrafter_mlx.config import BeamShape, SamplingConfig
from redrafter_mlx.loading.drafter import load_drafter
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.loading.target import load_target
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.weights import save_tensors, write_json
from tests.bench.synthetic_results import synthetic_results
from tests.cli.endless_model import FIRST, NUM_TOKENS, LetterTokenizer
from tests.toy import TOY_TARGET, toy_drafter, toy_model, toy_target

ROOT = Path(__file__).resolve().parents[2]
MAX_TOKENS = 12
SHAPE = BeamShape(2, 3)
OPTIONS = SideOptions(
    max_tokens=MAX_TOKENS,
    sampling=SamplingConfig(),
    ignores_eos=True,
    uses_lookup=True,
    shapes=(SHAPE,),
)
QUESTIONS = (
    Question(81, "writing", ("Say a rhyme", "And again")),
    Question(111, "math", ("What is 2 + 2?",)),
)
SUITE = Suite("tiny", QUESTIONS, max_tokens=MAX_TOKENS, num_trials=2)
SETTINGS: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": TOY_TARGET.hidden_size,
    "intermediate_size": TOY_TARGET.intermediate_size,
    "num_hidden_layers": TOY_TARGET.num_layers,
    "num_attention_heads": TOY_TARGET.num_heads,
    "num_key_value_heads": TOY_TARGET.num_kv_heads,
    "vocab_size": TOY_TARGET.vocab_size,
    "rms_norm_eps": TOY_TARGET.rms_norm_eps,
    "max_position_embeddings": TOY_TARGET.max_positions,
    "tie_word_embeddings": False,
}


class Letters(LetterTokenizer):
    """The same, without a pause a token."""

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return "".join(chr(token + FIRST) for token in tokens)


def letters(**changes: Any) -> LoadedModel:
    """Return a random model in memory that answers in letters."""
    target = toy_target(vocab_size=NUM_TOKENS, **changes)
    return toy_model(target, toy_drafter(target), tokenizer=Letters())


def session(folder: Path, model: LoadedModel | None = None, suite: Suite = SUITE) -> Session:
    return begin(model or letters(), suite, OPTIONS, suite.num_trials, Place(folder / "out"))


def measured(folder: Path, model: LoadedModel | None = None, suite: Suite = SUITE) -> BenchResults:
    bench = session(folder, model, suite)
    bench.run(lambda done, words: None)
    return bench.recorder.results


@dataclass
class Observed:
    """A bench, and in which order its sides answered and answers were counted as timed."""

    results: BenchResults
    events: list[str]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """Run a bench of two questions and two trials."""
    events: list[str] = []
    answer, add_trial = OurSide.answer, Recorder.add_trial

    def noted_answer(self: OurSide, prompt: Any, max_tokens: int) -> Any:
        events.append(self.configuration.name)
        return answer(self, prompt, max_tokens)

    def noted_trial(self: Recorder, trial: Trial) -> None:
        events.append("timed")
        add_trial(self, trial)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OurSide, "answer", noted_answer)
        patch.setattr(Recorder, "add_trial", noted_trial)
        return Observed(measured(tmp_path_factory.mktemp("bench")), events)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the rows of each pass of the target, as they are run."""
    found: list[int] = []
    call = Decoder.__call__

    def counted(self: Decoder, tokens: mx.array, *args: Any, **options: Any) -> mx.array:
        found.append(tokens.size)
        return call(self, tokens, *args, **options)

    monkeypatch.setattr(Decoder, "__call__", counted)
    return found


# 25: the first round was not counted.


@pytest.mark.parametrize("place", range(4), ids=["plain", "adapted", "fixed", "asked for"])
def test_25_every_pass_behind_the_prompts_is_a_round(place: int, passes: list[int]) -> None:
    side = our_sides(letters(), OPTIONS)[place]
    prompt = [1, 2, 3]
    timing = side.answer(prompt, MAX_TOKENS)
    read, *rounds = passes
    assert read == len(prompt)
    assert timing.stats.num_rounds == len(rounds)
    assert timing.stats.verified_rows == sum(rounds)
    assert timing.stats.emitted_tokens == len(timing.tokens) == MAX_TOKENS


def test_25_a_round_brings_no_more_than_its_drafts_and_one(observed: Observed) -> None:
    """Tokens behind the first are those kept and one a round: a round too few breaks it."""
    for trial in observed.results.trials:
        brought = trial.num_rounds + sum(trial.accepted_by_depth)
        # The last round may bring more than the answer takes.
        assert 0 <= brought - (trial.emitted_tokens - 1) <= 1, trial
    rounds = {one.name: one.tokens_per_round for one in summarize(observed.results)}
    assert rounds[PLAIN] == 1.0


# 26: one prompt, one run, nothing warmed up.


def test_26_every_side_is_warm_before_the_first_answer_is_timed(observed: Observed) -> None:
    names = {one.name for one in observed.results.configurations}
    assert len(names) == 4
    before_the_first_timed_one = observed.events[: observed.events.index("timed") - 1]
    assert names <= set(before_the_first_timed_one)


def test_26_no_side_is_always_first_and_all_have_the_same_prompts() -> None:
    ways = our_sides(letters(), OPTIONS)
    order = list(cells(SUITE, ways, 4))
    firsts = [cell.side.configuration.name for cell in order[:: len(ways)]]
    assert len(set(firsts)) == len(ways)
    answered = Counter((cell.side.configuration.name, cell.question, cell.turn) for cell in order)
    names = [side.configuration.name for side in ways]
    assert set(answered) == set(product(names, QUESTIONS, [1]))
    assert set(answered.values()) == {4}


@pytest.mark.parametrize("name", ["quick", "paper"])
def test_26_a_suite_is_run_more_than_once(name: str) -> None:
    assert find_suite(name).num_trials >= 3
    assert len(find_suite("quick").questions) > 1


def test_26_the_spread_stands_in_the_report() -> None:
    assert "| plain | 40.00 (35.56 to 44.44) |" in report(synthetic_results())


# 27: the precision was changed in place, to bfloat16 and back.


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_27_a_bench_leaves_the_weights_as_they_were(tmp_path: Path, dtype: mx.Dtype) -> None:
    model = letters()
    model.target.set_dtype(dtype)
    before = bits_of(model.target)
    results = measured(tmp_path, model, replace(SUITE, questions=QUESTIONS[:1], num_trials=1))
    after = bits_of(model.target)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert results.target.dtype == str(dtype).removeprefix("mlx.core.")


def test_27_all_sides_have_the_very_same_weights(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target", mx.float16)
    target = load_target(folder, "stored")
    stored = {name: value.astype(mx.float16) for name, value in weights_of(toy_target()).items()}
    loaded = weights_of(target)
    assert all(np.array_equal(np.array(loaded[name]), np.array(stored[name])) for name in stored)
    peer = weights_of(load_peer(folder, target))
    assert all(np.array_equal(np.array(peer[name]), np.array(loaded[name])) for name in loaded)
    ways = our_sides(toy_model(target, toy_drafter(target)), OPTIONS)
    assert all(side.model.target is target for side in ways)


# 28: the two sides were not timed alike.


def test_28_both_sides_stream_token_by_token_on_one_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tick of the clock a token: 1 to the first, then one each, whoever decodes."""
    now = 0.0
    clock = sides._Clock
    asked: list[tuple[list[int], int]] = []

    def stream(*args: Any, **options: Any) -> Any:
        nonlocal now
        prompt, max_tokens = args[-2:] if len(args) == 4 else (args[1], args[2].max_tokens)
        asked.append((prompt, max_tokens))
        for number in range(max_tokens):
            now += 1.0
            yield SimpleNamespace(token=number, stats=SimpleNamespace(), text="")

    monkeypatch.setattr(sides, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(sides, "_Clock", lambda: clock(started=now))
    monkeypatch.setattr(sides, "stream_generate", stream)
    # Not by a dotted name: the package has a function that is called generate, too.
    monkeypatch.setattr(import_module("mlx_lm.generate"), "stream_generate", stream)
    model = letters()
    ours = our_sides(model, OPTIONS)[1]
    positions = model.target.config.max_positions
    theirs = PeerSide(
        replace(ours.configuration, name=MLX_LM), None, None, OPTIONS.sampling, positions
    )
    timings = []
    for side in (ours, theirs):
        found = side.answer([1, 2, 3], MAX_TOKENS)
        timings.append((found.tokens, found.time_to_first_token_seconds, found.decode_seconds))
    assert timings[0] == timings[1] == (tuple(range(MAX_TOKENS)), 1.0, MAX_TOKENS - 1.0)
    assert asked == [([1, 2, 3], MAX_TOKENS)] * 2


# 29: plain decoding in bfloat16 kept a cache in float16.


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_29_every_sides_cache_has_the_targets_precision(
    dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = letters()
    model.target.set_dtype(dtype)
    caches: list[KVCache] = []
    make = Decoder.make_kv_cache

    def kept(self: Decoder) -> KVCache:
        caches.append(make(self))
        return caches[-1]

    monkeypatch.setattr(Decoder, "make_kv_cache", kept)
    for side in our_sides(model, OPTIONS):
        side.answer([1, 2, 3], MAX_TOKENS)
    assert len(caches) == 4
    assert {value.dtype for cache in caches for value in cache.arrays} == {dtype}


# 30: what was written had other names than what the analysis read, which then showed NaN.


def test_30_what_is_written_is_what_is_read(observed: Observed) -> None:
    read = from_json(to_json(observed.results))
    names = [one.name for one in observed.results.configurations]
    summaries = summarize(read)
    assert [one.name for one in summaries] == names
    assert all(0.0 < one.tokens_per_second.least < math.inf for one in summaries)
    for text in (report(read), to_csv(read)):
        assert re.search(r"\bnan\b", text, flags=re.IGNORECASE) is None
        assert all(name in text for name in names)
    assert [one.first.name for one in compare(read, observed.results).comparisons] == names


def commands() -> list[str]:
    """Return every line of the documentation that runs the bench."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files).replace("\\\n", " ")
    return re.findall(rf"^[ $]*({PROGRAM_NAME} bench\b[^#\n`]*)", text, flags=re.MULTILINE)


def test_30_every_command_of_the_documentation_is_understood() -> None:
    """Their README left out an option that its command requires."""
    import typer

    program = typer.main.get_command(app)
    found = commands()
    assert found
    for command in found:
        _, name, *arguments = shlex.split(command)
        context = program.make_context(PROGRAM_NAME, [name], resilient_parsing=True)
        bench = program.get_command(context, name)  # type: ignore[attr-defined]
        bench.make_context(name, arguments, parent=context)


# 31: of MT-Bench only first turns, and none of a question of 500 letters or more.


@pytest.fixture
def long_questions(tmp_path: Path) -> Path:
    """Return a file with a short, a long and a far too long question of two turns each."""
    file = tmp_path / "question.jsonl"
    turns = [["a" * length, "b"] for length in (5, 300, 5000)]
    lines = [{"question_id": 81 + place, "turns": pair} for place, pair in enumerate(turns)]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return file


def test_31_no_question_is_dropped_for_its_letters(long_questions: Path) -> None:
    suite = find_suite("mt-bench", long_questions)
    assert [question.question_id for question in suite.questions] == [81, 82, 83]
    asked = cells(replace(suite, num_turns=2), our_sides(letters(), OPTIONS)[:1], 1)
    assert [(cell.question.question_id, cell.turn) for cell in asked] == [
        (question_id, turn) for question_id in (81, 82, 83) for turn in (1, 2)
    ]


def test_31_what_does_not_fit_the_context_is_told(long_questions: Path, tmp_path: Path) -> None:
    """The context holds 512 tokens; a letter is one here."""
    suite = replace(find_suite("mt-bench", long_questions), max_tokens=MAX_TOKENS)
    results = measured(tmp_path, suite=suite)
    assert {trial.question_id for trial in results.trials} == {81, 82}
    (note,) = (note for note in results.notes if note.startswith("Question"))
    assert "Question 83, turn 1 was not asked" in note
    assert "context of 512" in note
    assert note in report(results)


def test_31_the_second_turn_follows_the_models_own_answer() -> None:
    plain = PlainAnswers(letters(), OPTIONS.plain_config)
    question = QUESTIONS[0]
    decode = Letters().decode
    prompt = decode(plain.prompt(question, 2))
    answer = plain.answer(question, 1).text
    assert len(answer) == MAX_TOKENS
    assert f"{question.turns[0]}<assistant>{answer}<user>{question.turns[1]}" in prompt


def test_31_no_answer_leaves_the_context() -> None:
    model = letters(max_positions=20)
    side = our_sides(model, OPTIONS)[1]
    assert len(side.answer(list(range(1, 16)), MAX_TOKENS).tokens) == 5


# 32: parameters were cast lazily, and the first prompt paid.


@pytest.mark.parametrize("stored", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("wanted", ["auto", "float32", "float16", "bfloat16"])
def test_32_nothing_is_left_to_compute_of_the_weights(
    tmp_path: Path, stored: mx.Dtype, wanted: str
) -> None:
    """Law: evaluating what was loaded takes no memory and frees none."""
    target = load_target(write_target(tmp_path / "target", stored), wanted)
    assert memory_of_evaluating(target.parameters()) == 0
    folder = write_drafter(tmp_path / "drafter")
    for dtype in ("auto", wanted):
        drafter = load_drafter(folder, target, dtype)
        assert memory_of_evaluating(drafter._network.parameters()) == 0


def memory_of_evaluating(parameters: Any) -> int:
    mx.synchronize()
    before = mx.get_active_memory()
    mx.eval(parameters)
    mx.synchronize()
    return mx.get_active_memory() - before


def weights_of(module: Any) -> dict[str, mx.array]:
    found: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    return found


def bits_of(module: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value.view(mx.uint16)) for name, value in weights_of(module).items()}


def write_target(folder: Path, dtype: mx.Dtype) -> Path:
    folder.mkdir()
    tensors = {name: value.astype(dtype) for name, value in weights_of(toy_target()).items()}
    write_json(folder / "config.json", SETTINGS)
    save_tensors(folder / "model.safetensors", tensors)
    return folder


def write_drafter(folder: Path) -> Path:
    folder.mkdir()
    drafter = toy_drafter(toy_target())
    write_json(folder / "config.json", drafter.config.to_dict())
    save_tensors(folder / "model.safetensors", weights_of(drafter._network))
    return folder
