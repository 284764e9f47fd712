"""The corpus without the fuzzer: it grew with the coverage, and each input that once failed stays in it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from tests.fuzz import targets

CORPUS = pathlib.Path(__file__).parent / "corpus"
TARGETS: dict[str, Callable[[bytes], object]] = {"message": targets.codec, "client": targets.client}

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert len(files) > 20
    for file in files:
        TARGETS[name](file.read_bytes())
