package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// First and longest pause between attempts to remove a registration. The pause doubles after each attempt.
const (
	minRemovalRetryDelay = 100 * time.Millisecond
	maxRemovalRetryDelay = time.Second
)

// Config configures an AllocServices. CurrentSpec, CurrentEnv, Registry and Logger are required.
type Config struct {
	AllocID   string
	AllocName string

	// CurrentSpec returns the services in the allocation's current version. It must not block.
	CurrentSpec func() *AllocServicesSpec
	// CurrentEnv returns a task's current environment, or the allocation's for core.GroupWorkload.
	CurrentEnv func(taskOrGroup string) *taskenv.Env
	// RestartTaskOrGroup restarts a task, or all running tasks for core.GroupWorkload, because a check has failed. The
	// restart policy counts the restart as a failure. RestartTaskOrGroup blocks until the restart is complete; ctx ends
	// when the checks are stopped. RestartTaskOrGroup may be nil.
	RestartTaskOrGroup func(ctx context.Context, taskOrGroup, reason string) error

	Registry         Registry
	CheckResultStore CheckResultStore // stores check results; nil keeps them in memory
	Dial             DialFunc         // nil uses the real network
	ExecInTask       ExecFunc         // runs script commands; nil lets scripts fail
	Secrets          *redact.Values   // removed from check outputs; nil for none
	Logger           hclog.Logger
}

// AllocServices registers one allocation's services and runs their checks. All methods may be called concurrently.
type AllocServices struct {
	config   Config
	registry Registry
	checker  *checkRunner
	logger   hclog.Logger

	// The mutex registryMu keeps registry changes in order: unlike mu, it is held during each change.
	registryMu                  sync.Mutex                                     // locked before mu
	registrationByWorkloadAndID map[string]map[string]*api.ServiceRegistration // workload -> id -> registration in the registry; guarded by registryMu

	// The mutex checkChangesMu is held while checks are replaced or stopped, so that an older allocation version's checks cannot
	// replace a newer version's.
	checkChangesMu sync.Mutex // locked before mu
	checksStarted  bool       // set from StartChecks to StopChecks; guarded by checkChangesMu

	mu                     sync.Mutex
	registrationByWorkload map[string]*workloadRegistration // task name, or core.GroupWorkload -> registration
}

// workloadRegistration is a registered task, or the registered group.
type workloadRegistration struct {
	taskNetwork *driver.NetworkOverride // the task's network, if the driver made one
}

// New returns a set without registrations.
func New(c Config) *AllocServices {
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	s := &AllocServices{
		config:                      c,
		registry:                    c.Registry,
		logger:                      c.Logger.Named("services"),
		registrationByWorkloadAndID: make(map[string]map[string]*api.ServiceRegistration),
		registrationByWorkload:      make(map[string]*workloadRegistration),
	}
	s.checker = &checkRunner{
		allocID:               c.AllocID,
		allocName:             c.AllocName,
		dial:                  c.Dial,
		exec:                  c.ExecInTask,
		secrets:               c.Secrets,
		resultStore:           c.CheckResultStore,
		restartWorkload:       s.restartWorkloadAndLogError,
		logger:                s.logger,
		resultsChanged:        make(chan struct{}),
		statusesChanged:       make(chan struct{}),
		cancelByRestartNumber: make(map[int]context.CancelFunc),
	}
	return s
}

func (s *AllocServices) restartWorkloadAndLogError(ctx context.Context, taskOrGroup, reason string) {
	if s.config.RestartTaskOrGroup == nil {
		return
	}
	if err := s.config.RestartTaskOrGroup(ctx, taskOrGroup, reason); err != nil && ctx.Err() == nil {
		s.logger.Warn("restart for a check", "task", taskOrGroup, "error", err)
	}
}

