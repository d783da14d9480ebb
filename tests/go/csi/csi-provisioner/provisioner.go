package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/gantry/tests/csi/internal/sidecar"
)

// Parameters of a class with this prefix are for this program and not for the driver.
const prefix = "csi.storage.k8s.io/"

// Where a volume says which secret its deletion needs.
const (
	deletionName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	deletionNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
)

type provisioner struct {
	name     string
	flags    *sidecar.Flags
	cluster  kubernetes.Interface
	driver   csi.ControllerClient
	fsType   string
	metadata bool
	// What the driver can.
	topology, newModes bool
}

func (p *provisioner) SupportsBlock(context.Context) bool { return true }

func (p *provisioner) Provision(ctx context.Context, o controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	request, refs, err := p.request(ctx, o)
	if err != nil {
		return nil, controller.ProvisioningNoChange, err
	}
	call, cancel := context.WithTimeout(ctx, p.flags.Timeout)
	defer cancel()
	answer, err := p.driver.CreateVolume(call, request)
	if err != nil {
		return nil, state(err, p.topology && o.SelectedNodeName != ""), err
	}
	volume := answer.GetVolume()
	if volume.GetCapacityBytes() != 0 && volume.GetCapacityBytes() < request.GetCapacityRange().GetRequiredBytes() {
		err := fmt.Errorf("the driver made %d bytes of the %d asked for", volume.GetCapacityBytes(), request.GetCapacityRange().GetRequiredBytes())
		return nil, controller.ProvisioningInBackground, err
	}
	return p.persistent(o, request, volume, refs), controller.ProvisioningFinished, nil
}

// state tells whether a volume may come to be after this error, and whether another node may have room for it.
func state(err error, elsewhere bool) controller.ProvisioningState {
	switch status.Code(err) {
	case codes.ResourceExhausted:
		if elsewhere {
			return controller.ProvisioningReschedule
		}
		return controller.ProvisioningInBackground
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		return controller.ProvisioningInBackground
	}
	return controller.ProvisioningFinished
}

func (p *provisioner) request(ctx context.Context, o controller.ProvisionOptions) (*csi.CreateVolumeRequest, map[string]*v1.SecretReference, error) {
	if o.PVC.Spec.DataSource != nil || o.PVC.Spec.DataSourceRef != nil {
		return nil, nil, errors.New("a claim with a data source: this stand-in makes empty volumes alone")
	}
	if o.PVC.Spec.Selector != nil {
		return nil, nil, errors.New("a claim with a selector is never provisioned")
	}
	plain, own := split(o.StorageClass.Parameters)
	fsType := own["fstype"]
	if fsType == "" {
		fsType = p.fsType
	}
	block := o.PVC.Spec.VolumeMode != nil && *o.PVC.Spec.VolumeMode == v1.PersistentVolumeBlock
	capability, err := sidecar.Capability(block, fsType, o.StorageClass.MountOptions, o.PVC.Spec.AccessModes, p.newModes)
	if err != nil {
		return nil, nil, err
	}
	refs, err := secrets(own, o)
	if err != nil {
		return nil, nil, err
	}
	values, err := sidecar.Secret(ctx, p.cluster, refs["provisioner"])
	if err != nil {
		return nil, nil, err
	}
	size := o.PVC.Spec.Resources.Requests[v1.ResourceStorage]
	limit := o.PVC.Spec.Resources.Limits[v1.ResourceStorage]
	request := &csi.CreateVolumeRequest{
		Name:               o.PVName,
		Parameters:         plain,
		VolumeCapabilities: []*csi.VolumeCapability{capability},
		CapacityRange:      &csi.CapacityRange{RequiredBytes: size.Value(), LimitBytes: limit.Value()},
		Secrets:            values,
	}
	if p.metadata {
		request.Parameters[prefix+"pvc/name"] = o.PVC.Name
		request.Parameters[prefix+"pvc/namespace"] = o.PVC.Namespace
		request.Parameters[prefix+"pv/name"] = o.PVName
	}
	if p.topology {
		if request.AccessibilityRequirements, err = p.required(ctx, o); err != nil {
			return nil, nil, err
		}
	}
	return request, refs, nil
}

// split parts what is the driver's from what is this program's, without its prefix.
func split(parameters map[string]string) (plain, own map[string]string) {
	plain, own = map[string]string{}, map[string]string{}
	for key, value := range parameters {
		if name, is := strings.CutPrefix(key, prefix); is {
			own[name] = value
		} else {
			plain[key] = value
		}
	}
	return plain, own
}

