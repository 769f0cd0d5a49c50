"""Characters that are cut off in the middle of their UTF-8, as where a token ends within one."""

__all__ = ["missing_bytes"]


def missing_bytes(text: bytes) -> bytes:
    """Bytes that make a character of what a text ends with; none where its last character is whole."""
    for begun in range(1, min(3, len(text)) + 1):
        first = text[-begun]
        if first >= 0xC0:
            length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            filling = b"\x81" if text[-begun:] in (b"\xed", b"\xf4") else b"\xa1"
            return (filling + b"\xa1" * 3)[: max(0, length - begun)]
        if first < 0x80:
            break
    return b""
