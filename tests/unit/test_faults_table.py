"""The table in docs/reliability.md says what the tests recorded."""

import json

import faults_table


def line(test: str, tried: int = 1, *, held: bool = True, fault: str = "killed", note: str = "") -> str:
    return json.dumps({"test": test, "area": "ADD", "fault": fault, "tried": tried, "held": held, "note": note})


def test_tests_of_one_fault_are_one_row_and_their_counts_add_up() -> None:
    (row,) = faults_table.rows([line("a", 3), line("b", 4)]).values()
    assert (row.tests, row.tried, row.failed) == (2, 7, [])


def test_of_a_test_that_ran_again_the_last_run_counts() -> None:
    (row,) = faults_table.rows([line("a", 3, held=False), line("a", 5)]).values()
    assert (row.tried, row.failed) == (5, [])


def test_a_test_that_failed_is_told() -> None:
    found = faults_table.rows([line("a", 3), line("b", 4, held=False), line("c", fault="stopped", note="seed 7")])
    text = faults_table.table(found, "2026-01-01")
    assert "| ADD | killed | 7 | **1 of 2 tests failed** |" in text
    assert "| ADD | stopped | 1 | held (seed 7) |" in text
    assert "8 faults in 2 rows, 1 tests failed" in text
