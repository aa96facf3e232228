"""The files of examples/ that a RoCE node, or one whose functions have no netdev, is set up with."""

import json
from pathlib import Path

import example_files
import guest
import pytest
from example_files import EXAMPLES, Attachment, asked_for, documents, networks
from guest import Function, Pod
from network import state_rows

ONE_RAIL = [
    ("multus/after-sriov.yaml", "rail0-sriov"),
    ("multus/alone.yaml", "rail0-alone"),
    ("operator/sriov-operator.yaml", "rail0"),
]


@pytest.fixture(autouse=True)
def node(host_as_it_was: None) -> None:
    example_files.be_the_node()


def nothing_is_left(pod: Pod) -> None:
    assert (pod.links(), pod.rdma_names(), state_rows()) == ([], [], 0)


@pytest.mark.parametrize(("name", "network"), ONE_RAIL, ids=[name for name, _ in ONE_RAIL])
def test_a_network_puts_device_interface_and_address_into_the_pod(
    name: str, network: str, vf: Function, pod: Pod, tmp_path: Path
) -> None:
    info = tmp_path / "info.json"
    attachment = Attachment(networks(documents(name))[network], pod, "rail0", vf, str(info))
    attachment.add()
    assert pod.rdma_names() == list(vf.rdma)
    assert (pod.link("rail0")["parentdev"], pod.addresses("rail0")) == (vf.device, ["10.56.7.2/24"])
    assert pod.link("rail0")["mtu"] == attachment.conflist["plugins"][0].get("mtu", 1500)
    attachment.check()
    if network == "rail0-alone":
        assert json.loads(info.read_text())["pci"]["rdma-device"] == vf.rdma[0]
    attachment.delete()
    nothing_is_left(pod)


def test_a_pod_of_eight_rails_has_each_in_its_pool(vfs: list[Function], sf: Function, pod: Pod) -> None:
    """As many of the eight as the lab has functions with a netdev."""
    rails = networks(documents("multus/eight-rails.yaml"))
    (wanted,) = documents("multus/pod-eight-rails.yaml")
    functions = [*vfs, sf]
    attachments = [
        Attachment(rails[network], pod, ifname, function)
        for (network, ifname), function in zip(asked_for(wanted), functions, strict=False)
    ]
    assert len(attachments) == 7
    for attachment in attachments:
        attachment.add()
    for number, (attachment, function) in enumerate(zip(attachments, functions, strict=True)):
        assert attachment.ifname == f"rail{number}"
        assert pod.link(f"rail{number}")["parentdev"] == function.device
        assert pod.addresses(f"rail{number}") == [f"10.{56 + number}.7.2/24"]
        attachment.check()
    assert pod.rdma_names() == sorted(device for function in functions for device in function.rdma)
    for attachment in reversed(attachments):
        attachment.delete()
    nothing_is_left(pod)


@pytest.mark.parametrize("network", ["efa", "erdma"])
def test_a_function_without_netdev_brings_its_device_and_no_interface(
    network: str, bare_vf: Function, pod: Pod
) -> None:
    attachment = Attachment(networks(documents("no-netdev/efa-erdma.yaml"))[network], pod, "net1", bare_vf)
    attachment.add()
    assert (pod.rdma_names(), pod.links()) == (list(bare_vf.rdma), [])
    attachment.check()
    attachment.delete()
    nothing_is_left(pod)


def test_macvlan_has_addresses_of_node_subnet_and_no_device_of_its_own(pod: Pod) -> None:
    (pf,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*/net/*")
    conflist = networks(documents("shared-mode/macvlan.yaml"))["shared-rail0"]
    (macvlan,) = conflist["plugins"]
    macvlan["master"] = pf.name
    attachment = Attachment(conflist, pod, "rail0")
    attachment.add()
    link = pod.link("rail0")
    assert (link["linkinfo"]["info_kind"], pod.addresses("rail0")) == ("macvlan", ["10.56.7.2/24"])
    attachment.check()
    attachment.delete()
    assert pod.links() == []


def test_the_modules_option_is_one_that_the_kernel_has() -> None:
    file = str(EXAMPLES / "rdma-cni.modprobe.conf")
    options = [line.split() for line in guest.run("modprobe", "--config", file, "--showconfig").splitlines()]
    (values,) = [words[2:] for words in options if words[:2] == ["options", "ib_core"]]
    assert values == ["netns_mode=0"]
    # The kernel tells the mode there: what the lab has set by hand is what that option sets.
    assert Path("/sys/module/ib_core/parameters/netns_mode").read_text().strip() == "N"
