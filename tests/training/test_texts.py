"""Prompts and texts from files of the usual shapes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from redrafter_mlx.errors import PromptError
from redrafter_mlx.text import render_chat
from redrafter_mlx.training.corpus import Sample, read_shard, write_shard
from redrafter_mlx.training.reading import add_samples, file_digest, read_samples, text_encoder
from redrafter_mlx.training.texts import read_exchanges
from tests import small_tokenizers


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("line", "messages", "answer"),
    [
        ({"prompt": "Hi?"}, [user("Hi?")], None),
        ({"prompt": "Hi?", "response": "Ho."}, [user("Hi?")], "Ho."),
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, [user("Add.\n1 2")], "3"),
        ({"question_id": 1, "turns": ["One?", "Two?"]}, [user("One?")], None),
        ({"messages": [SYSTEM, user("Hi?")]}, [SYSTEM, user("Hi?")], None),
        (
            {"messages": [user("Hi?"), {"role": "assistant", "content": "Ho."}, user("So?")]},
            [user("Hi?")],
            "Ho.",
        ),
        (
            {
                "conversations": [
                    {"from": "system", "value": "Be brief."},
                    {"from": "human", "value": "Hi?"},
                    {"from": "gpt", "value": "Ho."},
                ]
            },
            [SYSTEM, user("Hi?")],
            "Ho.",
        ),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_every_shape(tmp_path: Path, line, messages, answer, packed: bool) -> None:
    path = write_lines(tmp_path / "x.jsonl", line, line)
    if packed:
        (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "x.jsonl.gz"
    first, second = read_exchanges(path)
    assert list(first.messages) == messages
    assert first.answer == answer
    assert first == second


@pytest.mark.parametrize("packed", [False, True])
def test_objects_may_be_one_list(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("x.json.gz" if packed else "x.json")
    data = json.dumps([{"prompt": "Hi?", "response": "Ho."}, {"prompt": "So?"}], indent=1).encode()
    data = b"\n  " + data
    path.write_bytes(gzip.compress(data) if packed else data)
    first, second = read_exchanges(path)
    assert (list(first.messages), first.answer) == ([user("Hi?")], "Ho.")
    assert list(second.messages) == [user("So?")]
    path.write_bytes(gzip.compress(b'[{"prompt": 3}]') if packed else b'[{"prompt": 3}]')
    with pytest.raises(PromptError, match=r"^Entry 1 of .* asks nothing"):
        list(read_exchanges(path))


def test_json_lines_may_be_named_json(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.json", {"prompt": "Hi?"}, {"prompt": "So?"})
    assert len(list(read_exchanges(path))) == 2


def test_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('\ufeff{"prompt": "Hi?"}\n', encoding="utf-8")
    (exchange,) = read_exchanges(tmp_path / "x.jsonl")
    assert list(exchange.messages) == [user("Hi?")]


@pytest.mark.parametrize("key", ["prompt", "response"])
def test_half_a_surrogate_pair_is_refused(tmp_path: Path, key: str) -> None:
    path = write_lines(tmp_path / "x.jsonl", {"prompt": "Hi?", "response": "Ho.", key: "\ud83d!"})
    with pytest.raises(PromptError, match=r"Line 1 .* half of a surrogate pair"):
        list(read_exchanges(path))


def test_plain_lines_are_prompts(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("Why?\n\n  Who is {this}?  \n", encoding="utf-8")
    exchanges = list(read_exchanges(tmp_path / "x.txt"))
    assert [list(exchange.messages) for exchange in exchanges] == [
        [user("Why?")],
        [user("Who is {this}?")],
    ]


@pytest.mark.parametrize(
    "line",
    [
        {"text": "Hi?"},
        {"prompt": " "},
        {"prompt": 3},
        {"turns": []},
        {"turns": [3]},
        {"messages": []},
        {"messages": ["Hi?"]},
        {"messages": [{"role": "robot", "content": "Hi?"}]},
        {"messages": [{"role": "user", "content": ["Hi?"]}]},
        {"conversations": [{"from": "gpt", "value": "Ho."}]},
        ["Hi?"],
    ],
)
def test_line_that_asks_nothing_is_refused_by_its_number(tmp_path: Path, line) -> None:
    path = write_lines(tmp_path / "x.jsonl", {"prompt": "Hi?"}, line)
    with pytest.raises(PromptError, match=r"^Line 2 of .*x\.jsonl asks nothing"):
        list(read_exchanges(path))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"prompt": "Hi?"}\n{"prompt"\n')
    with pytest.raises(PromptError, match=r"Line 2 .* is no JSON "):
        list(read_exchanges(tmp_path / "x.jsonl"))
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "x.gz").write_bytes(b"no gzip")
    packed = bytearray(gzip.compress(b'{"prompt": "Hi?"}\n' * 99))
    packed[10] = 0x07  # a kind of block that there is not
    (tmp_path / "broken.gz").write_bytes(packed)
    for name in ("x.txt", "x.gz", "broken.gz", "absent.txt"):
        with pytest.raises(PromptError, match="cannot be read"):
            list(read_exchanges(tmp_path / name))


@pytest.fixture(scope="module")
def tokenizer():
    made = small_tokenizers.byte_level()
    made.chat_template = small_tokenizers.CHATML
    return made


def test_read_text_is_rendered_as_a_chat_is(tmp_path: Path, tokenizer) -> None:
    """Law: the ids before the answer are those that a chat would send for the same question."""
    path = write_lines(tmp_path / "x.jsonl", {"prompt": "Hi?", "response": "The fox."})
    encode = text_encoder(tokenizer, tokenizer.eos_token_id, 512)
    samples = read_samples(path, encode, 1000)
    assert len(samples) == 1
    add_samples(tmp_path, file_digest(path), samples)
    (shard,) = tmp_path.glob("shard-*.npz")
    (sample,) = read_shard(shard, 1000)
    asked = render_chat(tokenizer, [user("Hi?")])
    assert sample.tokens[: sample.prompt_length].tolist() == asked
    assert sample.answer[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(sample.answer[:-1].tolist()) == "The fox."
    assert np.isnan(sample.temperature) and not sample.is_greedy


def test_long_answers_are_cut_and_long_prompts_left_out(tmp_path: Path, tokenizer) -> None:
    asked = len(render_chat(tokenizer, [user("Hi?")]))
    encode = text_encoder(tokenizer, tokenizer.eos_token_id, asked + 4)
    lines = [{"prompt": "Hi?", "response": "The fox jumps over the lazy dog."}]
    lines += [{"prompt": "Hi? " * 20, "response": "Ho."}, {"prompt": "Hi?"}]
    path = write_lines(tmp_path / "x.jsonl", *lines)
    samples = read_samples(path, encode, 1000)
    assert len(samples) == 1
    add_samples(tmp_path, file_digest(path), samples)
    (shard,) = tmp_path.glob("shard-*.npz")
    (sample,) = read_shard(shard, 1000)
    assert sample.num_answer_tokens == 4
    assert sample.answer[-1] != tokenizer.eos_token_id


def test_answers_of_an_npz_keep_their_temperature(tmp_path: Path) -> None:
    samples = [Sample(np.arange(5, dtype=np.int32), 2, temp) for temp in (0.0, 0.8)] * 40
    write_shard(tmp_path / "answers.npz", samples)
    folder = tmp_path / "corpus"
    samples = read_samples(tmp_path / "answers.npz", lambda _: None, 50)
    assert len(samples) == 80
    add_samples(folder, file_digest(tmp_path / "answers.npz"), samples)
    shards = sorted(folder.glob("shard-*.npz"))
    times = [shard.stat().st_mtime_ns for shard in shards]
    read = [sample for shard in shards for sample in read_shard(shard, 50)]
    assert [round(sample.temperature, 3) for sample in read] == [0.0, 0.8] * 40
    add_samples(folder, file_digest(tmp_path / "answers.npz"), samples)
    assert [shard.stat().st_mtime_ns for shard in shards] == times


def test_file_without_answers_is_refused(tmp_path: Path, tokenizer) -> None:
    path = write_lines(tmp_path / "x.jsonl", {"prompt": "Hi?"})
    with pytest.raises(PromptError, match="no line with an answer"):
        read_samples(path, text_encoder(tokenizer, None, 99), 1000)
