package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/util/httpstream"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// executor makes a client of one of client-go's two protocols for a URL that the runtime answered.
type executor func(t *T, at string) remotecommand.Executor

var executors = map[string]executor{
	"spdy": func(t *T, at string) remotecommand.Executor {
		parsed, err := url.Parse(at)
		t.OK("the URL", err)
		executor, err := remotecommand.NewSPDYExecutor(&restclient.Config{}, "POST", parsed)
		t.OK("NewSPDYExecutor", err)
		return executor
	},
	"websocket": func(t *T, at string) remotecommand.Executor {
		executor, err := remotecommand.NewWebSocketExecutor(&restclient.Config{}, "GET", at)
		t.OK("NewWebSocketExecutor", err)
		return executor
	},
	"websocket-v4": func(t *T, at string) remotecommand.Executor {
		executor, err := remotecommand.NewWebSocketExecutorForProtocols(&restclient.Config{}, "GET", at, "v4.channel.k8s.io")
		t.OK("NewWebSocketExecutor", err)
		return executor
	},
}

func init() {
	for protocol, connect := range executors {
		registerExec(protocol, connect)
		registerAttach(protocol, connect)
	}
	register("exec/url", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		at, err := url.Parse(container.execURL(&cri.ExecRequest{Cmd: []string{"true"}, Stdout: true}))
		t.OK("the URL", err)
		Equal(t, "scheme", at.Scheme, "http")
		t.True(strings.HasPrefix(at.Path, "/exec/"), "path %q", at.Path)
		host, _, err := net.SplitHostPort(at.Host)
		t.OK("host and port", err)
		t.True(net.ParseIP(host).IsLoopback(), "streams are served on %s", host)
	})
	register("exec/token-is-for-once", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		at := container.execURL(&cri.ExecRequest{Cmd: []string{"true"}, Stdout: true, Stderr: true})
		t.OK("first", stream(t, executors["spdy"](t, at), remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard}))
		answer, err := http.Get(at)
		t.OK("GET", err)
		answer.Body.Close()
		Equal(t, "status", answer.StatusCode, http.StatusNotFound)
	})
	register("exec/unknown-token", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		at, err := url.Parse(container.execURL(&cri.ExecRequest{Cmd: []string{"true"}, Stdout: true}))
		t.OK("the URL", err)
		at.Path = "/exec/AAAAAAAA"
		answer, err := http.Get(at.String())
		t.OK("GET", err)
		answer.Body.Close()
		Equal(t, "status", answer.StatusCode, http.StatusNotFound)
	})
	register("exec/invalid-requests", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		for what, request := range map[string]*cri.ExecRequest{
			"no stream":        {Cmd: []string{"true"}},
			"a tty and stderr": {Cmd: []string{"true"}, Tty: true, Stdout: true, Stderr: true},
		} {
			request.ContainerId = container.ID
			_, err := t.Runtime.Exec(t.Ctx, request)
			t.Code("Exec with "+what, err, codes.InvalidArgument)
		}
	})
	register("exec/not-running", func(t *T) {
		container := t.RunPod("exec").Run("main", "true")
		container.AwaitExit()
		_, err := t.Runtime.Exec(t.Ctx, &cri.ExecRequest{ContainerId: container.ID, Cmd: []string{"true"}, Stdout: true})
		t.True(err != nil, "Exec in an exited container answers a URL")
		_, err = t.Runtime.Exec(t.Ctx, &cri.ExecRequest{ContainerId: unknownID, Cmd: []string{"true"}, Stdout: true})
		t.Code("Exec in an unknown container", err, codes.NotFound)
	})
	register("attach/not-running", func(t *T) {
		container := t.RunPod("attach").Run("main", "true")
		container.AwaitExit()
		_, err := t.Runtime.Attach(t.Ctx, &cri.AttachRequest{ContainerId: container.ID, Stdout: true})
		t.True(err != nil, "Attach to an exited container answers a URL")
	})
	register("attach/stdin-once-closes", func(t *T) {
		container := t.RunPod("attach").Run("main", "cat; echo end", func(config *cri.ContainerConfig) { config.Stdin, config.StdinOnce = true, true })
		at := container.attachURL(&cri.AttachRequest{Stdin: true, Stdout: true, Stderr: true})
		var out safeBuffer
		t.OK("attach", stream(t, executors["spdy"](t, at), remotecommand.StreamOptions{Stdin: strings.NewReader("hello\n"), Stdout: &out, Stderr: io.Discard}))
		Equal(t, "exit code", container.AwaitExit().ExitCode, 0)
		t.Contains("log", container.Written(), "hello\nend\n")
	})
	register("attach/two-clients", func(t *T) {
		container := t.RunPod("attach").Run("main", "trap 'exit 0' TERM; while :; do echo tick; sleep 0.05; done")
		var one, two safeBuffer
		ctx, cancel := context.WithCancel(t.Ctx)
		defer cancel()
		for _, out := range []*safeBuffer{&one, &two} {
			executor := executors["spdy"](t, container.attachURL(&cri.AttachRequest{Stdout: true, Stderr: true}))
			go func() {
				// Ends with the context.
				_ = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: io.Discard})
			}()
		}
		for _, out := range []*safeBuffer{&one, &two} {
			t.Await("a tick", 10*time.Second, func() (bool, string) { return strings.Contains(out.String(), "tick"), out.String() })
		}
		t.Contains("log", container.Written(), "tick")
	})
	register("port-forward/spdy", func(t *T) {
		pod := t.RunPod("forward")
		container := pod.Run("web", "while :; do echo hello | nc -l -p 8080; done")
		// client-go's forwarder ends with the first connection that is refused.
		t.awaitListen(pod, container, 8080)
		text, err := dial(forward(t, pod, 8080), "hi\n")
		t.OK("the exchange", err)
		Equal(t, "text", text, "hello\n")
	})
	register("port-forward/much-data", func(t *T) {
		pod := t.RunPod("forward")
		container := pod.Run("web", "echo ready; head -c 3000000 /dev/zero | nc -l -p 8080")
		container.AwaitWritten("ready")
		t.awaitListen(pod, container, 8080)
		port := forward(t, pod, 8080)
		text, err := dial(port, "")
		t.OK("read", err)
		Equal(t, "bytes", len(text), 3000000)
	})
	register("port-forward/nobody-listens", func(t *T) {
		pod := t.RunPod("forward")
		pod.Sleep("main")
		port := forward(t, pod, 9999)
		text, _ := dial(port, "")
		Equal(t, "text", text, "")
	})
	register("port-forward/not-ready", func(t *T) {
		pod := t.RunPod("forward")
		pod.Stop()
		_, err := t.Runtime.PortForward(t.Ctx, &cri.PortForwardRequest{PodSandboxId: pod.ID, Port: []int32{80}})
		t.True(err != nil, "PortForward to a stopped sandbox answers a URL")
	})
}

