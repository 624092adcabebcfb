package lifecycle

import (
	"fmt"
	"strings"
	"time"
)

// Condition is what a task waits for of another task.
type Condition uint8

// The conditions.
const (
	Started Condition = iota
	Healthy
	Success
	Exited
)

// conditions says what each of them is called, and when it holds. One that does
// not hold of a dead task never will, unless that task runs again.
var conditions = [...]struct {
	word, text string
	holds      func(Fact) bool
}{
	Started: {"started", "has started", Fact.hasStarted},
	Healthy: {"healthy", "is healthy", Fact.isHealthy},
	Success: {"success", "has ended well", Fact.hasSucceeded},
	Exited:  {"exited", "has ended", Fact.hasEnded},
}

func (c Condition) String() string { return conditions[c].word }

// Text is the condition as a part of a sentence: "db" is healthy.
func (c Condition) Text() string { return conditions[c].text }

// Fact is what the extensions must know of one task besides its stage.
type Fact struct {
	State     State
	Started   time.Time // the last time; zero if it never was
	Restarted time.Time // when it was last to start again; zero if it never was
	Healthy   bool      // its checks pass
	Killed    bool      // somebody has ended it since it was last started
}

func (f Fact) up() bool           { return f.State == Running }
func (f Fact) hasStarted() bool   { return f.State == Running || f.hasEnded() && !f.Started.IsZero() }
func (f Fact) isHealthy() bool    { return f.State == Running && f.Healthy }
func (f Fact) hasEnded() bool     { return f.State.Dead() }
func (f Fact) hasSucceeded() bool { return f.State == Succeeded && !f.Started.IsZero() && !f.Killed }

// After says that a task may only start while a condition holds of another.
type After struct {
	Task      string
	Condition Condition
}

func (a After) String() string { return a.Task + ":" + a.Condition.String() }

// ParseAfter reads a list like "migrate:success, db:healthy".
func ParseAfter(text string) ([]After, error) {
	var list []After
	for _, item := range words(text) {
		colon := strings.LastIndexByte(item, ':')
		if colon < 1 {
			return nil, fmt.Errorf("%q is no condition of a task: write TASK:CONDITION, like db:healthy", item)
		}
		c, err := parseWord(strings.TrimSpace(item[colon+1:]), "condition", conditionWords[:])
		if err != nil {
			return nil, err
		}
		list = append(list, After{strings.TrimSpace(item[:colon]), Condition(c)})
	}
	return list, nil
}

// Rerun says when a task that has done its work does it again.
type Rerun struct {
	Restart bool // when a main task starts again
	Reboot  bool // when the machine has
}

// ParseRerun reads a list like "restart, reboot".
func ParseRerun(text string) (Rerun, error) {
	var r Rerun
	for _, word := range words(text) {
		i, err := parseWord(word, "occasion", []string{"restart", "reboot"})
		if err != nil {
			return Rerun{}, err
		}
		r.Restart, r.Reboot = r.Restart || i == 0, r.Reboot || i == 1
	}
	return r, nil
}

// RestartGroup says which siblings start again with a main task or a sidecar.
type RestartGroup uint8

// The restart groups.
const (
	OneForOne  RestartGroup = iota // none
	OneForAll                      // all
	RestForOne                     // those that come after it, by their stage or because they wait for it
)

var restartGroups = []string{"one_for_one", "one_for_all", "rest_for_one"}

func (g RestartGroup) String() string { return restartGroups[g] }

// ParseRestartGroup reads one of the words.
func ParseRestartGroup(text string) (RestartGroup, error) {
	i, err := parseWord(strings.TrimSpace(text), "restart group", restartGroups)
	return RestartGroup(i), err
}

var conditionWords = func() (words [len(conditions)]string) {
	for i, c := range conditions {
		words[i] = c.word
	}
	return words
}()

// words splits a list at its commas. An empty list has one empty word, which no
// parser takes.
func words(text string) []string {
	list := strings.Split(text, ",")
	for i, w := range list {
		list[i] = strings.TrimSpace(w)
	}
	return list
}

func parseWord(word, kind string, allowed []string) (int, error) {
	for i, w := range allowed {
		if w == word {
			return i, nil
		}
	}
	last := len(allowed) - 1
	return 0, fmt.Errorf("there is no %s %q: write %s or %s", kind, word, strings.Join(allowed[:last], ", "), allowed[last])
}
