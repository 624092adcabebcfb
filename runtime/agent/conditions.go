package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// conditionFacts reads the facts about an agent and its machine from which its conditions are found.
type conditionFacts struct {
	conditionSources
	unit           string
	agentCommand   []string
	agentDir       string
	clockSteppedAt atomic.Pointer[time.Time]

	keeper           osprocess.ID // keeper found by the last read; the zero value before the first one
	keeperReplacedAt time.Time
}

// conditionSources is where the facts come from.
type conditionSources struct {
	dataDir       string
	store         *store.Store
	helpers       *helperProcesses
	plugins       *supervisor.Supervisor
	nodeID        string
	orphanCleaner *orphans.Cleaner
	serverAddrs   func() []string                 // a cluster's known servers; nil if the agent schedules for itself
	certificates  func() []conditions.Certificate // may be nil
}

func newConditionFacts(s conditionSources) *conditionFacts {
	c := &conditionFacts{conditionSources: s}
	for _, arg := range os.Args {
		c.agentCommand = append(c.agentCommand, shellquote.QuoteIfNeeded(arg))
	}
	c.agentDir, _ = os.Getwd() // "" if it was removed
	own, err := osprocess.OwnCgroup()
	if err != nil || strings.Contains(own, "/user@") { // systemctl would need the user's session
		return c
	}
	for _, name := range strings.Split(own, "/") {
		if strings.HasSuffix(name, ".service") {
			c.unit = name
		}
	}
	return c
}

// read is called by one goroutine at a time.
func (c *conditionFacts) read() conditions.Facts {
	f := conditions.Facts{
		Now: time.Now(), DataDir: c.dataDir, PID: os.Getpid(), Unit: c.unit, AgentCommand: c.agentCommand, AgentDir: c.agentDir,
		NoKnownServers: c.serverAddrs != nil && len(c.serverAddrs()) == 0,
		SpaceErr:       c.store.CheckFreeSpaceForNewObjects(),
		InodesErr:      c.store.CheckFreeInodesForNewObjects(),
		StateWriteErr:  c.store.LastWriteErr(),
		OutputLossErr:  c.helpers.logCollector.Losses().Err(),
		Processes:      conditions.MachineProcesses(),
	}
	if fs := (unix.Statfs_t{}); f.SpaceErr != nil && unix.Statfs(c.dataDir, &fs) == nil {
		f.Disk = conditions.Use{Used: (fs.Blocks - fs.Bavail) * uint64(fs.Bsize), Limit: fs.Blocks * uint64(fs.Bsize)}
	}
	if f.SpaceErr != nil || f.InodesErr != nil {
		f.ForeignFiles = datadirectory.ForeignFiles(c.dataDir)
	}
	if m := hoststats.Memory(); m.Total > 0 {
		f.Memory = conditions.Use{Used: m.Total - m.Available, Limit: m.Total}
	}
	if c.certificates != nil {
		f.Certificates = c.certificates()
	}
	f.DamagedFiles, f.DamagedAt = c.store.KeptDamagedFiles()
	for _, damage := range c.store.Damage() {
		if !filepath.IsAbs(damage.KeptIn) { // the list of kept files has the others
			f.DamageCount++
		}
	}
	if at := c.clockSteppedAt.Load(); at != nil {
		f.ClockSteppedAt = *at
	}
	if k := c.helpers.keeper.Status().KeeperProcess; k != c.keeper {
		if c.keeper != (osprocess.ID{}) {
			c.keeperReplacedAt = f.Now
		}
		c.keeper = k
	}
	f.KeeperReplacedAt = c.keeperReplacedAt
	c.addPlugins(&f)
	c.addStateFacts(&f)
	return f
}

// addPlugins adds the plugins without a process.
func (c *conditionFacts) addPlugins(f *conditions.Facts) {
	for _, p := range c.plugins.Plugins() {
		if p.Err != nil && p.PID == 0 && !p.Idle && p.SupersededBy == "" {
			err := p.Err
			if named := fmt.Sprintf("plugin %q (%s): ", p.Name, p.Path); strings.HasPrefix(err.Error(), named) {
				err = errors.New(strings.TrimPrefix(err.Error(), named))
			}
			f.Plugins = append(f.Plugins, conditions.Plugin{Name: p.Name, Path: p.Path, Err: err, At: p.LastExitAt})
		}
	}
}

