"""The default model beside the references: Apple's drafter and Hugging Face transformers."""

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import BeamShape, GenerationConfig, SamplingConfig
from redrafter_mlx.convert.drafter import ImportOptions, import_drafter
from redrafter_mlx.decoding.beam import draft
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.loading.drafter import load_drafter
from redrafter_mlx.loading.target import identify

pytestmark = pytest.mark.real_model

PLAIN = BeamShape(1, 1)


@pytest.fixture(scope="module")
def imported_drafter(smollm2, shared, tmp_path_factory):
    """Return the PyTorch drafter imported whole, with the head that its file has."""
    out = tmp_path_factory.mktemp("drafter") / "imported"
    source = shared / "data" / "drafters" / "smollm2-135m-torch"
    import_drafter(source, out, ImportOptions(draft_length=4))
    return load_drafter(out, smollm2.target)


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


def test_every_golden_beam_of_apples_drafter_is_reproduced(imported_drafter, shared):
    """Law: equal as sets, joint log-probabilities within 2e-3."""
    folder = shared / "data" / "golden"
    hidden = np.load(folder / "drafter_beams_hidden.npy")
    cases = json.loads((folder / "drafter_beams.json").read_text())["cases"]
    for number, case in enumerate(cases):
        for name, golden in case["beams"].items():
            shape = BeamShape(*(int(size) for size in name.split(",")))
            state, token = mx.array(hidden[number : number + 1]), case["next_token"]
            drafted = draft(imported_drafter, state, mx.array([token]), shape)
            ours = beams_of(drafted, token, shape.beam_width)
            expected = {tuple(beam["draft_tokens"]): beam["log_prob"] for beam in golden}
            assert ours.keys() == expected.keys(), (number, name)
            assert max(abs(ours[beam] - expected[beam]) for beam in ours) < 2e-3


def greedy_cases(shared):
    return json.loads((shared / "data" / "golden" / "smollm2_greedy.json").read_text())["cases"]


def check_golden_text(model, case, shape: BeamShape) -> None:
    """Assert that the ids are golden up to a token whose two best logits nearly tie."""
    golden = case["greedy_ids"]
    config = GenerationConfig(max_tokens=96, beam=shape)
    kv_cache = model.target.make_kv_cache()
    ids = list(decode(model, kv_cache, case["prompt_ids"], config, DecodeStats()))
    if ids != golden:
        place = next(i for i, pair in enumerate(zip(ids, golden, strict=False)) if len({*pair}) > 1)
        assert case["top2_margin"][place] < 1e-3, (case["id"], shape, place)


@pytest.mark.parametrize("shape", [PLAIN, BeamShape(2, 4)], ids=str)
def test_short_golden_texts_of_transformers_are_reproduced(smollm2, shared, shape):
    short = [case for case in greedy_cases(shared) if len(case["greedy_ids"]) < 96]
    assert len(short) == 2
    for case in short:
        check_golden_text(smollm2, case, shape)


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_every_golden_text_of_transformers_is_reproduced(smollm2, shared, width, length):
    for case in greedy_cases(shared):
        check_golden_text(smollm2, case, BeamShape(width, length))


@pytest.mark.slow
def test_every_golden_text_of_transformers_is_reproduced_plainly(smollm2, shared):
    for case in greedy_cases(shared):
        check_golden_text(smollm2, case, PLAIN)


def test_the_same_seed_gives_the_same_text_with_the_drafter_and_without(smollm2):
    prompt = smollm2.tokenizer.encode("The lighthouse keeper opened the door and")
    sampling = SamplingConfig(temperature=0.8, top_p=0.95, seed=3)
    config = GenerationConfig(max_tokens=24, sampling=sampling, beam=BeamShape(2, 4))
    plain_config = replace(config, beam=PLAIN)
    texts = [
        list(decode(smollm2, smollm2.target.make_kv_cache(), prompt, chosen, DecodeStats()))
        for chosen in (config, plain_config)
    ]
    assert texts[0] == texts[1]


def test_the_packaged_drafter_was_made_for_this_model_and_guesses_right(smollm2):
    """Law: the drafter that ships knows its target and beats one token a round."""
    assert smollm2.notices == ()
    origin = smollm2.drafter.config.target
    assert origin == identify("smollm2-135m", smollm2.target)
    prompt = smollm2.tokenizer.encode("Once upon a time, there was a little girl who")
    stats = DecodeStats()
    config = GenerationConfig(max_tokens=32, beam=BeamShape(2, 4))
    list(decode(smollm2, smollm2.target.make_kv_cache(), prompt, config, stats))
    assert stats.tokens_per_round > 1.2


def test_every_end_token_is_known(smollm2):
    assert {2} <= smollm2.eos_ids


def test_the_parts_multiplied_out_are_the_same_weights_in_every_dtype(smollm2):
    weight = np.array(smollm2.target.model.embed_tokens.weight[:64])
    assert np.array_equal(weight, weight.astype(np.float16).astype(np.float32))
