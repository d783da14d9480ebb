package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What the kubelet says of a volume that lives as long as its pod.
const ephemeralKey = "csi.storage.k8s.io/ephemeral"

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		rpc := &csi.NodeServiceCapability_RPC{Type: kind}
		one := &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: rpc}}
		answer.Capabilities = append(answer.Capabilities, one)
	}
	return answer, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	info := &csi.NodeGetInfoResponse{NodeId: d.node, MaxVolumesPerNode: d.limit}
	if d.bound {
		info.AccessibleTopology = d.topology()
	}
	return info, nil
}

func (d *driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	target := r.GetStagingTargetPath()
	if r.GetVolumeId() == "" || target == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or staging_target_path is missing")
	}
	if err := isGood(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if (r.GetVolumeCapability().GetBlock() != nil) != v.Block {
		return nil, status.Errorf(codes.InvalidArgument, "%s is of the other access type", v.ID)
	}
	if d.attach && (v.Node != d.node || r.GetPublishContext()["device"] != d.data(v)) {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is not attached to %s", v.ID, d.node)
	}
	if v.Staged != "" && v.Staged != target {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is staged at %s", v.ID, v.Staged)
	}
	if v.Block {
		_, err = attachLoop(d.data(v))
	} else {
		err = d.bind(d.data(v), target, r.GetVolumeCapability().GetMount().GetMountFlags())
	}
	if err != nil {
		return nil, err
	}
	v.Staged = target
	return &csi.NodeStageVolumeResponse{}, d.save()
}

// bind mounts a folder; it may be there from a call whose answer was lost, or gone with a reboot.
func (d *driver) bind(source, target string, flags []string) error {
	options, err := mountFlags(flags)
	if err != nil {
		return err
	}
	mounted, err := isMounted(target)
	if err != nil || mounted {
		return err
	}
	if info, err := os.Stat(target); err != nil || !info.IsDir() {
		return status.Errorf(codes.FailedPrecondition, "%s is no folder: %v", target, err)
	}
	return bindMount(source, target, options)
}

func (d *driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	target := r.GetStagingTargetPath()
	if target == "" {
		return nil, status.Error(codes.InvalidArgument, "staging_target_path is missing")
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if len(v.Published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is still published: %v", v.ID, v.Published)
	}
	if v.Block {
		err = detachLoop(d.data(v))
	} else {
		err = unmount(target)
	}
	if err != nil {
		return nil, err
	}
	if v.Staged == target {
		v.Staged = ""
	}
	return &csi.NodeUnstageVolumeResponse{}, d.save()
}

func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetTargetPath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or target_path is missing")
	}
	if err := isGood(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	v, err := d.toPublish(r)
	if err != nil {
		return nil, err
	}
	target := r.GetTargetPath()
	readOnly, known := v.Published[target]
	if known && readOnly != r.GetReadonly() {
		return nil, status.Errorf(codes.AlreadyExists, "it is at %s with readonly %v", target, readOnly)
	}
	single := r.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	if single && !known && len(v.Published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "%s has its single writer", v.ID)
	}
	// Written down first: what is mounted then is known, whenever the driver dies.
	v.Published[target] = r.GetReadonly()
	if err := d.save(); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, d.publish(v, r)
}

// toPublish finds the volume, or makes one that lives as long as its pod.
func (d *driver) toPublish(r *csi.NodePublishVolumeRequest) (*volume, error) {
	if r.GetVolumeContext()[ephemeralKey] == "true" {
		return d.inline(r)
	}
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if (r.GetVolumeCapability().GetBlock() != nil) != v.Block {
		return nil, status.Errorf(codes.InvalidArgument, "%s is of the other access type", v.ID)
	}
	if v.Staged == "" || v.Staged != r.GetStagingTargetPath() {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is staged at %q, not at %q", v.ID, v.Staged, r.GetStagingTargetPath())
	}
	return v, nil
}

func (d *driver) inline(r *csi.NodePublishVolumeRequest) (*volume, error) {
	id := r.GetVolumeId()
	if known, is := d.volumes[id]; is {
		if !known.Ephemeral {
			return nil, status.Errorf(codes.AlreadyExists, "%s is a volume of the controller's", id)
		}
		return known, nil
	}
	if !isPlain(id) || r.GetVolumeCapability().GetBlock() != nil {
		return nil, status.Error(codes.InvalidArgument, "an inline volume is a folder with a plain ID")
	}
	v := &volume{ID: id, Capacity: defaultCapacity, Ephemeral: true, Published: map[string]bool{}}
	if err := d.make(v); err != nil {
		return nil, err
	}
	d.volumes[id] = v
	return v, nil
}

