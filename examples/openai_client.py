"""The official `openai` client against Branchpoint's server. Start `branchpoint serve smollm2` first."""

import json
import sys
from typing import Any

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def main(url: str) -> dict[str, Any]:
    client = OpenAI(base_url=f"{url}/v1", api_key="unused")
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Plan a trip as JSON with city and days."}],
        response_format={"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}},
        temperature=0,
        max_tokens=60,
    )
    trip: dict[str, Any] = json.loads(answer.choices[0].message.content or "")
    return trip


if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
