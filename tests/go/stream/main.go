// Command stream-client speaks to a CRI streaming URL as kubectl does, by client-go's own executors:
// the other implementation that Gantry's streaming server is held against. Run by the kernel tier.
//
//	stream-client command [-transport spdy|ws] [-protocol P,P] [-stdin] [-tty] [-stderr] [-size WxH,WxH] URL
//	stream-client forward [-transport spdy|tunnel] PORT URL
//
// `command` ends with the remote command's exit code, or 200 when it could not be run; sizes after the
// first are sent when the command writes "next size". `forward` prints
// the local port, and ends with its stdin. STREAM_CLIENT_CERT and STREAM_CLIENT_KEY name a client
// certificate for an https URL, whose own certificate is not checked then.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
)

const failed = 200

func main() {
	if len(os.Args) < 2 {
		fatal(errors.New("usage: stream-client command|forward [flags] URL"))
	}
	switch os.Args[1] {
	case "command":
		command(os.Args[2:])
	case "forward":
		forward(os.Args[2:])
	default:
		fatal(fmt.Errorf("no such command: %s", os.Args[1]))
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "stream-client:", err)
	os.Exit(failed)
}

// askForNext is what the command writes when it wants the next window size.
const askForNext = "next size"

// sizes hands out window sizes: the first at once, the next ones when the command asks.
type sizes struct {
	left  []remotecommand.TerminalSize
	sent  bool
	asked chan struct{}
}

// watcher passes the command's output on, and hears it ask.
type watcher struct {
	io.Writer
	seen  string
	asked chan struct{}
}

func (w *watcher) Write(bytes []byte) (int, error) {
	w.seen += string(bytes)
	for {
		before, after, found := strings.Cut(w.seen, askForNext)
		if !found {
			w.seen = before[max(0, len(before)-len(askForNext)):]
			break
		}
		w.seen = after
		w.asked <- struct{}{}
	}
	return w.Writer.Write(bytes)
}

func (s *sizes) Next() *remotecommand.TerminalSize {
	if len(s.left) == 0 {
		// A nil would end the resizing; the session ends it.
		select {}
	}
	if s.sent {
		<-s.asked
	}
	s.sent = true
	size := s.left[0]
	s.left = s.left[1:]
	return &size
}

func parseSizes(text string, asked chan struct{}) remotecommand.TerminalSizeQueue {
	if text == "" {
		return nil
	}
	queue := &sizes{asked: asked}
	for _, pair := range strings.Split(text, ",") {
		var size remotecommand.TerminalSize
		if _, err := fmt.Sscanf(pair, "%dx%d", &size.Width, &size.Height); err != nil {
			fatal(err)
		}
		queue.left = append(queue.left, size)
	}
	return queue
}

// restConfig shows the client certificate named by the environment, for URLs of a kubelet's own server.
func restConfig(address string) *rest.Config {
	config := &rest.Config{Host: address}
	if cert := os.Getenv("STREAM_CLIENT_CERT"); cert != "" {
		config.CertFile, config.KeyFile, config.Insecure = cert, os.Getenv("STREAM_CLIENT_KEY"), true
	}
	return config
}

func executor(transport, protocols, address string) remotecommand.Executor {
	config := restConfig(address)
	var names []string
	if protocols != "" {
		names = strings.Split(protocols, ",")
	}
	parsed, err := url.Parse(address)
	if err != nil {
		fatal(err)
	}
	var made remotecommand.Executor
	switch {
	case transport == "spdy" && names == nil:
		made, err = remotecommand.NewSPDYExecutor(config, "POST", parsed)
	case transport == "spdy":
		var wrapper http.RoundTripper
		var upgrader spdy.Upgrader
		wrapper, upgrader, err = spdy.RoundTripperFor(config)
		if err == nil {
			made, err = remotecommand.NewSPDYExecutorForProtocols(wrapper, upgrader, "POST", parsed, names...)
		}
	case transport == "ws" && names == nil:
		made, err = remotecommand.NewWebSocketExecutor(config, "GET", address)
	case transport == "ws":
		made, err = remotecommand.NewWebSocketExecutorForProtocols(config, "GET", address, names...)
	default:
		err = fmt.Errorf("no such transport: %s", transport)
	}
	if err != nil {
		fatal(err)
	}
	return made
}

func command(args []string) {
	flags := flag.NewFlagSet("command", flag.ExitOnError)
	transport := flags.String("transport", "ws", "spdy or ws")
	protocols := flags.String("protocol", "", "subprotocols, comma-separated")
	stdin := flags.Bool("stdin", false, "pass stdin on")
	tty := flags.Bool("tty", false, "the command has a terminal")
	stderr := flags.Bool("stderr", false, "ask for stderr")
	size := flags.String("size", "", "window sizes to send, WxH,WxH")
	_ = flags.Parse(args)

	asked := make(chan struct{}, 16)
	options := remotecommand.StreamOptions{
		Stdout:            &watcher{Writer: os.Stdout, asked: asked},
		Tty:               *tty,
		TerminalSizeQueue: parseSizes(*size, asked),
	}
	if *stdin {
		options.Stdin = os.Stdin
	}
	if *stderr {
		options.Stderr = os.Stderr
	}
	err := executor(*transport, *protocols, flags.Arg(0)).StreamWithContext(context.Background(), options)
	var code exec.CodeExitError
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(code.Code)
	default:
		fatal(err)
	}
}

func forward(args []string) {
	flags := flag.NewFlagSet("forward", flag.ExitOnError)
	transport := flags.String("transport", "spdy", "spdy or tunnel")
	_ = flags.Parse(args)
	config := restConfig(flags.Arg(1))
	address, err := url.Parse(flags.Arg(1))
	if err != nil {
		fatal(err)
	}

	stop, ready := make(chan struct{}), make(chan struct{})
	ports := []string{"0:" + flags.Arg(0)}
	var forwarder *portforward.PortForwarder
	switch *transport {
	case "spdy":
		wrapper, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			fatal(err)
		}
		dialer := spdy.NewDialer(upgrader, &http.Client{Transport: wrapper}, "POST", address)
		forwarder, err = portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, os.Stderr)
		if err != nil {
			fatal(err)
		}
	case "tunnel":
		dialer, err := portforward.NewSPDYOverWebsocketDialer(address, config)
		if err != nil {
			fatal(err)
		}
		forwarder, err = portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, os.Stderr)
		if err != nil {
			fatal(err)
		}
	default:
		fatal(fmt.Errorf("no such transport: %s", *transport))
	}
	go func() {
		<-ready
		found, err := forwarder.GetPorts()
		if err != nil {
			fatal(err)
		}
		fmt.Println(found[0].Local)
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	if err := forwarder.ForwardPorts(); err != nil {
		fatal(err)
	}
}
