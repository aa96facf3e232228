"""Netlink replies that no kernel sends, at the parser: each ends, with an answer or an error."""

import struct
from collections.abc import Callable, Iterator

import pytest
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from record import Tried

from rdma_cni import link, netlink, rdma
from rdma_cni.cni.errors import CniError

NOOP, ERROR, DONE = 1, 2, 3
MULTI, ACK_TLVS = 2, 0x200


class NothingMoreError(CniError):
    """Asked for one datagram more than there are: a kernel would let it wait until its time was over."""

    def __init__(self) -> None:
        super().__init__(0, "nothing more is sent")


def scripted(kind: type[netlink.Socket], datagrams: Iterator[bytes]) -> netlink.Socket:
    """A socket at whose other end is not the kernel but a script."""

    class Unconnected:
        def send(self, data: bytes) -> int:
            return len(data)

        def recv(self, size: int) -> bytes:
            datagram = next(datagrams, None)
            if datagram is None:
                raise NothingMoreError
            return datagram[:size]

    found = object.__new__(kind)
    found._socket = Unconnected()  # type: ignore[assignment]
    found._sequence = 0
    return found


def message(kind: int, body: bytes, *, flags: int = 0, sequence: int = 1, size: int | None = None) -> bytes:
    length = 16 + len(body) if size is None else size
    return struct.pack("=IHHII", length, kind, flags, sequence, 0) + body + bytes(-len(body) % 4)


DONE_MESSAGE = message(DONE, bytes(4), flags=MULTI)

# Each question that the plugin has for the kernel.
QUESTIONS: list[tuple[type[netlink.Socket], Callable[..., object]]] = [
    (link.Links, lambda links: links.get("net1")),
    (link.Links, lambda links: links.all()),
    (link.Links, lambda links: links.virtual_function_macs()),
    (link.Links, lambda links: links.addresses(1)),
    (link.Links, lambda links: links.routes(1)),
    (link.Links, lambda links: links.set(1, up=True)),
    (link.Links, lambda links: links.add_address(1, "10.0.0.1/8")),
    (rdma.Rdma, lambda devices: devices.devices()),
    (rdma.Rdma, lambda devices: devices.exclusive()),
    (rdma.Rdma, lambda devices: devices.netdevs(1)),
    (rdma.Rdma, lambda devices: devices.rename(1, "x")),
]


def ask_all(datagrams: list[bytes]) -> None:
    """Put each question to the script: an answer or an error of ours, and nothing else."""
    for kind, question in QUESTIONS:
        try:
            question(scripted(kind, iter(datagrams)))
        except CniError as error:
            assert error.message  # noqa: PT017 - it may also succeed


# Attributes that are none: of every length that there may be, and types that are looked for.
ATTRIBUTES = st.lists(
    st.one_of(
        st.builds(netlink.attribute, st.sampled_from([1, 2, 3, 4, 6, 10, 15, 20, 22, 50, 52, 54, 56, 66]), st.binary()),
        st.builds(
            lambda size, kind, rest: struct.pack("=HH", size, kind) + rest,
            st.integers(0, 70),
            st.integers(0, 70),
            st.binary(max_size=40),
        ),
    ),
    max_size=6,
).map(b"".join)
HEADS = st.one_of(
    st.binary(max_size=16),
    st.builds(
        lambda family, length, kind: struct.pack("=BBBBBBBBI", family, length, 0, 0, 0, 0, 0, kind, 1),
        st.sampled_from([0, 2, 10, 255]),
        st.integers(0, 255),
        st.sampled_from([0, 1, 255]),
    ),
    # An address of interface 1.
    st.builds(
        lambda family, length: struct.pack("=BBBBI", family, length, 0, 0, 1),
        st.sampled_from([2, 10]),
        st.integers(0, 255),
    ),
)
MESSAGES = st.builds(
    message,
    st.sampled_from([0, NOOP, ERROR, DONE, 4, 16, 20, 24, 5121]),
    st.one_of(
        st.builds(bytes.__add__, HEADS, ATTRIBUTES),
        st.builds(
            lambda code, rest: struct.pack("=i", code) + rest,
            st.integers(-(1 << 31), (1 << 31) - 1),
            st.binary(max_size=60),
        ),
    ),
    flags=st.sampled_from([0, MULTI, 0x10, ACK_TLVS, 0x100 | ACK_TLVS]),
    sequence=st.sampled_from([1, 1, 1, 0, 2]),
    size=st.one_of(st.none(), st.none(), st.integers(0, 80), st.just(0xFFFFFFFF)),
)
DATAGRAMS = st.lists(MESSAGES, max_size=4).map(b"".join)


