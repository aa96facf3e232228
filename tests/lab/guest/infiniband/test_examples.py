"""The networks of examples/ for InfiniBand."""

import example_files
import pytest
from example_files import Attachment, documents, networks
from guest import Function, Pod
from network import state_rows


@pytest.mark.parametrize("name", ["infiniband-after-ib-sriov", "infiniband-alone"])
def test_an_infiniband_network_puts_device_interface_and_address_into_the_pod(
    name: str, vf: Function, pod: Pod
) -> None:
    example_files.be_the_node()
    (network,) = networks(documents(f"multus/{name}.yaml")).values()
    attachment = Attachment(network, pod, "ib0", vf)
    attachment.add()
    assert pod.rdma_names() == list(vf.rdma)
    link = pod.link("ib0")
    assert (link["link_type"], link["parentdev"]) == ("infiniband", vf.device)
    assert pod.addresses("ib0") == ["10.64.7.2/24"]
    attachment.check()
    attachment.delete()
    assert (pod.links(), pod.rdma_names(), state_rows()) == ([], [], 0)
