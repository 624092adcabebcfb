package programs

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// PartialRequestByKind returns the start of an incomplete request for each kind. It is a function and not a variable,
// because otherwise each process of the tests would build the texts when it starts.
func PartialRequestByKind() map[string]string {
	return map[string]string{
		"half of a header":             "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Half: " + strings.Repeat("x", 15<<10),
		"half of many headers":         "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + headersUpToServerLimit(),
		"half of a GET's body":         "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat(" ", systemtest.HalfSentBodySize),
		"half of a POST's body":        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat(" ", systemtest.HalfSentBodySize),
		"an open path and a body":      "GET /v1/agent/health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat(" ", systemtest.HalfSentBodySize),
		"half of a message":            partialExecWebsocketMessage(),
		systemtest.PartialTLSHandshake: "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + strings.Repeat("x", 15<<10),
	}
}

// headersUpToServerLimit returns about as many headers as the server of package net/http accepts.
func headersUpToServerLimit() string {
	var b strings.Builder
	for i := range 2500 {
		fmt.Fprintf(&b, "%03x:\r\n", i)
	}
	return b.String()
}

// partialExecWebsocketMessage returns the request of an exec session and a part of its first websocket message, which
// would contain the token.
func partialExecWebsocketMessage() string {
	frame := binary.BigEndian.AppendUint64([]byte{0x81, 0x80 | 127}, 1<<20)
	return "GET /v1/client/allocation/x/exec?ws_handshake=true HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" +
		string(frame) + "mask" + strings.Repeat("x", systemtest.HalfSentBodySize)
}

// keepPartialRequestsOpen is the program "half-sender KIND ADDRESS SOURCES COUNT". It keeps COUNT incomplete requests
// open, from SOURCES addresses of this machine, until it is killed. It prints a line when each connection has sent its
// first request.
func keepPartialRequestsOpen() {
	kind, address := os.Args[1], os.Args[2]
	sources, _ := strconv.Atoi(os.Args[3])
	count, _ := strconv.Atoi(os.Args[4])
	request := PartialRequestByKind()[kind]
	var firstRequestsSent sync.WaitGroup
	for i := range count {
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
		if sources > 1 {
			from.IP = net.IPv4(127, 0, 1, byte(1+i%sources))
		}
		firstRequestsSent.Add(1)
		go func() {
			first := sync.OnceFunc(firstRequestsSent.Done)
			for {
				sendPartialRequestAndHold(from, address, request, first)
				first()
				time.Sleep(100 * time.Millisecond)
			}
		}()
	}
	firstRequestsSent.Wait()
	fmt.Println("sent")
	select {}
}

// sendPartialRequestAndHold sends an incomplete request, calls onSent, and returns when the server has closed the
// connection.
func sendPartialRequestAndHold(from net.Addr, address, requestText string, onSent func()) {
	conn, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", address)
	if err != nil {
		return // the server accepts no further connection at the moment
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(conn, requestText) // the write times out if the server does not read the whole text
	onSent()
	_, _ = io.Copy(io.Discard, conn)
}
