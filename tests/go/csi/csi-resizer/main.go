// Command csi-resizer stands in for the Kubernetes sidecar of that name, which no registry here has: it has a CSI driver
// expand a volume whose claim asks for more, and leaves the rest to the kubelet where the driver wants that. A claim whose
// expansion failed may ask for less.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	core "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/gantry/tests/csi/internal/sidecar"
)

type resizer struct {
	name     string
	flags    *sidecar.Flags
	cluster  kubernetes.Interface
	driver   csi.ControllerClient
	claims   core.PersistentVolumeClaimLister
	newModes bool
	// controller: the driver has a part in it. Else the node alone makes volumes larger.
	controller bool
	// failed has the claims whose last expansion is over: the driver said that it did nothing.
	failed map[string]bool
}

func main() {
	flags := sidecar.Define()
	flag.Bool("leader-election", false, "taken for the sake of upstream's manifests: there is one of these")
	flag.Bool("handle-volume-inuse-error", true, "taken for the sake of upstream's manifests")
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
	expands, err := sidecar.ControllerCan(ctx, conn, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	if err != nil {
		log.Fatalf("the controller's capabilities: %v", err)
	}
	newModes, err := sidecar.ControllerCan(ctx, conn, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	if err != nil {
		log.Fatalf("the controller's capabilities: %v", err)
	}
	factory := informers.NewSharedInformerFactory(cluster, time.Minute)
	claims := factory.Core().V1().PersistentVolumeClaims()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](500*time.Millisecond, time.Minute))
	defer queue.ShutDown()
	add := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			queue.Add(key)
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, object any) { add(object) }}
	if _, err := claims.Informer().AddEventHandler(handler); err != nil {
		log.Fatalf("watch: %v", err)
	}
	r := &resizer{name, flags, cluster, csi.NewControllerClient(conn), claims.Lister(), newModes, expands, map[string]bool{}}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	log.Printf("resizing for %s", name)
	go r.work(ctx, queue)
	<-ctx.Done()
}

func (r *resizer) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) {
	for {
		key, end := queue.Get()
		if end {
			return
		}
		if err := r.settle(ctx, key); err != nil {
			log.Printf("%s: %v", key, err)
			queue.AddRateLimited(key)
		} else {
			queue.Forget(key)
		}
		queue.Done(key)
	}
}

// settle expands the volume of a claim that is bound to one of this driver's and asks for more than it has.
func (r *resizer) settle(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	known, err := r.claims.PersistentVolumeClaims(namespace).Get(name)
	if kerrors.IsNotFound(err) {
		return nil
	}
	if err != nil || known.Status.Phase != v1.ClaimBound {
		return err
	}
	pv, err := r.cluster.CoreV1().PersistentVolumes().Get(ctx, known.Spec.VolumeName, metav1.GetOptions{})
	if err != nil || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != r.name {
		return err
	}
	size, due := r.target(key, known)
	if !due {
		return nil
	}
	claim, err := r.tell(ctx, known, size, v1.PersistentVolumeClaimControllerResizeInProgress, v1.PersistentVolumeClaimResizing)
	if err != nil {
		return err
	}
	node, err := r.expand(ctx, pv, size.Value())
	r.failed[key] = isFinal(err)
	if isInfeasible(err) {
		if _, told := r.tell(ctx, claim, size, v1.PersistentVolumeClaimControllerResizeInfeasible, v1.PersistentVolumeClaimControllerResizeError); told != nil {
			return told
		}
	}
	if err != nil {
		return err
	}
	if node {
		_, err = r.tell(ctx, claim, size, v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimFileSystemResizePending)
		return err
	}
	return r.done(ctx, claim, size)
}

