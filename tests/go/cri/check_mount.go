package main

import (
	"os"
	"path/filepath"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mountedImage adds the mount of an image.
func mountedImage(image, subPath, at string) Change {
	return mounted(&cri.Mount{Image: &cri.ImageSpec{Image: image}, ImageSubPath: subPath, ContainerPath: at, Readonly: true})
}

func init() {
	register("mount/writable", func(t *T) {
		host := t.Folder("data")
		t.RunPod("mount").Output("echo hello > /data/file", mounted(&cri.Mount{HostPath: host, ContainerPath: "/data"}))
		text, err := os.ReadFile(filepath.Join(host, "file"))
		t.OK("read", err)
		Equal(t, "text", string(text), "hello\n")
	})
	register("mount/read-only", func(t *T) {
		t.Write("data/file", "hello\n")
		text := t.RunPod("mount").Output("cat /data/file; touch /data/x 2>/dev/null || echo refused", mounted(&cri.Mount{HostPath: t.Folder("data"), ContainerPath: "/data", Readonly: true}))
		Equal(t, "output", text, "hello\nrefused\n")
	})
	register("mount/file", func(t *T) {
		file := t.Write("file", "hello\n")
		Equal(t, "output", t.RunPod("mount").Output("cat /etc/made-here", mounted(&cri.Mount{HostPath: file, ContainerPath: "/etc/made-here"})), "hello\n")
	})
	register("mount/over-an-image-file", func(t *T) {
		file := t.Write("file", "hello\n")
		Equal(t, "output", t.RunPod("mount").Output("cat /etc/passwd", mounted(&cri.Mount{HostPath: file, ContainerPath: "/etc/passwd"})), "hello\n")
	})
	register("mount/missing-source-is-made", func(t *T) {
		// critest: "should support starting container with volume when host path doesn't exist".
		host := filepath.Join(t.folder, "not", "there")
		t.RunPod("mount").Output("touch /data/x", mounted(&cri.Mount{HostPath: host, ContainerPath: "/data"}))
		_, err := os.Stat(filepath.Join(host, "x"))
		t.OK("stat", err)
	})
	register("mount/source-is-a-symlink", func(t *T) {
		t.Write("data/file", "hello\n")
		link := filepath.Join(t.folder, "link")
		t.OK("symlink", os.Symlink(t.Folder("data"), link))
		Equal(t, "output", t.RunPod("mount").Output("cat /data/file", mounted(&cri.Mount{HostPath: link, ContainerPath: "/data"})), "hello\n")
	})
	register("mount/target-through-a-symlink-stays-inside", func(t *T) {
		// The image holds /escape -> /tmp: followed within the container's root, never on the host.
		t.Write("data/file", "hello\n")
		text := t.RunPod("mount").Output("cat /escape/deep/file /tmp/deep/file", mounted(&cri.Mount{HostPath: t.Folder("data"), ContainerPath: "/escape/deep"}))
		Equal(t, "output", text, "hello\nhello\n")
		_, err := os.Stat("/tmp/deep")
		t.True(os.IsNotExist(err), "/tmp/deep was made on the host: %v", err)
	})
	register("mount/nested", func(t *T) {
		t.Write("outer/file", "outer\n")
		t.Write("inner/file", "inner\n")
		text := t.RunPod("mount").Output("cat /data/file /data/inner/file", mounted(&cri.Mount{HostPath: t.Folder("inner"), ContainerPath: "/data/inner"}),
			mounted(&cri.Mount{HostPath: t.Folder("outer"), ContainerPath: "/data"}))
		Equal(t, "output", text, "outer\ninner\n")
	})
	register("mount/image", func(t *T) {
		other := t.Sibling("other:1")
		t.Need(other)
		pod := t.RunPod("image")
		container := pod.Run("main", "cat /vol/etc/other; ls /vol/opaque; [ -e /vol/gone ] || echo gone; touch /vol/x 2>/dev/null || echo refused; sleep 1000",
			mountedImage(other, "", "/vol"))
		container.AwaitWritten("refused")
		Equal(t, "output", container.Written(), "other\nnew\ngone\nrefused\n")
		mounts := container.Status().Mounts
		Equal(t, "mounts told", len(mounts), 1)
		Equal(t, "image told", mounts[0].GetImage().GetImage(), other)
		t.True(mounts[0].Readonly, "the mount is not told as read-only")
		// A second container of the pod; then the image goes, and both keep what they mounted.
		Equal(t, "a second one", pod.Output("cat /vol/etc/other", mountedImage(other, "", "/vol")), "other\n")
		t.remove(other)
		Equal(t, "without the image", string(container.ExecSync("cat /vol/etc/other").Stdout), "other\n")
		t.Need(other)
	})
	register("mount/image-sub-path", func(t *T) {
		other := t.Sibling("other:1")
		t.Need(other)
		pod := t.RunPod("image")
		text := pod.Output("cat /vol/other; ls /deep", mountedImage(other, "etc", "/vol"), mountedImage(other, "opaque/", "/deep"))
		Equal(t, "output", text, "other\nnew\n")
	})
	register("mount/image-sub-path-that-is-none", func(t *T) {
		other := t.Sibling("other:1")
		t.Need(other)
		pod := t.RunPod("image")
		refuse := func(image, subPath string, words ...string) {
			_, err := pod.TryCreate(pod.containerConfig("refused", "true", mountedImage(image, subPath, "/vol")))
			t.True(err != nil, "a container with the part %q of %s was made", subPath, image)
			for _, word := range append(words, "ImageVolumeMountFailed: failed to ") {
				t.Contains("error", err.Error(), word)
			}
		}
		t.Need(t.Image)
		refuse(other, "none", "failed to ensure image subpath \"none\" in ", "no such file or directory")
		refuse(other, "gone", "failed to ensure image subpath \"gone\" in ", "no such file or directory")
		// The image's absolute link to /tmp leads nowhere, or into the image, which has nothing there.
		link, err := pod.TryCreate(pod.containerConfig("link", "ls /vol", mountedImage(other, "escape", "/vol")))
		if err != nil {
			t.Contains("error", err.Error(), "failed to ensure image subpath \"escape\" in ")
		} else {
			link.Start()
			link.AwaitExit()
			Equal(t, "behind the link", link.Written(), "")
		}
		refuse(other, "etc/other", "only directory subpath is supported, subpath: \"etc/other\"")
		refuse(t.Sibling("never-pulled:1"), "", "failed to resolve image", "not found")
	})
	register("mount/image-and-host-path-or-writable", func(t *T) {
		other := t.Sibling("other:1")
		t.Need(other)
		pod := t.RunPod("image")
		for _, change := range []func(*cri.Mount){
			func(mount *cri.Mount) { mount.HostPath = "/tmp" },
			func(mount *cri.Mount) { mount.Readonly = false },
			func(mount *cri.Mount) { mount.Image.Image = "" },
		} {
			config := pod.containerConfig("refused", "true", mountedImage(other, "", "/vol"))
			change(config.Mounts[0])
			_, err := pod.TryCreate(config)
			t.True(err != nil, "a container with the mount %v was made", config.Mounts[0])
		}
	})
	register("mount/hosts-file-of-the-kubelet", func(t *T) {
		file := t.Write("hosts", "10.1.2.3 here\n")
		Equal(t, "output", t.RunPod("mount").Output("cat /etc/hosts", mounted(&cri.Mount{HostPath: file, ContainerPath: "/etc/hosts"})), "10.1.2.3 here\n")
	})
	register("mount/private-by-default", func(t *T) {
		text := t.RunPod("mount").Output("grep ' /data ' /proc/self/mountinfo | grep -cE 'shared:|master:' || true", mounted(&cri.Mount{HostPath: t.Folder("data"), ContainerPath: "/data"}))
		Equal(t, "propagating mounts", text, "0\n")
	})
	register("mount/relative-container-path", func(t *T) {
		pod := t.RunPod("mount")
		t.Need(t.Image)
		container, err := pod.TryCreate(pod.containerConfig("main", "pwd", mounted(&cri.Mount{HostPath: t.Folder("data"), ContainerPath: "data/../../../x"})))
		if err == nil {
			// Accepted by containerd, which takes it from the root: nothing outside may be touched.
			_ = container.TryStart()
		}
		_, err = os.Stat("/x")
		t.True(os.IsNotExist(err), "/x was made on the host")
	})
	register("mount/recursive-read-only", func(t *T) {
		status, err := t.Runtime.Status(t.Ctx, &cri.StatusRequest{})
		t.OK("Status", err)
		for _, handler := range status.RuntimeHandlers {
			if handler.Name == "" && !handler.GetFeatures().GetRecursiveReadOnlyMounts() {
				t.Skipf("the default handler does not offer it")
			}
		}
		text := t.RunPod("mount").Output("touch /data/x 2>/dev/null || echo refused", mounted(&cri.Mount{HostPath: t.Folder("data"), ContainerPath: "/data", Readonly: true, RecursiveReadOnly: true}))
		Equal(t, "output", text, "refused\n")
	})
	register("mount/image-volume-is-not-shared", func(t *T) {
		pod := t.RunPod("two")
		pod.Output("echo mine > /tmp/note")
		Equal(t, "other container's root", pod.Output("ls /tmp"), "")
	})
}
