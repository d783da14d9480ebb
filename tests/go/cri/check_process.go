package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// targeting has a container join the pid namespace of another one.
func targeting(id string) Change {
	return security(func(to *cri.LinuxContainerSecurityContext) {
		to.NamespaceOptions.Pid = cri.NamespaceMode_TARGET
		to.NamespaceOptions.TargetId = id
	})
}

// What a process finds: its words, environment, folder, identity, namespaces.
func init() {
	register("process/command-of-the-image", func(t *T) {
		Equal(t, "output", t.RunPod("entry").Output("", image(t.Sibling("entry:1"))), "entry: from-image\n")
	})
	register("process/args-replace-the-image-s-cmd", func(t *T) {
		text := t.RunPod("entry").Output("", image(t.Sibling("entry:1")), func(config *cri.ContainerConfig) { config.Args = []string{"from-request"} })
		Equal(t, "output", text, "entry: from-request\n")
	})
	register("process/command-replaces-both", func(t *T) {
		text := t.RunPod("entry").Output("", image(t.Sibling("entry:1")), func(config *cri.ContainerConfig) { config.Command = []string{"/bin/echo", "alone"} })
		Equal(t, "output", text, "alone\n")
	})
	register("process/command-from-path", func(t *T) {
		text := t.RunPod("path").Output("", func(config *cri.ContainerConfig) { config.Command = []string{"echo"}; config.Args = []string{"found"} })
		Equal(t, "output", text, "found\n")
	})
	register("process/no-command-at-all", func(t *T) {
		pod := t.RunPod("nothing")
		t.Need(t.Sibling("nothing:1"))
		_, err := pod.TryCreate(pod.containerConfig("main", "", image(t.Sibling("nothing:1"))))
		t.True(err != nil, "a container without any command was made")
	})
	register("process/env", func(t *T) {
		text := t.RunPod("env").Output("env", func(config *cri.ContainerConfig) {
			config.Envs = []*cri.KeyValue{{Key: "A", Value: []byte("1 = 2")}, {Key: "FROM_IMAGE", Value: []byte("overridden")}, {Key: "EMPTY"}}
		})
		t.Contains("env", text, "A=1 = 2\n")
		t.Contains("env", text, "FROM_IMAGE=overridden\n")
		t.Contains("env", text, "EMPTY=\n")
		t.Contains("env", text, "ALSO_IMAGE=yes\n")
		t.Contains("env", text, "HOSTNAME=env\n")
		t.Contains("env", text, "HOME=/root\n")
	})
	register("process/working-dir-of-the-image", func(t *T) {
		Equal(t, "pwd", t.RunPod("cwd").Output("pwd"), "/work\n")
	})
	register("process/working-dir-of-the-request", func(t *T) {
		Equal(t, "pwd", t.RunPod("cwd").Output("pwd", func(config *cri.ContainerConfig) { config.WorkingDir = "/tmp" }), "/tmp\n")
	})
	register("process/working-dir-is-made", func(t *T) {
		Equal(t, "pwd", t.RunPod("cwd").Output("pwd", func(config *cri.ContainerConfig) { config.WorkingDir = "/made/on/demand" }), "/made/on/demand\n")
	})
	register("process/stdin-is-empty", func(t *T) {
		Equal(t, "output", t.RunPod("stdin").Output("cat; echo end"), "end\n")
	})
	register("process/no-open-files-but-std", func(t *T) {
		// The shell's own glob opens the folder as 3 or higher, and it is gone by the test.
		text := t.RunPod("fds").Output("for fd in /proc/self/fd/*; do [ -e $fd ] && echo ${fd##*/}; done; true")
		Equal(t, "descriptors", text, "0\n1\n2\n")
	})
	register("process/hostname", func(t *T) {
		Equal(t, "hostname", t.RunPod("named").Output("hostname; cat /etc/hostname"), "named\nnamed\n")
	})
	register("process/umask-and-signals", func(t *T) {
		text := t.RunPod("clean").Output("umask; grep -E 'Sig(Blk|Ign)' /proc/self/status | tr -s '\\t' ' '")
		if t.isContainerd() {
			// glibc's posix_spawn, which starts the peer here, leaves its own signal 32 ignored, and runc hands that down.
			text = strings.Replace(text, "SigIgn: 0000000080000000", "SigIgn: 0000000000000000", 1)
		}
		Equal(t, "output", text, "0022\nSigBlk: 0000000000000000\nSigIgn: 0000000000000000\n")
	})
	register("process/pid-namespace-of-its-own", func(t *T) {
		pod := t.RunPod("pids")
		Equal(t, "pid", pod.Output("echo $$"), "1\n")
	})
	register("process/shared-pid-namespace", func(t *T) {
		pod := t.RunPod("shared", func(config *cri.PodSandboxConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
		})
		pod.Run("one", "trap 'exit 0' TERM; sleep 1000 & echo ready; wait").AwaitWritten("ready")
		text := pod.Output("echo pid $$; cat /proc/1/comm; for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done")
		t.True(!strings.Contains(text, "pid 1\n"), "the container is pid 1 of the shared namespace: %q", text)
		t.Contains("processes", text, "sleep 1000")
	})
	register("process/host-pid-namespace", func(t *T) {
		pod := t.RunPod("hostpid", func(config *cri.PodSandboxConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_NODE
		})
		own, err := os.Readlink("/proc/self/ns/pid")
		t.OK("readlink", err)
		Equal(t, "pid namespace", pod.Output("readlink /proc/self/ns/pid"), own+"\n")
	})
	register("process/target-pid-namespace", func(t *T) {
		pod := t.RunPod("target")
		target := pod.Run("target", "trap 'exit 0' TERM; echo ready; sleep 1000 & wait")
		target.AwaitWritten("ready")
		text := pod.Output("tr '\\0' ' ' < /proc/1/cmdline", targeting(target.ID))
		t.Contains("pid 1", text, "echo ready")
	})
	register("process/target-and-those-who-join-it", func(t *T) {
		pod := t.RunPod("target")
		target := pod.Run("target", "trap 'exit 0' TERM; echo ready; sleep 1000 & wait")
		target.AwaitWritten("ready")
		// One that leaves its target alone, and one that goes with it.
		pod.Output("exit 0", targeting(target.ID))
		guest := pod.Run("guest", "echo here; exec sleep 1000", targeting(target.ID))
		guest.AwaitWritten("here")
		t.Contains("pid 1 of an exec", string(guest.ExecSync("tr '\\0' ' ' < /proc/1/cmdline").Stdout), "echo ready")
		Equal(t, "state of the target", target.Status().State, cri.ContainerState_CONTAINER_RUNNING)
		target.Stop(10)
		status := guest.AwaitExit()
		Equal(t, "exit code of who joined", status.ExitCode, int32(137))
		Equal(t, "its reason", status.Reason, "Error")
	})
	register("process/target-that-cannot-be", func(t *T) {
		pod, other := t.RunPod("target"), t.RunPod("other")
		refuse := func(target, words string) {
			config := pod.containerConfig("refused", "true", targeting(target))
			t.Need(config.Image.Image)
			_, err := pod.TryCreate(config)
			t.True(err != nil, "a container with the target %q was made", target)
			t.Contains("error", err.Error(), "invalid target container: container ")
			t.Contains("error", err.Error(), words)
		}
		refuse("nobody", "does not exist")
		stranger := other.Sleep("stranger")
		refuse(stranger.ID, "(sandbox "+other.ID+") does not belong to sandbox "+pod.ID)
		created := pod.Create("created", "true")
		refuse(created.ID, "is not running - in state CONTAINER_CREATED")
		// It ends between the two calls.
		ending := pod.Sleep("ending")
		guest := pod.Create("guest", "true", targeting(ending.ID))
		ending.Stop(10)
		refuse(ending.ID, "is not running - in state CONTAINER_EXITED")
		err := guest.TryStart()
		t.True(err != nil, "a container started whose target has ended")
		t.Contains("error", err.Error(), "is not running - in state CONTAINER_EXITED")
		status := guest.Status()
		Equal(t, "state", status.State, cri.ContainerState_CONTAINER_EXITED)
		Equal(t, "reason", status.Reason, "StartError")
		Equal(t, "exit code", status.ExitCode, int32(128))
	})
	register("process/namespaces-are-the-sandbox-s", func(t *T) {
		ask := func(pid, rest cri.NamespaceMode) Change {
			return security(func(to *cri.LinuxContainerSecurityContext) {
				to.NamespaceOptions.Pid, to.NamespaceOptions.Network, to.NamespaceOptions.Ipc = pid, rest, rest
			})
		}
		modes := func(pid, rest cri.NamespaceMode) func(*cri.PodSandboxConfig) {
			return func(config *cri.PodSandboxConfig) {
				to := config.Linux.SecurityContext.NamespaceOptions
				to.Pid, to.Network, to.Ipc = pid, rest, rest
				if rest == cri.NamespaceMode_NODE {
					config.Hostname = ""
				}
			}
		}
		var node []string
		for _, kind := range []string{"pid", "net", "ipc"} {
			own, err := os.Readlink("/proc/self/ns/" + kind)
			t.OK("readlink", err)
			node = append(node, own)
		}
		script := "for n in pid net ipc; do readlink /proc/self/ns/$n; done; echo $$"
		const container, pod, host = cri.NamespaceMode_CONTAINER, cri.NamespaceMode_POD, cri.NamespaceMode_NODE
		for _, one := range []struct {
			sandboxPid, sandboxRest, pid, rest cri.NamespaceMode
			hostPid, hostRest, init            bool
		}{
			{host, pod, host, pod, true, false, false},
			{container, host, container, host, false, true, true},
			{host, host, container, host, false, true, true},
			{pod, pod, host, host, false, false, false},
			{container, pod, pod, pod, false, false, false},
			{host, host, pod, pod, true, true, false},
		} {
			what := fmt.Sprintf("sandbox %v %v, container %v %v", one.sandboxPid, one.sandboxRest, one.pid, one.rest)
			found := strings.Fields(t.RunPod("modes", modes(one.sandboxPid, one.sandboxRest)).Output(script, ask(one.pid, one.rest)))
			Equal(t, what+": words", len(found), 4)
			Equal(t, what+": the node's processes", found[0] == node[0], one.hostPid)
			Equal(t, what+": the node's network", found[1] == node[1], one.hostRest)
			Equal(t, what+": the node's IPC", found[2] == node[2], one.hostRest)
			Equal(t, what+": is an init", found[3] == "1", one.init)
		}
	})
	register("process/host-ipc-namespace", func(t *T) {
		pod := t.RunPod("hostipc", func(config *cri.PodSandboxConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Ipc = cri.NamespaceMode_NODE
		})
		own, err := os.Readlink("/proc/self/ns/ipc")
		t.OK("readlink", err)
		Equal(t, "ipc namespace", pod.Output("readlink /proc/self/ns/ipc"), own+"\n")
	})
	register("process/namespaces-of-a-pod", func(t *T) {
		pod := t.RunPod("spaces")
		script := "for n in net ipc uts pid mnt; do readlink /proc/self/ns/$n; done"
		// Both at once: the number of a namespace that is gone is given again.
		first := pod.Run("first", script+"; echo ready; trap 'exit 0' TERM; sleep 1000 & wait")
		first.AwaitWritten("ready")
		one, two := strings.Fields(first.Written())[:5], strings.Fields(pod.Output(script))
		t.True(len(one) == 5 && len(two) == 5, "%v %v", one, two)
		for i, shared := range []bool{true, true, true, false, false} {
			t.True((one[i] == two[i]) == shared, "%s and %s, shared should be %v", one[i], two[i], shared)
		}
		host, err := os.Readlink("/proc/self/ns/net")
		t.OK("readlink", err)
		t.True(one[0] != host, "the pod is in the node's network")
	})
	register("process/dev-shm-is-the-pod-s", func(t *T) {
		pod := t.RunPod("shm")
		pod.Output("echo hello > /dev/shm/note")
		Equal(t, "note", pod.Output("cat /dev/shm/note; df -k /dev/shm | tail -1 | awk '{print $2}'"), "hello\n65536\n")
	})
	register("process/devices", func(t *T) {
		text := t.RunPod("dev").Output("cd /dev; for f in null zero full random urandom tty ptmx; do [ -c $f ] && echo $f; done; ls -ld pts shm mqueue fd stdin >/dev/null && echo rest")
		Equal(t, "devices", text, "null\nzero\nfull\nrandom\nurandom\ntty\nptmx\nrest\n")
	})
	register("process/device-of-the-request", func(t *T) {
		text := t.RunPod("dev").Output("[ -c /dev/mine ] && head -c 3 /dev/mine | wc -c", func(config *cri.ContainerConfig) {
			config.Devices = []*cri.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/mine", Permissions: "rwm"}}
		})
		Equal(t, "bytes", strings.TrimSpace(text), "3")
	})
	register("process/device-read-only", func(t *T) {
		// A number nobody drives (60 is for local use): the rules are asked before the driver, so a
		// device that may be opened does not exist, and one that may not is refused. No default
		// rule names it.
		host := filepath.Join(t.Folder("dev"), "nobodys")
		t.OK("mknod", syscall.Mknod(host, syscall.S_IFCHR|0o666, 60<<8|7))
		text := t.RunPod("dev").Output("(: < /dev/mine) 2>&1; (: > /dev/mine) 2>&1; true", func(config *cri.ContainerConfig) {
			config.Devices = []*cri.Device{{HostPath: host, ContainerPath: "/dev/mine", Permissions: "r"}}
		})
		lines := strings.Split(strings.TrimSpace(text), "\n")
		Equal(t, "lines", len(lines), 2)
		t.Contains("reading", lines[0], "No such device or address")
		t.Contains("writing", lines[1], "Operation not permitted")
	})
	register("process/oom-score-adj", func(t *T) {
		Equal(t, "oom_score_adj", t.RunPod("oom").Output("cat /proc/self/oom_score_adj"), "1000\n")
	})
	register("process/zombies-of-the-pod-are-reaped", func(t *T) {
		pod := t.RunPod("zombies", func(config *cri.PodSandboxConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
		})
		container := pod.Run("main", "trap 'exit 0' TERM; (sh -c 'true & exec sleep 0.1' &) ; echo ready; while :; do sleep 0.1; done")
		container.AwaitWritten("ready")
		t.Await("zombies to be reaped", 10*time.Second, func() (bool, string) {
			text := container.Pod.t.zombies(container)
			return text == "", text
		})
	})
	// Logs.
	register("log/format", func(t *T) {
		container := t.RunPod("format").Run("main", "echo out; echo err >&2")
		container.AwaitExit()
		lines := strings.Split(strings.TrimSpace(container.Log()), "\n")
		Equal(t, "lines", len(lines), 2)
		seen := map[string]bool{}
		for _, line := range lines {
			words := strings.SplitN(line, " ", 4)
			t.True(len(words) == 4, "line %q", line)
			stamp, err := time.Parse(time.RFC3339Nano, words[0])
			t.OK("time of "+line, err)
			t.True(time.Since(stamp) < time.Minute && time.Since(stamp) > -time.Second, "time %s", stamp)
			seen[strings.Join(words[1:], " ")] = true
		}
		t.True(seen["stdout F out"] && seen["stderr F err"], "lines: %v", lines)
	})
	register("log/no-newline-at-the-end", func(t *T) {
		container := t.RunPod("partial").Run("main", "printf 'no newline'")
		container.AwaitExit()
		text := container.Log()
		t.True(strings.HasSuffix(text, " stdout P no newline\n"), "log %q", text)
	})
	register("log/long-lines-are-cut", func(t *T) {
		container := t.RunPod("long").Run("main", "head -c 40000 /dev/zero | tr '\\0' x; echo; echo end")
		container.AwaitExit()
		lines := strings.Split(strings.TrimSpace(container.Log()), "\n")
		t.True(len(lines) >= 4, "%d lines", len(lines))
		total := 0
		for i, line := range lines[:len(lines)-1] {
			words := strings.SplitN(line, " ", 4)
			wanted := "P"
			if i == len(lines)-2 {
				wanted = "F"
			}
			Equal(t, "tag", words[2], wanted)
			total += len(words[3])
			t.True(len(words[3]) <= 16<<10, "a piece of %d bytes", len(words[3]))
		}
		Equal(t, "bytes", total, 40000)
	})
	register("log/many-lines-in-order", func(t *T) {
		container := t.RunPod("many").Run("main", "seq 1 20000")
		container.AwaitExit()
		lines := strings.Fields(container.Written())
		Equal(t, "lines", len(lines), 20000)
		Equal(t, "first", lines[0], "1")
		Equal(t, "last", lines[19999], "20000")
	})
	register("log/complete-at-exit", func(t *T) {
		// The kubelet reads terminated containers' logs at once.
		pod := t.RunPod("complete")
		for range 5 {
			t.Contains("log", pod.Output("seq 1 3000; echo the-end"), "the-end")
		}
	})
	register("log/none-without-a-path", func(t *T) {
		container := t.RunPod("nolog").Run("main", "echo hi", func(config *cri.ContainerConfig) { config.LogPath = "" })
		Equal(t, "exit code", container.AwaitExit().ExitCode, 0)
		Equal(t, "log_path", container.Status().LogPath, "")
	})
	register("log/permissions", func(t *T) {
		container := t.RunPod("mode").Run("main", "echo hi")
		container.AwaitExit()
		info, err := os.Stat(container.LogPath())
		t.OK("stat", err)
		Equal(t, "mode", info.Mode().Perm(), 0o640)
	})
	register("log/folder-below-the-log-directory", func(t *T) {
		pod := t.RunPod("folder")
		t.OK("mkdir", os.MkdirAll(filepath.Join(pod.Config.LogDirectory, "main"), 0o755))
		container := pod.Run("main", "echo hi", func(config *cri.ContainerConfig) { config.LogPath = "main/0.log" })
		container.AwaitExit()
		Equal(t, "written", container.Written(), "hi\n")
	})
	register("log/reopen", func(t *T) {
		container := t.RunPod("reopen").Run("main", "trap 'exit 0' TERM; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done")
		container.AwaitWritten("line 3")
		rotated := container.LogPath() + ".1"
		t.OK("rename", os.Rename(container.LogPath(), rotated))
		_, err := t.Runtime.ReopenContainerLog(t.Ctx, &cri.ReopenContainerLogRequest{ContainerId: container.ID})
		t.OK("ReopenContainerLog", err)
		container.AwaitWritten("line")
		container.Stop(5)
		old, err := os.ReadFile(rotated)
		t.OK("read", err)
		all := string(old) + container.Log()
		count := 0
		for _, line := range strings.Split(strings.TrimSpace(all), "\n") {
			count++
			t.True(strings.HasSuffix(line, "line "+itoa(count)), "line %d of both files is %q", count, line)
		}
		t.True(count > 3, "%d lines", count)
	})
	register("log/reopen-not-running", func(t *T) {
		container := t.RunPod("reopen").Run("main", "true")
		container.AwaitExit()
		_, err := t.Runtime.ReopenContainerLog(t.Ctx, &cri.ReopenContainerLogRequest{ContainerId: container.ID})
		t.True(err != nil, "the log of an exited container was reopened")
	})
}

// zombies lists the defunct processes that a container sees.
func (t *T) zombies(container *Container) string {
	answer, err := t.Runtime.ExecSync(t.Ctx, &cri.ExecSyncRequest{ContainerId: container.ID, Timeout: 10,
		Cmd: []string{"/bin/sh", "-c", "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null; true"}})
	t.OK("ExecSync", err)
	return strings.TrimSpace(string(answer.Stdout))
}
