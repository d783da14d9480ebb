package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"
)

// all is the tour in the order that a person would take.
func (t *tour) all() {
	events := t.listen()
	t.meet()
	t.pull()
	t.runPod()
	t.runContainers()
	t.look()
	t.reach()
	t.measure()
	t.change()
	t.end()
	events.tell(t)
}

// meet is version, info and runtime-config.
func (t *tour) meet() {
	t.script.step("version")
	version, err := t.runtime.Version(t.ctx, "")
	t.must("Version", err)
	t.script.name(version.RuntimeName, "<runtime>")
	t.script.show("version", version)
	t.script.step("info")
	status, err := t.runtime.Status(t.ctx, true)
	t.must("Status", err)
	for _, condition := range status.GetStatus().GetConditions() {
		t.script.show("condition", condition)
	}
	for _, handler := range status.GetRuntimeHandlers() {
		t.script.show("handler", handler)
	}
	t.script.show("features", status.GetFeatures())
	t.script.say("info told: %v", len(status.GetInfo()) > 0)
	t.script.step("runtime-config")
	config, err := t.runtime.RuntimeConfig(t.ctx)
	t.must("RuntimeConfig", err)
	t.script.show("config", config)
	t.script.step("update-runtime-config")
	t.must("UpdateRuntimeConfig", t.runtime.UpdateRuntimeConfig(t.ctx, &cri.RuntimeConfig{NetworkConfig: &cri.NetworkConfig{PodCidr: "10.77.0.0/16"}}))
	t.script.say("accepted")
}

// pull is pull, images, inspecti and imagefsinfo.
func (t *tour) pull() {
	t.script.name(t.image[:strings.Index(t.image, "/")], "<registry>")
	spec := &cri.ImageSpec{Image: t.image}
	t.script.step("inspecti of an image that is not there")
	absent, err := t.images.ImageStatus(t.ctx, &cri.ImageSpec{Image: t.image + "-none"}, false)
	t.must("ImageStatus", err)
	t.script.show("status", absent)
	t.script.step("pull " + t.image)
	id, err := t.images.PullImage(t.ctx, spec, nil, nil)
	t.must("PullImage", err)
	t.script.name(id, "<image>")
	t.script.say("image is up to date for %s", id)
	t.script.step("pull of an image that the registry lacks")
	_, err = t.images.PullImage(t.ctx, &cri.ImageSpec{Image: t.image + "-none"}, nil, nil)
	t.script.refused(err)
	t.script.step("images")
	images, err := t.images.ListImages(t.ctx, nil)
	t.must("ListImages", err)
	for _, image := range images {
		if image.Id == id {
			t.script.show("image", image)
		}
	}
	t.script.step("inspecti " + t.image)
	status, err := t.images.ImageStatus(t.ctx, spec, true)
	t.must("ImageStatus", err)
	t.script.show("status", status)
	t.script.step("imagefsinfo")
	t.await("figures", func() bool {
		usage, err := t.images.ImageFsInfo(t.ctx)
		t.must("ImageFsInfo", err)
		return len(usage.ImageFilesystems) > 0 && usage.ImageFilesystems[0].GetUsedBytes().GetValue() > 0
	})
	usage, err := t.images.ImageFsInfo(t.ctx)
	t.must("ImageFsInfo", err)
	t.script.show("usage", usage)
}

// runPod is runp, pods and inspectp.
func (t *tour) runPod() {
	logs := filepath.Join(t.folder, "logs")
	t.must("mkdir", os.MkdirAll(logs, 0o755))
	t.pod = &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: "tour", Uid: "tour-uid", Namespace: "default", Attempt: 1},
		Hostname:     "tour",
		LogDirectory: logs,
		DnsConfig:    &cri.DNSConfig{Servers: []string{"10.10.10.10"}, Searches: []string{"a.local"}},
		Labels:       map[string]string{"app": "tour"},
		Annotations:  map[string]string{"note": "of a tour"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    t.cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}},
		},
	}
	t.script.step("runp")
	id, err := t.runtime.RunPodSandbox(t.ctx, t.pod, "")
	t.must("RunPodSandbox", err)
	t.podID = id
	t.script.name(id, "<pod>")
	t.script.say("%s", id)
	t.script.step("runp with an unknown handler")
	_, err = t.runtime.RunPodSandbox(t.ctx, t.pod, "no-such-handler")
	t.script.say("refused: %v", err != nil)
	t.script.step("pods")
	pods, err := t.runtime.ListPodSandbox(t.ctx, &cri.PodSandboxFilter{LabelSelector: map[string]string{"app": "tour"}})
	t.must("ListPodSandbox", err)
	for _, pod := range pods {
		t.script.show("pod", pod)
	}
	t.inspectPod()
	t.script.step("inspectp of an unknown id")
	_, err = t.runtime.PodSandboxStatus(t.ctx, strings.Repeat("0", 64), false)
	t.script.refused(err)
}

