"""From folders to modules: strict names and shapes, every dtype, and which drafter is taken."""

import json
import shutil
from dataclasses import asdict

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from redrafter_mlx.config import BeamShape, DrafterConfig, TargetIdentity
from redrafter_mlx.decoding.pace import RoundCosts
from redrafter_mlx.decoding.profile import Profile, profile_key, save_profile
from redrafter_mlx.errors import CheckpointError, ConfigError, ShapeError
from redrafter_mlx.loading import model as loading
from redrafter_mlx.loading.converted import Origin, conversion_folder
from redrafter_mlx.loading.drafter import load_drafter
from redrafter_mlx.loading.drafter_places import find_drafter
from redrafter_mlx.loading.known import profile_folder
from redrafter_mlx.loading.modules import compute_dtype
from redrafter_mlx.loading.target import identify, load_target
from redrafter_mlx.models.drafter import RecurrentDrafter
from redrafter_mlx.text import render_text, require_thinking_switch
from redrafter_mlx.weights import load_tensors, save_tensors, write_json
from tests.small_tokenizers import CHATML, SWITCHED_THINKING, byte_level
from tests.toy import randomize, toy_target

SETTINGS = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_kv_heads": 4, "head_dim": 16}
TOKENS = mx.array([1, 5, 9, 60])


def logits_of(decoder):
    return decoder.logits(decoder(TOKENS, decoder.make_kv_cache()))


def write_target(folder, decoder, changes=None, drop=(), extra=None):
    """Write a decoder as a model's folder; ``drop`` and ``extra`` spoil its tensors."""
    folder.mkdir(exist_ok=True)
    tensors = dict(tree_flatten(decoder.parameters())) | (extra or {})
    write_json(folder / "config.json", SETTINGS | (changes or {}))
    save_tensors(
        folder / "model.safetensors", {name: tensors[name] for name in tensors.keys() - set(drop)}
    )
    return folder


@pytest.fixture
def decoder():
    return toy_target(vocab_size=64, **SIZES)


def test_a_drafter_is_found_by_what_it_was_made_for(tmp_path, decoder, monkeypatch):
    """Law: a copy of the model under any name has its drafter, another model has not."""
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "cache"))
    copy = write_target(tmp_path / "copy", decoder)
    other = write_target(
        tmp_path / "other", decoder, extra={"model.norm.weight": mx.full((64,), 2.0)}
    )
    config = DrafterConfig(
        hidden_size=64,
        vocab_size=64,
        exit_dim=64,
        num_draft_layers=1,
        target=identify("org/name", load_target(copy)),
    )
    for place in ("damaged", "org/name"):
        drafter = tmp_path / "cache" / "drafters" / place
        drafter.mkdir(parents=True)
        write_json(drafter / "config.json", config.to_dict() if place == "org/name" else {})
    assert find_drafter(str(copy), copy) == drafter
    assert find_drafter(str(other), other) is None
    assert find_drafter(str(tmp_path / "none"), tmp_path / "none") is None
    write_target(tmp_path / "copy" / "drafter", decoder)
    assert find_drafter(str(copy), copy) == copy / "drafter", "the one inside goes before"


QUANTIZED = {"group_size": 32, "bits": 4}


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_size": 0},
        {"group_size": 48},
        {"group_size": None},
        {"group_size": [32]},
        {"bits": {}},
        {"bits": 7},
        {"bits": "four"},
        {"mode": "odd"},
        {"mode": 5},
        {"group_size": 128},
        {"bits": 8},
    ],
)
@pytest.mark.parametrize("dtype", ["stored", "float32"])
def test_a_quantisation_that_mlx_does_not_have_is_refused(tmp_path, decoder, wrong, dtype):
    """Law: a wrong config.json is one sentence; MLX itself dies of a group of 0."""
    nn.quantize(decoder, **QUANTIZED)
    folder = write_target(tmp_path, decoder, {"quantization": QUANTIZED | wrong})
    with pytest.raises(CheckpointError) as caught:
        load_target(folder, dtype)
    assert "\n" not in str(caught.value)


