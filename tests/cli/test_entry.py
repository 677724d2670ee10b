"""The console script in real processes: closed streams, and Ctrl-C before anything is loaded."""

import signal
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "redrafter_mlx", "--version"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed):
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout == ("" if ">&-" in closed.split()[:2] else "redrafter-mlx 0.1.0\n")


def test_a_file_that_is_opened_gets_no_standard_number(tmp_path):
    """Law: with stdin closed, the next open file is none of 0, 1 and 2."""
    code = (
        "from redrafter_mlx.cli.entry import open_standard_streams\n"
        "open_standard_streams()\n"
        f"print(open({str(tmp_path / 'file')!r}, 'w').fileno())\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) > 2


INTERRUPTED_IMPORT = """
import builtins, os, signal
from redrafter_mlx.cli import entry

def interrupted(name, *arguments, **keywords):
    if name == "redrafter_mlx.cli":
        os.kill(os.getpid(), signal.SIGINT)
    return load(name, *arguments, **keywords)

load, builtins.__import__ = builtins.__import__, interrupted
entry.main()
"""


def test_ctrl_c_while_the_commands_are_loaded_leaves_no_traceback():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""
