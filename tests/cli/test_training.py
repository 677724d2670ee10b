"""``distill`` and ``train`` on a tiny model; what they do is tested in tests/training."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import typer.main
from rich.console import Console

from redrafter_mlx.cli import bars
from redrafter_mlx.cli.main import app
from redrafter_mlx.cli.train import held_out_lines, step_words
from redrafter_mlx.conversation import Conversation
from redrafter_mlx.errors import ConfigError, PromptError
from redrafter_mlx.loading.drafter import load_drafter
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.loading.target import identify
from redrafter_mlx.training.corpus import create_corpus, open_corpus, read_shard
from redrafter_mlx.training.distill import DistillProgress
from redrafter_mlx.training.evaluate import Measured
from redrafter_mlx.training.settings import DistillConfig, DrafterShape, TrainingConfig
from redrafter_mlx.training.train import TrainingPlan
from redrafter_mlx.training.trainer import StepReport
from tests import small_tokenizers
from tests.cli.conftest import Run
from tests.cli.endless_model import NUM_TOKENS, LetterTokenizer
from tests.toy import toy_model, toy_target

ROOT = Path(__file__).resolve().parents[2]
END = NUM_TOKENS - 1


class EndingTokenizer(LetterTokenizer):
    eos_token_id = END


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """Have a tiny model by whatever name."""
    model = toy_model(toy_target(vocab_size=NUM_TOKENS), eos_ids=[END], tokenizer=EndingTokenizer())

    def load(name: str, *, drafter: Any, dtype: str, watch: Any) -> LoadedModel:
        assert drafter is None
        return model

    monkeypatch.setattr("redrafter_mlx.loading.model.load", load)
    return model


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def write_prompts(folder: Path, **more: str) -> Path:
    path = folder / "prompts.jsonl"
    rows = [{"prompt": f"What is {number}?"} | more for number in range(12)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


DISTILL = ("--temp", "0,0.8", "--max-tokens", "20", "--batch-size", "6")
TRAIN = (
    "--steps", "6", "--batch-size", "64", "--evaluate-every", "3", "--head", "own",
    "--draft-vocab", "60", "--exit-dim", "24", "--layers", "1", "--draft-length", "3",
)  # fmt: skip


def test_from_prompts_to_a_drafter(run: Run, tiny: LoadedModel, tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "drafter"
    prompts = write_prompts(tmp_path)
    result = run("distill", "--out", str(corpus), "--prompts", str(prompts), *DISTILL)
    assert result.exit_code == 0, result.stderr
    shards = open_corpus(corpus).shards
    samples = [sample for shard in shards for sample in read_shard(shard, NUM_TOKENS)]
    assert len(samples) == 12
    num_tokens = sum(sample.num_answer_tokens for sample in samples)
    assert re.search(rf"12 answers, {num_tokens} tokens, \d+ tokens/s\n", result.stdout)
    result = run("distill", "--out", str(corpus), "--prompts", str(prompts), *DISTILL)
    assert result.stdout == f"{corpus}: 12 answers, {num_tokens} tokens, complete already\n"
    result = run("train", "--corpus", str(corpus), "--out", str(out), *TRAIN)
    assert result.exit_code == 0, result.stderr
    assert f"6 steps on {num_tokens} positions" in result.stdout
    assert result.stderr.count("held out: loss") == 2
    config = load_drafter(out, tiny.target).config
    assert (config.exit_dim, config.num_draft_layers, config.draft_vocab_size) == (24, 1, 60)
    assert (config.draft_length, config.head) == (3, "own")
    log = (tmp_path / "drafter.training/log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [1, 2, 3, 4, 5, 6]
    again = run("train", "--corpus", str(corpus), "--out", str(out), *TRAIN)
    assert again.exit_code == 1 and "exists and is not an empty folder" in again.stderr
    again = run("train", "--corpus", str(corpus), "--out", str(out), *TRAIN, "--resume")
    assert again.exit_code == 1 and "that training is over: train further by" in again.stderr


def test_a_file_that_asks_nothing_makes_no_corpus(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("\n\n")
    result = run("distill", "--prompts", str(file), "--out", "c")
    assert result.exit_code == 1
    assert "empty.jsonl asks nothing; give a file with prompts." in result.stderr
    assert not Path("c").exists()


@pytest.mark.parametrize(
    "text", ["\n", '{"prompt": "Who?"}\n', '{"prompt": "Who?", "response": "I"}\n{']
)
def test_texts_that_cannot_be_read_make_no_corpus(
    run: Run, tiny: LoadedModel, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(text)
    assert run("distill", "--read", str(file), "--out", "c").exit_code == 1
    assert not Path("c").exists()


def test_texts_by_others_are_read(run: Run, tiny: LoadedModel, tmp_path: Path) -> None:
    path = write_prompts(tmp_path, response="A number.")
    result = run("distill", "--out", str(tmp_path / "corpus"), "--read", str(path))
    assert result.exit_code == 0, result.stderr
    assert "12 texts to read" in result.stdout
    (shard,) = open_corpus(tmp_path / "corpus").shards
    sample = read_shard(shard, NUM_TOKENS)[0]
    assert tiny.tokenizer.decode(sample.answer.tolist()[:-1]) == "A number."
    assert sample.answer[-1] == END


@pytest.mark.parametrize("template", ["CHATML", "INST", "THINKING", "SWITCHED_THINKING"])
def test_prompts_of_a_corpus_are_those_that_chat_sends(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: str
) -> None:
    """Law: answered or read, the ids before an answer are what chat asks the model."""
    tokenizer = small_tokenizers.byte_level()
    tokenizer.chat_template = getattr(small_tokenizers, template)
    model = toy_model(toy_target(vocab_size=len(tokenizer)), tokenizer=tokenizer)
    monkeypatch.setattr("redrafter_mlx.loading.model.load", lambda name, **_: model)
    sent: list[list[int]] = []

    def send(model: LoadedModel, tokens: list[int], *_: Any, **__: Any) -> Iterator[Any]:
        sent.append(list(tokens))
        yield from ()

    monkeypatch.setattr("redrafter_mlx.conversation.stream_generate", send)
    list(Conversation(model).ask("What is 0?"))
    path = write_prompts(tmp_path, response="A number.")
    for option, how in (("--prompts", DISTILL), ("--read", ())):
        out = tmp_path / option
        result = run("distill", "--out", str(out), option, str(path), *how)
        assert result.exit_code == 0, result.stderr
        sample = read_shard(open_corpus(out).shards[0], len(tokenizer))[0]
        assert sample.tokens[: sample.prompt_length].tolist() == sent[0]


def test_answers_in_another_dtype_are_a_part_of_their_own(
    run: Run, tiny: LoadedModel, tmp_path: Path
) -> None:
    corpus = tmp_path / "c"
    command = ("distill", "--out", str(corpus), "--prompts", str(write_prompts(tmp_path)), *DISTILL)
    for dtype, num_shards in ((mx.float32, 2), (mx.float16, 4), (mx.float16, 4)):
        tiny.target.set_dtype(dtype)
        assert run(*command).exit_code == 0
        assert len(open_corpus(corpus).shards) == num_shards


def test_prompts_that_are_too_long_are_left_out_with_a_word(
    run: Run, tiny: LoadedModel, tmp_path: Path
) -> None:
    longest = tiny.target.config.max_positions - 1
    prompts = tmp_path / "long.txt"
    prompts.write_text("b" * 9 * longest + "\n")
    command = ("distill", "--out", str(tmp_path / "c"), "--prompts", str(prompts), *DISTILL)
    result = run(*command)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert f"No prompt of the file has 1 to {longest} tokens" in result.stderr
    assert not (tmp_path / "c").exists()
    prompts.write_text(prompts.read_text() + "abc\n")
    result = run(*command)
    assert f"1 prompt left out: not 1 to {longest} tokens" in result.stderr
    assert ": 1 answer, " in result.stdout


def test_prompt_that_the_template_refuses_is_named_and_makes_no_corpus(
    run: Run, tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tokenizer: Any, messages: Any) -> list[int]:
        if "11" in messages[0]["content"]:
            raise PromptError("The template refuses it.")
        return [1, 2]

    monkeypatch.setattr("redrafter_mlx.text.render_chat", refuse)
    prompts = write_prompts(tmp_path)
    result = run("distill", "--out", str(tmp_path / "c"), "--prompts", str(prompts), *DISTILL)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "Prompt 12 of the file: The template refuses it." in result.stderr
    assert not (tmp_path / "c").exists()


def test_built_in_prompts_serve_where_there_is_no_file(
    run: Run, tiny: LoadedModel, tmp_path: Path
) -> None:
    options = ("--tokens", "30", "--max-tokens", "10", "--batch-size", "4", "--seed", "5")
    result = run("distill", "--out", str(tmp_path / "corpus"), *options)
    assert result.exit_code == 0, result.stderr
    assert len(open_corpus(tmp_path / "corpus").shards) >= 1


def test_missing_matplotlib_is_one_line(
    run: Run, tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run(
        "distill", "--out", str(tmp_path / "c"), "--prompts", str(write_prompts(tmp_path)), *DISTILL
    )
    result = run("train", "--corpus", str(tmp_path / "c"), "--out", str(tmp_path / "d"), *TRAIN)
    assert result.exit_code == 0, result.stderr
    assert "No curves were drawn: pip install 'redrafter-mlx[plots]'" in result.stderr


@pytest.mark.usefixtures("elsewhere")
def test_ctrl_c_tells_how_to_go_on(
    run: Run, tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_: object) -> None:
        raise KeyboardInterrupt

    distil = ("distill", "--out", "c", "--prompts", str(write_prompts(tmp_path)), *DISTILL)
    for command, broken, how in (
        (distil, "training.distill.decode_batch", "the same options"),
        (("train", "--corpus", "c", "--out", "d", *TRAIN), "training.trainer.cut_gradients",
         "the same options and --resume"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(f"redrafter_mlx.{broken}", break_off)
            result = run(*command)
        assert result.exit_code == 130
        assert result.stderr.endswith(f"Broken off; go on with {how}\n")
        resumed = run(*command, *(["--resume"] if "--resume" in how else []))
        assert resumed.exit_code == 0, resumed.stderr


INTO_D = ("train", "--corpus", "absent", "--out", "d")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("distill",), 2, "--out"),
        (("distill", "--out", "c", "--temp", "hot"), 2, "no list of numbers"),
        (("distill", "--out", "c", "--read", "x", "--prompts", "y"), 2, "contradicts --prompts"),
        (("distill", "--out", "c", "--read", "x", "--temp", "1"), 2, "--temp: it has no effect"),
        (("distill", "--out", "c", "--read", "x", "--seed", "1"), 2, "--seed: it has no effect"),
        (("distill", "--out", ""), 2, "'--out': it is empty"),
        (("distill", "--out", "c", "--model", ""), 2, "'--model': it is empty"),
        (("distill", "--out", "c", "--batch-size", "0"), 2, " --batch-size is 0;"),
        (("distill", "--out", "c", "--max-tokens", "1"), 2, " --max-tokens is 1;"),
        (("distill", "--out", "c", "--tokens", "0"), 2, " --tokens is 0;"),
        (("distill", "--out", "c", "--temp", "0,-1"), 2, " --temp is -1.0;"),
        (("distill", "--out", "c", "--seed", "-1"), 2, " --seed is -1;"),
        (("distill", "--out", "c", "--prompts", "absent.txt"), 1, "absent.txt cannot be read"),
        (("distill", "--out", "c", "--read", "absent.txt"), 1, "absent.txt cannot be read"),
        (("train", "--corpus", "absent", "--out", "d"), 1, "has no corpus.json"),
        (("train", "--corpus", "", "--out", "d"), 2, "'--corpus': it is empty"),
        ((*INTO_D, "--labels", "x"), 2, " --labels is 'x';"),
        ((*INTO_D, "--head", "x"), 2, " --head is 'x';"),
        ((*INTO_D, "--layers", "-1"), 2, " --layers is -1;"),
        ((*INTO_D, "--exit-dim", "0"), 2, " --exit-dim is 0;"),
        ((*INTO_D, "--draft-vocab", "0"), 2, " --draft-vocab is 0;"),
        ((*INTO_D, "--draft-length", "65"), 2, " --draft-length is 65;"),
        ((*INTO_D, "--batch-size", "0"), 2, " --batch-size is 0;"),
        ((*INTO_D, "--learning-rate", "0"), 2, " --learning-rate is 0.0;"),
        ((*INTO_D, "--epochs", "0"), 2, " --epochs is 0.0;"),
        ((*INTO_D, "--steps", "0"), 2, " --steps is 0;"),
        ((*INTO_D, "--steps", "9", "--epochs", "2"), 2, "--steps: it contradicts --epochs"),
        ((*INTO_D, "--corpus", "./absent"), 2, "--corpus: a folder is given twice"),
        ((*INTO_D, "--held-out", "0.6"), 2, " --held-out is 0.6;"),
        (("train", "--corpus", "absent", "--out", "d", "--dtype", "x"), 2, "'x' is not one of"),
        (("train", "--corpus", "x", "--out", "d", "--hidden-gb", "nan"), 2, " --hidden-gb is nan;"),
    ],
)
def test_faults_are_one_line(
    run: Run, tiny: LoadedModel, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert code == 2 or result.stderr.count("\n") == 1
    assert not Path("c").exists() and not Path("d").exists()


def report(training: float, held_out: float | None, step: int = 20) -> StepReport:
    measured = None if held_out is None else Measured(1.5, (held_out, 0.2), 1.75)
    return StepReport(step, 40, 1.25, (training, 0.3), 1e-3, 0.5, 321.4, measured)


def test_parting_of_training_and_held_out_part_is_a_warning() -> None:
    assert held_out_lines(report(0.6, None)) == []
    (line,) = held_out_lines(report(0.5, 0.49))
    assert line == (
        "step 20: held out: loss 1.500, accuracy by depth 0.490 0.200, 1.750 tokens/round"
    )
    _, warning = held_out_lines(report(0.6, 0.4))
    assert warning.startswith("Overfitting: accuracy at depth 1 is 0.600 in training and 0.400")
    assert len(held_out_lines(report(0.6, 0.4, step=19))) == 1
    assert step_words(report(0.5, None)) == "step 20 · loss 1.250 · 321 positions/s"


def test_quiet_bar_tells_now_and_then_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    with bars.bar("Answering") as answering:
        for done in range(0, 500, 100):
            answering.show(done, 1000, "5 tokens/s")
            now[0] += 20
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "Answering: 200 of 1000, 5 tokens/s, 3 min left",
        "Answering: 400 of 1000, 5 tokens/s, 2 min left",
    ]


def test_line_that_stays_begins_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other two bars: older versions of rich refuse two at once."""
    shown = io.StringIO()
    monkeypatch.setattr(bars, "console", lambda: Console(file=shown, force_terminal=True))
    monkeypatch.setattr(bars.sys.stderr, "isatty", lambda: True)
    for text in ("Reading", "Training"):
        with bars.bar(text) as showing:
            showing.show(1, 4, "words")
            showing.note("held out: loss 1.5")
    assert shown.getvalue().count("25% words") >= 2
    for before in shown.getvalue().split("held out: loss 1.5")[:2]:
        assert re.search(r"\x1b\[2K(\x1b\[\d*m)*$", before), "the bar's line is wiped first"


