package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) { sdktest.Main(m, main) }

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin in each case of the contract suite")
	}
	certFile, keyFile := newCA(t, t.TempDir())
	sdktest.Hook(t, sdktest.Plugin{
		Path:       os.Args[0],
		Config:     map[string]any{"ca_cert": certFile, "ca_key": keyFile, "allowed_names": []any{"*.internal"}},
		Attachment: map[string]any{"names": []any{"web.internal"}},
	})
}

// newCA writes a CA that is valid for a year.
func newCA(t *testing.T, dir string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// fakeHost records what the hook does to its task. Interpolate knows one reference.
type fakeHost struct {
	hook.Host // methods that the test does not call

	mu        sync.Mutex
	actions   []string
	signalErr error
}

func (h *fakeHost) record(action string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.actions = append(h.actions, action)
}

func (h *fakeHost) Interpolate(_ context.Context, _ hook.Scope, text string) (string, error) {
	return strings.ReplaceAll(text, "${NOMAD_JOB_NAME}", "shop"), nil
}

func (h *fakeHost) EmitEvent(_ context.Context, _ hook.Scope, e hook.Event) error {
	h.record(strings.Join(strings.Fields(e.Message)[:2], " "))
	return nil
}

func (h *fakeHost) Restart(_ context.Context, s hook.Scope, _ hook.RestartRequest) error {
	h.record("restart with token " + s.Token)
	return nil
}

func (h *fakeHost) Signal(_ context.Context, _ hook.Scope, req hook.SignalRequest) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.actions = append(h.actions, req.Signal)
	return h.signalErr
}

func (h *fakeHost) setSignalErr(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.signalErr = err
}

// takeActions returns the actions since the last call.
func (h *fakeHost) takeActions() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	actions := h.actions
	h.actions = nil
	return actions
}

// testTask is a task to which hooks are attached, one process of the plugin after the other.
type testTask struct {
	t      *testing.T
	host   *fakeHost
	hook   *certificateHook
	config pluginConfig
	meta   hook.RequestMeta
	dir    string
	state  map[string]string
}

func newTestTask(t *testing.T, attachment string) *testTask {
	n := &testTask{t: t, host: &fakeHost{}, dir: t.TempDir(), meta: hook.RequestMeta{Token: "key", AttachmentJSON: []byte(attachment)}}
	n.config = pluginConfig{AllowedNamePatterns: []string{"*.internal", "10.*"}, ttl: 24 * time.Hour}
	n.config.CACertPath, n.config.CAKeyPath = newCA(t, t.TempDir())
	n.replaceHook()
	return n
}

// replaceHook starts another process of the plugin, as after a crash.
func (te *testTask) replaceHook() {
	if te.hook != nil {
		te.hook.replaceRenewal("1/web", nil).cancelAndWait()
	}
	te.hook = &certificateHook{config: te.config}
	te.hook.SetHost(te.host, hook.Node{})
}

func (te *testTask) prestart(running bool) map[string]string {
	te.t.Helper()
	answer, err := te.hook.Prestart(te.t.Context(), hook.TaskPrestartRequest{
		RequestMeta: te.meta, Alloc: hook.Alloc{ID: "1"}, Task: hook.Task{Name: "web"}, Dir: hook.TaskDir{SecretsDir: te.dir},
		Env: map[string]string{"NOMAD_SECRETS_DIR": "/secrets"}, PreviousState: te.state, Running: running,
	})
	if err != nil {
		te.t.Fatal(err)
	}
	te.state = answer.State
	return answer.Env
}

func (te *testTask) poststart() {
	te.t.Helper()
	if _, err := te.hook.Poststart(te.t.Context(), hook.TaskPoststartRequest{
		RequestMeta: te.meta, Alloc: hook.Alloc{ID: "1"}, Task: hook.Task{Name: "web"}, Dir: hook.TaskDir{SecretsDir: te.dir},
	}); err != nil {
		te.t.Fatal(err)
	}
}

func (te *testTask) exited() {
	if _, err := te.hook.Exited(te.t.Context(), hook.TaskExitedRequest{RequestMeta: te.meta, Alloc: hook.Alloc{ID: "1"}, Task: hook.Task{Name: "web"}}); err != nil {
		te.t.Error(err)
	}
}

func (te *testTask) wantActions(when string, want ...string) {
	te.t.Helper()
	if got := te.host.takeActions(); !slices.Equal(got, want) {
		te.t.Errorf("%s: %q, want %q", when, got, want)
	}
}

