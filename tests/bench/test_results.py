"""The schema: what is written is read back, and nothing else is."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from redrafter_mlx.bench.results import (
    SCHEMA_VERSION,
    BenchResults,
    from_json,
    to_json,
)
from redrafter_mlx.errors import CheckpointError
from tests.bench.synthetic_results import synthetic_results

GOLDEN = Path(__file__).parent / "golden" / "results.json"


def test_results_come_back_as_they_were():
    results = synthetic_results()
    assert from_json(to_json(results)) == results
    without = replace(results, drafter=None, phases=(), trials=())
    assert from_json(to_json(without)) == without


def test_the_file_is_the_golden_one():
    """A change here is a change of the schema: raise SCHEMA_VERSION."""
    assert to_json(synthetic_results()) == GOLDEN.read_text(encoding="utf-8")
    assert SCHEMA_VERSION == 2


def changed(path, value):
    """Return the golden file's text with one value set, or removed where it is ``...``."""
    values = json.loads(GOLDEN.read_text(encoding="utf-8"))
    inside = values
    for key in path[:-1]:
        inside = inside[key]
    if value is ...:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema_version"], 1, r"^its schema_version is 1 and this program's 2$"),
        (["schema_version"], ..., "schema_version is null"),
        (["extra"], 1, "^it has an unknown key 'extra'$"),
        (["suite"], ..., "^it has no 'suite'$"),
        (["suite"], 3, "^suite is 3 and not a text$"),
        (
            ["machine", "memory_bytes"],
            "64",
            r'^machine\.memory_bytes is "64" and not a whole number$',
        ),
        (["machine", "memory_bytes"], True, r"memory_bytes is true and not a whole number"),
        (["machine", "packages", "mlx"], 1, r"packages\.mlx is 1 and not a text"),
        (["machine", "git_commit"], 1, r"machine\.git_commit is 1"),
        (["drafter"], [], r"^drafter is \[\] and not an object$"),
        (["trials"], {}, r"^trials is \{\} and not a list$"),
        (
            ["trials", 2, "decode_seconds"],
            None,
            r"trials\[2\]\.decode_seconds is null and not a number",
        ),
        (["trials", 2, "accepted_by_depth", 1], 1.5, r"accepted_by_depth\[1\] is 1\.5"),
        (["trials", 2, "rounds"], 8, r"trials\[2\] has an unknown key 'rounds'"),
        (
            ["trials", 0, "configuration"],
            "greedy",
            "for 'greedy', which is none of its configurations",
        ),
        (["trials", 2, "accepted_by_depth"], [6, 4], "drafted 3 deep and accepted 2 deep"),
        (
            ["phases", 0, "configuration"],
            "greedy",
            "for 'greedy', which is none of its configurations",
        ),
        (["configurations", 1, "name"], "plain", "two configurations have one name"),
    ],
)
def test_a_file_of_another_shape_is_refused(path, value, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        from_json(changed(path, value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema_version": 1}', "3"])
def test_what_are_no_results_is_refused(text):
    with pytest.raises(CheckpointError):
        from_json(text)


def test_a_number_that_json_has_no_word_for_is_neither_written_nor_read():
    results = synthetic_results()
    broken = replace(results.trials[0], decode_seconds=math.inf)
    with pytest.raises(CheckpointError, match="cannot be written"):
        to_json(replace(results, trials=(broken,)))
    with pytest.raises(CheckpointError, match="Infinity is no number"):
        from_json(changed(["trials", 0, "decode_seconds"], math.inf))


def test_a_whole_number_may_stand_for_seconds():
    trial = from_json(changed(["trials", 0, "decode_seconds"], 2)).trials[0]
    assert trial.decode_seconds == 2.0
    assert isinstance(trial.decode_seconds, float)


def test_results_are_checked_where_they_are_made():
    results = synthetic_results()
    with pytest.raises(CheckpointError, match="schema_version is 0"):
        replace(results, schema_version=0)
    with pytest.raises(CheckpointError, match="which is none of its configurations \\(plain"):
        replace(results, configurations=results.configurations[:2])
    assert isinstance(results, BenchResults)


@pytest.mark.parametrize("name", ["suite", "machine", "trials", "configurations", "drafter"])
@pytest.mark.parametrize("value", [None, 0, "", [], {}, [[]], [{}], {"a": 1}])
def test_no_refusal_has_a_class_in_it(name, value):
    """It is read by who knows the file, and not the program."""
    try:
        from_json(changed([name], value))
    except CheckpointError as error:
        assert not re.search(r"[a-z][A-Z]|\b(str|int|float|dict|None|True|False)\b", str(error))
