"""Hostile input through the frozen executables: always one CNI error object or a result, and an end.

They run in a mount and a network namespace of their own, with a /run that is theirs.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fuzzing import corpus, examples
from hypothesis import given
from hypothesis import strategies as st
from record import Tried

ROOT = Path(__file__).parents[2]
BUNDLE = Path(os.environ.get("BUNDLE", ROOT / "dist" / "rdma-cni"))
PROGRAMS = ("rdma", "node-subnet")
COMMANDS = ("ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION")
LOOKING = ("ADD", "DEL", "GC")
"""Commands that between them look at all that there is to see in an input."""
HANG = 30
"""Seconds after which a call hangs; it takes some hundredths of one."""
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (error|warning|info|debug) ")

CONF: dict[str, Any] = {"cniVersion": "1.1.0", "name": "net", "type": "rdma", "deviceID": "0000:ff:1f.7"}
POOL: dict[str, Any] = {"subnet": "10.56.0.0/16", "nodePrefix": 24}
SUBNET = CONF | {"ipam": {"type": "node-subnet", "nodeName": "n", "nodes": {"n": 3}, "pools": [POOL]}}
DELEGATING = CONF | {"ipam": {"type": "fake"}}

# An IPAM plugin that answers what it is told to; a node's /run beside it.
_APART = """
mount -t tmpfs tmpfs /run
touch /run/pod
unshare --net=/run/pod true
mkfifo /run/fifo
ln -s /nowhere /run/link
ln -s loop /run/loop
mkdir /run/plugins
printf '#!/bin/sh\\ncat /run/answer\\nexit $(cat /run/status)\\n' > /run/plugins/fake
chmod 755 /run/plugins/fake
echo ready
exec cat
"""


class Node:
    """Namespaces in which the executables are run."""

    def __init__(self) -> None:
        assert (BUNDLE / "rdma").is_file(), f"{BUNDLE} is missing: run `make bundle`"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "sh", "-ec", _APART], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout
        assert self._holder.stdout.readline() == b"ready\n"
        self._inside = ("nsenter", f"--target={self._holder.pid}", "--mount", "--net", "--")
        self.run_dir = Path(f"/proc/{self._holder.pid}/root/run")
        self.node_file = self.run_dir / "rdma-cni" / "node.json"

    def close(self) -> None:
        self._holder.communicate(timeout=HANG)

    def write_node_file(self, content: bytes) -> None:
        self.node_file.parent.mkdir(mode=0o700, exist_ok=True)
        self.node_file.write_bytes(content)

    def call(
        self, program: str, command: str, stdin: bytes, environment: dict[bytes, bytes] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Run a program; its status and what it answered, after all that must hold of any answer."""
        variables = {
            b"PATH": os.environb[b"PATH"],
            b"CNI_COMMAND": command.encode(),
            b"CNI_CONTAINERID": b"container1",
            b"CNI_NETNS": b"/run/pod",
            b"CNI_IFNAME": b"net1",
            b"CNI_PATH": b"/run/plugins",
            **(environment or {}),
        }
        done = subprocess.run(
            [*self._inside, BUNDLE / program],
            input=stdin,
            env=variables,
            capture_output=True,
            timeout=HANG,
            check=False,
        )
        told = (program, command, stdin[:300], environment, done.returncode, done.stdout[:600], done.stderr[-600:])
        assert done.returncode in (0, 1), told
        assert b"Traceback" not in done.stderr, told
        if variables[b"CNI_COMMAND"]:
            lines = done.stderr.decode().splitlines()
            assert all(LOG_LINE.match(line) and line.isprintable() for line in lines), told
        if done.returncode == 0 and not done.stdout:
            return 0, {}
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict), told
        if done.returncode:
            assert isinstance(answer["code"], int), told
            assert answer["code"] != 199, told
            assert answer["msg"], told
            assert answer["cniVersion"], told
            assert len(done.stdout) < 1 << 16, told
        return done.returncode, answer


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    found = Node()
    yield found
    found.close()


def with_text(config: dict[str, Any], key: str, text: bytes) -> bytes:
    """A configuration in which a key's value is a text, JSON or not."""
    return json.dumps(config).encode()[:-1] + b', "' + key.encode() + b'": ' + text + b"}"


# The corpus


def all_of(calls: Iterable[tuple[object, ...]], call: Callable[..., object], tried: Tried) -> None:
    """Make the calls, some at once: what they wait for is mostly one another's start."""
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda arguments: call(*arguments), list(calls)):
            tried()


@pytest.mark.fault("input", "stdin: the corpus")
@pytest.mark.parametrize("program", PROGRAMS)
def test_stdin_from_the_corpus(program: str, node: Node, tried: Tried) -> None:
    calls = [(program, command, path.read_bytes()) for path in corpus("stdin") for command in LOOKING]
    all_of(calls, node.call, tried)


