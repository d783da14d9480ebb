package main

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func init() {
	register("image/pull-and-status", func(t *T) {
		reference := t.Pull(t.Image)
		t.True(strings.HasPrefix(reference, "sha256:"), "PullImage answers %q", reference)
		image := t.imageStatus(t.Image)
		t.True(image != nil, "a pulled image has no status")
		Equal(t, "id", image.Id, reference)
		t.True(has(image.RepoTags, t.Image), "tags: %v", image.RepoTags)
		Equal(t, "digests", len(image.RepoDigests), 1)
		t.True(strings.HasPrefix(image.RepoDigests[0], repository(t.Image)+"@sha256:"), "digest: %v", image.RepoDigests)
		t.True(image.Size > 0, "no size")
		Equal(t, "username", image.Username, "")
		Equal(t, "uid", image.GetUid().GetValue(), 0)
	})
	register("image/status-by-every-name", func(t *T) {
		id := t.Pull(t.Image)
		digest := t.imageStatus(t.Image).RepoDigests[0]
		for _, name := range []string{t.Image, id, strings.TrimPrefix(id, "sha256:"), digest} {
			image := t.imageStatus(name)
			t.True(image != nil, "no image by %q", name)
			Equal(t, "id by "+name, image.Id, id)
		}
	})
	register("image/status-unknown", func(t *T) {
		t.True(t.imageStatus(t.Sibling("never-pulled:1")) == nil, "an image that was never pulled has a status")
	})
	register("image/status-verbose", func(t *T) {
		t.Pull(t.Image)
		answer, err := t.Images.ImageStatus(t.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: t.Image}, Verbose: true})
		t.OK("ImageStatus", err)
		t.True(len(answer.Info) > 0, "verbose, and no info")
	})
	register("image/user-by-name", func(t *T) {
		t.Pull(t.Sibling("username:1"))
		image := t.imageStatus(t.Sibling("username:1"))
		Equal(t, "username", image.Username, "web")
		t.True(image.Uid == nil, "uid %v beside a name", image.Uid)
	})
	register("image/user-by-number", func(t *T) {
		t.Pull(t.Sibling("uid:1"))
		image := t.imageStatus(t.Sibling("uid:1"))
		Equal(t, "uid", image.GetUid().GetValue(), 1000)
		Equal(t, "username", image.Username, "")
	})
	register("image/two-tags", func(t *T) {
		t.remove(t.Sibling("twin:1"))
		id := t.Pull(t.Sibling("twin:1"))
		Equal(t, "id of the second tag", t.Pull(t.Sibling("twin:2")), id)
		image := t.imageStatus(id)
		t.True(has(image.RepoTags, t.Sibling("twin:1")) && has(image.RepoTags, t.Sibling("twin:2")), "tags: %v", image.RepoTags)
		Equal(t, "digests", len(image.RepoDigests), 1)
		count := 0
		for _, each := range t.images("") {
			if each.Id == id {
				count++
			}
		}
		Equal(t, "entries in the list", count, 1)
		// The kubelet removes by id; one tag does as well: all go (cri-api says so).
		t.remove(t.Sibling("twin:1"))
		t.True(t.imageStatus(t.Sibling("twin:2")) == nil, "the other tag is still there")
	})
	register("image/list", func(t *T) {
		id := t.Pull(t.Image)
		for _, image := range t.images("") {
			if image.Id == id {
				t.True(has(image.RepoTags, t.Image) && image.Size > 0, "listed as %v", image)
				return
			}
		}
		t.Failf("a pulled image is not listed")
	})
	register("image/list-filter", func(t *T) {
		id := t.Pull(t.Image)
		others := 0
		for _, image := range t.images(t.Image) {
			if image.Id != id {
				others++
			}
		}
		t.Pull(t.Sibling("other:1"))
		t.True(len(t.images(t.Sibling("other:1"))) > 0, "an image is not found by its own name")
		if others > 0 && t.isContainerd() {
			t.Skipf("all images are listed whatever the filter says; the kubelet sends none")
		}
		Equal(t, "others", others, 0)
		Equal(t, "images of an unknown name", len(t.images(t.Sibling("none:1"))), 0)
	})
	register("image/pull-by-digest", func(t *T) {
		t.Pull(t.Sibling("other:1"))
		digest := t.imageStatus(t.Sibling("other:1")).RepoDigests[0]
		t.remove(t.Sibling("other:1"))
		id := t.Pull(digest)
		image := t.imageStatus(digest)
		Equal(t, "id", image.Id, id)
		Equal(t, "tags", len(image.RepoTags), 0)
		t.True(has(image.RepoDigests, digest), "digests: %v", image.RepoDigests)
		t.remove(digest)
	})
	register("image/pull-twice", func(t *T) {
		Equal(t, "id", t.Pull(t.Image), t.Pull(t.Image))
	})
	register("image/pull-at-once", func(t *T) {
		t.remove(t.Sibling("other:1"))
		errors := make(chan error, 5)
		for range 5 {
			go func() {
				_, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: t.Sibling("other:1")}})
				errors <- err
			}()
		}
		for range 5 {
			t.OK("PullImage", <-errors)
		}
		t.remove(t.Sibling("other:1"))
	})
	register("image/pull-missing", func(t *T) {
		_, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: t.Sibling("not-in-the-registry:1")}})
		t.Code("PullImage of an image that the registry lacks", err, codes.NotFound)
		t.Contains("the error", err.Error(), "not-in-the-registry:1")
	})
	register("image/pull-bad-name", func(t *T) {
		_, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: "Not A Name"}})
		t.True(err != nil, "a bad name was pulled")
	})
	register("image/pull-unreachable", func(t *T) {
		_, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: "127.0.0.1:1/a/b:1"}})
		t.True(err != nil, "pulled from nowhere")
		t.Contains("the error", err.Error(), "127.0.0.1:1")
	})
	register("image/remove", func(t *T) {
		t.Pull(t.Sibling("other:1"))
		t.remove(t.Sibling("other:1"))
		t.True(t.imageStatus(t.Sibling("other:1")) == nil, "a removed image has a status")
		t.remove(t.Sibling("other:1"))
		t.Pull(t.Sibling("other:1"))
		t.remove(t.Sibling("other:1"))
	})
	register("image/remove-by-id", func(t *T) {
		id := t.Pull(t.Sibling("other:1"))
		t.remove(id)
		t.True(t.imageStatus(t.Sibling("other:1")) == nil, "a removed image has a status")
	})
	register("image/remove-unknown", func(t *T) { t.remove(t.Sibling("never-pulled:1")) })
	register("image/remove-in-use", func(t *T) {
		container := t.RunPod("used").Sleep("main", image(t.Sibling("other:1")))
		_, err := t.Images.RemoveImage(t.Ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: t.Sibling("other:1")}})
		// Both a removal (the layers stay pinned) and a refusal are seen in the field.
		_ = err
		Equal(t, "output", string(container.ExecSync("cat /etc/other").Stdout), "other\n")
		Equal(t, "state", container.Status().State, cri.ContainerState_CONTAINER_RUNNING)
	})
	register("image/remove-shared-layers", func(t *T) {
		t.Pull(t.Image)
		t.Pull(t.Sibling("other:1"))
		t.remove(t.Sibling("other:1"))
		Equal(t, "output", t.RunPod("shared").Output("echo fine"), "fine\n")
	})
	register("image/fs-info", func(t *T) {
		t.Pull(t.Image)
		t.Await("usage", 20*time.Second, func() (bool, string) {
			answer, err := t.Images.ImageFsInfo(t.Ctx, &cri.ImageFsInfoRequest{})
			t.OK("ImageFsInfo", err)
			t.True(len(answer.ImageFilesystems) > 0, "no image file system")
			one := answer.ImageFilesystems[0]
			t.True(one.GetFsId().GetMountpoint() != "" && one.Timestamp > 0, "%v", one)
			return one.GetUsedBytes().GetValue() > 0 && one.GetInodesUsed().GetValue() > 0, one.String()
		})
	})
	register("image/stream-list", func(t *T) {
		t.Pull(t.Image)
		stream, err := t.Images.StreamImages(t.Ctx, &cri.StreamImagesRequest{})
		t.OK("StreamImages", err)
		t.True(len(receive(t, "StreamImages", stream.Recv)) > 0, "no message")
	})
	register("image/content", func(t *T) {
		text := t.RunPod("content").Output("cat /etc/other; ls /gone 2>/dev/null || echo whiteout; ls /opaque; stat -c '%a %u %g' /owned", image(t.Sibling("other:1")))
		Equal(t, "output", text, "other\nwhiteout\nnew\n4711 1000 1234\n")
	})
}

func (t *T) imageStatus(name string) *cri.Image {
	answer, err := t.Images.ImageStatus(t.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	t.OK("ImageStatus "+name, err)
	return answer.Image
}

func (t *T) images(filter string) []*cri.Image {
	request := &cri.ListImagesRequest{}
	if filter != "" {
		request.Filter = &cri.ImageFilter{Image: &cri.ImageSpec{Image: filter}}
	}
	answer, err := t.Images.ListImages(t.Ctx, request)
	t.OK("ListImages", err)
	return answer.Images
}

func (t *T) remove(name string) {
	_, err := t.Images.RemoveImage(t.Ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: name}})
	t.OK("RemoveImage "+name, err)
}

func has(list []string, wanted string) bool {
	for _, one := range list {
		if one == wanted {
			return true
		}
	}
	return false
}

// repository is a reference without its tag.
func repository(reference string) string {
	return reference[:strings.LastIndex(reference, ":")]
}
