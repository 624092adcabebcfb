package builtinhooks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

var (
	_ hook.TaskPrestart = (*IdentityHook)(nil)
	_ hook.TaskStop     = (*IdentityHook)(nil)
	_ hook.TaskShutdown = (*IdentityHook)(nil)
)

// Failed renewals are repeated with increasing delays.
const (
	minRenewalRetryDelay = 10 * time.Second
	maxRenewalRetryDelay = time.Hour
)

var (
	// ErrIdentityRejected means that no token is ever issued for an identity, so its task cannot start.
	ErrIdentityRejected = errors.New("identity rejected")
	// ErrIssuerUnreachable means that no token was issued because the issuer, another machine, is unreachable.
	ErrIssuerUnreachable = errors.New("issuer of identities unreachable")
)

// TokenIssuer issues workload identity tokens, and stores them for the next agent. identity.Issuer implements it for an agent
// that schedules for itself. The methods may be called concurrently.
type TokenIssuer interface {
	// IssueToken returns a new token for a workload's identity. Its errors may wrap ErrIdentityRejected and ErrIssuerUnreachable.
	IssueToken(ctx context.Context, w identity.Workload, id *api.WorkloadIdentity) (*state.IdentityToken, error)
	// RenewalDelay returns the time until a token must be renewed. If it is 0 or less, the token must be renewed now.
	// isRenewable is false if the token is never renewed.
	RenewalDelay(t *state.IdentityToken) (delay time.Duration, isRenewable bool)
	// ClockStepped returns a channel that is closed when the wall clock is set. Then RenewalDelay must be called again.
	ClockStepped() <-chan struct{}
	// IsSignedByExistingKey reports whether the token's signing key still exists. Without it, the token is invalid.
	IsSignedByExistingKey(t *state.IdentityToken) bool
	// IsSignedByActiveKey reports whether the next token would be signed by the same key.
	IsSignedByActiveKey(ctx context.Context, t *state.IdentityToken) bool

	// StoredTokensByIdentity returns a task's stored tokens by identity name.
	StoredTokensByIdentity(allocID, task string) map[string]*state.IdentityToken
	// PutTokens stores a task's tokens. When it returns without an error, they are on disk.
	PutTokens(ctx context.Context, allocID, task string, tokenByIdentity map[string]*state.IdentityToken) error
	// DeleteTokens removes a task's stored tokens, if any.
	DeleteTokens(ctx context.Context, allocID, task string) error
}

var _ TokenIssuer = (*identity.Issuer)(nil)

// AllocTokenIssuer is a TokenIssuer that issues all tasks' tokens before an allocation's first task starts.
type AllocTokenIssuer interface {
	TokenIssuer
	// IssueAllocTokens issues and stores the tokens for an allocation's tasks. It blocks until the issuer has answered or ctx ends.
	IssueAllocTokens(ctx context.Context, alloc *api.Allocation) error
}

// AllocIdentityHook issues the tokens for all tasks in an allocation. A rejected identity fails the allocation.
type AllocIdentityHook struct {
	hooks.BuiltinHookDefaults
	issuer AllocTokenIssuer
	alloc  *api.Allocation
}

var _ hook.AllocPrerun = (*AllocIdentityHook)(nil)

// NewAllocIdentityHook returns the hook for an allocation's first start.
func NewAllocIdentityHook(issuer AllocTokenIssuer, alloc *api.Allocation) *AllocIdentityHook {
	return &AllocIdentityHook{issuer: issuer, alloc: alloc}
}

// Name implements Hook.
func (*AllocIdentityHook) Name() string { return "workload_identity" }

// NoDeadline implements Hook: the issuer may be unreachable for long.
func (*AllocIdentityHook) NoDeadline() bool { return true }

// Prerun implements hook.AllocPrerun.
func (a *AllocIdentityHook) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, a.issuer.IssueAllocTokens(ctx, a.alloc)
}