def test_a_loaded_target_gives_the_logits_of_the_one_written(tmp_path, decoder):
    loaded = load_target(write_target(tmp_path, decoder), "float32")
    assert mx.array_equal(logits_of(loaded), logits_of(decoder))


@pytest.mark.parametrize("key", [None, True, False])
@pytest.mark.parametrize("has_head", [True, False])
def test_tied_and_untied_heads_with_and_without_the_tensor(tmp_path, key, has_head):
    """Law: the key decides; without it the file does; a missing head is an error."""
    decoder = toy_target(vocab_size=64, is_tied=not has_head, **SIZES)
    folder = write_target(tmp_path, decoder, {} if key is None else {"tie_word_embeddings": key})
    if key is False and not has_head:
        with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
            load_target(folder)
        return
    loaded = load_target(folder, "float32")
    assert loaded.is_tied is (not has_head if key is None else key)
    if loaded.is_tied == decoder.is_tied:
        assert mx.array_equal(logits_of(loaded), logits_of(decoder))


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        ({"drop": ["model.norm.weight"]}, r"lacks the tensor model\.norm\.weight"),
        ({"extra": {"model.odd": mx.zeros(3)}}, r"tensor 'model\.odd' that has no place"),
        ({"extra": {"model.norm.weight": mx.zeros(3)}}, r"model\.norm\.weight .* \(3,\)"),
        ({"extra": {"model.norm.weight": mx.zeros(64, mx.int32)}}, r"norm\.weight .* int32"),
        ({"changes": {"quantization": 4}}, "quantization is 4"),
        ({"changes": {"quantization_config": {"quant_method": "gptq"}}}, "'gptq'"),
    ],
)
def test_files_that_do_not_go_together_are_refused_by_name(tmp_path, decoder, spoil, named):
    with pytest.raises(CheckpointError, match=named) as caught:
        load_target(write_target(tmp_path, decoder, **spoil))
    assert "\n" not in str(caught.value)


def test_precomputed_rotary_buffers_are_dropped(tmp_path, decoder):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": mx.zeros(8)}
    loaded = load_target(write_target(tmp_path, decoder, extra=extra), "float32")
    assert mx.array_equal(logits_of(loaded), logits_of(decoder))


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_by_module_it_computes_what_its_parts_multiplied_out_do(tmp_path, decoder, bits):
    """Law: stored and dequantised agree; one module has bits of its own, one none."""

    def settings_of(path, module):
        if not hasattr(module, "to_quantized") or path.endswith("o_proj"):
            return False
        own = {"group_size": 32, "bits": 8} if path.endswith("down_proj") else None
        return own or {"group_size": 64, "bits": bits}

    nn.quantize(decoder, class_predicate=settings_of)
    quantization = {"group_size": 64, "bits": bits}
    for layer in range(2):
        quantization[f"model.layers.{layer}.mlp.down_proj"] = {"group_size": 32, "bits": 8}
    folder = write_target(tmp_path, decoder, {"quantization": quantization})
    stored, multiplied_out = load_target(folder, "stored"), load_target(folder, "float32")
    assert isinstance(stored.model.layers[0].mlp.down_proj, nn.QuantizedLinear)
    assert isinstance(stored.model.layers[0].self_attn.o_proj, nn.Linear)
    assert isinstance(multiplied_out.model.embed_tokens, nn.Embedding)
    assert mx.array_equal(logits_of(stored), logits_of(decoder))
    assert mx.abs(logits_of(stored) - logits_of(multiplied_out)).max().item() < 1e-3


def test_dtype_casts_and_auto_is_float32_on_a_cpu(tmp_path, decoder):
    folder = write_target(tmp_path, decoder)
    assert load_target(folder, "float16").model.norm.weight.dtype == mx.float16
    is_gpu = mx.default_device().type == mx.gpu
    assert compute_dtype("auto") is (None if is_gpu else mx.float32)
    assert compute_dtype("stored") is None
    with pytest.raises(ConfigError, match="'int8'"):
        compute_dtype("int8")