@pytest.mark.fault("netlink", "a reply with wrong lengths, types, codes or fields")
@examples(400)
@given(datagrams=st.lists(DATAGRAMS, max_size=4), done=st.booleans())
def test_any_reply_is_an_answer_or_an_error(datagrams: list[bytes], done: bool, tried: Tried) -> None:
    tried()
    ask_all([*datagrams, DONE_MESSAGE] if done else datagrams)


def whole_answers() -> list[bytes]:
    """What the kernel may well answer to the questions, in one datagram each."""
    attribute = netlink.attribute
    netdev = struct.pack("=BxHiII", 0, 1, 1, 1, 0) + attribute(3, b"net1\0") + attribute(1, bytes(6))
    netdev += netlink.nested(52, netlink.text(53, "another")) + netlink.text(56, "0000:03:00.2")
    vf_mac = struct.pack("=I", 0) + bytes(32)
    netdev += netlink.nested(22, netlink.nested(1, attribute(1, vf_mac)))
    address = struct.pack("=BBBBI", 2, 8, 0, 0, 1) + attribute(2, bytes(4)) + attribute(8, bytes(4))
    route = struct.pack("=BBBBBBBBI", 2, 8, 0, 0, 254, 0, 0, 1, 0) + attribute(1, bytes(4)) + attribute(4, b"\1\0\0\0")
    route += attribute(5, bytes(4))
    device = attribute(1, bytes(4)) + netlink.text(2, "mlx5_0") + attribute(6, bytes(8)) + attribute(50, bytes(4))
    device += attribute(66, b"\0")
    refusal = struct.pack("=i", -22) + message(16, b"")[:16] + netlink.text(1, "no such thing")
    answers = [
        message(kind, body, flags=MULTI) + DONE_MESSAGE
        for kind, body in ((16, netdev), (20, address), (24, route), (5121, device))
    ]
    return [*answers, message(ERROR, refusal, flags=0x100 | ACK_TLVS), message(ERROR, bytes(20))]


@pytest.mark.fault("netlink", "a reply that is cut short, at every byte")
def test_a_reply_that_is_cut_short_anywhere_is_an_error(tried: Tried) -> None:
    for answer in whole_answers():
        for end in range(len(answer)):
            ask_all([answer[:end]])
            tried()


@pytest.mark.fault("netlink", "a reply of which one byte is another, at every byte")
def test_a_reply_with_one_wrong_byte_is_an_answer_or_an_error(tried: Tried) -> None:
    for answer in whole_answers():
        for place in range(len(answer)):
            for value in (0, 1, 0x7F, 0x80, 0xFF):
                ask_all([answer[:place] + bytes([value]) + answer[place + 1 :]])
                tried()


@pytest.mark.fault("netlink", "a reply without end")
@pytest.mark.parametrize("body", [b"", bytes(12), bytes(100)])
@pytest.mark.parametrize("sequence", [1, 7], ids=["its own", "another's"])
def test_a_multipart_reply_without_end_is_an_error(
    body: bytes, sequence: int, tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netlink, "_MAX_ANSWER", 1 << 20)
    datagram = message(16, body, flags=MULTI, sequence=sequence) * 100

    def endless() -> Iterator[bytes]:
        while True:
            yield datagram

    for kind, question in QUESTIONS:
        with pytest.raises(netlink.MalformedError, match="that has no end"):
            question(scripted(kind, endless()))
        tried()


def test_a_dump_that_changes_all_the_time_is_given_up() -> None:
    def changing() -> Iterator[bytes]:
        for sequence in range(1, 1000):
            yield message(DONE, bytes(4), flags=MULTI | 0x10, sequence=sequence)

    with pytest.raises(netlink.NetlinkError) as caught:
        scripted(link.Links, changing()).request(18, netlink.NLM_F_DUMP, b"")
    assert "interrupted" in str(caught.value)
    assert caught.value.may_pass


@pytest.mark.parametrize("code", [1, 4096, -4096, -(1 << 31), (1 << 31) - 1])
@pytest.mark.parametrize("kind", [ERROR, DONE])
def test_an_error_number_that_there_is_not_is_an_error(kind: int, code: int) -> None:
    reply = message(kind, struct.pack("=i", code) + bytes(16))
    with pytest.raises(netlink.MalformedError, match="the error number"):
        scripted(link.Links, iter([reply])).request(18, 0, b"")
