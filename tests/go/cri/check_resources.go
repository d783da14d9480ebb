package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func init() {
	register("resources/memory-limit", func(t *T) {
		container := t.RunPod("memory").Sleep("main", resources(func(to *cri.LinuxContainerResources) { to.MemoryLimitInBytes = 64 << 20 }))
		Equal(t, "limit", t.cgroup(container, "memory.limit_in_bytes", "memory.max"), "67108864")
	})
	register("resources/cpu", func(t *T) {
		container := t.RunPod("cpu").Sleep("main", resources(func(to *cri.LinuxContainerResources) {
			to.CpuShares, to.CpuQuota, to.CpuPeriod = 512, 50000, 100000
		}))
		t.cpuIs(container, "512", "50000", "100000")
	})
	register("resources/cpuset", func(t *T) {
		container := t.RunPod("cpu").Sleep("main", resources(func(to *cri.LinuxContainerResources) { to.CpusetCpus = "0" }))
		Equal(t, "cpus", t.cgroup(container, "cpuset.cpus", "cpuset.cpus"), "0")
		Equal(t, "affinity", strings.Fields(string(container.ExecSync("grep Cpus_allowed_list /proc/self/status").Stdout))[1], "0")
	})
	register("resources/update", func(t *T) {
		container := t.RunPod("update").Sleep("main", resources(func(to *cri.LinuxContainerResources) {
			to.CpuShares, to.MemoryLimitInBytes = 512, 64<<20
		}))
		_, err := t.Runtime.UpdateContainerResources(t.Ctx, &cri.UpdateContainerResourcesRequest{ContainerId: container.ID,
			Linux: &cri.LinuxContainerResources{CpuShares: 1024, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 128 << 20}})
		t.OK("UpdateContainerResources", err)
		t.cpuIs(container, "1024", "20000", "100000")
		Equal(t, "memory", t.cgroup(container, "memory.limit_in_bytes", "memory.max"), "134217728")
		linux := container.Status().GetResources().GetLinux()
		Equal(t, "shown memory", linux.GetMemoryLimitInBytes(), 128<<20)
		Equal(t, "shown shares", linux.GetCpuShares(), 1024)
		Equal(t, "shown quota", linux.GetCpuQuota(), 20000)
	})
	register("resources/update-leaves-the-rest", func(t *T) {
		container := t.RunPod("update").Sleep("main", resources(func(to *cri.LinuxContainerResources) {
			to.CpuShares, to.MemoryLimitInBytes = 512, 64<<20
		}))
		_, err := t.Runtime.UpdateContainerResources(t.Ctx, &cri.UpdateContainerResourcesRequest{ContainerId: container.ID,
			Linux: &cri.LinuxContainerResources{CpuShares: 256}})
		t.OK("UpdateContainerResources", err)
		Equal(t, "memory", t.cgroup(container, "memory.limit_in_bytes", "memory.max"), "67108864")
	})
	register("resources/update-created", func(t *T) {
		container := t.RunPod("update").Create("main", "trap 'exit 0' TERM; sleep 1000 & wait", resources(func(to *cri.LinuxContainerResources) { to.MemoryLimitInBytes = 64 << 20 }))
		_, err := t.Runtime.UpdateContainerResources(t.Ctx, &cri.UpdateContainerResourcesRequest{ContainerId: container.ID,
			Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 128 << 20}})
		t.OK("UpdateContainerResources", err)
		container.Start()
		Equal(t, "memory", t.cgroup(container, "memory.limit_in_bytes", "memory.max"), "134217728")
	})
	register("resources/update-unknown", func(t *T) {
		_, err := t.Runtime.UpdateContainerResources(t.Ctx, &cri.UpdateContainerResourcesRequest{ContainerId: unknownID, Linux: &cri.LinuxContainerResources{CpuShares: 2}})
		t.Code("UpdateContainerResources of an unknown id", err, codes.NotFound)
	})
	register("resources/update-sandbox", func(t *T) {
		pod := t.RunPod("update")
		_, err := t.Runtime.UpdatePodSandboxResources(t.Ctx, &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: pod.ID, Resources: &cri.LinuxContainerResources{CpuShares: 256}})
		t.OK("UpdatePodSandboxResources", err)
	})
	register("resources/oom-killed", func(t *T) {
		container := t.RunPod("oom").Run("main", "exec tail /dev/zero", resources(func(to *cri.LinuxContainerResources) {
			to.MemoryLimitInBytes, to.MemorySwapLimitInBytes = 20<<20, 20<<20
		}))
		status := container.AwaitExit()
		Equal(t, "exit code", status.ExitCode, 137)
		Equal(t, "reason", status.Reason, "OOMKilled")
	})
	register("resources/oom-of-a-child-passed-on", func(t *T) {
		container := t.RunPod("oom").Run("main", "tail /dev/zero; exit $?", resources(func(to *cri.LinuxContainerResources) {
			to.MemoryLimitInBytes, to.MemorySwapLimitInBytes = 20<<20, 20<<20
		}))
		status := container.AwaitExit()
		Equal(t, "exit code", status.ExitCode, 137)
		Equal(t, "reason", status.Reason, "OOMKilled")
	})
	register("resources/cgroup-parent", func(t *T) {
		if t.CgroupParent == "" {
			t.Skipf("no --cgroup-parent")
		}
		pod := t.RunPod("parent")
		container := pod.Sleep("main")
		t.Contains("the container's cgroup", t.cgroupFolder(container, "tasks", "cgroup.procs"), cgroupPath(pod.Config.Linux.CgroupParent)+"/")
	})
	register("stats/container", func(t *T) {
		pod := t.RunPod("stats")
		container := pod.Run("main", "trap 'exit 0' TERM; head -c 1000000 /dev/zero > /file; i=0; while :; do i=$((i+1)); [ $((i % 10000)) = 0 ] && sleep 0.01; done")
		var stats *cri.ContainerStats
		t.Await("stats", 20*time.Second, func() (bool, string) {
			answer, err := t.Runtime.ContainerStats(t.Ctx, &cri.ContainerStatsRequest{ContainerId: container.ID})
			t.OK("ContainerStats", err)
			stats = answer.Stats
			return stats.GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0 && stats.GetWritableLayer().GetUsedBytes().GetValue() >= 1000000, stats.String()
		})
		Equal(t, "id", stats.GetAttributes().GetId(), container.ID)
		Equal(t, "name", stats.GetAttributes().GetMetadata().GetName(), "main")
		Equal(t, "label", stats.GetAttributes().GetLabels()["container"], "main")
		t.True(stats.GetMemory().GetWorkingSetBytes().GetValue() > 0, "no working set: %s", stats)
		t.True(stats.GetMemory().GetUsageBytes().GetValue() > 0, "no usage: %s", stats)
		t.True(stats.GetCpu().GetTimestamp() > 0 && stats.GetMemory().GetTimestamp() > 0, "no times: %s", stats)
		t.True(stats.GetWritableLayer().GetFsId().GetMountpoint() != "", "no mount point: %s", stats)
	})
	register("stats/cpu-grows", func(t *T) {
		container := t.RunPod("stats").Run("main", "while :; do :; done")
		usage := func() uint64 {
			answer, err := t.Runtime.ContainerStats(t.Ctx, &cri.ContainerStatsRequest{ContainerId: container.ID})
			t.OK("ContainerStats", err)
			return answer.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue()
		}
		first := usage()
		t.Await("cpu time to grow", 20*time.Second, func() (bool, string) { return usage() > first, "as before" })
	})
	register("stats/list", func(t *T) {
		one, two := t.RunPod("stats"), t.RunPod("stats")
		container := one.Sleep("main")
		one.Sleep("side")
		two.Sleep("main")
		list := func(filter *cri.ContainerStatsFilter) []*cri.ContainerStats {
			answer, err := t.Runtime.ListContainerStats(t.Ctx, &cri.ListContainerStatsRequest{Filter: filter})
			t.OK("ListContainerStats", err)
			return answer.Stats
		}
		Equal(t, "by id", len(list(&cri.ContainerStatsFilter{Id: container.ID})), 1)
		Equal(t, "by sandbox", len(list(&cri.ContainerStatsFilter{PodSandboxId: one.ID})), 2)
		Equal(t, "by label", len(list(&cri.ContainerStatsFilter{PodSandboxId: one.ID, LabelSelector: map[string]string{"container": "main"}})), 1)
		t.True(len(list(nil)) >= 3, "all: %d", len(list(nil)))
		Equal(t, "unknown", len(list(&cri.ContainerStatsFilter{Id: unknownID})), 0)
	})
	register("stats/unknown", func(t *T) {
		_, err := t.Runtime.ContainerStats(t.Ctx, &cri.ContainerStatsRequest{ContainerId: unknownID})
		t.Code("ContainerStats of an unknown id", err, codes.NotFound)
		_, err = t.Runtime.PodSandboxStats(t.Ctx, &cri.PodSandboxStatsRequest{PodSandboxId: unknownID})
		t.Code("PodSandboxStats of an unknown id", err, codes.NotFound)
	})
	register("stats/sandbox", func(t *T) {
		pod := t.RunPod("stats")
		container := pod.Run("main", "while :; do :; done")
		var stats *cri.PodSandboxStats
		t.Await("stats", 20*time.Second, func() (bool, string) {
			answer, err := t.Runtime.PodSandboxStats(t.Ctx, &cri.PodSandboxStatsRequest{PodSandboxId: pod.ID})
			t.OK("PodSandboxStats", err)
			stats = answer.Stats
			return stats.GetLinux().GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0, stats.String()
		})
		Equal(t, "id", stats.GetAttributes().GetId(), pod.ID)
		Equal(t, "name", stats.GetAttributes().GetMetadata().GetName(), pod.Config.Metadata.Name)
		linux := stats.GetLinux()
		t.True(linux.GetMemory().GetWorkingSetBytes().GetValue() > 0, "no working set: %s", stats)
		t.True(linux.GetProcess().GetProcessCount().GetValue() > 0, "no processes: %s", stats)
		Equal(t, "interface", linux.GetNetwork().GetDefaultInterface().GetName(), "eth0")
		Equal(t, "containers", len(linux.GetContainers()), 1)
		Equal(t, "container", linux.GetContainers()[0].GetAttributes().GetId(), container.ID)
	})
	register("stats/list-sandboxes", func(t *T) {
		one := t.RunPod("stats")
		t.RunPod("stats")
		list := func(filter *cri.PodSandboxStatsFilter) []*cri.PodSandboxStats {
			answer, err := t.Runtime.ListPodSandboxStats(t.Ctx, &cri.ListPodSandboxStatsRequest{Filter: filter})
			t.OK("ListPodSandboxStats", err)
			return answer.Stats
		}
		Equal(t, "by id", len(list(&cri.PodSandboxStatsFilter{Id: one.ID})), 1)
		Equal(t, "by label", len(list(&cri.PodSandboxStatsFilter{LabelSelector: one.Config.Labels})), 1)
		t.True(len(list(nil)) >= 2, "all: %d", len(list(nil)))
	})
	register("metrics/descriptors", func(t *T) {
		keys := t.descriptors()
		base := []string{"pod", "namespace", "container", "id", "image"}
		for name, more := range map[string][]string{
			"container_cpu_usage_seconds_total":          nil,
			"container_cpu_cfs_throttled_periods_total":  nil,
			"container_memory_working_set_bytes":         nil,
			"container_memory_failures_total":            {"failure_type", "scope"},
			"container_oom_events_total":                 nil,
			"container_network_receive_bytes_total":      {"interface"},
			"container_fs_usage_bytes":                   {"device"},
			"container_fs_writes_bytes_total":            {"device"},
			"container_blkio_device_usage_total":         {"device", "major", "minor", "operation"},
			"container_processes":                        nil,
			"container_ulimits_soft":                     {"ulimit"},
			"container_last_seen":                        nil,
			"container_start_time_seconds":               nil,
			"container_spec_memory_limit_bytes":          nil,
			"container_memory_total_inactive_file_bytes": nil,
		} {
			Equal(t, "labels of "+name, strings.Join(keys[name], " "), strings.Join(append(append([]string(nil), base...), more...), " "))
		}
		t.True(len(keys) >= 49, "%d descriptors", len(keys))
	})
	register("metrics/list", func(t *T) {
		keys := t.descriptors()
		pod := t.RunPod("metrics")
		container := pod.Sleep("main", resources(func(to *cri.LinuxContainerResources) { to.MemoryLimitInBytes = 256 << 20 }), func(config *cri.ContainerConfig) {
			config.Image.UserSpecifiedImage = "as-the-user-says"
		})
		var own *cri.PodSandboxMetrics
		t.Await("metrics of the pod", 20*time.Second, func() (bool, string) {
			answer, err := t.Runtime.ListPodSandboxMetrics(t.Ctx, &cri.ListPodSandboxMetricsRequest{})
			t.OK("ListPodSandboxMetrics", err)
			own = podMetrics(answer.PodMetrics, pod.ID)
			if len(own.GetContainerMetrics()) != 1 {
				return false, own.String()
			}
			for _, metric := range own.ContainerMetrics[0].Metrics {
				// The kernel adds up a cgroup's pages every two seconds, or when there are many.
				if metric.Name == "container_memory_rss" && metric.GetValue().GetValue() == 0 {
					return false, metric.String()
				}
			}
			return true, ""
		})
		Equal(t, "container", own.ContainerMetrics[0].ContainerId, container.ID)
		t.described(keys, own)
		labels := strings.Join([]string{pod.Config.Metadata.Name, "cri-suite", "main", container.ID, "as-the-user-says"}, " ")
		found := map[string]*cri.Metric{}
		for _, metric := range own.ContainerMetrics[0].Metrics {
			found[metric.Name] = metric
			Equal(t, "labels of "+metric.Name, strings.Join(metric.LabelValues[:5], " "), labels)
		}
		for name, least := range map[string]uint64{
			"container_cpu_usage_seconds_total":  0,
			"container_cpu_user_seconds_total":   0,
			"container_memory_usage_bytes":       1,
			"container_memory_working_set_bytes": 1,
			"container_memory_rss":               1,
			"container_memory_failures_total":    0,
			"container_oom_events_total":         0,
			"container_fs_usage_bytes":           0,
			"container_fs_limit_bytes":           1,
			"container_processes":                1,
			"container_file_descriptors":         3,
			"container_sockets":                  0,
			"container_threads_max":              0,
			"container_last_seen":                1700000000,
			"container_start_time_seconds":       1700000000,
			"container_spec_memory_limit_bytes":  256 << 20,
		} {
			t.True(found[name] != nil && found[name].GetValue().GetValue() >= least, "%s: %v", name, found[name])
		}
		Equal(t, "type of a counter", found["container_cpu_usage_seconds_total"].MetricType, cri.MetricType_COUNTER)
		Equal(t, "type of a gauge", found["container_memory_usage_bytes"].MetricType, cri.MetricType_GAUGE)
		Equal(t, "kill of nobody", found["container_oom_events_total"].Value.Value, 0)
		network := map[string][]string{}
		for _, metric := range own.Metrics {
			network[metric.Name] = metric.LabelValues
		}
		Equal(t, "interface", strings.Join(network["container_network_transmit_packets_total"], "|"),
			strings.Join([]string{pod.Config.Metadata.Name, "cri-suite", "", pod.ID, "", "eth0"}, "|"))
		container.Stop(10)
		pod.Stop()
		answer, err := t.Runtime.ListPodSandboxMetrics(t.Ctx, &cri.ListPodSandboxMetricsRequest{})
		t.OK("ListPodSandboxMetrics", err)
		t.True(podMetrics(answer.PodMetrics, pod.ID) == nil, "metrics of a pod that is stopped")
	})
	register("metrics/stream", func(t *T) {
		pod := t.RunPod("metrics")
		pod.Sleep("main")
		stream, err := t.Runtime.StreamPodSandboxMetrics(t.Ctx, &cri.StreamPodSandboxMetricsRequest{})
		t.OK("StreamPodSandboxMetrics", err)
		var all []*cri.PodSandboxMetrics
		for {
			piece, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if status.Code(err) == codes.Unimplemented {
				t.Skipf("StreamPodSandboxMetrics is not implemented")
			}
			t.OK("Recv", err)
			all = append(all, piece.PodSandboxMetrics...)
		}
		own := podMetrics(all, pod.ID)
		Equal(t, "containers", len(own.GetContainerMetrics()), 1)
		t.described(t.descriptors(), own)
	})
	register("container/checkpoint-without-criu", func(t *T) {
		container := t.RunPod("checkpoint").Sleep("main")
		location := filepath.Join(t.Folder("checkpoint"), "archive.tar")
		_, err := t.Runtime.CheckpointContainer(t.Ctx, &cri.CheckpointContainerRequest{ContainerId: container.ID, Location: location})
		t.True(err != nil, "a container was checkpointed without criu")
		t.Contains("error", err.Error(), "criu binary not found")
		Equal(t, "state", container.Status().State, cri.ContainerState_CONTAINER_RUNNING)
		_, err = os.Stat(location)
		t.True(os.IsNotExist(err), "an archive was left behind: %v", err)
	})
}

