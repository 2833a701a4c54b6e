"""How far an output can be trusted, from the trace of its decode, calibrated on rows whose answers are known.

Shapes: B rows, R positions of a response, N outputs, F features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from mdlm.errors import UserError
from mdlm.tokenizer import Tokenizer
from sample.generation import Generation

FLOOR = 1e-6
"""Under it a margin's distance from 1, and an entropy in nats, are rounding."""

# A string with its quotes, unless a colon makes it a name; else a run of anything but JSON's structure.
_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"(?P<name>\s*:)?|[^\s{}\[\]:,"]+', re.DOTALL)


@dataclass(frozen=True)
class Features:
    """What a trace says of one output. A token's margin and entropy are those of the pass that committed it.

    lowest_margin: over the tokens of values, of any kind of leaf; over all tokens where there is no value.
    mean_entropy: nats, over all tokens of the answer and its end token.
    late_share: of the tokens of values, those committed in the second half of the passes their window took the row.
    """

    lowest_margin: float
    mean_entropy: float
    late_share: float


def features(generation: Generation, tokenizer: Tokenizer) -> list[Features]:
    """Every row's features. Raises `ValueError` for a decode that has not kept its passes (`DenoiseConfig.trace`)."""
    if not generation.trace:
        raise ValueError("there are no passes; decode with trace=True")
    margin_BR, entropy_BR, late_BR = _commits(generation)
    found = []
    for row, answer in enumerate(generation.answers()):
        known_R = ~margin_BR[row].isnan()
        known_R[len(answer) + 1 :] = False  # behind the end token nothing is part of the answer
        value_R = torch.zeros_like(known_R)
        value_R[: len(answer)] = torch.tensor(value_tokens(answer, tokenizer), dtype=torch.bool)
        value_R &= known_R
        if not value_R.any():
            value_R = known_R
        if not known_R.any():  # a row that had nothing to fill
            found.append(Features(1.0, 0.0, 0.0))
            continue
        found.append(
            Features(
                float(margin_BR[row][value_R].min()),
                float(entropy_BR[row][known_R].mean()),
                float(late_BR[row][value_R].double().mean()),
            )
        )
    return found


def _commits(generation: Generation) -> tuple[Tensor, Tensor, Tensor]:
    """Margin, entropy (NaN where no pass committed) and whether the commit was late, all (B, R) on the CPU."""
    begin, shape = generation.response_start, generation.tokens_BL[:, generation.response_start :].shape
    margin_BR, entropy_BR = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    pass_BR, last_BR = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    seen: dict[int, int] = {}
    for step in generation.trace:
        if step.margin_BG is None or step.entropy_BG is None:
            continue  # it revoked, and committed nothing
        seen[step.start] = number = seen.get(step.start, 0) + 1
        committed_BG, rows_B = step.committed_BG.cpu(), step.rows.cpu()
        left = max(0, begin - step.start)  # a window may begin before the response
        committed_BG = committed_BG[:, left:]
        columns = slice(step.start + left - begin, step.start + left - begin + committed_BG.shape[1])
        row_N, place_N = committed_BG.nonzero(as_tuple=True)
        at = (rows_B[row_N], columns.start + place_N)
        margin_BR[at] = step.margin_BG[:, left:].float().cpu()[committed_BG]
        entropy_BR[at] = step.entropy_BG[:, left:].float().cpu()[committed_BG]
        pass_BR[at] = number
        busy_B = rows_B[committed_BG.any(-1)]
        last_BR[busy_B, columns] = number
    return margin_BR, entropy_BR, 2 * pass_BR > last_BR


def value_tokens(answer: Sequence[int], tokenizer: Tokenizer) -> list[bool]:
    """Which tokens of an answer hold a byte of a value: a string's quotes count, names and structure do not."""
    pieces = [tokenizer.token_bytes(token) for token in answer]
    raw = [
        tokenizer.decode([token]).encode() if piece is None else piece
        for token, piece in zip(answer, pieces, strict=True)
    ]
    ends = np.cumsum([len(piece) for piece in raw], dtype=np.int64)
    text = b"".join(raw)
    inside = np.zeros(len(text) + 1, dtype=np.int64)
    for found in _VALUE.finditer(text):
        if found["name"] is None:
            inside[found.start() + 1 : found.end() + 1] = 1
    counted = inside.cumsum()
    return [bool(counted[end] > counted[end - len(piece)]) for end, piece in zip(ends, raw, strict=True)]


class Confidence:
    """The probability that an output is right: logistic regression on its features, in logs where they are skewed.

    `coefficients` are those of the standardised features, by name.
    """

    def __init__(self, of_rows: Sequence[Features], right: Sequence[bool]) -> None:
        """Raises `UserError` where the rows are all right or all wrong, from which nothing can be learned."""
        if len(set(map(bool, right))) < 2:
            what = "no output is" if not any(right) else "every output is"
            raise UserError(
                f"{what} right on the {len(right)} rows that the confidence is learned from, so there is nothing to "
                "tell apart; give more rows with --calibrate, or another arm"
            )
        self._model: Pipeline = make_pipeline(StandardScaler(), LogisticRegression())
        self._model.fit(_matrix(of_rows), np.asarray(right, dtype=bool))
        weights = self._model[-1].coef_[0]
        self.coefficients = dict(zip(Features.__dataclass_fields__, map(float, weights), strict=True))

    def __call__(self, of_rows: Sequence[Features]) -> NDArray[np.float64]:
        """Probabilities of being right, (N,)."""
        return np.asarray(self._model.predict_proba(_matrix(of_rows))[:, 1], dtype=np.float64)


def _matrix(of_rows: Sequence[Features]) -> NDArray[np.float64]:
    values_NF = np.array([astuple(row) for row in of_rows], dtype=np.float64)
    doubt_N, entropy_N, late_N = values_NF.T
    return np.stack([np.log(1 - doubt_N + FLOOR), np.log(entropy_N + FLOOR), late_N], axis=1)
