"""Small tokenizers of the kinds that the supported models have, and their chat templates."""

import json
from typing import Any

BAR = "\N{FULLWIDTH VERTICAL LINE}"
SAMPLE = ["The fox jumps over the lazy dog.", "naïve café", "हिन्दी में नमस्ते", "日本語"] * 4
# Of SmolLM2-135M-Instruct, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Llama 2 has it: a BOS and an EOS around each turn, the answer trimmed.
INST = (
    "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\n' + "
    "messages[0]['content'] + '\n<</SYS>>\n\n' %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() "
    "+ ' [/INST]' }}{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
# As Qwen3 has it: the thinking of past answers is left out.
THINKING = (
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Qwen3's switch on top of it: a new answer begins with an empty thought. After
# tokenizer_config.json of Qwen3, https://huggingface.co/Qwen/Qwen3-0.6B.
SWITCHED_THINKING = THINKING.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


def byte_level() -> Any:
    """Return a tokenizer as GPT-2, SmolLM2, Llama 3 and Qwen have it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLE, trainer)
    tokenizer.add_tokens([AddedToken(f"<{BAR}tool{BAR}>", normalized=False), "dé jà"])
    tokenizer.add_special_tokens(["<pad>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )


def sentencepiece() -> Any:
    """Return a tokenizer as Llama 2, TinyLlama and Mistral have it, which adds a BOS."""
    from tokenizers import decoders, normalizers

    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer = _sentencepiece_vocabulary()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(steps)
    return _with_bos(tokenizer)


def metaspace() -> Any:
    """Return the same with the other decoder that SentencePiece models come with."""
    from tokenizers import decoders, pre_tokenizers

    tokenizer = _sentencepiece_vocabulary()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
    )
    return _with_bos(tokenizer)


def _sentencepiece_vocabulary() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=120, show_progress=False)
    trained.train_from_iterator(SAMPLE, trainer)
    pieces = [piece for piece, _ in sorted(trained.get_vocab().items(), key=lambda item: item[1])]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "▁▁"]
    merges = [pair for pair in _merges(trained) if "".join(pair) in names]
    vocabulary = {name: token for token, name in enumerate(names)}
    return Tokenizer(
        models.BPE(
            vocabulary, [*merges, ("▁", "▁")], unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )


def _merges(tokenizer: Any) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def _with_bos(tokenizer: Any) -> Any:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