// descriptors is ListMetricDescriptors: the labels of each metric.
func (t *T) descriptors() map[string][]string {
	answer, err := t.Runtime.ListMetricDescriptors(t.Ctx, &cri.ListMetricDescriptorsRequest{})
	t.OK("ListMetricDescriptors", err)
	keys := map[string][]string{}
	for _, one := range answer.Descriptors {
		t.True(keys[one.Name] == nil, "%s is described twice", one.Name)
		t.True(one.Help != "", "%s has no help", one.Name)
		keys[one.Name] = one.LabelKeys
	}
	return keys
}

// described says whether each metric has a descriptor with as many labels, is there once, and has a time:
// a Prometheus client refuses the rest.
func (t *T) described(keys map[string][]string, of *cri.PodSandboxMetrics) {
	metrics := append([]*cri.Metric(nil), of.Metrics...)
	for _, container := range of.ContainerMetrics {
		metrics = append(metrics, container.Metrics...)
	}
	seen := map[string]bool{}
	for _, metric := range metrics {
		Equal(t, "labels of "+metric.Name, len(metric.LabelValues), len(keys[metric.Name]))
		t.True(metric.Timestamp > 0, "%s has no time", metric.Name)
		series := metric.Name + "|" + strings.Join(metric.LabelValues, "|")
		t.True(!seen[series], "%s is there twice", series)
		seen[series] = true
	}
}

