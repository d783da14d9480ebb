package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/util/httpstream"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Streams that few clients use, and a client that does not read.
func init() {
	for _, protocol := range []string{"v4.base64.channel.k8s.io", "base64.channel.k8s.io"} {
		register("exec/websocket-"+protocol, func(t *T) {
			connection, answer := t.websocket(t.RunPod("exec").Sleep("main").execURL(&cri.ExecRequest{
				Cmd: []string{"/bin/sh", "-c", "read line; echo got $line; echo err >&2; exit 5"}, Stdin: true, Stdout: true, Stderr: true,
			}), protocol)
			Equal(t, "protocol", answer.Header.Get("Sec-Websocket-Protocol"), protocol)
			// The channel is a digit here, and all after it base64.
			t.OK("write", connection.WriteMessage(websocket.TextMessage, []byte("0"+base64.StdEncoding.EncodeToString([]byte("hello\n")))))
			channels := t.readBase64(connection)
			Equal(t, "channel 1", channels['1'], "got hello\n")
			Equal(t, "channel 2", channels['2'], "err\n")
			if strings.HasPrefix(protocol, "v4.") {
				t.Contains("channel 3", channels['3'], `"reason":"ExitCode","message":"5"`)
			} else {
				t.Contains("channel 3", channels['3'], "exit")
			}
		})
	}
	register("exec/a-client-that-does-not-read", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		at := container.execURL(&cri.ExecRequest{Cmd: []string{"/bin/sh", "-c", "head -c 50000000 /dev/zero; echo end > /tmp/end; echo the-end"}, Stdout: true, Stderr: true})
		reader, writer := io.Pipe()
		executor := executors["spdy"](t, at)
		done := make(chan error, 1)
		go func() {
			done <- executor.StreamWithContext(t.Ctx, remotecommand.StreamOptions{Stdout: writer, Stderr: io.Discard})
		}()
		first := make([]byte, 1)
		_, err := io.ReadFull(reader, first)
		t.OK("the first byte", err)
		// Nobody reads on: the program has to stand still, not the runtime to grow. Others are served.
		last := -1
		t.Await("the program to stand still", 20*time.Second, func() (bool, string) {
			text := strings.TrimSpace(string(container.ExecSync("ls /tmp/end 2>/dev/null | wc -l; cat /proc/[0-9]*/io 2>/dev/null | grep wchar | sort | tail -1 | cut -d' ' -f2; sleep 0.3").Stdout))
			words := strings.Fields(text)
			if len(words) == 2 && words[0] == "0" {
				now, _ := strconv.Atoi(words[1])
				still := now == last
				last = now
				return still, text
			}
			return false, text
		})
		Equal(t, "next exec", string(container.ExecSync("echo fine").Stdout), "fine\n")
		read := make(chan int64, 1)
		var tail tailOf
		go func() {
			count, _ := io.Copy(&tail, reader)
			read <- count
		}()
		select {
		case err = <-done:
		case <-time.After(40 * time.Second):
			t.Failf("the stream does not go on")
		}
		t.OK("exec", err)
		t.OK("close", writer.Close())
		Equal(t, "bytes", <-read, 50000000+int64(len("the-end\n"))-1)
		Equal(t, "end", string(tail), "the-end\n")
	})
	register("port-forward/host-network", func(t *T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		t.OK("listen", err)
		t.Cleanup(func() { t.OK("close", listener.Close()) })
		go func() {
			for {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				// A client that is gone is its own trouble.
				_, _ = io.WriteString(connection, "of the node\n")
				_ = connection.Close()
			}
		}()
		pod := t.RunPod("hostforward", func(config *cri.PodSandboxConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
			config.Hostname = ""
		})
		text, err := dial(forward(t, pod, int32(listener.Addr().(*net.TCPAddr).Port)), "")
		t.OK("the exchange", err)
		Equal(t, "text", text, "of the node\n")
	})
	register("port-forward/websocket-tunnel", func(t *T) {
		pod := t.RunPod("forward")
		container := pod.Run("web", "while :; do echo hello | nc -l -p 8080; done")
		t.awaitListen(pod, container, 8080)
		answer, err := t.Runtime.PortForward(t.Ctx, &cri.PortForwardRequest{PodSandboxId: pod.ID, Port: []int32{8080}})
		t.OK("PortForward", err)
		at, err := url.Parse(answer.Url)
		t.OK("the URL", err)
		dialer, err := portforward.NewSPDYOverWebsocketDialer(at, &restclient.Config{})
		t.OK("NewSPDYOverWebsocketDialer", err)
		if probe, _, err := dialer.Dial("portforward.k8s.io"); err != nil {
			// The API server takes the tunnel apart, so that a runtime need not know it.
			var refused *httpstream.UpgradeFailureError
			t.True(errors.As(err, &refused) || strings.Contains(err.Error(), "40"), "Dial: %v", err)
			t.Skipf("SPDY in WebSocket is refused: %v", err)
		} else {
			t.OK("close", probe.Close())
		}
		// A URL is good once.
		text, err := dial(forwardBy(t, func(again *url.URL) httpstream.Dialer {
			dialer, err := portforward.NewSPDYOverWebsocketDialer(again, &restclient.Config{})
			t.OK("NewSPDYOverWebsocketDialer", err)
			return dialer
		}, pod, 8080), "hi\n")
		t.OK("the exchange", err)
		Equal(t, "text", text, "hello\n")
	})
	register("port-forward/half-close", func(t *T) {
		pod := t.RunPod("forward")
		// It answers when its input has ended.
		container := pod.Run("web", "while :; do nc -l -p 8080 -e /bin/sh -c 'wc -c'; done")
		t.awaitListen(pod, container, 8080)
		connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", forward(t, pod, 8080)), 5*time.Second)
		t.OK("dial", err)
		defer connection.Close()
		t.OK("deadline", connection.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = io.WriteString(connection, "12345")
		t.OK("write", err)
		t.OK("half close", connection.(*net.TCPConn).CloseWrite())
		text, err := io.ReadAll(connection)
		t.OK("read", err)
		if len(text) == 0 {
			t.Skipf("a request that is closed half-way gets no answer")
		}
		Equal(t, "answer", strings.TrimSpace(string(text)), "5")
	})
	register("exec/spdy-stdin-half-close", func(t *T) {
		container := t.RunPod("exec").Sleep("main")
		at := container.execURL(&cri.ExecRequest{Cmd: []string{"/bin/sh", "-c", "wc -c; echo after"}, Stdin: true, Stdout: true, Stderr: true})
		var out safeBuffer
		t.OK("exec", stream(t, executors["spdy"](t, at), remotecommand.StreamOptions{Stdin: strings.NewReader("12345"), Stdout: &out, Stderr: io.Discard}))
		Equal(t, "output", strings.Join(strings.Fields(out.String()), " "), "5 after")
	})
	register("attach/a-client-that-does-not-read", func(t *T) {
		// runtime-traps 2.13: it may lose its stream, the log nothing.
		container := t.RunPod("attach").Run("main", "read go; seq 1 400000; echo the-end", func(config *cri.ContainerConfig) { config.Stdin = true })
		stdin, writer := io.Pipe()
		ctx, cancel := context.WithCancel(t.Ctx)
		defer cancel()
		executor := executors["spdy"](t, container.attachURL(&cri.AttachRequest{Stdin: true, Stdout: true, Stderr: true}))
		go func() {
			// Ends with the context.
			_ = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: blocking{}, Stderr: io.Discard})
		}()
		go func() {
			// Blocks until the stream reads.
			_, _ = io.WriteString(writer, "go\n")
		}()
		if t.stalls(container) {
			t.Skipf("a client that does not read holds the container up")
		}
		lines := strings.Fields(container.Written())
		Equal(t, "lines", len(lines), 400001)
	})
}