func registerExec(protocol string, connect executor) {
	register := func(name string, run func(*T)) {
		register(name, func(t *T) { t.offers(protocol); run(t) })
	}
	run := func(t *T, script string, options remotecommand.StreamOptions) error {
		container := t.RunPod("exec").Sleep("main")
		at := container.execURL(&cri.ExecRequest{
			Cmd: []string{"/bin/sh", "-c", script}, Stdin: options.Stdin != nil, Stdout: options.Stdout != nil,
			Stderr: options.Stderr != nil, Tty: options.Tty,
		})
		return stream(t, connect(t, at), options)
	}
	register("exec/"+protocol+"-output", func(t *T) {
		var out, err safeBuffer
		t.OK("exec", run(t, "echo out; echo err >&2", remotecommand.StreamOptions{Stdout: &out, Stderr: &err}))
		Equal(t, "stdout", out.String(), "out\n")
		Equal(t, "stderr", err.String(), "err\n")
	})
	register("exec/"+protocol+"-exit-code", func(t *T) {
		var code exec.CodeExitError
		err := run(t, "exit 42", remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
		t.True(errors.As(err, &code), "no exit code in %v", err)
		Equal(t, "exit code", code.Code, 42)
	})
	register("exec/"+protocol+"-missing-program", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		at := container.execURL(&cri.ExecRequest{Cmd: []string{"/no/such/program"}, Stdout: true, Stderr: true})
		err := stream(t, connect(t, at), remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
		t.True(err != nil, "a program that is not there was run")
		t.Contains("the error", err.Error(), "/no/such/program")
	})
	if protocol != "websocket-v4" {
		// Only SPDY and v5 can close stdin alone.
		register("exec/"+protocol+"-stdin", func(t *T) {
			var out safeBuffer
			text := strings.Repeat("all of it\n", 20000)
			t.OK("exec", run(t, "cat; echo end", remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: &out, Stderr: io.Discard}))
			Equal(t, "bytes", len(out.String()), len(text)+4)
			t.True(strings.HasSuffix(out.String(), "it\nend\n"), "the end is missing")
		})
	}
	register("exec/"+protocol+"-much-output", func(t *T) {
		var out safeBuffer
		t.OK("exec", run(t, "head -c 3000000 /dev/zero", remotecommand.StreamOptions{Stdout: &out, Stderr: io.Discard}))
		Equal(t, "bytes", len(out.String()), 3000000)
	})
	register("exec/"+protocol+"-tty-and-resize", func(t *T) {
		var out safeBuffer
		sizes := make(sizeQueue, 1)
		sizes <- remotecommand.TerminalSize{Width: 123, Height: 45}
		script := "test -t 0 && test -t 1 && echo is a tty; for i in 1 2 3 4 5 6 7 8 9 10; do [ \"$(stty size)\" = '45 123' ] && break; sleep 0.2; done; stty size"
		// A terminal whose stdin ends hangs up: it stays open until the program has ended.
		stdin, writer := io.Pipe()
		t.Cleanup(func() { t.OK("close", writer.Close()) })
		t.OK("exec", run(t, script, remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Tty: true, TerminalSizeQueue: sizes}))
		t.Contains("output", out.String(), "is a tty\r\n")
		t.Contains("output", out.String(), "45 123\r\n")
	})
	register("exec/"+protocol+"-client-goes-away", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		at := container.execURL(&cri.ExecRequest{Cmd: []string{"/bin/sh", "-c", "while :; do echo x; sleep 0.05; done"}, Stdout: true, Stderr: true})
		ctx, cancel := context.WithCancel(t.Ctx)
		var out safeBuffer
		done := make(chan error, 1)
		executor := connect(t, at)
		go func() {
			done <- executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: io.Discard})
		}()
		t.Await("output", 10*time.Second, func() (bool, string) { return out.String() != "", "nothing" })
		cancel()
		<-done
		Equal(t, "next exec", string(container.ExecSync("echo fine").Stdout), "fine\n")
	})
}

