package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func init() {
	register("events/order", func(t *T) {
		log := t.listen()
		pod := t.RunPod("events")
		container := pod.Run("main", "exit 3")
		container.AwaitExit()
		container.Remove()
		pod.Stop()
		pod.Remove()
		want := []string{
			"sandbox CREATED", "sandbox STARTED", "container CREATED", "container STARTED",
			"container STOPPED", "container DELETED", "sandbox STOPPED", "sandbox DELETED",
		}
		t.Await("all events", 15*time.Second, func() (bool, string) {
			seen := log.of(map[string]string{pod.ID: "sandbox", container.ID: "container"})
			return strings.Join(seen, ", ") == strings.Join(want, ", "), strings.Join(seen, ", ")
		})
	})
	register("events/carry-statuses", func(t *T) {
		log := t.listen()
		pod := t.RunPod("events")
		container := pod.Run("main", "exit 3")
		container.AwaitExit()
		var stopped *cri.ContainerEventResponse
		t.Await("the STOPPED event", 15*time.Second, func() (bool, string) {
			stopped = log.find(container.ID, cri.ContainerEventType_CONTAINER_STOPPED_EVENT)
			return stopped != nil, "not seen"
		})
		Equal(t, "sandbox", stopped.GetPodSandboxStatus().GetId(), pod.ID)
		Equal(t, "statuses", len(stopped.GetContainersStatuses()), 1)
		one := stopped.GetContainersStatuses()[0]
		Equal(t, "state", one.State, cri.ContainerState_CONTAINER_EXITED)
		Equal(t, "exit code", one.ExitCode, 3)
		t.True(stopped.CreatedAt > 0, "no created_at")
	})
	register("events/two-clients", func(t *T) {
		one, two := t.listen(), t.listen()
		pod := t.RunPod("events")
		for _, log := range []*eventLog{one, two} {
			t.Await("the STARTED event", 15*time.Second, func() (bool, string) {
				return log.find(pod.ID, cri.ContainerEventType_CONTAINER_STARTED_EVENT) != nil, "not seen"
			})
		}
	})
}

// eventLog keeps what GetContainerEvents sends.
type eventLog struct {
	lock sync.Mutex
	seen []*cri.ContainerEventResponse
}

// listen subscribes, and returns when events arrive.
func (t *T) listen() *eventLog {
	ctx, cancel := context.WithCancel(t.Ctx)
	stream, err := t.Runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	t.OK("GetContainerEvents", err)
	t.Cleanup(cancel)
	log := &eventLog{}
	failed := make(chan error, 1)
	go func() {
		for {
			event, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			log.lock.Lock()
			log.seen = append(log.seen, event)
			log.lock.Unlock()
		}
	}()
	// A subscription has no acknowledgement: make pods until one is heard of.
	t.Await("the first event", 20*time.Second, func() (bool, string) {
		select {
		case err := <-failed:
			if status.Code(err) == codes.Unimplemented {
				t.Failf("GetContainerEvents is not implemented")
			}
			t.Failf("GetContainerEvents: %v", err)
		default:
		}
		probe := t.RunPod("probe")
		end := time.Now().Add(time.Second)
		for time.Now().Before(end) {
			if log.find(probe.ID, cri.ContainerEventType_CONTAINER_STARTED_EVENT) != nil {
				return true, ""
			}
			time.Sleep(20 * time.Millisecond)
		}
		return false, "no event"
	})
	return log
}

func (l *eventLog) find(id string, kind cri.ContainerEventType) *cri.ContainerEventResponse {
	l.lock.Lock()
	defer l.lock.Unlock()
	for _, event := range l.seen {
		if event.ContainerId == id && event.ContainerEventType == kind {
			return event
		}
	}
	return nil
}

// of lists the events of some ids, as `name KIND`.
func (l *eventLog) of(names map[string]string) []string {
	l.lock.Lock()
	defer l.lock.Unlock()
	var found []string
	for _, event := range l.seen {
		if name, ok := names[event.ContainerId]; ok {
			kind := strings.TrimSuffix(strings.TrimPrefix(event.ContainerEventType.String(), "CONTAINER_"), "_EVENT")
			found = append(found, fmt.Sprintf("%s %s", name, kind))
		}
	}
	return found
}
