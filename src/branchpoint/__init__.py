"""Branchpoint: a structured-generation language and runtime for language models.

    import branchpoint as bp

    @bp.function
    def greet(s: bp.State, name: str):
        s += bp.user(f"Greet {name}.") + bp.assistant(bp.gen("greeting", max_tokens=20))

    print(greet.run(name="Ada", backend=bp.Engine(model="smollm2"))["greeting"])

Every name is loaded when it is first used, so that importing the package loads neither torch nor a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from branchpoint.errors import BranchpointError as BranchpointError
    from branchpoint.lang.agent import ause_tools as ause_tools
    from branchpoint.lang.agent import use_tools as use_tools
    from branchpoint.lang.backends.anthropic import Anthropic as Anthropic
    from branchpoint.lang.backends.base import Backend as Backend
    from branchpoint.lang.backends.engine import Engine as Engine
    from branchpoint.lang.backends.fake import Fake as Fake
    from branchpoint.lang.backends.http import RuntimeEndpoint as RuntimeEndpoint
    from branchpoint.lang.backends.litellm import LiteLLM as LiteLLM
    from branchpoint.lang.backends.openai import OpenAI as OpenAI
    from branchpoint.lang.backends.replay import replay as replay
    from branchpoint.lang.backends.source import BackendLike as BackendLike
    from branchpoint.lang.calls import assistant as assistant
    from branchpoint.lang.calls import assistant_begin as assistant_begin
    from branchpoint.lang.calls import assistant_end as assistant_end
    from branchpoint.lang.calls import ebnf as ebnf
    from branchpoint.lang.calls import gen as gen
    from branchpoint.lang.calls import gen_bool as gen_bool
    from branchpoint.lang.calls import gen_float as gen_float
    from branchpoint.lang.calls import gen_int as gen_int
    from branchpoint.lang.calls import gen_string as gen_string
    from branchpoint.lang.calls import json_schema as json_schema
    from branchpoint.lang.calls import regex as regex
    from branchpoint.lang.calls import select as select
    from branchpoint.lang.calls import substring as substring
    from branchpoint.lang.calls import system as system
    from branchpoint.lang.calls import system_begin as system_begin
    from branchpoint.lang.calls import system_end as system_end
    from branchpoint.lang.calls import tool as tool
    from branchpoint.lang.calls import tool_begin as tool_begin
    from branchpoint.lang.calls import tool_end as tool_end
    from branchpoint.lang.calls import user as user
    from branchpoint.lang.calls import user_begin as user_begin
    from branchpoint.lang.calls import user_end as user_end
    from branchpoint.lang.choices import ChoicesMethod as ChoicesMethod
    from branchpoint.lang.choices import ScoredOption as ScoredOption
    from branchpoint.lang.choices import greedy_token_selection as greedy_token_selection
    from branchpoint.lang.choices import token_length_normalized as token_length_normalized
    from branchpoint.lang.choices import total as total
    from branchpoint.lang.choices import total_with_end as total_with_end
    from branchpoint.lang.choices import unconditional_likelihood_normalized as unconditional_likelihood_normalized
    from branchpoint.lang.defaults import flush_cache as flush_cache
    from branchpoint.lang.defaults import get_server_info as get_server_info
    from branchpoint.lang.defaults import set_default_backend as set_default_backend
    from branchpoint.lang.errors import BackendError as BackendError
    from branchpoint.lang.errors import Incomplete as Incomplete
    from branchpoint.lang.errors import NotSupported as NotSupported
    from branchpoint.lang.errors import OutOfBudget as OutOfBudget
    from branchpoint.lang.errors import ProgramError as ProgramError
    from branchpoint.lang.errors import ProgramMistake as ProgramMistake
    from branchpoint.lang.errors import UnknownVariable as UnknownVariable
    from branchpoint.lang.expr import Expr as Expr
    from branchpoint.lang.fork import Fork as Fork
    from branchpoint.lang.graph import Compiled as Compiled
    from branchpoint.lang.graph import load_graph as load_graph
    from branchpoint.lang.lint import Finding as Finding
    from branchpoint.lang.mcp import McpToolError as McpToolError
    from branchpoint.lang.mcp import mcp_tools as mcp_tools
    from branchpoint.lang.nodes import InvalidGraph as InvalidGraph
    from branchpoint.lang.options import RunConfig as RunConfig
    from branchpoint.lang.placeholder import Untraceable as Untraceable
    from branchpoint.lang.program import Program as Program
    from branchpoint.lang.program import function as function
    from branchpoint.lang.reasoning import separate_reasoning as separate_reasoning
    from branchpoint.lang.report import Report as Report
    from branchpoint.lang.result import Meta as Meta
    from branchpoint.lang.run import Run as Run
    from branchpoint.lang.state import State as State
    from branchpoint.lang.tools import Tool as Tool
    from branchpoint.lang.tools import ToolCall as ToolCall
    from branchpoint.lang.tools import tool_prompt as tool_prompt

    Runtime = Engine

__all__ = [
    "Anthropic",
    "Backend",
    "BackendError",
    "BackendLike",
    "BranchpointError",
    "ChoicesMethod",
    "Compiled",
    "Engine",
    "Expr",
    "Fake",
    "Finding",
    "Fork",
    "Incomplete",
    "InvalidGraph",
    "LiteLLM",
    "McpToolError",
    "Meta",
    "NotSupported",
    "OpenAI",
    "OutOfBudget",
    "Program",
    "ProgramError",
    "ProgramMistake",
    "Report",
    "Run",
    "RunConfig",
    "Runtime",
    "RuntimeEndpoint",
    "ScoredOption",
    "State",
    "Tool",
    "ToolCall",
    "UnknownVariable",
    "Untraceable",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "ause_tools",
    "ebnf",
    "flush_cache",
    "function",
    "gen",
    "gen_bool",
    "gen_float",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "json_schema",
    "load_graph",
    "mcp_tools",
    "regex",
    "replay",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "substring",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "tool_begin",
    "tool_end",
    "tool_prompt",
    "total",
    "total_with_end",
    "unconditional_likelihood_normalized",
    "use_tools",
    "user",
    "user_begin",
    "user_end",
]

_ROOMS = {
    "branchpoint.errors": ("BranchpointError",),
    "branchpoint.lang.backends.anthropic": ("Anthropic",),
    "branchpoint.lang.agent": ("ause_tools", "use_tools"),
    "branchpoint.lang.backends.base": ("Backend",),
    "branchpoint.lang.backends.engine": ("Engine",),
    "branchpoint.lang.backends.fake": ("Fake",),
    "branchpoint.lang.backends.http": ("RuntimeEndpoint",),
    "branchpoint.lang.backends.litellm": ("LiteLLM",),
    "branchpoint.lang.backends.openai": ("OpenAI",),
    "branchpoint.lang.backends.source": ("BackendLike",),
    "branchpoint.lang.backends.replay": ("replay",),
    "branchpoint.lang.choices": (
        "ChoicesMethod",
        "ScoredOption",
        "greedy_token_selection",
        "token_length_normalized",
        "total",
        "total_with_end",
        "unconditional_likelihood_normalized",
    ),
    "branchpoint.lang.defaults": ("flush_cache", "get_server_info", "set_default_backend"),
    "branchpoint.lang.errors": (
        "BackendError",
        "Incomplete",
        "NotSupported",
        "OutOfBudget",
        "ProgramError",
        "ProgramMistake",
        "UnknownVariable",
    ),
    "branchpoint.lang.expr": ("Expr",),
    "branchpoint.lang.fork": ("Fork",),
    "branchpoint.lang.graph": ("Compiled", "load_graph"),
    "branchpoint.lang.lint": ("Finding",),
    "branchpoint.lang.mcp": ("McpToolError", "mcp_tools"),
    "branchpoint.lang.nodes": ("InvalidGraph",),
    "branchpoint.lang.options": ("RunConfig",),
    "branchpoint.lang.placeholder": ("Untraceable",),
    "branchpoint.lang.program": ("Program", "function"),
    "branchpoint.lang.reasoning": ("separate_reasoning",),
    "branchpoint.lang.report": ("Report",),
    "branchpoint.lang.result": ("Meta",),
    "branchpoint.lang.run": ("Run",),
    "branchpoint.lang.state": ("State",),
    "branchpoint.lang.tools": ("Tool", "ToolCall", "tool_prompt"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}  # the others of __all__ are in lang.calls


def __getattr__(name: str) -> object:
    if name == "Runtime":
        return import_module("branchpoint.lang.backends.engine").Engine
    if name in __all__:
        return getattr(import_module(_HOME.get(name, "branchpoint.lang.calls")), name)
    if name.startswith("_"):
        raise AttributeError(f"module 'branchpoint' has no attribute {name!r}")
    later = import_module("branchpoint.lang.later")
    if name in later.LATER:
        return later.Later(name)
    raise AttributeError(f"module 'branchpoint' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
