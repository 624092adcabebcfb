package httpapi

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

func TestCrossOriginRequests(t *testing.T) {
	const otherOrigin = "https://ui.example"
	guarded := newFixture(t, func(c *Config) { c.OperatorToken = "secret" })
	free := newFixture(t, nil)
	for _, c := range []struct {
		name           string
		f              *fixture
		method, target string
		header         []string
		code           int
		origin         string // header Access-Control-Allow-Origin
		methods        string // header Access-Control-Allow-Methods
	}{
		{"with the token", guarded, "GET", "/v1/vars", []string{"Origin", otherOrigin, "X-Nomad-Token", "secret"}, 200, "*", ""},
		{"with the token, what is not shared", guarded, "GET", "/v1/jobs", []string{"Origin", otherOrigin, "X-Nomad-Token", "secret"}, 403, "", ""},
		{"without the token", guarded, "GET", "/v1/vars", []string{"Origin", otherOrigin}, 403, "", ""},
		{"where no token is asked for", free, "GET", "/v1/vars", []string{"Origin", otherOrigin}, 403, "", ""},
		{"the question before", guarded, "OPTIONS", "/v1/var/a", []string{"Origin", otherOrigin, "Access-Control-Request-Method", "PUT"}, 200, "*", "GET, HEAD, PUT, DELETE"},
		{"the question before logs", guarded, "OPTIONS", "/v1/client/fs/logs/x", []string{"Origin", otherOrigin, "Access-Control-Request-Method", "GET"}, 200, "*", "GET, HEAD"},
		{"the question before what is not shared", guarded, "OPTIONS", "/v1/jobs", []string{"Origin", otherOrigin, "Access-Control-Request-Method", "GET"}, 403, "", ""},
		{"the question where no token is asked for", free, "OPTIONS", "/v1/vars", []string{"Origin", otherOrigin, "Access-Control-Request-Method", "GET"}, 403, "", ""},
		{"to collect, as the Go client asks", free, "GET", "/v1/client/gc", nil, 200, "", ""},
		{"to collect, by a link in a page", free, "GET", "/v1/client/gc", []string{"Referer", "http://here/"}, 403, "", ""},
		{"to collect, by a picture in a page", free, "GET", "/v1/client/gc", []string{"Sec-Fetch-Dest", "image"}, 403, "", ""},
		{"to collect, typed into a browser", free, "GET", "/v1/client/gc", []string{"Sec-Fetch-Site", "none"}, 403, "", ""},
		{"to collect, by a page of the agent", free, "PUT", "/v1/client/gc", []string{"Sec-Fetch-Site", "same-origin"}, 200, "", ""},
		{"a link to the page on another site", guarded, "GET", "/ui/jobs", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200, "", ""},
		{"a link to the root on another site", guarded, "GET", "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 307, "", ""},
		{"a script of the page on another site", guarded, "GET", "/ui/static/main.js", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403, "", ""},
		{"a link to the API on another site", free, "GET", "/v1/jobs", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 403, "", ""},
		{"a form on another site that logs in", guarded, "POST", "/v1/agent/login", []string{"Origin", otherOrigin, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 403, "", ""},
		{"an origin that a browser hides", free, "GET", "/v1/jobs", []string{"Origin", "null"}, 403, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.f.send(c.method, c.target, nil, c.header...)
			h := r.Header
			if r.StatusCode != c.code || h.Get("Access-Control-Allow-Origin") != c.origin || h.Get("Access-Control-Allow-Methods") != c.methods {
				t.Errorf("status %d, headers %v", r.StatusCode, h)
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.ReplyHeaders = map[string]string{"X-Mine": "1", "X-Content-Type-Options": "none"} })
	for _, target := range []string{"/v1/jobs", "/v1/nope", "/ui/", "/"} {
		h := f.send("GET", target, nil).Header
		if h.Get("X-Mine") != "1" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Vary") != "Accept-Encoding, Origin" {
			t.Errorf("%s: %v", target, h)
		}
	}
	if r := f.send("HEAD", "/v1/jobs", nil); r.StatusCode != 200 || r.Header.Get("X-Nomad-Index") == "" {
		t.Errorf("HEAD: %d %v", r.StatusCode, r.Header)
	}
}

func TestHandlerPanic(t *testing.T) {
	f := newFixture(t, nil)
	f.routes = []route{{"GET", "/v1/x", openToAll(), func(*request) (any, error) { panic("oh") }, routeDoc{}}}
	if r := f.send("GET", "/v1/x", nil); r.StatusCode != 500 || strings.Contains(bodyText(r), "oh") {
		t.Errorf("status %d", r.StatusCode)
	}
}

func TestSecret(t *testing.T) {
	b, err := encodeNomadJSON(map[string]any{"a": Secret("x"), "b": []Secret{"x"}})
	if err != nil || string(b) != `{"a":"<redacted>","b":["<redacted>"]}` {
		t.Errorf("%s %v", b, err)
	}
	var log strings.Builder
	hclog.New(&hclog.LoggerOptions{Output: &log}).Info("m", "token", Secret("xyzzy"))
	if strings.Contains(log.String(), "xyzzy") {
		t.Error(log.String())
	}
}

// dial connects to the listener.
func (p pipeListener) dial() net.Conn {
	ours, theirs := net.Pipe()
	p <- theirs
	return ours
}

// TestSlowClients checks that each slow client is disconnected after its timeout, and leaves no
// resources.
func TestSlowClients(t *testing.T) {
	stuck := route{"GET", "/v1/stream", openToAll(), func(r *request) (any, error) {
		s := r.startStream("text/plain")
		for {
			if _, err := s.Write([]byte(strings.Repeat("x", 1<<10))); err != nil {
				return nil, nil
			}
		}
	}, routeDoc{}}
	waits := route{"GET", "/v1/wait", openToAll(), func(r *request) (any, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}, routeDoc{}}
	takes := route{"PUT", "/v1/take", openToAll(), func(r *request) (any, error) {
		var body struct{}
		return noContent{}, r.decodeBody(&body, maxBodyBytes, false)
	}, routeDoc{}}
	ignores := route{"PUT", "/v1/ignore", openToAll(), constantHandler(noContent{}), routeDoc{}}

	for _, c := range []struct {
		name, says string
		vanishes   bool
		after      time.Duration
	}{
		{"a connection that says nothing", "", false, headerTimeout},
		{"a header that does not end", "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n", false, headerTimeout},
		{"a body that does not come", "PUT /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", false, bodyTimeout},
		{"a body that nobody reads and that does not come", "PUT /v1/ignore HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", false, bodyTimeout},
		{"a body of a question that does not come", "GET /v1/wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", false, bodyTimeout},
		{"a client that does not read", "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n", false, 2 * writeTimeout},
		{"a client that has gone and was waiting", "GET /v1/wait HTTP/1.1\r\nHost: localhost\r\n\r\n", true, 0},
		{"a client that has gone and was reading", "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n", true, 0},
		{"a client that asks nothing more", "GET /v1/regions HTTP/1.1\r\nHost: localhost\r\n\r\n", false, idleTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, nil)
				f.routes = append([]route{stuck, waits, takes, ignores}, f.routes...)
				l := make(pipeListener)
				f.serve(t, l)
				client := l.dial()
				begin := time.Now()
				ended := make(chan time.Duration)
				go func() {
					io.WriteString(client, c.says)
					switch {
					case c.vanishes:
						client.Close()
					case strings.Contains(c.says, "/v1/stream"):
						time.Sleep(2 * writeTimeout) // the sleep lasts until the write deadline of the stream has passed
						io.Copy(io.Discard, client)
					default:
						io.Copy(io.Discard, client)
					}
					client.Close()
					ended <- time.Since(begin)
				}()
				took := <-ended
				if took < c.after || took > c.after+time.Second {
					t.Errorf("given up after %v, want %v", took, c.after)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				all := make([]byte, 1<<20)
				if stacks := string(all[:runtime.Stack(all, true)]); strings.Contains(stacks, "net/http.(*conn)") {
					t.Errorf("something of it goes on:\n%s", stacks)
				}
			})
		})
	}
}

