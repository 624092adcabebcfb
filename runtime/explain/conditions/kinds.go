package conditions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/duration"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
)

// finding is one existing condition.
type finding struct {
	object, summary, remedy string
	commands                []string
	since                   time.Time // zero: since the first look that found it
}

// kinds is the table of all condition kinds, errors first. find returns the kind's existing conditions, nil if there are none.
var kinds = [...]struct {
	name     string
	severity Severity
	part     Part
	find     func(Facts) []finding
}{
	{"NodeNotReady", Error, Client, findNodeNotReady},
	{"NoServers", Error, Client, findNoServers},
	{"DiskFull", Error, Server, findDiskFull},
	{"NoInodes", Error, Server, findNoInodes},
	{"StateNotWritten", Error, Server, findStateNotWritten},
	{"OutputLost", Error, Client, findOutputLost},
	{"DescriptorsExhausted", Error, Client, findDescriptorsExhausted},
	{"ProcessesExhausted", Error, Client, findProcessesExhausted},
	{"CertificateExpired", Error, Server, findCertificateExpired},
	{"PluginDown", Warning, Client, findPluginDown},
	{"DriverUnhealthy", Warning, Client, findDriverUnhealthy},
	{"UnknownTasks", Warning, Client, findUnknownTasks}, // settled before the jobs are registered again
	{"RecordsDamaged", Warning, Server, findRecordsDamaged},
	{"EvaluationsPaused", Warning, Server, findEvaluationsPaused},
	{"JobsRejected", Warning, Server, findJobsRejected},
	{"KeeperReplaced", Warning, Client, findKeeperReplaced},
	{"MemoryLow", Warning, Client, findMemoryLow},
	{"CertificateExpiring", Warning, Server, findCertificateExpiring},
	{"ClockStepped", Warning, Client, findClockStepped},
}

// Kinds returns all kinds' names and severities, in table order.
func Kinds() (all []Condition) {
	for _, k := range kinds {
		all = append(all, Condition{Kind: k.name, Severity: k.severity, Part: k.part})
	}
	return all
}

// Find returns the conditions shown by the facts, in table order. Since is zero if the facts do not have a condition's start.
func Find(f Facts) []Condition {
	all := []Condition{}
	for _, k := range kinds {
		for _, found := range k.find(f) {
			all = append(all, Condition{
				Kind: k.name, Severity: k.severity, Part: k.part,
				Object: found.object, Summary: found.summary, Remedy: found.remedy, Commands: found.commands, Since: found.since,
			})
		}
	}
	return all
}

const (
	// eventDuration is how long an event, such as a clock step, is a condition.
	eventDuration = time.Hour

	// nearLimitPercent is the resource use above which new tasks are at risk.
	nearLimitPercent = 95

	// expiryWarning is how long before its end a certificate is a condition. A certificate valid for less than three times as long
	// is a condition in the last third of its validity.
	expiryWarning = 21 * 24 * time.Hour
)

func findNodeNotReady(f Facts) []finding {
	if !f.NodeNotReady {
		return nil
	}
	return []finding{{
		summary: "The node is not ready, so no task starts",
		remedy:  "This lasts some seconds at a start of the agent. If it lasts longer, the log of the agent has the cause", commands: f.logCommands(),
	}}
}

func findNoServers(f Facts) []finding {
	if !f.NoKnownServers {
		return nil
	}
	return []finding{{
		summary: "The node knows no server of its cluster. Its tasks continue",
		remedy:  "Set client.servers in the configuration of the agent to servers that can be reached from here, and reload it", commands: []string{f.reloadCommand()},
	}}
}

func findDiskFull(f Facts) []finding {
	if f.SpaceErr == nil {
		return nil
	}
	return []finding{{
		summary: fmt.Sprintf("The disk of %s is full: %d MiB of %d MiB are free. New jobs and variables are rejected; running tasks continue",
			f.DataDir, (f.Disk.Limit-f.Disk.Used)>>20, f.Disk.Limit>>20),
		remedy:   "Free at least 2 MiB on this disk: the agent then continues by itself. " + f.remedyForFilesInDataDir(),
		commands: []string{"nomad-lite system gc  # removes what ended jobs have left", f.diskCommand("df -h"), "du -axh --max-depth=3 " + f.mountPoint() + " | sort -h | tail"},
	}}
}

// remedyForFilesInDataDir says which files in the data directory can be removed.
func (f Facts) remedyForFilesInDataDir() string {
	removable := "remove nothing by hand"
	if n := len(f.ForeignFiles); n > 0 {
		const maxNames = 3
		removable = "the following is not the agent's, and can be removed if nothing else needs it: " + strings.Join(f.ForeignFiles[:min(n, maxNames)], ", ")
		if n > maxNames {
			removable += fmt.Sprintf(" and %d more", n-maxNames)
		}
	}
	return fmt.Sprintf("In %s, %s. If a job fills its directory in %s/alloc, stop the job (nomad-lite job stop NAME): the next system gc deletes its files", f.DataDir, removable, f.DataDir)
}

