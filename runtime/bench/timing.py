"""What is measured of one request. Made by `client` and `local`, read by `figures`."""

from dataclasses import dataclass, field

__all__ = ["Timing"]


@dataclass(slots=True)
class Timing:
    """Times in seconds of one clock. `marks` are when output came; `error` says what went wrong, empty where nothing did.

    Token counts are the server's own.
    """

    began: float
    ended: float = 0.0
    marks: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def first(self) -> float:
        """Until the first output."""
        return self.marks[0] - self.began

    @property
    def gaps(self) -> list[float]:
        """Between one output and the next."""
        return [later - earlier for earlier, later in zip(self.marks, self.marks[1:], strict=False)]

    @property
    def each(self) -> float | None:
        """Mean time of an output token after the first; None where there was none."""
        return (self.ended - self.marks[0]) / (self.output_tokens - 1) if self.output_tokens > 1 else None
