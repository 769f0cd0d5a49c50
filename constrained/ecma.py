r"""Patterns of JSON schemas, which are ECMA 262's and search, in words that the engine's regex parser reads the same way.

`patterns.py` asks. What no automaton expresses (look-around, back-references) is None.
"""

import re

__all__ = ["closing", "engine_pattern", "has_branches", "python_pattern"]

_CLASSES = {
    "d": "0-9",
    "w": "A-Za-z0-9_",
    "s": r"\t\n\x0B\f\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}",
}
_CONTROLS = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f", "v": r"\x0B", "0": r"\x00"}
_UNREADABLE = re.compile(r"\(\?<?[=!]|\\[1-9kbB]")
_PIECE = re.compile(
    r"\\u\{(?P<wide>[0-9A-Fa-f]{1,6})\}"
    r"|\\u(?P<high>[dD][89abAB][0-9A-Fa-f]{2})\\u(?P<low>[dD][c-fC-F][0-9A-Fa-f]{2})"
    r"|\\u(?P<four>[0-9A-Fa-f]{4})|\\x(?P<two>[0-9A-Fa-f]{2})|\\c(?P<control>[A-Za-z])"
    r"|\\(?P<property>[pP]\{[^{}]*\})|\\(?P<escaped>.)"
    r"|(?P<quantifier>\{[0-9]+(?:,[0-9]*)?\})|\(\?<(?P<name>[A-Za-z_$][\w$]*)>|(?P<plain>.)",
    re.DOTALL,
)


def engine_pattern(pattern: str) -> str | None:
    """A pattern that matches where `pattern` does, None where the engine has no words for it."""
    return None if _UNREADABLE.search(pattern.replace("\\\\", "")) else _write(pattern)


def python_pattern(pattern: str) -> str | None:
    """The pattern as Python's `re` would read it the same way, without look-around; None where it would not."""
    if _UNREADABLE.search(pattern.replace("\\\\", "")) or re.search(r"\[[^\]]*\\[DWS]|\[\^?\]|\\[pP]\{", pattern):
        return None
    written = _write(pattern)
    return None if written is None else re.sub(r"\\x\{([0-9A-F]+)\}", lambda code: f"\\U{int(code[1], 16):08X}", written)


def has_branches(pattern: str) -> bool:
    """Whether a bar stands outside of every group."""
    return closing(f"({pattern})", 0) != len(pattern) + 1 or "|" in _outermost(pattern)


def _outermost(pattern: str) -> str:
    """The pattern without its groups, classes and escapes."""
    bare = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "", pattern, flags=re.DOTALL)
    while (inner := re.sub(r"\([^()]*\)", "", bare)) != bare:
        bare = inner
    return bare


def closing(pattern: str, opening: int) -> int | None:
    """Where the group at `opening` closes."""
    depth, at, in_class = 0, opening, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
            if not depth:
                return at
        at += 1
    return None


def _write(pattern: str) -> str | None:
    out: list[str] = []
    class_start: int | None = None
    for piece in _PIECE.finditer(pattern):
        written = _piece(piece, in_class=class_start is not None)
        if written is None:
            return None
        if piece["plain"] == "[" and class_start is None:
            class_start = len(out)
        elif piece["plain"] == "]" and class_start is not None:
            body = "".join(out[class_start:])
            if body in ("[", "[^"):  # nothing, and anything
                out[class_start:] = [r"[\x00--\x00]" if body == "[" else r"[\s\S"]
                written = "" if body == "[" else "]"
            class_start = None
        out.append(written)
    return None if class_start is not None else "".join(out)


def _piece(piece: "re.Match[str]", *, in_class: bool) -> str | None:
    kind, text = piece.lastgroup, piece[0]
    if kind == "low":
        high, low = int(piece["high"], 16), int(piece["low"], 16)
        return f"\\x{{{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:X}}}"
    if kind in ("wide", "four", "two"):
        code = int(piece[kind], 16)
        return None if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF else f"\\x{{{code:X}}}"
    if kind == "control":
        return f"\\x{{{ord(piece['control']) % 32:X}}}"
    if kind == "property":
        return text
    if kind == "escaped":
        return _escaped(piece["escaped"], in_class=in_class)
    if kind == "name":
        return None if in_class else "(?:"
    if kind == "quantifier":
        return re.sub(r"[{},]", lambda mark: f"\\{mark[0]}" if mark[0] != "," else ",", text) if in_class else text
    return _plain(text, in_class=in_class)


def _escaped(char: str, *, in_class: bool) -> str | None:
    lower = char.lower()
    if lower in _CLASSES:
        members = _CLASSES[lower]
        if in_class:
            return members if char == lower else f"[^{members}]"
        return f"[{members}]" if char == lower else f"[^{members}]"
    if char in _CONTROLS:
        return _CONTROLS[char]
    if char == "b" and in_class:
        return r"\x08"
    if char.isalnum():
        return char if char.isascii() and char in "aegijlmoqyzACEFGHIJKLMNOQRTUVXYZ" else None
    return f"\\x{{{ord(char):X}}}"


def _plain(char: str, *, in_class: bool) -> str:
    if in_class:
        return f"\\{char}" if char in "[&~" else char
    if char == ".":
        return r"[^\n\r\x{2028}\x{2029}]"
    return f"\\{char}" if char in "{}]" else char
