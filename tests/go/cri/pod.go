package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is a sandbox of one check; it is removed with the check.
type Pod struct {
	t      *T
	ID     string
	Config *cri.PodSandboxConfig
}

// podConfig is what a kubelet sends for an ordinary pod.
func (t *T) podConfig(name string) *cri.PodSandboxConfig {
	t.serial++
	unique := fmt.Sprintf("%s-%d-%d", name, os.Getpid(), t.serial)
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: unique, Uid: "uid-" + unique, Namespace: "cri-suite"},
		Hostname:     name,
		LogDirectory: t.Folder("logs-" + unique),
		Labels:       map[string]string{"suite": unique},
		Annotations:  map[string]string{"note": "kept as given"},
		Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces()},
		},
	}
	if t.CgroupParent != "" {
		config.Linux.CgroupParent = t.CgroupParent + "/pod" + unique
		if slice, ok := strings.CutSuffix(t.CgroupParent, ".slice"); ok {
			config.Linux.CgroupParent = slice + "-pod" + strings.ReplaceAll(unique, "-", "_") + ".slice"
		}
	}
	return config
}

func namespaces() *cri.NamespaceOption {
	return &cri.NamespaceOption{
		Network: cri.NamespaceMode_POD,
		Pid:     cri.NamespaceMode_CONTAINER,
		Ipc:     cri.NamespaceMode_POD,
	}
}

// RunPod runs a sandbox with the usual config, changed by change.
func (t *T) RunPod(name string, change ...func(*cri.PodSandboxConfig)) *Pod {
	config := t.podConfig(name)
	for _, each := range change {
		each(config)
	}
	return t.RunConfig(config)
}

// RunConfig runs a sandbox with exactly this config.
func (t *T) RunConfig(config *cri.PodSandboxConfig) *Pod {
	return t.runWith(config, t.RuntimeHandler)
}

func (t *T) runWith(config *cri.PodSandboxConfig, handler string) *Pod {
	answer, err := t.Runtime.RunPodSandbox(t.Ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	t.OK("RunPodSandbox", err)
	pod := &Pod{t: t, ID: answer.PodSandboxId, Config: config}
	t.True(pod.ID != "", "RunPodSandbox answered no id")
	t.Cleanup(func() {
		pod.Stop()
		pod.Remove()
		t.removeCgroup(config.Linux.CgroupParent)
	})
	return pod
}

// cgroupPath is where a cgroup parent of either driver is: each dash in a slice's name is a step down.
func cgroupPath(parent string) string {
	name, ok := strings.CutSuffix(parent, ".slice")
	if !ok {
		return parent
	}
	path := ""
	for at, char := range name + "-" {
		if char == '-' {
			path += "/" + name[:at] + ".slice"
		}
	}
	return path
}

// removeCgroup removes a pod's cgroup in every hierarchy: it is the kubelet's, so that no runtime does.
// What a runtime left in it shows as a failure.
func (t *T) removeCgroup(parent string) {
	if parent == "" {
		return
	}
	if strings.HasSuffix(parent, ".slice") {
		folder := "/sys/fs/cgroup" + cgroupPath(parent)
		t.Await("the pod's slice to be empty", 5*time.Second, func() (bool, string) {
			units, err := filepath.Glob(folder + "/*.scope")
			return err == nil && len(units) == 0, fmt.Sprint(units, err)
		})
		said, err := exec.Command("systemctl", "stop", parent).CombinedOutput()
		t.OK("systemctl stop "+parent+": "+string(said), err)
		return
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		folders, err := filepath.Glob(pattern + parent)
		t.OK("glob", err)
		for _, folder := range folders {
			t.Await("the pod's cgroup to be empty", 5*time.Second, func() (bool, string) {
				err := os.Remove(folder)
				return err == nil || os.IsNotExist(err), fmt.Sprint(err)
			})
		}
	}
}

// Stop is StopPodSandbox.
func (p *Pod) Stop() {
	_, err := p.t.Runtime.StopPodSandbox(p.t.Ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.ID})
	p.t.OK("StopPodSandbox", err)
}

// Remove is RemovePodSandbox.
func (p *Pod) Remove() {
	_, err := p.t.Runtime.RemovePodSandbox(p.t.Ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.ID})
	p.t.OK("RemovePodSandbox", err)
}

// Status is PodSandboxStatus.
func (p *Pod) Status() *cri.PodSandboxStatus {
	answer, err := p.t.Runtime.PodSandboxStatus(p.t.Ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.ID})
	p.t.OK("PodSandboxStatus", err)
	p.t.True(answer.Status != nil, "PodSandboxStatus answered no status")
	return answer.Status
}

// IP is the pod's first address.
func (p *Pod) IP() string {
	ip := p.Status().GetNetwork().GetIp()
	p.t.True(ip != "", "the pod has no address")
	return ip
}

// Change alters a container's config before it is created.
type Change func(*cri.ContainerConfig)

// Container is a container of one check; it goes with its pod.
type Container struct {
	t      *T
	Pod    *Pod
	ID     string
	Config *cri.ContainerConfig
}

// containerConfig is what a kubelet sends for an ordinary container that runs a shell script.
func (p *Pod) containerConfig(name, script string, changes ...Change) *cri.ContainerConfig {
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: p.t.Image},
		LogPath:  name + ".log",
		Labels:   map[string]string{"container": name},
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{OomScoreAdj: 1000},
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: namespaces()},
		},
	}
	if script != "" {
		config.Command = []string{"/bin/sh", "-c", script}
	}
	// A container shares what its sandbox does, unless the check says otherwise.
	if options := p.Config.GetLinux().GetSecurityContext().GetNamespaceOptions(); options != nil {
		config.Linux.SecurityContext.NamespaceOptions = proto.Clone(options).(*cri.NamespaceOption)
	}
	for _, change := range changes {
		change(config)
	}
	return config
}

