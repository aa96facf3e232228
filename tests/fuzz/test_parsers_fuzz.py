"""What is read from others, at the functions that read it: an answer, or an error that is meant."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fuzzing import corpus, examples
from hypothesis import given
from hypothesis import strategies as st
from record import Tried
from test_executables_fuzz import CONF, DELEGATING, IPS, POOLS, RESULTS, ROUTES, SECTION, SUBNET, TEXTS, TOP, VALUES
from test_netlink_fuzz import ERROR, message, scripted

from ipam import plugin, pool
from rdma_cni import addressing, attach, config, home, link, netlink, state
from rdma_cni.cni import jsontext, log
from rdma_cni.cni.errors import CniError
from rdma_cni.cni.request import VERSIONS, Request, _read_config
from rdma_cni.device import Function

FUNCTION = Function("0000:ff:1f.7")


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is generated may name a file of this machine for a log."""
    monkeypatch.setattr(log, "configure", lambda level, path: None)
    monkeypatch.setattr(log, "_write", lambda level, message: None)


def requested(command: str, conf: dict[str, Any]) -> Request:
    """A request as the runtime makes it. Raises CniError."""
    request = Request(command)
    request.container, request.ifname, request.runtime_ifname, request.netns = "c", "net1", "net1", "/run/pod"
    request.stdin = json.dumps(conf).encode()
    _read_config(request, command == "DEL")
    return request


COMMANDS = st.sampled_from(["ADD", "ADD", "CHECK", "DEL", "GC", "STATUS"])


@pytest.mark.fault("input", "a configuration, a prevResult, an IPAM plugin's answer: generated, at the parser")
@examples(250)
@given(command=COMMANDS, version=st.sampled_from(VERSIONS), top=TOP, previous=RESULTS, answer=RESULTS)
def test_any_configuration_and_answer_is_a_result_or_an_error(
    command: str, version: str, top: dict[str, Any], previous: dict[str, Any], answer: dict[str, Any], tried: Tried
) -> None:
    tried()
    try:
        request = requested(command, CONF | {"cniVersion": version, "prevResult": previous} | top)
        config.load(request)
        attach._addresses(answer, "fake")
        if command != "ADD":
            return
        result = attach._result(request, FUNCTION, None, answer)
    except CniError as error:
        assert error.message  # noqa: PT017 - it may also succeed
        return
    assert json.loads(jsontext.dump(result))["cniVersion"] == request.version


def acknowledged() -> Iterator[bytes]:
    for sequence in range(1, 100_000):
        yield message(ERROR, bytes(20), sequence=sequence)


def set_all(answer: dict[str, Any]) -> None:
    """Ask the kernel for every address and route of an IPAM plugin's answer."""
    checked = attach._addresses(answer, "fake")
    links: Any = scripted(link.Links, acknowledged())
    for ip in checked.ips or []:
        links.add_address(1, ip.address)
        links.delete_address(1, ip.address)
    for route in checked.routes or []:
        gw = addressing.gateway(route, checked.ips or [])
        more = {key: getattr(route, key) for key in ("mtu", "advmss", "priority", "table", "scope")}
        links.add_route(1, route.dst, gw, **more)
        links.delete_route(1, route.dst, gw, table=route.table)
        assert addressing.network(route.dst)


ANSWERS = st.builds(
    lambda ips, routes: {
        "ips": [{"address": "10.0.0.1/8"} | ip for ip in ips],
        "routes": [{"dst": "10.0.0.0/8"} | route for route in routes],
    },
    st.lists(IPS, min_size=1, max_size=2),
    st.lists(ROUTES, max_size=2),
)


@pytest.mark.fault("input", "an IPAM plugin's answer: generated, up to the requests to the kernel")
@examples(200)
@given(answer=ANSWERS)
def test_any_answer_of_an_ipam_plugin_is_what_the_kernel_can_be_asked_for(answer: dict[str, Any], tried: Tried) -> None:
    tried()
    try:
        set_all(answer)
    except CniError as error:
        assert error.code in (106, 107)  # noqa: PT017 - it may also succeed


@pytest.mark.fault("input", "an IPAM plugin's answer: the corpus, at ADD")
def test_answers_from_the_corpus_are_results_or_errors(tried: Tried) -> None:
    for path in corpus("ipam_answer"):
        tried()
        try:
            answer = jsontext.parse(path.read_bytes())
        except ValueError:
            continue
        if not isinstance(answer, dict):
            continue
        request = requested("ADD", DELEGATING)
        try:
            set_all(answer)
        except CniError as error:
            assert error.code in (106, 107), path  # noqa: PT017 - it may also succeed
        else:
            assert jsontext.dump(attach._result(request, FUNCTION, None, answer)), path


