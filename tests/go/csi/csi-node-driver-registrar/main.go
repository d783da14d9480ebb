// Command csi-node-driver-registrar stands in for the Kubernetes sidecar of that name, which no registry here has: it
// tells the kubelet where a CSI driver listens. As the real one, it ends with 1 when the kubelet refuses the driver.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gantry/tests/csi/internal/sidecar"
)

type server struct {
	registration.UnimplementedRegistrationServer
	name     string
	endpoint string
}

func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	log.Printf("the kubelet asks who is here")
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              s.name,
		Endpoint:          s.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (s *server) NotifyRegistrationStatus(_ context.Context, told *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !told.GetPluginRegistered() {
		log.Printf("the kubelet has refused %s: %s", s.name, told.GetError())
		os.Exit(1)
	}
	log.Printf("%s is registered", s.name)
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	flags := sidecar.Define()
	endpoint := flag.String("kubelet-registration-path", "", "the driver's socket as the kubelet sees it")
	folder := flag.String("plugin-registration-path", "/registration", "the kubelet's folder of plugins' sockets")
	flag.Parse()
	if *endpoint == "" {
		log.Fatal("--kubelet-registration-path is missing")
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	conn, name, err := flags.Driver(stop)
	if err != nil {
		log.Fatalf("ask the driver for its name: %v", err)
	}
	defer conn.Close()
	path := filepath.Join(*folder, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	// The socket is root's alone.
	old := syscall.Umask(0o077)
	socket, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		log.Fatal(err)
	}
	listener := grpc.NewServer()
	registration.RegisterRegistrationServer(listener, &server{name: name, endpoint: *endpoint})
	go func() {
		<-stop.Done()
		// The listener removes the socket, and the kubelet takes the driver off its list.
		listener.Stop()
	}()
	log.Printf("%s, at %s for the kubelet, listens on %s", name, *endpoint, path)
	if err := listener.Serve(socket); err != nil {
		log.Fatal(err)
	}
}
