package cluster

import (
	"io"
	"net"
	"sync"
	"testing"
)

// startProxy starts a proxy in front of a server, and returns its address. observe is called for each connection, from one
// goroutine: its writers get what the client and the server send, before the proxy forwards it. The proxy stops at the end of the
// test.
func startProxy(t testing.TB, serverAddr string, observe func() (client, server io.Writer)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		var open []net.Conn
		defer func() {
			for _, c := range open {
				c.Close()
			}
		}()
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", serverAddr)
			if err != nil {
				client.Close() // the server does not run
				continue
			}
			open = append(open, client, server)
			sentByClient, sentByServer := observe()
			running.Go(func() { forward(server, client, sentByClient) })
			running.Go(func() { forward(client, server, sentByServer) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

// forward forwards bytes until one end closes its connection, and then closes both.
func forward(dst, src net.Conn, observer io.Writer) {
	defer dst.Close()
	defer src.Close()
	_, _ = io.Copy(dst, io.TeeReader(src, observer)) // the other direction closes the connections at the same time
}
