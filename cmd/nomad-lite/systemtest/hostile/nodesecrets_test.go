package hostile

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

// secretNode is a node of a cluster whose connections are encrypted. A task of it runs.
type secretNode struct {
	*systemtest.PersistentAgent
	cluster *clustertest.Cluster
	keyDir  string
	web     string // the allocation of the task
	// secrets are those of the node, by name.
	secrets map[string]string
}

func startSecretNode(t *testing.T) *secretNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "nomad-lite-keys") // other accounts can enter it, in contrast to the directory of a test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	mint := exec.Command("mint", "ca", "server.global.nomad", "client.global.nomad")
	mint.Dir = dir
	if out, err := mint.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	pair, err := tls.X509KeyPair(read("server.global.nomad.pem"), read("server.global.nomad.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(read("ca.pem"))
	server := clustertest.Start(t, clustertest.Config{
		TLS:          &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authorities},
		Introduction: clustertest.IntroductionStrict, HeartbeatTTL: time.Second,
	})
	n := &secretNode{cluster: server.Cluster, keyDir: dir, secrets: map[string]string{}}
	n.secrets["introduction token"] = n.cluster.IntroductionToken("default", "", time.Hour)
	n.secrets["key"] = strings.Split(string(read("client.global.nomad.key")), "\n")[1]
	t.Setenv("NOMAD_CLIENT_INTRO_TOKEN", n.secrets["introduction token"])
	n.PersistentAgent = systemtest.StartClusterNode(t, server.Addr(), fmt.Sprintf(
		"enable_debug = true\nlog_level = \"TRACE\"\ntls {\n  rpc = true\n  verify_server_hostname = true\n  ca_file = \"%[1]s/ca.pem\"\n  cert_file = \"%[1]s/client.global.nomad.pem\"\n  key_file = \"%[1]s/client.global.nomad.key\"\n}\n", dir))
	registered, err := n.cluster.WaitNode(t.Context(), n.NodeID, func(n clustertest.Node) bool { return n.Status == "ready" })
	if err != nil {
		t.Fatal(err)
	}
	n.secrets["secret"] = registered.Record.SecretID
	for _, call := range n.cluster.Calls(protocol.MethodUpdateNodeStatus) {
		n.secrets["identity"], _ = call.Request["AuthToken"].(string)
	}
	n.web = n.place("web", api.AllocClientStatusRunning, systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript))
	t.Cleanup(func() {
		n.cluster.StopAlloc(n.web)
		n.WaitUntil("the task has ended", func() (string, bool) {
			a, _ := n.cluster.Alloc(n.web)
			return a.ClientStatus, a.ClientTerminalStatus()
		})
	})
	return n
}

// place places an allocation with a task, and waits until it has a status.
func (n *secretNode) place(jobID, status string, task *api.Task) (id string) {
	n.T.Helper()
	job := api.NewBatchJob(jobID, jobID, api.GlobalRegion, 50).AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task))
	id = n.cluster.PlaceAlloc(n.NodeID, job, "g")
	if _, err := n.cluster.WaitAlloc(n.T.Context(), id, func(a protocol.Allocation) bool { return a.ClientStatus == status }); err != nil {
		n.T.Fatal(err)
	}
	return id
}

// checkNoSecret reports the secrets that a text has.
func (n *secretNode) checkNoSecret(where string, text []byte) {
	n.T.Helper()
	for name, secret := range n.secrets {
		if len(secret) < 16 {
			n.T.Fatalf("no %s of the node is known", name)
		}
		if bytes.Contains(text, []byte(secret)) {
			n.T.Errorf("the %s of the node is in %s", name, where)
		}
	}
}

