// Package sidecar is what the stand-ins for the Kubernetes CSI sidecars share: their flags, the driver's socket, the API
// server, and what a PersistentVolume means in CSI's words.
package sidecar

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Flags that all of them take. Those that upstream's manifests give and that mean nothing here are taken and dropped.
type Flags struct {
	Socket     string
	Kubeconfig string
	Timeout    time.Duration
}

// Define adds them to the command's.
func Define() *Flags {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	f := &Flags{}
	flag.StringVar(&f.Socket, "csi-address", "/run/csi/socket", "the driver's socket")
	flag.StringVar(&f.Kubeconfig, "kubeconfig", "", "who to be; empty: the pod's service account")
	flag.DurationVar(&f.Timeout, "timeout", 15*time.Second, "how long one call to the driver may take")
	flag.Int("v", 0, "taken for the sake of upstream's manifests")
	return f
}

// Driver connects and waits until the driver answers; it returns the driver's name.
func (f *Flags) Driver(ctx context.Context) (*grpc.ClientConn, string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(f.Socket, "unix:"), "//")
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, "", err
	}
	for {
		call, cancel := context.WithTimeout(ctx, f.Timeout)
		info, err := csi.NewIdentityClient(conn).GetPluginInfo(call, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		cancel()
		if err == nil {
			return conn, info.GetName(), nil
		}
		if ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		log.Printf("the driver at %s does not answer yet: %v", path, err)
		time.Sleep(time.Second)
	}
}

// Cluster connects to the API server.
func (f *Flags) Cluster() (kubernetes.Interface, error) {
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

func (f *Flags) config() (*rest.Config, error) {
	if f.Kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", f.Kubeconfig)
}

// ControllerCan tells whether the driver's controller has a capability.
func ControllerCan(ctx context.Context, conn *grpc.ClientConn, kind csi.ControllerServiceCapability_RPC_Type) (bool, error) {
	answer, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return false, err
	}
	for _, one := range answer.GetCapabilities() {
		if one.GetRpc().GetType() == kind {
			return true, nil
		}
	}
	return false, nil
}

// PluginCan tells whether the plugin has a capability as a whole.
func PluginCan(ctx context.Context, conn *grpc.ClientConn, kind csi.PluginCapability_Service_Type) (bool, error) {
	answer, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return false, err
	}
	for _, one := range answer.GetCapabilities() {
		if one.GetService().GetType() == kind {
			return true, nil
		}
	}
	return false, nil
}

// Capability is what a claim or a volume asks of the driver. With several access modes the widest counts.
func Capability(block bool, fsType string, mountFlags []string, modes []v1.PersistentVolumeAccessMode, newModes bool) (*csi.VolumeCapability, error) {
	mode, err := accessMode(modes, newModes)
	if err != nil {
		return nil, err
	}
	answer := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if block {
		answer.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return answer, nil
	}
	mount := &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: mountFlags}
	answer.AccessType = &csi.VolumeCapability_Mount{Mount: mount}
	return answer, nil
}

func accessMode(modes []v1.PersistentVolumeAccessMode, newModes bool) (csi.VolumeCapability_AccessMode_Mode, error) {
	has := map[v1.PersistentVolumeAccessMode]bool{}
	for _, mode := range modes {
		has[mode] = true
	}
	switch {
	case has[v1.ReadWriteMany]:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil
	case has[v1.ReadOnlyMany] && has[v1.ReadWriteOnce]:
		return 0, fmt.Errorf("no one mode of CSI is both of %v", modes)
	case has[v1.ReadOnlyMany]:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil
	case has[v1.ReadWriteOncePod] && newModes:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, nil
	case has[v1.ReadWriteOnce] && newModes:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, nil
	case has[v1.ReadWriteOnce] || has[v1.ReadWriteOncePod]:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil
	}
	return 0, fmt.Errorf("no access mode is known among %v", modes)
}

// OfVolume is Capability of a PersistentVolume of the driver's.
func OfVolume(pv *v1.PersistentVolume, newModes bool) (*csi.VolumeCapability, error) {
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock
	return Capability(block, pv.Spec.CSI.FSType, pv.Spec.MountOptions, pv.Spec.AccessModes, newModes)
}

// Secret reads the values that a call to the driver is given; no reference, no secret.
func Secret(ctx context.Context, cluster kubernetes.Interface, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := cluster.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("the secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	values := map[string]string{}
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	return values, nil
}

// Patch is a merge patch, for the version of the object that it was made from. Upstream's roles for these sidecars let
// them patch and not update.
func Patch(of metav1.ObjectMeta, field string, value any) ([]byte, error) {
	metadata := map[string]any{"resourceVersion": of.ResourceVersion}
	patch := map[string]any{"metadata": metadata}
	if field == "finalizers" {
		metadata[field] = value
	} else {
		patch[field] = value
	}
	return json.Marshal(patch)
}