@pytest.mark.fault("input", "the environment: the corpus, a variable at a time")
@pytest.mark.parametrize("program", PROGRAMS)
def test_variables_from_the_corpus(program: str, node: Node, tried: Tried) -> None:
    pairs = [path.read_bytes().partition(b"=")[::2] for path in corpus("environment")]
    calls = [(program, command, text_of(SUBNET), {name: value}) for name, value in pairs for command in LOOKING]
    all_of(calls, node.call, tried)


@pytest.mark.fault("input", "prevResult: the corpus")
@pytest.mark.parametrize("program", PROGRAMS)
def test_previous_results_from_the_corpus(program: str, node: Node, tried: Tried) -> None:
    unnamed = {key: value for key, value in SUBNET.items() if key != "deviceID"}
    texts = [with_text(unnamed, "prevResult", path.read_bytes()) for path in corpus("prevresult")]
    all_of([(program, command, text) for text in texts for command in ("CHECK", "DEL")], node.call, tried)


@pytest.mark.fault("input", "node.json: the corpus")
def test_node_files_from_the_corpus(node: Node, tried: Tried) -> None:
    config = text_of(CONF | {"ipam": {"type": "node-subnet", "pools": [POOL]}})
    for path in corpus("node_file"):
        node.write_node_file(path.read_bytes())
        node.call("node-subnet", "ADD", config)
        # What releases needs no node.
        assert node.call("node-subnet", "DEL", config) == (0, {})
        tried()
    node.node_file.unlink()


def answer_of_ipam(node: Node, answer: bytes) -> None:
    """Have the IPAM plugin answer that, well and ill, to a DEL, and to the VERSION and GC of a GC."""
    (node.run_dir / "answer").write_bytes(answer)
    for command, ended in (("DEL", "0"), ("DEL", "1"), ("GC", "0")):
        (node.run_dir / "status").write_text(ended)
        status, told = node.call("rdma", command, text_of(DELEGATING))
        if ended == "1":
            assert status == 1, told


@pytest.mark.fault("input", "an IPAM plugin's answer: the corpus")
def test_answers_of_an_ipam_plugin_from_the_corpus(node: Node, tried: Tried) -> None:
    for path in corpus("ipam_answer"):
        answer_of_ipam(node, path.read_bytes())
        tried()


# Generated

