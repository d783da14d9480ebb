package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The streamed statistics, what of them a node with cgroup v2 adds, and what else no other file sets.
func init() {
	register("stats/stream-containers", func(t *T) {
		pod, other := t.RunPod("stats"), t.RunPod("stats")
		container := pod.Sleep("main")
		pod.Sleep("side")
		other.Sleep("main")
		list := func(filter *cri.ContainerStatsFilter) []*cri.ContainerStats {
			stream, err := t.Runtime.StreamContainerStats(t.Ctx, &cri.StreamContainerStatsRequest{Filter: filter})
			t.OK("StreamContainerStats", err)
			var all []*cri.ContainerStats
			for _, piece := range receive(t, "StreamContainerStats", stream.Recv) {
				all = append(all, piece.ContainerStats...)
			}
			return all
		}
		found := list(&cri.ContainerStatsFilter{Id: container.ID})
		Equal(t, "by id", len(found), 1)
		Equal(t, "id", found[0].GetAttributes().GetId(), container.ID)
		Equal(t, "by sandbox", len(list(&cri.ContainerStatsFilter{PodSandboxId: pod.ID})), 2)
		Equal(t, "by label", len(list(&cri.ContainerStatsFilter{PodSandboxId: pod.ID, LabelSelector: map[string]string{"container": "side"}})), 1)
		t.True(len(list(nil)) >= 3, "all: %d", len(list(nil)))
	})
	register("stats/stream-sandboxes", func(t *T) {
		pod := t.RunPod("stats")
		pod.Sleep("main")
		t.RunPod("stats")
		list := func(filter *cri.PodSandboxStatsFilter) []*cri.PodSandboxStats {
			stream, err := t.Runtime.StreamPodSandboxStats(t.Ctx, &cri.StreamPodSandboxStatsRequest{Filter: filter})
			t.OK("StreamPodSandboxStats", err)
			var all []*cri.PodSandboxStats
			for _, piece := range receive(t, "StreamPodSandboxStats", stream.Recv) {
				all = append(all, piece.PodSandboxStats...)
			}
			return all
		}
		found := list(&cri.PodSandboxStatsFilter{Id: pod.ID})
		Equal(t, "by id", len(found), 1)
		Equal(t, "id", found[0].GetAttributes().GetId(), pod.ID)
		Equal(t, "by label", len(list(&cri.PodSandboxStatsFilter{LabelSelector: pod.Config.Labels})), 1)
		t.True(len(list(nil)) >= 2, "all: %d", len(list(nil)))
	})
	register("stats/pressure-io-and-swap", func(t *T) {
		container := t.RunPod("stats").Sleep("main", resources(func(to *cri.LinuxContainerResources) { to.MemoryLimitInBytes = 64 << 20 }))
		answer, err := t.Runtime.ContainerStats(t.Ctx, &cri.ContainerStatsRequest{ContainerId: container.ID})
		t.OK("ContainerStats", err)
		stats := answer.Stats
		if !unified() {
			// Pressure is told by v2 alone, for each cgroup.
			t.True(stats.GetCpu().GetPsi() == nil && stats.GetMemory().GetPsi() == nil && stats.GetIo() == nil, "pressure without cgroup v2: %s", stats)
			return
		}
		t.True(t.cgroup(container, "", "memory.max") == "67108864", "no limit")
		t.True(stats.GetMemory().GetAvailableBytes().GetValue() <= 64<<20, "available: %s", stats)
		if t.cgroupFolder(container, "", "cpu.pressure") != "" {
			t.True(stats.GetCpu().GetPsi().GetSome() != nil && stats.GetMemory().GetPsi().GetFull() != nil && stats.GetIo().GetPsi().GetSome() != nil, "no pressure: %s", stats)
		}
		if t.cgroupFolder(container, "", "memory.swap.current") != "" {
			t.True(stats.GetSwap().GetSwapUsageBytes() != nil, "no swap: %s", stats)
		}
	})
	register("stats/memory-available-within-a-limit", func(t *T) {
		container := t.RunPod("stats").Sleep("main", resources(func(to *cri.LinuxContainerResources) { to.MemoryLimitInBytes = 64 << 20 }))
		answer, err := t.Runtime.ContainerStats(t.Ctx, &cri.ContainerStatsRequest{ContainerId: container.ID})
		t.OK("ContainerStats", err)
		memory := answer.GetStats().GetMemory()
		available := memory.GetAvailableBytes().GetValue()
		t.True(available > 0 && available+memory.GetWorkingSetBytes().GetValue() == 64<<20, "%s", memory)
	})
	register("container/checkpoint-says-why-not", func(t *T) {
		container := t.RunPod("checkpoint").Sleep("main")
		_, err := t.Runtime.CheckpointContainer(t.Ctx, &cri.CheckpointContainerRequest{ContainerId: container.ID, Location: t.Folder("checkpoint") + "/archive.tar", Timeout: 10})
		t.True(err != nil, "checkpointed without criu")
		// kubelet and crictl show the message: it has to name the container and the missing program.
		t.Code("CheckpointContainer without criu", err, codes.Unknown)
		t.Contains("error", err.Error(), fmt.Sprintf("ailed to checkpoint container %q: criu binary not found", container.ID))
	})
	register("security/capabilities-ambient", func(t *T) {
		set := security(func(to *cri.LinuxContainerSecurityContext) {
			to.Capabilities = &cri.Capability{AddCapabilities: []string{"NET_BIND_SERVICE"}, AddAmbientCapabilities: []string{"NET_BIND_SERVICE"}}
		})
		pod := t.RunPod("ambient")
		text := pod.Output("grep CapAmb /proc/self/status | cut -f2", asUser(1000), set)
		if text == "0000000000000000\n" {
			t.Skipf("add_ambient_capabilities is passed over")
		}
		Equal(t, "ambient", text, "0000000000000400\n")
		// Worth something only when they survive the exec of a plain user's program.
		Equal(t, "effective", pod.Output("grep CapEff /proc/self/status | cut -f2", asUser(1000), set), "0000000000000400\n")
	})
	register("security/seccomp-profile-path-of-old", func(t *T) {
		pod := t.RunPod("seccomp")
		mode := func(path string) string {
			text := pod.Output("grep Seccomp: /proc/self/status | cut -f2", security(func(to *cri.LinuxContainerSecurityContext) {
				//nolint:staticcheck // Old clients set it still.
				to.SeccompProfilePath = path
			}))
			return text
		}
		Equal(t, "runtime/default", mode("runtime/default"), "2\n")
		Equal(t, "docker/default", mode("docker/default"), "2\n")
		Equal(t, "unconfined", mode("unconfined"), "0\n")
		profile := t.Write("profile.json", `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod","fchmodat","fchmod"],"action":"SCMP_ACT_ERRNO"}]}`)
		text := pod.Output("chmod 700 /tmp 2>/dev/null || echo refused", security(func(to *cri.LinuxContainerSecurityContext) {
			//nolint:staticcheck // Old clients set it still.
			to.SeccompProfilePath = "localhost/" + profile
		}))
		Equal(t, "localhost", text, "refused\n")
	})
	register("sandbox/security-context-of-the-sandbox-is-its-own", func(t *T) {
		// User, groups and root of pause: what a container does not inherit.
		pod := t.RunPod("sandboxuser", func(config *cri.PodSandboxConfig) {
			to := config.Linux.SecurityContext
			to.RunAsUser, to.RunAsGroup = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 1000}
			to.SupplementalGroups, to.ReadonlyRootfs = []int64{5678}, true
			to.SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
			to.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
		})
		Equal(t, "state", pod.Status().State, cri.PodSandboxState_SANDBOX_READY)
		Equal(t, "a container", pod.Output("id -u; touch /x && echo written; grep Seccomp: /proc/self/status | cut -f2"), "0\nwritten\n0\n")
	})
	register("sandbox/log-directory-and-annotations", func(t *T) {
		pod := t.RunPod("shown")
		status := pod.Status()
		Equal(t, "annotation", status.Annotations["note"], "kept as given")
		Equal(t, "label", status.Labels["suite"], pod.Config.Labels["suite"])
		container := pod.Run("main", "echo hi")
		container.AwaitExit()
		Equal(t, "log path", container.Status().LogPath, container.LogPath())
	})
	register("sandbox/windows-is-passed-over", func(t *T) {
		pod := t.RunPod("windows", func(config *cri.PodSandboxConfig) {
			config.Windows = &cri.WindowsPodSandboxConfig{SecurityContext: &cri.WindowsSandboxSecurityContext{RunAsUsername: "x"}}
		})
		text := pod.Output("id -u", func(config *cri.ContainerConfig) {
			config.Windows = &cri.WindowsContainerConfig{Resources: &cri.WindowsContainerResources{CpuCount: 1}}
		})
		Equal(t, "output", text, "0\n")
	})
	register("container/status-verbose-has-the-pid", func(t *T) {
		pod := t.RunPod("verbose")
		container := pod.Create("main", "trap 'exit 0' TERM; sleep 1000 & wait")
		var told struct {
			SandboxID string
			Pid       int
		}
		look := func() int {
			answer, err := t.Runtime.ContainerStatus(t.Ctx, &cri.ContainerStatusRequest{ContainerId: container.ID, Verbose: true})
			t.OK("ContainerStatus", err)
			t.OK("JSON of info", json.Unmarshal([]byte(answer.Info["info"]), &told))
			Equal(t, "sandbox", told.SandboxID, pod.ID)
			return told.Pid
		}
		Equal(t, "before the start", look(), 0)
		container.Start()
		t.Await("the program behind the pid", 10*time.Second, func() (bool, string) {
			words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", look()))
			return err == nil && strings.Contains(string(words), "sleep 1000"), string(words)
		})
		container.Stop(10)
		Equal(t, "after the end", look(), 0)
	})
	register("sandbox/status-verbose-has-the-pid", func(t *T) {
		pod := t.RunPod("verbose")
		var told struct {
			Pid                int
			ProcessStatus      string
			NetNamespaceClosed bool
		}
		look := func() {
			answer, err := t.Runtime.PodSandboxStatus(t.Ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.ID, Verbose: true})
			t.OK("PodSandboxStatus", err)
			t.OK("JSON of info", json.Unmarshal([]byte(answer.Info["info"]), &told))
		}
		look()
		Equal(t, "status", told.ProcessStatus, "running")
		// Scripts enter the pod's namespaces by it.
		inside, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", told.Pid))
		t.OK("readlink", err)
		Equal(t, "network", pod.Output("readlink /proc/self/ns/net"), inside+"\n")
		pod.Stop()
		look()
		t.True(told.NetNamespaceClosed, "the network namespace is told as open")
	})
	register("runtime/version-of-any-client", func(t *T) {
		for _, asked := range []string{"", "0.1.0", "v1", "v9"} {
			answer, err := t.Runtime.Version(t.Ctx, &cri.VersionRequest{Version: asked})
			t.OK("Version", err)
			Equal(t, "version", answer.Version, "0.1.0")
			Equal(t, "API version", answer.RuntimeApiVersion, "v1")
		}
	})
}
