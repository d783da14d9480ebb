package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	core "k8s.io/client-go/listers/core/v1"
	listers "k8s.io/client-go/listers/storage/v1"

	"github.com/gantry/tests/csi/internal/sidecar"
)

type attacher struct {
	name        string
	flags       *sidecar.Flags
	cluster     kubernetes.Interface
	driver      csi.ControllerClient
	attachments listers.VolumeAttachmentLister
	volumes     core.PersistentVolumeLister
	// What the driver's controller can.
	attaches, newModes, readOnly bool
	// Whether the code of a driver's answer is told.
	codes bool
}

// finalizer keeps an attachment until it is detached, and a volume while there is one.
func (a *attacher) finalizer() string {
	return "external-attacher/" + strings.ReplaceAll(a.name, ".", "-")
}

func (a *attacher) settle(ctx context.Context, one key) error {
	if one.kind == "volume" {
		return a.settleVolume(ctx, one.name)
	}
	va, err := a.attachments.Get(one.name)
	if kerrors.IsNotFound(err) || (err == nil && va.Spec.Attacher != a.name) {
		return nil
	}
	if err != nil {
		return err
	}
	va = va.DeepCopy()
	if va.DeletionTimestamp != nil {
		return a.detach(ctx, va)
	}
	if va.Status.Attached {
		return nil
	}
	return a.attach(ctx, va)
}

func (a *attacher) attach(ctx context.Context, va *storage.VolumeAttachment) error {
	if !a.attaches {
		va.Status = storage.VolumeAttachmentStatus{Attached: true}
		return a.saveStatus(ctx, va)
	}
	metadata, err := a.publish(ctx, va)
	if err != nil {
		va.Status.AttachError = a.failure(err)
		return errors.Join(err, a.saveStatus(ctx, va))
	}
	log.Printf("%s: attached", va.Name)
	va.Status = storage.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: metadata}
	return a.saveStatus(ctx, va)
}

// failure is what the attachment says of it.
func (a *attacher) failure(err error) *storage.VolumeError {
	told := &storage.VolumeError{Time: metav1.Now(), Message: err.Error()}
	if answer, ok := status.FromError(err); ok && a.codes {
		code := int32(answer.Code())
		told.ErrorCode = &code
	}
	return told
}

