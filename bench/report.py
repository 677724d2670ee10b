"""The results as tables: results.csv with every trial, report.md for a reader."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from redrafter_mlx.bench.beside import Figures, beside_notes, beside_published
from redrafter_mlx.bench.results import (
    PHASES,
    PLAIN,
    BenchResults,
    Configuration,
    Machine,
    Trial,
    WeightsRecord,
)
from redrafter_mlx.bench.summary import (
    Spread,
    Summary,
    first_differences,
    have_no_spread,
    summarize,
)

_GIB = 2**30
NO_SPREAD = (
    "one pass over the questions, so there is no spread, and a difference may be chance; "
    "--trials 3 gives one."
)
_BESIDE = {
    "tokens/s": "tokens_per_second",
    "times plain": "times_plain",
    "tokens a round": "tokens_per_round",
}


def to_csv(results: BenchResults) -> str:
    """Return every trial as a line of CSV; lists are joined by spaces, what is not known is empty.

    Every line begins with the chip, the target and the drafter, so that files can be joined.
    """
    text = io.StringIO()
    names = [entry.name for entry in fields(Trial)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["chip", "target", "drafter", *names, "tokens_per_second"])
    drafter = results.drafter.name if results.drafter else ""
    for trial in results.trials:
        values = asdict(trial)
        start = [results.machine.chip, results.target.name, drafter]
        cells = [_csv_cell(values[name]) for name in names]
        writer.writerow([*start, *cells, f"{trial.tokens_per_second:.3f}"])
    return text.getvalue()


def _csv_cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def report(results: BenchResults) -> str:
    """Return report.md: the machine, the tables, and what they do not say."""
    summaries = summarize(results)
    parts = [
        f"# Bench: {_cell(results.target.name)}\n",
        _setting(results),
        "## Speed\n",
        _speed_table(summaries),
        "## Rounds\n",
        _round_table(summaries),
        *_phase_part(results),
        "## Texts\n",
        _text_lines(results, summaries),
        *_category_part(results),
        *_published_part(results),
    ]
    return "\n".join(parts)


def _setting(results: BenchResults) -> str:
    machine = results.machine
    packages = ", ".join(f"{name} {text}" for name, text in sorted(machine.packages.items()))
    lines = [
        f"- machine: {_machine(machine)}",
        f"- packages: {packages}",
        f"- commit: {machine.git_commit or 'not from a checkout'}",
        f"- target: {_weights(results.target)}",
        f"- drafter: {_weights(results.drafter) if results.drafter else 'none'}",
        f"- suite: {results.suite}, started {results.started_at}",
        *(f"- answers: {text}" for text in dict.fromkeys(map(answers, results.configurations))),
        *(f"- note: {note}" for note in results.notes),
    ]
    return "\n".join(_cell(line) for line in lines) + "\n"


def answers(one: Configuration) -> str:
    """Return how answers are chosen and where they end: the same for all sides."""
    how = "greedy"
    if one.temperature > 0:
        how = f"temperature {one.temperature:g}, top-p {one.top_p:g}, seed {one.seed}"
    end = ", past any end of sequence" if one.ignores_eos else ""
    return f"{how}, up to {one.max_tokens} tokens{end}"


def _machine(machine: Machine) -> str:
    memory = f"{machine.memory_bytes / _GIB:.0f} GiB"
    return f"{machine.chip}, {machine.num_cpus} CPUs, {memory}, {machine.system}, {machine.device}"


def _weights(weights: WeightsRecord) -> str:
    bits = f"{weights.bits} bits" if weights.bits else "not quantised"
    size = f"{weights.bytes_read / 1e6:.0f} MB read a pass"
    return f"{weights.name}, {weights.dtype}, {bits}, {size}, {weights.fingerprint[:12]}"


def _speed_table(summaries: Sequence[Summary]) -> str:
    head = [
        "decoding",
        "tokens/s",
        "times plain",
        "times mlx-lm",
        "first token, s",
        "prefill, tokens/s",
        "peak, GiB",
    ]
    rows = [
        [
            one.name,
            _spread(one.tokens_per_second, 2),
            _spread(one.over_plain),
            _spread(one.over_mlx_lm),
            f"{one.time_to_first_token_seconds:.3f}",
            f"{one.prompt_tokens_per_second:.0f}",
            f"{one.peak_memory_bytes / _GIB:.2f}",
        ]
        for one in summaries
    ]
    if not summaries:
        return markdown_table(head, rows) + "\nNo trial was finished.\n"
    return markdown_table(head, rows) + "\n" + _spread_note(summaries)


def _spread_note(summaries: Sequence[Summary]) -> str:
    """Return over what the spreads are, or that there are none."""
    counts = {one.num_prompts for one in summaries}
    prompts = _counted(counts, "prompt", "prompts")
    if have_no_spread(summaries):
        note = f"Tokens/s over {prompts}: {NO_SPREAD}"
        ratios = " Ratios: median (least to most) over the prompts."
    else:
        passes = _counted({one.num_passes for one in summaries}, "pass", "passes")
        note = f"Median (least to most): tokens/s over {passes} over {prompts}"
        ratios = ", ratios over the prompts."
    if counts == {1}:
        ratios = "" if note.endswith(".") else "."
    return (
        f"{note}{ratios} Prefill is apart: prompt tokens over the time to the first token. Every "
        "round is counted.\n"
    )


def _counted(numbers: set[int], one: str, many: str) -> str:
    """Return how many there are; where sides differ, since a bench was broken off, all numbers."""
    if numbers == {1}:
        return f"one {one}"
    return f"{' or '.join(map(str, sorted(numbers)))} {many}"


def _round_table(summaries: Sequence[Summary]) -> str:
    head = [
        "decoding",
        "tokens a round",
        "ms a round",
        "rows",
        "plain rounds",
        "acceptance by depth",
        "kept from drafter",
        "kept from lookup",
    ]
    rows = [
        [
            one.name,
            f"{one.tokens_per_round:.3f}",
            f"{one.milliseconds_per_round:.2f}",
            f"{one.rows_per_round:.1f}",
            f"{100 * one.plain_share:.0f} %",
            " ".join(f"{share:.2f}" for share in one.acceptance_by_depth) or "-",
            str(one.accepted_by_drafter),
            str(one.accepted_by_lookup),
        ]
        for one in summaries
    ]
    note = (
        "A plain round verifies no draft: the drafter is parked, or nothing that it or the lookup "
        "offers is worth a row.\n"
    )
    return markdown_table(head, rows) + "\n" + note


def _phase_part(results: BenchResults) -> list[str]:
    if not results.phases:
        return []
    rows = []
    for one in results.phases:
        seconds = [getattr(one, f"{phase}_seconds") for phase in PHASES]
        each = [1e3 * value / one.num_rounds if one.num_rounds else 0.0 for value in seconds]
        rows.append([one.configuration, *(f"{value:.2f}" for value in (*each, sum(each)))])
    head = ["decoding", *PHASES, "all"]
    note = "From a pass of its own that waits for each phase, so the sum exceeds a timed round.\n"
    return ["## Milliseconds a round\n", markdown_table(head, rows), note]


def _text_lines(results: BenchResults, summaries: Sequence[Summary]) -> str:
    lines = [f"- {_cell(one.name)}: {_equality(one)}" for one in summaries if one.name != PLAIN]
    for trial in first_differences(results.trials):
        where = f"question {trial.question_id}, turn {trial.turn}"
        name, token = _cell(trial.configuration), trial.first_difference
        lines.append(f"  - {name}, {where}: token {token} differs{gap(trial)}")
    return "\n".join(lines) + "\n"


def gap(trial: Trial) -> str:
    """Return how close the choice was where a text left plain decoding's, empty if unknown."""
    margin = trial.difference_margin
    return "" if margin is None else f", where the two best scores are {margin:.2g} apart"


