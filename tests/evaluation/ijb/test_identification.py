from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.ijb.identification import identify
from evaluation.ijb.lists import Subjects
from runtime.errors import DataError
from tests.support import reference_ijb
from tests.support.ijb_set import MadeSet


def subjects(*pairs: tuple[int, int]) -> Subjects:
    templates, people = np.array(pairs, np.int64).T
    return Subjects(templates, people)


@settings(max_examples=25, deadline=None)
@given(st.tuples(*(st.integers(1, most) for most in (12, 30, 35, 9))), st.integers(0, 1000))
def test_equals_the_loops_with_ties(sizes: tuple[int, int, int, int], seed: int) -> None:
    """Templates of small whole numbers, many of which are equal: cosines are exact."""
    people, mated, others, block = sizes[0] + 1, *sizes[1:]
    rng = np.random.default_rng(seed)
    count = people + mated + others
    features = rng.integers(-1, 2, (count, 3)).astype(np.float64)
    owners = np.concatenate(
        [np.arange(people), rng.integers(0, people, mated), 50 + np.arange(others)]
    )
    gallery, probes = np.arange(people), np.arange(people, count)
    rng.shuffle(gallery)
    nothing = np.empty(0)
    made = MadeSet(Path(), nothing, nothing, nothing, nothing, nothing, owners, [gallery], probes)
    known, asked = Subjects(gallery, owners[gallery]), Subjects(probes, owners[probes])
    found = identify(features, known, asked, block)
    vectors = dict(enumerate(features))
    ranks, rates = reference_ijb.identification(vectors, made, np.arange(count), gallery)
    assert [one / found.mated for one in found.ranks] == pytest.approx(list(ranks.values()))
    assert found.rates == pytest.approx(list(rates.values()))
    is_mated = np.isin(owners[probes], owners[gallery])
    assert (found.templates, found.mated) == (people, is_mated.sum())
    assert found.strangers == (~is_mated).sum()


@pytest.mark.parametrize(
    ("gallery", "probes", "message"),
    [
        ([(0, 5), (1, 5)], [(1, 5), (2, 6)], "the subject 5 has several templates in one gallery"),
        ([(0, 5), (1, 6)], [(1, 5), (2, 6)], "2 of 2 probes are of subjects in a gallery of 2; "),
        ([(0, 5)], [(1, 7)], "0 of 1 probes are of subjects in a gallery of 1; the protocol needs"),
    ],
)
def test_what_the_protocol_is_not_for(gallery, probes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        identify(np.eye(3), subjects(*gallery), subjects(*probes))
