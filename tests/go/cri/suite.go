package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options are the command line.
type Options struct {
	Endpoint string
	Image    string
	// In a registry that asks for a password.
	PrivateImage, PrivateUser, PrivatePassword string
	// One that the runtime's configuration pins.
	PinnedImage  string
	CgroupParent string
	SeccompDir   string
	CdiDir       string
	// Of every sandbox but those of the checks of handlers; empty for the default one.
	RuntimeHandler string
	Timeout        time.Duration
}

// Suite is a connection and what all checks share.
type Suite struct {
	Options
	Runtime cri.RuntimeServiceClient
	Images  cri.ImageServiceClient
	serial  int
}

func connect(options Options) (*Suite, error) {
	conn, err := grpc.NewClient(options.Endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, err
	}
	return &Suite{
		Options: options,
		Runtime: cri.NewRuntimeServiceClient(conn),
		Images:  cri.NewImageServiceClient(conn),
	}, nil
}

// T is one run of one check. Its methods end the check by panicking with a verdict.
type T struct {
	*Suite
	Ctx      context.Context
	name     string
	folder   string
	cleanups []func()
}

type verdict struct{ kind, detail string }

func (s *Suite) runOne(one check) (kind, detail string) {
	timeout := scaled(s.Timeout)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	folder, err := os.MkdirTemp("", "cri-suite-")
	if err != nil {
		return "FAIL", err.Error()
	}
	t := &T{Suite: s, Ctx: ctx, name: one.name, folder: folder}
	done := make(chan verdict, 1)
	go func() {
		kind, detail := t.guard(func() { one.run(t) })
		done <- verdict{kind, detail}
	}()
	select {
	case said := <-done:
		kind, detail = said.kind, said.detail
	case <-time.After(timeout + 10*time.Second):
		// It ignores its context; the others go on.
		kind, detail = "FAIL", "hung"
	}
	// Cleaning up is part of the check: a pod that cannot be removed fails it.
	after, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	t.Ctx = after
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		again, what := t.guard(t.cleanups[i])
		if again == "FAIL" && kind != "FAIL" {
			kind, detail = again, "cleanup: "+what
		}
	}
	if err := os.RemoveAll(folder); err != nil && kind == "PASS" {
		kind, detail = "FAIL", "cleanup: "+err.Error()
	}
	return kind, strings.ReplaceAll(strings.TrimSpace(detail), "\n", " | ")
}

// guard turns the panics of Fail and Skip into a verdict, and other panics into a failure.
func (t *T) guard(run func()) (kind, detail string) {
	defer func() {
		switch said := recover().(type) {
		case nil:
		case verdict:
			kind, detail = said.kind, said.detail
		default:
			kind, detail = "FAIL", fmt.Sprintf("panic: %v", said)
		}
	}()
	run()
	return "PASS", ""
}

// Failf ends the check as failed.
func (t *T) Failf(format string, args ...any) {
	panic(verdict{"FAIL", fmt.Sprintf(format, args...)})
}

// Skipf ends the check: the runtime does not offer this optional thing.
func (t *T) Skipf(format string, args ...any) {
	panic(verdict{"SKIP", fmt.Sprintf(format, args...)})
}

// OK fails on an error.
func (t *T) OK(what string, err error) {
	if err != nil {
		t.Failf("%s: %v", what, err)
	}
}

// True fails when a claim does not hold.
func (t *T) True(holds bool, format string, args ...any) {
	if !holds {
		t.Failf(format, args...)
	}
}

// Code fails when an error has none of the gRPC codes.
func (t *T) Code(what string, err error, wanted ...codes.Code) {
	if err == nil {
		t.Failf("%s succeeded, want %v", what, wanted)
	}
	for _, code := range wanted {
		if status.Code(err) == code {
			return
		}
	}
	t.Failf("%s: want %v, got %v", what, wanted, err)
}

// Equal fails when two values differ.
func Equal[V comparable](t *T, what string, got, want V) {
	if got != want {
		t.Failf("%s is %q, want %q", what, fmt.Sprint(got), fmt.Sprint(want))
	}
}

// Contains fails when text lacks a part.
func (t *T) Contains(what, text, part string) {
	if !strings.Contains(text, part) {
		t.Failf("%s lacks %q: %q", what, part, text)
	}
}

// Cleanup runs after the check, last first.
func (t *T) Cleanup(run func()) {
	t.cleanups = append(t.cleanups, run)
}

// scaled is how long a wait of the usual length may take on this machine: the harness measures a factor.
func scaled(usual time.Duration) time.Duration {
	factor, err := strconv.ParseFloat(os.Getenv("GANTRY_WAIT_FACTOR"), 64)
	if err != nil || !(factor > 1) {
		return usual
	}
	return time.Duration(float64(usual) * min(factor, 8))
}

// Await polls until done answers true; it tells the last status when time is up.
func (t *T) Await(what string, patience time.Duration, done func() (bool, string)) {
	patience = scaled(patience)
	end := time.Now().Add(patience)
	for {
		ok, last := done()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Failf("waited %s for %s; last seen: %s", patience, what, last)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Folder makes a folder of the check's own on the host.
func (t *T) Folder(name string) string {
	path := filepath.Join(t.folder, name)
	t.OK("mkdir", os.MkdirAll(path, 0o755))
	return path
}

// Write makes a file of the check's own on the host.
func (t *T) Write(name, text string) string {
	path := filepath.Join(t.folder, name)
	t.OK("mkdir", os.MkdirAll(filepath.Dir(path), 0o755))
	t.OK("write", os.WriteFile(path, []byte(text), 0o644))
	return path
}

// Sibling is the reference of another image in the main image's repository folder, `name:tag`.
func (s *Suite) Sibling(name string) string {
	cut := strings.LastIndex(s.Image, "/")
	return s.Image[:cut+1] + name
}

// Pull makes sure of an image and returns what PullImage answered.
func (t *T) Pull(image string) string {
	answer, err := t.Images.PullImage(t.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
	t.OK("PullImage "+image, err)
	return answer.ImageRef
}
