package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits whose controller a node may lack, and what is told of them. A node with cgroup v1 has no
// `unified`, one without the controller no huge pages: what holds then is checked in their place.
func init() {
	register("resources/cpuset-mems", func(t *T) {
		container := t.RunPod("mems").Sleep("main", resources(func(to *cri.LinuxContainerResources) { to.CpusetMems = "0" }))
		Equal(t, "mems", t.cgroup(container, "cpuset.mems", "cpuset.mems"), "0")
		Equal(t, "shown", container.Status().GetResources().GetLinux().GetCpusetMems(), "0")
	})
	register("resources/cpuset-that-is-not-there", func(t *T) {
		pod := t.RunPod("mems")
		t.Need(t.Image)
		container, err := pod.TryCreate(pod.containerConfig("main", "true", resources(func(to *cri.LinuxContainerResources) { to.CpusetCpus = "9999" })))
		if err == nil {
			err = container.TryStart()
		}
		t.True(err != nil, "a container runs on a CPU that is not there")
	})
	register("resources/oom-score-adj-is-shown", func(t *T) {
		container := t.RunPod("score").Sleep("main", resources(func(to *cri.LinuxContainerResources) { to.OomScoreAdj = 999 }))
		Equal(t, "shown", container.Status().GetResources().GetLinux().GetOomScoreAdj(), 999)
		Equal(t, "in force", string(container.ExecSync("cat /proc/1/oom_score_adj").Stdout), "999\n")
	})
	register("resources/hugepages", func(t *T) {
		pod := t.RunPod("huge")
		t.Need(t.Image)
		container, err := pod.TryCreate(pod.containerConfig("main", "trap 'exit 0' TERM; sleep 1000 & wait", resources(func(to *cri.LinuxContainerResources) {
			to.HugepageLimits = []*cri.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}}
		})))
		if err == nil {
			err = container.TryStart()
		}
		if t.cgroupFolderOfSelf("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max") == "" {
			// Nothing can be limited: a runtime passes over it, or says so by the controller's name.
			t.True(err == nil || strings.Contains(err.Error(), "hugetlb"), "%v", err)
			t.Skipf("this node limits no huge pages of 2 MB")
		}
		t.OK("the container", err)
		Equal(t, "limit", t.cgroup(container, "hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max"), "4194304")
		shown := container.Status().GetResources().GetLinux().GetHugepageLimits()
		Equal(t, "limits shown", len(shown), 1)
		Equal(t, "limit shown", shown[0].Limit, 4<<20)
	})
	register("resources/hugepages-of-an-unknown-size", func(t *T) {
		if t.cgroupFolderOfSelf("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max") == "" {
			t.Skipf("this node limits no huge pages of 2 MB")
		}
		pod := t.RunPod("huge")
		t.Need(t.Image)
		container, err := pod.TryCreate(pod.containerConfig("main", "true", resources(func(to *cri.LinuxContainerResources) {
			to.HugepageLimits = []*cri.HugepageLimit{{PageSize: "3MB", Limit: 6 << 20}}
		})))
		if err == nil {
			err = container.TryStart()
		}
		t.True(err != nil, "pages of 3 MB were limited")
	})
	register("resources/swap-limit", func(t *T) {
		set := func(memory, both int64) Change {
			return resources(func(to *cri.LinuxContainerResources) {
				to.MemoryLimitInBytes, to.MemorySwapLimitInBytes = memory, both
			})
		}
		pod := t.RunPod("swap")
		container := pod.Sleep("main", set(64<<20, 96<<20))
		t.swapIs(container, 64<<20, 96<<20)
		update := func(memory, both int64) {
			_, err := t.Runtime.UpdateContainerResources(t.Ctx, &cri.UpdateContainerResourcesRequest{ContainerId: container.ID,
				Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: memory, MemorySwapLimitInBytes: both}})
			t.OK("UpdateContainerResources", err)
			t.swapIs(container, memory, both)
		}
		// Up past the old sum, and down below the old limit: the order of the two files differs.
		update(128<<20, 160<<20)
		update(32<<20, 48<<20)
		t.swapIs(pod.Sleep("none", set(64<<20, 64<<20)), 64<<20, 64<<20)
		Equal(t, "shown", container.Status().GetResources().GetLinux().GetMemorySwapLimitInBytes(), 48<<20)
	})
	register("resources/unified", func(t *T) {
		set := func(key, value string) Change {
			return resources(func(to *cri.LinuxContainerResources) { to.Unified = map[string]string{key: value} })
		}
		pod := t.RunPod("unified")
		t.Need(t.Image)
		if !unified() {
			// There are no such files; a runtime says so at the latest when the container is to start.
			container, err := pod.TryCreate(pod.containerConfig("main", "true", set("memory.oom.group", "1")))
			if err == nil {
				err = container.TryStart()
			}
			t.True(err != nil, "memory.oom.group was taken on cgroup v1")
			return
		}
		Equal(t, "pids.max", t.cgroup(pod.Sleep("pids", set("pids.max", "77")), "", "pids.max"), "77")
		Equal(t, "memory.high", t.cgroup(pod.Sleep("high", set("memory.high", "33554432")), "", "memory.high"), "33554432")
		Equal(t, "memory.oom.group", t.cgroup(pod.Sleep("group", set("memory.oom.group", "1")), "", "memory.oom.group"), "1")
	})
	register("resources/unified-stays-in-its-cgroup", func(t *T) {
		pod := t.RunPod("unified")
		t.Need(t.Image)
		container, err := pod.TryCreate(pod.containerConfig("main", "true", resources(func(to *cri.LinuxContainerResources) {
			to.Unified = map[string]string{"../memory.max": "1048576"}
		})))
		if err == nil {
			err = container.TryStart()
		}
		t.True(err != nil, "a file outside of the container's cgroup was written")
	})
	register("resources/fork-bomb-within-pids", func(t *T) {
		if !unified() {
			t.Skipf("this node has cgroup v1, where CRI limits no processes: the kubelet does, in the pod's own cgroup")
		}
		container := t.RunPod("bomb").Sleep("main", resources(func(to *cri.LinuxContainerResources) {
			to.Unified = map[string]string{"pids.max": "20"}
		}))
		answer, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Timeout: 20,
			Cmd: []string{"/bin/sh", "-c", "i=0; while [ $i -lt 100 ]; do sleep 1 & i=$((i+1)); done; wait"}})
		t.True(err != nil || strings.Contains(string(answer.Stderr), "fork"), "100 processes ran within 20: %v", answer)
		Equal(t, "state", container.Status().State, cri.ContainerState_CONTAINER_RUNNING)
	})
	register("resources/overhead", func(t *T) {
		pod := t.RunPod("overhead", func(config *cri.PodSandboxConfig) {
			config.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 512}
			config.Linux.Overhead = &cri.LinuxContainerResources{MemoryLimitInBytes: 16 << 20, CpuShares: 128}
		})
		Equal(t, "output", pod.Output("echo fine"), "fine\n")
		_, err := t.Runtime.UpdatePodSandboxResources(t.Ctx, &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: pod.ID,
			Overhead: &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20}, Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: 96 << 20}})
		t.OK("UpdatePodSandboxResources", err)
		Equal(t, "output", pod.Output("echo still fine"), "still fine\n")
	})
	register("resources/update-takes-annotations", func(t *T) {
		container := t.RunPod("update").Sleep("main")
		_, err := t.Runtime.UpdateContainerResources(t.Ctx, &cri.UpdateContainerResourcesRequest{ContainerId: container.ID,
			Linux: &cri.LinuxContainerResources{CpuShares: 256}, Annotations: map[string]string{"note": "of an update"}})
		t.OK("UpdateContainerResources", err)
		// They are for plugins of the runtime: the container's own stay what CreateContainer said.
		Equal(t, "annotations", len(container.Status().Annotations), 0)
	})
	register("container/list-shows-the-request-s-image", func(t *T) {
		reference := t.Pull(t.Image)
		spec := &cri.ImageSpec{Image: reference, UserSpecifiedImage: "as-the-user-says", Annotations: map[string]string{"a": "b"}}
		container := t.RunPod("image").Create("main", "true", func(config *cri.ContainerConfig) {
			config.Image = proto.Clone(spec).(*cri.ImageSpec)
		})
		listed := t.containers(&cri.ContainerFilter{Id: container.ID})
		Equal(t, "containers", len(listed), 1)
		t.True(proto.Equal(listed[0].Image, spec), "listed with %v, made with %v", listed[0].Image, spec)
		Equal(t, "image_id", listed[0].ImageId, reference)
		// Its status tells a name of the image: what the kubelet shows beside the container.
		Equal(t, "status", container.Status().GetImage().GetImage(), t.Image)
	})
}

// unified says whether this node has cgroup v2 alone.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// cgroupFolderOfSelf looks for a file of a controller in any cgroup.
func (t *T) cgroupFolderOfSelf(names ...string) string {
	for _, name := range names {
		found, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
		t.OK("glob", err)
		if len(found) > 0 {
			return filepath.Dir(found[0])
		}
	}
	return ""
}

// swapIs holds a container's limits of memory, and of memory and swap together: v2 has swap alone. A
// kernel that counts no swap has no file for it.
func (t *T) swapIs(container *Container, memory, both int64) {
	number := func(value int64) string { return strconv.FormatInt(value, 10) }
	Equal(t, "memory", t.cgroup(container, "memory.limit_in_bytes", "memory.max"), number(memory))
	if t.cgroupFolder(container, "memory.memsw.limit_in_bytes", "") != "" {
		Equal(t, "memory and swap", t.cgroup(container, "memory.memsw.limit_in_bytes", ""), number(both))
	}
	if t.cgroupFolder(container, "", "memory.swap.max") != "" {
		Equal(t, "swap", t.cgroup(container, "", "memory.swap.max"), number(both-memory))
	}
}
