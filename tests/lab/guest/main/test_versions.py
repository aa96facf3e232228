"""Results in the version that was asked for."""

from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import VERSIONS, ScriptedIpam, attach, conf, detach, earlier_plugin, earlier_plugin_deletes

ROUTES = [{"dst": "10.1.0.0/16"}, {"dst": "10.2.0.0/16", "gw": "10.77.0.9"}]
DNS = {"nameservers": ["10.77.0.53"]}


def dressed(version: str, ip: dict[str, Any]) -> dict[str, Any]:
    """An address as a version has it."""
    family = "6" if ":" in ip["address"] else "4"
    return {**ip, "version": family} if version < "1.0.0" else ip


@pytest.mark.parametrize("version", VERSIONS)
def test_alone_the_result_is_of_the_version_that_was_asked_for(
    vf: Function, pod: Pod, ipam: ScriptedIpam, version: str
) -> None:
    ips = [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}, {"address": "fd00:7::5/64"}]
    answer = {"cniVersion": version, "ips": [dressed(version, ip) for ip in ips], "routes": ROUTES, "dns": DNS}
    ipam.answer("ADD", answer)
    config = conf(vf, version, ipam=ipam.config)
    interface: dict[str, object] = {"name": "net1", "mac": vf.mac, "sandbox": pod.netns}
    if version == "1.1.0":
        interface.update(mtu=1500, pciID=vf.device)
    assert attach(config, pod, env=ipam.env) == {
        "cniVersion": version,
        "interfaces": [interface],
        "ips": [{**dressed(version, ip), "interface": 0} for ip in ips],
        "routes": ROUTES,
        "dns": DNS,
    }
    detach(config, pod, env=ipam.env)


@pytest.mark.parametrize("version", VERSIONS)
def test_chained_prev_results_ips_routes_and_dns_come_out_as_they_went_in(vf: Function, pod: Pod, version: str) -> None:
    previous = earlier_plugin(vf, pod, version, address="10.8.0.2/24", gateway="10.8.0.1", routes=("10.9.0.0/16",))
    config = conf(vf, version, prevResult=previous)
    result = attach(config, pod)
    expected = {**previous, "interfaces": [dict(previous["interfaces"][0])]}
    if version == "1.1.0":
        expected["interfaces"][0]["pciID"] = vf.device
    assert result == expected
    detach(config, pod)
    earlier_plugin_deletes(vf, pod)


@pytest.mark.parametrize("version", ["0.4.0", "1.1.0"])
def test_chained_what_ipam_answered_is_added(vf: Function, pod: Pod, ipam: ScriptedIpam, version: str) -> None:
    previous = earlier_plugin(vf, pod, version, address="10.8.0.2/24", gateway="10.8.0.1", routes=("10.9.0.0/16",))
    # Two more, so that an index is not right by accident.
    previous["interfaces"] = [{"name": "veth0"}, {"name": "eth0", "sandbox": pod.netns}, *previous["interfaces"]]
    previous["ips"][0]["interface"] = 2
    ip = dressed(version, {"address": "10.77.0.5/24", "gateway": "10.77.0.1"})
    ipam.answer("ADD", {"cniVersion": version, "ips": [ip], "routes": ROUTES, "dns": DNS})
    config = conf(vf, version, prevResult=previous, ipam=ipam.config)
    result = attach(config, pod, env=ipam.env)
    assert result["ips"] == [*previous["ips"], {**ip, "interface": 2}]
    assert result["routes"] == [*previous["routes"], *ROUTES]
    assert result["dns"] == previous["dns"]
    assert [entry["name"] for entry in result["interfaces"]] == ["veth0", "eth0", "net1"]
    detach(config, pod, env=ipam.env)
    earlier_plugin_deletes(vf, pod)


def test_keys_of_an_interface_that_a_version_has_not_are_left_out(vf: Function, pod: Pod) -> None:
    previous = earlier_plugin(vf, pod)
    previous["interfaces"][0].update(mtu=1500, pciID=vf.device, socketPath="/run/x")
    assert set(attach(conf(None, prevResult=previous), pod)["interfaces"][0]) == {"name", "mac", "sandbox"}
    detach(conf(None, prevResult=previous), pod)
    earlier_plugin_deletes(vf, pod)


def test_an_earlier_plugins_pci_id_and_mtu_stay(vf: Function, pod: Pod) -> None:
    previous = earlier_plugin(vf, pod, "1.1.0")
    previous["interfaces"][0].update(mtu=1400, pciID=vf.device.upper(), socketPath="/run/x")
    config = conf(vf, "1.1.0", prevResult=previous)
    assert attach(config, pod)["interfaces"] == previous["interfaces"]
    detach(config, pod)
    earlier_plugin_deletes(vf, pod)


def test_an_empty_prev_result_stays_empty(vf: Function, pod: Pod) -> None:
    config = conf(vf, "1.0.0", prevResult={})
    assert attach(config, pod) == {"cniVersion": "1.0.0"}
    assert pod.rdma_names() == list(vf.rdma)
    detach(config, pod)


@pytest.mark.parametrize("version", VERSIONS[:4])
def test_del_works_in_each_version(vf: Function, pod: Pod, version: str) -> None:
    attach(conf(vf, version), pod)
    detach(conf(vf, version), pod)
    assert vf.rdma[0] in guest.rdma_names()


@pytest.mark.parametrize("version", VERSIONS[2:])
def test_check_answers_nothing_where_nothing_differs(vf: Function, pod: Pod, version: str) -> None:
    result = attach(conf(vf, version), pod)
    answer = guest.cni("CHECK", conf(vf, version, prevResult=result), netns=pod)
    assert (answer.code, answer.stdout) == (0, ""), answer
    detach(conf(vf, version), pod)
