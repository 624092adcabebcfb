package migration

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

const (
	secret = "5bd2e6a4-5c1c-4b9a-a5a1-2f2c4f0e0c11"
	oldID  = "5a1ad3b8-0c2c-7d5e-3f4d-8d4f2a1b9c0e"
	newID  = "66666666-2222-3333-4444-555555555555"
)

func TestToken(t *testing.T) {
	// The digest was made with b2sum's algorithm: Python's hashlib.blake2b(id, key=secret).
	const want = "hTinl8JSBcDcqr7svXGdCdt5GHeCFqYawqrM1Jb0bj0VP7TE2Y-waQHMbx7Be4pl9GDTMeEqVeHnp9cmo-odNQ=="
	got := Token(secret, oldID)
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, c := range []struct {
		name, secret, allocID, token string
		want                         bool
	}{
		{"the token", secret, oldID, want, true},
		{"no token", secret, oldID, "", false},
		{"a token of another allocation", secret, oldID, Token(secret, newID), false},
		{"a token of another node", secret, oldID, Token(newID, oldID), false},
		{"a part of the token", secret, oldID, want[:20], false},
		{"a node without a secret", "", oldID, "", false},
		{"a secret that is too long", strings.Repeat("x", 65), oldID, "", false},
	} {
		if got := IsValidToken(c.secret, c.allocID, c.token); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// fakePool answers calls with the next of its allocations, and with its node.
type fakePool struct {
	allocs  []*api.Allocation
	errs    []error // errors from the first Alloc.GetAlloc calls; nil means an answer
	node    *api.Node
	indexes []uint64 // from Alloc.GetAlloc calls
	waits   int
}

func (p *fakePool) CallBlocking(_ context.Context, _ time.Duration, method string, request, response any) error {
	switch r := response.(type) {
	case *protocol.GetAllocResponse:
		p.indexes = append(p.indexes, request.(*protocol.GetAllocRequest).MinQueryIndex)
		if len(p.errs) > 0 {
			err := p.errs[0]
			p.errs = p.errs[1:]
			if err != nil {
				return err
			}
		}
		r.Index = uint64(len(p.indexes))
		if p.allocs[0] != nil {
			r.Alloc = &protocol.Allocation{Allocation: *p.allocs[0]}
		}
		p.allocs = p.allocs[1:]
	case *protocol.GetNodeResponse:
		r.Node = p.node
	default:
		return errors.New("unexpected call of " + method)
	}
	return nil
}

func (p *fakePool) WaitRetry(ctx context.Context, _ time.Duration) error {
	p.waits++
	return context.Cause(ctx)
}

func newAlloc() *api.Allocation {
	yes := true
	group := "g"
	return &api.Allocation{
		ID: newID, PreviousAllocation: oldID, TaskGroup: group,
		Job:                &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group, EphemeralDisk: &api.EphemeralDisk{Migrate: &yes}}}},
		AllocatedResources: &api.AllocatedResources{Shared: api.AllocatedSharedResources{DiskMB: 1}},
	}
}

func newFetcher(pool *fakePool, edit func(*Config)) *Fetcher {
	c := Config{
		Region: "global", NodeID: "this", Pool: pool, NodeToken: func() string { return "node" },
		MigrateToken: func(string) string { return Token(secret, oldID) }, HasAlloc: func(string) bool { return false },
		Logger: hclog.NewNullLogger(),
	}
	if edit != nil {
		edit(&c)
	}
	return NewFetcher(c)
}

func TestOnlyMigratingGroupsHaveARemotePreviousAlloc(t *testing.T) {
	f := newFetcher(&fakePool{}, nil)
	if f.Previous(newAlloc()) == nil {
		t.Error("a group that migrates has none")
	}
	withoutMigrate, first := newAlloc(), newAlloc()
	*withoutMigrate.Job.TaskGroups[0].EphemeralDisk.Migrate = false
	first.PreviousAllocation = ""
	local := newFetcher(&fakePool{}, func(c *Config) { c.HasAlloc = func(id string) bool { return id == oldID } })
	if f.Previous(withoutMigrate) != nil || f.Previous(first) != nil || local.Previous(newAlloc()) != nil {
		t.Error("a group without migrate, a first allocation, or one of this node has one")
	}
}