// IdentityHookConfig configures an [IdentityHook].
type IdentityHookConfig struct {
	Issuer   TokenIssuer
	Workload identity.Workload
	// IdentitiesWithEnvOrFile are the identities with a token in a variable or a file, see [IdentitiesWithEnvOrFile].
	IdentitiesWithEnvOrFile []*api.WorkloadIdentity
	// WriteTaskFile writes a file in the task directory.
	WriteTaskFile func(pathInTaskDir string, data []byte) error
	// SetEnvTokenByIdentity sets the environment tokens for the next start, by identity name.
	SetEnvTokenByIdentity func(map[string]string)
	// RestartTask restarts the task, and blocks until its process has exited. SignalTask sends a signal to it. Both do nothing
	// unless the task runs.
	RestartTask func(ctx context.Context, reason string) error
	SignalTask  func(ctx context.Context, signal, reason string) error
	EmitEvent   func(*api.TaskEvent)
	Logger      hclog.Logger
}

// IdentityHook gives the task its workload identity tokens, and renews them.
type IdentityHook struct {
	hooks.BuiltinHookDefaults
	config IdentityHookConfig

	mu                  sync.Mutex
	tokenByIdentityName map[string]*state.IdentityToken // nil until the first Prestart
	cancelRenewal       context.CancelFunc              // stops renewUntilDone; nil unless it runs
	renewalWG           sync.WaitGroup
}

// NewIdentityHook returns the hook for one task.
func NewIdentityHook(c IdentityHookConfig) *IdentityHook { return &IdentityHook{config: c} }

// IdentitiesWithEnvOrFile returns a canonical task's identities with a token in a variable or a file.
func IdentitiesWithEnvOrFile(t *api.Task) []*api.WorkloadIdentity {
	var exposed []*api.WorkloadIdentity
	if id := t.Identity; id != nil && (id.Env || id.File) {
		exposed = append(exposed, id)
	}
	for _, id := range t.Identities {
		if id.Env || id.File {
			exposed = append(exposed, id)
		}
	}
	return exposed
}

// Name implements Hook.
func (*IdentityHook) Name() string { return "identity" }

// Prestart implements hook.TaskPrestart. For a running task, it only sets the variables: files are written, and an unfinished
// change_mode action repeated, in the background.
func (i *IdentityHook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if req.Running {
		i.loadStoredTokensIntoEnv()
		i.startRenewalIfNeeded(ctx)
		return hook.TaskPrestartResponse{}, nil
	}
	if _, err := i.issueDueTokensAndWriteFiles(ctx, false); errors.Is(err, ErrIdentityRejected) {
		return hook.TaskPrestartResponse{}, err
	} else if err != nil {
		return hook.TaskPrestartResponse{}, driver.Recoverable(err)
	}
	i.startRenewalIfNeeded(ctx)
	return hook.TaskPrestartResponse{}, nil
}

// Stop implements hook.TaskStop.
func (i *IdentityHook) Stop(ctx context.Context, _ hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	i.stopRenewalAndWait()
	i.mu.Lock()
	i.tokenByIdentityName = nil
	i.mu.Unlock()
	return hook.TaskStopResponse{}, i.config.Issuer.DeleteTokens(ctx, i.config.Workload.AllocID, i.config.Workload.Task)
}

// Shutdown implements hook.TaskShutdown.
func (i *IdentityHook) Shutdown(context.Context, hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	i.stopRenewalAndWait()
	return hook.TaskShutdownResponse{}, nil
}

// loadStoredTokensIntoEnv reads the tokens issued by an earlier agent, and sets them in the task's environment.
func (i *IdentityHook) loadStoredTokensIntoEnv() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.loadStoredTokensIfNilLocked()
	i.setEnvTokensLocked()
}

