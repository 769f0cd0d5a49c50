"""What a process may use: cores and memory read from a control group of either version, written here as files."""

import math
from pathlib import Path

import pytest
import torch

from branchpoint.runtime import machine
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.machine import available_memory, usable_cores, use_threads

PLENTY = 2**50


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder read as the process's control group, on a machine of eight cores and much memory."""
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_physical_cores", lambda: 8)
    monkeypatch.setattr(machine, "_system_memory", lambda: PLENTY)
    return tmp_path


def write(group: Path, **files: str) -> None:
    for name, text in files.items():
        path = group / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_name(path.name.replace("_", ".", 1)).write_text(text + "\n")


@pytest.mark.parametrize(("quota", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("350000 100000", 3), ("max 100000", 8)])
def test_a_containers_share_of_the_cores_limits_the_threads(group: Path, quota: str, cores: int) -> None:
    write(group, cpu_max=quota)
    assert usable_cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [("400000", 4), ("-1", 8)])
def test_version_one_groups_are_read_too(group: Path, quota: str, cores: int) -> None:
    write(group, cpu__cpu_cfs_quota_us=quota, cpu__cpu_cfs_period_us="100000")
    assert usable_cores() == cores


def test_more_threads_than_the_share_are_refused_with_the_number(group: Path) -> None:
    write(group, cpu_max="200000 100000")
    with pytest.raises(InvalidRequest, match="at most the 2 cores this process may use, got 3"):
        use_threads(3)


def test_a_containers_memory_is_what_is_left_and_its_file_pages_count_as_free(group: Path) -> None:
    write(group, memory_max="1000", memory_current="700", memory_stat="anon 100\ninactive_file 250\nactive_file 5")
    assert available_memory() == 550
    write(group, memory_max="max")
    assert available_memory() == PLENTY


def test_version_one_memory_is_read_too_and_never_below_nothing(group: Path) -> None:
    write(group, memory__memory_limit_in_bytes="1000", memory__memory_usage_in_bytes="1200")
    assert available_memory() == 0


def test_without_a_group_the_machine_itself_is_the_limit(group: Path) -> None:
    assert (usable_cores(), available_memory()) == (8, PLENTY)


def test_this_machine_has_some_of_each() -> None:
    assert usable_cores() >= 1
    assert 0 < available_memory(torch.device("cpu")) < math.inf