func TestWaitEnded(t *testing.T) {
	running, complete := &api.Allocation{NodeID: "other", ClientStatus: "running"}, &api.Allocation{NodeID: "other", ClientStatus: "complete"}
	unknown := &api.Allocation{NodeID: "other", ClientStatus: "unknown"}
	for _, c := range []struct {
		name       string
		pool       fakePool
		calls      int
		wantReason string // why there is no data
	}{
		{"ends later", fakePool{allocs: []*api.Allocation{running, running, complete}}, 3, ""},
		{"has been given up", fakePool{allocs: []*api.Allocation{unknown}}, 1, ""},
		{"is removed", fakePool{allocs: []*api.Allocation{running, nil}}, 2, "no longer have"},
		{"no servers for a time", fakePool{allocs: []*api.Allocation{complete}, errs: []error{errors.New("EOF"), errors.New("EOF")}}, 3, ""},
		{"unknown", fakePool{errs: []error{wire.ServerError(`Unknown allocation "x"`)}}, 1, "do not show"},
		{"denied", fakePool{errs: []error{wire.ServerError("Permission denied")}}, 1, "do not show"},
	} {
		r := &remoteAlloc{fetcher: newFetcher(&c.pool, nil), alloc: newAlloc()}
		if err := r.WaitEnded(t.Context()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if len(c.pool.indexes) != c.calls || c.pool.indexes[0] != 0 || (r.nodeID == "other") != (c.wantReason == "") || !strings.Contains(r.noDataReason, c.wantReason) {
			t.Errorf("%s: indexes %v, node %q, reason %q", c.name, c.pool.indexes, r.nodeID, r.noDataReason)
		}
		if c.wantReason != "" {
			if err := r.MoveData(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), c.wantReason) {
				t.Errorf("%s: moved with %v", c.name, err)
			}
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if err := newFetcher(&fakePool{errs: []error{errors.New("x")}}, nil).Previous(newAlloc()).WaitEnded(ctx); !errors.Is(err, stop) {
		t.Errorf("got %v, want the cause", err)
	}
}

// newAllocDir returns an allocation's built directory.
func newAllocDir(t *testing.T, id string) *allocdir.Dir {
	t.Helper()
	d, err := allocdir.New(t.TempDir(), id)
	if err == nil {
		err = d.Build()
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// serveData returns a node that serves an allocation's archive with one file.
func serveData(t *testing.T, start func(http.Handler) *httptest.Server) *api.Node {
	t.Helper()
	d := newAllocDir(t, oldID)
	if err := os.WriteFile(filepath.Join(d.Path(), "alloc/data/a"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/client/allocation/"+oldID+"/snapshot" || !IsValidToken(secret, oldID, r.Header.Get("X-Nomad-Token")) {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		if err := d.WriteArchive(r.Context(), w, nil); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return &api.Node{ID: "other", Name: "old", HTTPAddr: server.Listener.Addr().String(), TLSEnabled: server.TLS != nil}
}

func move(t *testing.T, node *api.Node, edit func(*Config)) (text string, err error) {
	t.Helper()
	pool := &fakePool{node: node, allocs: []*api.Allocation{{NodeID: "other", ClientStatus: "complete"}}}
	previous := newFetcher(pool, edit).Previous(newAlloc())
	if err := previous.WaitEnded(t.Context()); err != nil {
		t.Fatal(err)
	}
	to := newAllocDir(t, newID)
	err = previous.MoveData(t.Context(), to, nil)
	b, _ := os.ReadFile(filepath.Join(to.Path(), "alloc/data/a")) // missing after an error
	return string(b), err
}

func TestDataIsFetched(t *testing.T) {
	if text, err := move(t, serveData(t, httptest.NewServer), nil); text != "text" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestDataIsNotFetched(t *testing.T) {
	redirect := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound))
	defer redirect.Close()
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write(bytes.Repeat([]byte{0}, 10))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer cut.Close()
	for _, c := range []struct {
		name string
		node *api.Node
		edit func(*Config)
		want string
	}{
		{"without an address", &api.Node{Name: "old"}, nil, "no HTTP API that other nodes can reach: set advertise.http"},
		{"unknown node", nil, nil, "the servers do not have node other"},
		{"nobody listens", &api.Node{Name: "old", HTTPAddr: "127.0.0.1:1"}, nil, `from node "old" (127.0.0.1:1): `},
		{"redirect", &api.Node{HTTPAddr: redirect.Listener.Addr().String()}, nil, "redirects to another address"},
		{"cut off", &api.Node{HTTPAddr: cut.Listener.Addr().String()}, nil, "unexpected EOF"},
		{"no token", &api.Node{}, func(c *Config) { c.MigrateToken = func(string) string { return "" } }, "no token"},
		{"wrong token", serveData(t, httptest.NewServer), func(c *Config) { c.MigrateToken = func(string) string { return "x" } }, "status 403: Permission denied"},
		{"a token of another allocation", serveData(t, httptest.NewServer), func(c *Config) { c.MigrateToken = func(string) string { return Token(secret, newID) } }, "status 403"},
		{"this node", &api.Node{}, func(c *Config) { c.NodeID = "other" }, "already removed"},
		{"TLS without certificates", &api.Node{HTTPAddr: "127.0.0.1:1", TLSEnabled: true}, nil, "it uses TLS: set ca_file"},
	} {
		text, err := move(t, c.node, c.edit)
		if text != "" || err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), oldID) {
			t.Errorf("%s: got %q, %v, want an error with %q", c.name, text, err, c.want)
		}
	}
}

// newCertificate returns a certificate for a host name, signed by itself.
func newCertificate(t *testing.T, host string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestNodesShowTheirCertificates(t *testing.T) {
	own, ownCA := newCertificate(t, "client.global.nomad")
	for host, want := range map[string]string{"client.global.nomad": "", "client.other.nomad": "certificate is valid for client.other.nomad"} {
		peer, peerCA := newCertificate(t, host)
		start := func(h http.Handler) *httptest.Server {
			s := httptest.NewUnstartedServer(h)
			s.TLS = &tls.Config{Certificates: []tls.Certificate{peer}, ClientCAs: ownCA, ClientAuth: tls.RequireAndVerifyClientCert}
			s.Config.ErrorLog = hclog.NewNullLogger().StandardLogger(nil)
			s.StartTLS()
			return s
		}
		text, err := move(t, serveData(t, start), func(c *Config) {
			c.TLS = func() *tls.Config { return &tls.Config{RootCAs: peerCA, Certificates: []tls.Certificate{own}} }
		})
		if want == "" && (text != "text" || err != nil) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %q, %v", host, text, err)
		}
	}
}
