package conditions

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/shellquote"
)

// finding is one condition of a kind.
type finding struct {
	object, summary, remedy string
	since                   time.Time // zero: since the first look that finds it
}

// kinds is the table of all kinds of conditions, errors first. find returns the conditions of a kind that exist, and nil if there are none.
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
	{"RecordsDamaged", Warning, Server, findRecordsDamaged},
	{"UnknownTasks", Warning, Client, findUnknownTasks},
	{"KeeperReplaced", Warning, Client, findKeeperReplaced},
	{"MemoryLow", Warning, Client, findMemoryLow},
	{"CertificateExpiring", Warning, Server, findCertificateExpiring},
	{"ClockStepped", Warning, Client, findClockStepped},
}

// Kinds returns the names and severities of all kinds, in the order of the table.
func Kinds() (all []Condition) {
	for _, k := range kinds {
		all = append(all, Condition{Kind: k.name, Severity: k.severity, Part: k.part})
	}
	return all
}

// Find returns the conditions that the facts show, in the order of the table. Since is zero for a condition whose start the facts do not
// have.
func Find(f Facts) []Condition {
	all := []Condition{}
	for _, k := range kinds {
		for _, found := range k.find(f) {
			all = append(all, Condition{
				Kind: k.name, Severity: k.severity, Part: k.part,
				Object: found.object, Summary: found.summary, Remedy: found.remedy, Since: found.since,
			})
		}
	}
	return all
}

const (
	// eventDuration is how long an event, such as a step of the clock, is a condition.
	eventDuration = time.Hour

	// These are the uses of limited resources from which new tasks are at risk. Programs leave less memory free than processes.
	nearLimitPercent   = 90
	memoryLimitPercent = 95

	// expiryWarning is how long before its end a certificate is a condition. A certificate that is valid for less than three times as long
	// is one in the last third of its time.
	expiryWarning = 21 * 24 * time.Hour
)

func one(summary, remedy string) []finding { return []finding{{summary: summary, remedy: remedy}} }

func findNodeNotReady(f Facts) []finding {
	if !f.NodeNotReady {
		return nil
	}
	return one("The node is not ready, so no task starts", "If this lasts for more than a minute, look for the cause in the log of the agent")
}

func findNoServers(f Facts) []finding {
	if !f.NoKnownServers {
		return nil
	}
	return one("The node knows no server of its cluster; its tasks continue", "Check client.servers in the configuration, and that the servers can be reached from here")
}

func findDiskFull(f Facts) []finding {
	if f.SpaceErr == nil {
		return nil
	}
	return one(withoutENOSPC(f.SpaceErr)+", so new jobs and variables are rejected; running tasks continue",
		fmt.Sprintf("Remove what is not needed: nomad-lite system gc, then look with du -xsh %s/* and nomad-lite job stop -purge JOB", shellquote.QuoteIfNeeded(f.DataDir)))
}

func findNoInodes(f Facts) []finding {
	if f.InodesErr == nil {
		return nil
	}
	return one(withoutENOSPC(f.InodesErr)+", so new jobs and variables are rejected; running tasks continue",
		fmt.Sprintf("Remove files: nomad-lite system gc, then look with du --inodes -xs %s/*", shellquote.QuoteIfNeeded(f.DataDir)))
}

func findStateNotWritten(f Facts) []finding {
	if f.StateWriteErr == nil {
		return nil
	}
	return one(fmt.Sprintf("The state cannot be written: %v. Changes are rejected, running tasks continue", f.StateWriteErr),
		fmt.Sprintf("Look at the disk with findmnt -T %s and dmesg; when it can be written, the agent continues by itself", shellquote.QuoteIfNeeded(f.DataDir)))
}

func findOutputLost(f Facts) []finding {
	if f.OutputLossErr == nil {
		return nil
	}
	return one(upperFirst(f.OutputLossErr.Error()),
		fmt.Sprintf("Free space for the log files: df -h %s, nomad-lite system gc. The events of the tasks have the number of lost bytes", shellquote.QuoteIfNeeded(f.DataDir)))
}

func findDescriptorsExhausted(f Facts) []finding {
	if !f.Descriptors.isAbove(nearLimitPercent) {
		return nil
	}
	return one(fmt.Sprintf("Open files run out: %d of %d are in use %s. When none is left, new tasks wait", f.Descriptors.Used, f.Descriptors.Limit, f.Descriptors.Of),
		"Raise LimitNOFILE= in the unit of the agent (without systemd: ulimit -Hn), and restart the agent: tasks continue. Or stop a job")
}

func findProcessesExhausted(f Facts) []finding {
	if !f.Processes.isAbove(nearLimitPercent) {
		return nil
	}
	return one(fmt.Sprintf("Processes run out: %d of %d are in use (the limit is %s). When none is left, tasks and commands fail", f.Processes.Used, f.Processes.Limit, f.Processes.Of),
		"Find who has them: ps -eo user,comm --no-headers | sort | uniq -c | sort -n | tail. Stop that, or raise the limit: TasksMax= in the unit of the agent if the limit is that of its service")
}

func findPluginDown(f Facts) (found []finding) {
	for _, p := range f.Plugins {
		found = append(found, finding{
			object: p.Name, since: p.At,
			summary: fmt.Sprintf("Plugin %s does not run: %v. Its tasks continue, and new ones wait", p.Name, p.Err),
			remedy:  fmt.Sprintf("The agent tries again by itself. See nomad-lite plugin status %[1]s; after a change of the plugin: nomad-lite plugin restart %[1]s", shellquote.QuoteIfNeeded(p.Name)),
		})
	}
	return found
}

