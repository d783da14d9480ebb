package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What a request says of the pod as a whole, and of its first process.
func init() {
	register("resources/pod-without-a-parent", func(t *T) {
		memory := func(mib int64) *cri.LinuxContainerResources {
			return &cri.LinuxContainerResources{MemoryLimitInBytes: mib << 20}
		}
		// Where containerd puts such pods, and leaves the folder.
		t.Cleanup(func() { t.removeCgroup("/k8s.io") })
		pod := t.RunPod("whole", func(config *cri.PodSandboxConfig) {
			config.Linux.CgroupParent = ""
			config.Linux.Resources, config.Linux.Overhead = memory(64), memory(16)
		})
		container := pod.Sleep("main")
		limit := func() int64 {
			// The pod's cgroup is the one above its container's.
			folder := filepath.Dir(t.cgroupFolder(container, "memory.limit_in_bytes", "memory.max"))
			for _, name := range []string{"memory.limit_in_bytes", "memory.max"} {
				if text, err := os.ReadFile(filepath.Join(folder, name)); err == nil {
					// "max" is no number: no limit.
					number, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
					return number
				}
			}
			return 0
		}
		if got := limit(); got == 0 || got > 1<<40 {
			t.Skipf("a pod without a parent has no limits as a whole")
		}
		Equal(t, "resources and overhead", limit(), 80<<20)
		_, err := t.Runtime.UpdatePodSandboxResources(t.Ctx, &cri.UpdatePodSandboxResourcesRequest{
			PodSandboxId: pod.ID, Resources: memory(96), Overhead: memory(32),
		})
		t.OK("UpdatePodSandboxResources", err)
		Equal(t, "both, updated", limit(), 128<<20)
	})
	register("sandbox/seccomp", func(t *T) {
		mode := func(name string, set func(*cri.LinuxSandboxSecurityContext)) string {
			pod := t.RunPod(name, func(config *cri.PodSandboxConfig) { set(config.Linux.SecurityContext) })
			answer, err := t.Runtime.PodSandboxStatus(t.Ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.ID, Verbose: true})
			t.OK("PodSandboxStatus", err)
			var told struct{ Pid int }
			t.OK("JSON of info", json.Unmarshal([]byte(answer.Info["info"]), &told))
			text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(told.Pid), "status"))
			t.OK("status of the pod's first process", err)
			for _, line := range strings.Split(string(text), "\n") {
				if rest, ok := strings.CutPrefix(line, "Seccomp:"); ok {
					return strings.TrimSpace(rest)
				}
			}
			return ""
		}
		profile := func(kind cri.SecurityProfile_ProfileType) func(*cri.LinuxSandboxSecurityContext) {
			return func(to *cri.LinuxSandboxSecurityContext) { to.Seccomp = &cri.SecurityProfile{ProfileType: kind} }
		}
		path := func(path string) func(*cri.LinuxSandboxSecurityContext) {
			//nolint:staticcheck // Old clients set it still.
			return func(to *cri.LinuxSandboxSecurityContext) { to.SeccompProfilePath = path }
		}
		Equal(t, "RuntimeDefault", mode("default", profile(cri.SecurityProfile_RuntimeDefault)), "2")
		Equal(t, "Unconfined", mode("unconfined", profile(cri.SecurityProfile_Unconfined)), "0")
		Equal(t, "runtime/default", mode("path", path("runtime/default")), "2")
		Equal(t, "unconfined", mode("none", path("unconfined")), "0")
	})
}
