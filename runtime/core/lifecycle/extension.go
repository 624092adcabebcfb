package lifecycle

import (
	"fmt"
	"strings"
	"time"
)

// DependencyCondition is a condition on another task.
type DependencyCondition uint8

// The conditions on a task, in the same order as the table conditions.
const (
	ConditionStarted DependencyCondition = iota
	ConditionHealthy
	ConditionSuccess
	ConditionExited
)

// conditions holds each condition's name, text and function. A condition that does not hold for a
// dead task never will, unless the task runs again.
var conditions = [...]struct {
	word, text string
	holds      func(TaskFacts) bool
}{
	ConditionStarted: {"started", "has started", TaskFacts.hasStarted},
	ConditionHealthy: {"healthy", "is healthy", TaskFacts.isHealthy},
	ConditionSuccess: {"success", "has ended well", TaskFacts.hasSucceededUnkilled},
	ConditionExited:  {"exited", "has ended", TaskFacts.hasEnded},
}

func (c DependencyCondition) String() string { return conditions[c].word }

// Phrase returns the condition as part of a sentence: "db" is healthy.
func (c DependencyCondition) Phrase() string { return conditions[c].text }

// TaskFacts has one task's properties, besides its stage, for an ExtendedGroup's rules.
type TaskFacts struct {
	State            State
	StartedAt        time.Time // time of the last start; zero if the task never started
	RestartDecidedAt time.Time // time of the last restart decision; zero if there was none
	Healthy          bool      // the task's checks pass
	KilledSinceStart bool      // the task was killed since its last start
}

func (f TaskFacts) isRunning() bool { return f.State == Running }
func (f TaskFacts) hasStarted() bool {
	return f.State == Running || f.hasEnded() && !f.StartedAt.IsZero()
}
func (f TaskFacts) isHealthy() bool { return f.State == Running && f.Healthy }
func (f TaskFacts) hasEnded() bool  { return f.State.Dead() }
func (f TaskFacts) hasSucceededUnkilled() bool {
	return f.State == Succeeded && !f.StartedAt.IsZero() && !f.KilledSinceStart
}

// Dependency lets a task start only while a condition holds for another task.
type Dependency struct {
	Task      string
	Condition DependencyCondition
}

func (d Dependency) String() string { return d.Task + ":" + d.Condition.String() }

// ParseDependencies parses a list like "migrate:success, db:healthy".
func ParseDependencies(text string) ([]Dependency, error) {
	var list []Dependency
	for _, item := range splitCommaList(text) {
		colon := strings.LastIndexByte(item, ':')
		if colon < 1 {
			return nil, fmt.Errorf("%q is no condition of a task: write TASK:CONDITION, like db:healthy", item)
		}
		c, err := keywordIndex(strings.TrimSpace(item[colon+1:]), "condition", conditionWords[:])
		if err != nil {
			return nil, err
		}
		list = append(list, Dependency{strings.TrimSpace(item[:colon]), DependencyCondition(c)})
	}
	return list, nil
}

// RerunPolicy defines when a completed task runs again.
type RerunPolicy struct {
	OnMainTaskRestart bool // run again when a main task restarts
	OnReboot          bool // run again after a reboot
}

// ParseRerunPolicy parses a list like "restart, reboot".
func ParseRerunPolicy(text string) (RerunPolicy, error) {
	var r RerunPolicy
	for _, word := range splitCommaList(text) {
		i, err := keywordIndex(word, "occasion", []string{"restart", "reboot"})
		if err != nil {
			return RerunPolicy{}, err
		}
		r.OnMainTaskRestart, r.OnReboot = r.OnMainTaskRestart || i == 0, r.OnReboot || i == 1
	}
	return r, nil
}

// RestartGroup defines which siblings restart together with a main task or a sidecar.
type RestartGroup uint8

// The restart groups: which siblings restart together with a task.
const (
	OneForOne  RestartGroup = iota // no sibling
	OneForAll                      // all siblings
	RestForOne                     // RestForOne restarts the siblings after the task, by stage or by lite_after
)

var restartGroups = []string{"one_for_one", "one_for_all", "rest_for_one"}

func (g RestartGroup) String() string { return restartGroups[g] }

// ParseRestartGroup parses the name of a restart group.
func ParseRestartGroup(text string) (RestartGroup, error) {
	i, err := keywordIndex(strings.TrimSpace(text), "restart group", restartGroups)
	return RestartGroup(i), err
}

var conditionWords = func() (words [len(conditions)]string) {
	for i, c := range conditions {
		words[i] = c.word
	}
	return words
}()

// splitCommaList splits a list at its commas. An empty list yields one empty word, which every
// parser rejects.
func splitCommaList(text string) []string {
	list := strings.Split(text, ",")
	for i, w := range list {
		list[i] = strings.TrimSpace(w)
	}
	return list
}

func keywordIndex(word, kind string, allowed []string) (int, error) {
	for i, w := range allowed {
		if w == word {
			return i, nil
		}
	}
	last := len(allowed) - 1
	return 0, fmt.Errorf("there is no %s %q: write %s or %s", kind, word, strings.Join(allowed[:last], ", "), allowed[last])
}
