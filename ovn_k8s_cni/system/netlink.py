"""rtnetlink, the handful of messages that an attachment needs (rtnetlink(7)).

Encoded by hand: pyroute2's message classes cost more to import than the whole rest of an ADD (design decision 3); the
tests compare every message with pyroute2's, byte for byte. Builders return a request without its header; `Rtnetlink`
sends, and reads until the kernel has acknowledged. Indices are interface indices, MACs and addresses raw bytes.
"""

from __future__ import annotations

import errno
import posix
from _socket import socket as _Socket
from _struct import Struct, unpack_from

from ovn_k8s_cni.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

_AF_INET, _AF_NETLINK, _AF_BRIDGE = 2, 16, 7
_SOCK_RAW_CLOEXEC = 3 | 0o2000000
_SOL_SOCKET, _SO_RCVTIMEO = 1, 20
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK = 270, 10, 11, 12

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_GETADDR = 20, 22
RTM_NEWROUTE, RTM_GETROUTE = 24, 26
RTM_GETVLAN = 114

REQUEST, ACK, DUMP, EXCL, CREATE = 0x1, 0x4, 0x300, 0x200, 0x400
_NLM_F_DUMP_INTR, _NLM_F_CAPPED, _NLM_F_ACK_TLVS = 0x10, 0x100, 0x200
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLMSGERR_ATTR_MSG = 1

_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER = 1, 3, 4, 5, 10
_IFLA_OPERSTATE, _IFLA_LINKINFO, _IFLA_IFALIAS, _IFLA_AF_SPEC = 16, 18, 20, 26
_IFLA_NET_NS_FD, _IFLA_EXT_MASK = 28, 29
_INFO_KIND, _INFO_DATA, _INFO_SLAVE_KIND, _INFO_SLAVE_DATA = 1, 2, 4, 5
_VETH_INFO_PEER, _BR_VLAN_FILTERING, _BRPORT_STATE, _BRIDGE_VLAN_INFO = 1, 7, 1, 2
_RTEXT_FILTER_SKIP_STATS = 8
_BRIDGE_VLANDB_ENTRY, _BRIDGE_VLANDB_ENTRY_INFO = 1, 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST = 1, 2, 4
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 4, 5, 6

IFF_UP, IFF_LOWER_UP = 0x1, 0x10000
IF_OPER_UP = 6
BR_STATE_FORWARDING = 3
PVID, UNTAGGED = 2, 4
SCOPE_UNIVERSE, SCOPE_LINK = 0, 253
RTNH_F_ONLINK = 4
_TABLE_MAIN, _PROTO_DHCP, _TYPE_UNICAST = 254, 16, 1

_HEADER = Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_IFINFO = Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_IFADDR = Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
_RTMSG = Struct("=8BI")  # rtmsg: family, dst, src, tos, table, protocol, scope, type, flags
_BR_VLAN = Struct("=BBHI")  # br_vlan_msg: family, reserved, reserved, index
_ATTRIBUTE = Struct("=HH")  # nlattr: length, type
_U16, _U32 = Struct("=H"), Struct("=I")
_TIMEVAL = Struct("@ll")
_VLAN_INFO = Struct("=HH")  # bridge_vlan_info: flags, vid

_TIMEOUT = 20  # seconds; the kernel answers at once unless somebody sits on the rtnl lock


class Message(Record):
    """A request: message type, flags besides REQUEST and ACK, body, and words for an error."""

    kind: int
    flags: int
    body: bytes
    what: str


class Link(Record):
    """An interface as the kernel tells it; `peer` is the other end's index, which may be in another namespace."""

    index: int
    name: str
    flags: int
    mac: bytes
    mtu: int
    operstate: int
    master: int
    peer: int
    alias: str
    kind: str
    port_state: int | None
    vlan_filtering: bool

    def up(self) -> bool:
        """Tell whether it is set up and the kernel lets it send."""
        return bool(self.flags & IFF_UP) and self.operstate == IF_OPER_UP


class Address(Record):
    """An IPv4 address of an interface."""

    index: int
    address: bytes
    prefix: int


class Route(Record):
    """An IPv4 unicast route of the main table; `gateway` is b"" for an on-link one, `oif` 0 for a multipath one."""

    destination: bytes
    prefix: int
    gateway: bytes
    oif: int
    metric: int


class NetlinkError(OSError):
    """The kernel refused; `strerror` says what was asked, the reason, and the kernel's extended message if any."""


def attribute(kind: int, value: bytes) -> bytes:
    """Return one attribute, padded to 4 bytes."""
    length = 4 + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode("utf-8", "surrogateescape") + b"\0")