def _equality(one: Summary) -> str:
    if one.num_answers == 0:
        return "texts not compared with plain decoding's, since it draws other noise"
    return f"{one.num_equal} of {one.num_answers} texts equal plain decoding's"


def _category_part(results: BenchResults) -> list[str]:
    categories = sorted({trial.category for trial in results.trials if trial.category})
    if len(categories) < 2:
        return []
    names = [one.name for one in summarize(results)]
    rows = []
    for category in categories:
        found = {one.name: one for one in summarize(results, category)}
        cells = [
            f"{found[name].tokens_per_second.median:.2f} / {found[name].tokens_per_round:.2f}"
            if name in found
            else "-"
            for name in names
        ]
        rows.append([category, *cells])
    title = "## Tokens/s / tokens a round, by category\n"
    return [title, markdown_table(["category", *names], rows)]


def _published_part(results: BenchResults) -> list[str]:
    """One's own figures beside Apple's and the paper's, where the chip and the model are theirs."""
    found = beside_published(results)
    if not found:
        return []
    sources = ("here", "Apple", "paper")
    head = ["decoding", *(f"{name}: {who}" for name in _BESIDE for who in sources)]
    rows = [
        [
            one.name,
            *(_figure(figures, name) for name in _BESIDE.values() for figures in one.sources),
        ]
        for one in found
    ]
    notes = "".join(f"- {_cell(note)}\n" for note in beside_notes(results))
    return ["## Beside what Apple published\n", markdown_table(head, rows), notes]


def _figure(figures: Figures | None, name: str) -> str:
    value = None if figures is None else getattr(figures, name)
    return "-" if value is None else f"{value:.2f}"


def _spread(value: Spread | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    if not value.is_known:
        return f"{value.median:.{digits}f}"
    return f"{value.median:.{digits}f} ({value.least:.{digits}f} to {value.most:.{digits}f})"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, its first column to the left."""
    lines = [head, ["---", *(["--:"] * (len(head) - 1))], *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def _cell(text: str) -> str:
    """Return a text that cannot break a table or a line."""
    return " ".join(text.split()).replace("|", "\\|")
