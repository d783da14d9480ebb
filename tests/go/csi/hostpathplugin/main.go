// Command hostpathplugin is a CSI driver for tests: its volumes are folders of one node, and files behind loop devices.
// It is this project's own, under the name of upstream's driver, which no registry here has. It is strict with its
// caller: a call out of the order that the CSI specification asks for is refused and never repaired.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	var o options
	flag.StringVar(&o.name, "drivername", "hostpath.csi.k8s.io", "the driver's name")
	flag.StringVar(&o.node, "nodeid", "", "the node's ID")
	flag.StringVar(&o.folder, "statedir", "/csi-data-dir", "folder of volumes and state")
	flag.Int64Var(&o.limit, "attach-limit", 0, "how many volumes the node takes; 0: no limit")
	flag.BoolVar(&o.attach, "enable-attach", false, "volumes are attached before they are staged")
	flag.BoolVar(&o.bound, "enable-topology", true, "volumes say which node they are on")
	flag.BoolVar(&o.nodeExpands, "node-expand-required", true, "the node has a part in each expansion")
	endpoint := flag.String("endpoint", "unix:///csi/csi.sock", "socket to serve")
	proxied := flag.String("proxy-endpoint", "", "serve nothing, and pass each connection of the socket on to who connects here")
	flag.Int("v", 0, "taken for the sake of upstream's manifests; each call is logged whatever it says")
	flag.Parse()

	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	socket, err := listen(*endpoint)
	if err != nil {
		log.Fatalf("listen on %s: %v", *endpoint, err)
	}
	if *proxied != "" {
		if err := proxy(stop, socket, *proxied); err != nil {
			log.Fatalf("proxy: %v", err)
		}
		return
	}
	d, err := newDriver(o)
	if err != nil {
		log.Fatalf("start: %v", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	go func() {
		<-stop.Done()
		server.Stop()
	}()
	log.Printf("%s serves %s for the node %s", o.name, *endpoint, o.node)
	if err := server.Serve(socket); err != nil {
		log.Fatalf("serve: %v", err)
	}
}

// listen opens `unix:///PATH`, `/PATH` or `tcp://ADDRESS`. A socket that an earlier life left is replaced.
func listen(endpoint string) (net.Listener, error) {
	if address, is := strings.CutPrefix(endpoint, "tcp://"); is {
		return net.Listen("tcp", address)
	}
	path := strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// call is one as the log has it: upstream's csi-mock tests read these lines.
type call struct {
	Method    string
	Request   any
	Error     string
	FullError struct {
		Code    codes.Code `json:"code"`
		Message string     `json:"message"`
	}
}

// logged tells each call and how it ended, with its secrets: a csi-mock test reads from them that a token came.
func logged(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, request)
	told := call{Method: info.FullMethod, Request: request}
	if err != nil {
		told.Error = err.Error()
		told.FullError.Code, told.FullError.Message = status.Code(err), status.Convert(err).Message()
	}
	line, failed := json.Marshal(told)
	if failed != nil {
		log.Printf("%s cannot be logged: %v", info.FullMethod, failed)
	} else {
		log.Printf("gRPCCall: %s", line)
	}
	return answer, err
}
