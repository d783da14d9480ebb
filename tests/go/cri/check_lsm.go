package main

import (
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What holds on any node, with AppArmor and SELinux or without.
func init() {
	unconfined := &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	register("lsm/apparmor-unconfined", func(t *T) {
		text := t.RunPod("lsm").Output("echo ran", security(func(to *cri.LinuxContainerSecurityContext) { to.Apparmor = unconfined }))
		Equal(t, "output", text, "ran\n")
	})
	register("lsm/apparmor-profile-that-nobody-has", func(t *T) {
		pod := t.RunPod("lsm")
		t.Need(t.Image)
		for _, change := range []func(*cri.LinuxContainerSecurityContext){
			func(to *cri.LinuxContainerSecurityContext) {
				to.Apparmor = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: "cri-suite-has-none"}
			},
			func(to *cri.LinuxContainerSecurityContext) { to.ApparmorProfile = "localhost/cri-suite-has-none" },
			func(to *cri.LinuxContainerSecurityContext) { to.ApparmorProfile = "no-such-kind" },
		} {
			_, err := pod.TryCreate(pod.containerConfig("main", "true", security(change)))
			t.True(err != nil, "a container with a profile that nobody has was created")
			t.Contains("error", err.Error(), "apparmor")
		}
	})
	register("lsm/apparmor-new-field-wins", func(t *T) {
		text := t.RunPod("lsm").Output("echo ran", security(func(to *cri.LinuxContainerSecurityContext) {
			to.Apparmor = unconfined
			to.ApparmorProfile = "localhost/cri-suite-has-none"
		}))
		Equal(t, "output", text, "ran\n")
	})
	register("lsm/selinux-options", func(t *T) {
		options := &cri.SELinuxOption{User: "system_u", Role: "system_r", Type: "container_t", Level: "s0:c4,c5"}
		t.Write("data/file", "hello\n")
		pod := t.RunPod("lsm", func(config *cri.PodSandboxConfig) { config.Linux.SecurityContext.SelinuxOptions = options })
		text := pod.Output("cat /data/file", security(func(to *cri.LinuxContainerSecurityContext) { to.SelinuxOptions = options }),
			mounted(&cri.Mount{HostPath: t.Folder("data"), ContainerPath: "/data", SelinuxRelabel: true}))
		Equal(t, "output", text, "hello\n")
	})
	register("lsm/selinux-level-that-is-none", func(t *T) {
		options := &cri.SELinuxOption{Level: "s0:everything"}
		config := t.podConfig("level")
		config.Linux.SecurityContext.SelinuxOptions = options
		_, err := t.Runtime.RunPodSandbox(t.Ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: t.RuntimeHandler})
		t.True(err != nil, "a sandbox with a level that is none was made")
		t.Contains("error", err.Error(), "the format of 'level' \"s0:everything\" is not correct")
		pod := t.RunPod("lsm")
		t.Need(t.Image)
		_, err = pod.TryCreate(pod.containerConfig("main", "true", security(func(to *cri.LinuxContainerSecurityContext) { to.SelinuxOptions = options })))
		t.True(err != nil, "a container with a level that is none was created")
		t.Contains("error", err.Error(), "the format of 'level' \"s0:everything\" is not correct")
	})
}
