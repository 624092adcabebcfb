package systemtest

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agentsocket"
)

// These are the number and the size of the incomplete requests that a client without a token sends.
const (
	halfSentRequestCount = 1000
	halfSentBodySize     = 128 << 10 // number of bytes that are sent of a body, or of a message, of 1 MiB
)

var halfSentRequests = map[string]string{
	"half of a header":        "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Half: " + strings.Repeat("x", 15<<10),
	"half of many headers":    "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + headersUpToServerLimit(),
	"half of a GET's body":    "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat(" ", halfSentBodySize),
	"half of a POST's body":   "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat(" ", halfSentBodySize),
	"an open path and a body": "GET /v1/agent/health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat(" ", halfSentBodySize),
	"half of a message":       partialWebsocketMessage(),
	partialTLSHandshake:       "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + strings.Repeat("x", 15<<10),
}

const partialTLSHandshake = "half of a TLS handshake"

// headersUpToServerLimit returns about as many headers as a server reads at most.
func headersUpToServerLimit() string {
	var b strings.Builder
	for i := range 2500 {
		fmt.Fprintf(&b, "%03x:\r\n", i)
	}
	return b.String()
}

// partialWebsocketMessage returns the request of an exec session and a part of its first message,
// which contains the token.
func partialWebsocketMessage() string {
	frame := binary.BigEndian.AppendUint64([]byte{0x81, 0x80 | 127}, 1<<20)
	return "GET /v1/client/allocation/x/exec?ws_handshake=true HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" +
		string(frame) + "mask" + strings.Repeat("x", halfSentBodySize)
}

// keepPartialRequestsOpen KIND ADDRESS SOURCES COUNT keeps COUNT incomplete requests open until it is
// killed. They come from SOURCES addresses of this machine. After the first round of requests it
// prints a line.
func keepPartialRequestsOpen() {
	kind, address := os.Args[1], os.Args[2]
	sources, _ := strconv.Atoi(os.Args[3])
	count, _ := strconv.Atoi(os.Args[4])
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
				sendPartialRequest(from, address, halfSentRequests[kind], first)
				first()
				time.Sleep(100 * time.Millisecond)
			}
		}()
	}
	firstRequestsSent.Wait()
	fmt.Println("sent")
	select {}
}

// sendPartialRequest sends an incomplete request, and returns when the server has closed the
// connection.
func sendPartialRequest(from net.Addr, address, text string, onSent func()) {
	conn, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", address)
	if err != nil {
		return // the server accepts no further connection at the moment
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(conn, text) // the write times out if the server does not read the whole text
	onSent()
	_, _ = io.Copy(io.Discard, conn)
}

// startSlowlorisAttack sends incomplete requests from a process whose user has no rights. end kills the
// process.
func startSlowlorisAttack(t testing.TB, kind, address string, sources int) (end func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", kind, address, strconv.Itoa(sources), strconv.Itoa(halfSentRequestCount))
	cmd.Args[0] = "half-sender"
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "sent\n" {
		t.Fatalf("the attack has not begun: %q, %v", line, err)
	}
	return end
}

// tokenProtectedAgent is an agent that requires its token.
type tokenProtectedAgent struct {
	pid     int
	socket  string
	address string
	usesTLS bool
}

func startTokenProtectedAgent(t *testing.T, secure bool) *tokenProtectedAgent {
	t.Helper()
	dir := t.TempDir()
	config, text := filepath.Join(dir, "agent.hcl"), "ports {\n http = 0\n}\n"
	if secure {
		certificates := exec.Command("mint", "ca", "server")
		certificates.Dir = dir
		if out, err := certificates.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		text += fmt.Sprintf("tls {\n http = true\n cert_file = %q\n key_file = %q\n}\n", dir+"/server.pem", dir+"/server.key")
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	cmd := exec.Command("nomad-lite", "agent", "-config", config, "-data-dir", data)
	t.Cleanup(func() { // after the agent has exited
		for _, p := range findNodeProcesses(data) {
			_ = p.Signal(syscall.SIGKILL) // the keeper and the log collector outlive the agent, so the test kills them
		}
		assertNodeExited(t, data)
	})
	address := startAgentCommand(t, cmd, regexp.MustCompile(`agent is ready: https?://([^,]+)`))
	return &tokenProtectedAgent{cmd.Process.Pid, filepath.Join(data, agentsocket.FileName), address, secure}
}

// startAgentCommand starts an agent, and waits until its log has a match of ready. It returns the first group of the
// match.
func startAgentCommand(t *testing.T, cmd *exec.Cmd, ready *regexp.Regexp) string {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // the agent can have exited
		if err := cmd.Wait(); err != nil {
			t.Error("the agent: ", err)
		}
	})
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(5 * time.Millisecond) {
		text, _ := os.ReadFile(log.Name()) // an error means that nothing was logged
		if found := ready.FindSubmatch(text); found != nil {
			return string(found[1])
		}
		if time.Now().After(deadline) {
			t.Fatalf("the agent is not ready:\n%s", text)
		}
	}
}

