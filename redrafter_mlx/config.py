"""Frozen settings with their checks; every default of the package lives here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeVar, get_args, get_type_hints

from redrafter_mlx.errors import CheckpointError, ConfigError

_T = TypeVar("_T")

DEFAULT_MODEL = "smollm2-135m"
MAX_ROWS = 64
GREEDY_TEMPERATURE = 1e-5
DRAFTER_FORMAT_VERSION = 1
FLOAT_DTYPES = ("float16", "bfloat16", "float32")
DTYPES = ("auto", "stored", "float32", "float16", "bfloat16")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless ``low <= value <= high`` (NaN is refused, too).

    Where ``low`` is an int the value must be a whole number of an integer type.
    """
    kind = Integral if isinstance(low, int) else Real
    if not isinstance(value, kind) or isinstance(value, bool):
        what = "a whole number" if kind is Integral else "a number"
        raise ConfigError(f"{name} is {value!r:.40}; give {what} from {low} to {high}.")
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value!s:.40}; choose a value from {low} to {high}.")


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How a token is chosen from the target's logits.

    Attributes:
        temperature: 0 (or anything under 1e-5) is greedy.
        top_k: Keep the k most probable tokens; 0 keeps all.
        top_p: Keep the smallest set whose probability reaches this; 0 and 1 keep all.
        min_p: Keep tokens at least this fraction of the most probable one's
            probability; 0 keeps all.
        seed: Together with a token's position it fixes the noise, so one seed gives
            one text, with any drafter and with none.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every range."""
        check_range("temperature", self.temperature, 0.0, 1e4)
        check_range("top_k", self.top_k, 0, 2**31 - 1)
        check_range("top_p", self.top_p, 0.0, 1.0)
        check_range("min_p", self.min_p, 0.0, 1.0)
        check_range("seed", self.seed, 0, 2**32 - 1)

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always the one chosen."""
        return self.temperature < GREEDY_TEMPERATURE


@dataclass(frozen=True, slots=True)
class BeamShape:
    """The size of a draft.

    Attributes:
        beam_width: Continuations kept at each step of the beam search.
        beam_length: Tokens of a continuation; it counts ``next_token``, so length 4
            drafts 3 tokens and length 1 is plain decoding.
        max_rows: Most rows that one pass verifies, row 0 included.
    """

    beam_width: int = 2
    beam_length: int = 4
    max_rows: int = MAX_ROWS

    def __post_init__(self) -> None:
        """Check every range."""
        check_range("beam_width", self.beam_width, 1, MAX_ROWS)
        check_range("beam_length", self.beam_length, 1, MAX_ROWS)
        check_range("max_rows", self.max_rows, 1, MAX_ROWS)

    @property
    def num_draft_steps(self) -> int:
        """Steps of the drafter a round: ``beam_length - 1``."""
        return self.beam_length - 1