// target returns how large the claim's volume is to be made now, and whether that is for this controller to do.
func (r *resizer) target(key string, claim *v1.PersistentVolumeClaim) (resource.Quantity, bool) {
	wanted, has := claim.Spec.Resources.Requests[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
	allocated, begun := claim.Status.AllocatedResources[v1.ResourceStorage]
	now := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	switch {
	case wanted.Cmp(has) <= 0:
		return wanted, false
	case isNodes(now):
		// What the driver's controller has made larger stays so.
		return wanted, !r.controller && begun && wanted.Cmp(allocated) < 0
	case now == v1.PersistentVolumeClaimControllerResizeInProgress && begun && !r.failed[key]:
		// The driver may be at it.
		return allocated, true
	}
	return wanted, true
}

// isFinal tells whether the driver is done with a call that failed.
func isFinal(err error) bool {
	switch status.Code(err) {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	_, answered := status.FromError(err)
	return answered
}

// isInfeasible tells whether the same call will fail again.
func isInfeasible(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return true
	}
	return false
}

// isNodes tells whether the kubelet has the next step, or is at it.
func isNodes(status v1.ClaimResourceStatus) bool {
	switch status {
	case v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress, v1.PersistentVolumeClaimNodeResizeInfeasible:
		return true
	}
	return false
}

// expand has the driver make the volume larger, and notes it. It returns whether the node has a part in it.
func (r *resizer) expand(ctx context.Context, pv *v1.PersistentVolume, size int64) (bool, error) {
	if !r.controller {
		return true, r.note(ctx, pv, size)
	}
	capability, err := sidecar.OfVolume(pv, r.newModes)
	if err != nil {
		return false, err
	}
	secrets, err := sidecar.Secret(ctx, r.cluster, pv.Spec.CSI.ControllerExpandSecretRef)
	if err != nil {
		return false, err
	}
	call, cancel := context.WithTimeout(ctx, r.flags.Timeout)
	defer cancel()
	answer, err := r.driver.ControllerExpandVolume(call, &csi.ControllerExpandVolumeRequest{
		VolumeId:         pv.Spec.CSI.VolumeHandle,
		CapacityRange:    &csi.CapacityRange{RequiredBytes: size},
		Secrets:          secrets,
		VolumeCapability: capability,
	})
	if err != nil {
		return false, err
	}
	now := pv.Spec.Capacity[v1.ResourceStorage]
	if now.Value() < answer.GetCapacityBytes() {
		err = r.note(ctx, pv, answer.GetCapacityBytes())
	}
	return answer.GetNodeExpansionRequired(), err
}

// note writes down how large the volume is.
func (r *resizer) note(ctx context.Context, pv *v1.PersistentVolume, size int64) error {
	now := pv.Spec.Capacity[v1.ResourceStorage]
	now.Set(size)
	patch, err := sidecar.Patch(pv.ObjectMeta, "spec", map[string]any{"capacity": v1.ResourceList{v1.ResourceStorage: now}})
	if err != nil {
		return err
	}
	_, err = r.cluster.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	log.Printf("%s: %d bytes", pv.Name, size)
	return err
}

// tell writes down how far the expansion is.
func (r *resizer) tell(ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity, status v1.ClaimResourceStatus, condition v1.PersistentVolumeClaimConditionType) (*v1.PersistentVolumeClaim, error) {
	claim = claim.DeepCopy()
	claim.Status.AllocatedResources = v1.ResourceList{v1.ResourceStorage: size}
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: status}
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{
		Type: condition, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(),
	}}
	return r.patchStatus(ctx, claim)
}

// patchStatus replaces what the expansion has in the claim's status; nulls take away what is over.
func (r *resizer) patchStatus(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	patch, err := sidecar.Patch(claim.ObjectMeta, "status", map[string]any{
		"capacity":                  claim.Status.Capacity,
		"allocatedResources":        claim.Status.AllocatedResources,
		"allocatedResourceStatuses": claim.Status.AllocatedResourceStatuses,
		"conditions":                claim.Status.Conditions,
	})
	if err != nil {
		return nil, err
	}
	claims := r.cluster.CoreV1().PersistentVolumeClaims(claim.Namespace)
	return claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
}

// done notes an expansion that the node has no part in.
func (r *resizer) done(ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity) error {
	claim = claim.DeepCopy()
	claim.Status.Capacity[v1.ResourceStorage] = size
	claim.Status.AllocatedResourceStatuses, claim.Status.Conditions = nil, nil
	_, err := r.patchStatus(ctx, claim)
	return err
}
