"""How `branchpoint bench` asks a server, and where its figures go. What it asks stands in `workload`."""

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["LoadOptions", "OutputOptions"]


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A server and how its requests arrive; see `client.arrivals` for rate and burstiness."""

    url: Annotated[str, Meta(description="The server, without /v1.")] = "http://127.0.0.1:8000"
    served_model: Annotated[str | None, Meta(description="Name of the model; the server's first one where left out.")] = None
    key: Annotated[str, Meta(description="API key.")] = ""
    chat: Annotated[bool, Meta(description="Ask /v1/chat/completions; conversations always do.")] = False
    rate: Annotated[float, Meta(description="Sessions a second; inf: all at once.")] = float("inf")
    burstiness: Annotated[float, Meta(description="1: Poisson arrivals; less: bursts; more: a steady stream.")] = 1.0
    concurrency: Annotated[int | None, Meta(description="Sessions at once at most.")] = None
    ignore_eos: Annotated[bool, Meta(description="Ask for outputs of exactly the length, beyond the model's own end.")] = True
    timeout: Annotated[float, Meta(description="Seconds without any byte after which a request has failed.")] = 600.0


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where figures go."""

    json_file: Annotated[str | None, Meta(description="Write the figures as JSON; `-` for standard output, and no table.")] = None
    plot_file: Annotated[str | None, Meta(description="Draw the distributions of times, as SVG.")] = None
