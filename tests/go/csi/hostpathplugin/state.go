package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type options struct {
	name   string
	node   string
	folder string
	limit  int64
	// A volume must be attached; it says which node it is on; the node has a part in its expansion.
	attach, bound, nodeExpands bool
}

// volume is what the driver knows of one; all of it is in the state file.
type volume struct {
	ID string `json:"id"`
	// The name that CreateVolume was called with; empty for an inline volume.
	Name string `json:"name"`
	// Bytes
	Capacity  int64 `json:"capacity"`
	Block     bool  `json:"block"`
	Ephemeral bool  `json:"ephemeral"`
	// The node that the controller has published it to; empty: none.
	Node     string `json:"node"`
	ReadOnly bool   `json:"readOnly"`
	// Where it is staged; empty: nowhere.
	Staged string `json:"staged"`
	// Target paths, and whether each is read-only.
	Published map[string]bool `json:"published"`
}

// driver serves all three services. One lock for all: a mount takes no time.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	options
	lock    sync.Mutex
	volumes map[string]*volume
}

func newDriver(o options) (*driver, error) {
	if o.node == "" {
		return nil, errors.New("--nodeid is missing: the node's name")
	}
	d := &driver{options: o, volumes: map[string]*volume{}}
	if err := os.MkdirAll(d.volumesFolder(), 0o750); err != nil {
		return nil, err
	}
	bytes, err := os.ReadFile(d.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(bytes, &d.volumes); err != nil {
		return nil, fmt.Errorf("%s: %w", d.stateFile(), err)
	}
	return d, nil
}

func (d *driver) stateFile() string { return filepath.Join(d.folder, "state.json") }

func (d *driver) volumesFolder() string { return filepath.Join(d.folder, "volumes") }

// data is the folder of a volume, or its file when it is a block device.
func (d *driver) data(v *volume) string { return filepath.Join(d.volumesFolder(), v.ID) }

// save replaces the state file. What is told to the caller afterwards survives the driver's death, and a power cut.
func (d *driver) save() error {
	bytes, err := json.MarshalIndent(d.volumes, "", " ")
	if err != nil {
		return status.Errorf(codes.Internal, "encode the state: %v", err)
	}
	next := d.stateFile() + ".next"
	if err := writeSynced(next, bytes); err != nil {
		return status.Errorf(codes.Internal, "write the state: %v", err)
	}
	if err := os.Rename(next, d.stateFile()); err != nil {
		return status.Errorf(codes.Internal, "replace the state: %v", err)
	}
	folder, err := os.Open(d.folder)
	if err != nil {
		return status.Errorf(codes.Internal, "open the state's folder: %v", err)
	}
	defer folder.Close()
	if err := folder.Sync(); err != nil {
		return status.Errorf(codes.Internal, "sync the state's folder: %v", err)
	}
	return nil
}

func writeSynced(path string, bytes []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(bytes)
	return errors.Join(err, file.Sync(), file.Close())
}

func (d *driver) find(id string) (*volume, error) {
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	v, is := d.volumes[id]
	if !is {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", id)
	}
	return v, nil
}

func (d *driver) named(name string) *volume {
	for _, v := range d.volumes {
		if v.Name == name && !v.Ephemeral {
			return v
		}
	}
	return nil
}

// make creates what holds the data; it may be there from a call whose answer was lost.
func (d *driver) make(v *volume) error {
	if !v.Block {
		if err := os.Mkdir(d.data(v), 0o777); err != nil && !os.IsExist(err) {
			return status.Errorf(codes.Internal, "make the volume: %v", err)
		}
		// Whatever the umask is: the caller's fsGroup is the caller's matter.
		if err := os.Chmod(d.data(v), 0o777); err != nil {
			return status.Errorf(codes.Internal, "open the volume to all: %v", err)
		}
		return nil
	}
	file, err := os.OpenFile(d.data(v), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return status.Errorf(codes.Internal, "make the volume: %v", err)
	}
	defer file.Close()
	if err := file.Truncate(v.Capacity); err != nil {
		return status.Errorf(codes.ResourceExhausted, "size the volume: %v", err)
	}
	return nil
}

func (d *driver) remove(v *volume) error {
	if err := os.RemoveAll(d.data(v)); err != nil {
		return status.Errorf(codes.Internal, "remove the volume: %v", err)
	}
	delete(d.volumes, v.ID)
	return d.save()
}

// isPlain tells whether an ID that the caller has chosen is safe as a file's name.
func isPlain(id string) bool {
	return id != "." && id != ".." && !strings.ContainsAny(id, "/\x00")
}
