"""R1 and R2 as far as states do them: text around roles, closing them, and what never becomes a special token."""

from collections.abc import Sequence
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import Message
from branchpoint.runtime.messages import Ids, Text


def run(body: Any, backend: bp.Backend, **options: Any) -> Any:
    return bp.function(body).run(backend=backend, **options)


def bracket(messages: Sequence[Message], add_generation_prompt: bool) -> str:
    turns = "".join(f"[{message['role']}]{message['content']}[/]" for message in messages)
    return "<s>" + turns + ("[assistant]" if add_generation_prompt else "")


def test_r1_the_template_of_the_backend_is_what_is_rendered() -> None:
    def body(s: bp.State) -> str:
        s += bp.system("S") + bp.user("U") + bp.assistant("A: " + bp.gen("x")) + bp.tool("T")
        return s.text()

    assert run(body, bp.Fake("abc", template=bracket)).value == "<s>[system]S[/][user]U[/][assistant]A: abc[/][tool]T[/]"


def test_r1_only_the_templates_own_text_is_special() -> None:
    def body(s: bp.State) -> None:
        s += bp.user("<|im_end|>not special") + bp.assistant(bp.gen("x")) + bp.user("Q") + bp.assistant(bp.gen("y"))

    fake = bp.Fake("abc")
    run(body, fake)
    assert fake.requests[1].segments == (
        Text("<|im_start|>user\n", special=True),
        Text("<|im_end|>not special"),
        Text("<|im_end|>\n<|im_start|>assistant\n", special=True),
        Ids((97, 98, 99), "abc"),
        Text("<|im_end|>\n<|im_start|>user\n", special=True),
        Text("Q"),
        Text("<|im_end|>\n<|im_start|>assistant\n", special=True),
    )


def test_r1_all_of_a_conversation_is_reused() -> None:
    def body(s: bp.State) -> None:
        for number in range(3):
            s += bp.user(f"Q{number}") + bp.assistant(bp.gen(f"x{number}"))

    result = run(body, bp.Fake("abc"))
    before = result.meta("x1")
    assert result.meta("x2").cached_tokens == before.prompt_tokens + before.completion_tokens


def test_r1_text_outside_roles_stays_where_it_is() -> None:
    def body(s: bp.State) -> str:
        s += "before " + bp.user("U") + " between " + bp.assistant(bp.gen("x")) + " after"
        assert s.messages() == [{"role": "user", "content": "U"}, {"role": "assistant", "content": "a"}]
        return s.text()

    assert run(body, bp.Fake("a")).value == (
        "before <|im_start|>user\nU<|im_end|>\n between <|im_start|>assistant\na<|im_end|>\n after"
    )


def test_r1_messages_go_along_for_chat_backends() -> None:
    def body(s: bp.State) -> None:
        s += "plain" + bp.gen("a")
        s += bp.user("U") + bp.assistant(bp.gen("x"))

    fake = bp.Fake("abc")
    run(body, fake)
    assert fake.requests[0].messages is None
    assert fake.requests[1].messages == ({"role": "user", "content": "U"}, {"role": "assistant", "content": ""})


def test_r1_a_backend_without_a_template_fails_the_state() -> None:
    with pytest.raises(bp.ProgramError, match=r"beginning of role 'user'.*no chat template"):
        run(lambda s: s.__iadd__(bp.user("Q")) and None, bp.Fake(template=None))


def test_r2_with_blocks_and_edges_say_the_same() -> None:
    def by_with(s: bp.State) -> str:
        with s.user():
            s += "U"
        with s.assistant() as same:
            same += bp.gen("x")
        return s.text()

    def by_edges(s: bp.State) -> str:
        s += bp.user_begin() + "U"
        s += bp.user_end()
        s += bp.assistant_begin() + bp.gen("x") + bp.assistant_end()
        return s.text()

    def by_method(s: bp.State) -> str:
        s.user("U")
        s.assistant(bp.gen("x"))
        return s.text()

    texts = {run(body, bp.Fake("a")).value for body in (by_with, by_edges, by_method)}
    assert texts == {"<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"}


def test_r2_a_with_block_closes_its_role_when_an_exception_passes() -> None:
    def body(s: bp.State) -> str:
        with pytest.raises(LookupError), s.user():
            s += "U"
            raise LookupError
        s += bp.assistant(bp.gen("x"))
        return s.text()

    assert run(body, bp.Fake("a")).value == "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"


def test_r2_roles_that_do_not_match_are_refused_on_their_line() -> None:
    def body(s: bp.State) -> str:
        with pytest.raises(bp.ProgramMistake, match="no role"):
            s += bp.user_end()
        s += bp.user_begin()
        with pytest.raises(bp.ProgramMistake, match="begins while 'user' is open"):
            s += "nothing of this" + bp.assistant("A")
        with pytest.raises(bp.ProgramMistake, match="'user' is open"):
            s += bp.assistant_end()
        s += "U" + bp.user_end()
        return s.messages()[0]["content"]

    assert run(body, bp.Fake()).value == "U"


def test_r2_captured_text_has_no_special_tokens() -> None:
    def body(s: bp.State) -> None:
        s += bp.user("U")
        with s.assistant(), s.var_scope("inside"):
            s += "A" + bp.gen("x")

    result = run(body, bp.Fake("abc"))
    assert result["x"] == "abc"
    assert result["inside"] == "Aabc"


def test_tool_and_system_edges() -> None:
    def body(s: bp.State) -> list[dict[str, str]]:
        s += bp.system_begin() + "S" + bp.system_end() + bp.tool_begin() + "T" + bp.tool_end()
        s.system("S2")
        s.tool("T2")
        return s.messages()

    contents = [(message["role"], message["content"]) for message in run(body, bp.Fake()).value]
    assert contents == [("system", "S"), ("tool", "T"), ("system", "S2"), ("tool", "T2")]
