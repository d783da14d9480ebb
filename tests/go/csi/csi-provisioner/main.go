// Command csi-provisioner stands in for the Kubernetes sidecar of that name, which no registry here has: it has a CSI
// driver make volumes for claims, on the same library as the real one. No snapshots, clones or storage capacity.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/gantry/tests/csi/internal/sidecar"
)

func main() {
	flags := sidecar.Define()
	p := &provisioner{flags: flags}
	flag.StringVar(&p.fsType, "default-fstype", "", "file system of volumes whose class names none")
	flag.BoolVar(&p.metadata, "extra-create-metadata", false, "tell the driver the names of claim and volume")
	threads := flag.Int("worker-threads", 10, "claims at a time")
	flag.Bool("leader-election", false, "taken for the sake of upstream's manifests: there is one of these")
	flag.String("feature-gates", "", "taken for the sake of upstream's manifests: Topology is as the driver says")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	conn, name, err := flags.Driver(ctx)
	if err != nil {
		log.Fatalf("ask the driver for its name: %v", err)
	}
	if p.cluster, err = flags.Cluster(); err != nil {
		log.Fatalf("reach the cluster: %v", err)
	}
	p.name, p.driver = name, csi.NewControllerClient(conn)
	if p.topology, err = sidecar.PluginCan(ctx, conn, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS); err != nil {
		log.Fatalf("the plugin's capabilities: %v", err)
	}
	if p.newModes, err = sidecar.ControllerCan(ctx, conn, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER); err != nil {
		log.Fatalf("the controller's capabilities: %v", err)
	}
	log.Printf("provisioning for %s", name)
	controller.NewProvisionController(klog.NewContext(ctx, klog.Background()), p.cluster, name, p,
		controller.LeaderElection(false),
		controller.FailedProvisionThreshold(0),
		controller.FailedDeleteThreshold(0),
		controller.RateLimiter(workqueue.DefaultTypedControllerRateLimiter[string]()),
		controller.Threadiness(*threads),
		controller.AddFinalizer(true),
	).Run(ctx)
}
