"""Log lines of the server: text for people, or one JSON object a line for collectors. Set up once by `launch`.

What a line tells beside its message stands in a field of its own: `logger.info(…, extra=fields(…))`.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

__all__ = ["JsonLines", "LogFormat", "fields", "set_up_logs"]

LogFormat = Literal["text", "json"]

_FIELDS: Final = "branchpoint_fields"
_PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def fields(told: Mapping[str, object]) -> dict[str, object]:
    """What `extra` of a log call must be, so that a JSON line has these fields."""
    return {_FIELDS: told}


class JsonLines(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `logger`, `message`, the line's own fields, and a traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """See above; never more than one line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up_logs(form: LogFormat) -> None:
    """Send what this process logs to standard error, in this format."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_PLAIN))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("branchpoint").setLevel(logging.INFO)