func findNoInodes(f Facts) []finding {
	if f.InodesErr == nil {
		return nil
	}
	return []finding{{
		summary:  fmt.Sprintf("The disk of %s has no free inodes, so no file can be made. New jobs and variables are rejected; running tasks continue", f.DataDir),
		remedy:   "Remove at least 64 files from this disk: the agent then continues by itself. " + f.remedyForFilesInDataDir(),
		commands: []string{"nomad-lite system gc  # removes what ended jobs have left", f.diskCommand("df -i"), "du --inodes -x --max-depth=3 " + f.mountPoint() + " | sort -n | tail"},
	}}
}

func findStateNotWritten(f Facts) []finding {
	if f.StateWriteErr == nil || f.SpaceErr != nil || f.InodesErr != nil { // the full disk is the cause
		return nil
	}
	return []finding{{
		summary:  fmt.Sprintf("The state of the agent cannot be written: %v. Changes are rejected; running tasks continue", f.StateWriteErr),
		remedy:   "Repair the disk, or put the file back if another one has its place: the agent then continues by itself",
		commands: []string{f.diskCommand("findmnt -T"), "dmesg | tail -n 50"},
	}}
}

func findOutputLost(f Facts) []finding {
	if f.OutputLossErr == nil {
		return nil
	}
	found := finding{
		summary:  fmt.Sprintf("Output of tasks is lost, because it cannot be written: %v", f.OutputLossErr),
		remedy:   "Free space for the log files: output is written again by itself",
		commands: []string{f.diskCommand("df -h"), "nomad-lite alloc status ID  # has the number of lost bytes"},
	}
	if f.SpaceErr != nil {
		found.remedy, found.commands = "When the disk has space, new output is written, and this message ends; what is lost stays lost", found.commands[1:]
	}
	return []finding{found}
}

func findDescriptorsExhausted(f Facts) []finding {
	if !f.Descriptors.isAbove(nearLimitPercent) {
		return nil
	}
	found := finding{
		summary:  fmt.Sprintf("The agent has too few file descriptors (%s): new tasks wait; running tasks continue", f.Descriptors.Of),
		remedy:   "Raise the limit of open files and restart the agent, which ends no task",
		commands: f.startCommands("ulimit -n 65536  # for this shell; only root can exceed the hard limit", ""),
	}
	if f.Unit != "" {
		found.commands = []string{fmt.Sprintf("systemctl edit %s  # [Service] LimitNOFILE=65536", f.Unit), "systemctl restart " + f.Unit}
	}
	return []finding{found}
}

func findProcessesExhausted(f Facts) []finding {
	if !f.Processes.isAbove(nearLimitPercent) {
		return nil
	}
	limit := f.Processes.Of
	found := finding{
		summary: fmt.Sprintf("%d of the %d processes and threads that %s permits are in use. When none is left, tasks and commands fail", f.Processes.Used, f.Processes.Limit, limit),
		remedy:  "Raise the limit first, because commands need processes, too. The last line of ps is then the program that has the most, with its cgroup: if the cgroup has the id of an allocation, stop its job; otherwise kill the program",
	}
	raise := fmt.Sprintf("echo %d >%s  # as root, until the next boot", 2*f.Processes.Limit, limit)
	if f.Unit != "" && strings.HasSuffix(limit, "/"+f.Unit+"/pids.max") {
		raise = fmt.Sprintf("systemctl set-property %s TasksMax=%d", f.Unit, 2*f.Processes.Limit)
	}
	found.commands = []string{raise, "ps -eLo comm,cgroup --no-headers | sort | uniq -c | sort -n | tail", "nomad-lite alloc status ALLOCATION", "nomad-lite job stop JOB", "pkill -x PROGRAM"}
	return []finding{found}
}

func findPluginDown(f Facts) (found []finding) {
	for _, p := range f.Plugins {
		name := shellquote.QuoteIfNeeded(p.Name)
		found = append(found, finding{
			object: p.Name, since: p.At,
			summary:  fmt.Sprintf("Plugin %s does not run: %v. Its tasks continue; new ones wait", strings.TrimSpace(p.Name+" "+p.Path), p.Err),
			remedy:   "Remove the cause, then restart the plugin, which ends no task. The agent also tries again by itself, within two minutes",
			commands: []string{"nomad-lite plugin status " + name, "nomad-lite plugin restart " + name},
		})
	}
	return found
}