TEXTS = st.sampled_from(
    [
        *(
            "",
            "net1",
            "x" * 300,
            "../../etc",
            ".",
            "a\0b",
            "\n",
            "\x1b[31m",
            "%s%n",
            "\ud800",
            "é",
            "10.56.3.9",
            "::/0",
        ),
        *("10.56.0.0/16", "0.0.0.0/0", "fe80::1/64", "first", "flat", "debug", "fake", "node-subnet", "lo", "1.1.0"),
        *("0.3.0", "02:00:00:00:00:01", "0000:ff:1f.7", "mlx5_core.sf.99999"),
        *("/run/log", "/run/link", "/run/fifo", "/run/no/dir", "/run"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 3, 24, 128, 1500, 65536, 2**31, 2**32, 2**64, 10**40, 0.5, 1e300])
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def changed(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these keys, with anything as their values."""
    return st.dictionaries(st.sampled_from(keys), VALUES, max_size=4)


TOP = changed(
    "cniVersion", "name", "type", "deviceID", "pciBusID", "pf", "ifName", "ipam", "mac", "mtu", "args", "runtimeConfig",
    "logLevel", "logFile", "prevResult", "cni.dev/valid-attachments", "capabilities", "dns",
)  # fmt: skip
SECTION = changed("type", "nodeName", "nodes", "pools", "routes", "poolRoute", "dns", "pool", "x")
POOLS = st.lists(
    st.builds(lambda more: POOL | more, changed("subnet", "nodePrefix", "mode", "gateway", "exclude", "poolRoute")),
    max_size=2,
)
INTERFACES = changed("name", "mac", "sandbox", "pciID", "mtu", "socketPath")
IPS = changed("address", "gateway", "interface", "version")
ROUTES = changed("dst", "gw", "mtu", "advmss", "priority", "table", "scope")
RESULTS = st.fixed_dictionaries(
    {},
    optional={
        "cniVersion": VALUES,
        "interfaces": st.lists(
            st.builds(lambda more: {"name": "net1", "sandbox": "/run/pod"} | more, INTERFACES), max_size=2
        )
        | VALUES,
        "ips": st.lists(st.builds(lambda more: {"address": "10.0.0.1/8"} | more, IPS), max_size=2) | VALUES,
        "routes": st.lists(st.builds(lambda more: {"dst": "10.0.0.0/8"} | more, ROUTES), max_size=2) | VALUES,
        "dns": VALUES,
    },
)


def text_of(value: object) -> bytes:
    return json.dumps(value).encode()


def damaged(texts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Texts of which a part is cut out, and something else put in."""

    def cut(text: bytes, start: int, length: int, other: bytes) -> bytes:
        start %= len(text) + 1
        return text[:start] + other + text[start + length :]

    return st.builds(cut, texts, st.integers(0, 2000), st.integers(0, 20), st.binary(max_size=8))


def sometimes_damaged(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    texts = values.map(text_of)
    return texts | damaged(texts)


CONFIGURATIONS = sometimes_damaged(
    st.builds(lambda top: CONF | top, TOP)
    | st.builds(
        lambda section, pools, top: SUBNET | {"ipam": SUBNET["ipam"] | {"pools": pools} | section} | top,
        SECTION,
        POOLS,
        TOP,
    )
)


@pytest.mark.fault("input", "stdin: generated")
def test_stdin_that_is_generated(node: Node, tried: Tried) -> None:
    @examples(150)
    @given(st.sampled_from(PROGRAMS), st.sampled_from(COMMANDS), CONFIGURATIONS)
    def generated(program: str, command: str, stdin: bytes) -> None:
        node.call(program, command, stdin)
        tried()

    generated()


NAMES = ("CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "CNI_ARGS", "CNI_NETNS_OVERRIDE")
# No path but those below /run: to open a device may have consequences.
PIECES = st.sampled_from(
    [
        *(
            b"/run/",
            b"../",
            b"\xff",
            b"\n",
            b" ",
            b";",
            b"=",
            b":",
            b",",
            b"%s",
            b"K8S_POD_NAME=",
            b"IP=",
            b"10.56.3.9",
        ),
        *(b"ADD", b"DEL", b"a", b"x" * 300, b"\x1b[31m", "é".encode(), b"1", b"true", b"pod", b"plugins"),
    ]
)


@pytest.mark.fault("input", "the environment: generated, several variables at a time")
def test_variables_that_are_generated(node: Node, tried: Tried) -> None:
    values = st.lists(PIECES, max_size=5).map(b"".join)

    @examples(80)
    @given(
        st.sampled_from(PROGRAMS),
        st.sampled_from(COMMANDS),
        st.dictionaries(st.sampled_from([name.encode() for name in NAMES]), values, max_size=3),
    )
    def generated(program: str, command: str, variables: dict[bytes, bytes]) -> None:
        node.call(program, command, text_of(SUBNET), variables)
        tried()

    generated()


@pytest.mark.fault("input", "prevResult: generated")
def test_previous_results_that_are_generated(node: Node, tried: Tried) -> None:
    @examples(80)
    @given(
        st.sampled_from(PROGRAMS), st.sampled_from(["ADD", "CHECK", "DEL"]), st.booleans(), sometimes_damaged(RESULTS)
    )
    def generated(program: str, command: str, named: bool, previous: bytes) -> None:
        config = {key: value for key, value in SUBNET.items() if named or key != "deviceID"}
        node.call(program, command, with_text(config, "prevResult", previous))
        tried()

    generated()


@pytest.mark.fault("input", "node.json: generated")
def test_node_files_that_are_generated(node: Node, tried: Tried) -> None:
    config = text_of(CONF | {"ipam": {"type": "node-subnet", "pools": [POOL]}})
    subnets = st.lists(TEXTS | st.sampled_from(["10.56.3.0/24", "10.56.3.0/25"]), max_size=3)
    contents = sometimes_damaged(
        st.fixed_dictionaries({}, optional={"nodeName": VALUES, "subnets": subnets | VALUES}) | VALUES
    )

    @examples(60)
    @given(st.sampled_from(["ADD", "STATUS"]), contents)
    def generated(command: str, content: bytes) -> None:
        node.write_node_file(content)
        node.call("node-subnet", command, config)
        tried()

    generated()
    node.node_file.unlink()


@pytest.mark.fault("input", "an IPAM plugin's answer: generated")
def test_answers_of_an_ipam_plugin_that_are_generated(node: Node, tried: Tried) -> None:
    errors = st.fixed_dictionaries(
        {}, optional={"code": VALUES, "msg": VALUES, "details": VALUES, "cniVersion": VALUES}
    )
    versions = st.fixed_dictionaries({"supportedVersions": VALUES | st.just(["1.1.0"])})

    @examples(25)
    @given(sometimes_damaged(RESULTS | errors | versions | VALUES))
    def generated(answer: bytes) -> None:
        answer_of_ipam(node, answer)
        tried()

    generated()
