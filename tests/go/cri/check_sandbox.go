package main

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const unknownID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func init() {
	register("runtime/version", func(t *T) {
		answer, err := t.Runtime.Version(t.Ctx, &cri.VersionRequest{Version: "v1"})
		t.OK("Version", err)
		Equal(t, "runtime_api_version", answer.RuntimeApiVersion, "v1")
		Equal(t, "version", answer.Version, "0.1.0")
		t.True(answer.RuntimeName != "" && answer.RuntimeVersion != "", "no name or version: %v", answer)
	})
	register("runtime/status-conditions", func(t *T) {
		answer, err := t.Runtime.Status(t.Ctx, &cri.StatusRequest{})
		t.OK("Status", err)
		seen := map[string]bool{}
		for _, condition := range answer.Status.GetConditions() {
			seen[condition.Type] = condition.Status
		}
		t.True(seen["RuntimeReady"] && seen["NetworkReady"], "conditions: %v", answer.Status)
		t.True(len(answer.Info) == 0, "info without verbose: %v", answer.Info)
	})
	register("runtime/status-verbose", func(t *T) {
		answer, err := t.Runtime.Status(t.Ctx, &cri.StatusRequest{Verbose: true})
		t.OK("Status", err)
		t.True(len(answer.Info) > 0, "verbose, and no info")
	})
	register("runtime/status-handlers", func(t *T) {
		answer, err := t.Runtime.Status(t.Ctx, &cri.StatusRequest{})
		t.OK("Status", err)
		// The kubelet finds the features of the default handler under the empty name.
		for _, handler := range answer.RuntimeHandlers {
			if handler.Name == "" {
				return
			}
		}
		t.Failf("no handler with the empty name: %v", answer.RuntimeHandlers)
	})
	register("runtime/cgroup-driver", func(t *T) {
		answer, err := t.Runtime.RuntimeConfig(t.Ctx, &cri.RuntimeConfigRequest{})
		t.OK("RuntimeConfig", err)
		// By the parent that this suite was given, since that is what the runtime has to understand.
		driver := cri.CgroupDriver_CGROUPFS
		if strings.HasSuffix(t.CgroupParent, ".slice") {
			driver = cri.CgroupDriver_SYSTEMD
		}
		Equal(t, "driver", answer.GetLinux().GetCgroupDriver(), driver)
	})
	register("runtime/update-config", func(t *T) {
		_, err := t.Runtime.UpdateRuntimeConfig(t.Ctx, &cri.UpdateRuntimeConfigRequest{
			RuntimeConfig: &cri.RuntimeConfig{NetworkConfig: &cri.NetworkConfig{PodCidr: "10.1.0.0/24"}},
		})
		t.OK("UpdateRuntimeConfig", err)
	})
	register("sandbox/status-fields", func(t *T) {
		before := time.Now().UnixNano()
		pod := t.RunPod("fields")
		status := pod.Status()
		after := time.Now().UnixNano()
		Equal(t, "id", status.Id, pod.ID)
		Equal(t, "name", status.Metadata.GetName(), pod.Config.Metadata.Name)
		Equal(t, "uid", status.Metadata.GetUid(), pod.Config.Metadata.Uid)
		Equal(t, "namespace", status.Metadata.GetNamespace(), "cri-suite")
		Equal(t, "attempt", status.Metadata.GetAttempt(), 0)
		Equal(t, "state", status.State, cri.PodSandboxState_SANDBOX_READY)
		t.True(status.CreatedAt >= before && status.CreatedAt <= after, "created_at %d is not between %d and %d", status.CreatedAt, before, after)
		Equal(t, "label", status.Labels["suite"], pod.Config.Labels["suite"])
		Equal(t, "annotation", status.Annotations["note"], "kept as given")
		Equal(t, "labels", len(status.Labels), 1)
		options := status.GetLinux().GetNamespaces().GetOptions()
		Equal(t, "network mode", options.GetNetwork(), cri.NamespaceMode_POD)
		Equal(t, "pid mode", options.GetPid(), cri.NamespaceMode_CONTAINER)
		Equal(t, "ipc mode", options.GetIpc(), cri.NamespaceMode_POD)
		t.True(status.GetNetwork().GetIp() != "", "no address")
	})
	register("sandbox/status-verbose", func(t *T) {
		pod := t.RunPod("verbose")
		answer, err := t.Runtime.PodSandboxStatus(t.Ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.ID, Verbose: true})
		t.OK("PodSandboxStatus", err)
		t.True(len(answer.Info) > 0, "verbose, and no info")
	})
	register("sandbox/id-shape", func(t *T) {
		pod := t.RunPod("id")
		Equal(t, "length of the id", len(pod.ID), 64)
		Equal(t, "digits of the id", strings.Trim(pod.ID, "0123456789abcdef"), "")
	})
	register("sandbox/id-prefix", func(t *T) {
		pod := t.RunPod("prefix")
		answer, err := t.Runtime.PodSandboxStatus(t.Ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.ID[:13]})
		t.OK("PodSandboxStatus of a prefix", err)
		Equal(t, "id", answer.Status.GetId(), pod.ID)
	})
	register("sandbox/addresses-differ", func(t *T) {
		one, two := t.RunPod("one"), t.RunPod("two")
		t.True(one.IP() != two.IP(), "both pods have %s", one.IP())
	})
	register("sandbox/list-by-id", func(t *T) {
		one := t.RunPod("one")
		t.RunPod("two")
		items := t.sandboxes(&cri.PodSandboxFilter{Id: one.ID})
		Equal(t, "items", len(items), 1)
		item := items[0]
		Equal(t, "id", item.Id, one.ID)
		Equal(t, "name", item.Metadata.GetName(), one.Config.Metadata.Name)
		Equal(t, "annotation", item.Annotations["note"], "kept as given")
		t.True(item.CreatedAt == one.Status().CreatedAt, "created_at differs from the status")
	})
	register("sandbox/list-by-id-prefix", func(t *T) {
		pod := t.RunPod("prefix")
		Equal(t, "items", len(t.sandboxes(&cri.PodSandboxFilter{Id: pod.ID[:13]})), 1)
	})
	register("sandbox/list-by-state", func(t *T) {
		ready, stopped := t.RunPod("ready"), t.RunPod("stopped")
		stopped.Stop()
		state := func(of cri.PodSandboxState) *cri.PodSandboxFilter {
			return &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: of}}
		}
		t.True(holds(t.sandboxes(state(cri.PodSandboxState_SANDBOX_READY)), ready.ID), "a ready pod is not among the ready")
		t.True(!holds(t.sandboxes(state(cri.PodSandboxState_SANDBOX_READY)), stopped.ID), "a stopped pod is among the ready")
		t.True(holds(t.sandboxes(state(cri.PodSandboxState_SANDBOX_NOTREADY)), stopped.ID), "a stopped pod is not among the not ready")
		t.True(!holds(t.sandboxes(state(cri.PodSandboxState_SANDBOX_NOTREADY)), ready.ID), "a ready pod is among the not ready")
	})
	register("sandbox/list-by-label", func(t *T) {
		one := t.RunPod("one")
		t.RunPod("two")
		label := map[string]string{"suite": one.Config.Labels["suite"]}
		items := t.sandboxes(&cri.PodSandboxFilter{LabelSelector: label})
		Equal(t, "items", len(items), 1)
		Equal(t, "id", items[0].Id, one.ID)
		both := t.sandboxes(&cri.PodSandboxFilter{LabelSelector: map[string]string{"suite": one.Config.Labels["suite"], "other": "x"}})
		Equal(t, "items with a label it lacks", len(both), 0)
	})
	register("sandbox/list-filters-are-joined-by-and", func(t *T) {
		one, two := t.RunPod("one"), t.RunPod("two")
		items := t.sandboxes(&cri.PodSandboxFilter{Id: one.ID, LabelSelector: two.Config.Labels})
		Equal(t, "items", len(items), 0)
	})
	register("sandbox/list-unknown-id", func(t *T) {
		Equal(t, "items", len(t.sandboxes(&cri.PodSandboxFilter{Id: unknownID})), 0)
	})
	register("sandbox/stop-twice", func(t *T) {
		pod := t.RunPod("twice")
		pod.Stop()
		pod.Stop()
		Equal(t, "state", pod.Status().State, cri.PodSandboxState_SANDBOX_NOTREADY)
	})
	register("sandbox/remove-twice", func(t *T) {
		pod := t.RunPod("twice")
		pod.Stop()
		pod.Remove()
		pod.Remove()
		pod.Stop()
	})
	register("sandbox/stop-and-remove-unknown", func(t *T) {
		pod := &Pod{t: t, ID: unknownID}
		pod.Stop()
		pod.Remove()
	})
	register("sandbox/status-unknown", func(t *T) {
		_, err := t.Runtime.PodSandboxStatus(t.Ctx, &cri.PodSandboxStatusRequest{PodSandboxId: unknownID})
		t.Code("PodSandboxStatus of an unknown id", err, codes.NotFound)
	})
	register("sandbox/status-after-remove", func(t *T) {
		pod := t.RunPod("gone")
		pod.Stop()
		pod.Remove()
		_, err := t.Runtime.PodSandboxStatus(t.Ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.ID})
		t.Code("PodSandboxStatus after RemovePodSandbox", err, codes.NotFound)
		Equal(t, "items", len(t.sandboxes(&cri.PodSandboxFilter{Id: pod.ID})), 0)
	})
	register("sandbox/remove-while-ready", func(t *T) {
		pod := t.RunPod("ready")
		container := pod.Sleep("main")
		pod.Remove()
		Equal(t, "sandboxes", len(t.sandboxes(&cri.PodSandboxFilter{Id: pod.ID})), 0)
		Equal(t, "containers", len(t.containers(&cri.ContainerFilter{Id: container.ID})), 0)
	})
	register("sandbox/stop-ends-containers", func(t *T) {
		pod := t.RunPod("ends")
		container := pod.Run("main", "trap '' TERM; while :; do sleep 1; done")
		pod.Stop()
		status := container.Status()
		Equal(t, "state", status.State, cri.ContainerState_CONTAINER_EXITED)
		Equal(t, "exit code", status.ExitCode, 137)
	})
	register("sandbox/stop-gives-the-address-back", func(t *T) {
		pod := t.RunPod("address")
		ip := pod.IP()
		pod.Stop()
		t.True(pod.Status().GetNetwork().GetIp() != ip, "a stopped pod still has %s", ip)
	})
	register("sandbox/name-reserved", func(t *T) {
		pod := t.RunPod("taken")
		answer, err := t.Runtime.RunPodSandbox(t.Ctx, &cri.RunPodSandboxRequest{Config: pod.Config, RuntimeHandler: t.RuntimeHandler})
		if err == nil {
			// As good: a call whose answer was lost gets it when it is made again, as in CRI-O.
			Equal(t, "id of the second", answer.PodSandboxId, pod.ID)
		} else {
			t.Contains("the error", err.Error(), "reserve")
			t.Contains("the error", err.Error(), pod.ID)
		}
		pod.Stop()
		pod.Remove()
		t.RunConfig(pod.Config)
	})
	register("sandbox/attempts-side-by-side", func(t *T) {
		config := t.podConfig("attempts")
		first := t.RunConfig(config)
		first.Stop()
		again := proto.Clone(config).(*cri.PodSandboxConfig)
		again.Metadata.Attempt = 1
		second := t.RunConfig(again)
		Equal(t, "attempt", second.Status().Metadata.GetAttempt(), 1)
		Equal(t, "first's state", first.Status().State, cri.PodSandboxState_SANDBOX_NOTREADY)
	})
	register("sandbox/unknown-runtime-handler", func(t *T) {
		_, err := t.Runtime.RunPodSandbox(t.Ctx, &cri.RunPodSandboxRequest{Config: t.podConfig("handler"), RuntimeHandler: "no-such-handler"})
		t.True(err != nil, "an unknown runtime handler was accepted")
		t.Contains("the error", err.Error(), "no-such-handler")
	})
	register("sandbox/runtime-handlers-work", func(t *T) {
		answer, err := t.Runtime.Status(t.Ctx, &cri.StatusRequest{})
		t.OK("Status", err)
		for _, handler := range answer.RuntimeHandlers {
			config := t.podConfig("handler-" + handler.Name)
			pod := t.runWith(config, handler.Name)
			Equal(t, "runtime handler", pod.Status().RuntimeHandler, handler.Name)
			container := pod.Run("handled", "echo first; read line < /dev/null; exit 3")
			Equal(t, "exit code", container.AwaitExit().ExitCode, 3)
			sleeper := pod.Sleep("sleeper")
			Equal(t, "output of an exec", string(sleeper.ExecSync("echo second").Stdout), "second\n")
		}
	})
	register("sandbox/no-metadata", func(t *T) {
		config := t.podConfig("meta")
		config.Metadata = nil
		_, err := t.Runtime.RunPodSandbox(t.Ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: t.RuntimeHandler})
		t.True(err != nil, "a sandbox without metadata was made")
	})
	register("sandbox/failed-run-frees-the-name", func(t *T) {
		config := t.podConfig("failed")
		config.Linux.Sysctls = map[string]string{"net.no_such_sysctl": "1"}
		_, err := t.Runtime.RunPodSandbox(t.Ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: t.RuntimeHandler})
		t.True(err != nil, "an unknown sysctl was accepted")
		config.Linux.Sysctls = nil
		t.RunConfig(config)
	})
	register("sandbox/long-hostname-and-labels", func(t *T) {
		pod := t.RunPod("long", func(config *cri.PodSandboxConfig) {
			config.Labels["long"] = strings.Repeat("x", 4000)
			config.Annotations["uni"] = "grüße\n\"two\""
		})
		Equal(t, "length of the label", len(pod.Status().Labels["long"]), 4000)
		Equal(t, "annotation", pod.Status().Annotations["uni"], "grüße\n\"two\"")
	})
	register("sandbox/stream-list", func(t *T) {
		pod := t.RunPod("stream")
		stream, err := t.Runtime.StreamPodSandboxes(t.Ctx, &cri.StreamPodSandboxesRequest{Filter: &cri.PodSandboxFilter{Id: pod.ID}})
		t.OK("StreamPodSandboxes", err)
		seen := receive(t, "StreamPodSandboxes", stream.Recv)
		Equal(t, "messages", len(seen), 1)
		Equal(t, "items", len(seen[0].PodSandboxes), 1)
		Equal(t, "id", seen[0].PodSandboxes[0].Id, pod.ID)
	})
}

func (t *T) sandboxes(filter *cri.PodSandboxFilter) []*cri.PodSandbox {
	answer, err := t.Runtime.ListPodSandbox(t.Ctx, &cri.ListPodSandboxRequest{Filter: filter})
	t.OK("ListPodSandbox", err)
	return answer.Items
}

func holds(items []*cri.PodSandbox, id string) bool {
	for _, item := range items {
		if item.Id == id {
			return true
		}
	}
	return false
}