func findDriverUnhealthy(f Facts) (found []finding) {
	for _, d := range f.Drivers {
		found = append(found, finding{
			object:   d.Name,
			summary:  fmt.Sprintf("Driver %s is not healthy: %s. Its tasks continue; new ones wait", d.Name, cmp.Or(d.Reason, "it reports no reason")),
			remedy:   "Repair what the driver needs, such as its daemon: the driver then continues by itself",
			commands: []string{"nomad-lite plugin status " + shellquote.QuoteIfNeeded(d.Name)},
		})
	}
	return found
}

func findUnknownTasks(f Facts) []finding {
	if len(f.UnknownAllocs) == 0 {
		return nil
	}
	const maxNames = 3
	names := make([]string, 0, maxNames)
	for _, u := range f.UnknownAllocs[:min(len(f.UnknownAllocs), maxNames)] {
		name := "allocation " + u.ID
		if u.JobID != "" {
			name += fmt.Sprintf(" of job %q", u.JobID)
		}
		names = append(names, name)
	}
	all := strings.Join(names, ", ")
	if more := len(f.UnknownAllocs) - maxNames; more > 0 {
		all += fmt.Sprintf(" and %d more", more)
	}
	found := finding{
		summary: "Tasks run whose records the agent has lost: " + all + ". They continue, and no command reaches them",
		remedy: "Register no job before you have decided, for all of them together: -adopt-unknown keeps them and restores their jobs, so that nothing has to be registered; " +
			"-end-unknown ends them. Start the agent once with the flag, until it prints that it is ready, and then as before. A stop of the agent ends no task",
	}
	flag := " -adopt-unknown  # or -end-unknown; then Ctrl-C"
	if !slices.ContainsFunc(f.UnknownAllocs, func(u UnknownAlloc) bool { return !u.IsInstance }) {
		found.summary = "Tasks run whose records the agent has lost: " + all + ". No driver can adopt them. They continue, no command reaches them, and each counts as an instance of its job until it ends"
		found.remedy = "End their processes, or start the agent once with -end-unknown, until it prints that it is ready, and then as before: their jobs get replacements. A stop of the agent ends no task"
		flag = " -end-unknown  # then Ctrl-C"
	}
	if f.Unit != "" {
		found.commands = []string{"systemctl stop " + f.Unit, strings.Join(f.AgentCommand, " ") + flag, "systemctl start " + f.Unit}
	} else {
		found.commands = append(f.startCommands("", flag), strings.Join(f.AgentCommand, " "))
	}
	return []finding{found}
}

// unknownTasksFirst starts the remedies by findRecordsDamaged, because findUnknownTasks forbids to register a job before.
const unknownTasksFirst = "If another message says that tasks run whose records are lost, follow that one first. "

func findRecordsDamaged(f Facts) []finding {
	if len(f.DamagedFiles)+f.DamageCount == 0 {
		return nil
	}
	found := finding{
		summary: fmt.Sprintf("%d records of the state file were damaged. Jobs and variables of them are lost", f.DamageCount),
		remedy:  unknownTasksFirst + "Compare what is left with your job files, register what is missing, and restart the agent",
		commands: []string{"nomad-lite job status -namespace '*'", "nomad-lite var list -namespace '*'", "nomad-lite job run FILE  # for each job that is missing",
			"nomad-lite var put PATH KEY=VALUE  # for each variable that is missing"},
	}
	if n := len(f.DamagedFiles); n > 0 {
		files := make([]string, n)
		for i, file := range f.DamagedFiles {
			files[i] = shellquote.QuoteIfNeeded(file)
		}
		found.summary = fmt.Sprintf("The state file was found damaged at %s. Jobs and variables that could not be read are lost; tasks of lost jobs continue", f.DamagedAt.Format(time.RFC3339))
		found.remedy = unknownTasksFirst + "Compare what is left with your job files, and register what is missing. Then move the damaged file away, which ends this message"
		found.commands = append(found.commands, fmt.Sprintf("mv %s ~/", strings.Join(files, " ")))
	}
	return []finding{found}
}

func findEvaluationsPaused(f Facts) []finding {
	if !f.EvaluationsPaused {
		return nil
	}
	return []finding{{
		summary:  "The processing of evaluations is paused: registered jobs wait, and stopped ones continue. Tasks that exit restart as before",
		remedy:   "End the pause when its reason is gone: what has waited is then done at once",
		commands: []string{"nomad-lite operator scheduler set-config -pause-eval-broker=false"},
	}}
}

func findJobsRejected(f Facts) []finding {
	if !f.JobsRejected {
		return nil
	}
	return []finding{{
		summary:  "The scheduler configuration rejects each job that is registered, dispatched, scaled or reverted",
		remedy:   "Accept jobs again when the reason is gone",
		commands: []string{"nomad-lite operator scheduler set-config -reject-job-registration=false"},
	}}
}