func (i *IdentityHook) loadStoredTokensIfNilLocked() {
	if i.tokenByIdentityName == nil {
		i.tokenByIdentityName = make(map[string]*state.IdentityToken)
		maps.Copy(i.tokenByIdentityName, i.config.Issuer.StoredTokensByIdentity(i.config.Workload.AllocID, i.config.Workload.Task))
	}
}

func (i *IdentityHook) setEnvTokensLocked() {
	variables := make(map[string]string)
	for _, id := range i.config.IdentitiesWithEnvOrFile {
		if t := i.tokenByIdentityName[id.Name]; id.Env && t != nil {
			variables[id.Name] = t.JWT
		}
	}
	i.config.SetEnvTokenByIdentity(variables)
}

// issueDueTokensAndWriteFiles issues tokens that are missing or due for renewal, stores all tokens, and writes files: all files
// before a task start, only changed ones for a running task. A task start also replaces tokens signed before a key rotation, so
// that the former key can be removed. While the issuer is unreachable, a task starts with an old token. changeModePending has the
// running task's identities with a change_mode to apply.
func (i *IdentityHook) issueDueTokensAndWriteFiles(ctx context.Context, taskRunning bool) (changeModePending []*api.WorkloadIdentity, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.loadStoredTokensIfNilLocked()
	next, stored := maps.Clone(i.tokenByIdentityName), true
	for _, id := range i.config.IdentitiesWithEnvOrFile {
		t := next[id.Name]
		switch {
		case t == nil || i.mustReplaceToken(t), !taskRunning && !i.config.Issuer.IsSignedByActiveKey(ctx, t):
			issued, err := i.config.Issuer.IssueToken(ctx, i.config.Workload, id)
			if t != nil && !taskRunning && errors.Is(err, ErrIssuerUnreachable) {
				// A task with an invalid token is better than no task. The token is renewed while it runs.
				i.config.Logger.Warn("the task starts with an old token", "identity", id.Name, "error", err)
				continue
			}
			if err != nil {
				return nil, err
			}
			issued.ChangeModePending = taskRunning
			next[id.Name], stored = issued, false
		case t.ChangeModePending && !taskRunning:
			next[id.Name], stored = withoutPendingChangeMode(t), false
		}
	}
	if !stored {
		if err := i.storeTokens(ctx, next); err != nil {
			return nil, err
		}
	}
	i.tokenByIdentityName = next
	for _, id := range i.config.IdentitiesWithEnvOrFile {
		t := i.tokenByIdentityName[id.Name]
		if taskRunning && !t.ChangeModePending {
			continue
		}
		if id.File {
			if err := i.config.WriteTaskFile(tokenPathInTaskDir(id), []byte(t.JWT)); err != nil {
				return nil, err
			}
		}
		if taskRunning {
			changeModePending = append(changeModePending, id)
		}
	}
	i.setEnvTokensLocked()
	return changeModePending, nil
}

func (i *IdentityHook) storeTokens(ctx context.Context, tokenByIdentityName map[string]*state.IdentityToken) error {
	return i.config.Issuer.PutTokens(ctx, i.config.Workload.AllocID, i.config.Workload.Task, tokenByIdentityName)
}

// mustReplaceToken reports whether a token must be replaced now.
func (i *IdentityHook) mustReplaceToken(t *state.IdentityToken) bool {
	delay, renewable := i.config.Issuer.RenewalDelay(t)
	return renewable && delay <= 0 || !i.config.Issuer.IsSignedByExistingKey(t)
}

func withoutPendingChangeMode(t *state.IdentityToken) *state.IdentityToken {
	c := *t
	c.ChangeModePending = false
	return &c
}

// tokenPathInTaskDir returns the path of an identity's file, relative to the task directory.
func tokenPathInTaskDir(id *api.WorkloadIdentity) string {
	switch {
	case id.Filepath != "":
		return id.Filepath
	case id.Name == model.DefaultIdentity:
		return "secrets/nomad_token"
	}
	return "secrets/nomad_" + id.Name + ".jwt"
}