func (t *tour) inspectPod() {
	t.script.step("inspectp <pod>")
	status, err := t.runtime.PodSandboxStatus(t.ctx, t.podID, true)
	t.must("PodSandboxStatus", err)
	t.script.name(status.GetStatus().GetNetwork().GetIp(), "<pod's address>")
	t.script.say("info told: %v", len(status.Info) > 0)
	status.Info = nil
	t.script.show("status", status)
}

// container is what crictl's container.json would say.
func (t *tour) container(name, script string, change func(*cri.ContainerConfig)) string {
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name, Attempt: 2},
		Image:    &cri.ImageSpec{Image: t.image, UserSpecifiedImage: t.image},
		Command:  []string{"/bin/sh", "-c", script},
		LogPath:  name + ".log",
		Labels:   map[string]string{"container": name},
		Envs:     []*cri.KeyValue{{Key: "COLOUR", Value: []byte("blue")}},
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20, OomScoreAdj: 1000},
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}},
		},
	}
	change(config)
	t.script.step("create " + name)
	id, err := t.runtime.CreateContainer(t.ctx, t.podID, config, t.pod)
	t.must("CreateContainer", err)
	t.script.name(id, "<"+name+">")
	t.script.say("%s", id)
	return id
}

// runContainers is create, start, and inspect in between.
func (t *tour) runContainers() {
	data := filepath.Join(t.folder, "data")
	t.must("mkdir", os.MkdirAll(data, 0o755))
	t.webID = t.container("web", "echo started; echo warning >&2; echo $COLOUR; trap 'exit 0' TERM; while :; do echo hello | nc -l -p 8080; done", func(config *cri.ContainerConfig) {
		config.Mounts = []*cri.Mount{{ContainerPath: "/data", HostPath: data, Readonly: true}}
	})
	t.shellID = t.container("shell", "while read line; do echo heard $line; done; echo end", func(config *cri.ContainerConfig) { config.Stdin = true })
	t.inspect("web", t.webID)
	for _, one := range [][2]string{{"web", t.webID}, {"shell", t.shellID}} {
		t.script.step("start <" + one[0] + ">")
		t.must("StartContainer", t.runtime.StartContainer(t.ctx, one[1]))
		t.script.say("%s", one[1])
	}
	t.script.step("start <web> again")
	t.script.say("refused: %v", t.runtime.StartContainer(t.ctx, t.webID) != nil)
	t.script.step("create with a program that is not there")
	gone := t.container("gone", "", func(config *cri.ContainerConfig) { config.Command = []string{"/no/such/program"} })
	t.script.step("start <gone>")
	t.script.say("refused: %v", t.runtime.StartContainer(t.ctx, gone) != nil)
	status, err := t.runtime.ContainerStatus(t.ctx, gone, false)
	t.must("ContainerStatus", err)
	t.script.say("%s %d %s", status.Status.State, status.Status.ExitCode, status.Status.Reason)
	t.script.step("rm <gone>")
	t.must("RemoveContainer", t.runtime.RemoveContainer(t.ctx, gone))
	t.script.say("%s", gone)
}

func (t *tour) inspect(name, id string) *cri.ContainerStatus {
	t.script.step("inspect <" + name + ">")
	status, err := t.runtime.ContainerStatus(t.ctx, id, true)
	t.must("ContainerStatus", err)
	t.script.say("info told: %v", len(status.Info) > 0)
	t.script.show("status", status.Status)
	return status.Status
}

// look is ps, inspect and logs.
func (t *tour) look() {
	t.script.step("ps")
	containers, err := t.runtime.ListContainers(t.ctx, &cri.ContainerFilter{PodSandboxId: t.podID, State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}})
	t.must("ListContainers", err)
	sort.Slice(containers, func(i, j int) bool { return containers[i].Metadata.Name < containers[j].Metadata.Name })
	for _, container := range containers {
		t.script.show("container", container)
	}
	status := t.inspect("web", t.webID)
	t.script.step("logs <web>")
	var out, errors lines
	t.await("three lines", func() bool {
		out, errors = lines{}, lines{}
		t.must("ReadLogs", logs.ReadLogs(t.ctx, status.LogPath, t.webID, &logs.LogOptions{}, t.runtime, &out, &errors))
		return len(out.all()) == 2 && len(errors.all()) == 1
	})
	for _, line := range out.all() {
		t.script.say("stdout: %s", line)
	}
	for _, line := range errors.all() {
		t.script.say("stderr: %s", line)
	}
	t.script.step("reopen the log of <web>")
	t.must("rename", os.Rename(status.LogPath, status.LogPath+".1"))
	t.must("ReopenContainerLog", t.runtime.ReopenContainerLog(t.ctx, t.webID))
	_, err = os.Stat(status.LogPath)
	t.script.say("a new file: %v", err == nil)
}

