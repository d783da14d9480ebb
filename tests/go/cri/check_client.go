package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Clients that are no kubelet: what their libraries send as :authority, messages as large as cri-client
// lets them be, and deadlines that pass in the middle of a call.

// impatience passes before most calls that change something are done.
const impatience = 50 * time.Millisecond

func init() {
	register("client/authority-of-a-dialer", func(t *T) {
		path := strings.TrimPrefix(t.Endpoint, "unix://")
		dial := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		})
		// As old device plugins dial: the socket's path becomes the authority, percent-encoded.
		t.dialled("passthrough:///"+path, dial)
		for _, authority := range []string{"localhost", "%2Frun%2Fcri.sock", path} {
			t.dialled("passthrough:///"+path, dial, grpc.WithAuthority(authority))
		}
	})
	register("client/request-of-12-mib", func(t *T) {
		filter := &cri.ContainerFilter{LabelSelector: map[string]string{"nobody": strings.Repeat("x", 12<<20)}}
		answer, err := t.Runtime.ListContainers(t.Ctx, &cri.ListContainersRequest{Filter: filter})
		t.OK("ListContainers", err)
		Equal(t, "containers", len(answer.Containers), 0)
	})
	register("client/answer-of-12-mib", func(t *T) {
		pod := t.RunPod("large")
		const count = 48
		note := strings.Repeat("n", 256<<10)
		for i := range count {
			pod.Create(fmt.Sprintf("c%d", i), "", func(config *cri.ContainerConfig) {
				config.Annotations = map[string]string{"large": note}
			})
		}
		answer, err := t.Runtime.ListContainers(t.Ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: pod.ID}})
		t.OK("ListContainers", err)
		Equal(t, "containers", len(answer.Containers), count)
		for _, container := range answer.Containers {
			Equal(t, "length of the note", len(container.Annotations["large"]), len(note))
		}
	})
	register("client/deadlines-of-a-pods-life", func(t *T) { t.impatientLife() })
	register("client/deadline-of-a-pull", func(t *T) {
		image := &cri.ImageSpec{Image: t.Sibling("other:1")}
		t.retried("PullImage", 30*time.Second, func(ctx context.Context) error {
			_, err := t.Images.PullImage(ctx, &cri.PullImageRequest{Image: image})
			return err
		})
		answer, err := t.Images.ImageStatus(t.Ctx, &cri.ImageStatusRequest{Image: image})
		t.OK("ImageStatus", err)
		t.True(answer.Image != nil, "the image is not there")
	})
}

// dialled calls Version on a connection of its own.
func (t *T) dialled(target string, options ...grpc.DialOption) {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient(target, options...)
	t.OK("NewClient", err)
	defer conn.Close()
	_, err = cri.NewRuntimeServiceClient(conn).Version(t.Ctx, &cri.VersionRequest{})
	t.OK("Version", err)
}

// retried calls with a deadline that may pass, and then again until it succeeds, as a kubelet does.
func (t *T) retried(what string, patience time.Duration, call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(t.Ctx, impatience)
	err := call(ctx)
	cancel()
	if err == nil {
		return
	}
	t.True(status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.Canceled || status.Code(err) == codes.Unknown,
		"%s with a short deadline: %v", what, err)
	t.Await(what+" to succeed when tried again", patience, func() (bool, string) {
		err := call(t.Ctx)
		return err == nil, fmt.Sprint(err)
	})
}

// impatientLife takes a pod through its life with a deadline of 50 ms on each call that changes something,
// and a second try. Whatever the first one came to, the object is there once, and gone at the end.
func (t *T) impatientLife() {
	config := t.podConfig("impatient")
	sandboxes := func() []*cri.PodSandbox {
		filter := &cri.PodSandboxFilter{LabelSelector: config.Labels}
		answer, err := t.Runtime.ListPodSandbox(t.Ctx, &cri.ListPodSandboxRequest{Filter: filter})
		t.OK("ListPodSandbox", err)
		return answer.Items
	}
	pod := &Pod{t: t, Config: config}
	t.Cleanup(func() { t.removeCgroup(config.Linux.CgroupParent) })
	t.Cleanup(func() {
		for _, left := range sandboxes() {
			(&Pod{t: t, ID: left.Id}).Stop()
			(&Pod{t: t, ID: left.Id}).Remove()
		}
	})
	t.retried("RunPodSandbox", 40*time.Second, func(ctx context.Context) error {
		answer, err := t.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: t.RuntimeHandler})
		if err == nil {
			pod.ID = answer.PodSandboxId
			return nil
		}
		// A kubelet lists before it tries again, and finds what the call came to all the same.
		for _, found := range sandboxes() {
			if found.State == cri.PodSandboxState_SANDBOX_READY {
				pod.ID = found.Id
				return nil
			}
		}
		return err
	})
	Equal(t, "sandboxes", len(sandboxes()), 1)
	t.impatientContainer(pod)
	t.retried("StopPodSandbox", 30*time.Second, func(ctx context.Context) error {
		_, err := t.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.ID})
		return err
	})
	t.retried("RemovePodSandbox", 30*time.Second, func(ctx context.Context) error {
		_, err := t.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.ID})
		return err
	})
	Equal(t, "sandboxes", len(sandboxes()), 0)
	// Its name is free.
	again := t.RunConfig(config)
	t.True(again.ID != pod.ID, "the same id again")
}

func (t *T) impatientContainer(pod *Pod) {
	t.Need(t.Image)
	config := pod.containerConfig("main", "trap 'exit 7' TERM; while :; do sleep 0.1; done")
	container := &Container{t: t, Pod: pod, Config: config}
	containers := func() []*cri.Container {
		answer, err := t.Runtime.ListContainers(t.Ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: pod.ID}})
		t.OK("ListContainers", err)
		return answer.Containers
	}
	t.retried("CreateContainer", 30*time.Second, func(ctx context.Context) error {
		answer, err := t.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod.ID, Config: config, SandboxConfig: pod.Config})
		if err == nil {
			container.ID = answer.ContainerId
			return nil
		}
		for _, found := range containers() {
			container.ID = found.Id
			return nil
		}
		return err
	})
	Equal(t, "containers", len(containers()), 1)
	// Not cut short: containerd leaves processes of a start that is, and this suite asks for no more than it does.
	container.Start()
	t.retried("UpdateContainerResources", 30*time.Second, func(ctx context.Context) error {
		linux := &cri.LinuxContainerResources{CpuShares: 512}
		_, err := t.Runtime.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: container.ID, Linux: linux})
		return err
	})
	t.retried("ReopenContainerLog", 30*time.Second, func(ctx context.Context) error {
		_, err := t.Runtime.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: container.ID})
		return err
	})
	t.retried("ExecSync", 30*time.Second, func(ctx context.Context) error {
		_, err := t.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Cmd: []string{"/bin/sleep", "0.2"}, Timeout: 20})
		return err
	})
	t.retried("StopContainer", 30*time.Second, func(ctx context.Context) error {
		_, err := t.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: container.ID, Timeout: 20})
		return err
	})
	// After calls that were given up, containerd's last one may come back just before it has noted the exit.
	container.AwaitExit()
	t.retried("RemoveContainer", 30*time.Second, func(ctx context.Context) error {
		_, err := t.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: container.ID})
		return err
	})
	Equal(t, "containers", len(containers()), 0)
}
