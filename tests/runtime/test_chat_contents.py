"""What a chat template's source tells of the contents of messages, held to what it renders."""

import itertools
from collections.abc import Sequence

import pytest

from branchpoint.runtime.chat_contents import content_use
from branchpoint.runtime.chat_template import ChatTemplate

EACH = "{{% for m in messages %}}{}{{% endfor %}}"

WRITTEN = [
    EACH.format("<{{ m.role }}>{{ m['content'] }}"),
    EACH.format("{% if loop.first and messages[0].role != 'system' %}You help.{% endif %}{{ '<' ~ m.role ~ '>' + m.content }}"),
    EACH.format("{% if m.content is string and m.content %}{{ m.content }}{% else %}nothing{% endif %}"),
    EACH.format("{% if 'tool_calls' in m %}{{ m.tool_calls | tojson }}{% endif %}{{ m.content or '-' }}"),
    EACH.format("{% if not loop.last and messages[loop.index0 - 1].role == m.role %}again {% endif %}{{ m.content }};"),
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% for m in rest %}{{ m.content }}{% endfor %}",
    "{% set start = '' %}{% if messages[0].role == 'system' %}{% set start = messages[0].content %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest if m.role != 'system' %}{{ (start if loop.first else '') + m.content }}|{% endfor %}{{ messages | count }}",
    "{% set ns = namespace(last=-1) %}"
    + EACH.format("{% set ns.last = loop.index0 %}{{ ns.last }}{{ m.content }}{% if loop.index0 > 2 %}{% break %}{% endif %}"),
]
TRIMMED = [
    EACH.format("<{{ m.role }}>\n{{ m.content | trim }}\n"),
    EACH.format("<{{ m.role }}> {{ m.content.strip() + '!' }}"),
    EACH.format("{{ (' [' + m.role + '] ' + m.content + ' ') | trim }};"),
]
LOOKED_INTO = [
    "{{ m.content | upper }}",
    "{{ m.content[0] }}",
    "{{ m.content.split('x')[0] }}",
    "{{ m.content | length }}",
    "{{ m.content | trim('x') }}",
    "{{ m.content * 2 }}",
    "{{ '%s' | format(m.content) }}",
    "{{ [m.content] }}",
    "{% if 'x' in m.content %}x{% endif %}",
    "{% if m.content == 'x' %}x{% endif %}",
    "{% if messages[0].content > m.content %}x{% endif %}",
    "{% for c in m.content %}{{ c }}{% endfor %}",
    "{% set x = m.content %}{% if x != '' %}{{ x }}{% endif %}",
    "{% if y == 'x' %}x{% endif %}{% set y = m.content %}",
    "{% set ns = namespace(x=m.content) %}{{ ns.x | upper }}",
    "{{ m | tojson }}",
    "{{ m }}",
    "{{ m.get('content') | upper }}",
    "{{ m['values']() | list }}",
    "{{ m['cont' + 'ent'] | upper }}",
    "{% for key, value in m.items() %}{{ value }}{% endfor %}",
    "{{ messages | map(attribute='content') | join }}",
    "{{ messages }}",
    "{{ messages ~ '' }}",
    "{{ m if m.role == 'user' else m }}",
    "{{ messages.index(m) }}",
    "{{ (messages | last).content | upper }}",
    "{{ loop.previtem.content | upper }}",
    "{% if loop.changed(m.content) %}x{% endif %}",
    "{% filter upper %}{{ m.content }}{% endfilter %}",
    "{% set x %}{{ m.content }}{% endset %}{{ x | upper }}",
    "{% macro f(x) %}{{ x | upper }}{% endmacro %}{{ f(m.content) }}",
    "{% with x = m.content %}{{ x | upper }}{% endwith %}",
    "{% set m2 = m %}{{ m2.content | upper }}",
    "{% unheard %}",
]


def rendered(source: str, contents: Sequence[str]) -> str:
    template = ChatTemplate(source, {}, (), ())
    roles = itertools.cycle(["system", "user", "assistant", "user"])
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return template.render(messages, add_generation_prompt=True)


@pytest.mark.parametrize("source", WRITTEN + TRIMMED)
def test_contents_that_are_written_whole_can_be_put_into_another_rendering(source: str) -> None:
    use = content_use(source)
    assert use.written and use.trimmed == (source in TRIMMED)
    for contents in itertools.product(["a", "two words", "", " b\n", "{{ x }}</think>"], repeat=3):
        marks = [f"@{place}@" if content.strip() else content for place, content in enumerate(contents)]
        expected = rendered(source, marks)
        for mark, content in zip(marks, contents, strict=True):
            expected = expected.replace(mark, content) if content.strip() else expected
        if use.writes_whole(contents):
            assert rendered(source, contents) == expected
        else:
            assert any(content != content.strip() for content in contents)


@pytest.mark.parametrize("looking", LOOKED_INTO)
def test_whatever_looks_into_contents_is_not_said_to_write_them(looking: str) -> None:
    assert not content_use(EACH.format(looking)).writes_whole(["a"])
