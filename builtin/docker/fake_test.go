package docker

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// fakeEngine answers calls of the engine's API from a table, on a unix socket.
type fakeEngine struct {
	host string

	mu       sync.Mutex
	handlers map[string]http.HandlerFunc // by method and path without the version
	calls    []string
	server   *http.Server
}

func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "docker.sock")
	e := &fakeEngine{host: "unix://" + path, handlers: map[string]http.HandlerFunc{}}
	e.listen(t)
	e.handle("GET /_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.41") })
	e.handle("HEAD /_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.41") })
	return e
}

// listen starts to answer, also again after close.
func (e *fakeEngine) listen(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("unix", strings.TrimPrefix(e.host, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	e.server = &http.Server{Handler: http.HandlerFunc(e.serve)}
	go e.server.Serve(listener)
	t.Cleanup(e.close)
}

func (e *fakeEngine) close() { e.server.Close() }

func (e *fakeEngine) handle(call string, h http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.handlers[call] = h
}

func (e *fakeEngine) serve(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/v1."); ok {
		_, rest, _ = strings.Cut(rest, "/")
		path = "/" + rest
	}
	call := r.Method + " " + path
	e.mu.Lock()
	h := e.handlers[call]
	e.calls = append(e.calls, call)
	e.mu.Unlock()
	if h == nil {
		reply(http.StatusNotFound, map[string]any{"message": "no such object: " + path})(w, r)
		return
	}
	h(w, r)
}

func (e *fakeEngine) count(call string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.calls {
		if c == call {
			n++
		}
	}
	return n
}

func reply(status int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if body == nil {
			return
		}
		if err := json.NewEncoder(w).Encode(body); err != nil {
			panic(err) // the body of a test cannot be encoded
		}
	}
}

func decodeBlock[C any](t *testing.T, schema *hclspec.Spec, body map[string]any) (c C) {
	t.Helper()
	if err := hclspec.UnmarshalExact(encodeBlock(t, schema, body), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func encodeBlock(t testing.TB, schema *hclspec.Spec, body map[string]any) []byte {
	t.Helper()
	value, diags := block.Decode(schema, body, nil)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	b, err := block.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newTestDriver returns a driver for an engine.
func newTestDriver(t *testing.T, host string, body map[string]any) *Driver {
	t.Helper()
	d := &Driver{config: decodeBlock[pluginConfig](t, configSchema, body), images: newImageStore()}
	if err := d.config.validateAndParseDurations(); err != nil {
		t.Fatal(err)
	}
	d.config.Endpoint = host
	engine, err := newEngineClient(&d.config)
	if err != nil {
		t.Fatal(err)
	}
	d.engine = newUntypedEngineClient(engine)
	d.images.setEngineAndConfig(engine, &d.config)
	t.Cleanup(d.reaper.stopReaping)
	return d
}

func newTestStart(t *testing.T, body map[string]any) *sdk.StartRequest {
	t.Helper()
	const allocID = "11111111-2222-3333-4444-555555555555"
	return &sdk.StartRequest{TaskConfig: driver.TaskConfig{
		ID: allocID + "/web/0badcafe", Name: "web", AllocID: allocID, AllocDir: filepath.Join(t.TempDir(), allocID), NodeID: "node",
		JobName: "job", TaskGroupName: "group", DriverConfig: encodeBlock(t, taskSchema, body),
		Env: map[string]string{"A": "1"},
	}}
}

// missing is an answer about an object that does not exist.
func missing(what string) http.HandlerFunc {
	return reply(http.StatusNotFound, map[string]any{"message": fmt.Sprintf("No such %s", what)})
}
