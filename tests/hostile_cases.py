"""The corpus of hostile and broken files, and what the refusal of each must say."""

from __future__ import annotations

import json
import pickle
import struct

import mlx.core as mx

from redrafter_mlx.json_files import MAX_JSON_BYTES
from redrafter_mlx.weights import INDEX_FILE
from tests.convert.tiny_drafter import NARROW, apple_config
from tests.convert.tiny_gguf import Tensor, tiny_tensors
from tests.convert.tiny_target import HEAD, UP, tensors_of, write_target
from tests.hostile_files import (
    BIN,
    CANARY,
    HUGE,
    PICKLES,
    SAFETENSORS,
    TORCH_INDEX,
    Case,
    after,
    alone,
    beside,
    bomb,
    claiming,
    config_with,
    cut,
    drafter,
    entry,
    gguf,
    gguf_tensor,
    halved,
    in_model,
    long_config,
    nested,
    odd_name,
    outside,
    overlapping,
    patched,
    pickled,
    raw_pickle,
    safetensors,
    scalar_heads,
    sharded,
    sparse,
    spoiled,
    torch_model,
    touch,
    twice,
    with_config,
)

NOT_A_NUMBER = mx.array([float("nan")] * NARROW.hidden_size, mx.float16)
APPLE = apple_config(NARROW)
NAN_HALF, INF_HALF = b"\x00\x7e", b"\x00\x7c"