def options_of(command: str) -> set[str]:
    """Return the options that a command has, but for those of every command."""
    group: Any = typer.main.get_command(app)
    names = {name for option in group.commands[command].params for name in option.opts}
    return {name for name in names if name.startswith("--")} - {"--help", "--debug", "--version"}


def given(options: Mapping[str, object]) -> list[str]:
    """Return a command line; a flag's value is empty."""
    return [str(word) for pair in options.items() for word in pair if word != ""]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch, tiny: LoadedModel) -> list[tuple[str, str]]:
    """Return the names and dtypes of the models that are loaded."""
    found: list[tuple[str, str]] = []

    def load(name: str, *, drafter: Any, dtype: str, watch: Any) -> LoadedModel:
        found.append((name, dtype))
        return tiny

    monkeypatch.setattr("redrafter_mlx.loading.model.load", load)
    return found


def test_every_option_of_train_reaches_the_library(
    run: Run, tiny: LoadedModel, loads: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[TrainingPlan] = []

    def prepare(model: LoadedModel, plan: TrainingPlan, on_features: Any) -> None:
        plans.append(plan)
        raise ConfigError("enough")

    monkeypatch.setattr("redrafter_mlx.training.train.prepare", prepare)
    create_corpus(tmp_path / "c", identify("toy", tiny.target))
    options = {
        "--corpus": tmp_path / "c", "--out": tmp_path / "d", "--model": "m", "--dtype": "float16",
        "--init-from": "source", "--resume": "", "--hidden-gb": 2.5, "--exit-dim": 24,
        "--layers": 1, "--head": "own", "--draft-vocab": 60, "--draft-length": 3,
        "--labels": "hard", "--batch-size": 64, "--learning-rate": 0.002, "--weight-decay": 0.02,
        "--depth-decay": 0.7, "--held-out": 0.1, "--evaluate-every": 3, "--checkpoint-every": 4,
        "--seed": 5,
    }  # fmt: skip
    lengths: list[dict[str, object]] = [{"--epochs": 3.5}, {"--steps": 6}]
    for length in lengths:
        assert run("train", *given(options | length)).stderr.endswith("enough\n")
    assert options_of("train") == options.keys() | {"--epochs", "--steps"}
    config = TrainingConfig(
        draft_length=3, labels="hard", depth_decay=0.7, batch_size=64, learning_rate=0.002,
        weight_decay=0.02, held_out=0.1, evaluate_every=3, checkpoint_every=4, seed=5,
    )  # fmt: skip
    wanted = TrainingPlan(
        corpus=(tmp_path / "c",),
        out=tmp_path / "d",
        shape=DrafterShape(24, 1, "own", 60),
        config=config,
        init_from=Path("source"),
        max_hidden_bytes=2_500_000_000,
        resume=True,
    )
    assert plans == [
        replace(wanted, config=replace(config, epochs=3.5)),
        replace(wanted, config=replace(config, steps=6)),
    ]
    assert loads == 2 * [("m", "float16")]


def test_every_option_of_distill_reaches_the_library(
    run: Run, tiny: LoadedModel, loads: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def answer(
        target: Any, eos_ids: Any, prompts: Any, place: Any, config: Any, report: Any
    ) -> DistillProgress:
        asked.append((len(list(prompts)), place[0], config))
        return DistillProgress(0, 0, 0, 1.0)

    monkeypatch.setattr("redrafter_mlx.training.distill.distill", answer)
    options = {
        "--out": tmp_path / "c", "--model": "m", "--dtype": "float16",
        "--prompts": write_prompts(tmp_path), "--tokens": 30, "--temp": "0.5,0",
        "--max-tokens": 20, "--batch-size": 6, "--seed": 5,
    }  # fmt: skip
    assert options.keys() | {"--read"} == options_of("distill")
    result = run("distill", *given(options))
    assert result.exit_code == 0, result.stderr
    config = DistillConfig((0.5, 0.0), max_tokens=20, batch_size=6, num_tokens=30, seed=5)
    assert (asked, loads) == ([(12, tmp_path / "c", config)], [("m", "float16")])


@pytest.mark.parametrize("name", ["distill", "train"])
def test_every_command_of_the_documentation_is_understood(name: str) -> None:
    program: Any = typer.main.get_command(app)
    texts = [(ROOT / file).read_text() for file in ("README.md", "docs/training.md")]
    text = "\n".join(texts).replace("\\\n", "")
    found = re.findall(rf"^redrafter-mlx {name} (.*)$", text, flags=re.MULTILINE)
    assert len(found) >= 4
    for arguments in found:
        program.commands[name].make_context(name, shlex.split(arguments))