def _u32(kind: int, value: int) -> bytes:
    return attribute(kind, _U32.pack(value))


def new_veth(name: str, peer_name: str, peer_netns: int, mac: bytes | None, mtu: int) -> Message:
    """Make a veth pair, both ends down: `name` here, `peer_name` with `mac` (or the kernel's) in `peer_netns` (fd)."""
    peer = _IFINFO.pack(0, 0, 0, 0, 0) + _text(_IFLA_IFNAME, peer_name) + _u32(_IFLA_MTU, mtu)
    if mac is not None:
        peer += attribute(_IFLA_ADDRESS, mac)
    peer += _u32(_IFLA_NET_NS_FD, peer_netns)
    info = _text(_INFO_KIND, "veth") + attribute(_INFO_DATA, attribute(_VETH_INFO_PEER, peer))
    body = _IFINFO.pack(0, 0, 0, 0, 0) + _text(_IFLA_IFNAME, name) + _u32(_IFLA_MTU, mtu)
    body += attribute(_IFLA_LINKINFO, info)
    return Message(RTM_NEWLINK, CREATE | EXCL, body, f"making the veth pair {name} and {peer_name}")


def set_alias(name: str, alias: str) -> Message:
    """Set the alias (at most 255 bytes) of the interface `name`."""
    body = (
        _IFINFO.pack(0, 0, 0, 0, 0)
        + _text(_IFLA_IFNAME, name)
        + attribute(_IFLA_IFALIAS, alias.encode("utf-8", "surrogateescape"))
    )
    return Message(RTM_SETLINK, 0, body, f"setting the alias of {name}")


def set_up(index: int, name: str) -> Message:
    """Set an interface up."""
    return Message(RTM_SETLINK, 0, _IFINFO.pack(0, 0, index, IFF_UP, IFF_UP), f"setting {name} up")


def set_mac(index: int, mac: bytes, name: str) -> Message:
    """Set the MAC of an interface."""
    return Message(
        RTM_SETLINK, 0, _IFINFO.pack(0, 0, index, 0, 0) + attribute(_IFLA_ADDRESS, mac), f"setting the MAC of {name}"
    )


def set_master(index: int, bridge: int, name: str, bridge_name: str) -> Message:
    """Make an interface a port of `bridge` (an index)."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + _u32(_IFLA_MASTER, bridge)
    return Message(RTM_SETLINK, 0, body, f"making {name} a port of {bridge_name}")


def delete_link(index: int, name: str) -> Message:
    """Delete an interface (a veth goes with its peer)."""
    return Message(RTM_DELLINK, 0, _IFINFO.pack(0, 0, index, 0, 0), f"deleting {name}")


def _vlan(kind: int, index: int, vid: int, flags: int, what: str) -> Message:
    info = attribute(_BRIDGE_VLAN_INFO, _VLAN_INFO.pack(flags, vid))
    return Message(kind, 0, _IFINFO.pack(_AF_BRIDGE, 0, index, 0, 0) + attribute(_IFLA_AF_SPEC, info), what)


def add_access_vlan(index: int, vid: int, name: str) -> Message:
    """Let a bridge port send and receive `vid` untagged."""
    return _vlan(RTM_SETLINK, index, vid, PVID | UNTAGGED, f"giving port {name} the VLAN {vid}")


def delete_vlan(index: int, vid: int, name: str) -> Message:
    """Take `vid` from a bridge port."""
    return _vlan(RTM_DELLINK, index, vid, 0, f"taking the VLAN {vid} from port {name}")


def add_address(index: int, address: bytes, prefix: int, broadcast: bytes | None, what: str) -> Message:
    """Give an interface an IPv4 address."""
    body = _IFADDR.pack(_AF_INET, prefix, 0, SCOPE_UNIVERSE, index)
    body += attribute(_IFA_LOCAL, address) + attribute(_IFA_ADDRESS, address)
    if broadcast is not None:
        body += attribute(_IFA_BROADCAST, broadcast)
    return Message(RTM_NEWADDR, CREATE | EXCL, body, what)


def add_route(
    index: int, destination: bytes, prefix: int, gateway: bytes | None, *, metric: int, onlink: bool, what: str
) -> Message:
    """Add an IPv4 route over an interface; no `gateway` means on-link (scope link)."""
    scope = SCOPE_UNIVERSE if gateway else SCOPE_LINK
    flags = RTNH_F_ONLINK if onlink and gateway else 0
    body = _RTMSG.pack(_AF_INET, prefix, 0, 0, _TABLE_MAIN, _PROTO_DHCP, scope, _TYPE_UNICAST, flags)
    if prefix:
        body += attribute(_RTA_DST, destination)
    if gateway:
        body += attribute(_RTA_GATEWAY, gateway)
    body += _u32(_RTA_OIF, index)
    if metric:
        body += _u32(_RTA_PRIORITY, metric)
    return Message(RTM_NEWROUTE, CREATE | EXCL, body, what)


def get_link(name: str = "", index: int = 0) -> Message:
    """Ask for one interface, by name or by index."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + _u32(_IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
    if name:
        body += _text(_IFLA_IFNAME, name)
    return Message(RTM_GETLINK, 0, body, f"looking up {name or f'interface {index}'}")