func TestCertificateHasRequestedNames(t *testing.T) {
	n := newTestTask(t, `{"names":["${NOMAD_JOB_NAME}.internal","10.1.2.3"],"change_mode":"noop"}`)
	env := n.prestart(false)
	want := map[string]string{"TLS_KEY_FILE": "/secrets/tls.key", "TLS_CERT_FILE": "/secrets/tls.crt", "TLS_CA_FILE": "/secrets/ca.crt"}
	if !maps.Equal(env, want) {
		t.Errorf("environment %q, want %q", env, want)
	}
	files, err := openCertificateFiles(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	c := files.readValidCertificate(&n.config, []string{"shop.internal", "10.1.2.3"})
	if c == nil {
		t.Fatal("the files are not valid for the names")
	}
	if n.state["serial"] != serialHex(c) {
		t.Errorf("state %q, want serial %s", n.state, serialHex(c))
	}
	for name, mode := range map[string]os.FileMode{keyFile: 0o600, certFile: 0o644, caFile: 0o644} {
		if info, err := os.Stat(filepath.Join(n.dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want mode %v", name, info.Mode(), err, mode)
		}
	}
}

func TestForbiddenAttachmentsAreRejected(t *testing.T) {
	for attachment, want := range map[string]string{
		`{"names":["bank.example"],"change_mode":"noop"}`:                       "not among the allowed_names",
		`{"names":[],"change_mode":"noop"}`:                                     "at least one",
		`{"names":["a.internal"],"change_mode":"explode"}`:                      "not restart, signal or noop",
		`{"names":["a.internal"],"change_mode":"noop","ttl":"48h"}`:             "not a time from 1s",
		`{"names":["a.internal","a.example"],"change_mode":"noop","ttl":"24h"}`: "not among the allowed_names",
	} {
		n := newTestTask(t, attachment)
		_, err := n.hook.Prestart(t.Context(), hook.TaskPrestartRequest{RequestMeta: n.meta, Dir: hook.TaskDir{SecretsDir: n.dir}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", attachment, err, want)
		}
	}
}

func TestValidCertificateIsKept(t *testing.T) {
	n := newTestTask(t, `{"names":["web.internal"],"change_mode":"noop"}`)
	n.prestart(false)
	n.wantActions("first start", "obtained certificate")
	serial := n.state["serial"]
	n.prestart(false)
	n.replaceHook()
	n.prestart(true)
	n.wantActions("a restart of the task, and another process and agent")
	if n.state["serial"] != serial {
		t.Errorf("serial %s, want %s", n.state["serial"], serial)
	}
	for name, damage := range map[string]func() error{
		"a file is missing":         func() error { return os.Remove(filepath.Join(n.dir, certFile)) },
		"the key is of another":     func() error { return os.WriteFile(filepath.Join(n.dir, keyFile), []byte("no key"), 0o600) },
		"the state has a newer one": func() error { n.state["not_after"] = "2100-01-01T00:00:00Z"; return nil },
		"the CA was replaced": func() error {
			n.config.CACertPath, n.config.CAKeyPath = newCA(t, t.TempDir())
			n.replaceHook()
			return nil
		},
		"the job has more names": func() error {
			n.meta.AttachmentJSON = []byte(`{"names":["web.internal","b.internal"],"change_mode":"noop"}`)
			return nil
		},
		"a link leads out of the task": func() error { return linkKeyOutside(n.dir) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		n.prestart(false)
		n.wantActions(name, "obtained certificate")
		n.prestart(false)
		n.wantActions("after " + name)
	}
}

// linkKeyOutside replaces the key by a link to a file outside of the directory.
func linkKeyOutside(dir string) error {
	target := filepath.Join(dir, "..", "outside")
	if err := os.WriteFile(target, []byte("content"), 0o600); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, keyFile)); err != nil {
		return err
	}
	return os.Symlink(target, filepath.Join(dir, keyFile))
}

func TestRenewalRestartsOrSignalsTheTask(t *testing.T) {
	for mode, want := range map[string][]string{
		"restart": {"renewed certificate", "restart with token key"},
		"signal":  {"renewed certificate", "SIGHUP"},
		"noop":    {"renewed certificate"},
	} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newTestTask(t, `{"names":["web.internal"],"change_mode":"`+mode+`","change_signal":"SIGHUP"}`)
				n.prestart(false)
				n.poststart()
				n.wantActions("start", "obtained certificate")
				time.Sleep(16 * time.Hour)
				n.wantActions("before the renewal is due")
				time.Sleep(time.Hour)
				synctest.Wait()
				n.wantActions("renewal", want...)
				time.Sleep(17 * time.Hour)
				synctest.Wait()
				n.wantActions("second renewal", want...)
				n.exited()
				time.Sleep(100 * time.Hour)
				n.wantActions("after the exit")
			})
		})
	}
}

func TestRenewalContinuesInAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestTask(t, `{"names":["web.internal"],"change_mode":"signal","change_signal":"SIGHUP"}`)
		n.prestart(false)
		n.poststart()
		time.Sleep(16 * time.Hour)
		n.wantActions("before", "obtained certificate")
		n.replaceHook()
		n.poststart()
		synctest.Wait()
		n.wantActions("a process that follows one that has exited")
		time.Sleep(time.Hour)
		synctest.Wait()
		n.wantActions("renewal in the next process", "renewed certificate", "SIGHUP")

		// The process ends after it has written the files, and before the task has the signal.
		n.host.setSignalErr(hook.ErrHostUnavailable)
		time.Sleep(17 * time.Hour)
		synctest.Wait()
		if got := n.host.takeActions(); !slices.Contains(got, "renewed certificate") || !slices.Contains(got, "SIGHUP") {
			t.Errorf("actions without a host: %q", got)
		}
		n.replaceHook()
		n.host.takeActions()
		n.host.setSignalErr(nil)
		n.poststart()
		synctest.Wait()
		n.wantActions("the process after", "SIGHUP")

		// The task was stopped for so long that the certificate has expired.
		n.exited()
		time.Sleep(30 * time.Hour)
		n.prestart(false)
		n.wantActions("start after the expiry", "obtained certificate")
	})
}

func TestFailedRenewalIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestTask(t, `{"names":["web.internal"],"change_mode":"noop"}`)
		n.prestart(false)
		n.poststart()
		n.host.takeActions()
		if err := os.Rename(n.config.CAKeyPath, n.config.CAKeyPath+".away"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(17*time.Hour + 30*time.Minute)
		synctest.Wait()
		if got := n.host.takeActions(); len(got) == 0 || got[0] != "the certificate" {
			t.Errorf("events of a failed renewal: %q", got)
		}
		if err := os.Rename(n.config.CAKeyPath+".away", n.config.CAKeyPath); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		n.wantActions("retry", "renewed certificate")
		n.exited()
	})
}