func podMetrics(all []*cri.PodSandboxMetrics, id string) *cri.PodSandboxMetrics {
	for _, one := range all {
		if one.PodSandboxId == id {
			return one
		}
	}
	return nil
}

func (t *T) cpuIs(container *Container, shares, quota, period string) {
	if folder := t.cgroupFolder(container, "cpu.shares", ""); folder != "" {
		Equal(t, "cpu.shares", t.cgroup(container, "cpu.shares", ""), shares)
		Equal(t, "cpu.cfs_quota_us", t.cgroup(container, "cpu.cfs_quota_us", ""), quota)
		Equal(t, "cpu.cfs_period_us", t.cgroup(container, "cpu.cfs_period_us", ""), period)
		return
	}
	Equal(t, "cpu.max", t.cgroup(container, "", "cpu.max"), quota+" "+period)
}

// cgroup reads a file of the container's own cgroup on the host, by its v1 or its v2 name.
func (t *T) cgroup(container *Container, v1, v2 string) string {
	folder := t.cgroupFolder(container, v1, v2)
	t.True(folder != "", "no cgroup of %s with %s or %s", container.ID, v1, v2)
	for _, name := range []string{v1, v2} {
		if text, err := os.ReadFile(filepath.Join(folder, name)); name != "" && err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}

// cgroupFolder finds the cgroup folder named after the container that holds one of two files.
func (t *T) cgroupFolder(container *Container, v1, v2 string) (found string) {
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || found != "" {
			// Cgroups of others come and go meanwhile.
			return nil
		}
		if !strings.Contains(entry.Name(), container.ID) {
			return nil
		}
		for _, name := range []string{v1, v2} {
			if _, err := os.Stat(filepath.Join(path, name)); name != "" && err == nil {
				found = path
			}
		}
		return nil
	})
	t.OK("walk /sys/fs/cgroup", err)
	return found
}
