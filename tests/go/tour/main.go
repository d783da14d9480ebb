// Command tour goes through a CRI runtime as somebody does who has just learned of crictl: pull an
// image, run a pod, look at it from every side, take it away. It prints a transcript in which what
// differs from run to run (ids, times, addresses, figures) has a placeholder, so that the transcripts
// of two runtimes can be compared line by line. It knows no runtime by name. As root, in the runtime's
// own network and mount namespaces.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	client "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
)

// tour is what its steps share.
type tour struct {
	ctx     context.Context
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
	script  *transcript

	image, folder, cgroup string
	pod                   *cri.PodSandboxConfig
	podID, webID, shellID string
}

func main() {
	endpoint := flag.String("endpoint", "", "the runtime's socket, unix:///PATH")
	image := flag.String("image", "", "image with busybox")
	cgroup := flag.String("cgroup-parent", "", "the pod's cgroup, a path or a slice")
	flag.Parse()
	klog.LogToStderr(false)
	klog.SetOutput(discard{})
	if err := run(*endpoint, *image, *cgroup); err != nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
		os.Exit(1)
	}
}

type discard struct{}

func (discard) Write(bytes []byte) (int, error) { return len(bytes), nil }

func run(endpoint, image, cgroup string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	// Streamed lists where the runtime has them: cri-client falls back where it has not.
	runtime, err := client.NewRemoteRuntimeService(ctx, endpoint, 30*time.Second, nil, true)
	if err != nil {
		return err
	}
	images, err := client.NewRemoteImageService(ctx, endpoint, 30*time.Second, nil, true)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "tour-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	t := &tour{ctx: ctx, runtime: runtime, images: images, script: newTranscript(os.Stdout), image: image, folder: folder, cgroup: cgroup}
	t.script.name(folder, "<folder>")
	defer func() {
		// What a step that failed has left; its error is the one to tell.
		if t.podID != "" {
			_ = runtime.StopPodSandbox(context.Background(), t.podID)
			_ = runtime.RemovePodSandbox(context.Background(), t.podID)
		}
		if failed, ok := recover().(failure); ok {
			err = failed.error
		}
	}()
	t.all()
	return nil
}

// failure ends the tour.
type failure struct{ error }

// must ends the tour on an error.
func (t *tour) must(what string, err error) {
	if err != nil {
		panic(failure{fmt.Errorf("%s: %w", what, err)})
	}
}

// await polls until done is true.
func (t *tour) await(what string, done func() bool) {
	end := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(end) {
			panic(failure{fmt.Errorf("waited in vain for %s", what)})
		}
		time.Sleep(50 * time.Millisecond)
	}
}