CASES: dict[str, Case] = {
    **{
        f"pickle: {name}": Case(in_model(BIN, pickled(make)), words)
        for name, (make, words) in PICKLES.items()
    },
    "pickle without a zip": Case(in_model(BIN, raw_pickle), "nor a PyTorch file"),
    "pickle alone": Case(alone("a.pt", pickle.dumps({"a": touch(CANARY)})), "nor a PyTorch", False),
    "pickle named safetensors": Case(in_model(SAFETENSORS, raw_pickle), "truncated or damaged"),
    "zip bomb": Case(in_model(BIN, bomb), "is compressed or encrypted"),
    "zip of overlaps": Case(in_model(BIN, overlapping), "overlaps another"),
    "zip with ../": Case(in_model(BIN, outside("../../evil")), "lies outside of it"),
    "zip with a claim": Case(in_model(BIN, claiming), str(4 * HUGE)),
    "zip cut to nothing": Case(cut(BIN, 0.0), "is empty"),
    "zip cut to half": Case(cut(BIN, 0.5), "truncated or damaged"),
    "zip cut in its directory": Case(cut(BIN, 0.99), "truncated or damaged"),
    "zip cut by a byte": Case(cut(BIN, 1.0), "truncated or damaged"),
    "bin of zeros": Case(in_model(BIN, bytes(4096)), "nor a PyTorch file"),
    "bin with NaN": Case(
        lambda to: torch_model(to, spoiled(UP, float("nan"))), f"'{UP}' holds NaN or infinity"
    ),
    "bin with infinity": Case(
        lambda to: torch_model(to, spoiled(UP, float("-inf"))), f"'{UP}' holds NaN or infinity"
    ),
    "bin of scalars": Case(scalar_heads, "has shape ()"),
    "bin index with ../": Case(
        in_model(TORCH_INDEX, b'{"weight_map": {"a": "../x.bin"}}'), "names the file '../x.bin'"
    ),
    "bin index with a root": Case(
        in_model(TORCH_INDEX, b'{"weight_map": {"a": "/etc/passwd"}}'), "names the file '/etc/pass"
    ),
    "bin index of .": Case(in_model(TORCH_INDEX, b'{"weight_map": {"a": ".."}}'), "names the file"),
    "bin index with a zero byte": Case(
        in_model(TORCH_INDEX, b'{"weight_map": {"a": "a\\u0000b"}}'), "names the file 'a\\x00b'"
    ),
    "safetensors cut to nothing": Case(cut(SAFETENSORS, 0.0), "truncated or damaged"),
    "safetensors cut in the header": Case(cut(SAFETENSORS, 0.01), "truncated or damaged"),
    "safetensors cut to half": Case(cut(SAFETENSORS, 0.5), "truncated or damaged"),
    "safetensors cut by a byte": Case(cut(SAFETENSORS, 1.0), "truncated or damaged"),
    "safetensors header of 2^60": Case(
        in_model(SAFETENSORS, struct.pack("<Q", HUGE) + b"{}"), f"a header of {HUGE} bytes"
    ),
    "safetensors offset of 2^60": Case(
        in_model(SAFETENSORS, safetensors({"x": entry(offsets=(0, HUGE))})), "at bytes [0, 1152"
    ),
    "safetensors shape of 2^60": Case(
        in_model(SAFETENSORS, safetensors({"x": entry(shape=(HUGE,))})), "of shape [1152"
    ),
    "safetensors deep": Case(
        in_model(SAFETENSORS, safetensors(nested(100_000))), "is not valid JSON"
    ),
    "safetensors in float8": Case(
        in_model(SAFETENSORS, safetensors({"x": entry(dtype="F8_E5M2")})), "as 'F8_E5M2'"
    ),
    "safetensors of one place": Case(
        in_model(SAFETENSORS, safetensors({"x": entry(), "y": entry()})), "truncated or damaged"
    ),
    "safetensors of one name": Case(
        in_model(SAFETENSORS, safetensors(
            json.dumps({"x": entry((8,), (0, 32))}).encode()[:-1] + b","
            + json.dumps({"x": entry((8,), (32, 64))}).encode()[1:])), "truncated or damaged"
    ),
    "safetensors of one name in two": Case(twice, f"'{HEAD}' is twice in"),
    "safetensors name of two lines": Case(odd_name("a\nb\x1b[2J"), "'a\\nb\\x1b[2J'"),
    "safetensors name of a megabyte": Case(odd_name("a" * 2**20), "'aaaaaaaa"),
    "safetensors name with ../": Case(odd_name("../../a.weight"), "'../../a.weight'"),
    "safetensors with NaN": Case(
        lambda to: write_target(to / "model", tensors_of() | spoiled(UP, float("nan"))),
        "NaN or infinity",
    ),
    "safetensors with infinity": Case(
        lambda to: write_target(to / "model", tensors_of() | spoiled(UP, float("inf"))),
        "NaN or infinity",
    ),
    "index with ../": Case(sharded({"a": "../model.safetensors"}), "names the file '../model"),
    "index with a root": Case(sharded({"a": "/etc/passwd"}), "names the file '/etc/passwd'"),
    "index of a megabyte's name": Case(sharded({"a": "../" + "b" * 2**20}), "names the file '../b"),
    "index of lists": Case(sharded({"a": [["b"]]}), "names the file [['b']]"),
    "index without files": Case(sharded({}), "has no weight_map"),
    "index deep": Case(beside(INDEX_FILE, nested(600, "weight_map")), INDEX_FILE),
    "index of 100 MB": Case(sparse(INDEX_FILE, 10**8), f"more than a JSON file's {MAX_JSON_BYTES}"),
    "config of 100 MB": Case(sparse("config.json", 10**8), "more than a JSON file's"),
    "config deep": Case(beside("config.json", nested(100_000)), "is not valid JSON"),
    **{
        f"config of {depth} lists": Case(
            beside("config.json", config_with(nested(depth))), "nested too deep"
        )
        for depth in (101, 600)
    },
    "config with a deep type": Case(
        beside("config.json", config_with(nested(90, "model_type"))), "model_type [[[[[["
    ),
    "config with a long type": Case(with_config(model_type="x" * 10**6), "model_type 'xxx"),
    "config of zeros": Case(beside("config.json", bytes(600)), "is not valid JSON"),
    "config of a list": Case(beside("config.json", b"[]"), "is not a JSON object"),
    "config of nothing": Case(beside("config.json", b""), "is not valid JSON"),
    "config in UTF-16": Case(beside("config.json", "{}".encode("utf-16")), "is not valid JSON"),
    "config with many digits": Case(
        beside("config.json", config_with(b'{"vocab_size": ' + b"9" * 9999 + b"}")), "valid JSON"
    ),
    "config of 2^40 layers": Case(with_config(num_hidden_layers=2**40), "from 1 to 1024"),
    "config of 99 layers": Case(with_config(num_hidden_layers=99), "layers.10."),
    "config of -1 layers": Case(with_config(num_hidden_layers=-1), "num_hidden_layers is -1"),
    "config of two layers in a text": Case(with_config(num_hidden_layers="2"), "layers is '2'"),
    "config of a huge width": Case(with_config(hidden_size=HUGE), "hidden_size is 1152"),
    "config of a large width": Case(with_config(hidden_size=2**16), "65536)"),
    "config of no heads": Case(with_config(num_attention_heads=0), "num_attention_heads is 0"),
    "config of NaN": Case(with_config(rms_norm_eps=float("nan")), "rms_norm_eps is nan"),
    "config of infinity": Case(with_config(rope_theta=float("inf")), "rope_theta is inf"),
    "config with code": Case(with_config(auto_map={"AutoModel": "evil.Evil"}), "own model code"),
    "config of a quantisation": Case(with_config(quantization="4"), "it must be an object"),
    **{
        f"{name} {what}": Case(write(name), name)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
        for what, write in {
            "of 100 MB": lambda name: sparse(name, 10**8),
            "deep": lambda name: beside(name, nested(100_000)),
            "cut": lambda name: beside(name, b'{"version": "1.0", "added_tok'),
            "of zeros": lambda name: beside(name, bytes(100)),
            "of a list": lambda name: beside(name, b"[1]"),
        }.items()
    },
    "tokenizer.model of 100 MB": Case(sparse("tokenizer.model", 10**8), "tokenizer.model"),
    "generation_config cut": Case(beside("generation_config.json", b"{"), "generation_config.json"),
    "gguf cut to the magic": Case(halved(0.0), "m.gguf", False),
    "gguf cut in the head": Case(halved(0.01), "truncated or damaged"),
    "gguf cut to half": Case(halved(0.5), "truncated or damaged"),
    "gguf cut by a byte": Case(halved(1.0), "truncated or damaged"),
    "gguf of 2^60 tensors": Case(patched(8, "<Q", HUGE), f"the number of tensors is {HUGE}"),
    "gguf of 2^60 entries": Case(patched(16, "<Q", HUGE), f"metadata entries is {HUGE}"),
    "gguf key of 2^60 bytes": Case(patched(24, "<Q", HUGE), f"is {HUGE}"),
    "gguf text of 2^60 bytes": Case(
        after(b"general.architecture", "<Q", HUGE, 4), f"is {HUGE}"
    ),
    "gguf array of 2^60": Case(after(b"ggml.tokens", "<Q", HUGE, 8), f"is {HUGE}"),
    "gguf size of 2^60": Case(after(b"token_embd.weight", "<Q", HUGE, 12), "truncated or damaged"),
    "gguf offset of 2^60": Case(after(b"output_norm.weight", "<Q", HUGE - 32, 16), "output_norm"),
    "gguf of 2^31 - 1 layers": Case(gguf(llama__block_count=2**31 - 1), "claims 2147483647 layers"),
    "gguf big-endian": Case(patched(4, ">I", 3), "version 0x3000000"),
    "gguf type of no number": Case(after(b"output_norm.weight", "<I", 12, 12), "as Q4_K"),
    "gguf with a NaN scale": Case(gguf_tensor("token_embd.weight", NAN_HALF), "NaN or infinity"),
    "gguf with an infinite scale": Case(
        gguf_tensor("blk.0.ffn_up.weight", INF_HALF), "NaN or infinity"
    ),
    "gguf with a NaN": Case(
        gguf_tensor("output_norm.weight", struct.pack("<f", float("nan"))), "NaN or infinity"
    ),
    "gguf with a tensor ../": Case(
        gguf([*tiny_tensors(), Tensor("../../evil", "F32", (1,), bytes(4))]), "'../../evil'"
    ),
    "gguf with one name twice": Case(
        gguf([*tiny_tensors(), *tiny_tensors()[:1]]), "is there twice"
    ),
    "gguf of an odd BOS": Case(gguf(tokenizer__ggml__bos_token_id=2**31), "bos_token_id is 2147"),
}  # fmt: skip

