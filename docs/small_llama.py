"""Makes a small Llama in a minute or two, to try distil and train on: python small_llama.py OUT.

Four layers, hidden_size 128, a vocabulary of at most 4,096 tokens, trained with mlx-lm's model
on short talks about a made-up village, which this script writes. OUT is a folder as
mlx_lm.convert makes it, there whole or not at all; OUT/prompts.txt holds questions for distil.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.folders import new_folder

NAMES = ("Ada", "Bruno", "Clara", "Dario", "Edda", "Fritz", "Gina", "Hugo", "Ines", "Jonas", "Mila")
TRADES = ("baker", "smith", "weaver", "miller", "painter", "doctor", "farmer", "tailor", "sailor")
PLACES = ("the mill", "the harbour", "the old bridge", "the market", "the school", "the hill")
THINGS = (
    "bread",
    "a clock",
    "a red boat",
    "three lamps",
    "a map",
    "new shoes",
    "a letter",
    "honey",
)
TIMES = ("in the morning", "at noon", "in the evening", "on Sundays", "before the rain")
CHATML = (
    "{% for message in messages %}{{ '<|start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}"
    "{% endif %}"
)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def talks(seed: int) -> Iterator[tuple[str, str]]:
    """Yield questions with their answers, without end."""
    draw = random.Random(seed)
    while True:
        who, trade = draw.choice(NAMES), draw.choice(TRADES)
        where, when, what = draw.choice(PLACES), draw.choice(TIMES), draw.choice(THINGS)
        other = draw.choice(NAMES)
        count = draw.randint(2, 9)
        question = draw.choice(
            [
                f"Who is {who}?",
                f"Tell me about {who} the {trade}.",
                f"What does {who} do {when}?",
                f"Where can I find {who}?",
                f"What does the {trade} sell at {where}?",
            ]
        )
        yield (
            question,
            f"{who} is the {trade} of our village and lives near {where}. {when.capitalize()} "
            f"{who} goes to {where} and sells {what} to {other}. It costs {count} coins, and "
            f"{count} coins are {'much' if count > 5 else 'not much'} for {what}. {other} says: "
            f"thank you, {who}, there is no better {trade} than you. Then {other} goes home with "
            f"{what}, and {who} stays at {where} until it is dark.",
        )


def make_tokenizer(folder: Path) -> Any:
    """Train a byte-level BPE on the talks and write it as transformers does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    source = talks(0)
    tokenizer.train_from_iterator((" ".join(next(source)) for _ in range(4000)), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    fast.chat_template = CHATML
    fast.save_pretrained(folder)
    return fast


def batches(tokenizer: Any, size: int, length: int) -> Iterator[mx.array]:
    """Yield (size, length + 1) ids of talks, one behind another."""
    source, held = talks(1), list[int]()
    while True:
        while len(held) < size * (length + 1):
            question, answer = next(source)
            messages = [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            held += tokenizer.encode(text, add_special_tokens=False)
        taken, held = held[: size * (length + 1)], held[size * (length + 1) :]
        yield mx.array(np.array(taken, np.int32).reshape(size, length + 1))


def train(tokenizer: Any, config: dict[str, Any], steps: int) -> Any:
    """Train the model; return it."""
    from mlx_lm.models.llama import Model, ModelArgs

    mx.random.seed(0)
    model = Model(ModelArgs.from_dict(config))
    rate = optim.join_schedules(
        [optim.linear_schedule(0, 3e-3, 20), optim.cosine_decay(3e-3, steps)], [20]
    )
    optimizer = optim.AdamW(learning_rate=rate, weight_decay=0.01)

    def loss(ids: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:], reduction="mean")

    step = nn.value_and_grad(model, loss)
    source, started = batches(tokenizer, 8, 128), time.perf_counter()
    for number in range(1, steps + 1):
        value, gradients = step(next(source))
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        if number % 50 == 0:
            seconds = time.perf_counter() - started
            print(f"step {number} of {steps}: loss {value.item():.3f}, {seconds:.0f} s")  # noqa: T201
    return model


def make_model(folder: Path, steps: int) -> None:
    """Write tokenizer, weights and config.json."""
    tokenizer = make_tokenizer(folder)
    config = CONFIG | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    weights = dict(tree_flatten(train(tokenizer, config, steps).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def questions(num_draws: int) -> list[str]:
    """Return the different ones of as many questions, in random order."""
    source = talks(2)
    lines = sorted({next(source)[0] for _ in range(num_draws)})
    random.Random(3).shuffle(lines)
    return lines


def main() -> None:
    """Make the model's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--prompts", type=int, default=3000)
    options = parser.parse_args()
    try:
        with new_folder(options.out) as folder:
            make_model(folder, options.steps)
            (folder / "prompts.txt").write_text("\n".join(questions(options.prompts)) + "\n")
    except CheckpointError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
