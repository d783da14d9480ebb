package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"sync"
	"time"

	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// reach is exec (both kinds), attach and port-forward.
func (t *tour) reach() {
	t.script.step("exec --sync <web>")
	out, errors, err := t.runtime.ExecSync(t.ctx, t.webID, []string{"/bin/sh", "-c", "echo out; echo err >&2; ls /data; hostname; id -u"}, 10*time.Second)
	t.must("ExecSync", err)
	t.script.say("stdout: %q stderr: %q", out, errors)
	t.script.step("exec --sync <web> of what fails")
	_, _, err = t.runtime.ExecSync(t.ctx, t.webID, []string{"/bin/sh", "-c", "exit 3"}, 10*time.Second)
	t.script.say("%v", err)
	t.script.step("exec --sync --timeout 1 <web>")
	_, _, err = t.runtime.ExecSync(t.ctx, t.webID, []string{"sleep", "100"}, time.Second)
	t.script.say("refused: %v", err != nil)

	t.script.step("exec -i <web>")
	answer, err := t.runtime.Exec(t.ctx, &cri.ExecRequest{ContainerId: t.webID, Cmd: []string{"/bin/sh", "-c", "cat; echo err >&2; exit 4"}, Stdin: true, Stdout: true, Stderr: true})
	t.must("Exec", err)
	t.script.say("a URL of http, for loopback: %v", t.isLoopback(answer.Url))
	var stdout, stderr lines
	err = t.stream(t.ctx, answer.Url, remotecommand.StreamOptions{Stdin: strings.NewReader("hello\n"), Stdout: &stdout, Stderr: &stderr})
	t.script.say("stdout: %v stderr: %v end: %v", stdout.all(), stderr.all(), err)
	t.script.step("exec -it <web>")
	answer, err = t.runtime.Exec(t.ctx, &cri.ExecRequest{ContainerId: t.webID, Cmd: []string{"/bin/sh", "-c", "test -t 0 && test -t 1 && echo a terminal"}, Tty: true, Stdin: true, Stdout: true})
	t.must("Exec", err)
	stdout = lines{}
	// A terminal whose stdin ends hangs up: it stays open until the program has ended.
	stdin, writer := io.Pipe()
	err = t.stream(t.ctx, answer.Url, remotecommand.StreamOptions{Stdin: stdin, Stdout: &stdout, Tty: true})
	t.must("close", writer.Close())
	t.script.say("stdout: %q end: %v", stdout.all(), err)

	t.attach()
	t.forward()
}

func (t *tour) attach() {
	t.script.step("attach -i <shell>")
	answer, err := t.runtime.Attach(t.ctx, &cri.AttachRequest{ContainerId: t.shellID, Stdin: true, Stdout: true, Stderr: true})
	t.must("Attach", err)
	var out lines
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	stdin, writer := io.Pipe()
	go func() {
		// Ends with the context.
		_ = t.stream(ctx, answer.Url, remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: io.Discard})
	}()
	go func() {
		// Blocks until the stream reads; a failure shows as an answer that never comes.
		_, _ = io.WriteString(writer, "a word\n")
	}()
	t.await("an answer", func() bool { return len(out.all()) > 0 })
	t.script.say("stdout: %v", out.all())
}

func (t *tour) forward() {
	t.script.step("port-forward <pod> 8080")
	answer, err := t.runtime.PortForward(t.ctx, &cri.PortForwardRequest{PodSandboxId: t.podID, Port: []int32{8080}})
	t.must("PortForward", err)
	at, err := url.Parse(answer.Url)
	t.must("the URL", err)
	transport, upgrader, err := spdy.RoundTripperFor(&restclient.Config{})
	t.must("RoundTripperFor", err)
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", at)
	stop, ready := make(chan struct{}), make(chan struct{})
	defer close(stop)
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	t.must("portforward", err)
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.must("ForwardPorts", err)
	}
	ports, err := forwarder.GetPorts()
	t.must("GetPorts", err)
	connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local), 5*time.Second)
	t.must("dial", err)
	defer connection.Close()
	t.must("deadline", connection.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(connection, "hi\n")
	t.must("write", err)
	text, err := io.ReadAll(connection)
	t.must("read", err)
	t.script.say("%q", text)
}

func (t *tour) isLoopback(at string) bool {
	parsed, err := url.Parse(at)
	t.must("the URL", err)
	host, _, err := net.SplitHostPort(parsed.Host)
	t.must("host and port", err)
	return parsed.Scheme == "http" && net.ParseIP(host).IsLoopback()
}

func (t *tour) stream(ctx context.Context, at string, options remotecommand.StreamOptions) error {
	parsed, err := url.Parse(at)
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewSPDYExecutor(&restclient.Config{}, "POST", parsed)
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, options)
}

