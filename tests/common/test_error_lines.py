"""An error's line says everything: whoever reads it from a child process can raise the same error again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ERRORS, Code, HocketError, error_of_line


@given(
    st.sampled_from(list(Code)),
    st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=40),
    st.none() | st.just("use ja"),
)
def test_a_line_gives_the_error_back(code: Code, detail: str, remedy: str | None) -> None:
    error = HocketError(code, detail, remedy=remedy)
    again = error_of_line(error.line() + "\n")
    assert again is not None
    assert (again.line(), again.code, again.exit_code) == (error.line(), code, ERRORS[code].exit_code)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Killed",
        "H999 the end. Remedy: none.",
        "H409 something else. Remedy: none.",
        "12:00:00 W node.session: H301 the coordinator does not answer. Remedy: wait.",
    ],
)
def test_other_lines_are_no_errors(line: str) -> None:
    assert error_of_line(line) is None
