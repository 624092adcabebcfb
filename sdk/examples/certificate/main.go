// Command certificate is a hook that gives tasks a TLS certificate of an internal CA,
// and renews it while they run. The key, the certificate and the certificate of the CA
// are files in the secrets directory of the task. After a renewal the task is restarted
// or gets a signal.
package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

func main() { sdk.ServeHook(&certificateHook{}) }

type certificateHook struct {
	host hook.Host

	mu             sync.Mutex
	config         pluginConfig
	renewalsByTask map[string]*renewal // key: attachedTask.taskKey
}

// renewal is the renewal of the certificate of one running task.
type renewal struct {
	cancel            context.CancelFunc
	goroutineReturned chan struct{} // closed when renewUntilCancelled has returned
}

var (
	_ sdk.Configurer     = (*certificateHook)(nil)
	_ sdk.HostSetter     = (*certificateHook)(nil)
	_ hook.TaskPrestart  = (*certificateHook)(nil)
	_ hook.TaskPoststart = (*certificateHook)(nil)
	_ hook.TaskExited    = (*certificateHook)(nil)
	_ hook.TaskStop      = (*certificateHook)(nil)
)

// pluginConfig is the configuration in the plugin block of the agent.
type pluginConfig struct {
	CACertPath          string   `codec:"ca_cert"`
	CAKeyPath           string   `codec:"ca_key"`
	TTL                 string   `codec:"ttl"`
	AllowedNamePatterns []string `codec:"allowed_names"`

	ttl time.Duration
}

// attachmentConfig is the configuration in a job's hook block.
type attachmentConfig struct {
	Names        []string `codec:"names"`
	TTL          string   `codec:"ttl"`
	ChangeMode   string   `codec:"change_mode"`
	ChangeSignal string   `codec:"change_signal"`
}

func (*certificateHook) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:    "certificate",
		Version: "0.1.0",
		ConfigSchema: hclspec.Object(map[string]*hclspec.Spec{
			// The PEM files of the CA. They are read for each certificate, so they can be replaced.
			"ca_cert": hclspec.Attr("ca_cert", "string", true),
			"ca_key":  hclspec.Attr("ca_key", "string", true),
			// The longest lifetime of certificates.
			"ttl": hclspec.Default(hclspec.Attr("ttl", "string", false), hclspec.Literal(`"24h"`)),
			// The patterns of names that jobs can request; * matches any characters.
			"allowed_names": hclspec.Attr("allowed_names", "list(string)", true),
		}),
		AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{
			// The DNS names and IP addresses of the certificate, which can contain references such as ${NOMAD_JOB_NAME}.
			"names": hclspec.Attr("names", "list(string)", true),
			// The lifetime of the certificate, at most the ttl in the plugin block, which is the default.
			"ttl": hclspec.Attr("ttl", "string", false),
			// The effect of a renewal on the task: restart, signal or noop.
			"change_mode":   hclspec.Default(hclspec.Attr("change_mode", "string", false), hclspec.Literal(`"restart"`)),
			"change_signal": hclspec.Default(hclspec.Attr("change_signal", "string", false), hclspec.Literal(`"SIGHUP"`)),
		}),
	}
}

func (h *certificateHook) SetHost(host hook.Host, _ hook.Node) { h.host = host }