// ValidateServiceNames returns an error if a workload has a service with an invalid name, after references are resolved in the
// current environment.
func (s *AllocServices) ValidateServiceNames(taskOrGroup string) error {
	services := servicesOfWorkload(s.config.CurrentSpec(), taskOrGroup)
	if len(services) == 0 {
		return nil // the environment, which can be large, is not built for most tasks
	}
	env := s.config.CurrentEnv(taskOrGroup)
	var errs []error
	for _, service := range services {
		errs = append(errs, validateServiceName(service.Interpolate(env).Name))
	}
	return errors.Join(errs...)
}

// servicesOfWorkload returns a workload's services.
func servicesOfWorkload(spec *AllocServicesSpec, taskOrGroup string) (services []Service) {
	for _, service := range spec.Services {
		if service.Task == taskOrGroup {
			services = append(services, service)
		}
	}
	return services
}

// RegisterServicesOf registers the services of a started workload, and arms check_restart for its checks. driverNetwork is the
// network made by the driver for a task, or nil. On an error no new service is registered.
func (s *AllocServices) RegisterServicesOf(taskOrGroup string, driverNetwork *driver.NetworkOverride) error {
	s.mu.Lock()
	s.registrationByWorkload[taskOrGroup] = &workloadRegistration{driverNetwork}
	s.mu.Unlock()
	err := s.syncRegistryWithServices(taskOrGroup)
	// Checks started before the task are resolved again, because its environment and network are complete only after its start.
	s.UpdateChecks()
	s.checker.armRestarts(taskOrGroup)
	if taskOrGroup != core.GroupWorkload && s.isRegistered(core.GroupWorkload) {
		s.checker.armRestarts(core.GroupWorkload) // a task start gives the group's checks a new grace period
	}
	return err
}

// UpdateRegistrations changes a registered workload's registrations to match the current allocation version and environment, in
// one transaction.
func (s *AllocServices) UpdateRegistrations(taskOrGroup string) error {
	return s.syncRegistryWithServices(taskOrGroup)
}

// DeregisterServicesOfWithRetry removes a workload's registrations, including an earlier agent's. It makes at least one attempt,
// and retries until ctx ends. It does nothing if the workload has no registrations.
func (s *AllocServices) DeregisterServicesOfWithRetry(ctx context.Context, taskOrGroup string) error {
	s.mu.Lock()
	delete(s.registrationByWorkload, taskOrGroup)
	s.mu.Unlock()
	s.checker.disarmRestarts(taskOrGroup)
	return s.retryUntilSuccess(ctx, func() error { return s.syncRegistryWithServices(taskOrGroup) })
}

// DeregisterAllWithRetry removes all the allocation's registrations, including those by earlier agents.
func (s *AllocServices) DeregisterAllWithRetry(ctx context.Context) error {
	s.mu.Lock()
	clear(s.registrationByWorkload)
	s.mu.Unlock()
	return s.retryUntilSuccess(ctx, func() error {
		s.registryMu.Lock()
		defer s.registryMu.Unlock()
		left := s.registry.ServicesByAllocation(s.config.AllocID)
		if len(left) == 0 {
			return nil
		}
		if err := s.registry.PutAndRemoveServices(nil, left); err != nil {
			return fmt.Errorf("deregister services: %w", err)
		}
		clear(s.registrationByWorkloadAndID)
		return nil
	})
}

