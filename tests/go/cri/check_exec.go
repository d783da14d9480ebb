package main

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func itoa(number int) string { return strconv.Itoa(number) }

func init() {
	register("exec-sync/output", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		answer := container.ExecSync("echo out; echo err >&2")
		Equal(t, "stdout", string(answer.Stdout), "out\n")
		Equal(t, "stderr", string(answer.Stderr), "err\n")
		Equal(t, "exit code", answer.ExitCode, 0)
	})
	register("exec-sync/exit-code", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		Equal(t, "exit code", container.ExecSync("exit 42").ExitCode, 42)
		Equal(t, "after a signal", container.ExecSync("kill -KILL $$").ExitCode, 137)
	})
	register("exec-sync/no-shell", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		answer, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Cmd: []string{"echo", "a  b", "$HOME"}})
		t.OK("ExecSync without a timeout", err)
		Equal(t, "stdout", string(answer.Stdout), "a  b $HOME\n")
	})
	register("exec-sync/timeout", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		start := time.Now()
		_, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Cmd: []string{"sleep", "100"}, Timeout: 1})
		t.Code("ExecSync past its timeout", err, codes.DeadlineExceeded)
		t.True(time.Since(start) < 20*time.Second, "it took %s", time.Since(start))
		t.Await("the process to be gone", 5*time.Second, func() (bool, string) {
			left := string(container.ExecSync("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done").Stdout)
			return !strings.Contains(left, "sleep 100 "), left
		})
		Equal(t, "state", container.Status().State, cri.ContainerState_CONTAINER_RUNNING)
	})
	register("exec-sync/missing-program", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		_, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Cmd: []string{"/no/such/program"}, Timeout: 10})
		t.True(err != nil, "a program that is not there was run")
		t.Contains("the error", err.Error(), "/no/such/program")
	})
	register("exec-sync/not-running", func(t *T) {
		pod := t.RunPod("exec")
		exited := pod.Run("exited", "true")
		exited.AwaitExit()
		for _, container := range []*Container{exited, pod.Create("created", "true")} {
			_, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Cmd: []string{"true"}, Timeout: 10})
			t.True(err != nil, "ran in a container that does not run")
		}
	})
	register("exec-sync/unknown-container", func(t *T) {
		_, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: unknownID, Cmd: []string{"true"}, Timeout: 10})
		t.Code("ExecSync in an unknown container", err, codes.NotFound)
	})
	register("exec-sync/surroundings", func(t *T) {
		container := t.RunPod("exec").Sleep("main", asUser(1000), func(config *cri.ContainerConfig) {
			config.Envs = []*cri.KeyValue{{Key: "A", Value: []byte("b")}}
			config.WorkingDir = "/tmp"
		})
		answer := container.ExecSync("id -u; id -g; pwd; echo $A; hostname; grep CapEff /proc/self/status | cut -f2; grep CapBnd /proc/self/status | cut -f2; cat; echo $HOME")
		Equal(t, "output", strings.Join(strings.Fields(string(answer.Stdout)), " "),
			"1000 1000 /tmp b exec 0000000000000000 "+defaultCapabilities+" /home/web")
	})
	register("exec-sync/same-namespaces-and-cgroup", func(t *T) {
		container := t.RunPod("exec").Run("main", "for n in net ipc uts pid mnt cgroup; do readlink /proc/self/ns/$n; done; cat /proc/self/cgroup; echo done; trap 'exit 0' TERM; sleep 1000 & wait")
		container.AwaitWritten("done")
		answer := container.ExecSync("for n in net ipc uts pid mnt cgroup; do readlink /proc/self/ns/$n; done; cat /proc/self/cgroup; echo done")
		Equal(t, "namespaces and cgroups", string(answer.Stdout), container.Written())
	})
	register("exec-sync/much-output", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		answer := container.ExecSync("head -c 3000000 /dev/zero | tr '\\0' x")
		Equal(t, "bytes", len(answer.Stdout), 3000000)
	})
	register("exec-sync/output-is-capped", func(t *T) {
		// CVE-2022-31030: 16 MiB for each stream, and the process is not left alone with a full pipe.
		container := t.RunPod("exec").Sleep("main")
		answer, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Timeout: 30,
			Cmd: []string{"/bin/sh", "-c", "head -c 20000000 /dev/zero; echo finished >&2"}})
		// The whole answer may then be past the client's message size: both peers and we accept that.
		if err == nil {
			t.True(len(answer.Stdout) <= 16<<20, "%d bytes", len(answer.Stdout))
		}
		Equal(t, "state", container.Status().State, cri.ContainerState_CONTAINER_RUNNING)
		Equal(t, "next exec", string(container.ExecSync("echo fine").Stdout), "fine\n")
	})
	register("exec-sync/rt_2_11-background-child-keeps-the-pipe", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		start := time.Now()
		answer, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Timeout: 3,
			Cmd: []string{"/bin/sh", "-c", "sleep 1000 & echo parent"}})
		t.True(time.Since(start) < 25*time.Second, "it took %s", time.Since(start))
		if err == nil {
			Equal(t, "stdout", string(answer.Stdout), "parent\n")
		} else {
			// containerd drains until the timeout, then says so.
			t.Code("ExecSync", err, codes.DeadlineExceeded, codes.Unknown)
		}
		Equal(t, "next exec", string(container.ExecSync("echo fine").Stdout), "fine\n")
	})
	register("exec-sync/many-at-once", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		errors := make(chan error, 10)
		for i := range 10 {
			go func() {
				answer, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Cmd: []string{"echo", itoa(i)}, Timeout: 20})
				if err == nil && string(answer.Stdout) != itoa(i)+"\n" {
					err = errorText("answered " + string(answer.Stdout) + " for " + itoa(i))
				}
				errors <- err
			}()
		}
		for range 10 {
			t.OK("ExecSync", <-errors)
		}
	})
	register("exec-sync/in-a-tty-container", func(t *T) {
		container := t.RunPod("exec").Sleep("main", func(config *cri.ContainerConfig) { config.Tty = true })
		answer := container.ExecSync("echo out; test -t 1 || echo no tty")
		Equal(t, "stdout", string(answer.Stdout), "out\nno tty\n")
	})
	register("container/tty", func(t *T) {
		container := t.RunPod("tty").Run("main", "test -t 0 && test -t 1 && tty", func(config *cri.ContainerConfig) { config.Tty = true })
		Equal(t, "exit code", container.AwaitExit().ExitCode, 0)
		t.Contains("log", container.Written(), "/dev/")
	})
}

type errorText string

func (e errorText) Error() string { return string(e) }
