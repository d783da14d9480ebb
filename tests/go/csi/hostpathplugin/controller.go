package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	"os"
	"sort"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What a volume has when nobody asks for a size, in bytes.
const defaultCapacity = 64 << 20

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	kinds := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.attach {
		kinds = append(kinds,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	}
	for _, kind := range kinds {
		rpc := &csi.ControllerServiceCapability_RPC{Type: kind}
		one := &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}
		answer.Capabilities = append(answer.Capabilities, one)
	}
	return answer, nil
}

func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	}
	block, err := isBlock(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	if r.GetVolumeContentSource() != nil {
		return nil, status.Error(codes.InvalidArgument, "a volume is made of nothing: no snapshots, no clones")
	}
	if !d.reaches(r.GetAccessibilityRequirements()) {
		return nil, status.Errorf(codes.ResourceExhausted, "volumes are on the node %s alone", d.node)
	}
	least, most := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	if least < 0 || most < 0 || (most > 0 && least > most) {
		return nil, status.Errorf(codes.OutOfRange, "no size is at least %d and at most %d bytes", least, most)
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	if known := d.named(r.GetName()); known != nil {
		if known.Capacity < least || (most > 0 && known.Capacity > most) || known.Block != block {
			return nil, status.Errorf(codes.AlreadyExists, "%q is there with another size or kind", known.Name)
		}
		return &csi.CreateVolumeResponse{Volume: d.told(known)}, nil
	}
	size := least
	if size == 0 {
		size = defaultCapacity
	}
	if most > 0 {
		size = min(size, most)
	}
	if space, err := d.space(); err != nil || size > space {
		return nil, status.Errorf(codes.OutOfRange, "%d bytes asked for, %d there (%v)", size, space, err)
	}
	v := &volume{ID: newID(), Name: r.GetName(), Capacity: size, Block: block, Published: map[string]bool{}}
	if err := d.make(v); err != nil {
		return nil, err
	}
	d.volumes[v.ID] = v
	return &csi.CreateVolumeResponse{Volume: d.told(v)}, d.save()
}

// isBlock tells the one kind that all capabilities are of, or why there is none.
func isBlock(all []*csi.VolumeCapability) (bool, error) {
	if len(all) == 0 {
		return false, status.Error(codes.InvalidArgument, "volume capabilities are missing")
	}
	block, mount := false, false
	for _, one := range all {
		if err := isGood(one); err != nil {
			return false, err
		}
		block = block || one.GetBlock() != nil
		mount = mount || one.GetMount() != nil
	}
	if block && mount {
		return false, status.Error(codes.InvalidArgument, "a volume is a block device or a folder, not both")
	}
	return block, nil
}

func isGood(one *csi.VolumeCapability) error {
	if one == nil {
		return status.Error(codes.InvalidArgument, "volume_capability is missing")
	}
	if one.GetBlock() == nil && one.GetMount() == nil {
		return status.Error(codes.InvalidArgument, "a capability without an access type")
	}
	if one.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN {
		return status.Error(codes.InvalidArgument, "a capability without an access mode")
	}
	return nil
}

func newID() string {
	bytes := make([]byte, 8)
	// It never fails: the program would end.
	rand.Read(bytes)
	return "volume-" + hex.EncodeToString(bytes)
}

func (d *driver) told(v *volume) *csi.Volume {
	told := &csi.Volume{
		VolumeId:      v.ID,
		CapacityBytes: v.Capacity,
		VolumeContext: map[string]string{"name": v.Name},
	}
	if d.bound {
		told.AccessibleTopology = []*csi.Topology{d.topology()}
	}
	return told
}

// space is what is free where the volumes are, in bytes.
func (d *driver) space() (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(d.folder, &fs); err != nil {
		return 0, err
	}
	free := fs.Bavail * uint64(fs.Bsize)
	return int64(min(free, math.MaxInt64)), nil
}

func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	v, err := d.find(r.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if v.Node != "" || v.Staged != "" || len(v.Published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is in use on %s", v.ID, d.node)
	}
	return &csi.DeleteVolumeResponse{}, d.remove(v)
}

func (d *driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if !d.attach {
		return nil, status.Error(codes.Unimplemented, "without --enable-attach no volume is attached")
	}
	if r.GetVolumeId() == "" || r.GetNodeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or node_id is missing")
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
	if r.GetNodeId() != d.node {
		return nil, status.Errorf(codes.NotFound, "there is no node %q, only %s", r.GetNodeId(), d.node)
	}
	if (r.GetVolumeCapability().GetBlock() != nil) != v.Block {
		return nil, status.Errorf(codes.InvalidArgument, "%s is of the other access type", v.ID)
	}
	if v.Node != "" && v.ReadOnly != r.GetReadonly() {
		return nil, status.Errorf(codes.AlreadyExists, "%s is published with readonly %v", v.ID, v.ReadOnly)
	}
	if v.Node == "" && d.limit > 0 && d.attached() >= d.limit {
		return nil, status.Errorf(codes.ResourceExhausted, "the node has its %d volumes", d.limit)
	}
	v.Node, v.ReadOnly = r.GetNodeId(), r.GetReadonly()
	context := map[string]string{"device": d.data(v)}
	return &csi.ControllerPublishVolumeResponse{PublishContext: context}, d.save()
}

func (d *driver) attached() int64 {
	var count int64
	for _, v := range d.volumes {
		if v.Node != "" {
			count++
		}
	}
	return count
}

func (d *driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if !d.attach {
		return nil, status.Error(codes.Unimplemented, "without --enable-attach no volume is attached")
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	v, err := d.find(r.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if r.GetNodeId() != "" && r.GetNodeId() != d.node {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if v.Staged != "" || len(v.Published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is still staged or published on %s", v.ID, d.node)
	}
	v.Node, v.ReadOnly = "", false
	return &csi.ControllerUnpublishVolumeResponse{}, d.save()
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities are missing")
	}
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	block, err := isBlock(r.GetVolumeCapabilities())
	if err != nil || block != v.Block {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: "it is of the other access type"}, nil
	}
	confirmed := &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext:      r.GetVolumeContext(),
		VolumeCapabilities: r.GetVolumeCapabilities(),
		Parameters:         r.GetParameters(),
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: confirmed}, nil
}

// ListVolumes lists by ID; a token is the ID that comes next, or the one after it when that has gone.
func (d *driver) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	token, most := r.GetStartingToken(), int(r.GetMaxEntries())
	if most < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "max_entries is %d", most)
	}
	if token != "" && (len(token) != len(newID()) || token[:7] != "volume-") {
		return nil, status.Errorf(codes.Aborted, "%q is no token of this list: start anew", token)
	}
	var ids []string
	for id, v := range d.volumes {
		if id >= token && !v.Ephemeral {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	answer := &csi.ListVolumesResponse{}
	if most > 0 && len(ids) > most {
		answer.NextToken, ids = ids[most], ids[:most]
	}
	for _, id := range ids {
		v := d.volumes[id]
		entry := &csi.ListVolumesResponse_Entry{Volume: d.told(v), Status: &csi.ListVolumesResponse_VolumeStatus{}}
		if v.Node != "" {
			entry.Status.PublishedNodeIds = []string{v.Node}
		}
		answer.Entries = append(answer.Entries, entry)
	}
	return answer, nil
}

func (d *driver) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if r.GetAccessibleTopology() != nil && !d.isHere(r.GetAccessibleTopology()) {
		return &csi.GetCapacityResponse{}, nil
	}
	space, err := d.space()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%s: %v", d.folder, err)
	}
	return &csi.GetCapacityResponse{AvailableCapacity: space}, nil
}

// ControllerExpandVolume never shrinks. The node must hear of it: a loop device does not look at its file by itself.
func (d *driver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_id or capacity_range is missing")
	}
	v, err := d.find(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	size := max(v.Capacity, r.GetCapacityRange().GetRequiredBytes())
	if most := r.GetCapacityRange().GetLimitBytes(); most > 0 && size > most {
		return nil, status.Errorf(codes.OutOfRange, "%d bytes are more than the limit of %d", size, most)
	}
	if v.Block {
		if err := os.Truncate(d.data(v), size); err != nil {
			return nil, status.Errorf(codes.Internal, "expand: %v", err)
		}
	}
	v.Capacity = size
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: d.nodeExpands || v.Block}, d.save()
}