// TryCreate is CreateContainer with its error.
func (p *Pod) TryCreate(config *cri.ContainerConfig) (*Container, error) {
	answer, err := p.t.Runtime.CreateContainer(p.t.Ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config,
	})
	if err != nil {
		return nil, err
	}
	return &Container{t: p.t, Pod: p, ID: answer.ContainerId, Config: config}, nil
}

// Create is CreateContainer; the image is pulled when it is not there.
func (p *Pod) Create(name, script string, changes ...Change) *Container {
	config := p.containerConfig(name, script, changes...)
	p.t.Need(config.Image.Image)
	container, err := p.TryCreate(config)
	p.t.OK("CreateContainer", err)
	p.t.True(container.ID != "", "CreateContainer answered no id")
	return container
}

// Need pulls an image that is not there.
func (t *T) Need(image string) {
	answer, err := t.Images.ImageStatus(t.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
	t.OK("ImageStatus", err)
	if answer.Image == nil {
		t.Pull(image)
	}
}

// Run is Create and StartContainer.
func (p *Pod) Run(name, script string, changes ...Change) *Container {
	container := p.Create(name, script, changes...)
	container.Start()
	return container
}

// Sleep is a container that does nothing until it is told to end.
func (p *Pod) Sleep(name string, changes ...Change) *Container {
	return p.Run(name, "trap 'exit 0' TERM; sleep 1000 & wait", changes...)
}

// Output runs a script to its successful end and returns what it wrote.
func (p *Pod) Output(script string, changes ...Change) string {
	p.t.serial++
	container := p.Run(fmt.Sprintf("out%d", p.t.serial), script, changes...)
	status := container.AwaitExit()
	text := container.Written()
	if status.ExitCode != 0 {
		p.t.Failf("%q ended with %d (%s %s): %s", script, status.ExitCode, status.Reason, status.Message, text)
	}
	return text
}

// TryStart is StartContainer with its error.
func (c *Container) TryStart() error {
	_, err := c.t.Runtime.StartContainer(c.t.Ctx, &cri.StartContainerRequest{ContainerId: c.ID})
	return err
}

// Start is StartContainer.
func (c *Container) Start() { c.t.OK("StartContainer", c.TryStart()) }

// Stop is StopContainer with a grace period in seconds.
func (c *Container) Stop(grace int64) {
	_, err := c.t.Runtime.StopContainer(c.t.Ctx, &cri.StopContainerRequest{ContainerId: c.ID, Timeout: grace})
	c.t.OK("StopContainer", err)
}

// Remove is RemoveContainer.
func (c *Container) Remove() {
	_, err := c.t.Runtime.RemoveContainer(c.t.Ctx, &cri.RemoveContainerRequest{ContainerId: c.ID})
	c.t.OK("RemoveContainer", err)
}

// Status is ContainerStatus.
func (c *Container) Status() *cri.ContainerStatus {
	answer, err := c.t.Runtime.ContainerStatus(c.t.Ctx, &cri.ContainerStatusRequest{ContainerId: c.ID})
	c.t.OK("ContainerStatus", err)
	c.t.True(answer.Status != nil, "ContainerStatus answered no status")
	return answer.Status
}

// AwaitExit waits for EXITED and returns the status then.
func (c *Container) AwaitExit() (last *cri.ContainerStatus) {
	c.t.Await("the container to exit", 30*time.Second, func() (bool, string) {
		last = c.Status()
		return last.State == cri.ContainerState_CONTAINER_EXITED, last.State.String()
	})
	return last
}

// LogPath is the log's place on the host.
func (c *Container) LogPath() string {
	return filepath.Join(c.Pod.Config.LogDirectory, c.Config.LogPath)
}

// Log is the log as it stands on disk.
func (c *Container) Log() string {
	text, err := os.ReadFile(c.LogPath())
	c.t.OK("read the log", err)
	return string(text)
}

// Written is what the container wrote, both streams, without times and tags.
func (c *Container) Written() string {
	var out strings.Builder
	for _, line := range strings.Split(c.Log(), "\n") {
		words := strings.SplitN(line, " ", 4)
		if len(words) < 4 {
			continue
		}
		out.WriteString(words[3])
		if words[2] == "F" {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// AwaitWritten waits until the log holds a text.
func (c *Container) AwaitWritten(part string) {
	c.t.Await(fmt.Sprintf("%q in the log", part), 15*time.Second, func() (bool, string) {
		text := c.Written()
		return strings.Contains(text, part), text
	})
}

// ExecSync runs a script in the container and returns everything.
func (c *Container) ExecSync(script string) *cri.ExecSyncResponse {
	answer, err := c.t.Runtime.ExecSync(c.t.Ctx, &cri.ExecSyncRequest{
		ContainerId: c.ID, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 20,
	})
	c.t.OK("ExecSync", err)
	return answer
}

// security changes a container's security context.
func security(change func(*cri.LinuxContainerSecurityContext)) Change {
	return func(config *cri.ContainerConfig) { change(config.Linux.SecurityContext) }
}

// resources changes a container's resources.
func resources(change func(*cri.LinuxContainerResources)) Change {
	return func(config *cri.ContainerConfig) { change(config.Linux.Resources) }
}

// image takes another image and, with an empty script, its own command.
func image(reference string) Change {
	return func(config *cri.ContainerConfig) { config.Image.Image = reference }
}

// mounted adds a mount.
func mounted(mount *cri.Mount) Change {
	return func(config *cri.ContainerConfig) { config.Mounts = append(config.Mounts, mount) }
}
