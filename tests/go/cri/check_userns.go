package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The first id of the node that a pod's root is here, and how many the pod has, as a kubelet gives them.
const (
	firstID = 1638400
	idCount = 65536
)

func mapping(first uint32) []*cri.IDMapping {
	return []*cri.IDMapping{{HostId: first, ContainerId: 0, Length: idCount}}
}

func ownUsers(first uint32) *cri.UserNamespace {
	return &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: mapping(first), Gids: mapping(first)}
}

// RunUserns runs a pod whose root is first on the node.
func (t *T) RunUserns(name string, first uint32, change ...func(*cri.PodSandboxConfig)) *Pod {
	t.needUserns()
	own := func(config *cri.PodSandboxConfig) {
		config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = ownUsers(first)
	}
	return t.RunPod(name, append([]func(*cri.PodSandboxConfig){own}, change...)...)
}

func (t *T) needUserns() {
	answer, err := t.Runtime.Status(t.Ctx, &cri.StatusRequest{})
	t.OK("Status", err)
	for _, handler := range answer.RuntimeHandlers {
		if handler.Name == t.RuntimeHandler && handler.GetFeatures().GetUserNamespaces() {
			return
		}
	}
	t.True(!usernsPossible(), "the runtime says that it has none")
	t.refuseSandbox("users of its own", func(options *cri.NamespaceOption) { options.UsernsOptions = ownUsers(firstID) })
	t.Skipf("this node has no idmapped tmpfs: its kernel is older than Linux 6.3")
}

