package main

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func init() {
	register("container/lifecycle", func(t *T) {
		pod := t.RunPod("life")
		before := time.Now().UnixNano()
		container := pod.Create("main", "trap 'exit 0' TERM; echo ready; sleep 1000 & wait", func(config *cri.ContainerConfig) {
			config.Annotations = map[string]string{"a": "b"}
		})
		created := container.Status()
		Equal(t, "state", created.State, cri.ContainerState_CONTAINER_CREATED)
		t.True(created.CreatedAt >= before && created.CreatedAt <= time.Now().UnixNano(), "created_at %d", created.CreatedAt)
		Equal(t, "started_at", created.StartedAt, 0)
		Equal(t, "finished_at", created.FinishedAt, 0)
		container.Start()
		running := container.Status()
		Equal(t, "state", running.State, cri.ContainerState_CONTAINER_RUNNING)
		t.True(running.StartedAt >= created.CreatedAt, "started_at %d before created_at", running.StartedAt)
		Equal(t, "finished_at", running.FinishedAt, 0)
		Equal(t, "reason", running.Reason, "")
		Equal(t, "id", running.Id, container.ID)
		Equal(t, "name", running.Metadata.GetName(), "main")
		Equal(t, "label", running.Labels["container"], "main")
		Equal(t, "annotation", running.Annotations["a"], "b")
		Equal(t, "log_path", running.LogPath, container.LogPath())
		// Before it has its handler, a SIGTERM to the first process of a namespace is lost.
		container.AwaitWritten("ready")
		container.Stop(10)
		exited := container.Status()
		Equal(t, "state", exited.State, cri.ContainerState_CONTAINER_EXITED)
		t.True(exited.FinishedAt >= running.StartedAt, "finished_at %d before started_at", exited.FinishedAt)
		Equal(t, "started_at", exited.StartedAt, running.StartedAt)
		Equal(t, "exit code", exited.ExitCode, 0)
		Equal(t, "reason", exited.Reason, "Completed")
		container.Remove()
		Equal(t, "containers", len(t.containers(&cri.ContainerFilter{Id: container.ID})), 0)
	})
	register("container/status-image", func(t *T) {
		reference := t.Pull(t.Image)
		pod := t.RunPod("image")
		container := pod.Create("main", "true", func(config *cri.ContainerConfig) {
			// The kubelet sends what PullImage answered, and the name the user wrote beside it.
			config.Image = &cri.ImageSpec{Image: reference, UserSpecifiedImage: t.Image}
		})
		status := container.Status()
		Equal(t, "image", status.GetImage().GetImage(), t.Image)
		t.True(strings.Contains(status.ImageRef, "sha256:"), "image_ref %q has no digest", status.ImageRef)
		Equal(t, "image_id", status.ImageId, reference)
	})
	register("container/status-mounts-and-resources", func(t *T) {
		pod := t.RunPod("shown")
		host := t.Folder("data")
		container := pod.Create("main", "true", mounted(&cri.Mount{HostPath: host, ContainerPath: "/data", Readonly: true}),
			resources(func(to *cri.LinuxContainerResources) { to.CpuShares = 512; to.MemoryLimitInBytes = 64 << 20 }))
		status := container.Status()
		Equal(t, "mounts", len(status.Mounts), 1)
		Equal(t, "host path", status.Mounts[0].HostPath, host)
		Equal(t, "container path", status.Mounts[0].ContainerPath, "/data")
		t.True(status.Mounts[0].Readonly, "the mount is shown as writable")
		linux := status.GetResources().GetLinux()
		Equal(t, "memory limit", linux.GetMemoryLimitInBytes(), 64<<20)
		Equal(t, "cpu shares", linux.GetCpuShares(), 512)
	})
	register("container/status-user", func(t *T) {
		pod := t.RunPod("user")
		container := pod.Create("main", "true", security(func(to *cri.LinuxContainerSecurityContext) {
			to.RunAsUser = &cri.Int64Value{Value: 1000}
			to.RunAsGroup = &cri.Int64Value{Value: 2000}
			to.SupplementalGroups = []int64{3000}
		}))
		user := container.Status().GetUser().GetLinux()
		Equal(t, "uid", user.GetUid(), 1000)
		Equal(t, "gid", user.GetGid(), 2000)
		t.True(hasGroup(user.GetSupplementalGroups(), 3000), "groups: %v", user.GetSupplementalGroups())
	})
	register("container/status-verbose", func(t *T) {
		container := t.RunPod("verbose").Sleep("main")
		answer, err := t.Runtime.ContainerStatus(t.Ctx, &cri.ContainerStatusRequest{ContainerId: container.ID, Verbose: true})
		t.OK("ContainerStatus", err)
		t.True(len(answer.Info) > 0, "verbose, and no info")
	})
	register("container/id-prefix", func(t *T) {
		container := t.RunPod("prefix").Sleep("main")
		Equal(t, "length of the id", len(container.ID), 64)
		answer, err := t.Runtime.ContainerStatus(t.Ctx, &cri.ContainerStatusRequest{ContainerId: container.ID[:13]})
		t.OK("ContainerStatus of a prefix", err)
		Equal(t, "id", answer.Status.GetId(), container.ID)
	})
	register("container/unknown-id", func(t *T) {
		container := &Container{t: t, ID: unknownID}
		container.Stop(0)
		container.Remove()
		t.Code("StartContainer of an unknown id", container.TryStart(), codes.NotFound)
		_, err := t.Runtime.ContainerStatus(t.Ctx, &cri.ContainerStatusRequest{ContainerId: unknownID})
		t.Code("ContainerStatus of an unknown id", err, codes.NotFound)
	})
	register("container/create-in-unknown-sandbox", func(t *T) {
		pod := &Pod{t: t, ID: unknownID, Config: t.podConfig("unknown")}
		t.Need(t.Image)
		_, err := pod.TryCreate(pod.containerConfig("main", "true"))
		t.True(err != nil, "a container was made in an unknown sandbox")
	})
	register("container/create-in-stopped-sandbox", func(t *T) {
		pod := t.RunPod("stopped")
		pod.Stop()
		t.Need(t.Image)
		_, err := pod.TryCreate(pod.containerConfig("main", "true"))
		t.True(err != nil, "a container was made in a stopped sandbox")
	})
	register("container/create-without-image", func(t *T) {
		pod := t.RunPod("noimage")
		_, err := pod.TryCreate(pod.containerConfig("main", "true", image(t.Sibling("never-pulled:1"))))
		t.Code("CreateContainer of an image that is not there", err, codes.NotFound)
	})
	register("container/create-without-metadata", func(t *T) {
		pod := t.RunPod("nometa")
		t.Need(t.Image)
		_, err := pod.TryCreate(pod.containerConfig("main", "true", func(config *cri.ContainerConfig) { config.Metadata = nil }))
		t.True(err != nil, "a container without metadata was made")
	})
	register("container/name-reserved", func(t *T) {
		pod := t.RunPod("taken")
		container := pod.Create("main", "true")
		again, err := pod.TryCreate(container.Config)
		if err == nil {
			// As good: a call whose answer was lost gets it when it is made again, as in CRI-O.
			Equal(t, "id of the second", again.ID, container.ID)
		} else {
			t.Contains("the error", err.Error(), "reserve")
			t.Contains("the error", err.Error(), container.ID)
		}
		other := proto.Clone(container.Config).(*cri.ContainerConfig)
		other.Command = []string{"false"}
		_, err = pod.TryCreate(other)
		t.True(err != nil, "another container of the same name and attempt was made")
		t.Contains("the error", err.Error(), "reserve")
		t.Contains("the error", err.Error(), container.ID)
		container.Remove()
		_, err = pod.TryCreate(container.Config)
		t.OK("CreateContainer after RemoveContainer", err)
	})
	register("container/attempts-side-by-side", func(t *T) {
		pod := t.RunPod("attempts")
		first := pod.Run("main", "exit 1")
		first.AwaitExit()
		second := pod.Sleep("main", func(config *cri.ContainerConfig) { config.Metadata.Attempt = 1; config.LogPath = "main-1.log" })
		Equal(t, "attempt", second.Status().Metadata.GetAttempt(), 1)
		Equal(t, "attempt", first.Status().Metadata.GetAttempt(), 0)
	})
	register("container/failed-create-frees-the-name", func(t *T) {
		pod := t.RunPod("failed")
		t.Need(t.Image)
		config := pod.containerConfig("main", "true", security(func(to *cri.LinuxContainerSecurityContext) { to.RunAsUsername = "nobody-knows" }))
		_, err := pod.TryCreate(config)
		t.True(err != nil, "an unknown user was accepted")
		config.Linux.SecurityContext.RunAsUsername = ""
		_, err = pod.TryCreate(config)
		t.OK("CreateContainer after a failed one", err)
	})
	register("container/start-twice", func(t *T) {
		container := t.RunPod("twice").Sleep("main")
		started := container.Status().StartedAt
		// containerd refuses; the finished result of a call whose answer was lost is as good.
		_ = container.TryStart()
		status := container.Status()
		Equal(t, "state", status.State, cri.ContainerState_CONTAINER_RUNNING)
		Equal(t, "started_at", status.StartedAt, started)
	})
	register("container/start-exited", func(t *T) {
		container := t.RunPod("exited").Run("main", "true")
		container.AwaitExit()
		t.True(container.TryStart() != nil, "an exited container was started again")
	})
	register("container/stop-created", func(t *T) {
		container := t.RunPod("created").Create("main", "true")
		container.Stop(1)
		container.Remove()
	})
	register("container/stop-and-remove-twice", func(t *T) {
		container := t.RunPod("twice").Sleep("main")
		container.Stop(5)
		container.Stop(5)
		container.Remove()
		container.Remove()
		container.Stop(5)
	})
	register("container/stop-exited", func(t *T) {
		container := t.RunPod("exited").Run("main", "exit 4")
		container.AwaitExit()
		container.Stop(5)
		Equal(t, "exit code", container.Status().ExitCode, 4)
	})
	register("container/remove-running", func(t *T) {
		container := t.RunPod("running").Sleep("main")
		container.Remove()
		Equal(t, "containers", len(t.containers(&cri.ContainerFilter{Id: container.ID})), 0)
	})
	register("container/stop-sends-term", func(t *T) {
		container := t.RunPod("term").Run("main", "trap 'echo got term; exit 7' TERM; echo ready; while :; do sleep 0.1; done")
		container.AwaitWritten("ready")
		container.Stop(20)
		status := container.Status()
		Equal(t, "exit code", status.ExitCode, 7)
		Equal(t, "reason", status.Reason, "Error")
		t.Contains("the log", container.Written(), "got term")
	})
	register("container/stop-kills-after-grace", func(t *T) {
		container := t.RunPod("grace").Run("main", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
		container.AwaitWritten("ready")
		start := time.Now()
		container.Stop(1)
		t.True(time.Since(start) >= time.Second, "killed after %s, grace is 1 s", time.Since(start))
		Equal(t, "exit code", container.Status().ExitCode, 137)
		Equal(t, "reason", container.Status().Reason, "Error")
	})
	register("container/stop-with-zero-grace", func(t *T) {
		container := t.RunPod("zero").Run("main", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done")
		container.AwaitWritten("ready")
		container.Stop(0)
		Equal(t, "exit code", container.Status().ExitCode, 137)
	})
	register("container/stop-signal-of-the-request", func(t *T) {
		container := t.RunPod("signal").Run("main", "trap 'exit 9' USR1; echo ready; while :; do sleep 0.1; done",
			func(config *cri.ContainerConfig) { config.StopSignal = cri.Signal_SIGUSR1 })
		container.AwaitWritten("ready")
		container.Stop(20)
		status := container.Status()
		Equal(t, "exit code", status.ExitCode, 9)
		Equal(t, "stop_signal", status.StopSignal, cri.Signal_SIGUSR1)
	})
	register("container/stop-signal-default", func(t *T) {
		container := t.RunPod("signal").Sleep("main")
		Equal(t, "stop_signal", container.Status().StopSignal, cri.Signal_SIGTERM)
	})
	register("container/stop-signal-of-the-image", func(t *T) {
		container := t.RunPod("signal").Run("main", "", image(t.Sibling("stopsignal:1")))
		container.AwaitWritten("ready")
		Equal(t, "stop_signal", container.Status().StopSignal, cri.Signal_SIGUSR2)
		container.Stop(20)
		Equal(t, "exit code", container.Status().ExitCode, 11)
	})
	register("container/exit-0", func(t *T) {
		status := t.RunPod("exit").Run("main", "exit 0").AwaitExit()
		Equal(t, "exit code", status.ExitCode, 0)
		Equal(t, "reason", status.Reason, "Completed")
		t.True(status.FinishedAt > 0 && status.StartedAt > 0, "times: %d, %d", status.StartedAt, status.FinishedAt)
	})
	register("container/exit-3", func(t *T) {
		status := t.RunPod("exit").Run("main", "exit 3").AwaitExit()
		Equal(t, "exit code", status.ExitCode, 3)
		Equal(t, "reason", status.Reason, "Error")
	})
	register("container/exit-255", func(t *T) {
		Equal(t, "exit code", t.RunPod("exit").Run("main", "exit 255").AwaitExit().ExitCode, 255)
	})
	register("container/killed-by-a-signal", func(t *T) {
		container := t.RunPod("signal").Run("main", "sh -c 'kill -SEGV $$'; exit $?")
		Equal(t, "exit code", container.AwaitExit().ExitCode, 139)
	})
	register("container/start-error", func(t *T) {
		container := t.RunPod("starterror").Create("main", "", func(config *cri.ContainerConfig) { config.Command = []string{"/no/such/program"} })
		err := container.TryStart()
		t.True(err != nil, "a program that is not there was started")
		t.Contains("the error", err.Error(), "/no/such/program")
		status := container.AwaitExit()
		Equal(t, "exit code", status.ExitCode, 128)
		Equal(t, "reason", status.Reason, "StartError")
		t.Contains("the message", status.Message, "/no/such/program")
		Equal(t, "sandbox", container.Pod.Status().State, cri.PodSandboxState_SANDBOX_READY)
	})
	register("container/start-error-not-executable", func(t *T) {
		container := t.RunPod("starterror").Create("main", "", func(config *cri.ContainerConfig) { config.Command = []string{"/etc/passwd"} })
		t.True(container.TryStart() != nil, "a file without x was started")
		status := container.AwaitExit()
		Equal(t, "exit code", status.ExitCode, 128)
		Equal(t, "reason", status.Reason, "StartError")
	})
	register("container/list-filters", func(t *T) {
		pod, other := t.RunPod("list"), t.RunPod("other")
		running, created := pod.Sleep("running"), pod.Create("created", "true")
		elsewhere := other.Sleep("running")
		Equal(t, "by id", len(t.containers(&cri.ContainerFilter{Id: running.ID})), 1)
		Equal(t, "by id prefix", len(t.containers(&cri.ContainerFilter{Id: running.ID[:13]})), 1)
		Equal(t, "by sandbox", len(t.containers(&cri.ContainerFilter{PodSandboxId: pod.ID})), 2)
		Equal(t, "by sandbox prefix", len(t.containers(&cri.ContainerFilter{PodSandboxId: pod.ID[:13]})), 2)
		state := &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_CREATED}
		listed := t.containers(&cri.ContainerFilter{PodSandboxId: pod.ID, State: state})
		Equal(t, "by state", len(listed), 1)
		Equal(t, "created", listed[0].Id, created.ID)
		Equal(t, "by label", len(t.containers(&cri.ContainerFilter{PodSandboxId: pod.ID, LabelSelector: map[string]string{"container": "running"}})), 1)
		Equal(t, "by id and another sandbox", len(t.containers(&cri.ContainerFilter{Id: elsewhere.ID, PodSandboxId: pod.ID})), 0)
		Equal(t, "unknown", len(t.containers(&cri.ContainerFilter{Id: unknownID})), 0)
	})
	register("container/list-fields", func(t *T) {
		pod := t.RunPod("list")
		container := pod.Sleep("main", func(config *cri.ContainerConfig) { config.Annotations = map[string]string{"a": "b"} })
		listed := t.containers(&cri.ContainerFilter{Id: container.ID})
		Equal(t, "items", len(listed), 1)
		one, status := listed[0], container.Status()
		Equal(t, "sandbox", one.PodSandboxId, pod.ID)
		Equal(t, "state", one.State, cri.ContainerState_CONTAINER_RUNNING)
		t.Contains("image_ref", one.ImageRef, "sha256:")
		Equal(t, "image_id", one.ImageId, status.ImageId)
		Equal(t, "created_at", one.CreatedAt, status.CreatedAt)
		Equal(t, "annotation", one.Annotations["a"], "b")
		Equal(t, "label", one.Labels["container"], "main")
		Equal(t, "name", one.Metadata.GetName(), "main")
		t.True(one.Image.GetImage() != "", "no image")
	})
	register("container/stream-list", func(t *T) {
		container := t.RunPod("stream").Sleep("main")
		stream, err := t.Runtime.StreamContainers(t.Ctx, &cri.StreamContainersRequest{Filter: &cri.ContainerFilter{Id: container.ID}})
		t.OK("StreamContainers", err)
		seen := receive(t, "StreamContainers", stream.Recv)
		Equal(t, "messages", len(seen), 1)
		Equal(t, "id", seen[0].Containers[0].Id, container.ID)
	})
}

func (t *T) containers(filter *cri.ContainerFilter) []*cri.Container {
	answer, err := t.Runtime.ListContainers(t.Ctx, &cri.ListContainersRequest{Filter: filter})
	t.OK("ListContainers", err)
	return answer.Containers
}

func hasGroup(groups []int64, wanted int64) bool {
	for _, group := range groups {
		if group == wanted {
			return true
		}
	}
	return false
}
