"""Where adapters lie that steps compute with. Asked by the scheduler before it admits a sequence with one: no step waits for its
matrices, and no sequence without it.
"""

from typing import Protocol, runtime_checkable

from branchpoint.runtime.lora.adapter import Adapter
from branchpoint.runtime.plan import Runner

__all__ = ["AdaptedRunner", "AdapterPlaces"]


class AdapterPlaces(Protocol):
    """Brings adapters to the device beside the steps; `placed.PlacedAdapters` does."""

    def ready(self, adapter: Adapter) -> bool:
        """Whether a step with `adapter` waits for nothing; where it would, the adapter is on its way from now on."""

    def wait(self) -> None:
        """Give those that are on their way a moment, where there is nothing else to do."""

    def close(self) -> None:
        """Bring no more."""


@runtime_checkable
class AdaptedRunner(Runner, Protocol):
    """A runner that may compute with adapters."""

    @property
    def adapters(self) -> AdapterPlaces | None:
        """Where they lie; None where it takes none."""
