"""A bench from its parts: who answers what, and what an earlier run has left to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from redrafter_mlx.bench.machine import describe_drafter, describe_target, this_machine
from redrafter_mlx.bench.measure import Bench, Cell, OnProgress, missing_cells
from redrafter_mlx.bench.plain_answers import PlainAnswers
from redrafter_mlx.bench.results import SCHEMA_VERSION, BenchResults
from redrafter_mlx.bench.sides import PeerSide, Side, SideOptions, our_sides, peer_side
from redrafter_mlx.bench.store import Recorder, resumed
from redrafter_mlx.bench.suites import Suite
from redrafter_mlx.errors import PromptError
from redrafter_mlx.folders import require_free
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.text import has_chat_template


@dataclass(frozen=True, slots=True)
class Place:
    """Where results go, and what may be there.

    Attributes:
        folder: Of the results.
        is_resumed: Whether results that are there are gone on with.
        drafter: Folder of the drafter, ``None`` where it was found.
    """

    folder: Path
    is_resumed: bool = False
    drafter: Path | None = None

    def require_free(self) -> None:
        """Refuse a folder that is taken, unless its results are gone on with."""
        if not self.is_resumed:
            advice = "choose another, or go on with results that are there by --resume"
            require_free(self.folder, advice)


@dataclass(frozen=True, slots=True)
class Session:
    """A bench that is ready to run.

    Attributes:
        cells: What is still to be timed.
        recorder: Holds the results.
    """

    bench: Bench
    cells: list[Cell]
    recorder: Recorder

    @property
    def num_tokens(self) -> int:
        """Most tokens that it decodes."""
        return self.bench.num_tokens(self.cells)

    def run(self, on_progress: OnProgress) -> None:
        """Measure what is missing; broken off anywhere, what is done is kept."""
        self.bench.run(self.cells, on_progress)


def begin(
    model: LoadedModel, suite: Suite, options: SideOptions, num_trials: int, place: Place
) -> Session:
    """Make everything ready, and the folder.

    Raises:
        CheckpointError: The folder is not free, or holds results of another bench.
        ConfigError: There are shapes to compare, but no drafter.
        PromptError: No question fits the model, or it has no second turns.
    """
    place.require_free()
    if suite.num_turns > 1 and not has_chat_template(model.tokenizer):
        raise PromptError(
            f"{model.name} has no chat template, so there is no second turn; leave --turns out."
        )
    plain = PlainAnswers(model, options.plain_config)
    ours = our_sides(model, options)
    peer = _peer_or_reason(model, options, plain.first_prompts(suite.questions, 1)[0])
    sides: list[Side] = [*ours] if isinstance(peer, str) else [peer, *ours]
    notes = (peer,) if isinstance(peer, str) else ()
    begun = BenchResults(
        schema_version=SCHEMA_VERSION,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        suite=suite.name,
        questions_digest=suite.digest,
        machine=this_machine(),
        target=describe_target(model),
        drafter=describe_drafter(model, place.drafter),
        configurations=tuple(side.configuration for side in sides),
        trials=(),
        phases=(),
        notes=(*model.notices, *notes),
    )
    results = resumed(begun, place.folder) if place.is_resumed else begun
    recorder = Recorder(results, place.folder)
    bench = Bench(model, suite, sides, plain, recorder)
    return Session(bench, missing_cells(suite, sides, num_trials, recorder), recorder)


def _peer_or_reason(
    model: LoadedModel, options: SideOptions, prompt: Sequence[int]
) -> PeerSide | str:
    """Return mlx-lm's side once it has answered, or a line that says why it is not measured."""
    try:
        peer = peer_side(model, options)
        peer.answer(prompt, 2)
    except Exception as error:  # whatever mlx-lm raises, our own sides can be measured
        reason = " ".join(str(error).split()) or type(error).__name__
        return f"mlx-lm was not measured: {type(error).__name__}: {reason:.200}"
    return peer