// addStateFacts adds the facts in the state: about the node, its tasks and the unknown allocations.
func (c *conditionFacts) addStateFacts(f *conditions.Facts) {
	s := c.store.Snapshot()
	config := s.SchedulerConfig(nil)
	f.EvaluationsPaused, f.JobsRejected = config.PauseEvalBroker, config.RejectJobRegistration
	node := s.Node(nil, c.nodeID)
	if node == nil {
		f.NodeNotReady = true
		return
	}
	f.NodeNotReady = node.Status != api.NodeStatusReady
	isDown := func(driver string) bool {
		return slices.ContainsFunc(f.Plugins, func(p conditions.Plugin) bool { return p.Name == driver })
	}
	for name, driver := range node.Drivers {
		if driver != nil && driver.Detected && !driver.Healthy && !isDown(name) {
			f.Drivers = append(f.Drivers, conditions.Driver{Name: name, Reason: driver.HealthDescription})
		}
	}
	slices.SortFunc(f.Drivers, func(a, b conditions.Driver) int { return strings.Compare(a.Name, b.Name) })
	tasks := 0
	for _, alloc := range s.WithoutEndedEvents().AllocationsByNode(nil, node.ID) {
		if alloc.ClientTerminalStatus() {
			continue
		}
		for _, task := range alloc.TaskStates {
			if task.State != model.TaskDead {
				tasks++
			}
		}
	}
	f.Descriptors = c.descriptorUse(tasks, node.Attributes[descriptors.AttributeDescriptors])
	for id, alloc := range c.orphanCleaner.RunningUnknownAllocs() {
		f.UnknownAllocs = append(f.UnknownAllocs, conditions.UnknownAlloc{ID: id, JobID: alloc.JobID, IsInstance: alloc.IsInstance})
	}
	slices.SortFunc(f.UnknownAllocs, func(a, b conditions.UnknownAlloc) int { return strings.Compare(a.ID, b.ID) })
}

// descriptorUse returns the agent's open files and its limit, or the tasks' descriptors and their limit: whichever is nearer to
// its limit.
func (c *conditionFacts) descriptorUse(tasks int, attribute string) conditions.Use {
	own := conditions.OpenFiles(os.Getpid())
	own.Of = fmt.Sprintf("%d of %d are open", own.Used, own.Limit)
	var forTasks conditions.Use
	if limit, err := strconv.ParseUint(attribute, 10, 64); err == nil {
		forTasks.Used, forTasks.Limit = uint64(tasks*descriptors.PerTask), limit-limit%descriptors.PerTask
		forTasks.Of = fmt.Sprintf("they suffice for %d tasks, and %d run", limit/descriptors.PerTask, tasks)
	}
	if forTasks.Limit > 0 && forTasks.Used*own.Limit > own.Used*forTasks.Limit {
		return forTasks
	}
	return own
}

// conditionReporter logs conditions when they begin and end, and adds an event to the node for each.
type conditionReporter struct {
	store    *store.Store
	nodeID   string
	logger   hclog.Logger
	unstored []string // messages of unstored events
}

// report is called by one goroutine. It retries unstored events; the first success also ends the condition StateNotWritten.
func (r *conditionReporter) report(ctx context.Context, begun, ended []conditions.Condition) {
	for _, c := range begun {
		r.logger.Warn("condition begun", "condition", c.Kind, "summary", c.Summary, "remedy", c.Remedy, "commands", c.Commands)
		r.unstored = append(r.unstored, c.Kind+": "+c.Summary+". "+c.Remedy)
	}
	for _, c := range ended {
		r.logger.Info("condition ended", "condition", c.Kind, "object", c.Object)
		r.unstored = append(r.unstored, c.Kind+" has ended: "+c.Summary)
	}
	r.unstored = r.unstored[max(0, len(r.unstored)-model.MaxNodeEvents):] // the node would drop older ones
	for len(r.unstored) > 0 {
		if err := localnode.AddNodeEvent(ctx, r.store, r.nodeID, "Condition", r.unstored[0]); err != nil {
			r.logger.Debug("event of the node not stored, is tried again", "event", r.unstored[0], "error", err)
			return
		}
		r.unstored = r.unstored[1:]
	}
}