// A stream outlives the deadlines of bodies and other replies.
func TestStreamOutlivesDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.routes = []route{{"GET", "/v1/stream", openToAll(), func(r *request) (any, error) {
			s := r.startStream("text/plain")
			for range 10 {
				time.Sleep(time.Minute)
				if _, err := io.WriteString(s, "line\n"); err != nil {
					return nil, nil
				}
			}
			return nil, nil
		}, routeDoc{}}}
		l := make(pipeListener)
		f.serve(t, l)
		client := l.dial()
		go io.WriteString(client, "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(answer.Body)
		if err != nil || strings.Count(string(all), "line\n") != 10 {
			t.Errorf("%q, %v", all, err)
		}
		client.Close()
	})
}

func TestConnectionFloods(t *testing.T) {
	t.Parallel() // net/http waits half a second before it closes the connection
	f := newFixture(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, newLimiter(3).LimitListener(l))
	get := func(conn net.Conn, header string) int {
		t.Helper()
		go io.WriteString(conn, "GET /v1/regions HTTP/1.1\r\nHost: localhost\r\n"+header+"\r\n") // the write fails if the server closes the connection early
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if errors.Is(err, syscall.ECONNRESET) {
			return http.StatusTooManyRequests // the server closed the connection before it read the request
		}
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}

	flood := dial()
	if code := get(flood, "X: "+strings.Repeat("x", 2*maxHeaderBytes)+"\r\n"); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a flood of headers: %d", code)
	}
	flood.Close()

	var openConns []net.Conn
	for range 3 {
		conn := dial()
		defer conn.Close()
		for code := get(conn, ""); code != 200; code = get(conn, "") { // the server may still count the previous connection
			conn.Close()
			conn = dial()
			defer conn.Close()
		}
		openConns = append(openConns, conn)
	}
	more := dial()
	if code := get(more, ""); code != http.StatusTooManyRequests {
		t.Errorf("one connection too many: %d", code)
	}
	more.Close()
	openConns[0].Close()
	for deadline := time.Now().Add(time.Minute); ; {
		again := dial()
		code := get(again, "")
		again.Close()
		if code == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("there is room, and still %d", code)
		}
	}
}
