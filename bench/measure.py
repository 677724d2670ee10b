"""Fair measuring: every side warmed up, then all in turn, question by question.

Each question is first answered plainly and untimed; that text is what every other one is held
against, and in a second turn it is the first answer, so that all sides get the same prompt.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import mlx.core as mx

from redrafter_mlx.bench.equality import first_difference
from redrafter_mlx.bench.plain_answers import PlainAnswers
from redrafter_mlx.bench.questions import Question
from redrafter_mlx.bench.results import PHASES, PhaseTimes, Trial
from redrafter_mlx.bench.sides import OurSide, Side, Timing
from redrafter_mlx.bench.store import Recorder
from redrafter_mlx.bench.suites import Suite
from redrafter_mlx.errors import PromptError
from redrafter_mlx.generation import Answer
from redrafter_mlx.loading.model import LoadedModel

WARM_UP_TOKENS = 32
PHASE_TOKENS = 32
PHASE_QUESTIONS = 3

OnProgress = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Cell:
    """One timed answer to come."""

    number: int
    question: Question
    turn: int
    side: Side

    @property
    def key(self) -> tuple[int, int, int, str]:
        """What tells it from all others."""
        question_id = self.question.question_id
        return self.number, question_id, self.turn, self.side.configuration.name


def cells(suite: Suite, sides: Sequence[Side], num_trials: int) -> Iterator[Cell]:
    """Yield all cells in the order in which they run.

    A trial is a pass over the questions. At each of them all sides take their turn, each time
    from another one on, so that none is always first.
    """
    for number in range(num_trials):
        place = number
        for question in suite.questions:
            for turn in range(1, min(suite.num_turns, len(question.turns)) + 1):
                start = place % len(sides)
                for side in (*sides[start:], *sides[:start]):
                    yield Cell(number, question, turn, side)
                place += 1


def missing_cells(
    suite: Suite, sides: Sequence[Side], num_trials: int, recorder: Recorder
) -> list[Cell]:
    """Return the cells that the results lack."""
    done = {
        (one.number, one.question_id, one.turn, one.configuration)
        for one in recorder.results.trials
    }
    return [cell for cell in cells(suite, sides, num_trials) if cell.key not in done]


@dataclass(slots=True)
class Bench:
    """One run over what the results lack.

    Attributes:
        model: Decodes plainly what the others are held against.
        suite: What is asked.
        sides: Who answers.
        plain: Of plain decoding.
        recorder: Gets every result at once.
    """

    model: LoadedModel
    suite: Suite
    sides: Sequence[Side]
    plain: PlainAnswers
    recorder: Recorder
    _done: int = 0
    _on_progress: OnProgress = lambda done, words: None

    def run(self, cells: Sequence[Cell], on_progress: OnProgress) -> None:
        """Warm all sides up, look into their rounds, then time the cells.

        Args:
            cells: What the results lack.
            on_progress: Gets the tokens that are done, of ``num_tokens``, and a few words.
        """
        if not cells:
            return
        self._on_progress = on_progress
        with _little_garbage():
            self._warm_up()
            self._time_phases()
            for place, cell in enumerate(cells):
                self._advance(0, f"{place + 1} of {len(cells)}")
                self._run_cell(cell)
                self._advance(self._max_tokens, f"{place + 1} of {len(cells)}")

    def num_tokens(self, cells: Sequence[Cell]) -> int:
        """Return the most tokens that ``run`` decodes, but for the untimed plain answers."""
        if not cells:
            return 0
        warm_up = min(self._max_tokens, WARM_UP_TOKENS) * len(self.sides)
        phases = min(self._max_tokens, PHASE_TOKENS) * self._num_phase_questions
        return warm_up + phases * len(self._sides_with_phases) + self._max_tokens * len(cells)

    @property
    def _max_tokens(self) -> int:
        return self.plain.config.max_tokens

    @property
    def _num_phase_questions(self) -> int:
        return min(PHASE_QUESTIONS, len(self.suite.questions))

    @property
    def _sides_with_phases(self) -> list[OurSide]:
        """Return the sides that draft and have not been looked into."""
        known = {one.configuration for one in self.recorder.results.phases}
        ours = [side for side in self.sides if isinstance(side, OurSide)]
        return [
            side
            for side in ours
            if (side.configuration.beam_length or side.configuration.uses_lookup)
            and side.configuration.name not in known
        ]

    def _advance(self, num_tokens: int, words: str) -> None:
        self._done += num_tokens
        self._on_progress(self._done, words)

    def _warm_up(self) -> None:
        """Have every side answer once: kernels are built and weights read before the clock runs."""
        num_tokens = min(self._max_tokens, WARM_UP_TOKENS)
        (prompt,) = self.plain.first_prompts(self.suite.questions, 1)
        for side in self.sides:
            self._advance(0, "warming up")
            side.answer(prompt, num_tokens)
            self._advance(num_tokens, "warming up")

    def _time_phases(self) -> None:
        num_tokens = min(self._max_tokens, PHASE_TOKENS)
        prompts = self.plain.first_prompts(self.suite.questions, PHASE_QUESTIONS)
        for side in self._sides_with_phases:
            self._advance(0, "phases")
            phases = time_phases(side, prompts, num_tokens)
            if phases.num_rounds:
                self.recorder.add_phases(phases)
            self._advance(num_tokens * self._num_phase_questions, "phases")

    def _run_cell(self, cell: Cell) -> None:
        try:
            plain = self.plain.answer(cell.question, cell.turn)
        except PromptError as error:
            where = f"Question {cell.question.question_id}, turn {cell.turn}"
            self.recorder.add_note(f"{where} was not asked: {error}")
            return
        gc.collect()
        mx.clear_cache()
        mx.reset_peak_memory()
        timing = cell.side.answer(plain.prompt_tokens, self._max_tokens)
        peak = mx.get_peak_memory()
        self.recorder.add_trial(self._trial(cell, timing, plain, peak))

    def _trial(self, cell: Cell, timing: Timing, plain: Answer, peak: int) -> Trial:
        sampling, stats = self.plain.config.sampling, timing.stats
        is_compared = sampling.is_greedy or isinstance(cell.side, OurSide)
        difference = (
            first_difference(self.model, plain, timing.tokens, sampling) if is_compared else None
        )
        return Trial(
            configuration=cell.side.configuration.name,
            question_id=cell.question.question_id,
            category=cell.question.category,
            turn=cell.turn,
            number=cell.number,
            prompt_tokens=len(plain.prompt_tokens),
            emitted_tokens=len(timing.tokens),
            num_rounds=stats.num_rounds,
            num_plain_steps=stats.num_plain_steps,
            verified_rows=stats.verified_rows,
            drafted_by_depth=tuple(stats.drafted_by_depth),
            accepted_by_depth=tuple(stats.accepted_by_depth),
            accepted_by_lookup=stats.accepted_by_source.get("lookup", 0),
            time_to_first_token_seconds=timing.time_to_first_token_seconds,
            decode_seconds=timing.decode_seconds,
            peak_memory_bytes=peak,
            is_compared=is_compared,
            first_difference=difference.place if difference else None,
            difference_margin=difference.margin if difference else None,
        )


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Have the collector pass over what there is by now: else it takes 0.2 s before each answer."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def time_phases(side: OurSide, prompts: Sequence[Sequence[int]], num_tokens: int) -> PhaseTimes:
    """Return the time of each phase of a side's rounds, all of them waited for.

    Of each phase it is the median over the prompts, so that no disturbance of one counts.
    """
    timed = side.fresh(timed_every=1)
    answers = [timed.answer(prompt, num_tokens).stats for prompt in prompts]
    counted = [stats for stats in answers if stats.num_timed_rounds]
    num_rounds = sum(stats.num_timed_rounds for stats in counted)
    seconds = {
        f"{phase}_seconds": num_rounds
        * median(one.part_seconds.get(phase, 0.0) / one.num_timed_rounds for one in counted)
        if counted
        else 0.0
        for phase in PHASES
    }
    return PhaseTimes(side.configuration.name, num_rounds, **seconds)