func (s *AllocServices) retryUntilSuccess(ctx context.Context, f func() error) error {
	for pause := minRemovalRetryDelay; ; pause = min(2*pause, maxRemovalRetryDelay) {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

func (s *AllocServices) isRegistered(taskOrGroup string) bool {
	return s.registeredWorkload(taskOrGroup) != nil
}

func (s *AllocServices) registeredWorkload(taskOrGroup string) *workloadRegistration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.registrationByWorkload[taskOrGroup]
}

// syncRegistryWithServices changes the registry so that a workload has exactly its services' registrations, or none if the
// workload is not registered.
func (s *AllocServices) syncRegistryWithServices(taskOrGroup string) error {
	s.registryMu.Lock()
	defer s.registryMu.Unlock()
	spec := s.config.CurrentSpec()
	var wantedRegistrations []*api.ServiceRegistration
	if w := s.registeredWorkload(taskOrGroup); w != nil {
		var err error
		if wantedRegistrations, err = s.buildRegistrations(spec, taskOrGroup, w.taskNetwork); err != nil {
			return fmt.Errorf("register services: %w", err)
		}
	}
	have := s.registrationInRegistryByID(spec, taskOrGroup)
	ids := make(map[string]*api.ServiceRegistration, len(wantedRegistrations))
	var put, toRemove []*api.ServiceRegistration
	for _, r := range wantedRegistrations {
		ids[r.ID] = r
		if old := have[r.ID]; old == nil || !equalExceptIndexes(old, r) {
			put = append(put, r)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(have)) {
		if ids[id] == nil {
			toRemove = append(toRemove, have[id])
		}
	}
	if len(put) == 0 && len(toRemove) == 0 {
		return nil
	}
	if err := s.registry.PutAndRemoveServices(put, toRemove); err != nil {
		verb := "register"
		if len(put) == 0 {
			verb = "deregister"
		}
		return fmt.Errorf("%s services: %w", verb, err)
	}
	s.registrationByWorkloadAndID[taskOrGroup] = ids
	return nil
}

// registrationInRegistryByID returns id -> a workload's registration in the registry. The first call for a workload reads the
// registry, where an earlier agent may have left registrations.
func (s *AllocServices) registrationInRegistryByID(spec *AllocServicesSpec, taskOrGroup string) map[string]*api.ServiceRegistration {
	if have, ok := s.registrationByWorkloadAndID[taskOrGroup]; ok {
		return have
	}
	have := make(map[string]*api.ServiceRegistration)
	for _, r := range s.registry.ServicesByAllocation(spec.AllocID) {
		if workloadOfRegistrationID(spec, r.ID) == taskOrGroup {
			have[r.ID] = r
		}
	}
	s.registrationByWorkloadAndID[taskOrGroup] = have
	return have
}

// buildRegistrations returns the required registrations for a workload's services.
func (s *AllocServices) buildRegistrations(spec *AllocServicesSpec, taskOrGroup string, driverNetwork *driver.NetworkOverride) ([]*api.ServiceRegistration, error) {
	services := servicesOfWorkload(spec, taskOrGroup)
	if len(services) == 0 {
		return nil, nil
	}
	env := s.config.CurrentEnv(taskOrGroup)
	var list []*api.ServiceRegistration
	var errs []error
	for _, raw := range services {
		r, err := newRegistration(spec, raw.Interpolate(env), driverNetwork)
		if err != nil {
			errs = append(errs, fmt.Errorf("service %q: %w", raw.Name, err))
			continue
		}
		list = append(list, r)
	}
	return list, errors.Join(errs...)
}

func newRegistration(spec *AllocServicesSpec, service Service, driverNetwork *driver.NetworkOverride) (*api.ServiceRegistration, error) {
	if err := validateServiceName(service.Name); err != nil {
		return nil, err
	}
	where := addressResolver{spec: spec, task: service.Task, driverNetwork: driverNetwork, serviceAddress: service.Address}
	ip, port, err := where.resolveAddress(service.AddressMode, service.PortLabel)
	if err != nil {
		return nil, err
	}
	tags := service.Tags
	if spec.IsCanary && len(service.CanaryTags) > 0 {
		tags = service.CanaryTags
	}
	return &api.ServiceRegistration{
		ID:          registrationIDPrefix(spec, service.Task) + service.Name + "-" + service.PortLabel,
		ServiceName: service.Name,
		Namespace:   spec.Namespace,
		NodeID:      spec.NodeID,
		Datacenter:  spec.Datacenter,
		JobID:       spec.JobID,
		AllocID:     spec.AllocID,
		Tags:        slices.Clone(tags),
		Address:     ip,
		Port:        port,
	}, nil
}

// registrationIDPrefix is the id prefix of all a workload's registrations.
func registrationIDPrefix(spec *AllocServicesSpec, taskOrGroup string) string {
	prefix := model.ServiceIDPrefix(spec.AllocID, taskOrGroup)
	if taskOrGroup == core.GroupWorkload {
		prefix += spec.Group + "-"
	}
	return prefix
}

// workloadOfRegistrationID returns the workload with the longest registrationIDPrefix that matches a registration's id;
// core.GroupWorkload if none does.
func workloadOfRegistrationID(spec *AllocServicesSpec, id string) string {
	owner, length := core.GroupWorkload, 0
	for _, service := range spec.Services {
		prefix := registrationIDPrefix(spec, service.Task)
		if strings.HasPrefix(id, prefix) && len(prefix) > length {
			owner, length = service.Task, len(prefix)
		}
	}
	return owner
}

// equalExceptIndexes reports whether two registrations are equal except in the indexes, which the registry sets.
func equalExceptIndexes(a, b *api.ServiceRegistration) bool {
	x, y := *a, *b
	x.CreateIndex, x.ModifyIndex, x.Tags = 0, 0, nil
	y.CreateIndex, y.ModifyIndex, y.Tags = 0, 0, nil
	return reflect.DeepEqual(x, y) && slices.Equal(a.Tags, b.Tags)
}

// StartChecks starts all services' checks. A check keeps an earlier agent's result until its first run has ended.
func (s *AllocServices) StartChecks() {
	s.checkChangesMu.Lock()
	defer s.checkChangesMu.Unlock()
	s.checksStarted = true
	s.replaceChecksIfStartedLocked()
}

// UpdateChecks changes the running checks to those in the allocation's current version. Unchanged checks continue. It does
// nothing before StartChecks and after StopChecks.
func (s *AllocServices) UpdateChecks() {
	s.checkChangesMu.Lock()
	defer s.checkChangesMu.Unlock()
	s.replaceChecksIfStartedLocked()
}

// StopChecks stops all checks and blocks until their goroutines have returned. With deleteResults it deletes
// their stored results. It may be called again.
func (s *AllocServices) StopChecks(deleteResults bool) {
	s.checkChangesMu.Lock()
	defer s.checkChangesMu.Unlock()
	s.checksStarted = false
	s.checker.stopAndWait(deleteResults)
}

// replaceChecksIfStartedLocked replaces the running checks with those in the allocation's current version, if checks are started.
func (s *AllocServices) replaceChecksIfStartedLocked() {
	if !s.checksStarted {
		return
	}
	spec := s.config.CurrentSpec()
	var targets []resolvedCheck
	envs := make(map[string]*taskenv.Env)
	for _, raw := range spec.Services {
		if len(raw.Checks) == 0 {
			continue
		}
		env := envs[raw.Task]
		if env == nil {
			env = s.config.CurrentEnv(raw.Task)
			envs[raw.Task] = env
		}
		service := raw.Interpolate(env)
		where := addressResolver{spec: spec, task: service.Task, serviceAddress: service.Address}
		if w := s.registeredWorkload(service.Task); w != nil {
			where.driverNetwork = w.taskNetwork
		}
		for _, check := range service.Checks {
			targets = append(targets, newResolvedCheck(where, &service, check))
		}
	}
	s.checker.startAndStopChecksToMatch(targets, s.isRegistered)
}

// CheckResults returns all checks' results, in a fixed order, and a channel that is closed when a result changes. started is
// false before StartChecks and after StopChecks.
func (s *AllocServices) CheckResults() (results []core.CheckResult, started bool, changed <-chan struct{}) {
	return s.checker.resultsSnapshot()
}

// CheckStatuses returns all checks' statuses, in a fixed order, and a channel that is closed when a status or an output changes,
// but not when a check only runs again with the same result.
func (s *AllocServices) CheckStatuses() (statuses []api.AllocCheckStatus, changed <-chan struct{}) {
	s.checker.mu.Lock()
	changed = s.checker.statusesChanged
	s.checker.mu.Unlock()
	results, _, _ := s.checker.resultsSnapshot()
	for _, r := range results {
		statuses = append(statuses, r.AllocCheckStatus)
	}
	return statuses, changed
}
