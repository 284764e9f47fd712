"""CHECK: what prevResult promises, compared with what the kernel has (CNI spec 1.1.0, section 2, CHECK)."""

from __future__ import annotations

from ovn_k8s_cni.cni import result as cni_result
from ovn_k8s_cni.cni.error import INVALID_CONFIG, CniError
from ovn_k8s_cni.datapath import veth
from ovn_k8s_cni.dhcp.message import server_id
from ovn_k8s_cni.system import ipv4
from ovn_k8s_cni.system.netlink import IFF_UP

# A router of 0.0.0.0 (RFC 3442) means that the destination is on the link.
_ON_LINK = ipv4.text(bytes(4))

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ovn_k8s_cni.cni.request import Request
    from ovn_k8s_cni.datapath import Datapath
    from ovn_k8s_cni.datapath.record import Attachment
    from ovn_k8s_cni.datapath.veth import Sandbox
    from ovn_k8s_cni.system.deadline import Deadline
    from ovn_k8s_cni.system.netlink import Link


def previous(request: Request) -> dict[str, Any]:
    """Return prevResult in the 1.1.0 shape; raise code 7 when it is missing."""
    raw = request.config.get("prevResult")
    if raw is None:
        raise CniError(INVALID_CONFIG, "CHECK needs prevResult in the network config", "the runtime has to pass it")
    return cni_result.parse(raw, "prevResult")


def differences(
    expected: dict[str, Any], request: Request, sandbox: Sandbox, host: Link | None, host_name: str, *, guest: bool
) -> list[str]:
    """Return in words what of `expected` is not so: links, addresses and routes of the interface we made.

    A virtual machine's launcher takes the interface over, renames it and gives its MAC to the guest (`guest`): then
    only the host side is compared.
    """
    ours = [i for i, item in enumerate(expected["interfaces"]) if _is_ours(item, request)]
    if len(ours) != 1:
        return [f"prevResult does not name the sandbox's interface {request.ifname} once"]
    found = _host_differences(host, host_name)
    if guest:
        return found
    pod = sandbox.rtnetlink.link(request.ifname)
    if pod is None:
        return [*found, f"the sandbox has no interface {request.ifname}"]
    if host is not None and veth.pod_end(sandbox, host, request.ifname) is None:
        found.append(f"{request.ifname} and {host_name} are not the ends of one veth pair")
    found += _link_differences(expected["interfaces"][ours[0]], pod)
    found += _address_differences(expected, ours[0], sandbox, pod)
    return found + _route_differences(expected, sandbox, pod)


def _is_ours(item: dict[str, Any], request: Request) -> bool:
    return item.get("name") == request.ifname and bool(item.get("sandbox"))


def _host_differences(host: Link | None, host_name: str) -> list[str]:
    if host is None:
        return [f"the node has no interface {host_name}"]
    return [] if host.flags & IFF_UP else [f"{host_name} is down"]


def _link_differences(item: dict[str, Any], pod: Link) -> list[str]:
    found = []
    if item.get("mac") and str(item["mac"]).lower() != pod.mac.hex(":"):
        found.append(f"{pod.name} has the MAC {pod.mac.hex(':')}, not {item['mac']}")
    if item.get("mtu") and item["mtu"] != pod.mtu:
        found.append(f"{pod.name} has the MTU {pod.mtu}, not {item['mtu']}")
    if not pod.flags & IFF_UP:
        found.append(f"{pod.name} is down")
    return found


def _address_differences(expected: dict[str, Any], ours: int, sandbox: Sandbox, pod: Link) -> list[str]:
    has = {f"{ipv4.text(a.address)}/{a.prefix}" for a in sandbox.rtnetlink.addresses(pod.index)}
    wanted = [str(ip.get("address")) for ip in expected["ips"] if ip.get("interface", ours) == ours]
    return [f"{pod.name} lacks the address {address}" for address in wanted if address not in has]


def _route_differences(expected: dict[str, Any], sandbox: Sandbox, pod: Link) -> list[str]:
    if not expected["routes"]:
        return []
    has = {
        (f"{ipv4.text(route.destination)}/{route.prefix}", ipv4.text(route.gateway) if route.gateway else "")
        for route in sandbox.rtnetlink.routes()
    }
    found = []
    for item in expected["routes"]:
        gateway = str(item.get("gw") or "")
        route = (str(item.get("dst")), "" if gateway == _ON_LINK else gateway)
        if route not in has:
            found.append(f"{pod.name} lacks the route {route[0]}{' via ' + route[1] if route[1] else ''}")
    return found


def readopt(
    attachment: Attachment,
    request: Request,
    ipam: dict[str, Any],
    sandbox: Sandbox,
    path: Datapath,
    deadline: Deadline,
) -> list[str]:
    """Have the daemon hold the lease again if it was restarted; return in words what is wrong with that.

    A daemon that has forgotten the attachment acquires the lease anew with the same client identifier; what it gets is
    compared with what the pod has, and remembered.
    """
    from ovn_k8s_cni.dhcp.frame import DHCP_ONLY
    from ovn_k8s_cni.ipam import delegate, exchange

    target = delegate.Target(request.container_id, request.netns, request.ifname)
    pod = sandbox.rtnetlink.link(request.ifname)
    mac = pod.mac if pod is not None else b""
    with sandbox.listen(request.ifname, DHCP_ONLY) as wire:
        try:
            delegate.of(request, ipam).ask("CHECK", target, deadline)
        except (delegate.DelegateError, TimeoutError) as problem:
            reason = str(problem) or f"no answer within {deadline.elapsed():.1f} s"
            return [
                f"the dhcp daemon does not hold the lease: {reason} ({exchange.account(exchange.sightings(wire, mac))})"
            ]
        ack = exchange.last_ack(exchange.sightings(wire, mac))
    if ack is None or attachment.lease is None:
        return []
    if ack.message.yiaddr != attachment.lease.address:
        return [f"the server now leases {ipv4.text(ack.message.yiaddr)}, not {ipv4.text(attachment.lease.address)}"]
    renewed = attachment.lease.replace(server=server_id(ack.message), hop=ack.datagram.source_mac)
    path.remember(attachment.replace(lease=renewed))
    return []