// requestHealth requests the health of the agent over a new connection, and returns the time that
// this took. from is an address of this machine; if from is nil, the request goes over the
// unix socket.
func requestHealth(ctx context.Context, socket, address string, from net.IP, secure bool) (time.Duration, error) {
	began := time.Now()
	transport := insecureTransport()
	defer transport.CloseIdleConnections()
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		if from == nil {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext(ctx, "tcp", address)
	}
	scheme := "http"
	if secure && from != nil {
		scheme = "https"
	}
	r, err := http.NewRequestWithContext(ctx, "GET", scheme+"://"+address+"/v1/agent/health", nil)
	if err != nil {
		return 0, err
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d", answer.StatusCode)
	}
	return time.Since(began), nil
}

func insecureTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if err := api.ConfigureTLS(&http.Client{Transport: t}, &api.TLSConfig{Insecure: true}); err != nil {
		panic(err)
	}
	return t
}

var secondLoopbackIP = net.IPv4(127, 0, 0, 2)

// processMemory returns the value of a line of /proc/PID/status, in bytes.
func processMemory(t testing.TB, pid int, line string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(line + `:\s*(\d+) kB`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no %s in %s", line, text)
	}
	kib, _ := strconv.Atoi(string(found[1]))
	return kib << 10
}

// 1,000 incomplete requests of a client without a token do not fill the memory of the agent, and do
// not block other clients, whether they come from one address or from ten.
func TestHalfSentRequests(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("sends thousands of requests")
	}
	if raceDetector {
		t.Skip("measures memory, of which the race detector takes most")
	}
	const maxMemoryGrowth = 64 << 20
	agents := map[bool]*tokenProtectedAgent{}
	for _, kind := range slices.Sorted(maps.Keys(halfSentRequests)) {
		secure := kind == partialTLSHandshake
		if agents[secure] == nil {
			agents[secure] = startTokenProtectedAgent(t, secure)
		}
		g := agents[secure]
		for _, sources := range []int{1, 10} {
			if sources == 1 && kind != "half of a header" {
				continue // an attack from one address is weaker, because the agent serves only 100 connections of an address
			}
			t.Run(fmt.Sprintf("%s from %d addresses", kind, sources), func(t *testing.T) {
				before := processMemory(t, g.pid, "VmRSS")
				// A write of 5 to clear_refs resets the peak memory (VmHWM) of the agent.
				if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", g.pid), []byte("5"), 0); err != nil {
					t.Fatal(err)
				}
				end := startSlowlorisAttack(t, kind, g.address, sources)
				defer end()
				for range 2 {
					ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
					for _, from := range []net.IP{nil, secondLoopbackIP} {
						if _, err := requestHealth(ctx, g.socket, g.address, from, g.usesTLS); err != nil {
							t.Errorf("the agent does not answer (from %v): %v", from, err)
						}
					}
					cancel()
					time.Sleep(500 * time.Millisecond)
				}
				grown := processMemory(t, g.pid, "VmHWM") - before
				t.Logf("before %d MB, grown by %.1f MB", before>>20, float64(grown)/(1<<20))
				if grown > maxMemoryGrowth {
					t.Errorf("the agent has grown by %d bytes, want at most %d", grown, maxMemoryGrowth)
				}
			})
		}
	}
}

// BenchmarkHealthUnderAttack measures a health request over a new connection while another user has
// 1,000 incomplete requests open, of the kind that delays it most.
func BenchmarkHealthUnderAttack(b *testing.B) {
	a := startBenchAgent(b, b.TempDir())
	defer a.end(b, syscall.SIGINT)
	self, err := a.client.Agent().Self()
	if err != nil {
		b.Fatal(err)
	}
	advertised, _ := self.Config["AdvertiseAddrs"].(map[string]any)
	address, _ := advertised["HTTP"].(string)
	ask := func(from net.IP) float64 {
		took, err := requestHealth(b.Context(), filepath.Join(a.dir, agentsocket.FileName), address, from, false)
		if err != nil {
			b.Fatal(err)
		}
		return milliseconds(took)
	}
	worst := func(from net.IP) (most float64) {
		for range 50 {
			most = max(most, ask(from))
		}
		return most
	}
	for b.Loop() {
		var socketLatency, secondAddressLatency, socketBaseline, secondAddressBaseline float64
		for kind := range halfSentRequests {
			if kind == partialTLSHandshake {
				continue
			}
			socketBaseline, secondAddressBaseline = max(socketBaseline, worst(nil)), max(secondAddressBaseline, worst(secondLoopbackIP))
			end := startSlowlorisAttack(b, kind, address, 10)
			socketLatency, secondAddressLatency = max(socketLatency, worst(nil)), max(secondAddressLatency, worst(secondLoopbackIP))
			end()
		}
		addBenchSample(b, "health, socket", socketLatency, socketBaseline)
		addBenchSample(b, "health, second address", secondAddressLatency, secondAddressBaseline)
	}
}