// usernsPossible says whether the kernel has what a pod with users of its own takes: Linux 6.3.
func usernsPossible() bool {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	var major, minor int
	_, _ = fmt.Sscanf(string(text), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 3
}

// idmapped adds the mount of a folder whose owners are mapped.
func idmapped(host, at string, first uint32) Change {
	return mounted(&cri.Mount{HostPath: host, ContainerPath: at, UidMappings: mapping(first), GidMappings: mapping(first)})
}

// owner is who owns a file of the node.
func (t *T) owner(path string) string {
	info, err := os.Lstat(path)
	t.OK("stat", err)
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", stat.Uid, stat.Gid)
}

// open is a folder that everybody may write to, whoever its owner is.
func (t *T) open(name string) string {
	folder := t.Folder(name)
	t.OK("chmod", os.Chmod(folder, 0o777))
	// Above it everybody may pass.
	for above := filepath.Dir(folder); strings.HasPrefix(above, t.folder); above = filepath.Dir(above) {
		t.OK("chmod", os.Chmod(above, 0o755))
	}
	return folder
}

func init() {
	register("userns/root-of-the-pod-is-nobody-on-the-node", func(t *T) {
		pod := t.RunUserns("users", firstID)
		text := pod.Output("id -u; id -g; cat /proc/self/uid_map /proc/self/gid_map; cat /proc/self/setgroups")
		Equal(t, "in the container", strings.Join(strings.Fields(text), " "),
			fmt.Sprintf("0 0 0 %d %d 0 %d %d allow", firstID, idCount, firstID, idCount))
		text = pod.Output("cat /proc/self/uid_map", asUser(1000))
		Equal(t, "as another user", strings.Join(strings.Fields(text), " "), fmt.Sprintf("0 %d %d", firstID, idCount))
		options := pod.Status().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions()
		t.True(proto.Equal(options, ownUsers(firstID)), "status tells %v", options)
	})
	register("userns/containers-share-one", func(t *T) {
		pod := t.RunUserns("users", firstID)
		one, two := pod.Output("readlink /proc/self/ns/user"), pod.Output("readlink /proc/self/ns/user")
		Equal(t, "namespaces", one, two)
		own, err := os.Readlink("/proc/self/ns/user")
		t.OK("readlink", err)
		t.True(strings.TrimSpace(one) != own, "the container is in the node's user namespace")
	})
	register("userns/exec-joins-it", func(t *T) {
		container := t.RunUserns("users", firstID).Sleep("main")
		answer := container.ExecSync("id -u; [ $(readlink /proc/self/ns/user) = $(readlink /proc/1/ns/user) ] && echo 1; cat /proc/self/uid_map; echo to >/dev/stderr; echo x > /dev/stdout")
		Equal(t, "output", strings.Join(strings.Fields(string(answer.Stdout)), " "), fmt.Sprintf("0 1 0 %d %d x", firstID, idCount))
		Equal(t, "stderr", string(answer.Stderr), "to\n")
	})
	register("userns/exec-as-the-user-of-the-container", func(t *T) {
		container := t.RunUserns("users", firstID).Sleep("main", asUser(1000), security(func(to *cri.LinuxContainerSecurityContext) {
			to.SupplementalGroups = []int64{5678}
		}))
		answer := container.ExecSync(identity + "; echo x > /dev/stdout")
		Equal(t, "identity", strings.Join(strings.Fields(string(answer.Stdout)), " "), "1000 1000 1000 1234 5678 x")
	})
	register("userns/files-of-the-image", func(t *T) {
		pod := t.RunUserns("users", firstID)
		text := pod.Output("stat -c %u:%g / /bin/busybox /home/web; touch /made; stat -c %u:%g /made; echo more >> /home/web/made; chown 7:8 /gone; stat -c %u:%g /gone; chown 70000 /made 2>/dev/null || echo refused")
		Equal(t, "owners", strings.Join(strings.Fields(text), " "), "0:0 0:0 1000:1000 0:0 7:8 refused")
		// Another pod of the same image is not touched by it.
		text = t.RunUserns("others", firstID+idCount).Output("stat -c %u:%g /bin/busybox /home/web /gone; [ -e /made ] || echo fresh")
		Equal(t, "owners of another pod", strings.Join(strings.Fields(text), " "), "0:0 1000:1000 0:0 fresh")
	})
	register("userns/files-of-the-pod", func(t *T) {
		text := t.RunUserns("users", firstID).Output("stat -c %u:%g /etc/hosts /etc/hostname /etc/resolv.conf; cat /etc/hostname; echo x > /dev/shm/x && stat -c %u:%g /dev/shm/x; echo x > /dev/null; head -c 4 /dev/zero | wc -c; : > /dev/stdout; hostname")
		Equal(t, "files", strings.Join(strings.Fields(text), " "), "0:0 0:0 0:0 users 0:0 4 users")
	})
	register("userns/a-host-path-without-a-mapping", func(t *T) {
		host := t.open("data")
		t.OK("write", os.WriteFile(filepath.Join(host, "secret"), []byte("secret\n"), 0o600))
		text := t.RunUserns("users", firstID).Output("touch /data/made; stat -c %u:%g /data/made /data/secret; cat /data/secret 2>/dev/null || echo refused",
			mounted(&cri.Mount{HostPath: host, ContainerPath: "/data"}))
		Equal(t, "seen", strings.Join(strings.Fields(text), " "), "0:0 65534:65534 refused")
		Equal(t, "owner on the node", t.owner(filepath.Join(host, "made")), fmt.Sprintf("%d:%d", firstID, firstID))
	})
	register("userns/a-volume-with-mapped-owners", func(t *T) {
		t.Write("data/secret", "secret\n")
		host := t.Folder("data")
		t.OK("chmod", os.Chmod(filepath.Join(host, "secret"), 0o600))
		container := t.RunUserns("users", firstID).Run("main", "cat /data/secret; touch /data/made; chown 1000:1234 /data/made; stat -c %u:%g /data/secret /data/made", idmapped(host, "/data", firstID))
		status := container.AwaitExit()
		Equal(t, "seen", strings.Join(strings.Fields(container.Written()), " "), "secret 0:0 1000:1234")
		Equal(t, "owner on the node", t.owner(filepath.Join(host, "made")), "1000:1234")
		Equal(t, "mounts told", len(status.Mounts), 1)
		Equal(t, "mapping told", status.Mounts[0].GetUidMappings()[0].GetHostId(), firstID)
	})
	register("userns/a-mapped-read-only-file", func(t *T) {
		file := t.Write("file", "hello\n")
		text := t.RunUserns("users", firstID).Output("cat /file; stat -c %u /file; (echo x > /file) 2>/dev/null || echo refused",
			mounted(&cri.Mount{HostPath: file, ContainerPath: "/file", Readonly: true, UidMappings: mapping(firstID), GidMappings: mapping(firstID)}))
		Equal(t, "seen", text, "hello\n0\nrefused\n")
	})
	register("userns/an-image-as-a-volume", func(t *T) {
		other := t.Sibling("other:1")
		t.Need(other)
		text := t.RunUserns("users", firstID).Output("cat /vol/etc/other; stat -c %u:%g /vol/etc/other /vol/owned",
			mounted(&cri.Mount{Image: &cri.ImageSpec{Image: other}, ContainerPath: "/vol", Readonly: true, UidMappings: mapping(firstID), GidMappings: mapping(firstID)}))
		Equal(t, "seen", strings.Join(strings.Fields(text), " "), "other 0:0 1000:1234")
	})
	register("userns/pods-are-strangers-to-each-other", func(t *T) {
		host := t.open("data")
		at := mounted(&cri.Mount{HostPath: host, ContainerPath: "/data"})
		t.RunUserns("one", firstID).Output("umask 077; echo mine > /data/mine; cat /data/mine", at)
		text := t.RunUserns("two", firstID+idCount).Output("cat /data/mine 2>/dev/null || echo refused; rm /data/mine 2>/dev/null; chown 0 /data/mine 2>/dev/null || echo refused; stat -c %u /data; cut -c1- /proc/self/uid_map", at)
		t.Contains("seen", text, "refused\nrefused\n65534\n")
		t.Contains("map", text, fmt.Sprint(firstID+idCount))
	})
	register("userns/capabilities-end-at-the-pod", func(t *T) {
		pod := t.RunUserns("users", firstID)
		// Of the node nothing changes even where the guard is missing: what stands there is written once more.
		script := "mknod /tmp/null c 1 3 2>/dev/null || echo nonode; mkdir -p /mnt/x; mount -t tmpfs none /mnt/x 2>/dev/null && echo mounted; " +
			"v=$(cat /proc/sys/kernel/panic); (echo $v > /proc/sys/kernel/panic) 2>/dev/null || echo nosysctl; hostname changed && hostname; nice -n -5 true 2>/dev/null || echo nonice"
		text := pod.Output(script, capabilities([]string{"ALL"}, nil), security(func(to *cri.LinuxContainerSecurityContext) {
			to.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
		}))
		t.Contains("with all capabilities", text, "nonode\nmounted\nnosysctl\nchanged\n")
		t.True(!strings.Contains(pod.Output(script), "mounted"), "a container without CAP_SYS_ADMIN mounts")
	})
	register("userns/capabilities", func(t *T) {
		pod := t.RunUserns("users", firstID)
		Equal(t, "root", pod.Output(capLines), "CapInh 0000000000000000\nCapPrm "+defaultCapabilities+"\nCapEff "+defaultCapabilities+"\nCapBnd "+defaultCapabilities+"\nCapAmb 0000000000000000\n")
		t.Contains("a plain user", pod.Output(capLines, asUser(1000)), "CapEff 0000000000000000\nCapBnd "+defaultCapabilities)
	})
	register("userns/privileged-ends-at-the-pod", func(t *T) {
		pod := t.RunUserns("users", firstID, func(config *cri.PodSandboxConfig) { config.Linux.SecurityContext.Privileged = true })
		text := pod.Output("cat /proc/self/uid_map; mount -t tmpfs none /mnt && echo mounted; mknod /tmp/null c 1 3 2>/dev/null || echo nonode; v=$(cat /proc/sys/kernel/panic); (echo $v > /proc/sys/kernel/panic) 2>/dev/null || echo nosysctl",
			security(func(to *cri.LinuxContainerSecurityContext) { to.Privileged = true }))
		Equal(t, "output", strings.Join(strings.Fields(text), " "), fmt.Sprintf("0 %d %d mounted nonode nosysctl", firstID, idCount))
	})
	register("userns/network-of-the-pod", func(t *T) {
		pod := t.RunUserns("users", firstID, func(config *cri.PodSandboxConfig) {
			config.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "1024 2048", "kernel.shm_rmid_forced": "1"}
		})
		container := pod.Run("main", "cat /sys/class/net/eth0/operstate; cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced; echo hello > /tmp/index.html; exec httpd -f -p 80 -h /tmp", asUser(1000),
			func(config *cri.ContainerConfig) { config.WorkingDir = "/tmp" })
		container.AwaitWritten("2048\n0\n1\n")
		t.Contains("of the network", container.Written(), "up\n1024\t2048\n0\n1\n")
		ip := pod.IP()
		t.True(ip != "", "no address")
		text := pod.Output("ip addr add 10.99.0.1/32 dev lo && echo added", capabilities([]string{"NET_ADMIN"}, nil))
		Equal(t, "its own to change", text, "added\n")
	})
	register("userns/one-pid-namespace-for-the-pod", func(t *T) {
		pod := t.RunUserns("users", firstID, func(config *cri.PodSandboxConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
		})
		pod.Sleep("other")
		// A container has started when its shell runs; the shell becomes sleep later.
		text := pod.Output("i=0; until grep -qx sleep /proc/[0-9]*/comm 2>/dev/null || [ $i = 2000 ]; do i=$((i+1)); done; grep -c . /proc/1/comm; cat /proc/[0-9]*/comm | sort | uniq -c | grep -c sleep; [ $$ != 1 ] && echo shared; stat -c %u /proc/1")
		t.Contains("processes", text, "1\n1\nshared\n")
	})
	register("userns/target-pid-namespace", func(t *T) {
		pod := t.RunUserns("users", firstID)
		target := pod.Sleep("target")
		text := pod.Output("tr '\\0' ' ' < /proc/1/cmdline; [ $$ != 1 ] && echo beside; cat /proc/1/root/etc/hostname", targeting(target.ID), capabilities([]string{"SYS_PTRACE"}, nil))
		t.Contains("the target's", text, "sleep 1000")
		t.Contains("the target's", text, "beside\nusers\n")
	})
	register("userns/on-the-network-of-the-node", func(t *T) {
		answer, err := t.Runtime.Status(t.Ctx, &cri.StatusRequest{})
		t.OK("Status", err)
		if !answer.GetFeatures().GetUserNamespacesHostNetwork() {
			t.True(!usernsPossible(), "the runtime says that it has none")
			t.Skipf("this node has no idmapped tmpfs: its kernel is older than Linux 6.3")
		}
		own, err := os.Readlink("/proc/self/ns/net")
		t.OK("readlink", err)
		pod := t.RunUserns("users", firstID, func(config *cri.PodSandboxConfig) {
			config.Hostname = ""
			config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
		})
		text := pod.Output("readlink /proc/self/ns/net; cat /proc/self/uid_map; ls /sys/class/net | grep -c lo; ip addr add 10.99.0.1/32 dev lo 2>/dev/null || echo refused", capabilities([]string{"NET_ADMIN"}, nil))
		Equal(t, "seen", strings.Join(strings.Fields(text), " "), fmt.Sprintf("%s 0 %d %d 1 refused", own, firstID, idCount))
	})
	register("userns/terminal", func(t *T) {
		container := t.RunUserns("users", firstID).Run("main", "test -t 0 && echo tty; stat -c %u $(tty); tty", func(config *cri.ContainerConfig) { config.Tty = true }, asUser(1000))
		container.AwaitExit()
		Equal(t, "terminal", strings.Join(strings.Fields(container.Written()), " "), "tty 1000 /dev/pts/0")
	})
	register("userns/device", func(t *T) {
		// Owner and mode are the node's, where the pod's root is nobody. (runc has no devices of another name here.)
		text := t.RunUserns("users", firstID).Output("[ -c /dev/kmsg ] && stat -c %u /dev/kmsg; head -c 1 /dev/kmsg >/dev/null 2>&1 || echo refused", func(config *cri.ContainerConfig) {
			config.Devices = []*cri.Device{{HostPath: "/dev/kmsg", ContainerPath: "/dev/kmsg", Permissions: "rwm"}}
		})
		Equal(t, "devices", text, "65534\nrefused\n")
	})
	register("userns/read-only-root", func(t *T) {
		text := t.RunUserns("users", firstID).Output("touch /x 2>/dev/null || echo refused; touch /dev/shm/x && echo shm", security(func(to *cri.LinuxContainerSecurityContext) {
			to.ReadonlyRootfs = true
			to.MaskedPaths = []string{"/proc/kcore", "/sys/firmware"}
			to.ReadonlyPaths = []string{"/proc/sys"}
		}))
		Equal(t, "output", text, "refused\nshm\n")
	})
	register("userns/exit-code-and-restart", func(t *T) {
		pod := t.RunUserns("users", firstID)
		for _, code := range []int32{0, 3} {
			container := pod.Run(fmt.Sprintf("code%d", code), fmt.Sprintf("echo out; exit %d", code))
			Equal(t, "exit code", container.AwaitExit().ExitCode, code)
			Equal(t, "output", container.Written(), "out\n")
		}
		stopped := pod.Run("stopped", "trap 'exit 0' TERM; echo ready; sleep 1000 & wait")
		stopped.AwaitWritten("ready")
		stopped.Stop(10)
		Equal(t, "after a stop", stopped.AwaitExit().ExitCode, 0)
	})
	register("userns/program-that-is-not-there", func(t *T) {
		pod := t.RunUserns("users", firstID)
		container := pod.Create("main", "", func(config *cri.ContainerConfig) { config.Command = []string{"/none"} })
		t.True(container.TryStart() != nil, "a program that is not there was started")
		Equal(t, "exit code", container.AwaitExit().ExitCode, 128)
	})
	register("userns/refused", func(t *T) {
		t.needUserns()
		wide := append(mapping(firstID), mapping(firstID+idCount)...)
		for name, users := range map[string]*cri.UserNamespace{
			"two lines":         {Mode: cri.NamespaceMode_POD, Uids: wide, Gids: wide},
			"no lines":          {Mode: cri.NamespaceMode_POD},
			"users alone":       {Mode: cri.NamespaceMode_POD, Uids: mapping(firstID)},
			"length 0":          {Mode: cri.NamespaceMode_POD, Uids: []*cri.IDMapping{{HostId: firstID}}, Gids: mapping(firstID)},
			"the node's mapped": {Mode: cri.NamespaceMode_NODE, Uids: mapping(firstID), Gids: mapping(firstID)},
			"mode CONTAINER":    {Mode: cri.NamespaceMode_CONTAINER, Uids: mapping(firstID), Gids: mapping(firstID)},
			"mode TARGET":       {Mode: cri.NamespaceMode_TARGET, Uids: mapping(firstID), Gids: mapping(firstID)},
		} {
			t.refuseSandbox(name, func(options *cri.NamespaceOption) { options.UsernsOptions = users })
		}
		t.refuseSandbox("the node's processes", func(options *cri.NamespaceOption) {
			options.UsernsOptions, options.Pid = ownUsers(firstID), cri.NamespaceMode_NODE
		})
	})
	register("userns/a-container-of-other-users-is-refused", func(t *T) {
		t.Need(t.Image)
		pod, plain := t.RunUserns("users", firstID), t.RunPod("plain")
		for name, users := range map[string]*cri.UserNamespace{
			"others": ownUsers(firstID + idCount),
			"node's": {Mode: cri.NamespaceMode_NODE},
		} {
			_, err := pod.TryCreate(pod.containerConfig("main", "true", withUsers(users)))
			t.True(err != nil, "a container with users of %s was made", name)
			t.Contains("error", err.Error(), "user namespace config for sandbox is different from container")
		}
		_, err := plain.TryCreate(plain.containerConfig("main", "true", withUsers(ownUsers(firstID))))
		t.True(err != nil, "a container with users of its own was made in a plain pod")
	})
	register("userns/a-user-that-the-pod-does-not-have", func(t *T) {
		t.Need(t.Image)
		pod := t.RunUserns("users", firstID)
		container, err := pod.TryCreate(pod.containerConfig("main", "true", asUser(70000)))
		if err == nil {
			err = container.TryStart()
		}
		t.True(err != nil, "a container runs as a user that is not mapped")
	})
}

func withUsers(users *cri.UserNamespace) Change {
	return security(func(to *cri.LinuxContainerSecurityContext) { to.NamespaceOptions.UsernsOptions = users })
}

func (t *T) refuseSandbox(name string, change func(*cri.NamespaceOption)) {
	config := t.podConfig("refused")
	change(config.Linux.SecurityContext.NamespaceOptions)
	answer, err := t.Runtime.RunPodSandbox(t.Ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: t.RuntimeHandler})
	if err == nil {
		pod := &Pod{t: t, ID: answer.PodSandboxId, Config: config}
		pod.Stop()
		pod.Remove()
		t.removeCgroup(config.Linux.CgroupParent)
		t.Failf("a sandbox with %s was made", name)
	}
	t.removeCgroup(config.Linux.CgroupParent)
}
