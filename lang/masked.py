"""A `select` on a backend that can't score options, but can hold output to them: the model writes one of them itself.

Called by `request.py`. Its method is "mask" in the metadata, since there are neither scores nor probabilities.
"""

from branchpoint.constrained.spec import Choice
from branchpoint.lang.backends.base import Backend
from branchpoint.lang.choices import total
from branchpoint.lang.errors import NotSupported
from branchpoint.lang.expr import Gen, Select
from branchpoint.lang.options import SamplingOptions

__all__ = ["written"]


def written(backend: Backend, expr: Select) -> Gen:
    """The gen that stands in for `expr`. Raises NotSupported where the backend hasn't, or the method asked for isn't, such."""
    if "choice" not in backend.capabilities.constraints:
        raise NotSupported("This backend can neither score options nor hold output to them, so select is not possible on it.")
    if expr.method is not total:
        raise NotSupported(
            f"This backend can't score options, which {expr.method.name} needs; without choices_method it writes one of them."
        )
    options: SamplingOptions = {"temperature": expr.temperature, "n": 1, "stop": ()}
    if expr.seed is not None:
        options["seed"] = expr.seed
    return Gen(expr.name, None, Choice(expr.choices), options)
