"""The series themselves: `MetricFamilies` of a server, in which each of its models has a `MetricBoard` of its own, by label.

Written to by `metrics`, from what `metric_names` lists.
"""

from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from branchpoint.runtime.messages import ModelInfo
from branchpoint.runtime.metric_names import METRICS, Metric
from branchpoint.runtime.stats import AdapterUse

__all__ = ["MetricBoard", "MetricFamilies"]

Series = Gauge | Counter | Histogram


class MetricFamilies:
    """The families of one server, each made once, whichever models have series in it; and what this process takes."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):  # under the names that all use
            collector(registry=self._registry)
        self._made: dict[str, Series] = {}

    def get(self, metric: Metric, name: str, labels: Sequence[str]) -> Series:
        """The family of this name."""
        family = self._made.get(name)
        if family is None:
            if metric.kind == "histogram":
                family = Histogram(name, metric.about, labels, registry=self._registry, buckets=metric.buckets)
            else:
                family = (Gauge if metric.kind == "gauge" else Counter)(name, metric.about, labels, registry=self._registry)
            self._made[name] = family
        return family

    def render(self) -> bytes:
        """All series as text."""
        return generate_latest(self._registry)


_ADAPTERS = Metric("adapters", "gauge", "lora_requests_info", None, "LoRA adapters of running and waiting requests, in labels.")
_POOL = Metric("pool", "gauge", "cache_config_info", None, "The KV pool, in labels.")


class MetricBoard:
    """One model's series, by key and label, each at 0 from the start."""

    def __init__(self, info: ModelInfo, families: MetricFamilies) -> None:
        self._families = families
        self._series: dict[tuple[str, str], list[Series]] = {}
        vllm = {"model_name": info.name, "engine": "0"}
        ranks = dict.fromkeys(("tp_rank", "pp_rank", "moe_ep_rank"), "0")
        sglang = {"model_name": info.name, "engine_type": "unified", **ranks}
        labels = self._labels = {"branchpoint": {"model_name": info.name}, "vllm": vllm, "sglang": sglang}
        self._informed: dict[str, str] | None = None
        for metric in METRICS:
            for prefix, name in metric.names.items():
                self._add(metric, name, labels[prefix])
        self.set("max_tokens", info.num_pages * info.page_size)
        self._add(
            _POOL, "vllm:cache_config_info", vllm | {"block_size": str(info.page_size), "num_gpu_blocks": str(info.num_pages)}
        )
        self.set(_POOL.key, 1)

    def _add(self, metric: Metric, name: str, labels: dict[str, str]) -> None:
        names = [*labels, metric.label] if metric.label else [*labels]
        family = self._families.get(metric, name, names)
        for value in metric.values or ("",):
            own = {metric.label: value} if metric.label else {}
            self._series.setdefault((metric.key, value), []).append(family.labels(**labels, **own))

    def set(self, key: str, value: float, label: str = "") -> None:
        """Set a gauge."""
        for series in self._series[key, label]:
            assert isinstance(series, Gauge)
            series.set(value)

    def inform(self, use: AdapterUse, now: float) -> None:
        """Tell of adapters in use as vLLM does: in labels, with the time (seconds since 1970) as value."""
        told = {"max_lora": str(use.most), "running_lora_adapters": ",".join(use.running)}
        told["waiting_lora_adapters"] = ",".join(use.waiting)
        for prefix in ("branchpoint", "vllm"):
            labels = self._labels[prefix] | told
            family = self._families.get(_ADAPTERS, f"{prefix}:lora_requests_info", [*labels])
            if self._informed is not None and self._informed != told:
                family.remove(*(self._labels[prefix] | self._informed).values())
            gauge = family.labels(**labels)
            assert isinstance(gauge, Gauge)
            gauge.set(now)
        self._informed = told

    def add(self, key: str, amount: float) -> None:
        """Add to a gauge."""
        for series in self._series[key, ""]:
            assert isinstance(series, Gauge)
            series.inc(amount)

    def count(self, key: str, amount: float = 1, label: str = "") -> None:
        """Add to a counter; what is below 0 counts nothing."""
        for series in self._series[key, label]:
            assert isinstance(series, Counter)
            series.inc(max(0, amount))

    def observe(self, key: str, value: float) -> None:
        """Enter a value into a histogram."""
        for series in self._series[key, ""]:
            assert isinstance(series, Histogram)
            series.observe(value)