def test_a_fingerprint_survives_every_cast_and_tells_models_apart(tmp_path, decoder):
    folder = write_target(tmp_path / "one", decoder)
    targets = [load_target(folder, dtype) for dtype in ("float32", "float16", "bfloat16")]
    assert len({identify("a", target) for target in targets}) == 1
    other = write_target(tmp_path / "other", toy_target(seed=9, vocab_size=64, **SIZES))
    assert identify("a", load_target(other)).fingerprint != targets[0].fingerprint
    half = {name: value.astype(mx.float16) for name, value in norms_of(decoder).items()}
    copy = write_target(tmp_path / "copy", decoder, extra=half)
    assert load_target(copy).fingerprint == targets[0].fingerprint


def norms_of(decoder):
    parameters = dict(tree_flatten(decoder.parameters()))
    return {name: value for name, value in parameters.items() if "norm" in name}


def write_drafter(folder, **changes):
    folder.mkdir(parents=True)
    sizes = {"hidden_size": 64, "vocab_size": 64, "exit_dim": 64, "num_draft_layers": 1}
    config = DrafterConfig(**(sizes | changes))
    network = RecurrentDrafter(config)
    randomize(network, seed=1)
    write_json(folder / "config.json", config.to_dict())
    save_tensors(folder / "model.safetensors", dict(tree_flatten(network.parameters())))
    return folder


def test_a_drafter_of_other_sizes_is_refused_with_both_numbers(tmp_path, decoder):
    with pytest.raises(ShapeError, match="hidden_size 32, but the model has 64"):
        load_drafter(write_drafter(tmp_path / "a", hidden_size=32), decoder)
    with pytest.raises(ShapeError, match="vocab_size 70, but the model has 64"):
        load_drafter(write_drafter(tmp_path / "b", vocab_size=70), decoder)
    with pytest.raises(CheckpointError, match="no drafter's folder"):
        load_drafter(tmp_path / "missing", decoder)


def test_a_drafter_of_a_newer_format_or_with_an_odd_key_is_refused(tmp_path, decoder):
    folder = write_drafter(tmp_path / "drafter")
    values = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", values | {"format_version": 2})
    with pytest.raises(CheckpointError, match="format_version is 2"):
        load_drafter(folder, decoder)
    write_json(folder / "config.json", values | {"colour": "blue"})
    with pytest.raises(CheckpointError, match="'colour'"):
        load_drafter(folder, decoder)


@pytest.mark.parametrize(
    "lost", [None, "rnn_u.bias", "lm_head.0.linear.weight", "lm_head.1.weight"]
)
@pytest.mark.parametrize("more", ["rnn_v.weight", "lm_head.2.weight", "draft_vocab", "odd\nname"])
def test_a_drafters_tensor_that_matches_nothing_is_refused(tmp_path, decoder, lost, more):
    """Law: no drafter begins with weights that no file gave it."""
    folder = write_drafter(tmp_path / "drafter")
    tensors = load_tensors(folder)
    spare = tensors.pop(lost) if lost else mx.zeros((64, 64))
    assert load_drafter(folder, decoder) is not None
    for spoilt in [tensors | {more: spare}, *([tensors] if lost else [])]:
        save_tensors(folder / "model.safetensors", spoilt)
        with pytest.raises(
            CheckpointError, match=r"lacks the tensor|no place in it|expected"
        ) as error:
            load_drafter(folder, decoder)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("ids", [[0, 1_000_000], [-1, 3], [3, 3], [0.5, 1.0]])
