"""The default model beside the references: Apple's drafter and Hugging Face transformers."""

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from redrafter_mlx.config import BeamShape, GenerationConfig, SamplingConfig
from redrafter_mlx.conversation import Conversation
from redrafter_mlx.decoding.beam import draft
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.generation import generate
from redrafter_mlx.loading.drafter import load_drafter
from redrafter_mlx.loading.target import identify
from redrafter_mlx.models.drafter import Drafter, RecurrentDrafter

pytestmark = pytest.mark.real_model

GOLDEN = Path(__file__).parent / "golden"
PLAIN = BeamShape(1, 1)


@pytest.fixture(scope="module")
def whole_drafter(smollm2):
    """Return the drafter whose beams Apple's PyTorch class made, with the head that it had then.

    That head is a constant times the embedding, each entry rounded to half precision; the
    stored one is tied and cut.
    """
    stored = load_drafter(GOLDEN / "drafter", smollm2.target, "float32")
    config = replace(stored.config, head="own", head_scale=1.0, draft_vocab_size=None)
    network = RecurrentDrafter(config)
    tensors = dict(tree_flatten(stored._network.parameters()))
    del tensors["draft_vocab"]
    scale = mx.array(stored.config.head_scale, mx.float16)
    embedding = smollm2.target.model.embed_tokens.weight.astype(mx.float16)
    head = (embedding * scale).astype(mx.float32)
    network.load_weights([*tensors.items(), (f"lm_head.{config.num_draft_layers}.weight", head)])
    return Drafter(network, smollm2.target)


def beams_of(drafted, next_token: int, width: int) -> dict[tuple[int, ...], float]:
    tokens = [next_token, *np.array(drafted.tokens).tolist()]
    parents = [0, *np.array(drafted.parents).tolist()]
    scores = [0.0, *np.array(drafted.log_probs).tolist()]
    beams = {}
    for leaf in range(len(tokens) - width, len(tokens)):
        row, path = leaf, []
        while row:
            path.append(tokens[row])
            row = parents[row]
        beams[tuple(reversed(path))] = scores[leaf]
    return beams


def beam_cases():
    """Return 40 cases with their hidden states, (1, 576) each."""
    hidden = np.load(GOLDEN / "drafter_beams_hidden.npy")
    cases = json.loads((GOLDEN / "drafter_beams.json").read_text())["cases"]
    assert len(cases) == len(hidden) == 40
    return [(case, mx.array(state[None])) for case, state in zip(cases, hidden, strict=True)]


def check_golden_beams(drafter, case, hidden, name: str) -> None:
    """Assert equal beams as sets, and joint log-probabilities within 2e-3."""
    shape = BeamShape(*(int(size) for size in name.split(",")))
    drafted = draft(drafter, hidden, mx.array([case["next_token"]]), shape)
    ours = beams_of(drafted, case["next_token"], shape.beam_width)
    expected = {tuple(beam["draft_tokens"]): beam["log_prob"] for beam in case["beams"][name]}
    assert ours.keys() == expected.keys(), name
    assert max(abs(ours[beam] - expected[beam]) for beam in ours) < 2e-3


def test_golden_beams_of_apples_drafter_are_reproduced(whole_drafter):
    """Every state is drafted from, with one of the five shapes in turn."""
    for number, (case, hidden) in enumerate(beam_cases()):
        check_golden_beams(whole_drafter, case, hidden, list(case["beams"])[number % 5])


@pytest.mark.slow
def test_every_golden_beam_of_apples_drafter_is_reproduced(whole_drafter):
    for case, hidden in beam_cases():
        for name in case["beams"]:
            check_golden_beams(whole_drafter, case, hidden, name)


def greedy_cases():
    return json.loads((GOLDEN / "smollm2_greedy.json").read_text())["cases"]


def check_golden_text(model, case, shape: BeamShape) -> None:
    """Assert that the ids are golden up to a token whose two best logits nearly tie."""
    golden = case["greedy_ids"]
    config = GenerationConfig(max_tokens=96, beam=shape, is_adaptive=False, use_lookup=False)
    kv_cache = model.target.make_kv_cache()
    ids = list(decode(model, kv_cache, case["prompt_ids"], config, DecodeStats()))
    if ids != golden:
        place = next(i for i, pair in enumerate(zip(ids, golden, strict=False)) if len({*pair}) > 1)
        assert case["top2_margin"][place] < 1e-3, (case["id"], shape, place)


@pytest.mark.parametrize(("size", "shape"), [(12, PLAIN), (30, BeamShape(2, 4))])
def test_short_golden_texts_of_transformers_are_reproduced(smollm2, size, shape):
    (case,) = (case for case in greedy_cases() if len(case["greedy_ids"]) == size)
    check_golden_text(smollm2, case, shape)


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_every_golden_text_of_transformers_is_reproduced(smollm2, width, length):
    for case in greedy_cases():
        check_golden_text(smollm2, case, BeamShape(width, length))


@pytest.mark.slow
def test_every_golden_text_of_transformers_is_reproduced_plainly(smollm2):
    for case in greedy_cases():
        check_golden_text(smollm2, case, PLAIN)


def test_the_same_seed_gives_the_same_text_with_the_drafter_and_without(smollm2):
    prompt = smollm2.tokenizer.encode("The lighthouse keeper opened the door and")
    sampling = SamplingConfig(temperature=0.8, top_p=0.95, seed=3)
    config = GenerationConfig(
        max_tokens=12, sampling=sampling, beam=BeamShape(2, 4), is_adaptive=False
    )
    plain_config = replace(config, beam=PLAIN)
    texts = [
        list(decode(smollm2, smollm2.target.make_kv_cache(), prompt, chosen, DecodeStats()))
        for chosen in (config, plain_config)
    ]
    assert texts[0] == texts[1]


def test_the_packaged_drafter_was_made_for_this_model_and_guesses_right(smollm2):
    """Law: the drafter that ships knows its target and beats one token a round."""
    assert [notice for notice in smollm2.notices if "tune" not in notice] == []
    origin = smollm2.drafter.config.target
    assert origin == identify("smollm2-135m", smollm2.target)
    prompt = smollm2.tokenizer.encode("Once upon a time, there was a little girl who")
    stats = DecodeStats()
    config = GenerationConfig(
        max_tokens=24, beam=BeamShape(2, 4), is_adaptive=False, use_lookup=False
    )
    list(decode(smollm2, smollm2.target.make_kv_cache(), prompt, config, stats))
    assert stats.tokens_per_round > 1.2


def test_every_end_token_is_known(smollm2):
    assert {2} <= smollm2.eos_ids


def test_a_second_turn_equals_a_fresh_prefill_of_the_same_ids(smollm2):
    """Law: token for token, with the drafter, and with one system block in what is cached."""
    config = GenerationConfig(max_tokens=12, beam=BeamShape(2, 4))
    conversation = Conversation(smollm2, config=config)
    list(conversation.ask("My name is Ada."))
    second = [chunk.token for chunk in conversation.ask("What is my name?")]
    prompt = conversation._cached[: conversation.stats.prompt_tokens]
    assert conversation.stats.cached_tokens > 0
    assert tuple(second) == generate(smollm2, prompt, config).tokens
    text = smollm2.tokenizer.decode(prompt)
    assert text.count("<|im_start|>system") == 1
    assert text.count("<|im_start|>user") == 2