func (h *certificateHook) Configure(_ context.Context, config *sdk.Config) error {
	var c pluginConfig
	if err := config.Decode(&c); err != nil {
		return err
	}
	var err error
	if c.ttl, err = time.ParseDuration(c.TTL); err != nil || c.ttl < time.Second {
		return fmt.Errorf(`ttl: %q is not a time such as "24h", of a second or more`, c.TTL)
	}
	for _, pattern := range c.AllowedNamePatterns {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("allowed_names: %q: %w", pattern, err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.config = c
	return nil
}

// currentConfig returns a copy of the configuration of the last Configure call.
func (h *certificateHook) currentConfig() pluginConfig {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.config
}

// attachedTask is a task that the hook is attached to, with its checked attachment.
type attachedTask struct {
	taskKey          string // alloc id and task name
	scope            hook.Scope
	attachment       attachmentConfig
	certificateNames []string
	certificateTTL   time.Duration
	secretsDir       string
}

// newAttachedTask decodes the attachment of a task, and returns an error if it is invalid, or if the operator does not allow a
// name.
func (h *certificateHook) newAttachedTask(ctx context.Context, meta hook.RequestMeta, a hook.Alloc, t hook.Task, dir hook.TaskDir) (*attachedTask, error) {
	config := h.currentConfig()
	n := &attachedTask{taskKey: a.ID + "/" + t.Name, scope: meta.Scope(), secretsDir: dir.SecretsDir, certificateTTL: config.ttl}
	if err := meta.DecodeConfig(&n.attachment); err != nil {
		return nil, err
	}
	switch n.attachment.ChangeMode {
	case "restart", "signal", "noop":
	default:
		return nil, fmt.Errorf("change_mode: %q is not restart, signal or noop", n.attachment.ChangeMode)
	}
	if text := n.attachment.TTL; text != "" {
		var err error
		if n.certificateTTL, err = time.ParseDuration(text); err != nil || n.certificateTTL < time.Second || n.certificateTTL > config.ttl {
			return nil, fmt.Errorf("ttl: %q is not a time from 1s to the ttl of the agent, %v", text, config.ttl)
		}
	}
	if len(n.attachment.Names) == 0 {
		return nil, fmt.Errorf("names: a certificate needs at least one")
	}
	for _, text := range n.attachment.Names {
		name, err := h.host.Interpolate(ctx, n.scope, text)
		if err != nil {
			return nil, fmt.Errorf("names: %q: %w", text, err)
		}
		if !config.allowsName(name) {
			return nil, fmt.Errorf("names: %q is not among the allowed_names of the agent", name)
		}
		n.certificateNames = append(n.certificateNames, name)
	}
	return n, nil
}

// allowsName reports whether the operator allows jobs to request a name.
func (c *pluginConfig) allowsName(name string) bool {
	for _, pattern := range c.AllowedNamePatterns {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return true
		}
	}
	return false
}

// Prestart makes a certificate, unless the task has a valid one, as after a restart of the
// task, of this program or of the agent. The returned state has the serial number and the expiry of the certificate. A
// later renewal is not in the state, so Prestart reads the certificate from the files.
func (h *certificateHook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	t, err := h.newAttachedTask(ctx, req.RequestMeta, req.Alloc, req.Task, req.Dir)
	if err != nil {
		return hook.TaskPrestartResponse{}, err
	}
	config := h.currentConfig()
	files, err := openCertificateFiles(t.secretsDir)
	if err != nil {
		return hook.TaskPrestartResponse{}, err
	}
	defer files.Close()
	current := files.readValidCertificate(&config, t.certificateNames)
	if current == nil || expiresBeforeStored(current, req.PreviousState) || isRenewalDue(current) && !req.Running {
		if err := files.setTaskNotificationPending(req.Running); err != nil {
			return hook.TaskPrestartResponse{}, err
		}
		if current, err = files.renewAndWriteFiles(&config, t.certificateNames, t.certificateTTL); err != nil {
			return hook.TaskPrestartResponse{}, sdk.Recoverable(err)
		}
		h.emitEvent(ctx, t, fmt.Sprintf("obtained certificate %s, valid until %s", serialHex(current), current.NotAfter.Format(time.RFC3339)))
	}
	if !req.Running {
		if err := files.setTaskNotificationPending(false); err != nil { // the task reads the files when it starts
			return hook.TaskPrestartResponse{}, err
		}
	}
	dir := req.Env["NOMAD_SECRETS_DIR"]
	return hook.TaskPrestartResponse{
		Env: map[string]string{
			"TLS_KEY_FILE":  filepath.Join(dir, keyFile),
			"TLS_CERT_FILE": filepath.Join(dir, certFile),
			"TLS_CA_FILE":   filepath.Join(dir, caFile),
		},
		State: certificateState(current),
	}, nil
}

// certificateState returns the state for a certificate.
func certificateState(c *x509.Certificate) map[string]string {
	return map[string]string{"serial": serialHex(c), "not_after": c.NotAfter.Format(time.RFC3339)}
}

// expiresBeforeStored reports whether a certificate is older than the one in the state, for example because its file was
// restored from a backup.
func expiresBeforeStored(c *x509.Certificate, state map[string]string) bool {
	notAfter, err := time.Parse(time.RFC3339, state["not_after"])
	return err == nil && c.NotAfter.Before(notAfter)
}

func serialHex(c *x509.Certificate) string { return fmt.Sprintf("%x", c.SerialNumber) }

// Poststart starts the renewal. It is called again after a restart of the agent or of this program, while the
// task runs.
func (h *certificateHook) Poststart(ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	t, err := h.newAttachedTask(ctx, req.RequestMeta, req.Alloc, req.Task, req.Dir)
	if err != nil {
		return hook.TaskPoststartResponse{}, err
	}
	// The context of the call ends when Poststart returns, so the renewal has a context of its own.
	renewing, cancel := context.WithCancel(context.Background())
	r := &renewal{cancel: cancel, goroutineReturned: make(chan struct{})}
	h.replaceRenewal(t.taskKey, r).cancelAndWait()
	go func() {
		defer close(r.goroutineReturned)
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				hclog.L().Error("the renewal of a certificate has failed", "task", t.taskKey, "panic", p)
			}
		}()
		h.renewUntilCancelled(renewing, t)
	}()
	return hook.TaskPoststartResponse{}, nil
}