// secrets are the references that a class makes for each kind of call.
func secrets(own map[string]string, o controller.ProvisionOptions) (map[string]*v1.SecretReference, error) {
	words := map[string]string{"pv.name": o.PVName, "pvc.name": o.PVC.Name, "pvc.namespace": o.PVC.Namespace}
	for key, value := range o.PVC.Annotations {
		words["pvc.annotations['"+key+"']"] = value
	}
	var missing []string
	fill := func(text string) string {
		return os.Expand(text, func(word string) string {
			value, is := words[word]
			if !is {
				missing = append(missing, word)
			}
			return value
		})
	}
	refs := map[string]*v1.SecretReference{}
	for _, kind := range []string{"provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand", "node-expand"} {
		name, namespace := own[kind+"-secret-name"], own[kind+"-secret-namespace"]
		if (name == "") != (namespace == "") {
			return nil, fmt.Errorf("the class gives %s%s-secret-name and -namespace not both", prefix, kind)
		}
		if name != "" {
			refs[kind] = &v1.SecretReference{Name: fill(name), Namespace: fill(namespace)}
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the class's secrets name %v, which are unknown", missing)
	}
	return refs, nil
}

// required is where the volume must be: on the node that the scheduler has chosen, else on any that has the driver.
func (p *provisioner) required(ctx context.Context, o controller.ProvisionOptions) (*csi.TopologyRequirement, error) {
	if o.SelectedNodeName != "" {
		one, err := p.segments(ctx, o.SelectedNodeName)
		if err != nil {
			return nil, err
		}
		return &csi.TopologyRequirement{Requisite: []*csi.Topology{one}, Preferred: []*csi.Topology{one}}, nil
	}
	nodes, err := p.cluster.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	answer := &csi.TopologyRequirement{}
	for _, node := range nodes.Items {
		if one, err := p.segments(ctx, node.Name); err == nil {
			answer.Requisite = append(answer.Requisite, one)
		}
	}
	if len(answer.Requisite) == 0 {
		return nil, fmt.Errorf("no node has the driver %s", p.name)
	}
	answer.Preferred = answer.Requisite
	return answer, nil
}

// segments are the node's labels under the keys that the driver has on it.
func (p *provisioner) segments(ctx context.Context, name string) (*csi.Topology, error) {
	csiNode, err := p.cluster.StorageV1().CSINodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	node, err := p.cluster.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for _, driver := range csiNode.Spec.Drivers {
		if driver.Name != p.name {
			continue
		}
		segments := map[string]string{}
		for _, key := range driver.TopologyKeys {
			value, is := node.Labels[key]
			if !is {
				return nil, fmt.Errorf("the node %s has no label %s", name, key)
			}
			segments[key] = value
		}
		return &csi.Topology{Segments: segments}, nil
	}
	return nil, fmt.Errorf("the node %s has no driver %s", name, p.name)
}

func (p *provisioner) persistent(o controller.ProvisionOptions, request *csi.CreateVolumeRequest, volume *csi.Volume, refs map[string]*v1.SecretReference) *v1.PersistentVolume {
	attributes := maps.Clone(volume.GetVolumeContext())
	if attributes == nil {
		attributes = map[string]string{}
	}
	attributes["storage.kubernetes.io/csiProvisionerIdentity"] = p.name
	size := volume.GetCapacityBytes()
	if size == 0 {
		size = request.GetCapacityRange().GetRequiredBytes()
	}
	source := &v1.CSIPersistentVolumeSource{
		Driver:                     p.name,
		VolumeHandle:               volume.GetVolumeId(),
		VolumeAttributes:           attributes,
		ControllerPublishSecretRef: refs["controller-publish"],
		NodeStageSecretRef:         refs["node-stage"],
		NodePublishSecretRef:       refs["node-publish"],
		ControllerExpandSecretRef:  refs["controller-expand"],
		NodeExpandSecretRef:        refs["node-expand"],
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName, Annotations: map[string]string{}},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   o.PVC.Spec.AccessModes,
			MountOptions:                  o.StorageClass.MountOptions,
			VolumeMode:                    o.PVC.Spec.VolumeMode,
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)},
			PersistentVolumeSource:        v1.PersistentVolumeSource{CSI: source},
			NodeAffinity:                  affinity(volume.GetAccessibleTopology()),
		},
	}
	if ref := refs["provisioner"]; ref != nil {
		pv.Annotations[deletionName], pv.Annotations[deletionNamespace] = ref.Name, ref.Namespace
	}
	if mount := request.GetVolumeCapabilities()[0].GetMount(); mount != nil {
		source.FSType = mount.GetFsType()
	}
	return pv
}

func affinity(where []*csi.Topology) *v1.VolumeNodeAffinity {
	if len(where) == 0 {
		return nil
	}
	required := &v1.NodeSelector{}
	for _, one := range where {
		var term v1.NodeSelectorTerm
		for key, value := range one.GetSegments() {
			is := v1.NodeSelectorRequirement{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}
			term.MatchExpressions = append(term.MatchExpressions, is)
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	return &v1.VolumeNodeAffinity{Required: required}
}

func (p *provisioner) Delete(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != p.name {
		return &controller.IgnoredError{Reason: "it is another driver's"}
	}
	attachments, err := p.cluster.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, va := range attachments.Items {
		if of := va.Spec.Source.PersistentVolumeName; of != nil && *of == pv.Name {
			return fmt.Errorf("persistentvolume %s is still attached to node %s", pv.Name, va.Spec.NodeName)
		}
	}
	var ref *v1.SecretReference
	if name := pv.Annotations[deletionName]; name != "" {
		ref = &v1.SecretReference{Name: name, Namespace: pv.Annotations[deletionNamespace]}
	}
	values, err := sidecar.Secret(ctx, p.cluster, ref)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, p.flags.Timeout)
	defer cancel()
	_, err = p.driver.DeleteVolume(call, &csi.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle, Secrets: values})
	return err
}
