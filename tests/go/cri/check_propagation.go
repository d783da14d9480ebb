package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The three ways that mounts pass between node and container. The suite must stand in the runtime's
// own mount namespace: what is mounted elsewhere neither sees.
func init() {
	register("mount/propagation-private", func(t *T) {
		host := t.sharedMount()
		pod := t.RunPod("private", privilegedPod)
		container := pod.Sleep("main", privileged, mounted(&cri.Mount{HostPath: host, ContainerPath: "/data", Propagation: cri.MountPropagation_PROPAGATION_PRIVATE}))
		t.mountTmpfs(filepath.Join(host, "late"), "late")
		Equal(t, "the node's later mount", string(container.ExecSync("ls /data/late").Stdout), "")
		Equal(t, "mounting", container.ExecSync("mount -t tmpfs none /data/own && touch /data/own/file").ExitCode, 0)
		t.True(!there(filepath.Join(host, "own/file")), "the container's mount reached the node")
	})
	register("mount/propagation-host-to-container", func(t *T) {
		host := t.sharedMount()
		pod := t.RunPod("slave", privilegedPod)
		container := pod.Sleep("main", privileged, mounted(&cri.Mount{HostPath: host, ContainerPath: "/data", Propagation: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}))
		t.mountTmpfs(filepath.Join(host, "late"), "late")
		Equal(t, "the node's later mount", string(container.ExecSync("ls /data/late").Stdout), "file\n")
		Equal(t, "mounting", container.ExecSync("mount -t tmpfs none /data/own && touch /data/own/file").ExitCode, 0)
		t.True(!there(filepath.Join(host, "own/file")), "the container's mount reached the node")
		Equal(t, "shown", container.Status().Mounts[0].Propagation, cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER)
	})
	register("mount/propagation-bidirectional", func(t *T) {
		host := t.sharedMount()
		pod := t.RunPod("shared", privilegedPod)
		container := pod.Sleep("main", privileged, mounted(&cri.Mount{HostPath: host, ContainerPath: "/data", Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL}))
		t.mountTmpfs(filepath.Join(host, "late"), "late")
		Equal(t, "the node's later mount", string(container.ExecSync("ls /data/late").Stdout), "file\n")
		Equal(t, "mounting", container.ExecSync("mount -t tmpfs none /data/own && touch /data/own/file").ExitCode, 0)
		t.True(there(filepath.Join(host, "own/file")), "the container's mount did not reach the node")
		Equal(t, "unmounting", container.ExecSync("umount /data/own").ExitCode, 0)
		t.True(!there(filepath.Join(host, "own/file")), "the container's unmount did not reach the node")
		Equal(t, "shown", container.Status().Mounts[0].Propagation, cri.MountPropagation_PROPAGATION_BIDIRECTIONAL)
	})
	register("mount/propagation-of-a-source-that-is-not-shared", func(t *T) {
		// A bind mount of a private one has nothing to share with: both refuse, containerd at the create.
		host := t.sharedMount()
		t.OK("make it private", syscall.Mount("", host, "", syscall.MS_PRIVATE, ""))
		pod := t.RunPod("notshared", privilegedPod)
		t.Need(t.Image)
		for _, mode := range []cri.MountPropagation{cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, cri.MountPropagation_PROPAGATION_BIDIRECTIONAL} {
			container, err := pod.TryCreate(pod.containerConfig("main-"+strings.ToLower(mode.String()), "true", privileged,
				mounted(&cri.Mount{HostPath: host, ContainerPath: "/data", Propagation: mode})))
			if err == nil {
				err = container.TryStart()
			}
			t.True(err != nil, "a private mount was mounted as %s", mode)
		}
	})
	register("mount/recursive-read-only-reaches-what-is-below", func(t *T) {
		host := t.sharedMount()
		t.mountTmpfs(filepath.Join(host, "late"), "below")
		pod := t.RunPod("rro")
		script := "touch /data/x 2>/dev/null || echo refused; touch /data/late/x 2>/dev/null || echo refused below"
		plain := mounted(&cri.Mount{HostPath: host, ContainerPath: "/data", Readonly: true})
		deep := mounted(&cri.Mount{HostPath: host, ContainerPath: "/data", Readonly: true, RecursiveReadOnly: true})
		Equal(t, "read-only", pod.Output(script, plain), "refused\n")
		t.OK("remove", os.Remove(filepath.Join(host, "late/x")))
		Equal(t, "recursively", pod.Output(script, deep), "refused\nrefused below\n")
	})
	register("security/selinux-options-without-selinux", func(t *T) {
		if there("/sys/fs/selinux/enforce") {
			t.Skipf("this node has SELinux")
		}
		options := &cri.SELinuxOption{User: "system_u", Role: "system_r", Type: "container_t", Level: "s0:c1,c2"}
		pod := t.RunPod("selinux", func(config *cri.PodSandboxConfig) { config.Linux.SecurityContext.SelinuxOptions = options })
		text := pod.Output("echo fine", security(func(to *cri.LinuxContainerSecurityContext) { to.SelinuxOptions = options }))
		Equal(t, "output", text, "fine\n")
	})
	register("mount/selinux-relabel-without-selinux", func(t *T) {
		if there("/sys/fs/selinux/enforce") {
			t.Skipf("this node has SELinux")
		}
		text := t.RunPod("relabel").Output("echo fine", mounted(&cri.Mount{HostPath: t.Folder("data"), ContainerPath: "/data", SelinuxRelabel: true}))
		Equal(t, "output", text, "fine\n")
	})
}

// privilegedPod and privileged let a container mount.
func privilegedPod(config *cri.PodSandboxConfig) { config.Linux.SecurityContext.Privileged = true }

func privileged(config *cri.ContainerConfig) { config.Linux.SecurityContext.Privileged = true }

// sharedMount is a mount of the node that propagates, with folders to mount on.
func (t *T) sharedMount() string {
	host := t.Folder("shared")
	t.mountTmpfs(host, "shared")
	t.OK("make it shared", syscall.Mount("", host, "", syscall.MS_SHARED, ""))
	for _, name := range []string{"late", "own"} {
		t.OK("mkdir", os.Mkdir(filepath.Join(host, name), 0o755))
	}
	return host
}

// mountTmpfs mounts a file system with one file until the check ends.
func (t *T) mountTmpfs(at, name string) {
	t.OK("mount", syscall.Mount(name, at, "tmpfs", 0, ""))
	t.Cleanup(func() {
		// Containers that had it are gone by then, and with them what they mounted.
		t.OK("unmount "+at, syscall.Unmount(at, syscall.MNT_DETACH))
	})
	t.OK("write", os.WriteFile(filepath.Join(at, "file"), nil, 0o644))
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