// stalls says whether a container has not ended after a time that is ample for its work.
func (t *T) stalls(container *Container) bool {
	end := time.Now().Add(20 * time.Second)
	for time.Now().Before(end) {
		if container.Status().State == cri.ContainerState_CONTAINER_EXITED {
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
	return true
}

// blocking is a writer whose Write never returns before the program ends.
type blocking struct{}

func (blocking) Write([]byte) (int, error) {
	select {}
}

// tailOf keeps the last bytes of what was written.
type tailOf []byte

func (t *tailOf) Write(bytes []byte) (int, error) {
	*t = append(*t, bytes...)
	if keep := len("the-end\n"); len(*t) > keep {
		*t = append(tailOf(nil), (*t)[len(*t)-keep:]...)
	}
	return len(bytes), nil
}

// readBase64 reads to the end: each message opens with its channel's digit.
func (t *T) readBase64(connection *websocket.Conn) map[byte]string {
	channels := map[byte]string{}
	for {
		_, data, err := connection.ReadMessage()
		if err != nil {
			t.True(websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseNoStatusReceived) || strings.Contains(err.Error(), "EOF"), "read: %v", err)
			return channels
		}
		if len(data) > 0 {
			text, err := base64.StdEncoding.DecodeString(string(data[1:]))
			t.OK("base64 of "+string(data), err)
			channels[data[0]] += string(text)
		}
	}
}