// measure is stats, statsp, metricdescs and metricsp.
func (t *tour) measure() {
	t.script.step("stats <web>")
	t.await("figures", func() bool {
		stats, err := t.runtime.ContainerStats(t.ctx, t.webID)
		t.must("ContainerStats", err)
		return stats.GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0 && stats.GetWritableLayer().GetUsedBytes() != nil
	})
	stats, err := t.runtime.ContainerStats(t.ctx, t.webID)
	t.must("ContainerStats", err)
	t.script.show("stats", stats)
	t.script.step("stats of all")
	all, err := t.runtime.ListContainerStats(t.ctx, &cri.ContainerStatsFilter{PodSandboxId: t.podID})
	t.must("ListContainerStats", err)
	t.script.say("%d containers", len(all))
	t.script.step("statsp <pod>")
	t.await("figures", func() bool {
		stats, err := t.runtime.PodSandboxStats(t.ctx, t.podID)
		t.must("PodSandboxStats", err)
		return stats.GetLinux().GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0
	})
	pod, err := t.runtime.PodSandboxStats(t.ctx, t.podID)
	t.must("PodSandboxStats", err)
	sort.Slice(pod.Linux.Containers, func(i, j int) bool {
		return pod.Linux.Containers[i].Attributes.Metadata.Name > pod.Linux.Containers[j].Attributes.Metadata.Name
	})
	t.script.show("stats", pod)
	pods, err := t.runtime.ListPodSandboxStats(t.ctx, &cri.PodSandboxStatsFilter{Id: t.podID})
	t.must("ListPodSandboxStats", err)
	t.script.say("%d pods", len(pods))
	t.script.step("metricdescs")
	descriptors, err := t.runtime.ListMetricDescriptors(t.ctx)
	t.must("ListMetricDescriptors", err)
	sort.Slice(descriptors, func(i, j int) bool { return descriptors[i].Name < descriptors[j].Name })
	for _, one := range descriptors {
		t.script.say("%s{%s}", one.Name, strings.Join(one.LabelKeys, ","))
	}
	t.metrics()
}

func (t *tour) metrics() {
	t.script.step("metricsp")
	metrics, err := t.runtime.ListPodSandboxMetrics(t.ctx)
	t.must("ListPodSandboxMetrics", err)
	for _, pod := range metrics {
		if pod.PodSandboxId != t.podID {
			continue
		}
		t.series("pod", pod.Metrics)
		for _, container := range pod.ContainerMetrics {
			if container.ContainerId == t.webID {
				t.series("web", container.Metrics)
			}
		}
	}
}

// series prints each metric's name, kind and labels once: how many devices a node has is its own.
func (t *tour) series(of string, metrics []*cri.Metric) {
	seen := map[string]bool{}
	for _, metric := range metrics {
		labels := metric.LabelValues
		if len(labels) > 5 {
			labels = labels[:5]
		}
		seen[fmt.Sprintf("%s: %s %s %s", of, metric.Name, metric.MetricType, strings.Join(labels, ","))] = true
	}
	var all []string
	for line := range seen {
		all = append(all, line)
	}
	sort.Strings(all)
	for _, line := range all {
		t.script.say("%s", line)
	}
}

// heard is what the event stream told.
type heard struct {
	lock   sync.Mutex
	events []*cri.ContainerEventResponse
	cancel context.CancelFunc
}

// listen begins to hear the event stream.
func (t *tour) listen() *heard {
	ctx, cancel := context.WithCancel(t.ctx)
	h := &heard{cancel: cancel}
	channel := make(chan *cri.ContainerEventResponse, 100)
	connected := make(chan struct{})
	go func() {
		// Ends with the context.
		_ = t.runtime.GetContainerEvents(ctx, channel, func(cri.RuntimeService_GetContainerEventsClient) { close(connected) })
	}()
	go func() {
		for {
			select {
			case event := <-channel:
				h.lock.Lock()
				h.events = append(h.events, event)
				h.lock.Unlock()
			case <-ctx.Done():
				return
			}
		}
	}()
	<-connected
	return h
}

// tell prints the events of each object in their order; between objects there is none.
func (h *heard) tell(t *tour) {
	defer h.cancel()
	t.script.step("events")
	deleted := func() bool {
		h.lock.Lock()
		defer h.lock.Unlock()
		for _, event := range h.events {
			if event.ContainerId == t.podID && event.ContainerEventType == cri.ContainerEventType_CONTAINER_DELETED_EVENT {
				return true
			}
		}
		return false
	}
	t.await("the pod's end in the events", deleted)
	h.lock.Lock()
	defer h.lock.Unlock()
	order := map[string][]string{}
	for _, event := range h.events {
		name := t.script.plain(event.ContainerId)
		kind := strings.TrimSuffix(strings.TrimPrefix(event.ContainerEventType.String(), "CONTAINER_"), "_EVENT")
		if event.CreatedAt == 0 {
			kind += " without a time"
		}
		order[name] = append(order[name], kind)
	}
	var names []string
	for name := range order {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		t.script.say("%s: %s", name, strings.Join(order[name], " "))
	}
}
