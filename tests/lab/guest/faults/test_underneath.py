"""The node changes underneath: VFs that go and come, a driver that is rebound, names, the clock, a reboot.

An ADD or a DEL is stopped at a call, the node changes, and it goes on: so the moment is the worst there is, and
the same each time.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import guest
import pytest
from attachments import Attachment, look, pf, pool, rows
from calls import Call, plain_words
from guest import Function, Pod
from network import attach, conf, detach
from record import Tried

MakePod = Callable[[str], Pod]
pytestmark = pytest.mark.changes_host


def calls_of(one: Attachment, command: str) -> list[Call]:
    """The calls of a command that ask something of the kernel or write the state, a few of each kind."""
    answer = one.call(command, one.pod, one.run.undisturbed())
    assert answer.ok, answer
    asking = [call for call in one.run.calls if call.name in ("sendto", "ftruncate", "write")]
    assert len(asking) > 5
    return asking


def rebind(device: str) -> None:
    (guest.PCI / device / "driver" / "unbind").write_text(device)
    Path("/sys/bus/pci/drivers_probe").write_text(device)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("ADD", marks=pytest.mark.fault("node", "the driver is rebound while ADD runs")),
        pytest.param("DEL", marks=pytest.mark.fault("node", "the driver is rebound while DEL runs")),
    ],
)
def test_a_driver_that_is_rebound_while_a_command_runs(command: str, one: Attachment, tried: Tried) -> None:
    if command == "DEL":
        one.succeed("ADD", one.pod)
    calls = calls_of(one, command)
    if command == "ADD":
        one.succeed("DEL", one.pod)
    for call in calls:
        if command == "DEL":
            one.succeed("ADD", one.pod)
        stopped = one.stopped(command, call.number)
        rebind(one.vf.device)
        answer = stopped.go_on()
        if not answer.ok:
            plain_words(answer)
        guest.settle()
        one.succeed("DEL", one.pod, (call, answer))
        assert (rows(), one.pod.rdma_names(), one.pod.links()) == ([], [], []), (call, answer)
        again = guest.function(guest.PCI / one.vf.device)
        assert (again.netdev, len(again.rdma)) == (one.vf.netdev, 1), (call, answer, again)
        tried()
    one.succeed("ADD", one.pod)
    one.succeed("DEL", one.pod)


@pytest.mark.fault("node", "the RDMA driver is loaded anew while the pod has the VF")
@pytest.mark.parametrize("hostile", [False, True], ids=["", "and root in the pod changed the netdev"])
def test_an_rdma_driver_that_is_loaded_anew_while_the_pod_has_the_vf(one: Attachment, hostile: bool) -> None:
    """The netdev's driver stays, and so does the netdev in the pod."""
    one.succeed("ADD", one.pod)
    if hostile:
        one.pod.run("ip", "link", "set", "net1", "down")
        one.pod.run("ip", "link", "set", "net1", "alias", "", "mtu", "1300", "address", "02:00:00:00:ab:77")
        one.pod.run("ip", "link", "set", "net1", "name", "mine")
    guest.run("rmmod", "rdmasim")
    guest.run("modprobe", "rdmasim")
    guest.settle()
    one.succeed("DEL", one.pod)
    assert one.pod.links() == []
    one.require_nothing_left("")
    one.succeed("ADD", one.pod)
    one.succeed("DEL", one.pod)


@pytest.mark.fault("node", "the RDMA device and the netdev are renamed while ADD runs")
def test_names_that_udev_changes_while_an_add_runs(one: Attachment, tried: Tried) -> None:
    calls = calls_of(one, "ADD")
    one.succeed("DEL", one.pod)
    (rdma,) = one.vf.rdma
    for call in calls:
        stopped = one.stopped("ADD", call.number)
        guest.run("rdma", "dev", "set", rdma, "name", "rocep9s9", check=False)
        guest.run("ip", "link", "set", one.vf.netdev, "name", "enp9s9v9", check=False)
        answer = stopped.go_on()
        assert answer.ok, (call, answer)
        assert [link["ifname"] for link in one.pod.links()] == ["net1"], (call, answer)
        assert one.pod.rdma_names() == ["rail0"], (call, answer)
        one.succeed("DEL", one.pod, call)
        guest.settle()
        now = guest.function(guest.PCI / one.vf.device)
        assert (len(now.rdma), len(now.netdevs)) == (1, 1), (call, now)
        # Under the names that they had before, or the new ones: never under those of the pod.
        assert now.rdma[0] in (rdma, "rocep9s9"), (call, now)
        assert now.netdev in (one.vf.netdev, "enp9s9v9"), (call, now)
        guest.run("rdma", "dev", "set", now.rdma[0], "name", rdma, check=False)
        guest.run("ip", "link", "property", "del", "dev", now.netdev, "altname", one.vf.netdev, check=False)
        guest.run("ip", "link", "set", now.netdev, "name", one.vf.netdev, check=False)
        for altname in ("rocep9s9", "enp9s9v9"):
            guest.run("ip", "link", "property", "del", "dev", one.vf.netdev, "altname", altname, check=False)
        guest.settle()
        tried()