_GET_LINKS = Message(RTM_GETLINK, DUMP, _IFINFO.pack(0, 0, 0, 0, 0) + _u32(_IFLA_EXT_MASK, 8), "listing interfaces")
_GET_ROUTES = Message(
    RTM_GETROUTE,
    DUMP,
    _RTMSG.pack(_AF_INET, 0, 0, 0, _TABLE_MAIN, 0, 0, _TYPE_UNICAST, 0),
    "listing routes",
)


def attributes(data: bytes, offset: int) -> dict[int, bytes]:
    """Return the attributes of `data` from `offset` on, by type; of repeated ones the last."""
    return dict(_each_attribute(data, offset))


def _each_attribute(data: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    while offset + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _number(found: dict[int, bytes], kind: int) -> int:
    value = found.get(kind, b"")
    return int.from_bytes(value, "little") if value else 0


def _string(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "surrogateescape")


def parse_link(body: bytes) -> Link:
    """Return the Link in the body of an RTM_NEWLINK."""
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    found = attributes(body, _IFINFO.size)
    info = attributes(found.get(_IFLA_LINKINFO, b""), 0)
    slave = (
        attributes(info.get(_INFO_SLAVE_DATA, b""), 0) if _string(info.get(_INFO_SLAVE_KIND, b"")) == "bridge" else {}
    )
    data = attributes(info.get(_INFO_DATA, b""), 0)
    kind = _string(info.get(_INFO_KIND, b""))
    return Link(
        index=index,
        name=_string(found.get(_IFLA_IFNAME, b"")),
        flags=flags,
        mac=found.get(_IFLA_ADDRESS, b""),
        mtu=_number(found, _IFLA_MTU),
        operstate=_number(found, _IFLA_OPERSTATE),
        master=_number(found, _IFLA_MASTER),
        peer=_number(found, _IFLA_LINK),
        alias=_string(found.get(_IFLA_IFALIAS, b"")),
        kind=kind,
        port_state=slave[_BRPORT_STATE][0] if _BRPORT_STATE in slave else None,
        vlan_filtering=kind == "bridge" and _number(data, _BR_VLAN_FILTERING) == 1,
    )


class Rtnetlink:
    """A synchronous rtnetlink socket of the namespace it was made in."""

    def __init__(self) -> None:
        self._socket = _Socket(_AF_NETLINK, _SOCK_RAW_CLOEXEC, 0)
        for option in (_NETLINK_EXT_ACK, _NETLINK_CAP_ACK, _NETLINK_GET_STRICT_CHK):
            self._socket.setsockopt(_SOL_NETLINK, option, 1)
        # The kernel's own timeout: Python's would cost a poll before every call.
        self._socket.setsockopt(_SOL_SOCKET, _SO_RCVTIMEO, _TIMEVAL.pack(_TIMEOUT, 0))
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def do(self, *messages: Message) -> list[list[bytes]]:
        """Send `messages` in one system call and return the bodies of each one's answers; raise NetlinkError.

        The kernel works through all of them before the call returns, so that a kill cannot come in between; a refused
        one does not keep the later ones from being done, and the first refusal is raised.
        """
        first = self._sequence + 1
        self._socket.send(b"".join(self._with_header(message) for message in messages))
        answers: list[list[bytes]] = []
        refusal: NetlinkError | None = None
        for sequence, message in enumerate(messages, first):
            try:
                answers.append(self._read_answer(sequence, message))
            except NetlinkError as problem:
                refusal = refusal or problem
        if refusal is not None:
            raise refusal
        return answers

    def _with_header(self, message: Message) -> bytes:
        self._sequence += 1
        # A question is answered or refused, and needs no acknowledgement besides.
        flags = REQUEST | message.flags | (0 if message.kind == RTM_GETLINK else ACK)
        header = _HEADER.pack(_HEADER.size + len(message.body), message.kind, flags, self._sequence, 0)
        return header + message.body + bytes(-len(message.body) % 4)

    def _read_answer(self, sequence: int, message: Message) -> list[bytes]:
        bodies: list[bytes] = []
        changed = 0
        while True:
            for kind, flags, number, body in self._receive():
                if number != sequence:
                    continue
                # Read to its end all the same: until then the kernel refuses another dump.
                changed |= flags & _NLM_F_DUMP_INTR
                if kind == _NLMSG_DONE:
                    if changed:
                        raise NetlinkError(errno.EAGAIN, f"{message.what}: the list changed while it was read")
                    return bodies
                if kind != _NLMSG_ERROR:
                    bodies.append(body)
                    if message.kind == RTM_GETLINK and message.flags & DUMP != DUMP:
                        return bodies
                elif status := -unpack_from("=i", body)[0]:
                    raise NetlinkError(status, _explain(message.what, status, flags, body))
                elif message.flags & DUMP != DUMP:
                    return bodies

    def _receive(self) -> Iterator[tuple[int, int, int, bytes]]:
        if not self._pending:
            try:
                self._pending = self._socket.recv(1 << 18)
            except BlockingIOError:
                raise NetlinkError(errno.ETIMEDOUT, f"the kernel did not answer within {_TIMEOUT} s") from None
        while self._pending:
            length, kind, flags, number, _ = _HEADER.unpack_from(self._pending)
            body = self._pending[_HEADER.size : length]
            self._pending = self._pending[(length + 3) & ~3 :]
            yield kind, flags, number, body

    _pending = b""

    def link(self, name: str = "", index: int = 0) -> Link | None:
        """Return the interface with that name or index, None when there is none."""
        try:
            answer = self.do(get_link(name, index))
        except NetlinkError as problem:
            if problem.errno == errno.ENODEV:
                return None
            raise
        return parse_link(answer[0][0])

    def links(self) -> list[Link]:
        """Return all interfaces of the namespace: its cost grows with their number."""
        return [parse_link(body) for body in self._dump(_GET_LINKS)]

    def addresses(self, index: int) -> list[Address]:
        """Return the IPv4 addresses of an interface."""
        message = Message(RTM_GETADDR, DUMP, _IFADDR.pack(_AF_INET, 0, 0, 0, index), "listing addresses")
        found = []
        for body in self._dump(message):
            _, prefix, _, _, owner = _IFADDR.unpack_from(body)
            values = attributes(body, _IFADDR.size)
            if owner == index:
                found.append(Address(owner, values.get(_IFA_LOCAL, values.get(_IFA_ADDRESS, b"")), prefix))
        return found

    def routes(self) -> list[Route]:
        """Return the IPv4 unicast routes of the main table."""
        found = []
        for body in self._dump(_GET_ROUTES):
            prefix = body[1]
            values = attributes(body, _RTMSG.size)
            found.append(
                Route(
                    destination=values.get(_RTA_DST, bytes(4)),
                    prefix=prefix,
                    gateway=values.get(_RTA_GATEWAY, b""),
                    oif=_number(values, _RTA_OIF),
                    metric=_number(values, _RTA_PRIORITY),
                )
            )
        return found

    def port_vlans(self, index: int) -> dict[int, int]:
        """Return the VLANs of a bridge port: VLAN ID to flags (PVID, UNTAGGED). Kernel 5.6 and newer."""
        message = Message(RTM_GETVLAN, DUMP, _BR_VLAN.pack(_AF_BRIDGE, 0, 0, index), "listing a port's VLANs")
        vlans = {}
        for body in self._dump(message):
            for kind, entry in _each_attribute(body, _BR_VLAN.size):
                if kind == _BRIDGE_VLANDB_ENTRY:
                    flags, vid = _VLAN_INFO.unpack_from(attributes(entry, 0)[_BRIDGE_VLANDB_ENTRY_INFO])
                    vlans[vid] = flags
        return vlans

    def _dump(self, message: Message) -> list[bytes]:
        for _ in range(9):
            try:
                return self.do(message)[0]
            except NetlinkError as problem:
                if problem.errno != errno.EAGAIN:
                    raise
        return self.do(message)[0]


def _explain(what: str, status: int, flags: int, body: bytes) -> str:
    reason = posix.strerror(status)
    if flags & _NLM_F_ACK_TLVS:
        # nlmsgerr: the status, then the request's header, with its body too unless the kernel capped it.
        echoed = unpack_from("=I", body, 4)[0] if not flags & _NLM_F_CAPPED else _HEADER.size
        extended = attributes(body, 4 + ((echoed + 3) & ~3)).get(_NLMSGERR_ATTR_MSG)
        if extended:
            reason += f" ({_string(extended)})"
    return f"{what}: {reason}"
