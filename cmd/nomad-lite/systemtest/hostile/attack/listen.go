package attack

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// Listening is the first line of RunListener, and Received the first word of the others. The values are an address and what a client
// has sent to it, quoted.
const (
	Listening = "listening"
	Received  = "received"
)

// listenerReplies are the replies of listeners to each request, by behaviour. A listener closes the connection after a reply
// of HTTP/1.0.
var listenerReplies = map[string]string{
	"not-found": "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
	"empty":     "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
	"proof":     "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 76\r\n\r\n" + `{"Proof":"` + strings.Repeat("0", 64) + `"}`,
	"old":       "HTTP/1.0 404 Not Found\r\n\r\n",
	"redirect":  "HTTP/1.1 307 Temporary Redirect\r\nLocation: /v1/jobs\r\nContent-Length: 0\r\n\r\n",
	"close":     "",
}

// RunListener listens on the addresses in the place of an agent, and writes all that clients send to out. The behaviour is one of
// listenerReplies, or the address of the agent to which the listener relays all bytes.
func RunListener(behaviour string, addresses []string, out io.Writer) error {
	var mu sync.Mutex
	report := func(values ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, values...) // an error means that the test no longer reads
	}
	var listeners []net.Listener
	for _, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	report(Listening)
	var serving sync.WaitGroup
	for _, l := range listeners {
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					serveVictim(behaviour, reportingReader{c, func(p []byte) { report(Received, l.Addr(), fmt.Sprintf("%q", p)) }}, c)
				}()
			}
		})
	}
	serving.Wait()
	return nil
}

// reportingReader reports all that is read.
type reportingReader struct {
	r      io.Reader
	report func([]byte)
}

func (r reportingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if n > 0 {
		r.report(p[:n])
	}
	return n, err
}

// serveVictim replies to a client until the connection ends.
func serveVictim(behaviour string, from io.Reader, to io.Writer) {
	reply, known := listenerReplies[behaviour]
	if !known {
		agent, err := net.Dial("tcp", behaviour)
		if err != nil {
			return
		}
		defer agent.Close()
		go io.Copy(agent, from)
		io.Copy(to, agent)
		return
	}
	for requests := bufio.NewReader(from); ; {
		r, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		io.Copy(io.Discard, r.Body)
		io.WriteString(to, reply) // an error means that the client has closed the connection, which ReadRequest reports
		if behaviour == "old" || behaviour == "close" {
			return
		}
	}
}
