package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/launch"
	"github.com/nomad-lite/nomad-lite/plugins/process"
)

// Record is the data with which another supervisor reattaches a running plugin.
type Record struct {
	launch.ReattachConfig
	// Identity changes with the command line, the configuration and, for a script, the content
	// of the plugin: with everything that requires a new process and cannot be read from the
	// running process.
	Identity string
	// Serves is the driver or hook that the plugin serves. It is zero in records of earlier
	// builds.
	Serves PluginKey
}

// Records stores records for the next supervisor. A record is stored when the method returns.
// The supervisor chooses the keys. While Plugins fails, no plugin is started: a recorded
// process may run, and two processes of one driver must not have the same tasks.
type Records interface {
	Plugins() (map[string]Record, error)
	PutPlugin(key string, r Record) error
	DeletePlugin(key string) error
}

// reattachedPlugin is a plugin that an earlier supervisor has started.
type reattachedPlugin struct{ *launch.Plugin }

// key returns the key of a plugin in the records.
func key(e catalog.Entry) string {
	if e.Builtin {
		return "builtin " + e.Name
	}
	return e.Path
}

// identify returns the Identity that the plugin would have if it was started now. The
// executable is not part of it; see [launch.ReattachConfig.Runs].
func identify(e catalog.Entry, binary *catalog.Binary) (string, error) {
	what := struct {
		Argv   []string
		Config map[string]any
		Script string
	}{Argv: binary.Argv}
	if e.Block != nil {
		what.Config = e.Block.Config
	}
	if binary.Script {
		sum, err := binary.SHA256()
		if err != nil {
			return "", err
		}
		what.Script = sum
	}
	b, err := json.Marshal(what)
	if err != nil {
		return "", fmt.Errorf("describe plugin: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// hasRecord reports whether an earlier supervisor may have left the plugin running.
func (s *Supervisor) hasRecord(sl *managedPlugin) bool {
	if s.cfg.Records == nil {
		return false
	}
	records, err := s.cfg.Records.Plugins()
	rec, found := records[key(sl.entry)]
	if err != nil || !found {
		return err != nil
	}
	thisBoot, err := rec.ThisBoot()
	return err != nil || thisBoot
}

// takeOver reattaches the process that an earlier supervisor has started, if its executable
// and Identity are current. Otherwise it stops the process: the tasks continue, and the next
// process recovers them. It returns nil if the caller must start a process. After an error no
// other process may be started: the recorded one runs, and can be used later.
func (s *Supervisor) takeOver(ctx context.Context, e catalog.Entry, cfg launch.Config, binary *catalog.Binary, identity string) (*launch.Plugin, error) {
	records, err := s.cfg.Records.Plugins()
	if err != nil {
		return nil, fmt.Errorf("read the records of running plugins: %w", err)
	}
	rec, found := records[key(e)]
	if !found {
		return nil, nil
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	logger := s.logger.With("plugin", e.Name, "pid", rec.Pid)
	same := rec.Identity == identity
	if same && !binary.Script {
		if same, err = rec.Runs(binary.File); errors.Is(err, launch.ErrExhausted) {
			return nil, err
		} else if err != nil {
			logger.Debug("program of a running plugin is not known", "error", err)
		}
	}
	if !same {
		s.replacing.Lock()
		defer s.replacing.Unlock()
	}
	p, err := launch.Reattach(ctx, cfg, rec.ReattachConfig)
	switch {
	case errors.Is(err, launch.ErrProcessChanged):
		return nil, nil
	case errors.Is(err, launch.ErrExhausted):
		return nil, err
	case err != nil:
		logger.Warn("running plugin cannot be used, starting another", "error", err)
		return nil, nil
	case same:
		return p, nil
	case ctx.Err() != nil:
		p.Detach() // the next supervisor replaces the process
		return nil, context.Cause(ctx)
	}
	logger.Info("replacing a running plugin, which is another build or has another configuration")
	p.Stop(ctx)
	return nil, nil
}

// killOrphans kills the plugins of an earlier supervisor that are no longer in the catalog. A
// plugin with tasks continues, without this supervisor, until another plugin serves the same
// driver or hook. After one success further calls do nothing.
func (s *Supervisor) killOrphans() error {
	s.unwanted.Lock()
	defer s.unwanted.Unlock()
	if s.cfg.Records == nil || s.unwanted.ended {
		return nil
	}
	records, err := s.cfg.Records.Plugins()
	if err != nil {
		return fmt.Errorf("read the records of running plugins: %w", err)
	}
	for key, rec := range records {
		thisBoot, err := rec.ThisBoot()
		if err != nil {
			return fmt.Errorf("boot of the record of plugin %q: %w", key, err)
		}
		if !thisBoot {
			delete(records, key)
		}
	}
	s.unwanted.ended = true
	s.mu.Lock()
	for _, sl := range s.slots {
		delete(records, key(sl.entry))
	}
	s.mu.Unlock()
	for key, rec := range records {
		if s.cfg.Keep != nil && rec.Serves != (PluginKey{}) && rec.process().Alive() && s.cfg.Keep(rec.Serves, rec.Pid) {
			s.logger.Warn("plugin is not in the configuration any more and continues, because its tasks may run; configure it again to manage them",
				"plugin", key, "pid", rec.Pid, "serves", rec.Serves)
			s.mu.Lock()
			s.unmanaged[rec.Serves] = key
			s.mu.Unlock()
			continue
		}
		s.endRecorded(key, rec)
	}
	return nil
}

// endUnmanaged kills the plugin that killOrphans has left running, before another plugin
// serves the same driver or hook: two processes of one driver must not have the same tasks.
// After an error the plugin may still run.
func (s *Supervisor) endUnmanaged(served PluginKey) error {
	s.mu.Lock()
	key, found := s.unmanaged[served]
	s.mu.Unlock()
	if !found {
		return nil
	}
	records, err := s.cfg.Records.Plugins()
	if err != nil {
		return fmt.Errorf("read the record of running plugin %q: %w", key, err)
	}
	if rec, found := records[key]; found {
		s.endRecorded(key, rec)
	}
	s.mu.Lock()
	delete(s.unmanaged, served)
	s.mu.Unlock()
	return nil
}

func (s *Supervisor) endRecorded(key string, rec Record) {
	if rec.process().Signal(unix.SIGKILL) == nil {
		s.logger.Info("ended a plugin that is not wanted any more", "plugin", key, "pid", rec.Pid)
	}
	s.forget(key)
}

// process returns the process of the plugin. It is valid only if the record is of this boot.
func (r Record) process() process.ID {
	return process.ID{PID: r.Pid, StartTime: r.StartTime}
}

// leave stops or detaches a plugin when ctx has ended: when the supervisor stops, a plugin
// with tasks continues.
func (s *Supervisor) leave(ctx context.Context, sl *managedPlugin, inst instance) {
	s.mu.Lock()
	served, wanted := servedBy(sl.info), sl.retired == "" && !errors.Is(context.Cause(ctx), errDismissed)
	s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if s.cfg.Records != nil && s.cfg.Keep != nil && wanted && s.cfg.Keep(served, inst.PID()) {
		inst.Detach()
		return
	}
	s.end(ctx, sl, inst)
}

// end stops a plugin gracefully and deletes its record.
func (s *Supervisor) end(ctx context.Context, sl *managedPlugin, inst instance) {
	inst.Stop(ctx)
	if s.cfg.Records != nil {
		s.forget(key(sl.entry))
	}
}

func (s *Supervisor) forget(key string) {
	if err := s.cfg.Records.DeletePlugin(key); err != nil {
		s.logger.Warn("record of a plugin stays", "plugin", key, "error", err)
	}
}

// KnowsTasks reports whether the plugin of a driver has state about a task that was being
// started when the previous agent ended: the plugin is still the same process, or it is a
// builtin, which searches for running tasks.
func (s *Supervisor) KnowsTasks(driver string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.servedByLocked(driver)
	return sl != nil && (sl.entry.Builtin || sl.reattached && sl.inst != nil && !ended(sl.inst))
}

// FindsTasks reports whether a driver is a builtin, which searches for the processes of a task
// whose id is lost.
func (s *Supervisor) FindsTasks(driver string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.servedByLocked(driver)
	return sl != nil && sl.entry.Builtin
}

// servedByLocked returns the slot of a driver, also before its first process has reported the
// driver's name. It returns nil if there is none.
func (s *Supervisor) servedByLocked(driver string) *managedPlugin {
	if sl := s.owners[driverOf(driver)]; sl != nil {
		return sl
	}
	return s.candidateLocked(driverOf(driver))
}