func findDriverUnhealthy(f Facts) (found []finding) {
	for _, d := range f.Drivers {
		found = append(found, finding{
			object:  d.Name,
			summary: fmt.Sprintf("Driver %s is not healthy: %s. Its tasks continue, and new ones wait", d.Name, cmp.Or(d.Reason, "it gives no reason")),
			remedy:  fmt.Sprintf("Repair what the driver needs, such as its daemon: it is ready again by itself. See nomad-lite node status -self -verbose and nomad-lite plugin status %s", shellquote.QuoteIfNeeded(d.Name)),
		})
	}
	return found
}

func findRecordsDamaged(f Facts) []finding {
	if len(f.DamagedFiles) > 0 {
		newest := f.DamagedFiles[len(f.DamagedFiles)-1]
		quotedFiles := make([]string, len(f.DamagedFiles))
		for i, file := range f.DamagedFiles {
			quotedFiles[i] = shellquote.QuoteIfNeeded(file)
		}
		return one(fmt.Sprintf("The state file was damaged, and the agent has kept the damaged file as %s: jobs or variables in it may be lost", newest),
			fmt.Sprintf("Compare nomad-lite job status and nomad-lite var list with your files, and register what is missing. Then: rm %s", strings.Join(quotedFiles, " ")))
	}
	if f.DamageCount > 0 {
		return one(fmt.Sprintf("%d records of the state were damaged: jobs or variables may be lost", f.DamageCount),
			"Compare nomad-lite job status and nomad-lite var list with your files, and register what is missing. Then restart the agent")
	}
	return nil
}

func findUnknownTasks(f Facts) []finding {
	if len(f.UnknownAllocIDs) == 0 {
		return nil
	}
	const maxIDs = 3
	ids := strings.Join(f.UnknownAllocIDs[:min(len(f.UnknownAllocIDs), maxIDs)], ", ")
	if more := len(f.UnknownAllocIDs) - maxIDs; more > 0 {
		ids += fmt.Sprintf(" and %d more", more)
	}
	return one("Tasks run whose allocations the state has lost: "+ids,
		"Stop the agent, and start it once with its own flags and -adopt-unknown, which makes them allocations again, or -end-unknown, which ends them")
}

func findKeeperReplaced(f Facts) []finding {
	if !isRecent(f.KeeperReplacedAt, f.Now) {
		return nil
	}
	return []finding{{
		since:   f.KeeperReplacedAt,
		summary: "The keeper has ended and was replaced. Tasks continue; the exit status of a task that ended in between can be unknown",
		remedy:  "Find who killed it: journalctl -k | grep -i -E 'oom|killed'. This message ends one hour after the replacement",
	}}
}

func findMemoryLow(f Facts) []finding {
	if !f.Memory.isAbove(memoryLimitPercent) {
		return nil
	}
	return one(fmt.Sprintf("The machine has %d MiB of %d MiB of memory available: the kernel may kill tasks", (f.Memory.Limit-f.Memory.Used)>>20, f.Memory.Limit>>20),
		"Find who has it: nomad-lite top, ps aux --sort=-rss | head. Stop that, or give tasks lower memory limits")
}

func findClockStepped(f Facts) []finding {
	if !isRecent(f.ClockSteppedAt, f.Now) {
		return nil
	}
	return []finding{{
		since:   f.ClockSteppedAt,
		summary: "The clock of the machine was set, or the machine was suspended: times before and after it do not compare",
		remedy:  "Check the time: date, timedatectl. Periodic jobs follow the new time. This message ends one hour after the step",
	}}
}

func findCertificateExpired(f Facts) (found []finding) {
	for _, c := range f.Certificates {
		if f.Now.Before(c.Leaf.NotBefore) || f.Now.After(c.Leaf.NotAfter) {
			found = append(found, finding{
				object:  c.File,
				summary: fmt.Sprintf("The certificate %s is valid from %s to %s, and not now: connections fail", c.File, c.Leaf.NotBefore.Format(time.RFC3339), c.Leaf.NotAfter.Format(time.RFC3339)),
				remedy:  remedyForCertificate,
			})
		}
	}
	return found
}

func findCertificateExpiring(f Facts) (found []finding) {
	for _, c := range f.Certificates {
		left := c.Leaf.NotAfter.Sub(f.Now)
		if left >= 0 && !f.Now.Before(c.Leaf.NotBefore) && left < min(expiryWarning, c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)/3) {
			found = append(found, finding{
				object:  c.File,
				summary: fmt.Sprintf("The certificate %s expires at %s, then connections fail", c.File, c.Leaf.NotAfter.Format(time.RFC3339)),
				remedy:  remedyForCertificate,
			})
		}
	}
	return found
}

const remedyForCertificate = "Replace the file by a new certificate, then reload the agent: systemctl reload nomad-lite, or kill -HUP and its pid"

// isRecent reports whether an event is a condition at the time now. A clock that was set back can make an event later than now.
func isRecent(event, now time.Time) bool {
	return !event.IsZero() && now.Sub(event).Abs() < eventDuration
}

// withoutENOSPC returns the text of an error that wraps ENOSPC, which the start of the text has already said.
func withoutENOSPC(err error) string {
	return upperFirst(strings.TrimSuffix(err.Error(), ": "+unix.ENOSPC.Error()))
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
