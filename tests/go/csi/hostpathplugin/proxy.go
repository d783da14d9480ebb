package main

import (
	"context"
	"io"
	"log"
	"net"
	"sync"
)

// proxy pairs each connection of the CSI socket with one that somebody makes to the other endpoint, who is the driver.
// Upstream's csi-mock tests keep their driver in the test's own process and reach the node so.
func proxy(stop context.Context, socket net.Listener, endpoint string) error {
	other, err := listen(endpoint)
	if err != nil {
		return err
	}
	go func() {
		<-stop.Done()
		socket.Close()
		other.Close()
	}()
	for {
		inner, err := socket.Accept()
		if err != nil {
			return ended(stop, err)
		}
		outer, err := other.Accept()
		if err != nil {
			inner.Close()
			return ended(stop, err)
		}
		log.Printf("paired %s with the socket", outer.RemoteAddr())
		go pair(inner, outer)
	}
}

func ended(stop context.Context, err error) error {
	if stop.Err() != nil {
		return nil
	}
	return err
}

// pair copies in both directions until either side ends.
func pair(a, b net.Conn) {
	var once sync.Once
	end := func() {
		a.Close()
		b.Close()
	}
	one := func(to io.Writer, from io.Reader) {
		defer once.Do(end)
		if _, err := io.Copy(to, from); err != nil {
			log.Printf("a connection ended: %v", err)
		}
	}
	go one(a, b)
	one(b, a)
}
