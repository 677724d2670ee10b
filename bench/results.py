"""The schema of results.json: what was run, on what, and every trial of it.

A change of any field raises SCHEMA_VERSION; a file of another version is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from redrafter_mlx.bench.strict_json import dump_strictly, load_strictly
from redrafter_mlx.errors import CheckpointError

SCHEMA_VERSION = 2
PLAIN = "plain"
MLX_LM = "mlx-lm"
PHASES = ("draft", "verify", "accept", "host", "commit")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it ran.

    Attributes:
        chip: Such as "Apple M2 Ultra", or the processor's name.
        memory_bytes: Of the machine.
        num_cpus: Cores of the processor that the system shows.
        system: Operating system and its version.
        device: What MLX ran on: gpu or cpu.
        packages: Versions by name, Python's among them.
        git_commit: Of the checkout, ``None`` outside one.
    """

    chip: str
    memory_bytes: int
    num_cpus: int
    system: str
    device: str
    packages: dict[str, str]
    git_commit: str | None


@dataclass(frozen=True, slots=True)
class WeightsRecord:
    """A target or a drafter as it was loaded.

    Attributes:
        name: What it was asked for by.
        dtype: Type of its activations.
        bits: Of its quantised weights, ``None`` where they are not quantised.
        bytes_read: Bytes of the weights that one pass reads.
        fingerprint: What tells it from another of the same name.
    """

    name: str
    dtype: str
    bits: int | None
    bytes_read: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to decode.

    Attributes:
        name: As the tables call it; "plain" and "mlx-lm" are the baselines.
        program: Who ran it: redrafter-mlx or mlx-lm.
        beam_width: ``None`` where nothing is drafted; so is beam_length.
        beam_length: Tokens of a continuation, ``next_token`` counted.
        max_rows: Most rows that a pass verified.
        uses_lookup: Whether a lookup branch joined the tree.
        is_adaptive: Whether rows and parking followed what rounds brought.
        max_tokens: Most tokens of an answer.
        temperature: 0 is greedy.
        top_p: Probability of the likeliest tokens that were kept; 1 kept all.
        seed: Of the sampling noise.
        ignores_eos: Whether it went on behind an end-of-sequence token.
    """

    name: str
    program: str
    beam_width: int | None
    beam_length: int | None
    max_rows: int | None
    uses_lookup: bool
    is_adaptive: bool
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    ignores_eos: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """One answer by one configuration, timed; every round of it is counted.

    Attributes:
        configuration: Its name.
        question_id: Number of the question, and its category and turn.
        number: Of the trial, from 0; each is a pass over all questions.
        prompt_tokens: Tokens read.
        emitted_tokens: Tokens of the answer; the first is prefill's.
        num_rounds: Target passes after prefill.
        num_plain_steps: Those of them that verified no draft: what a parked drafter leaves.
        verified_rows: Rows that they ran.
        drafted_by_depth: Rounds that offered a token at depth 1, 2, ...
        accepted_by_depth: Rounds that kept one there.
        accepted_by_lookup: Tokens kept that came from the lookup branch.
        time_to_first_token_seconds: From the call on.
        decode_seconds: From the first token to the last.
        peak_memory_bytes: While it ran.
        is_compared: Whether the text was held against plain decoding's; mlx-lm's is not where
            it is sampled, since it draws other noise.
        first_difference: Place of the first token that plain decoding chose otherwise, from 0;
            ``None`` where the texts are equal or not compared.
        difference_margin: Gap there between the two best scores: logits, or where the text is
            sampled the noisy log-probabilities.
    """

    configuration: str
    question_id: int
    category: str
    turn: int
    number: int
    prompt_tokens: int
    emitted_tokens: int
    num_rounds: int
    num_plain_steps: int
    verified_rows: int
    drafted_by_depth: tuple[int, ...]
    accepted_by_depth: tuple[int, ...]
    accepted_by_lookup: int
    time_to_first_token_seconds: float
    decode_seconds: float
    peak_memory_bytes: int
    is_compared: bool
    first_difference: int | None
    difference_margin: float | None

    def __post_init__(self) -> None:
        """Check that each depth has both counts."""
        if len(self.drafted_by_depth) != len(self.accepted_by_depth):
            raise CheckpointError(
                f"a trial of {self.configuration!r} drafted {len(self.drafted_by_depth)} deep and "
                f"accepted {len(self.accepted_by_depth)} deep"
            )

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed without prefill; 0 where only one token came."""
        decoded = self.emitted_tokens - 1
        return decoded / self.decode_seconds if decoded > 0 and self.decode_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds of the phases of a configuration's rounds, from a pass of its own.

    To time a phase it must be waited for, so this pass is slower than the timed trials. Of
    each phase it is the median over a few prompts, times the rounds.

    Attributes:
        configuration: Its name.
        num_rounds: That were timed: all but the plain steps of a drafter that is parked.
        draft_seconds: Of the drafter.
        verify_seconds: Of the target's pass.
        accept_seconds: Of choosing the tokens and walking the tree.
        host_seconds: Of Python: planning the tree and reading the outcome.
        commit_seconds: Of moving what was accepted in the KV cache.
    """

    configuration: str
    num_rounds: int
    draft_seconds: float
    verify_seconds: float
    accept_seconds: float
    host_seconds: float
    commit_seconds: float


@dataclass(frozen=True, slots=True)
class BenchResults:
    """All that a bench found; a bench that was broken off has fewer trials.

    Attributes:
        schema_version: ``SCHEMA_VERSION``.
        started_at: Date and time in UTC, ISO 8601.
        suite: quick, paper, mt-bench, or the name of a file of questions.
        questions_digest: Tells one set of questions and turns from another.
        machine: Where it ran.
        target: What decoded.
        drafter: What drafted, ``None`` where nothing did.
        configurations: The ways to decode, in the order of the tables.
        trials: Every timed answer.
        phases: Where the time of a round went, by configuration.
        notes: What a reader must know: what could not be measured, and why.
    """

    schema_version: int
    started_at: str
    suite: str
    questions_digest: str
    machine: Machine
    target: WeightsRecord
    drafter: WeightsRecord | None
    configurations: tuple[Configuration, ...]
    trials: tuple[Trial, ...]
    phases: tuple[PhaseTimes, ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the version, and that every figure belongs to a configuration."""
        _check_version(self.schema_version)
        names = [configuration.name for configuration in self.configurations]
        if len(set(names)) < len(names):
            raise CheckpointError(f"two configurations have one name among {', '.join(names)}")
        known = [trial.configuration for trial in self.trials]
        for name in (*known, *(phase.configuration for phase in self.phases)):
            if name not in names:
                raise CheckpointError(
                    f"there are figures for {name!r}, which is none of its configurations "
                    f"({', '.join(names)})"
                )


def to_json(results: BenchResults) -> str:
    """Return the text of results.json."""
    return dump_strictly(results)


def from_json(text: str) -> BenchResults:
    """Return what ``to_json`` wrote.

    Raises:
        CheckpointError: It is no JSON, of another version, or has a key or a type too many; what
            is wrong with it, for whoever knows the file.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"it is no JSON ({error})") from error
    if isinstance(values, dict):
        _check_version(values.get("schema_version"))
    return load_strictly(BenchResults, text)


def _check_version(version: object) -> None:
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            f"its schema_version is {json.dumps(version):.40} and this program's {SCHEMA_VERSION}"
        )
