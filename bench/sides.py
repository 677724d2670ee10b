"""The sides of a bench: one way to decode each, ours or mlx-lm's, timed alike."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import mlx.core as mx

from redrafter_mlx.bench.peer import load_peer, load_peer_tokenizer
from redrafter_mlx.bench.results import MLX_LM, PLAIN, Configuration
from redrafter_mlx.config import PLAIN_BEAM_SHAPE, BeamShape, GenerationConfig, SamplingConfig
from redrafter_mlx.decoding.decode import most_tokens
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import ConfigError
from redrafter_mlx.generation import stream_generate
from redrafter_mlx.loading.model import LoadedModel

OURS = "redrafter-mlx"


@dataclass(frozen=True, slots=True)
class Timing:
    """When the tokens of an answer came, by one clock for all sides.

    Attributes:
        tokens: Ids, an end-of-sequence token included.
        time_to_first_token_seconds: From the call on.
        decode_seconds: From the first token to the last.
        stats: Counts of our own loop; for mlx-lm one round a token.
    """

    tokens: tuple[int, ...]
    time_to_first_token_seconds: float
    decode_seconds: float
    stats: DecodeStats


class Side(Protocol):
    """One way to decode."""

    @property
    def configuration(self) -> Configuration:
        """What it is, for the results."""
        ...

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Timing:
        """Answer token ids with at most so many tokens, and time it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class OurSide:
    """Our own decoding.

    Attributes:
        configuration: What it is.
        model: With an experience of its own, which it keeps from answer to answer.
        config: How it decodes.
    """

    configuration: Configuration
    model: LoadedModel
    config: GenerationConfig

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Timing:
        """Answer through ``stream_generate``, text included."""
        stats = DecodeStats()
        config = replace(self.config, max_tokens=max_tokens)
        with closing(stream_generate(self.model, prompt, config)) as chunks:
            clock = _Clock()
            for chunk in chunks:
                clock.take(chunk.token)
                stats = chunk.stats
        return clock.timing(stats)

    def fresh(self, *, timed_every: int) -> OurSide:
        """Return the same without experience, with every so many rounds timed in parts."""
        model = replace(self.model, pace=self.model.pace.fresh())
        return replace(self, model=model, config=replace(self.config, timed_every=timed_every))


@dataclass(frozen=True, slots=True, eq=False)
class PeerSide:
    """mlx-lm's ``stream_generate`` on the same weights.

    Attributes:
        configuration: What it is.
        peer: mlx-lm's model.
        tokenizer: mlx-lm's, which knows where answers end.
        sampling: The same settings; but the noise is mlx-lm's own.
        max_positions: Of the context, which mlx-lm does not watch.
    """

    configuration: Configuration
    peer: Any
    tokenizer: Any
    sampling: SamplingConfig
    max_positions: int

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Timing:
        """Answer by mlx-lm."""
        from mlx_lm.generate import stream_generate
        from mlx_lm.sample_utils import make_sampler

        sampling = self.sampling
        temperature = 0.0 if sampling.is_greedy else sampling.temperature
        sampler = make_sampler(temp=temperature, top_p=sampling.top_p)
        max_tokens = most_tokens(max_tokens, len(prompt), self.max_positions)
        mx.random.seed(sampling.seed)
        clock = _Clock()
        for response in stream_generate(
            self.peer, self.tokenizer, list(prompt), max_tokens, sampler=sampler
        ):
            clock.take(int(response.token))
        return clock.timing(_stats_of(len(prompt), len(clock.tokens)))


@dataclass(slots=True)
class _Clock:
    """Notes when tokens come."""

    started: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    last: float = 0.0
    tokens: list[int] = field(default_factory=list)

    def take(self, token: int) -> None:
        self.last = time.perf_counter()
        if not self.tokens:
            self.first = self.last
        self.tokens.append(token)

    def timing(self, stats: DecodeStats) -> Timing:
        return Timing(tuple(self.tokens), self.first - self.started, self.last - self.first, stats)


def _stats_of(num_prompt_tokens: int, num_tokens: int) -> DecodeStats:
    """Return the counts of a loop that runs one row a token."""
    rounds = num_tokens - 1
    return DecodeStats(
        prompt_tokens=num_prompt_tokens,
        emitted_tokens=num_tokens,
        num_rounds=rounds,
        num_plain_steps=rounds,
        verified_rows=rounds,
    )


