"""JSON-schema extraction: a text goes in, a validated pydantic object comes out, whatever the model would rather have said."""

from typing import Literal

from pydantic import BaseModel, Field

import branchpoint as bp


class Event(BaseModel):
    """A calendar entry."""

    title: str = Field(max_length=40)
    weekday: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    hour: int = Field(ge=0, le=23)
    guests: list[str] = Field(max_length=3)


@bp.function
def extract(s: bp.State, text: str) -> Event:
    s += bp.system("You turn messages into calendar entries.")
    s += bp.user(f"{text}\nGive the entry as JSON with title, weekday, hour and guests.")
    s += bp.assistant(bp.gen("event", Event, max_tokens=120))
    event: Event = s["event"]
    return event


def main(backend: bp.BackendLike) -> list[Event]:
    texts = ["Lunch with Ana and Bo on Friday at 12.", "The planning meeting moves to Tuesday, 15:00."]
    runs = extract.run_batch([{"text": text} for text in texts], backend=backend, temperature=0.0)
    return [run.value for run in runs]


if __name__ == "__main__":
    with bp.Engine(model="smollm2") as engine:
        for event in main(engine):
            print(event)
