"""ovn-k8s-cni-overlay: attach pods to OVN-Kubernetes localnet networks that get their addresses by DHCP."""

__version__ = "0.1.0"