// change is update, checkpoint, and what the pod as a whole has.
func (t *tour) change() {
	t.script.step("update --memory --cpu-share <web>")
	t.must("UpdateContainerResources", t.runtime.UpdateContainerResources(t.ctx, t.webID, &cri.ContainerResources{
		Linux: &cri.LinuxContainerResources{CpuShares: 256, MemoryLimitInBytes: 96 << 20, MemorySwapLimitInBytes: 96 << 20}}))
	status, err := t.runtime.ContainerStatus(t.ctx, t.webID, false)
	t.must("ContainerStatus", err)
	t.script.show("resources", status.Status.Resources)
	t.script.step("update of the pod")
	_, err = t.runtime.UpdatePodSandboxResources(t.ctx, &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: t.podID, Resources: &cri.LinuxContainerResources{CpuShares: 512}})
	t.must("UpdatePodSandboxResources", err)
	t.script.say("accepted")
	t.script.step("checkpoint <web>")
	err = t.runtime.CheckpointContainer(t.ctx, &cri.CheckpointContainerRequest{ContainerId: t.webID, Location: filepath.Join(t.folder, "archive.tar"), Timeout: 10})
	t.script.say("refused: %v", err != nil)
}

// end is stop, rm, stopp, rmp and rmi.
func (t *tour) end() {
	t.script.step("stop <web>")
	t.must("StopContainer", t.runtime.StopContainer(t.ctx, t.webID, 10))
	t.inspect("web", t.webID)
	t.script.step("exec in <web>, which has stopped")
	_, _, err := t.runtime.ExecSync(t.ctx, t.webID, []string{"true"}, 10*time.Second)
	t.script.say("refused: %v", err != nil)
	t.script.step("rm <web>, twice")
	for range 2 {
		t.must("RemoveContainer", t.runtime.RemoveContainer(t.ctx, t.webID))
		t.script.say("removed")
	}
	t.script.step("rm --force <shell>, which runs")
	t.must("RemoveContainer", t.runtime.RemoveContainer(t.ctx, t.shellID))
	t.script.say("removed")
	t.script.step("stopp <pod>, twice")
	for range 2 {
		t.must("StopPodSandbox", t.runtime.StopPodSandbox(t.ctx, t.podID))
		t.script.say("stopped")
	}
	t.inspectPod()
	t.script.step("rmp <pod>, twice")
	for range 2 {
		t.must("RemovePodSandbox", t.runtime.RemovePodSandbox(t.ctx, t.podID))
		t.script.say("removed")
	}
	t.script.step("pods")
	pods, err := t.runtime.ListPodSandbox(t.ctx, &cri.PodSandboxFilter{LabelSelector: map[string]string{"app": "tour"}})
	t.must("ListPodSandbox", err)
	t.script.say("%d pods", len(pods))
	t.removeCgroup()
	t.script.step("rmi, twice")
	for range 2 {
		t.must("RemoveImage", t.images.RemoveImage(t.ctx, &cri.ImageSpec{Image: t.image}))
		t.script.say("removed")
	}
	status, err := t.images.ImageStatus(t.ctx, &cri.ImageSpec{Image: t.image}, false)
	t.must("ImageStatus", err)
	t.script.show("status", status)
}

// removeCgroup removes the pod's cgroup in every hierarchy, or its slice: it is the caller's, so that no runtime does.
func (t *tour) removeCgroup() {
	if strings.HasSuffix(t.cgroup, ".slice") {
		t.must("systemctl stop", exec.Command("systemctl", "stop", t.cgroup).Run())
		return
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		folders, err := filepath.Glob(pattern + t.cgroup)
		t.must("glob", err)
		for _, folder := range folders {
			t.await("the pod's cgroup to be empty", func() bool {
				err := os.Remove(folder)
				return err == nil || os.IsNotExist(err)
			})
		}
	}
}

// lines is written by a reader of logs or a stream, and read by a step.
type lines struct {
	lock sync.Mutex
	text string
}

func (l *lines) Write(bytes []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.text += string(bytes)
	return len(bytes), nil
}

// all is every whole line.
func (l *lines) all() []string {
	l.lock.Lock()
	defer l.lock.Unlock()
	cut := strings.LastIndex(l.text, "\n")
	if cut < 0 {
		return nil
	}
	return strings.Split(l.text[:cut], "\n")
}
