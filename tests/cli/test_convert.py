"""``redrafter-mlx convert`` on tiny drafters; what it imports is tested in tests/convert."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import DrafterConfig, GenerationConfig, Quantization
from redrafter_mlx.generation import generate
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.loading.target import identify
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.prompts import bench_prompts, tune_prompts
from redrafter_mlx.weights import load_tensors, read_json
from tests.cli.conftest import Run
from tests.cli.endless_model import LetterTokenizer
from tests.cli.tiny_source import CONFIG, write_drafter
from tests.toy import toy_target

EOS = 94


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Decoder:
    """Have a tiny model by the name of "tiny"."""
    decoder = toy_target(vocab_size=CONFIG.vocab_size, is_tied=True)

    def resolve_model(name: str, **_: Any) -> Path:
        assert name == "tiny"
        return tmp_path

    def load_target(folder: Path, dtype: str) -> Decoder:
        assert (folder, dtype) == (tmp_path, "stored")
        return decoder

    monkeypatch.setattr("redrafter_mlx.loading.hub.resolve_model", resolve_model)
    monkeypatch.setattr("redrafter_mlx.loading.target.load_target", load_target)
    monkeypatch.setattr("redrafter_mlx.loading.model.load_tokenizer", lambda _: LetterTokenizer())
    monkeypatch.setattr("redrafter_mlx.loading.model.eos_ids", lambda *_: frozenset({EOS}))
    return decoder


def read_config(folder: Path) -> DrafterConfig:
    return DrafterConfig.from_dict(read_json(folder / "config.json"))


def test_import_as_it_is(run: Run, tmp_path: Path) -> None:
    source, out = write_drafter(tmp_path / "source"), tmp_path / "out"
    result = run("convert", str(source), "--out", str(out))
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        f"{out}: 20 kB",
        "hidden_size 32, exit_dim 32, 2 residual blocks, vocabulary 95",
        "head of its own; weights not quantised",
    ]
    assert read_config(out) == CONFIG


def test_every_option_reaches_the_import(run: Run, tmp_path: Path, target: Decoder) -> None:
    source, out = write_drafter(tmp_path / "source"), tmp_path / "out"
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("abab c")
    result = run(
        *("convert", str(source), "--out", str(out), "--target", "tiny", "--draft-length", "3"),
        *("--quantize", "8", "--group-size", "32", "--draft-vocab", "3", "--from", str(corpus)),
    )
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1:] == [
        "hidden_size 32, exit_dim 32, 2 residual blocks, vocabulary 95 cut to 3",
        "head of its own; weights 8 bits in groups of 32",
        "trained to draft 3 tokens",
        "made for tiny",
    ]
    assert read_config(out) == replace(
        CONFIG,
        draft_length=3,
        draft_vocab_size=3,
        quantization=Quantization(bits=8, group_size=32),
        target=identify("tiny", target),
    )
    kept = load_tensors(out)["draft_vocab"]
    assert kept.tolist() == [*LetterTokenizer().encode("ab"), EOS]


def test_tensors_that_are_left_out_are_named(run: Run, tmp_path: Path) -> None:
    source = write_drafter(tmp_path / "source")
    mx.save_safetensors(
        str(source / "model.safetensors"),
        {**load_tensors(source), "drafter.emb_norm.weight": mx.ones(32)},
    )
    result = run("convert", str(source), "--out", str(tmp_path / "out"))
    assert result.stdout.splitlines()[3:] == [
        "left out drafter.emb_norm.weight, which no drafter uses"
    ]


@pytest.mark.parametrize("is_occupied", [True, False])
def test_cheap_checks_come_before_the_target(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_occupied: bool
) -> None:
    """A place that is taken, or a source that is none, is found before anything slow."""

    def refuse(name: str, **_: Any) -> None:
        raise AssertionError(f"{name} is loaded")

    monkeypatch.setattr("redrafter_mlx.loading.hub.resolve_model", refuse)
    source, out = tmp_path / "source", tmp_path / "out"
    if is_occupied:
        write_drafter(source)
        out.touch()
    result = run("convert", str(source), "--out", str(out), "--target", "tiny")
    assert result.exit_code == 1
    assert f"{out if is_occupied else source}" in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_a_corpus_the_targets_own_answers_are_counted(
    run: Run, tmp_path: Path, target: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = LetterTokenizer()
    model = LoadedModel("tiny", None, target, None, tokenizer, frozenset({EOS}))
    monkeypatch.setattr("redrafter_mlx.loading.model.load", lambda name, **_: model)
    prompts = [*tune_prompts()[:2], *bench_prompts()[:2]]
    long = tune_prompts()[2]  # for the context, and left out

    def chat_prompt(model: LoadedModel, text: str) -> list[int]:
        ids = tokenizer.encode(text[:2])
        return ids * target.config.max_positions if text == long.text else ids

    monkeypatch.setattr("redrafter_mlx.generation.chat_prompt", chat_prompt)
    monkeypatch.setattr("redrafter_mlx.prompts.tune_prompts", lambda: [long, *prompts[:2]])
    monkeypatch.setattr("redrafter_mlx.prompts.bench_prompts", lambda: prompts[2:])
    monkeypatch.setattr("redrafter_mlx.cli.import_drafter.ANSWER_TOKENS", 24)
    source, out = write_drafter(tmp_path / "source"), tmp_path / "out"
    options = ("--target", "tiny", "--draft-vocab", "20")
    result = run("convert", str(source), "--out", str(out), *options)
    assert result.exit_code == 0
    assert "Counting in tiny's answers to 5 prompts" in result.stderr
    counts = np.zeros(CONFIG.vocab_size, int)
    for prompt in prompts:
        config = GenerationConfig(max_tokens=24)
        answer = generate(model, tokenizer.encode(prompt.text[:2]), config)
        np.add.at(counts, [*answer.prompt_tokens, *answer.tokens], 1)
    ranked = [token for token in np.argsort(-counts, kind="stable").tolist() if token != EOS]
    assert np.count_nonzero(counts) > 20
    assert load_tensors(out)["draft_vocab"].tolist() == sorted([*ranked[:19], EOS])


def test_a_drafter_goes_back_to_pytorch_bit_for_bit(run: Run, tmp_path: Path) -> None:
    source, out, again = write_drafter(tmp_path / "source"), tmp_path / "out", tmp_path / "again"
    assert run("convert", str(source), "--out", str(out), "--to", "pytorch").exit_code == 0
    assert read_json(out / "config.json")["model_type"] == "recurrent_drafting_drafter"
    assert run("convert", str(out), "--out", str(again)).exit_code == 0
    before, after = load_tensors(source), load_tensors(again)
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]) for name in before)
    assert run("convert", str(source), "--out", str(tmp_path / "x"), "--to", "gguf").exit_code == 2


def test_npz_needs_no_target(run: Run, tmp_path: Path) -> None:
    source, out, corpus = write_drafter(tmp_path / "source"), tmp_path / "out", tmp_path / "c.npz"
    np.savez(corpus, tokens=[1, 7, 7, 9, 9], lengths=[5], prompt_lengths=[1])
    options = ("--draft-vocab", "2", "--from", str(corpus))
    assert run("convert", str(source), "--out", str(out), *options).exit_code == 0
    assert load_tensors(out)["draft_vocab"].tolist() == [7, 9]


@pytest.mark.parametrize(
    "quantization",
    [
        None,
        {"group_size": 32, "bits": 4},
        {"group_size": 32, "bits": 8, "mode": "mxfp8"},
    ],
    ids=["float", "affine", "mxfp8"],
)
def test_head_of_the_target_is_found(
    run: Run, tmp_path: Path, target: Decoder, quantization: dict[str, Any] | None
) -> None:
    """A head that is a constant times the target's is tied, however the target is stored."""
    if quantization:
        embedding: Any = target.model.embed_tokens
        target.model.embed_tokens = embedding.to_quantized(**quantization)
    rows = target.embed(mx.arange(CONFIG.vocab_size)).astype(mx.float32)
    source, out = write_drafter(tmp_path / "source", head=0.5 * rows), tmp_path / "out"
    result = run("convert", str(source), "--out", str(out), "--target", "tiny")
    assert "head tied to the model's, times 0." in result.stdout
    assert read_config(out).head == "tied"
    assert read_config(out).head_scale == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "exists and is not an empty folder"),
        (["--target", "tiny"], "exists and is not an empty folder"),
        (
            ["--draft-vocab", "5", "--from", "none.npz"],
            "none.npz cannot be read (No such file or directory); check",
        ),
    ],
)
def test_error_is_one_line(
    run: Run, tmp_path: Path, target: Decoder, options: list[str], complaint: str
) -> None:
    source, out = write_drafter(tmp_path / "source"), tmp_path / "out"
    out.mkdir()
    if "exists" in complaint:
        (out / "mine").touch()
    result = run("convert", str(source), "--out", str(out), *options)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert {path.name for path in tmp_path.iterdir()} == {"source", "out"}


def test_source_that_is_not_there(run: Run, tmp_path: Path) -> None:
    result = run("convert", str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "none" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_drafter_of_another_size_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Decoder
) -> None:
    other = toy_target(vocab_size=CONFIG.vocab_size + 1)
    monkeypatch.setattr("redrafter_mlx.loading.target.load_target", lambda *_: other)
    source = write_drafter(tmp_path / "source")
    out = tmp_path / "out"
    result = run("convert", str(source), "--out", str(out), "--target", "tiny")
    assert result.exit_code == 1
    assert "95" in result.stderr
    assert "96" in result.stderr
    assert not out.exists()
