package main

import "github.com/container-storage-interface/spec/lib/go/csi"

// key of the one segment that a volume is bound to: the node.
func (d *driver) key() string { return "topology." + d.name + "/node" }

func (d *driver) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{d.key(): d.node}}
}

// isHere tells whether every segment of it is this node's.
func (d *driver) isHere(t *csi.Topology) bool {
	for key, value := range t.GetSegments() {
		if key != d.key() || value != d.node {
			return false
		}
	}
	return true
}

// reaches tells whether a volume of this node meets the requirement.
func (d *driver) reaches(r *csi.TopologyRequirement) bool {
	if len(r.GetRequisite()) == 0 {
		return true
	}
	for _, one := range r.GetRequisite() {
		if d.isHere(one) {
			return true
		}
	}
	return false
}
