// nclient4 has one DISCOVER-OFFER-REQUEST-ACK exchange on an interface and prints the address: what the plugin's own
// discovery is measured against. It runs in the network namespace of the interface.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
)

func discover(name string) (net.IP, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	client, err := nclient4.New(name, nclient4.WithTimeout(5*time.Second))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	identifier := append([]byte{1}, link.HardwareAddr...)
	lease, err := client.Request(context.Background(), dhcpv4.WithOption(dhcpv4.OptClientIdentifier(identifier)))
	if err != nil {
		return nil, err
	}
	return lease.ACK.YourIPAddr, nil
}

func main() {
	address, err := discover(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(address)
}