@pytest.mark.fault("node", "root in the pod changes names, MAC and MTU while DEL runs")
def test_what_root_in_the_pod_changes_while_a_del_runs(one: Attachment, tried: Tried) -> None:
    one.succeed("ADD", one.pod)
    for call in calls_of(one, "DEL"):
        one.succeed("ADD", one.pod)
        stopped = one.stopped("DEL", call.number)
        one.pod.run("rdma", "dev", "set", "rail0", "name", "stolen", check=False)
        one.pod.run("ip", "link", "set", "net1", "down", check=False)
        one.pod.run("ip", "link", "set", "net1", "name", "mine", "mtu", "1300", check=False)
        one.pod.run("ip", "link", "set", "mine", "address", "02:00:00:00:ab:09", check=False)
        answer = stopped.go_on()
        assert answer.ok or answer.error == 11, (call, answer)
        one.succeed("DEL", one.pod, (call, answer))
        one.require_nothing_left((call, answer))
        tried()


@pytest.mark.fault("node", "the pod's namespace dies while DEL runs")
def test_a_namespace_that_dies_while_a_del_runs(one: Attachment, make_pod: MakePod, tried: Tried) -> None:
    one.succeed("ADD", one.pod)
    for call in calls_of(one, "DEL"):
        one.pod = make_pod(f"dies{call.number}")
        one.succeed("ADD", one.pod)
        stopped = one.stopped("DEL", call.number)
        one.pod.delete()
        answer = stopped.go_on()
        assert answer.ok or answer.error == 11, (call, answer)
        one.succeed("DEL", one.pod, (call, answer))
        one.require_nothing_left((call, answer))
        tried()


@pytest.mark.fault("node", "the pod's namespace dies while ADD runs")
def test_a_namespace_that_dies_while_an_add_runs(one: Attachment, make_pod: MakePod, tried: Tried) -> None:
    calls = calls_of(one, "ADD")
    one.succeed("DEL", one.pod)
    for call in calls:
        one.pod = make_pod(f"dies{call.number}")
        stopped = one.stopped("ADD", call.number)
        one.pod.delete()
        answer = stopped.go_on()
        if not answer.ok:
            plain_words(answer)
        one.succeed("DEL", one.pod, (call, answer))
        one.require_nothing_left((call, answer))
        tried()


@pytest.fixture
def clock() -> Iterator[None]:
    """Set right again when the test ends."""
    real, start = time.time(), time.monotonic()
    yield
    time.clock_settime(time.CLOCK_REALTIME, real + time.monotonic() - start)


@pytest.mark.fault("node", "the clock is set back by a year")
@pytest.mark.usefixtures("clock")
def test_a_clock_that_is_set_back(vf: Function, pod: Pod, make_pod: MakePod) -> None:
    config = conf(vf, "1.1.0", ipam=pool())
    before = look(vf.device)
    result = attach(config, pod)
    time.clock_settime(time.CLOCK_REALTIME, time.time() - 365 * 86400)
    assert guest.cni("CHECK", config | {"prevResult": result}, netns=pod).ok
    detach(config, pod)
    other = make_pod("other")
    # The address that was freed last comes last.
    again = attach(config, other, container="another")
    assert again["ips"] != result["ips"]
    detach(config, other, container="another")
    assert (rows(), look(vf.device)) == ([], before)


@pytest.mark.fault("node", "a reboot: an empty /run, and DELs of the pods that there were")
def test_after_a_reboot_the_dels_of_old_pods_change_nothing(vfs: list[Function], pod: Pod, tried: Tried) -> None:
    """Nothing of the pods is left but what the runtime knows of them: configurations and results."""
    before = guest.host()
    calls = []
    for number, vf in enumerate(vfs[:3]):
        config = conf(vf, "1.1.0", name=f"net{number}", ipam=pool())
        calls.append((config | {"prevResult": attach(config, pod, ifname=f"net{number}")}, f"net{number}"))
    chosen = conf(None, "1.1.0", pf=pf(), name="net3", ipam=pool())
    calls.append((chosen | {"prevResult": attach(chosen, pod, ifname="net3")}, "net3"))
    for config, ifname in calls:
        detach(config, pod, ifname=ifname)
    pod.delete()
    shutil.rmtree("/run/rdma-cni")
    for config, ifname in calls * 2:
        detach(config, pod.netns, ifname=ifname)
        detach(config, None, ifname=ifname)
        tried(2)
    guest.settle()
    assert (guest.host(), rows()) == (before, [])
