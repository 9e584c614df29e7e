"""The number of threads fits the machine and the wish."""

import os
import subprocess
import sys

import pytest
import torch

from posttrain.errors import ConfigError
from posttrain.models import threads
from posttrain.models.threads import apply_threads, choose_threads, prepare_environment, usable_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A made-up machine of eight logical on four physical cores; returns the root of its file system."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    for cpu in range(8):
        write(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_environment_is_set_where_it_is_unset():
    environment = {}
    prepare_environment(environment)
    assert "PASSIVE" == environment["OMP_WAIT_POLICY"]


def test_environment_of_the_user_stands():
    environment = {"OMP_WAIT_POLICY": "ACTIVE"}
    assert "ACTIVE" == prepare_environment(environment)["OMP_WAIT_POLICY"]


def test_importing_loads_no_torch():
    code = "import sys, posttrain.models.threads as t; t.choose_threads(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False" == done.stdout.strip()


def test_physical_cores_count_once(machine):
    assert (4, "4 physical cores are open to it") == usable_cores(machine)


def test_affinity_limits(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    assert 2 == usable_cores(machine)[0]


def test_logical_cores_count_where_the_topology_is_unknown(tmp_path, machine, monkeypatch):
    assert (8, "8 logical cores are open to it") == usable_cores(tmp_path / "empty")


def test_container_quota_limits(machine):
    write(machine / "sys/fs/cgroup/cpu.max", "250000 100000")
    assert (2, "the container may use 2.5 cores") == usable_cores(machine)


def test_quota_below_one_core_still_gives_one_thread(machine):
    write(machine / "sys/fs/cgroup/cpu.max", "50000 100000")
    assert 1 == usable_cores(machine)[0]


def test_unlimited_quota_limits_nothing(machine):
    write(machine / "sys/fs/cgroup/cpu.max", "max 100000")
    assert 4 == usable_cores(machine)[0]


def test_quota_of_the_own_control_group_is_found(machine):
    write(machine / "proc/self/cgroup", "0::/box/run")
    write(machine / "sys/fs/cgroup/box/run/cpu.max", "100000 100000")
    assert 1 == usable_cores(machine)[0]


def test_quota_of_the_older_control_groups_is_found(machine):
    write(machine / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000")
    write(machine / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert 3 == usable_cores(machine)[0]


def test_users_wish_stands(machine):
    plan = choose_threads(3, environment={"OMP_NUM_THREADS": "1"}, root=machine)
    assert (3, "asked for") == (plan.threads, plan.reason)


def test_wish_above_the_machine_is_remarked(machine):
    plan = choose_threads(16, environment={}, root=machine)
    assert 16 == plan.threads
    assert "may use only 4" in plan.reason


def test_environment_variable_stands(machine):
    plan = choose_threads(environment={"OMP_NUM_THREADS": "2,1"}, root=machine)
    assert (2, "OMP_NUM_THREADS") == (plan.threads, plan.reason)


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_senseless_variable_is_refused(machine, value):
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS"):
        choose_threads(environment={"OMP_NUM_THREADS": value}, root=machine)


def test_senseless_wish_is_refused(machine):
    with pytest.raises(ConfigError, match=r"run\.threads is '0'"):
        choose_threads(0, environment={}, root=machine)


def test_free_machine_gives_all_its_cores(machine):
    assert 4 == choose_threads(environment={}, timer=lambda n: 1 / n, root=machine).threads


def test_busy_machine_gives_one_thread(machine):
    plan = choose_threads(environment={}, timer=lambda n: 1.0, root=machine)
    assert 1 == plan.threads
    assert "busy" in plan.reason


def test_half_busy_machine_gives_half_its_cores(machine):
    assert 2 == choose_threads(environment={}, timer=lambda n: 1 / min(n, 2), root=machine).threads


def test_without_torch_the_limit_decides(machine, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert 4 == choose_threads(environment={}, root=machine).threads


def test_measurement_keeps_torchs_setting():
    before = torch.get_num_threads()
    assert threads._time_products(2) > 0
    assert before == torch.get_num_threads()


def test_plan_keeps_the_thread_variables(machine):
    plan = choose_threads(2, environment={"OMP_WAIT_POLICY": "PASSIVE", "HOME": "/"}, root=machine)
    assert {"OMP_WAIT_POLICY": "PASSIVE"} == plan.environment


def test_apply_sets_torchs_threads(machine):
    apply_threads(choose_threads(2, environment={}, root=machine))
    assert 2 == torch.get_num_threads()


def test_apply_before_torch_is_refused(machine, monkeypatch):
    plan = choose_threads(2, environment={}, root=machine)
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(RuntimeError, match="torch is not loaded"):
        apply_threads(plan)
