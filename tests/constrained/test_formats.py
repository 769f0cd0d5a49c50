"""Formats that are enforced are enforced exactly, whatever a string is cut into."""

import json

import jsonschema_rs
import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.keywords import FORMATS
from branchpoint.constrained.spec import JsonSchema
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import accepts, compiled

CASES: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2020-02-29", "2000-02-29", "1999-12-31"], ["2021-02-29", "1900-02-29", "2020-04-31", "2020-1-01", "0000-00-00"]),
    "time": (
        ["08:30:06Z", "08:30:06.25+01:00", "23:59:60Z", "15:59:60-08:00", "01:29:60+01:30"],
        ["08:30:06", "24:00:00Z", "22:59:60Z", "23:59:60+01:00", "08:30Z"],
    ),
    "date-time": (["2020-01-01T08:30:06Z", "1998-12-31T23:59:60z"], ["2020-01-01 08:30:06Z", "1998-12-31T23:58:60Z"]),
    "email": (["a.b@example.com", '"a b"@example.com', "a@[127.0.0.1]"], ["a", ".a@example.com", "a b@example.com", "a@-x.com"]),
    "idn-email": (["실례@실례.테스트"], ["a", "a@"]),
    "hostname": (["a--b.example.com", "xn--9n2bp8q"], ["-a", "a..b", "xn--X", "a" * 64, ".".join(["a" * 60] * 5)]),
    "idn-hostname": (["실례.테스트"], ["-hello", "a..b", "xn--X"]),
    "ipv4": (["127.0.0.1"], ["256.0.0.1", "01.0.0.1", "1.2.3"]),
    "ipv6": (["::1", "::ffff:192.168.0.1", "1:2:3:4:5:6:7:8"], ["1::2::3", "12345::", "1:2:3:4:5:6:7"]),
    "uri": (["http://a.b/c?d#e"], ["//a.b", "a b", "http://a b"]),
    "uri-reference": (["/a", "#b", "http://u:p@a.b/"], ["\\\\a", "//a@b@c/"]),
    "iri": (["http://ƒøø.ßår/"], ["/abc", "http:// a"]),
    "iri-reference": (["/â", "#ƒrägmênt"], ["\\\\a", "a b"]),
    "uri-template": (["http://a/{b}{?c*}", "a'b"], ["{a", "{a b}"]),
    "uuid": (
        ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"],
        ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638"],
    ),
    "duration": (["P4DT12H30M5S", "P1W"], ["PT1D", "P", "P1"]),
    "json-pointer": (["", "/a~0b"], ["a", "/a~"]),
    "relative-json-pointer": (["1/a", "0#"], ["/a", "01"]),
    "regex": (["^a(b|c)$"], ["^(abc]", "(?P<name>x)"]),
}


def test_every_format_that_is_enforced_has_a_case() -> None:
    assert set(CASES) == FORMATS


@pytest.mark.parametrize("name", CASES)
def test_format(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    good, bad = CASES[name]
    schema = {"type": "string", "format": name}
    grammar = compiled(compiler, JsonSchema(json.dumps(schema)))
    assert [text for text in good if not accepts(grammar, vocabulary, json.dumps(text, ensure_ascii=False))] == []
    assert [text for text in bad if accepts(grammar, vocabulary, json.dumps(text, ensure_ascii=False))] == []
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    assert [validator.is_valid(text) for text in good + bad] == [True] * len(good) + [False] * len(bad)
