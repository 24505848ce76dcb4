"""Rows of fed text on a processor whose matrix library computes the rows of a block by two kernels."""

from pathlib import Path

from commands import run_test_with_avx2

TEST = f"{Path(__file__).with_name('test_prompt.py')}::test_rows_do_not_depend_on_how_the_text_is_split"


def test_rows_do_not_depend_on_the_split_there_either() -> None:
    found = run_test_with_avx2(TEST)
    assert found.returncode == 0, found.stdout