def test_a_draft_vocabulary_outside_the_vocabulary_is_refused(tmp_path, decoder, ids):
    """Law: MLX gathers out of bounds without a word, so ids are checked before."""
    folder = write_drafter(tmp_path / "drafter", draft_vocab_size=2)
    tensors = load_tensors(folder)
    kind = mx.float32 if isinstance(ids[0], float) else mx.int32
    save_tensors(folder / "model.safetensors", tensors | {"draft_vocab": mx.array(ids, kind)})
    with pytest.raises(CheckpointError, match="draft_vocab"):
        load_drafter(folder, decoder)


def test_a_drafter_with_nan_is_refused_by_the_tensors_name(tmp_path, decoder):
    folder = write_drafter(tmp_path / "drafter")
    tensors = load_tensors(folder)
    spoilt = tensors | {"rnn_w.weight": mx.full((64, 64), mx.nan)}
    save_tensors(folder / "model.safetensors", spoilt)
    with pytest.raises(CheckpointError, match=r"rnn_w\.weight"):
        load_drafter(folder, decoder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("exit_dim", 64.5), ("num_draft_layers", "2"), ("rnn", "no"), ("vocab_size", True)],
)
def test_a_drafters_config_with_a_wrong_type_is_refused_by_its_key(tmp_path, decoder, key, value):
    folder = write_drafter(tmp_path / "drafter")
    values = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", values | {key: value})
    with pytest.raises(CheckpointError, match=key):
        load_drafter(folder, decoder)


class FakeTokenizer:
    eos_token_id = 7
    chat_template = "{{ messages }}"


@pytest.fixture
def loadable(tmp_path, decoder, monkeypatch):
    """Return a model's folder whose tokenizer is faked."""
    monkeypatch.setattr(loading, "load_tokenizer", lambda folder: FakeTokenizer())
    return write_target(tmp_path / "model", decoder)


def test_a_missing_chat_template_is_said_in_one_line(loadable, monkeypatch):
    monkeypatch.setattr(FakeTokenizer, "chat_template", None)
    (notice,) = loading.load(loadable, drafter=None).notices
    assert "no chat template" in notice


def test_a_damaged_copy_in_the_cache_is_told_how_to_be_made_again(loadable, tmp_path, monkeypatch):
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "cache"))
    (loadable / "model.safetensors").write_bytes(b"damaged")
    copy = conversion_folder(Origin("org/name"))
    shutil.copytree(loadable, copy)
    with pytest.raises(CheckpointError, match=f"Remove {copy} and run again") as caught:
        loading.load("org/name")
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError) as caught:
        loading.load(loadable)
    assert "run again" not in str(caught.value)


def test_no_drafter_found_is_said_in_one_line(loadable):
    model = loading.load(loadable)
    assert model.drafter is None
    (notice,) = model.notices
    assert "by lookup alone" in notice
    assert "convert" in notice
    assert loading.load(str(loadable), drafter=None).notices == ()


def test_a_drafter_in_the_models_folder_is_found(loadable):
    write_drafter(loadable / "drafter")
    model = loading.load(str(loadable))
    assert model.drafter is not None
    assert [notice for notice in model.notices if "tune" not in notice] == []


def test_a_shape_that_nobody_measured_is_called_a_guess_and_a_measured_one_is_taken(
    loadable, monkeypatch, tmp_path
):
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "cache"))
    write_drafter(loadable / "drafter")
    model = loading.load(loadable)
    assert [notice for notice in model.notices if "redrafter-mlx tune" in notice]
    costs = RoundCosts(verify=(1.0, 1.5), draft_step=0.3)
    key = profile_key(model.target, model.drafter)
    save_profile(Profile(key, BeamShape(3, 2, 4), costs, 0.1, (), ()), profile_folder())
    tuned = loading.load(loadable)
    assert tuned.notices == ()
    assert tuned.beam_shape == BeamShape(3, 2, 4)
    assert tuned.pace.costs == costs


