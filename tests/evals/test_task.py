"""What a task promises to those who score its answers."""

from __future__ import annotations

import dataclasses

import pytest

from evals.metrics import plain_score, score_document
from evals.tasks import get_task
from mdlm.errors import UserError

KYC = get_task("kyc")


def test_a_task_without_a_checker_of_its_own_compares_json():
    row = next(KYC.generate("test", 1, 0))
    for output in (row.response, row.response.replace(":", " : "), row.response[:-1], "{}"):
        assert KYC.score(output, row) == score_document(output, row.response)


def test_a_task_may_bring_its_own_checker():
    def check(output, example):
        return plain_score(output == example.prompt[::-1])

    task = dataclasses.replace(KYC, schema=None, check=check)
    row = next(task.generate("test", 1, 0))
    assert task.score(row.prompt[::-1], row).exact
    assert not task.score(row.response, row).exact


def test_a_task_whose_answers_nothing_could_judge_is_refused():
    with pytest.raises(ValueError, match="neither a schema nor a checker"):
        dataclasses.replace(KYC, schema=None)


def test_a_task_belongs_to_one_of_the_groups_of_the_report():
    with pytest.raises(UserError, match="did you mean 'structured'"):
        dataclasses.replace(KYC, group="structred")
