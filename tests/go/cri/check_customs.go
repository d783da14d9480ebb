package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What no field of CRI says and every user of containerd relies on.

func hostFolder(t *T, name string, mode os.FileMode) string {
	folder := t.Folder(name)
	t.OK("chmod", os.Chmod(folder, mode))
	return folder
}

func bound(host, container string) Change {
	return mounted(&cri.Mount{HostPath: host, ContainerPath: container})
}

func workingIn(path string) Change {
	return func(config *cri.ContainerConfig) { config.WorkingDir = path }
}

func dropAll(config *cri.ContainerConfig) {
	config.Linux.SecurityContext.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}}
}

func init() {
	register("process/working-folder-of-somebody-else", func(t *T) {
		folder := hostFolder(t, "private", 0o700)
		out := t.RunPod("cwd").Output("/bin/pwd 2>/dev/null || readlink /proc/self/cwd", asUser(1000), dropAll, bound(folder, "/data"), workingIn("/data"))
		Equal(t, "working folder", strings.TrimSpace(out), "/data")
	})
	register("process/working-folder-is-made", func(t *T) {
		folder := hostFolder(t, "volume", 0o755)
		t.RunPod("cwd").Output("pwd", bound(folder, "/data"), workingIn("/data/a/b"))
		for _, part := range []string{"a", "a/b"} {
			found, err := os.Stat(filepath.Join(folder, part))
			t.OK("stat", err)
			Equal(t, "mode of "+part, found.Mode().Perm(), 0o755)
		}
	})
	register("process/working-folder-with-dots", func(t *T) {
		Equal(t, "working folder", strings.TrimSpace(t.RunPod("cwd").Output("pwd", workingIn("/tmp/../etc/."))), "/etc")
	})
	register("process/device-that-is-a-folder", func(t *T) {
		folder := hostFolder(t, "devices", 0o755)
		t.OK("mkdir", os.Mkdir(filepath.Join(folder, "below"), 0o755))
		for name, minor := range map[string]int{"zero": 5, "below/null": 3} {
			t.OK("mknod", syscall.Mknod(filepath.Join(folder, name), syscall.S_IFCHR|0o666, 1<<8|minor))
		}
		out := t.RunPod("devices").Output("head -c 3 /dev/own/zero | wc -c; echo gone > /dev/own/below/null; cat /dev/own/below/null", func(config *cri.ContainerConfig) {
			config.Devices = []*cri.Device{{HostPath: folder, ContainerPath: "/dev/own", Permissions: "rw"}}
		})
		Equal(t, "read", strings.TrimSpace(out), "3")
	})
	register("container/stop-signal-is-sent-once", func(t *T) {
		container := t.RunPod("stop").Run("main", "trap 'echo told' TERM; echo ready; while :; do sleep 0.1; done")
		container.AwaitWritten("ready")
		first := make(chan error, 1)
		go func() {
			_, err := t.Runtime.StopContainer(t.Ctx, &cri.StopContainerRequest{ContainerId: container.ID, Timeout: 60})
			first <- err
		}()
		container.AwaitWritten("told")
		// A kubelet whose pod is deleted again, with less time.
		container.Stop(1)
		t.OK("the first StopContainer", <-first)
		Equal(t, "signals", strings.Count(container.Written(), "told"), 1)
	})
	register("sandbox/without-a-host-name", func(t *T) {
		own, err := os.Hostname()
		t.OK("hostname", err)
		pod := t.RunPod("nameless", func(config *cri.PodSandboxConfig) { config.Hostname = "" })
		out := pod.Output("cat /proc/sys/kernel/hostname /etc/hostname; echo $HOSTNAME")
		Equal(t, "names", strings.Join(strings.Fields(out), " "), own+" "+own+" "+own)
	})
	register("sandbox/without-uid-and-namespace", func(t *T) {
		pod := t.RunPod("by-hand", func(config *cri.PodSandboxConfig) { config.Metadata.Uid, config.Metadata.Namespace = "", "" })
		Equal(t, "uid", pod.Status().Metadata.Uid, "")
	})
	register("security/privileged-has-all-whatever-is-dropped", func(t *T) {
		pod := t.RunPod("privileged", func(config *cri.PodSandboxConfig) { config.Linux.SecurityContext.Privileged = true })
		privileged := func(config *cri.ContainerConfig) { config.Linux.SecurityContext.Privileged = true }
		of := func(changes ...Change) string {
			return strings.TrimSpace(pod.Output("grep CapEff /proc/self/status | cut -f2", changes...))
		}
		Equal(t, "capabilities", of(privileged, dropAll), of(privileged))
	})
	register("exec-sync/whose-caller-has-gone", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		gone, leave := context.WithCancel(t.Ctx)
		answered := make(chan error, 1)
		go func() {
			_, err := t.Runtime.ExecSync(gone, &cri.ExecSyncRequest{ContainerId: container.ID, Cmd: []string{"sleep", "4321"}})
			answered <- err
		}()
		list := "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done"
		running := func() bool { return strings.Contains(string(container.ExecSync(list).Stdout), "sleep 4321 ") }
		t.Await("the process to run", 10*time.Second, func() (bool, string) { return running(), "it does not" })
		leave()
		<-answered
		t.Await("the process to be gone", 10*time.Second, func() (bool, string) { return !running(), "it runs" })
	})
	register("container/inspect", func(t *T) {
		pod := t.RunPod("inspect")
		container := pod.Sleep("main")
		status, err := t.Runtime.ContainerStatus(t.Ctx, &cri.ContainerStatusRequest{ContainerId: container.ID, Verbose: true})
		t.OK("ContainerStatus", err)
		sandbox, err := t.Runtime.PodSandboxStatus(t.Ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.ID, Verbose: true})
		t.OK("PodSandboxStatus", err)
		for what, text := range map[string]string{"container": status.Info["info"], "sandbox": sandbox.Info["info"]} {
			var info struct {
				Pid         int
				RuntimeSpec struct {
					Linux struct{ Namespaces []struct{ Type, Path string } }
				}
			}
			t.OK("info of the "+what, json.Unmarshal([]byte(text), &info))
			_, err := os.Stat(filepath.Join("/proc", itoa(info.Pid), "ns/net"))
			t.OK("process of the "+what, err)
			t.True(len(info.RuntimeSpec.Linux.Namespaces) > 3, "namespaces of the %s: %s", what, text)
		}
	})
}