// Exited ends the renewal: the next start of the task begins with Prestart.
func (h *certificateHook) Exited(_ context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	h.replaceRenewal(req.Alloc.ID+"/"+req.Task.Name, nil).cancelAndWait()
	return hook.TaskExitedResponse{}, nil
}

// Stop ends the renewal of a task for which Exited was not called. The files are removed with the
// directory of the task.
func (h *certificateHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	h.replaceRenewal(req.Alloc.ID+"/"+req.Task.Name, nil).cancelAndWait()
	return hook.TaskStopResponse{}, nil
}

// replaceRenewal sets the renewal of a task, or removes it if r is nil, and returns the previous one, or nil.
func (h *certificateHook) replaceRenewal(key string, r *renewal) (old *renewal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.renewalsByTask == nil {
		h.renewalsByTask = map[string]*renewal{}
	}
	old = h.renewalsByTask[key]
	if h.renewalsByTask[key] = r; r == nil {
		delete(h.renewalsByTask, key)
	}
	return old
}

// cancelAndWait stops the renewal, and blocks until its goroutine has returned. A nil renewal is
// accepted.
func (r *renewal) cancelAndWait() {
	if r != nil {
		r.cancel()
		<-r.goroutineReturned
	}
}

// renewUntilCancelled renews the certificate of a task whenever a renewal is due, until ctx ends.
func (h *certificateHook) renewUntilCancelled(ctx context.Context, t *attachedTask) {
	for {
		next, err := h.renewAndNotifyTaskIfDue(ctx, t)
		if err != nil && ctx.Err() == nil {
			hclog.L().Warn("a certificate is not renewed", "task", t.taskKey, "retry", time.Until(next).Round(time.Second), "error", err)
			h.emitEvent(ctx, t, fmt.Sprintf("the certificate is not renewed: %v", err))
		}
		// A certificate expires no later than its CA. Shortly before the CA expires, each new certificate is due at
		// once, and the minimum of one second prevents a busy loop.
		timer := time.NewTimer(max(time.Until(next), time.Second))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// renewAndNotifyTaskIfDue renews the certificate of a task if a renewal is due, and restarts or signals the task. It
// returns the time at which to call it again.
func (h *certificateHook) renewAndNotifyTaskIfDue(ctx context.Context, t *attachedTask) (nextCheck time.Time, err error) {
	config := h.currentConfig()
	retry := time.Now().Add(min(max(t.certificateTTL/20, time.Second), time.Hour))
	files, err := openCertificateFiles(t.secretsDir)
	if err != nil {
		return retry, err
	}
	defer files.Close()
	current := files.readValidCertificate(&config, t.certificateNames)
	if current == nil || isRenewalDue(current) {
		// If this process exits before the task uses the new files, the next process finds the changeFile.
		if err := files.setTaskNotificationPending(true); err != nil {
			return retry, err
		}
		if current, err = files.renewAndWriteFiles(&config, t.certificateNames, t.certificateTTL); err != nil {
			return retry, err
		}
		h.emitEvent(ctx, t, fmt.Sprintf("renewed certificate %s, valid until %s", serialHex(current), current.NotAfter.Format(time.RFC3339)))
	}
	if files.isTaskNotificationPending() {
		if err := h.restartOrSignalTask(ctx, t); err != nil {
			return retry, err
		}
		if err := files.setTaskNotificationPending(false); err != nil {
			return retry, err
		}
	}
	return renewalTime(current), nil
}

// restartOrSignalTask makes the task read the new files, by its change_mode. It blocks while no agent runs.
func (h *certificateHook) restartOrSignalTask(ctx context.Context, t *attachedTask) error {
	const reason = "its certificate was renewed"
	switch t.attachment.ChangeMode {
	case "restart":
		return h.host.Restart(ctx, t.scope, hook.RestartRequest{Reason: reason})
	case "signal":
		return h.host.Signal(ctx, t.scope, hook.SignalRequest{Signal: t.attachment.ChangeSignal, Reason: reason})
	}
	return nil
}

// emitEvent adds an event to the task. An error is only logged, so that it does not prevent the renewal.
func (h *certificateHook) emitEvent(ctx context.Context, t *attachedTask, message string) {
	if err := h.host.EmitEvent(ctx, t.scope, hook.Event{Message: message}); err != nil && ctx.Err() == nil {
		hclog.L().Warn("an event is lost", "task", t.taskKey, "event", message, "error", err)
	}
}

// renewalTime returns the time at which a certificate is due for renewal, after 70 % of its lifetime.
func renewalTime(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 7 / 10)
}

// isRenewalDue reports whether a certificate must be renewed now.
func isRenewalDue(c *x509.Certificate) bool { return !time.Now().Before(renewalTime(c)) }

// isIP reports whether a name is an IP address.
func isIP(name string) bool { return net.ParseIP(name) != nil }
