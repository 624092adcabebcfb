package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/builtins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobcheck"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// waitNeededPluginsReady waits until all plugins that the jobs may need are ready. These include plugins for which the
// supervisor's WaitBrieflyForFirstReports does not wait because they start slowly. The launch timeout of each plugin limits
// the wait.
func (r *foregroundRun) waitNeededPluginsReady(ctx context.Context) error {
	reported := false
	for {
		changed := r.agent.Supervisor().InfoChanged()
		slow := r.findUnreadyNeededPlugins()
		if len(slow) == 0 {
			return nil
		}
		if !reported {
			r.taskView.QueueMessage("waiting for plugin " + strings.Join(slow, ", "))
			reported = true
		}
		select {
		case <-changed:
		case <-r.signals:
			return fmt.Errorf("stopped while it waited for plugin %s: nothing has run", strings.Join(slow, ", "))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// findUnreadyNeededPlugins returns the names of the plugins that are not ready and that the jobs may need. A plugin may
// be needed if its name is that of a driver of the jobs, if it provides such a driver, or if it has not launched and a
// driver is missing. If a job requests devices, each device plugin and each plugin that has not launched may be needed.
func (r *foregroundRun) findUnreadyNeededPlugins() []string {
	wanted := driverNamesOfJobs(r.jobFiles)
	plugins := r.agent.Supervisor().Plugins()
	missing := slices.ContainsFunc(wanted, func(driver string) bool {
		return !slices.ContainsFunc(plugins, func(p supervisor.PluginStatus) bool {
			return p.Serves == supervisor.PluginKey{Type: base.TypeDriver, Name: driver}
		})
	})
	wantDevices := slices.ContainsFunc(r.jobFiles, (*jobfile.File).RequestsDevices)
	var slowNames []string
	for _, p := range plugins {
		if p.HasReportedOrFailed {
			continue
		}
		// A plugin that has launched provides its driver only after the driver's first fingerprint.
		provides := p.Serves.Type == base.TypeDriver && slices.Contains(wanted, p.Serves.Name)
		named := slices.Contains(wanted, strings.TrimPrefix(p.Name, catalog.DriverPrefix))
		mayHaveDevices := wantDevices && (p.Serves.Type == base.TypeDevice || p.Serves.Name == "")
		if provides || named || missing && p.Serves.Name == "" || mayHaveDevices {
			slowNames = append(slowNames, p.Name)
		}
	}
	return slowNames
}

// checkPluginsUsable rejects the jobs if a driver or hook that they need is missing, cannot be started, or rejects a
// job's configuration.
func (r *foregroundRun) checkPluginsUsable(ctx context.Context) error {
	wanted := driverNamesOfJobs(r.jobFiles)
	drivers := r.agent.Supervisor().DriverInfoByName()
	var pluginErrs []error
	for _, name := range wanted {
		if d, ok := drivers[name]; ok && !(d.Detected && d.Healthy) {
			pluginErrs = append(pluginErrs, fmt.Errorf("driver %q cannot be used: %s", name, d.Description))
		}
	}
	for _, p := range r.agent.Supervisor().Plugins() {
		if p.Err != nil && slices.Contains(wanted, strings.TrimPrefix(p.Name, catalog.DriverPrefix)) {
			pluginErrs = append(pluginErrs, p.Err)
		}
	}
	if len(pluginErrs) > 0 {
		return withNotStartedCode(errors.Join(pluginErrs...))
	}
	var hookErrs []error
	for _, f := range r.jobFiles {
		errs, err := r.checkAdmissionWithPlugins(ctx, f, r.streams)
		if err != nil {
			return err
		}
		hookErrs = append(hookErrs, errs...)
	}
	for _, p := range r.agent.Supervisor().Plugins() {
		if p.Err != nil && slices.Contains(hookNamesOfJobs(r.jobFiles), p.Name) && !slices.Contains(r.hooksAllowedToFail, p.Name) {
			pluginErrs = append(pluginErrs, fmt.Errorf("hook %q cannot be used: %w", p.Name, p.Err))
		}
	}
	if len(pluginErrs) > 0 {
		return withNotStartedCode(errors.Join(pluginErrs...))
	}
	jobcheck.PrintDistinctHookWarnings(r.streams, hookErrs)
	return nil
}

// checkAdmissionWithPlugins rejects a job whose drivers are missing, whose configuration a driver or hook rejects, or
// whose requirements the machine does not meet. hookErrs are the errors of hooks that could not be started.
func (r *foregroundRun) checkAdmissionWithPlugins(ctx context.Context, f *jobfile.File, s *cli.Streams) (hookErrs []error, err error) {
	names := slices.AppendSeq(builtins.DriverNames(), maps.Keys(r.agent.Supervisor().DriverInfoByName()))
	node := jobcheck.NewAdmissionNode(ctx, f, r.agent, names, s)
	answer := f.CanonicalizeAndCheckAdmission(ctx, node, r.jobReader.admissionFlags())
	if good, err := f.PrintAdmissionAnswer(s, f.HeadingForUnplacedGroups(), &answer); err != nil || !good {
		return nil, errors.Join(errNotStarted, err)
	}
	var warnings []string
	for _, w := range model.CSIVolumeFaults(f.Job, node.Features.HasCSIVolume) { // jobReader has printed the others
		warnings = append(warnings, w.Text)
	}
	return node.HookCheckErrors, f.PrintAPIWarningsWithPositions(s.Err, model.FormatWarnings(warnings))
}

func driverNamesOfJobs(files []*jobfile.File) []string {
	return sortedUniqueNames(files, (*jobfile.File).DriverNames)
}

func hookNamesOfJobs(files []*jobfile.File) []string {
	return sortedUniqueNames(files, jobcheck.HookNamesNeededByJob)
}

func sortedUniqueNames(files []*jobfile.File, namesOf func(*jobfile.File) []string) []string {
	var names []string
	for _, f := range files {
		names = append(names, namesOf(f)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