// startRenewalIfNeeded starts token renewal, unless it already runs.
func (i *IdentityHook) startRenewalIfNeeded(ctx context.Context) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, needed := i.delayUntilRenewalLocked(); !needed || i.cancelRenewal != nil {
		return
	}
	ctx, i.cancelRenewal = context.WithCancel(context.WithoutCancel(ctx))
	i.renewalWG.Go(func() { i.renewUntilDone(ctx) })
}

func (i *IdentityHook) stopRenewalAndWait() {
	i.mu.Lock()
	if i.cancelRenewal != nil {
		i.cancelRenewal()
		i.cancelRenewal = nil
	}
	i.mu.Unlock()
	i.renewalWG.Wait()
}

// delayUntilRenewalLocked returns the time until the next renewal or change is due, false for none.
func (i *IdentityHook) delayUntilRenewalLocked() (next time.Duration, needed bool) {
	for _, id := range i.config.IdentitiesWithEnvOrFile {
		t := i.tokenByIdentityName[id.Name]
		delay, renewable := time.Duration(0), true
		if t != nil && !t.ChangeModePending && i.config.Issuer.IsSignedByExistingKey(t) {
			delay, renewable = i.config.Issuer.RenewalDelay(t)
		}
		if renewable && (!needed || delay < next) {
			next, needed = delay, true
		}
	}
	return next, needed
}

// renewUntilDone renews tokens until ctx is done.
func (i *IdentityHook) renewUntilDone(ctx context.Context) {
	retryDelay := time.Duration(0)
	for {
		stepped := i.config.Issuer.ClockStepped()
		i.mu.Lock()
		delay, needed := i.delayUntilRenewalLocked()
		i.mu.Unlock()
		if !needed {
			<-ctx.Done()
			return
		}
		if delay = max(delay, retryDelay); delay > 0 {
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case <-stepped:
				timer.Stop()
				continue
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
		err := i.renewDueTokensAndApplyChangeMode(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			retryDelay = 0
		case retryDelay == 0:
			i.config.EmitEvent(model.EventHookFailed(i.Name(), fmt.Sprintf("renew: %v", err)))
			fallthrough
		default:
			retryDelay = min(max(2*retryDelay, minRenewalRetryDelay), maxRenewalRetryDelay)
			retryDelay += rand.N(retryDelay / 10)
			i.config.Logger.Warn("tokens not renewed", "error", err, "delay", retryDelay)
		}
	}
}

// renewDueTokensAndApplyChangeMode renews due tokens and applies their identities' change_mode. A restart replaces signals: the
// new process reads all tokens.
func (i *IdentityHook) renewDueTokensAndApplyChangeMode(ctx context.Context) error {
	changed, err := i.issueDueTokensAndWriteFiles(ctx, true)
	if err != nil || len(changed) == 0 {
		return err
	}
	var restarts []string
	for _, id := range changed {
		if id.ChangeMode == "restart" {
			restarts = append(restarts, id.Name)
		}
	}
	if len(restarts) > 0 {
		err = i.config.RestartTask(ctx, renewalReason(restarts, "restart"))
	} else {
		for _, id := range changed {
			if id.ChangeMode == "signal" {
				err = errors.Join(err, i.config.SignalTask(ctx, id.ChangeSignal, renewalReason([]string{id.Name}, "signal")))
			}
		}
	}
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	next := maps.Clone(i.tokenByIdentityName)
	for _, id := range changed {
		if t := next[id.Name]; t != nil {
			next[id.Name] = withoutPendingChangeMode(t)
		}
	}
	if err := i.storeTokens(ctx, next); err != nil {
		return err
	}
	i.tokenByIdentityName = next
	return nil
}

// renewalReason returns the reason for a restart or signal, for the task's events.
func renewalReason(identityNames []string, changeMode string) string {
	return fmt.Sprintf("Identity %s with change_mode %s renewed", strings.Join(identityNames, ", "), changeMode)
}
