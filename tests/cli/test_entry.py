"""The console script in real processes: closed streams, and Ctrl-C before anything is loaded."""

import signal
import subprocess
import sys
import time

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


def test_ctrl_c_at_the_start_leaves_no_traceback():
    for pause in (0.02, 0.06, 0.12, 0.2, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-m", "redrafter_mlx", "generate", "--prompt", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert "redrafter_mlx" not in errors or "Traceback" not in errors, pause
        assert process.returncode in (130, -signal.SIGINT)
