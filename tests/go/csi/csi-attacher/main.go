// Command csi-attacher stands in for the Kubernetes sidecar of that name, which no registry here has: it has a CSI
// driver attach and detach what VolumeAttachments ask for.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/gantry/tests/csi/internal/sidecar"
)

func main() {
	flags := sidecar.Define()
	flag.Bool("leader-election", false, "taken for the sake of upstream's manifests: there is one of these")
	gates := flag.String("feature-gates", "", "MutableCSINodeAllocatableCount=true tells the code of an attachment that has failed")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	conn, name, err := flags.Driver(ctx)
	if err != nil {
		log.Fatalf("ask the driver for its name: %v", err)
	}
	cluster, err := flags.Cluster()
	if err != nil {
		log.Fatalf("reach the cluster: %v", err)
	}
	attaches, err := sidecar.ControllerCan(ctx, conn, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	if err != nil {
		log.Fatalf("the controller's capabilities: %v", err)
	}
	newModes, err := sidecar.ControllerCan(ctx, conn, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	if err != nil {
		log.Fatalf("the controller's capabilities: %v", err)
	}
	readOnly, err := sidecar.ControllerCan(ctx, conn, csi.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	if err != nil {
		log.Fatalf("the controller's capabilities: %v", err)
	}
	factory := informers.NewSharedInformerFactory(cluster, time.Minute)
	attachments, volumes := factory.Storage().V1().VolumeAttachments(), factory.Core().V1().PersistentVolumes()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](500*time.Millisecond, time.Minute))
	defer queue.ShutDown()
	watch(attachments.Informer(), "attachment", queue)
	watch(volumes.Informer(), "volume", queue)
	a := &attacher{
		name: name, flags: flags, cluster: cluster, driver: csi.NewControllerClient(conn),
		attachments: attachments.Lister(), volumes: volumes.Lister(),
		attaches: attaches, newModes: newModes, readOnly: readOnly,
		codes: strings.Contains(*gates, "MutableCSINodeAllocatableCount=true"),
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	log.Printf("attaching for %s", name)
	for range 4 {
		go work(ctx, a, queue)
	}
	<-ctx.Done()
}

// key of what is to be looked at: `attachment` or `volume`, and its name.
type key struct{ kind, name string }

func watch(informer cache.SharedIndexInformer, kind string, queue workqueue.TypedRateLimitingInterface[key]) {
	add := func(object any) {
		if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			queue.Add(key{kind, name})
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, object any) { add(object) },
		DeleteFunc: add,
	})
	if err != nil {
		log.Fatalf("watch: %v", err)
	}
}

func work(ctx context.Context, a *attacher, queue workqueue.TypedRateLimitingInterface[key]) {
	for {
		one, end := queue.Get()
		if end {
			return
		}
		err := a.settle(ctx, one)
		if err != nil {
			log.Printf("%s %s: %v", one.kind, one.name, err)
			queue.AddRateLimited(one)
		} else {
			queue.Forget(one)
		}
		queue.Done(one)
	}
}