func (d *driver) publish(v *volume, r *csi.NodePublishVolumeRequest) error {
	target := r.GetTargetPath()
	flags := r.GetVolumeCapability().GetMount().GetMountFlags()
	if r.GetReadonly() {
		flags = append([]string{"ro"}, flags...)
	}
	options, err := mountFlags(flags)
	if err != nil {
		return err
	}
	mounted, err := isMounted(target)
	if err != nil || mounted {
		return err
	}
	source := v.Staged
	switch {
	case v.Ephemeral:
		source = d.data(v)
	case v.Block:
		// Its file may have a loop device no more: it was staged before a reboot.
		if source, err = attachLoop(d.data(v)); err != nil {
			return err
		}
		options = 0
	}
	if err := makeTarget(target, v.Block); err != nil {
		return err
	}
	return bindMount(source, target, options)
}

// makeTarget makes the last element of the path alone; the caller makes the others.
func makeTarget(target string, file bool) error {
	var err error
	if file {
		var made *os.File
		if made, err = os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o600); err == nil {
			made.Close()
		}
	} else if err = os.Mkdir(target, 0o750); os.IsExist(err) {
		err = nil
	}
	if err != nil {
		return status.Errorf(codes.Internal, "make the target: %v", err)
	}
	return nil
}

func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	target := r.GetTargetPath()
	if target == "" {
		return nil, status.Error(codes.InvalidArgument, "target_path is missing")
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	v, err := d.find(r.GetVolumeId())
	if err != nil && status.Code(err) != codes.NotFound {
		return nil, err
	}
	known := v != nil
	if err := unmount(target); err != nil {
		return nil, err
	}
	if err := os.Remove(target); err != nil && !os.IsNotExist(err) {
		return nil, status.Errorf(codes.Internal, "remove the target: %v", err)
	}
	if !known {
		// An inline volume whose first answer was lost.
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	delete(v.Published, target)
	if v.Ephemeral && len(v.Published) == 0 {
		return &csi.NodeUnpublishVolumeResponse{}, d.remove(v)
	}
	return &csi.NodeUnpublishVolumeResponse{}, d.save()
}

func (d *driver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	v, err := d.at(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if v.Block {
		usage := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: v.Capacity}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{usage}}, nil
	}
	bytes, files, err := used(d.data(v))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "measure %s: %v", v.ID, err)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(r.GetVolumePath(), &fs); err != nil {
		return nil, status.Errorf(codes.Internal, "%s: %v", r.GetVolumePath(), err)
	}
	left := max(0, v.Capacity-bytes)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: v.Capacity, Used: bytes, Available: left},
		{Unit: csi.VolumeUsage_INODES, Total: files + int64(fs.Ffree), Used: files, Available: int64(fs.Ffree)},
	}}, nil
}

// at finds a volume that is at a path: there it is staged or published.
func (d *driver) at(id, path string) (*volume, error) {
	if path == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	v, err := d.find(id)
	if err != nil {
		return nil, err
	}
	if _, is := v.Published[path]; !is && (v.Staged == "" || v.Staged != path) {
		return nil, status.Errorf(codes.NotFound, "%s is not at %s", id, path)
	}
	if mounted, err := isMounted(path); err != nil || (!mounted && !v.Block) {
		return nil, status.Errorf(codes.NotFound, "%s is not mounted at %s: %v", id, path, err)
	}
	return v, nil
}

// used counts the bytes and the files and folders below.
func used(folder string) (bytes, files int64, err error) {
	err = filepath.WalkDir(folder, func(_ string, entry os.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		info, err := entry.Info()
		if err != nil {
			return ignoreGone(err)
		}
		files++
		if stat, is := info.Sys().(*syscall.Stat_t); is {
			bytes += stat.Blocks * 512
		}
		return nil
	})
	return bytes, files, err
}

// ignoreGone: a container removes files while they are counted.
func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

func (d *driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	v, err := d.at(r.GetVolumeId(), strings.TrimSuffix(r.GetVolumePath(), "/"))
	if err != nil {
		return nil, err
	}
	if least := r.GetCapacityRange().GetRequiredBytes(); least > v.Capacity {
		return nil, status.Errorf(codes.OutOfRange, "%s has %d bytes, not %d: the controller expands first", v.ID, v.Capacity, least)
	}
	if v.Block {
		if err := growLoop(d.data(v)); err != nil {
			return nil, err
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Capacity}, nil
}