func findKeeperReplaced(f Facts) []finding {
	if !isRecent(f.KeeperReplacedAt, f.Now) {
		return nil
	}
	return []finding{{
		since: f.KeeperReplacedAt,
		summary: fmt.Sprintf("The keeper, the helper process that collects the exit statuses of tasks, has ended at %s and was replaced. Tasks continue; "+
			"a task that ended in that moment can have an unknown exit status", f.KeeperReplacedAt.Format(time.RFC3339)),
		remedy:   "Nothing has to be done. The kernel or a user has killed it, or it has failed. This message is shown for an hour",
		commands: append([]string{"journalctl -k --since -2h | grep -iE 'oom|killed process'  # whether the kernel has killed it"}, f.logCommands()...),
	}}
}

func findMemoryLow(f Facts) []finding {
	if !f.Memory.isAbove(nearLimitPercent) {
		return nil
	}
	return []finding{{
		summary:  fmt.Sprintf("The machine has %d MiB of %d MiB of memory available. When none is left, the kernel kills tasks", (f.Memory.Limit-f.Memory.Used)>>20, f.Memory.Limit>>20),
		remedy:   fmt.Sprintf("End what uses too much, remove large files from file systems in memory, or give tasks lower memory limits, until %d MiB are available", f.Memory.Limit*(100-nearLimitPercent)/100>>20),
		commands: []string{"nomad-lite top", "ps aux --sort=-rss | head", "df -h -t tmpfs  # file systems in memory"},
	}}
}

func findClockStepped(f Facts) []finding {
	if !isRecent(f.ClockSteppedAt, f.Now) {
		return nil
	}
	return []finding{{
		since:    f.ClockSteppedAt,
		summary:  "The clock of the machine was set, or the machine was suspended. Times before and after it cannot be compared; periodic jobs follow the new time",
		remedy:   "If the time is right, nothing has to be done; if it is wrong, correct it. This message is shown for an hour",
		commands: []string{"timedatectl", "timedatectl set-ntp true  # if it is wrong"},
	}}
}

func findCertificateExpired(f Facts) (found []finding) {
	for _, c := range f.Certificates {
		if f.Now.Before(c.Leaf.NotBefore) || f.Now.After(c.Leaf.NotAfter) {
			found = append(found, f.certificateFinding(c, fmt.Sprintf("is valid from %s to %s, and not now: connections of commands, browsers and programs over TLS fail",
				c.Leaf.NotBefore.Format(time.RFC3339), c.Leaf.NotAfter.Format(time.RFC3339))))
		}
	}
	return found
}

func findCertificateExpiring(f Facts) (found []finding) {
	for _, c := range f.Certificates {
		left := c.Leaf.NotAfter.Sub(f.Now)
		if left >= 0 && !f.Now.Before(c.Leaf.NotBefore) && left < min(expiryWarning, c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)/3) {
			found = append(found, f.certificateFinding(c, fmt.Sprintf("expires in %s, at %s: connections of commands, browsers and programs over TLS then fail",
				duration.Format(left), c.Leaf.NotAfter.Format(time.RFC3339))))
		}
	}
	return found
}

func (f Facts) certificateFinding(c Certificate, state string) finding {
	return finding{
		object: c.File, summary: fmt.Sprintf("The certificate %s of the agent %s", c.File, state),
		remedy: fmt.Sprintf("Replace the file with a new certificate, and %s with its key, then reload the agent, which ends no task", c.KeyFile), commands: []string{f.reloadCommand()},
	}
}

// logCommands, startCommands, reloadCommand, diskCommand and mountPoint return commands or command parts for this agent.
func (f Facts) logCommands() []string {
	if f.Unit == "" {
		return nil // only the operator knows where its log is
	}
	return []string{fmt.Sprintf("journalctl -u %s --since -2h", f.Unit)}
}

// startCommands are for an agent without a unit. before is a command before the start, or "".
func (f Facts) startCommands(before, flags string) []string {
	commands := []string{fmt.Sprintf("kill -INT %d  # stops the agent, and no task; wait until it has ended", f.PID), "cd " + shellquote.QuoteIfNeeded(f.AgentDir)}
	if before != "" {
		commands = append(commands, before)
	}
	return append(commands, strings.Join(f.AgentCommand, " ")+flags)
}

func (f Facts) reloadCommand() string {
	if f.Unit == "" {
		return fmt.Sprintf("kill -HUP %d", f.PID)
	}
	return "systemctl reload " + f.Unit
}

func (f Facts) diskCommand(program string) string {
	return program + " " + shellquote.QuoteIfNeeded(f.DataDir)
}

func (f Facts) mountPoint() string {
	return fmt.Sprintf(`"$(%s)"`, f.diskCommand("findmnt -n -o TARGET -T"))
}

// isRecent reports whether an event is still a condition. A clock that was set back can make an event later than now.
func isRecent(event, now time.Time) bool {
	return !event.IsZero() && now.Sub(event).Abs() < eventDuration
}
