package main

import (
	"path/filepath"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The capabilities of a container that asks for none in particular, as containerd and docker have them.
const defaultCapabilities = "00000000a80425fb"

const identity = "id -u; id -g; id -G | tr ' ' '\\n' | sort -n | tr '\\n' ' '"

func init() {
	register("security/user", func(t *T) {
		text := t.RunPod("user").Output(identity, asUser(1000))
		Equal(t, "identity", strings.Join(strings.Fields(text), " "), "1000 1000 1000 1234")
	})
	register("security/user-without-account", func(t *T) {
		text := t.RunPod("user").Output(identity, asUser(4321))
		Equal(t, "identity", strings.Join(strings.Fields(text), " "), "4321 0 0")
	})
	register("security/user-and-group", func(t *T) {
		text := t.RunPod("user").Output(identity, asUser(1000), security(func(to *cri.LinuxContainerSecurityContext) {
			to.RunAsGroup = &cri.Int64Value{Value: 2222}
		}))
		fields := strings.Fields(text)
		Equal(t, "uid and gid", strings.Join(fields[:2], " "), "1000 2222")
	})
	register("security/group-without-user", func(t *T) {
		pod := t.RunPod("group")
		t.Need(t.Image)
		_, err := pod.TryCreate(pod.containerConfig("main", "true", security(func(to *cri.LinuxContainerSecurityContext) {
			to.RunAsGroup = &cri.Int64Value{Value: 2222}
		})))
		t.True(err != nil, "a group without a user was accepted")
	})
	register("security/supplemental-groups", func(t *T) {
		text := t.RunPod("groups").Output(identity, asUser(1000), security(func(to *cri.LinuxContainerSecurityContext) {
			to.SupplementalGroups = []int64{5678}
		}))
		Equal(t, "identity", strings.Join(strings.Fields(text), " "), "1000 1000 1000 1234 5678")
	})
	register("security/supplemental-groups-strict", func(t *T) {
		text := t.RunPod("groups").Output(identity, asUser(1000), security(func(to *cri.LinuxContainerSecurityContext) {
			to.SupplementalGroups = []int64{5678}
			to.SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
		}))
		Equal(t, "identity", strings.Join(strings.Fields(text), " "), "1000 1000 1000 5678")
	})
	register("security/username", func(t *T) {
		text := t.RunPod("name").Output(identity, security(func(to *cri.LinuxContainerSecurityContext) { to.RunAsUsername = "web" }))
		Equal(t, "identity", strings.Join(strings.Fields(text), " "), "1000 1000 1000 1234")
	})
	register("security/username-unknown", func(t *T) {
		pod := t.RunPod("name")
		t.Need(t.Image)
		_, err := pod.TryCreate(pod.containerConfig("main", "true", security(func(to *cri.LinuxContainerSecurityContext) { to.RunAsUsername = "nobody-knows" })))
		t.True(err != nil, "an unknown user was accepted")
	})
	register("security/user-of-the-image-by-name", func(t *T) {
		text := t.RunPod("image").Output(identity, image(t.Sibling("username:1")))
		Equal(t, "identity", strings.Join(strings.Fields(text), " "), "1000 1000 1000 1234")
	})
	register("security/user-of-the-image-by-number", func(t *T) {
		text := t.RunPod("image").Output(identity, image(t.Sibling("uid:1")))
		Equal(t, "uid and gid", strings.Join(strings.Fields(text)[:2], " "), "1000 1234")
	})
	register("security/home-of-the-user", func(t *T) {
		Equal(t, "HOME", t.RunPod("home").Output("echo $HOME", asUser(1000)), "/home/web\n")
	})
	register("security/capabilities-default", func(t *T) {
		text := t.RunPod("caps").Output(capLines)
		Equal(t, "sets", text, "CapInh 0000000000000000\nCapPrm "+defaultCapabilities+"\nCapEff "+defaultCapabilities+"\nCapBnd "+defaultCapabilities+"\nCapAmb 0000000000000000\n")
	})
	register("security/capabilities-of-a-plain-user", func(t *T) {
		text := t.RunPod("caps").Output(capLines, asUser(1000))
		t.Contains("sets", text, "CapPrm 0000000000000000\nCapEff 0000000000000000\nCapBnd "+defaultCapabilities)
	})
	register("security/capabilities-add", func(t *T) {
		text := t.RunPod("caps").Output(capLines, capabilities([]string{"NET_ADMIN"}, nil))
		t.Contains("sets", text, "CapEff 00000000a80435fb\n")
	})
	register("security/capabilities-drop", func(t *T) {
		text := t.RunPod("caps").Output(capLines, capabilities(nil, []string{"CHOWN"}))
		t.Contains("sets", text, "CapBnd 00000000a80425fa\n")
	})
	register("security/capabilities-drop-all", func(t *T) {
		text := t.RunPod("caps").Output(capLines, capabilities(nil, []string{"ALL"}))
		t.Contains("sets", text, "CapEff 0000000000000000\nCapBnd 0000000000000000\n")
	})
	register("security/capabilities-drop-all-add-one", func(t *T) {
		text := t.RunPod("caps").Output(capLines, capabilities([]string{"NET_BIND_SERVICE"}, []string{"ALL"}))
		t.Contains("sets", text, "CapEff 0000000000000400\nCapBnd 0000000000000400\n")
	})
	register("security/capabilities-add-all", func(t *T) {
		text := t.RunPod("caps").Output("grep CapEff /proc/self/status", capabilities([]string{"ALL"}, nil))
		t.True(!strings.Contains(text, defaultCapabilities), "only the default ones: %q", text)
	})
	register("security/no-new-privs", func(t *T) {
		pod := t.RunPod("nnp")
		set := security(func(to *cri.LinuxContainerSecurityContext) { to.NoNewPrivs = true })
		Equal(t, "with", strings.Fields(pod.Output("grep NoNewPrivs /proc/self/status", set))[1], "1")
		Equal(t, "without", strings.Fields(pod.Output("grep NoNewPrivs /proc/self/status"))[1], "0")
	})
	register("security/privileged", func(t *T) {
		pod := t.RunPod("privileged", func(config *cri.PodSandboxConfig) { config.Linux.SecurityContext.Privileged = true })
		text := pod.Output("mount -t tmpfs none /mnt && echo mounted; [ -c /dev/kmsg ] && echo devices; "+
			"grep ' /sys ' /proc/mounts | grep -q ' rw' && echo sysrw; grep -q ' /proc/sys ' /proc/mounts || echo procrw; grep Seccomp: /proc/self/status",
			security(func(to *cri.LinuxContainerSecurityContext) { to.Privileged = true }))
		Equal(t, "output", strings.Join(strings.Fields(text), " "), "mounted devices sysrw procrw Seccomp: 0")
	})
	register("security/privileged-in-a-plain-sandbox", func(t *T) {
		pod := t.RunPod("plain")
		t.Need(t.Image)
		_, err := pod.TryCreate(pod.containerConfig("main", "true", security(func(to *cri.LinuxContainerSecurityContext) { to.Privileged = true })))
		t.True(err != nil, "a privileged container was made in a sandbox that is not")
	})
	register("security/privileged-container-added-to-a-plain-sandbox", func(t *T) {
		pod := t.RunPod("plain")
		t.Need(t.Image)
		// As a kubelet describes the pod once somebody has added a privileged container to it.
		pod.Config.Linux.SecurityContext.Privileged = true
		_, err := pod.TryCreate(pod.containerConfig("main", "true", security(func(to *cri.LinuxContainerSecurityContext) { to.Privileged = true })))
		t.True(err == nil, "a privileged container was refused: %v", err)
	})
	register("security/unprivileged-cannot-mount", func(t *T) {
		text := t.RunPod("plain").Output("mount -t tmpfs none /mnt 2>/dev/null || echo refused; grep ' /sys ' /proc/mounts | grep -q ' ro' && echo sysro")
		Equal(t, "output", text, "refused\nsysro\n")
	})
	register("security/readonly-rootfs", func(t *T) {
		pod := t.RunPod("readonly")
		host := t.Folder("data")
		text := pod.Output("touch /x 2>/dev/null || echo refused; touch /data/y && echo written; touch /dev/shm/z && echo shm; cat /etc/hostname",
			security(func(to *cri.LinuxContainerSecurityContext) { to.ReadonlyRootfs = true }),
			mounted(&cri.Mount{HostPath: host, ContainerPath: "/data"}))
		Equal(t, "output", text, "refused\nwritten\nshm\nreadonly\n")
	})
	register("security/writable-rootfs", func(t *T) {
		Equal(t, "output", t.RunPod("writable").Output("echo x > /x; cat /x"), "x\n")
	})
	register("security/masked-paths", func(t *T) {
		text := t.RunPod("masked").Output("ls -A /proc/bus | wc -l; wc -c < /proc/version; echo no > /proc/version; wc -c < /proc/version",
			security(func(to *cri.LinuxContainerSecurityContext) {
				to.MaskedPaths = []string{"/proc/bus", "/proc/version", "/proc/no-such-file"}
			}))
		Equal(t, "sizes", strings.Join(strings.Fields(text), " "), "0 0 0")
	})
	register("security/unmasked-when-empty", func(t *T) {
		text := t.RunPod("unmasked").Output("grep -c ' /proc/.' /proc/mounts || true")
		Equal(t, "mounts below /proc", strings.TrimSpace(text), "0")
	})
	register("security/readonly-paths", func(t *T) {
		text := t.RunPod("readonlypaths").Output("(echo 1 > /proc/sys/net/ipv4/ip_forward) 2>/dev/null || echo refused; cat /proc/sys/kernel/ostype",
			security(func(to *cri.LinuxContainerSecurityContext) { to.ReadonlyPaths = []string{"/proc/sys", "/proc/no-such"} }))
		Equal(t, "output", text, "refused\nLinux\n")
	})
	register("security/seccomp-unconfined", func(t *T) {
		text := t.RunPod("seccomp").Output("grep Seccomp: /proc/self/status", seccomp(cri.SecurityProfile_Unconfined, ""))
		Equal(t, "mode", strings.Fields(text)[1], "0")
	})
	register("security/seccomp-default", func(t *T) {
		pod := t.RunPod("seccomp")
		// The default profile lets nobody without CAP_SYS_ADMIN make a user namespace.
		script := "grep Seccomp: /proc/self/status; unshare -U true 2>/dev/null && echo allowed || echo refused"
		Equal(t, "default", strings.Join(strings.Fields(pod.Output(script, seccomp(cri.SecurityProfile_RuntimeDefault, ""))), " "), "Seccomp: 2 refused")
		Equal(t, "unconfined", strings.Join(strings.Fields(pod.Output(script, seccomp(cri.SecurityProfile_Unconfined, ""))), " "), "Seccomp: 0 allowed")
	})
	register("security/seccomp-default-and-capabilities", func(t *T) {
		// What the default profile allows grows with the capabilities.
		text := t.RunPod("seccomp").Output("mount -t tmpfs none /mnt && echo mounted",
			seccomp(cri.SecurityProfile_RuntimeDefault, ""), capabilities([]string{"SYS_ADMIN"}, nil))
		Equal(t, "output", text, "mounted\n")
	})
	register("security/seccomp-default-for-exec", func(t *T) {
		container := t.RunPod("seccomp").Sleep("main", seccomp(cri.SecurityProfile_RuntimeDefault, ""))
		Equal(t, "mode", strings.Fields(string(container.ExecSync("grep Seccomp: /proc/self/status").Stdout))[1], "2")
	})
	register("security/seccomp-localhost", func(t *T) {
		profile := t.Write("profile.json", `{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64"],"syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":1}]}`)
		text := t.RunPod("seccomp").Output("mkdir /tmp/x 2>/dev/null || echo refused; grep Seccomp: /proc/self/status", seccomp(cri.SecurityProfile_Localhost, profile))
		Equal(t, "output", strings.Join(strings.Fields(text), " "), "refused Seccomp: 2")
	})
	register("security/seccomp-localhost-missing", func(t *T) {
		pod := t.RunPod("seccomp")
		t.Need(t.Image)
		missing := filepath.Join(t.folder, "no-such-profile.json")
		_, err := pod.TryCreate(pod.containerConfig("main", "true", seccomp(cri.SecurityProfile_Localhost, missing)))
		t.True(err != nil, "a profile that is not there was accepted")
	})
	register("security/seccomp-privileged-is-unconfined", func(t *T) {
		pod := t.RunPod("seccomp", func(config *cri.PodSandboxConfig) { config.Linux.SecurityContext.Privileged = true })
		text := pod.Output("grep Seccomp: /proc/self/status", seccomp(cri.SecurityProfile_RuntimeDefault, ""),
			security(func(to *cri.LinuxContainerSecurityContext) { to.Privileged = true }))
		Equal(t, "mode", strings.Fields(text)[1], "0")
	})
	register("security/sysctls", func(t *T) {
		pod := t.RunPod("sysctl", func(config *cri.PodSandboxConfig) {
			config.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "20000 30000", "kernel.shm_rmid_forced": "1"}
		})
		text := pod.Output("cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/kernel/shm_rmid_forced")
		Equal(t, "values", strings.Join(strings.Fields(text), " "), "20000 30000 1")
	})
	register("security/sysctl-of-the-host-network", func(t *T) {
		config := t.podConfig("sysctl")
		config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
		config.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "20000 30000"}
		_, err := t.Runtime.RunPodSandbox(t.Ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: t.RuntimeHandler})
		t.True(err != nil, "a pod changed the node's network sysctl")
	})
	register("security/cgroup-is-read-only", func(t *T) {
		// On v1 the controllers' mounts are; the tmpfs that holds them need not be.
		text := t.RunPod("cgroup").Output("cd /sys/fs/cgroup/memory 2>/dev/null || cd /sys/fs/cgroup; mkdir x 2>/dev/null || echo refused")
		Equal(t, "output", text, "refused\n")
	})
}

const capLines = "grep -E '^Cap' /proc/self/status | tr -d ':' | tr -s '\\t' ' '"

func asUser(uid int64) Change {
	return security(func(to *cri.LinuxContainerSecurityContext) { to.RunAsUser = &cri.Int64Value{Value: uid} })
}

func capabilities(add, drop []string) Change {
	return security(func(to *cri.LinuxContainerSecurityContext) {
		to.Capabilities = &cri.Capability{AddCapabilities: add, DropCapabilities: drop}
	})
}

func seccomp(kind cri.SecurityProfile_ProfileType, reference string) Change {
	return security(func(to *cri.LinuxContainerSecurityContext) {
		to.Seccomp = &cri.SecurityProfile{ProfileType: kind, LocalhostRef: reference}
	})
}