DRAFTERS: dict[str, Case] = {
    "drafter with NaN": Case(drafter(**{"rnn_u.bias": NOT_A_NUMBER}), "an infinity or a NaN"),
    "drafter with a tensor more": Case(drafter(extra=mx.zeros(2)), "'extra' of shape (2,)"),
    "drafter of 100 MB of config": Case(long_config, "more than a JSON file's"),
    "drafter with a deep config": Case(drafter(nested(600, "hidden_size")), "nested too deep"),
    "drafter with a deep size": Case(drafter(nested(90, "hidden_size")), "says hidden_size [[["),
    "drafter with a long size": Case(drafter(APPLE | {"exit_dim": "9" * 10**6}), "says exit_dim"),
    "drafter with a long version": Case(drafter({"format_version": "9" * 10**6}), "'9999"),
    "drafter with a deep version": Case(drafter(nested(90, "format_version")), "[[[[[["),
    "drafter with a long key": Case(
        drafter({"format_version": 1, "b" * 10**6: 1}), "unknown key 'bbb"
    ),
    "drafter with a long target": Case(
        drafter({"format_version": 1, "target": "t" * 10**6}), "config.json: target is 'ttt"
    ),
    "drafter with a long head": Case(
        drafter({"format_version": 1, "head": ["t"] * 10**4}), "config.json has head ['t'"
    ),
    "drafter of 2^40": Case(drafter({"format_version": 1, "hidden_size": 2**40, "vocab_size": 5,
                                     "exit_dim": 5, "num_draft_layers": 1}), "1099511627776"),
}  # fmt: skip

# Files of a sound model whose JSON is sound, too; convert copies them.
TOKENIZERS: dict[str, tuple[str, bytes]] = {
    "tokenizer.model cut": ("tokenizer.model", b"\x0a\x0e\x0a\x05<unk>\x15"),
    "vocabulary of a list": ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": [1]}}'),
    "merges of nothing": (
        "tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}'
    ),
    "id of 2^60": ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": %d}}}' % HUGE),
    "code": ("tokenizer_config.json", b'{"tokenizer_class": "Evil", "auto_map": '
                                      b'{"AutoTokenizer": ["evil.Evil", null]}}'),
    "class of no name": ("tokenizer_config.json", b'{"tokenizer_class": {"a": []}}'),
}  # fmt: skip
EVIL_CODE = f"open({CANARY!r}, 'w')\nclass Evil:\n    pass\n"