PLAIN_BEAM_SHAPE = BeamShape(beam_width=1, beam_length=1)
# A pass over few rows is bound by reading the weights on a GPU; on a CPU each row costs.
GPU_BEAM_SHAPE = BeamShape(beam_width=2, beam_length=4)
CPU_BEAM_SHAPE = BeamShape(beam_width=1, beam_length=4)


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """What an answer may be and how it is drafted.

    Attributes:
        max_tokens: Most tokens of the answer; the end of the context may come first.
        stop: Strings that end the answer; they are not part of it.
        sampling: How tokens are chosen.
        beam: Shape of the draft; ``None`` takes the default for the device.
        ignore_eos: Go on after an end-of-sequence token (for benchmarks).
        use_drafter: Whether the model's drafter drafts.
        use_lookup: Whether what followed earlier occurrences of the latest tokens is drafted.
        is_adaptive: Whether rows and parking follow what rounds bring; else every round has
            the whole shape.
        timed_every: Time the parts of the first round that drafts, and of one in n from there on;
            0 times none.
    """

    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    beam: BeamShape | None = None
    ignore_eos: bool = False
    use_drafter: bool = True
    use_lookup: bool = True
    is_adaptive: bool = True
    timed_every: int = 0

    def __post_init__(self) -> None:
        """Check every range."""
        check_range("timed_every", self.timed_every, 0, 2**31 - 1)
        check_range("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if not isinstance(self.sampling, SamplingConfig):
            raise ConfigError(f"sampling is {self.sampling!r}; give a SamplingConfig.")
        if not isinstance(self.beam, BeamShape | None):
            raise ConfigError(f"beam is {self.beam!r}; give a BeamShape or None.")
        if isinstance(self.stop, str):
            raise ConfigError(f"stop is the text {self.stop!r}; give a tuple of texts.")
        if any(not text for text in self.stop):
            raise ConfigError("A stop string is empty; leave it out or give it a character.")


@dataclass(frozen=True, slots=True)
class Quantization:
    """MLX affine quantisation: ``bits`` per weight, a scale per ``group_size`` weights."""

    bits: int
    group_size: int = 64

    def __post_init__(self) -> None:
        """Check that MLX has a kernel for it."""
        if self.bits not in (2, 3, 4, 5, 6, 8):
            raise ConfigError(f"bits is {self.bits}; choose 4 or 8.")
        if self.group_size not in (32, 64, 128):
            raise ConfigError(f"group_size is {self.group_size}; choose 32, 64 or 128.")


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """What identifies the target that a drafter or a corpus was made for.

    Attributes:
        name: The name it was loaded by, for messages only.
        model_type: Family, as in the target's config.json.
        hidden_size: Width of its hidden state.
        vocab_size: Rows of its output head.
        num_layers: Its number of layers.
        fingerprint: Hex digest of its normalisation weights in float16, which stay as
            they are when the rest is quantised or cast.
    """

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """The shape of a drafter and what it was made for: a drafter folder's config.json.

    Attributes:
        hidden_size: H, width of the target's hidden state and embedding.
        vocab_size: V, the target's vocabulary.
        exit_dim: E, width of the residual blocks and of the head's input.
        num_draft_layers: Number of residual blocks.
        rnn: Whether the state is ``SiLU(W e + U s + b)``; else ``s + e``.
        draft_length: Drafted tokens that it was trained for (``beam_length - 1``), or
            ``None`` where nobody knows.
        head: ``own`` (a matrix in the file) or ``tied`` (the target's output head
            times ``head_scale``; then exit_dim == hidden_size).
        head_scale: The constant of a tied head; 1 for an own one.
        draft_vocab_size: Rows of the head where it is cut to a draft vocabulary
            (``draft_vocab``, int32, maps a row to a token id), else ``None``.
        quantization: How the linear layers are stored, ``None`` for floating point.
        target: The target that it was made for, ``None`` where nobody said.
        format_version: Version of this layout.
    """

    hidden_size: int
    vocab_size: int
    exit_dim: int
    num_draft_layers: int
    rnn: bool = True
    draft_length: int | None = None
    head: str = "own"
    head_scale: float = 1.0
    draft_vocab_size: int | None = None
    quantization: Quantization | None = None
    target: TargetIdentity | None = None
    format_version: int = DRAFTER_FORMAT_VERSION

    def __post_init__(self) -> None:
        """Check that the sizes go together."""
        for name in ("hidden_size", "vocab_size", "exit_dim"):
            check_range(name, getattr(self, name), 1, 2**24)
        check_range("num_draft_layers", self.num_draft_layers, 0, 64)
        if self.draft_length is not None:
            check_range("draft_length", self.draft_length, 1, MAX_ROWS)
        if self.draft_vocab_size is not None:
            check_range("draft_vocab_size", self.draft_vocab_size, 1, self.vocab_size)
        if self.head not in ("own", "tied"):
            raise ConfigError(f"head is {self.head!r:.40}; choose own or tied.")
        if self.head == "tied" and self.exit_dim != self.hidden_size:
            raise ConfigError(
                f"A tied head needs exit_dim == hidden_size, but they are {self.exit_dim} "
                f"and {self.hidden_size}; use an own head."
            )
        if not (math.isfinite(self.head_scale) and self.head_scale != 0.0):
            raise ConfigError(f"head_scale is {self.head_scale}; it must be finite and not 0.")

    @property
    def num_head_rows(self) -> int:
        """Tokens that the drafter can propose."""
        return self.draft_vocab_size or self.vocab_size

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that ``from_dict`` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], where: str = "The drafter's config.json"
    ) -> DrafterConfig:
        """Read a drafter's config.json; ``where`` is the file, to begin a message with.

        Raises:
            CheckpointError: A key is unknown or missing, or a newer program wrote it.
            ConfigError: A value is out of range.
        """
        version = values.get("format_version")
        if version != DRAFTER_FORMAT_VERSION:
            raise CheckpointError(
                f"The drafter's format_version is {version!r:.40}, this program reads "
                f"{DRAFTER_FORMAT_VERSION}; import it with redrafter-mlx convert."
            )
        values = dict(values)
        nested = {"quantization": Quantization, "target": TargetIdentity}
        for key, kind in nested.items():
            if values.get(key) is not None:
                values[key] = build_strictly(kind, values[key], f"{where}: {key}")
        return build_strictly(cls, values, where)


def build_strictly(kind: type[_T], values: Mapping[str, Any], where: str = "The file") -> _T:
    """Build a dataclass from a mapping, refusing unknown, missing and misshapen keys.

    ``where`` is what holds the mapping, to begin a message with.
    """
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where} is {values!r:.80}; it must be a JSON object.")
    entries = fields(kind)  # type: ignore[arg-type]
    unknown = sorted(set(values) - {entry.name for entry in entries})
    if unknown:
        raise CheckpointError(f"{where} has an unknown key {unknown[0]!r:.80}; remove it.")
    _check_types(kind, values, where)
    for entry in entries:
        has_default = entry.default is not MISSING or entry.default_factory is not MISSING
        if entry.name not in values and not has_default:
            raise CheckpointError(f"{where} has no {entry.name}; it must have one.")
    return kind(**values)


def _check_types(kind: type[_T], values: Mapping[str, Any], where: str) -> None:
    """Refuse a value of another type than the field's; an int may stand for a float."""
    for name, hint in get_type_hints(kind).items():
        accepted = get_args(hint) or (hint,)
        value = values.get(name)
        is_number = float in accepted and type(value) is int
        if name in values and type(value) not in accepted and not is_number:
            raise CheckpointError(f"{where} has {name} {value!r:.80}; its type is wrong.")
