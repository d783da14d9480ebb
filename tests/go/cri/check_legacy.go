package main

import (
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// WebSocket as the API server passes it through from old clients: no client-go for these.
func init() {
	register("exec/websocket-channel.k8s.io", func(t *T) {
		// The conformance spec "should support remote command execution over websockets" asks for this one.
		connection, answer := t.websocket(t.RunPod("exec").Sleep("main").execURL(&cri.ExecRequest{
			Cmd: []string{"/bin/sh", "-c", "echo out; echo err >&2"}, Stdout: true, Stderr: true,
		}), "channel.k8s.io")
		Equal(t, "protocol", answer.Header.Get("Sec-Websocket-Protocol"), "channel.k8s.io")
		channels := t.readChannels(connection)
		Equal(t, "channel 1", channels[1], "out\n")
		Equal(t, "channel 2", channels[2], "err\n")
	})
	register("exec/websocket-v4-status", func(t *T) {
		connection, _ := t.websocket(t.RunPod("exec").Sleep("main").execURL(&cri.ExecRequest{
			Cmd: []string{"/bin/sh", "-c", "exit 5"}, Stdout: true, Stderr: true,
		}), "v4.channel.k8s.io")
		channels := t.readChannels(connection)
		t.Contains("channel 3", channels[3], `"reason":"NonZeroExitCode"`)
		t.Contains("channel 3", channels[3], `"reason":"ExitCode","message":"5"`)
	})
	register("exec/unknown-protocol", func(t *T) {
		at := t.RunPod("exec").Sleep("main").execURL(&cri.ExecRequest{Cmd: []string{"true"}, Stdout: true, Stderr: true})
		request, err := http.NewRequest(http.MethodPost, at, nil)
		t.OK("request", err)
		request.Header.Set("Connection", "Upgrade")
		request.Header.Set("Upgrade", "SPDY/3.1")
		request.Header.Set("X-Stream-Protocol-Version", "v99.channel.k8s.io")
		answer, err := http.DefaultClient.Do(request)
		t.OK("POST", err)
		answer.Body.Close()
		Equal(t, "status", answer.StatusCode, http.StatusForbidden)
		t.Contains("accepted protocols", strings.Join(answer.Header.Values("X-Accepted-Stream-Protocol-Versions"), ","), "v4.channel.k8s.io")
	})
	register("port-forward/websocket", func(t *T) {
		pod := t.RunPod("forward")
		container := pod.Run("web", "while :; do echo hello | nc -l -p 8080; done")
		t.awaitListen(pod, container, 8080)
		answer, err := t.Runtime.PortForward(t.Ctx, &cri.PortForwardRequest{PodSandboxId: pod.ID, Port: []int32{8080}})
		t.OK("PortForward", err)
		connection, _ := t.websocket(answer.Url, "v4.channel.k8s.io")
		// Each of the two channels opens with the port, little-endian.
		for want := range 2 {
			_, first, err := connection.ReadMessage()
			t.OK("first message", err)
			t.True(len(first) == 3 && int(first[0]) == want && int(first[1])|int(first[2])<<8 == 8080, "first message %v", first)
		}
		t.OK("write", connection.WriteMessage(websocket.BinaryMessage, []byte("\x00hi\n")))
		_, data, err := connection.ReadMessage()
		t.OK("data", err)
		Equal(t, "data", string(data), "\x00hello\n")
	})
}

func (t *T) websocket(at, protocol string) (*websocket.Conn, *http.Response) {
	dialer := websocket.Dialer{Subprotocols: []string{protocol}}
	connection, answer, err := dialer.DialContext(t.Ctx, "ws"+strings.TrimPrefix(at, "http"), nil)
	t.OK("WebSocket", err)
	t.Cleanup(func() {
		// It may be closed already; nothing depends on it.
		_ = connection.Close()
	})
	return connection, answer
}

// readChannels reads to the end: each message opens with its channel's number.
func (t *T) readChannels(connection *websocket.Conn) map[int]string {
	channels := map[int]string{}
	for {
		_, data, err := connection.ReadMessage()
		if err != nil {
			t.True(websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseNoStatusReceived) || strings.Contains(err.Error(), "EOF"), "read: %v", err)
			return channels
		}
		if len(data) > 0 {
			channels[int(data[0])] += string(data[1:])
		}
	}
}