def test_a_found_drafter_that_does_not_fit_is_told_and_an_explicit_one_is_an_error(loadable):
    folder = write_drafter(loadable / "drafter", vocab_size=70)
    model = loading.load(str(loadable))
    assert model.drafter is None
    assert "vocab_size 70, but the model has 64" in model.notices[0]
    with pytest.raises(ShapeError, match="70"):
        loading.load(str(loadable), drafter=folder)


def test_a_drafter_of_another_target_is_used_and_told(loadable, decoder):
    other = asdict(identify("other-model", decoder)) | {"fingerprint": "0" * 64}
    write_drafter(loadable / "drafter", target=TargetIdentity(**other))
    model = loading.load(str(loadable))
    assert model.drafter is not None
    assert "made for other-model" in model.notices[0]


def test_end_tokens_are_the_union_of_what_each_file_says(loadable):
    """Law: as Llama 3 needs it, whose config names one id and whose generation config more."""
    write_json(loadable / "config.json", SETTINGS | {"eos_token_id": 1})
    write_json(loadable / "generation_config.json", {"eos_token_id": [1, 9]})
    assert loading.load(str(loadable)).eos_ids == {1, 7, 9}


def test_a_chat_template_in_a_file_of_its_own_is_read(tmp_path):
    tokenizer = byte_level()
    tokenizer.save_pretrained(str(tmp_path))
    assert not loading.load_tokenizer(tmp_path).chat_template
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert loading.load_tokenizer(tmp_path).chat_template == CHATML


def test_of_several_templates_the_default_one_is_taken(tmp_path):
    """As a list in tokenizer_config.json, and as files of their own."""
    named = {"tool_use": "{{ raise_exception('tools') }}", "default": SWITCHED_THINKING}
    tokenizer = byte_level()
    tokenizer.save_pretrained(str(tmp_path / "list"))
    settings = json.loads((tmp_path / "list" / "tokenizer_config.json").read_text())
    templates = [{"name": name, "template": template} for name, template in named.items()]
    write_json(tmp_path / "list" / "tokenizer_config.json", settings | {"chat_template": templates})
    tokenizer.save_pretrained(str(tmp_path / "files"))
    (tmp_path / "files" / "chat_template.jinja").write_text(named["default"])
    (tmp_path / "files" / "additional_chat_templates").mkdir()
    extra = tmp_path / "files" / "additional_chat_templates" / "tool_use.jinja"
    extra.write_text(named["tool_use"])
    for folder in ("list", "files"):
        loaded = loading.load_tokenizer(tmp_path / folder)
        assert loaded.chat_template == named
        text = render_text(loaded, [{"role": "user", "content": "Hi"}], thinking=False)
        assert text.endswith("<think>\n\n</think>\n\n")
        require_thinking_switch(loaded, False)


@pytest.mark.parametrize(("dtype", "is_slow"), [("auto", 0), ("float32", 0), ("bfloat16", 1)])
def test_a_dtype_that_is_slow_on_a_cpu_is_told(loadable, dtype, is_slow):
    is_slow = is_slow and mx.default_device().type == mx.cpu
    notices = loading.load(loadable, drafter=None, dtype=dtype).notices
    assert ["very slow on a CPU" in notice for notice in notices] == [True] * is_slow


@pytest.mark.parametrize("bits", [None, 4])
def test_what_is_stored_decides_whether_it_is_slow(loadable, decoder, bits):
    if bits:
        nn.quantize(decoder, group_size=32, bits=bits)
        write_target(loadable, decoder, {"quantization": {"group_size": 32, "bits": bits}})
    is_slow = bool(bits) and mx.default_device().type == mx.cpu
    notices = loading.load(loadable, drafter=None, dtype="stored").notices
    assert ["very slow" in notice for notice in notices] == [True] * is_slow


def test_a_folder_without_a_tokenizer_is_refused_with_the_reason(tmp_path, decoder):
    folder = write_target(tmp_path, decoder)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        loading.load_tokenizer(folder)
    assert str(caught.value) == (
        f"{folder} has no tokenizer.json; copy the model's tokenizer files there."
    )