@pytest.mark.parametrize(
    "address", ["0.0.0.0/0", "0.1.2.3/8", "::/0", "224.0.0.1/4", "239.1.2.3/32", "255.255.255.255/32", "ff02::1/64"]
)
def test_an_address_that_no_host_can_have_is_nonsense(address: str) -> None:
    with pytest.raises(CniError, match=r"ips\[1\]\.address: found .*, expected a host's") as caught:
        attach._addresses({"ips": [{"address": "10.0.0.1/8"}, {"address": address}]}, "fake")
    assert caught.value.code == 106


@pytest.mark.parametrize("address", ["10.0.0.1/0", "240.0.0.1/4", "127.0.0.1/8", "::1/128", "fe80::1/64", "fd00::/64"])
def test_an_unusual_address_is_for_the_kernel_to_judge(address: str) -> None:
    assert attach._addresses({"ips": [{"address": address}]}, "fake").ips


@pytest.mark.parametrize("key", ["interfaces", "ips", "routes"])
@pytest.mark.parametrize("value", [None, []])
def test_what_an_earlier_plugin_left_empty_comes_back_as_it_was(key: str, value: object) -> None:
    request = requested("ADD", CONF | {"prevResult": {key: value}})
    assert attach._result(request, FUNCTION, None, {}) == {"cniVersion": "1.1.0", key: value}


@pytest.mark.fault("input", "the section of node-subnet: generated, at the parser")
@examples(250)
@given(section=SECTION, pools=POOLS)
def test_any_section_of_node_subnet_is_pools_or_an_error(
    section: dict[str, Any], pools: list[dict[str, Any]], tried: Tried
) -> None:
    tried()
    try:
        request = requested("ADD", SUBNET | {"ipam": SUBNET["ipam"] | {"pools": pools} | section})
        conf = plugin.configuration(request)
        pool.parts(conf, pool.pools(conf), "n")
    except CniError as error:
        assert error.message  # noqa: PT017 - it may also succeed


RECORD: dict[str, Any] = {
    "runtime_ifname": "net1", "pod": "", "netns": "/run/pod", "cookie": 5, "rdma": [[3, 0, "x"]], "borrowed": None,
    "netdev": ["ens1", "02:00:00:00:00:01", 1500, 1, [], "", False], "addresses": [], "routes": [],
}  # fmt: skip
PARTS = st.lists(VALUES | st.sampled_from([1, "x", "02:00:00:00:00:01", [], True]), max_size=8)


@pytest.mark.fault("state", "a row of state.db: generated, at the parser")
@examples(250)
@given(
    keys=st.dictionaries(
        st.sampled_from(sorted(RECORD)), VALUES | PARTS | st.lists(PARTS, max_size=2), min_size=1, max_size=2
    ),
    function=TEXTS,
)
def test_any_row_is_an_attachment_or_cannot_be_read(keys: dict[str, Any], function: str, tried: Tried) -> None:
    tried()
    row = ("net", "c", "net1", function, json.dumps(RECORD | keys))
    try:
        found = state._attachment(row)
    except (LookupError, OverflowError, TypeError, ValueError):
        return
    # What was read can be written, and what goes to the kernel has a form for it.
    again = state._attachment(("net", "c", "net1", function, state._record(found)))
    assert state._record(again) == state._record(found)
    for netdev in (found.netdev, found.borrowed):
        if netdev:
            links: Any = scripted(link.Links, acknowledged())
            links.set(1, name=netdev.name, mac=netdev.mac, mtu=netdev.mtu, alias=netdev.alias, up=netdev.up)
    for device in found.rdma:
        assert netlink.text(1, device.name)


@pytest.mark.fault("hostile pod", "the alias of a netdev: generated, at the parser")
@examples(250)
@given(
    pieces=st.lists(
        TEXTS | st.sampled_from([" ", "=", ",", "name", "mac", "mtu", "up", "rdma", "9" * 5, "rdma-cni "]), max_size=12
    )
)
def test_any_alias_is_a_mark_of_names_and_numbers_or_none(pieces: list[str], tried: Tried) -> None:
    tried()
    alias = ("rdma-cni " + "".join(pieces)).encode(errors="surrogatepass")[:255]
    netdev = link.Link(bytes(16) + netlink.attribute(20, alias))
    found = home.read_mark(netdev)
    if found is None:
        return
    record, names = found
    for name in (record.name, *names):
        assert not set(name) & set("/\0\n\x1b% ")
        assert name not in (".", "..")
    assert 0 <= record.mtu <= 99999
