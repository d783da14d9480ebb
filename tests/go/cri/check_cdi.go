package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// thing is a device that only these checks know.
const thing = "suite.example/thing"

// offer writes a file with one device and returns its full name.
func (t *T) offer(name string, edits map[string]any) string {
	spec, err := json.Marshal(map[string]any{
		"cdiVersion": "0.7.0",
		"kind":       thing,
		"devices":    []any{map[string]any{"name": name, "containerEdits": edits}},
	})
	t.OK("encode", err)
	file := filepath.Join(t.CdiDir, "suite-"+name+".json")
	t.OK("make the folder", os.MkdirAll(t.CdiDir, 0o755))
	t.OK("write", os.WriteFile(file, spec, 0o644))
	t.cleanups = append(t.cleanups, func() { t.OK("remove", os.Remove(file)) })
	return thing + "=" + name
}

func devices(names ...string) Change {
	return func(config *cri.ContainerConfig) {
		for _, name := range names {
			config.CDIDevices = append(config.CDIDevices, &cri.CDIDevice{Name: name})
		}
	}
}

// createWith creates a container with a device that was offered just now: a runtime may take a moment to see it.
func (p *Pod) createWith(name, script string, changes ...Change) *Container {
	t := p.t
	config := p.containerConfig(name, script, changes...)
	t.Need(config.Image.Image)
	for {
		container, err := p.TryCreate(config)
		if err == nil {
			return container
		}
		if !strings.Contains(err.Error(), "unresolvable") || t.Ctx.Err() != nil {
			t.OK("CreateContainer", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func shellHook(stage, script string) map[string]any {
	return map[string]any{"hookName": stage, "path": "/bin/sh", "args": []string{"sh", "-c", script}}
}

func init() {
	register("cdi/device-mount-and-environment", func(t *T) {
		lib := t.Write("lib/text", "of the node\n")
		name := t.offer("plain", map[string]any{
			"env":            []string{"THING=there", "FROM_IMAGE=no"},
			"deviceNodes":    []any{map[string]any{"path": "/dev/deep/thing", "hostPath": "/dev/zero", "permissions": "r"}},
			"mounts":         []any{map[string]any{"hostPath": filepath.Dir(lib), "containerPath": "/opt/lib", "options": []string{"ro", "nosuid", "nodev", "bind"}}},
			"additionalGids": []int{4321},
		})
		container := t.RunPod("cdi").createWith("main", "echo $THING $FROM_IMAGE; stat -c '%F %t:%T %u' /dev/deep/thing; head -c 3 /dev/deep/thing | wc -c; cat /opt/lib/text; touch /opt/lib/x 2>/dev/null || echo read-only; id -G; sleep 1000", devices(name))
		container.Start()
		container.AwaitWritten("4321")
		Equal(t, "output", container.Written(), "there no\ncharacter special file 1:5 0\n3\nof the node\nread-only\n0 4321\n")
		Equal(t, "in an exec", string(container.ExecSync("echo $THING").Stdout), "there\n")
	})
	register("cdi/annotation", func(t *T) {
		name := t.offer("annotated", map[string]any{"env": []string{"THING=annotated"}})
		container := t.RunPod("cdi").createWith("main", "echo $THING", func(config *cri.ContainerConfig) {
			config.Annotations = map[string]string{"cdi.k8s.io/suite_thing": name}
		}, devices(name))
		container.Start()
		container.AwaitExit()
		Equal(t, "output", container.Written(), "annotated\n")
	})
	register("cdi/owner-is-the-containers-user", func(t *T) {
		name := t.offer("owned", map[string]any{"deviceNodes": []any{
			map[string]any{"path": "/dev/own", "hostPath": "/dev/zero"},
			map[string]any{"path": "/dev/given", "hostPath": "/dev/zero", "uid": 7, "gid": 8, "fileMode": 0o640},
		}})
		container := t.RunPod("cdi").createWith("main", "stat -c '%u %a' /dev/own; stat -c '%u %g %a' /dev/given", devices(name), asUser(1000))
		container.Start()
		container.AwaitExit()
		Equal(t, "output", container.Written(), "1000 666\n7 8 640\n")
	})
	register("cdi/unresolvable", func(t *T) {
		pod := t.RunPod("cdi")
		t.Need(t.Image)
		_, err := pod.TryCreate(pod.containerConfig("main", "true", devices(thing+"=nowhere")))
		t.True(err != nil, "a device that nobody offers was given")
		t.Contains("error", err.Error(), "unresolvable CDI devices "+thing+"=nowhere")
		_, err = pod.TryCreate(pod.containerConfig("main", "true", func(config *cri.ContainerConfig) {
			config.Annotations = map[string]string{"cdi.k8s.io/suite": "no name"}
		}))
		t.True(err != nil, "an annotation without a device was accepted")
		t.Contains("error", err.Error(), "invalid CDI device name \"no name\"")
	})
	register("cdi/hooks", func(t *T) {
		folder := t.Folder("hooks")
		var hooks []any
		for _, stage := range []string{"prestart", "createRuntime", "createContainer", "poststart", "poststop"} {
			hooks = append(hooks, shellHook(stage, "cat > "+folder+"/"+stage+"; echo "+stage+" >> "+folder+"/order"))
		}
		// The program of this stage is the container's own.
		hooks = append(hooks, shellHook("startContainer", "cat > /dev/shm/start; id -u >> /dev/shm/start"))
		container := t.RunPod("cdi").createWith("main", "cat /dev/shm/start; sleep 1000", devices(t.offer("hooked", map[string]any{"hooks": hooks})), asUser(1000))
		container.Start()
		container.AwaitWritten("1000")
		state := func(stage string) (found struct {
			ID, Status, Bundle string
			Pid                int
		}) {
			text, err := os.ReadFile(filepath.Join(folder, stage))
			t.OK("read", err)
			t.OK("decode", json.Unmarshal(text, &found))
			Equal(t, "id at "+stage, found.ID, container.ID)
			return found
		}
		for stage, status := range map[string]string{"prestart": "creating", "createRuntime": "creating", "createContainer": "creating", "poststart": "running"} {
			seen := state(stage).Status
			if stage == "poststart" && seen == "created" && (t.RuntimeHandler != "" || t.isContainerd()) {
				// runc tells it so; the specification says that the program runs by then.
				continue
			}
			Equal(t, "status at "+stage, seen, status)
		}
		Equal(t, "pid in the container", state("createContainer").Pid, 1)
		t.True(state("createRuntime").Pid > 1, "no pid of the node")
		config, err := os.ReadFile(filepath.Join(state("poststart").Bundle, "config.json"))
		t.OK("read the bundle", err)
		var bundle struct{ Process struct{ Args []string } }
		t.OK("decode the bundle", json.Unmarshal(config, &bundle))
		Equal(t, "program in the bundle", bundle.Process.Args[0], "/bin/sh")
		t.Contains("startContainer", container.Written(), "\"status\":\"created\"")
		container.Stop(0)
		container.Remove()
		Equal(t, "status at poststop", state("poststop").Status, "stopped")
		order, err := os.ReadFile(filepath.Join(folder, "order"))
		t.OK("read", err)
		Equal(t, "order", string(order), "prestart\ncreateRuntime\ncreateContainer\npoststart\npoststop\n")
	})
	register("cdi/hook-that-fails", func(t *T) {
		name := t.offer("failing", map[string]any{"hooks": []any{shellHook("createRuntime", "echo no such card >&2; exit 3")}})
		container := t.RunPod("cdi").createWith("main", "sleep 1000", devices(name))
		err := container.TryStart()
		t.True(err != nil, "a container whose hook fails was started")
		t.Contains("error", err.Error(), "no such card")
		status := container.Status()
		Equal(t, "state", status.State, cri.ContainerState_CONTAINER_EXITED)
		Equal(t, "exit code", status.ExitCode, 128)
		Equal(t, "reason", status.Reason, "StartError")
	})
	register("cdi/hook-without-end", func(t *T) {
		// Without a child: runc would wait for it after the hook's end.
		hook := shellHook("createContainer", "exec sleep 1000")
		hook["timeout"] = 1
		container := t.RunPod("cdi").createWith("main", "sleep 1000", devices(t.offer("slow", map[string]any{"hooks": []any{hook}})))
		err := container.TryStart()
		t.True(err != nil, "a container whose hook does not end was started")
		t.Contains("error", err.Error(), "hook ran past specified timeout of 1.0s")
	})
}

// isContainerd tells whether what its OCI runtime does counts, beside what the specification says.
func (t *T) isContainerd() bool {
	answer, err := t.Runtime.Version(t.Ctx, &cri.VersionRequest{})
	t.OK("Version", err)
	return answer.RuntimeName == "containerd"
}
