"""Two results side by side: ratios, and which differences exceed the spread."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from redrafter_mlx.bench.results import BenchResults
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
    def ratio(self) -> float:
        """Speed of the second over the first's."""
        return self.second.tokens_per_second.median / self.first.tokens_per_second.median


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
    one, two = _settings(first), _settings(second)
    how, other = _configurations(first), _configurations(second)
    one |= {name: text for name, text in how.items() if name in other}
    two |= {name: text for name, text in other.items() if name in how}
    return tuple(
        (name, one.get(name, "-"), two.get(name, "-"))
        for name in dict.fromkeys([*one, *two])
        if one.get(name) != two.get(name)
    )


def _configurations(results: BenchResults) -> dict[str, str]:
    return {
        f"configuration {one.name}": ", ".join(
            f"{key} {value}" for key, value in asdict(one).items() if key != "name"
        )
        for one in results.configurations
    }


def _settings(results: BenchResults) -> dict[str, str]:
    """Return what may explain a difference, by name."""
    machine, target, drafter = results.machine, results.target, results.drafter
    settings = {
        "suite": results.suite,
        "chip": machine.chip,
        "memory_bytes": str(machine.memory_bytes),
        "system": machine.system,
        "device": machine.device,
        "git_commit": str(machine.git_commit),
        "target": target.fingerprint,
        "target_bits": str(target.bits),
        "target_dtype": target.dtype,
        "drafter": drafter.fingerprint if drafter else "-",
        "drafter_bits": str(drafter.bits) if drafter else "-",
    }
    return settings | {f"package {name}": text for name, text in sorted(machine.packages.items())}