@dataclass(frozen=True, slots=True)
class SideOptions:
    """What all sides have in common, and what is drafted.

    Attributes:
        max_tokens: Most tokens of an answer.
        sampling: How tokens are chosen.
        ignores_eos: Whether answers go on behind an end-of-sequence token.
        uses_lookup: Whether the adapted side looks up, as a user's does.
        shapes: The grid of fixed shapes.
    """

    max_tokens: int
    sampling: SamplingConfig
    ignores_eos: bool
    uses_lookup: bool
    shapes: tuple[BeamShape, ...] = ()

    @property
    def plain_config(self) -> GenerationConfig:
        """How plain decoding decodes."""
        return GenerationConfig(
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            beam=PLAIN_BEAM_SHAPE,
            ignore_eos=self.ignores_eos,
            use_lookup=False,
            is_adaptive=False,
        )


def our_sides(model: LoadedModel, options: SideOptions) -> list[OurSide]:
    """Return plain decoding, drafting as a user has it, and fixed shapes as the paper has it.

    Fixed shapes draft in full in every round and look nothing up.

    Raises:
        ConfigError: There is a grid of shapes, but no drafter.
    """
    plain = options.plain_config
    adapted = replace(plain, beam=None, use_lookup=options.uses_lookup, is_adaptive=True)
    if model.drafter is None and options.shapes:
        raise ConfigError(
            f"{model.name} has no drafter, so there are no shapes to compare; name one by "
            "--drafter."
        )
    usual = model.beam_shape
    is_drafting = model.drafter is not None and usual.num_draft_steps > 0
    configs = {PLAIN: plain}
    if is_drafting:
        words = " + lookup" if options.uses_lookup else ""
        configs[f"{shape_name(usual)} adapted{words}"] = adapted
    elif options.uses_lookup:
        configs["lookup alone, adapted"] = adapted
    for shape in (*([usual] if is_drafting else []), *options.shapes):
        configs[f"{shape_name(shape)} fixed"] = replace(plain, beam=shape)
    return [_our_side(name, model, config) for name, config in configs.items()]


def shape_name(shape: BeamShape) -> str:
    """Return (width,length), with the most rows of a pass where they cut the draft short."""
    all_rows = 1 + shape.beam_width * shape.num_draft_steps
    rows = f" {shape.max_rows} rows" if shape.max_rows < all_rows else ""
    return f"({shape.beam_width},{shape.beam_length}){rows}"


def _our_side(name: str, model: LoadedModel, config: GenerationConfig) -> OurSide:
    shape = config.beam or model.beam_shape
    is_drafting = model.drafter is not None and shape.num_draft_steps > 0
    configuration = Configuration(
        name=name,
        program=OURS,
        beam_width=shape.beam_width if is_drafting else None,
        beam_length=shape.beam_length if is_drafting else None,
        max_rows=shape.max_rows if is_drafting else None,
        uses_lookup=config.use_lookup,
        is_adaptive=config.is_adaptive,
        max_tokens=config.max_tokens,
        temperature=config.sampling.temperature,
        top_p=config.sampling.top_p,
        seed=config.sampling.seed,
        ignores_eos=config.ignore_eos,
    )
    # Plain steps of one side must not teach another what a step costs.
    return OurSide(configuration, replace(model, pace=model.pace.fresh()), config)


def peer_side(model: LoadedModel, options: SideOptions) -> PeerSide:
    """Return mlx-lm on the model's weights.

    Raises:
        Exception: Whatever mlx-lm raises where it is missing or cannot load the model.
    """
    if model.folder is None:
        raise ConfigError(f"{model.name} lies in no folder.")
    eos_ids: Iterable[int] = () if options.ignores_eos else model.eos_ids
    plain = _our_side(MLX_LM, model, options.plain_config).configuration
    return PeerSide(
        configuration=replace(plain, program=MLX_LM),
        peer=load_peer(model.folder, model.target),
        tokenizer=load_peer_tokenizer(model.folder, frozenset(eos_ids)),
        sampling=options.sampling,
        max_positions=model.target.config.max_positions,
    )