// A task of another user reads all that it can, and the operator all that the agent shows.
func TestNodeShowsNoSecret(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("without root, tasks have the agent's user, which can read its files")
	}
	n := startSecretNode(t)
	script := fmt.Sprintf("env; (cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; find %s %s -type f -not -name dump -exec cat {} +) 2>/dev/null; echo complete; exit 0", n.ProcessMarkerDir, n.keyDir)
	thief := systemtest.NewRawExecShellTask("t", "("+script+") > $NOMAD_ALLOC_DIR/data/dump", func(t *api.Task) { t.User = "nobody" })
	id := n.place("thief", api.AllocClientStatusComplete, thief)
	dump, err := os.ReadFile(filepath.Join(n.DataDir, "alloc", id, "alloc/data/dump"))
	if err != nil || !bytes.Contains(dump, []byte("NOMAD_ALLOC_ID="+id)) || !bytes.HasSuffix(dump, []byte("complete\n")) {
		t.Fatalf("the task has not completed: %v, %d bytes", err, len(dump))
	}
	n.checkNoSecret("what a task can read", dump)

	log, err := os.ReadFile(n.LogFile)
	if err != nil || !bytes.Contains(log, []byte("[TRACE]")) {
		t.Fatalf("the log has no traces: %v", err)
	}
	n.checkNoSecret("the log", log)
	for _, path := range []string{
		"/v1/agent/self", "/v1/metrics", "/v1/agent/host", "/v1/client/metadata", "/v1/client/stats", "/v1/agent/pprof/goroutine?debug=2", "/v1/agent/pprof/cmdline",
		"/v1/client/fs/ls/" + n.web + "?path=/", "/v1/client/allocation/" + n.web + "/stats", "/v1/allocation/" + n.web + "/timeline", "/ui/",
	} {
		body, err := n.Raw().Response(path, nil)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		text, err := io.ReadAll(body)
		body.Close()
		if err != nil || len(text) == 0 {
			t.Errorf("%s: %d bytes, %v", path, len(text), err)
		}
		n.checkNoSecret(path, text)
	}
	checkDebugBundle(t, n.PersistentAgent, n.checkNoSecret)
}

// checkDebugBundle calls check for each file of a debug bundle of the agent.
func checkDebugBundle(t *testing.T, agent *systemtest.PersistentAgent, check func(where string, text []byte)) {
	t.Helper()
	bundle := t.TempDir()
	debug := exec.Command("nomad-lite", "operator", "debug", "-duration", "0s", "-output", bundle)
	debug.Env = append(os.Environ(), "NOMAD_CLIENT_INTRO_TOKEN=", "NOMAD_ADDR=unix://"+filepath.Join(agent.DataDir, "nomad.sock"))
	if out, err := debug.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files := 0
	if err := filepath.WalkDir(bundle, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		check("the debug bundle, "+entry.Name(), text)
		return err
	}); err != nil || files == 0 {
		t.Errorf("the debug bundle has %d files, %v", files, err)
	}
}

// The tokens that a task or a thief of the node's secret can have give no access to the API of the node.
func TestNodeAcceptsNoTokenOfTasksAndServers(t *testing.T) {
	n := startSecretNode(t)
	migrate := func(allocID, secret string) string {
		token, err := clustertest.MigrateToken(allocID, secret)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	const other = "66666666-2222-3333-4444-555555555555"
	own := migrate(n.web, n.secrets["secret"])
	tokens := map[string]string{
		"none": "", "task": n.cluster.TaskToken(n.web, "t"), "guessed": migrate(n.web, n.web), "of another allocation": migrate(other, n.secrets["secret"]),
		"node secret": n.secrets["secret"], "identity": n.secrets["identity"], "introduction": n.secrets["introduction token"],
	}
	snapshot := "GET /v1/client/allocation/" + n.web + "/snapshot"
	routes := []string{
		snapshot, "GET /v1/agent/self", "GET /v1/metrics", "GET /v1/client/stats", "GET /v1/client/metadata", "GET /v1/agent/monitor", "GET /v1/agent/pprof/heap",
		"GET /v1/client/fs/ls/" + n.web, "GET /v1/client/fs/cat/" + n.web + "?path=alloc/../../../../../../etc/passwd", "GET /v1/client/fs/logs/" + n.web + "?task=t&type=stdout",
		"PUT /v1/client/gc", "PUT /v1/client/allocation/" + n.web + "/restart", "POST /v1/client/metadata", "GET /v1/client/allocation/" + n.web + "/exec?task=t&command=%5B%22id%22%5D",
	}
	address := n.PinHTTPPort()
	send := func(route, token string) int {
		t.Helper()
		method, path, _ := strings.Cut(route, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, address+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Nomad-Token", token)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Errorf("%s: %v", route, err)
		}
		return response.StatusCode
	}
	defer http.DefaultClient.CloseIdleConnections()
	for name, token := range tokens {
		for _, route := range routes {
			if code := send(route, token); code != http.StatusForbidden && code != http.StatusUnauthorized {
				t.Errorf("%s with the token %q: status %d", route, name, code)
			}
		}
	}
	if code := send(snapshot, own); code != http.StatusOK {
		t.Errorf("the archive with its token: status %d", code)
	}
	for _, route := range routes[1:] {
		if code := send(route, own); code != http.StatusForbidden && code != http.StatusUnauthorized {
			t.Errorf("%s with the token of an archive: status %d", route, code)
		}
	}
}