func registerAttach(protocol string, connect executor) {
	register := func(name string, run func(*T)) {
		register(name, func(t *T) { t.offers(protocol); run(t) })
	}
	register("attach/"+protocol+"-output", func(t *T) {
		container := t.RunPod("attach").Run("main", "trap 'exit 0' TERM; while :; do echo out; echo err >&2; sleep 0.05; done")
		var out, err safeBuffer
		ctx, cancel := context.WithCancel(t.Ctx)
		defer cancel()
		executor := connect(t, container.attachURL(&cri.AttachRequest{Stdout: true, Stderr: true}))
		go func() {
			// Ends with the context.
			_ = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &err})
		}()
		t.Await("both streams", 10*time.Second, func() (bool, string) {
			return strings.Contains(out.String(), "out\n") && strings.Contains(err.String(), "err\n"), out.String() + err.String()
		})
		t.True(!strings.Contains(out.String(), "err"), "stderr came on stdout")
	})
	register("attach/"+protocol+"-ends-with-the-container", func(t *T) {
		container := t.RunPod("attach").Run("main", "trap 'echo last words; exit 0' TERM; while :; do sleep 0.05; done")
		var out safeBuffer
		done := make(chan error, 1)
		executor := connect(t, container.attachURL(&cri.AttachRequest{Stdout: true, Stderr: true}))
		go func() {
			done <- executor.StreamWithContext(t.Ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: io.Discard})
		}()
		// Without output there is no sign that a client is attached: give it the time of an exec.
		container.ExecSync("sleep 0.5")
		container.Stop(10)
		select {
		case err := <-done:
			t.OK("attach", err)
		case <-t.Ctx.Done():
			t.Failf("the attached client was not told of the end")
		}
		t.Contains("output", out.String(), "last words")
	})
	register("attach/"+protocol+"-tty-stdin", func(t *T) {
		container := t.RunPod("attach").Run("main", "read line; echo got $line; trap 'exit 0' TERM; sleep 1000 & wait",
			func(config *cri.ContainerConfig) { config.Stdin, config.Tty = true, true })
		var out safeBuffer
		ctx, cancel := context.WithCancel(t.Ctx)
		defer cancel()
		reader, writer := io.Pipe()
		executor := connect(t, container.attachURL(&cri.AttachRequest{Stdin: true, Stdout: true, Tty: true}))
		go func() {
			// Ends with the context.
			_ = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: reader, Stdout: &out, Tty: true})
		}()
		go func() {
			// Blocks until the stream reads; a failure shows as an answer that never comes.
			_, _ = writer.Write([]byte("hello\n"))
		}()
		t.Await("the answer", 10*time.Second, func() (bool, string) { return strings.Contains(out.String(), "got hello"), out.String() })
		container.AwaitWritten("got hello")
	})
}

