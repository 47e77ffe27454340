"""Prometheus metrics of the store's servers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily as Count
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric

from opic.store.connection import store_errors
from opic.store.library import primaries


def of_each(
    label: str, rows: Sequence[Mapping[str, Any]], metrics: Sequence[tuple[type[Count | Gauge], str, str, str]]
) -> Iterator[Metric]:
    """Yield metrics of several things, labelled by index: of each the kind, name, help, and the name of its value."""
    for kind, name, about, value in metrics:
        family = kind(name, about, labels=[label])
        for index, row in enumerate(rows):
            family.add_metric([str(index)], float(row.get(value, 0)))
        yield family


def of_servers(servers: list[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of the store's servers, labelled by index, because an address may be arbitrary."""
    yield Gauge("opic_store_servers", "Primary servers of the store.", len(servers))
    file = "Size of the server's append-only file; 0 if it has none."
    used = [{**info, "cpu": float(info["used_cpu_sys"]) + float(info["used_cpu_user"])} for info in servers]
    yield from of_each("server", used, (
        (Gauge, "opic_store_memory_bytes", "Memory used by a server of the store.", "used_memory"),
        (Gauge, "opic_store_memory_limit_bytes", "maxmemory of the server; 0 means no limit.", "maxmemory"),
        (Gauge, "opic_store_file_bytes", file, "aof_current_size"),
        (Gauge, "opic_store_replicas", "Replicas connected to the server.", "connected_slaves"),
        (Count, "opic_store_commands", "Commands processed by the server.", "total_commands_processed"),
        (Count, "opic_store_cpu_seconds", "CPU time used by the server.", "cpu"),
    ))  # fmt: skip


def server_infos(client: Any) -> list[Mapping[str, Any]]:
    """Return INFO of each primary server, in the order of their addresses."""
    with store_errors():
        return [server.info() for server in sorted(primaries(client), key=_address)]


def _address(client: Any) -> str:
    options = client.connection_pool.connection_kwargs
    return f"{options.get('host', options.get('path'))}:{options.get('port')}"