func (a *attacher) saveStatus(ctx context.Context, va *storage.VolumeAttachment) error {
	// An error that is over is taken away by its null.
	patch, err := sidecar.Patch(va.ObjectMeta, "status", map[string]any{
		"attached":           va.Status.Attached,
		"attachmentMetadata": va.Status.AttachmentMetadata,
		"attachError":        va.Status.AttachError,
		"detachError":        va.Status.DetachError,
	})
	if err != nil {
		return err
	}
	_, err = a.cluster.StorageV1().VolumeAttachments().Patch(ctx, va.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

func (a *attacher) patchVolume(ctx context.Context, pv *v1.PersistentVolume) error {
	patch, err := sidecar.Patch(pv.ObjectMeta, "finalizers", pv.Finalizers)
	if err != nil {
		return err
	}
	_, err = a.cluster.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (a *attacher) patchAttachment(ctx context.Context, va *storage.VolumeAttachment) (*storage.VolumeAttachment, error) {
	patch, err := sidecar.Patch(va.ObjectMeta, "finalizers", va.Finalizers)
	if err != nil {
		return nil, err
	}
	return a.cluster.StorageV1().VolumeAttachments().Patch(ctx, va.Name, types.MergePatchType, patch, metav1.PatchOptions{})
}

func (a *attacher) publish(ctx context.Context, va *storage.VolumeAttachment) (map[string]string, error) {
	pv, node, err := a.facts(ctx, va)
	if err != nil {
		return nil, err
	}
	if pv.DeletionTimestamp != nil {
		return nil, fmt.Errorf("the volume %s is being deleted", pv.Name)
	}
	if err := a.mark(ctx, va, pv); err != nil {
		return nil, err
	}
	capability, err := sidecar.OfVolume(pv, a.newModes)
	if err != nil {
		return nil, err
	}
	secrets, err := sidecar.Secret(ctx, a.cluster, pv.Spec.CSI.ControllerPublishSecretRef)
	if err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, a.flags.Timeout)
	defer cancel()
	answer, err := a.driver.ControllerPublishVolume(call, &csi.ControllerPublishVolumeRequest{
		VolumeId:         pv.Spec.CSI.VolumeHandle,
		NodeId:           node,
		VolumeCapability: capability,
		Readonly:         pv.Spec.CSI.ReadOnly && a.readOnly,
		Secrets:          secrets,
		VolumeContext:    pv.Spec.CSI.VolumeAttributes,
	})
	return answer.GetPublishContext(), err
}

// facts are the volume and the driver's ID of the node.
func (a *attacher) facts(ctx context.Context, va *storage.VolumeAttachment) (*v1.PersistentVolume, string, error) {
	if va.Spec.Source.PersistentVolumeName == nil {
		return nil, "", errors.New("an attachment without a PersistentVolume: volumes of in-tree kinds are not for this stand-in")
	}
	pv, err := a.cluster.CoreV1().PersistentVolumes().Get(ctx, *va.Spec.Source.PersistentVolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, "", err
	}
	if pv.Spec.CSI == nil {
		return nil, "", fmt.Errorf("the volume %s is not of CSI", pv.Name)
	}
	node, err := a.cluster.StorageV1().CSINodes().Get(ctx, va.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, "", err
	}
	for _, one := range node.Spec.Drivers {
		if one.Name == a.name {
			return pv, one.NodeID, nil
		}
	}
	return nil, "", fmt.Errorf("the node %s has no driver %s", va.Spec.NodeName, a.name)
}

// mark sets the finalizer on both before the driver is called.
func (a *attacher) mark(ctx context.Context, va *storage.VolumeAttachment, pv *v1.PersistentVolume) error {
	if !slices.Contains(pv.Finalizers, a.finalizer()) {
		pv.Finalizers = append(pv.Finalizers, a.finalizer())
		if err := a.patchVolume(ctx, pv); err != nil {
			return err
		}
	}
	if slices.Contains(va.Finalizers, a.finalizer()) {
		return nil
	}
	va.Finalizers = append(va.Finalizers, a.finalizer())
	saved, err := a.patchAttachment(ctx, va)
	if err == nil {
		saved.DeepCopyInto(va)
	}
	return err
}

func (a *attacher) detach(ctx context.Context, va *storage.VolumeAttachment) error {
	if !slices.Contains(va.Finalizers, a.finalizer()) {
		return nil
	}
	if err := a.unpublish(ctx, va); err != nil {
		va.Status.DetachError = a.failure(err)
		return errors.Join(err, a.saveStatus(ctx, va))
	}
	log.Printf("%s: detached", va.Name)
	va.Finalizers = slices.DeleteFunc(va.Finalizers, func(one string) bool { return one == a.finalizer() })
	_, err := a.patchAttachment(ctx, va)
	if kerrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (a *attacher) unpublish(ctx context.Context, va *storage.VolumeAttachment) error {
	pv, node, err := a.facts(ctx, va)
	if err != nil {
		return err
	}
	secrets, err := sidecar.Secret(ctx, a.cluster, pv.Spec.CSI.ControllerPublishSecretRef)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, a.flags.Timeout)
	defer cancel()
	_, err = a.driver.ControllerUnpublishVolume(call, &csi.ControllerUnpublishVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle,
		NodeId:   node,
		Secrets:  secrets,
	})
	return err
}

// settleVolume lets a volume that is being deleted go when no attachment has it any more.
func (a *attacher) settleVolume(ctx context.Context, name string) error {
	pv, err := a.volumes.Get(name)
	if kerrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if pv.DeletionTimestamp == nil || !slices.Contains(pv.Finalizers, a.finalizer()) {
		return nil
	}
	all, err := a.attachments.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, va := range all {
		if of := va.Spec.Source.PersistentVolumeName; of != nil && *of == name {
			return fmt.Errorf("it is still attached by %s", va.Name)
		}
	}
	pv = pv.DeepCopy()
	pv.Finalizers = slices.DeleteFunc(pv.Finalizers, func(one string) bool { return one == a.finalizer() })
	return a.patchVolume(ctx, pv)
}
