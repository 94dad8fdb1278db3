"""The spec file: written, read, compared, and described by its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

import tiespec
from tests.helpers import CASES, ROOT, generated
from tiespec.errors import SpecError
from tiespec.spec import TieSpec, command_of, differences, json_schema, parse_spec

SCHEMA = ROOT / "tiespec" / "spec.schema.json"
GPT = f"{ROOT}/examples/gpt.py"


def test_the_published_schema_is_the_one_of_the_code() -> None:
    """Renew it with ``python -m tests.renew``."""
    assert SCHEMA.read_text() == json_schema()


@pytest.mark.parametrize("target", [GPT, f"{ROOT}/examples/composed.py", *sorted(str(p) for p in CASES.glob("*/model.py"))])
def test_specs_fit_the_schema_and_come_back(target: str) -> None:
    spec = generated(target).spec
    text = spec.to_json()
    jsonschema.validate(json.loads(text), json.loads(SCHEMA.read_text()))
    assert parse_spec(text, "x.json") == spec
    assert text.endswith("}\n")
    assert "\r" not in text


def test_load(tmp_path: Path) -> None:
    path = tmp_path / "tiespec.json"
    path.write_text(generated(GPT).spec.to_json())
    assert tiespec.load(path)["embed"] == ["word.weight"]
    assert tiespec.load(path).names("embed", layer=13) == ["word.weight"]
    with pytest.raises(SpecError, match="has no key 'embbed'"):
        tiespec.load(path)["embbed"]
    with pytest.raises(SpecError, match="layer 1 does not have the key"):
        tiespec.load(path).names("embed", layer=1)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 2}', '{"version": 1, "target": "x", "ties": [{}]}', "\x00"])
def test_no_spec(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tiespec.json"
    path.write_text(text)
    with pytest.raises(SpecError, match="not a tiespec spec file") as caught:
        tiespec.load(path)
    assert caught.value.help
    assert str(path) in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        tiespec.load(tmp_path / "missing.json")


def test_differences_are_said_in_words(write: Callable[..., str]) -> None:
    spec = generated(GPT).spec
    assert differences(spec, spec) == []
    source = Path(GPT).read_text()
    file = write(source.replace("self.norm = ", "self.last_norm = ").replace("self.norm(self.w", "self.last_norm(self.w"))
    other = generated(file).spec.model_copy(update={"target": spec.target})
    assert differences(spec, other) == [
        "key 'embed': typename was 'gpt.Embedding', is 'model.Embedding'",
        "key 'embed': parameter norm.weight was removed",
        "key 'embed': parameter norm.bias was removed",
        "key 'embed': parameter last_norm.weight [1024] was added",
        "key 'embed': parameter last_norm.bias [1024] was added",
    ]
    smaller = generated(f"{GPT}:build_layers(vocabulary=100)").spec.model_copy(update={"target": spec.target})
    assert differences(spec, smaller) == ["key 'embed': word.weight: shape was [50304, 1024], is [100, 1024]"]
    gone = TieSpec(target=spec.target, ties=[])
    assert differences(spec, gone) == ["key 'embed' is gone"]
    assert differences(gone, spec) == ["key 'embed' is new"]


def test_the_command_of_a_spec() -> None:
    spec = TieSpec(target="m.py:f('a b')", min_numel=2, max_numel=9, include=["*.weight"], exclude=["x"], ties=[])
    expected = (
        """tiespec generate 'm.py:f('"'"'a b'"'"')' --min-numel 2 --max-numel 9 --include '*.weight' --exclude x -o t.json"""
    )
    assert command_of(spec, "t.json") == expected
