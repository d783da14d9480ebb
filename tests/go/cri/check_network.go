package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func init() {
	register("network/dns", func(t *T) {
		pod := t.RunPod("dns", func(config *cri.PodSandboxConfig) {
			config.DnsConfig = &cri.DNSConfig{Servers: []string{"10.10.10.10", "10.10.10.11"}, Searches: []string{"a.local", "b.local"}, Options: []string{"ndots:5"}}
		})
		Equal(t, "resolv.conf", pod.Output("cat /etc/resolv.conf"), "search a.local b.local\nnameserver 10.10.10.10\nnameserver 10.10.10.11\noptions ndots:5\n")
	})
	register("network/dns-of-the-host", func(t *T) {
		host, err := os.ReadFile("/etc/resolv.conf")
		t.OK("read", err)
		Equal(t, "resolv.conf", t.RunPod("dns").Output("cat /etc/resolv.conf"), string(host))
	})
	register("network/address-inside", func(t *T) {
		pod := t.RunPod("inside")
		t.Contains("addresses", pod.Output("ip -o -4 addr show; ip route"), pod.IP()+"/")
		t.Contains("interfaces", pod.Output("ip -o -4 addr show dev eth0"), pod.IP())
		t.Contains("loopback", pod.Output("ip -o -4 addr show dev lo"), "127.0.0.1")
	})
	register("network/pod-to-pod", func(t *T) {
		server, client := t.RunPod("server"), t.RunPod("client")
		container := server.Run("web", "while :; do echo hello | nc -l -p 8080; done")
		t.awaitListen(server, container, 8080)
		Equal(t, "answer", client.Output(fmt.Sprintf("nc -w 5 %s 8080 < /dev/null", server.IP())), "hello\n")
	})
	register("network/node-to-pod", func(t *T) {
		pod := t.RunPod("server")
		pod.Run("web", "while :; do echo hello | nc -l -p 8080; done")
		t.Await("an answer", 10*time.Second, func() (bool, string) {
			text, err := read(pod.IP() + ":8080")
			return text == "hello\n", fmt.Sprint(text, err)
		})
	})
	register("network/containers-share-localhost", func(t *T) {
		pod := t.RunPod("local")
		container := pod.Run("web", "while :; do echo hello | nc -l -p 8080; done")
		t.awaitListen(pod, container, 8080)
		Equal(t, "answer", pod.Output("nc -w 5 127.0.0.1 8080 < /dev/null"), "hello\n")
	})
	register("network/host", func(t *T) {
		pod := t.RunPod("host", func(config *cri.PodSandboxConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
			config.Hostname = ""
		})
		own, err := os.Readlink("/proc/self/ns/net")
		t.OK("readlink", err)
		Equal(t, "network namespace", pod.Output("readlink /proc/self/ns/net"), own+"\n")
		Equal(t, "address", pod.Status().GetNetwork().GetIp(), "")
		Equal(t, "mode", pod.Status().GetLinux().GetNamespaces().GetOptions().GetNetwork(), cri.NamespaceMode_NODE)
		name, err := os.Hostname()
		t.OK("hostname", err)
		Equal(t, "hostname", pod.Output("hostname"), name+"\n")
	})
	register("network/host-port-by-loopback", func(t *T) { hostPort(t, "127.0.0.1", "") })
	register("network/host-port-by-node-address", func(t *T) {
		pod := t.RunPod("elsewhere")
		// The bridge's address is an address of the node: the pod's gateway.
		gateway := strings.Fields(pod.Output("ip route | grep default"))
		t.True(len(gateway) > 2, "no default route")
		hostPort(t, gateway[2], "")
	})
	register("network/host-port-with-host-ip", func(t *T) { hostPort(t, "127.0.0.1", "127.0.0.1") })
	register("network/host-port-goes-with-the-pod", func(t *T) {
		port := hostPort(t, "127.0.0.1", "")
		for i := len(t.cleanups) - 1; i >= 0; i-- {
			t.cleanups[i]()
		}
		t.cleanups = nil
		text, err := read(fmt.Sprintf("127.0.0.1:%d", port))
		t.True(err != nil && text == "", "the port still answers: %q", text)
	})
	register("network/host-port-of-udp-takes-no-tcp", func(t *T) {
		tcp, udp := freePort(t), freePort(t)
		pod := t.RunPod("ports", func(config *cri.PodSandboxConfig) {
			config.PortMappings = []*cri.PortMapping{
				{Protocol: cri.Protocol_TCP, ContainerPort: 8080, HostPort: int32(tcp)},
				{Protocol: cri.Protocol_UDP, ContainerPort: 8080, HostPort: int32(udp)},
			}
		})
		pod.Run("web", "while :; do echo hello | nc -l -p 8080; done")
		t.Await("an answer through the port of TCP", 10*time.Second, func() (bool, string) {
			text, err := read(fmt.Sprintf("127.0.0.1:%d", tcp))
			return text == "hello\n", fmt.Sprint(text, err)
		})
		text, err := read(fmt.Sprintf("127.0.0.1:%d", udp))
		t.True(err != nil && text == "", "the port of UDP answers over TCP: %q", text)
	})
	register("network/port-mapping-without-host-port", func(t *T) {
		pod := t.RunPod("ports", func(config *cri.PodSandboxConfig) {
			config.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 8080}}
		})
		pod.IP()
	})
	register("network/hostname-in-hosts-is-left-to-the-kubelet", func(t *T) {
		host, err := os.ReadFile("/etc/hosts")
		t.OK("read", err)
		Equal(t, "hosts", t.RunPod("hosts").Output("cat /etc/hosts"), string(host))
	})
}

// hostPort runs a server behind a free port of the node, asks it by address, and returns the port.
func hostPort(t *T, address, hostIP string) int {
	port := freePort(t)
	pod := t.RunPod("ports", func(config *cri.PodSandboxConfig) {
		config.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 8080, HostPort: int32(port), HostIp: hostIP}}
	})
	pod.Run("web", "while :; do echo hello | nc -l -p 8080; done")
	t.Await("an answer through the host port", 10*time.Second, func() (bool, string) {
		text, err := read(fmt.Sprintf("%s:%d", address, port))
		return text == "hello\n", fmt.Sprint(text, err)
	})
	return port
}

// freePort is a port of the node that nobody listens on.
func freePort(t *T) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	t.OK("listen", err)
	t.OK("close", listener.Close())
	return listener.Addr().(*net.TCPAddr).Port
}

// read reads everything that a server sends.
func read(address string) (string, error) {
	connection, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	buffer := make([]byte, 4096)
	size, err := connection.Read(buffer)
	return string(buffer[:size]), err
}
