"""Two results side by side: ratios, and which differences exceed the spread."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from redrafter_mlx.bench.results import BenchResults, Configuration
from redrafter_mlx.bench.summary import Summary, summarize


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration that both results have.

    Attributes:
        first: In the first results.
        second: In the second ones.
        exceeds_spread: Whether the passes of the one are all faster than those of the other;
            ``None`` where a side has a single pass and so no spread.
    """

    first: Summary
    second: Summary
    exceeds_spread: bool | None

    @property
    def ratio(self) -> float | None:
        """Speed of the second over the first's, ``None`` where that has none."""
        first = self.first.tokens_per_second.median
        return self.second.tokens_per_second.median / first if first else None


@dataclass(frozen=True, slots=True)
class ComparedResults:
    """Two results.

    Attributes:
        comparisons: The configurations of one name in both.
        only_first: Names that the second results lack.
        only_second: Names that the first results lack.
        differences: Settings in which the two runs differ: (what, first, second).
    """

    comparisons: tuple[Comparison, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    differences: tuple[tuple[str, str, str], ...]


def compare(first: BenchResults, second: BenchResults) -> ComparedResults:
    """Return two results side by side, matched by the configurations' names."""
    ours = {summary.name: summary for summary in summarize(first)}
    theirs = {summary.name: summary for summary in summarize(second)}
    return ComparedResults(
        comparisons=tuple(_comparison(ours[name], theirs[name]) for name in ours if name in theirs),
        only_first=tuple(name for name in ours if name not in theirs),
        only_second=tuple(name for name in theirs if name not in ours),
        differences=_differences(first, second),
    )


def _comparison(first: Summary, second: Summary) -> Comparison:
    one, two = first.tokens_per_second, second.tokens_per_second
    exceeds = one.most < two.least or two.most < one.least
    has_spread = min(first.num_passes, second.num_passes) > 1
    return Comparison(first, second, exceeds if has_spread else None)


def _differences(first: BenchResults, second: BenchResults) -> tuple[tuple[str, str, str], ...]:
    others = {one.name: one for one in second.configurations}
    found = _unlike(_settings(first), _settings(second))
    for one in first.configurations:
        if one.name in others:
            found += _unlike(_options(one), _options(others[one.name]))
    return tuple(found)


def _options(configuration: Configuration) -> dict[str, str]:
    values = asdict(configuration)
    return {f"{configuration.name}: {key}": str(value) for key, value in values.items()}


def _unlike(first: dict[str, str], second: dict[str, str]) -> list[tuple[str, str, str]]:
    return [
        (name, first.get(name, "-"), second.get(name, "-"))
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name)
    ]


def _settings(results: BenchResults) -> dict[str, str]:
    """Return what may explain a difference, by name."""
    questions = {(trial.question_id, trial.turn) for trial in results.trials}
    machine, target, drafter = results.machine, results.target, results.drafter
    settings = {
        "suite": results.suite,
        "questions": results.questions_digest,
        "answered questions": str(len(questions)),
        "chip": machine.chip,
        "memory_bytes": str(machine.memory_bytes),
        "num_cpus": str(machine.num_cpus),
        "system": machine.system,
        "device": machine.device,
        "git_commit": str(machine.git_commit),
        "target": target.fingerprint,
        "target_bits": str(target.bits),
        "target_dtype": target.dtype,
        "drafter": drafter.fingerprint if drafter else "-",
        "drafter_bits": str(drafter.bits) if drafter else "-",
        "drafter_dtype": drafter.dtype if drafter else "-",
    }
    return settings | {f"package {name}": text for name, text in sorted(machine.packages.items())}