// offers skips the check where v5 is not spoken: the kubelet then translates it to SPDY, so that a
// runtime may leave it out. Everything else is a must.
func (t *T) offers(protocol string) {
	if protocol != "websocket" {
		return
	}
	container := t.RunPod("v5").Sleep("main")
	at := container.execURL(&cri.ExecRequest{Cmd: []string{"true"}, Stdout: true, Stderr: true})
	err := stream(t, executors[protocol](t, at), remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
	if err != nil && strings.Contains(err.Error(), "403 Forbidden") {
		t.Skipf("WebSocket v5.channel.k8s.io is refused with 403")
	}
	t.OK("exec of true", err)
}

func (c *Container) execURL(request *cri.ExecRequest) string {
	request.ContainerId = c.ID
	answer, err := c.t.Runtime.Exec(c.t.Ctx, request)
	c.t.OK("Exec", err)
	return answer.Url
}

func (c *Container) attachURL(request *cri.AttachRequest) string {
	request.ContainerId = c.ID
	answer, err := c.t.Runtime.Attach(c.t.Ctx, request)
	c.t.OK("Attach", err)
	return answer.Url
}

func stream(t *T, executor remotecommand.Executor, options remotecommand.StreamOptions) error {
	ctx, cancel := context.WithTimeout(t.Ctx, 30*time.Second)
	defer cancel()
	return executor.StreamWithContext(ctx, options)
}

// forward has client-go forward a local port into the pod, as kubectl does, and returns that port.
func forward(t *T, pod *Pod, port int32) uint16 {
	return forwardBy(t, func(at *url.URL) httpstream.Dialer {
		transport, upgrader, err := spdy.RoundTripperFor(&restclient.Config{})
		t.OK("RoundTripperFor", err)
		return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", at)
	}, pod, port)
}

// forwardBy does so by a way of the caller's.
func forwardBy(t *T, dialerTo func(*url.URL) httpstream.Dialer, pod *Pod, port int32) uint16 {
	answer, err := t.Runtime.PortForward(t.Ctx, &cri.PortForwardRequest{PodSandboxId: pod.ID, Port: []int32{port}})
	t.OK("PortForward", err)
	at, err := url.Parse(answer.Url)
	t.OK("the URL", err)
	dialer := dialerTo(at)
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, stop, ready, io.Discard, io.Discard)
	t.OK("portforward", err)
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	t.Cleanup(func() { close(stop) })
	select {
	case <-ready:
	case err := <-done:
		t.Failf("ForwardPorts: %v", err)
	case <-t.Ctx.Done():
		t.Failf("the port is not forwarded")
	}
	ports, err := forwarder.GetPorts()
	t.OK("GetPorts", err)
	return ports[0].Local
}

// dial sends a text to a loopback port and reads to the end.
func dial(port uint16, text string) (string, error) {
	connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 5*time.Second)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(connection, text); err != nil {
		return "", err
	}
	read, err := io.ReadAll(connection)
	return string(read), err
}

// awaitListen waits until something in the pod listens on a port.
func (t *T) awaitListen(pod *Pod, container *Container, port int) {
	t.Await(fmt.Sprintf("a listener on %d", port), 10*time.Second, func() (bool, string) {
		text := string(container.ExecSync("cat /proc/net/tcp /proc/net/tcp6").Stdout)
		return strings.Contains(text, fmt.Sprintf(":%04X ", port)), text
	})
}

type sizeQueue chan remotecommand.TerminalSize

// Next answers each size once, and nil when no more will come.
func (q sizeQueue) Next() *remotecommand.TerminalSize {
	select {
	case size := <-q:
		return &size
	case <-time.After(10 * time.Second):
		return nil
	}
}

// safeBuffer is written by a stream and read by a check.
type safeBuffer struct {
	lock sync.Mutex
	data bytes.Buffer
}

func (b *safeBuffer) Write(bytes []byte) (int, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.data.Write(bytes)
}

func (b *safeBuffer) String() string {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.data.String()
}
