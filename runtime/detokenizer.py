"""From the bytes of tokens to text, piece by piece, for `output.py`.

A character may be spread over several tokens: its bytes are held back until it is whole.
"""

import codecs

__all__ = ["Detokenizer"]


class Detokenizer:
    """Decodes UTF-8 that arrives in pieces. Bytes that are no UTF-8 become U+FFFD, as in `bytes.decode(errors="replace")`."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """The text that is complete with `data`; an unfinished character stays inside."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What was held back: empty, or U+FFFD where the bytes ended within a character. A new text may begin after it."""
        return self._decoder.decode(b"", final=True)
