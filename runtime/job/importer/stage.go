package importer

import (
	"fmt"
	"slices"
	"strings"
)

// Condition is a word of the key lite_after of a task.
type Condition string

// The conditions that the formats have.
const (
	Started   Condition = "started"
	Healthy   Condition = "healthy"
	Succeeded Condition = "success"
)

// Dependency is what a program waits for.
type Dependency struct {
	Name      string
	Condition Condition
}

// Program is one service of a compose file, or one command of a unit.
type Program struct {
	Name     string
	RunsOnce bool // it ends by itself, and then its work is done
	After    []Dependency
}

// Stage is the lifecycle of a task.
type Stage int

// The stages of a group.
const (
	Main            Stage = iota
	Prestart              // ends before the main tasks start
	PrestartSidecar       // starts before the main tasks, and runs until the group is stopped
	Poststart             // starts after the main tasks, and ends
)

// Stages returns the stage of each program of one group, and whether all of them run once, so that the job is a batch job with
// main tasks. Otherwise a program that runs once is a prestart task if one that does not waits for
// it, with all programs for which it waits itself, else a poststart task. So each gate can open: a
// prestart task waits for no main task. If there is a prestart task, only programs that wait for one are main tasks: the
// others start at once, as in the formats, because the prestart task can need them without naming them. Stages returns an
// error if programs wait for each other, or for a program that does not exist.
func Stages(programs []Program) (stages map[string]Stage, allRunOnce bool, err error) {
	byName := map[string]*Program{}
	allRunOnce = true
	for i, p := range programs {
		byName[p.Name] = &programs[i]
		allRunOnce = allRunOnce && p.RunsOnce
	}
	if err := checkOrder(programs, byName); err != nil {
		return nil, false, err
	}
	stages = map[string]Stage{}
	if allRunOnce {
		return stages, true, nil
	}
	var precedeMain func(name string)
	precedeMain = func(name string) {
		if stages[name] != Main {
			return
		}
		stages[name] = PrestartSidecar
		if byName[name].RunsOnce {
			stages[name] = Prestart
		}
		for _, dependency := range byName[name].After {
			precedeMain(dependency.Name)
		}
	}
	for _, p := range programs {
		for _, dependency := range p.After {
			if !p.RunsOnce && byName[dependency.Name].RunsOnce {
				precedeMain(dependency.Name)
			}
		}
	}
	var waitsForPrestart func(name string) bool
	waitsForPrestart = func(name string) bool {
		return slices.ContainsFunc(byName[name].After, func(d Dependency) bool { return stages[d.Name] == Prestart || waitsForPrestart(d.Name) })
	}
	hasPrestart := slices.ContainsFunc(programs, func(p Program) bool { return stages[p.Name] == Prestart })
	for _, p := range programs {
		switch {
		case stages[p.Name] != Main:
		case p.RunsOnce:
			stages[p.Name] = Poststart
		case hasPrestart && !waitsForPrestart(p.Name):
			stages[p.Name] = PrestartSidecar
		}
	}
	return stages, false, nil
}

// checkOrder returns an error for an unknown dependency and for a cycle.
func checkOrder(programs []Program, byName map[string]*Program) error {
	checked := map[string]bool{}
	var visit func(path []string, name string) error
	visit = func(path []string, name string) error {
		if i := slices.Index(path, name); i >= 0 {
			return fmt.Errorf("%s wait for each other", strings.Join(path[i:], ", "))
		}
		if checked[name] {
			return nil
		}
		p := byName[name]
		if p == nil {
			return fmt.Errorf("%s depends on %s, which does not exist", path[len(path)-1], name)
		}
		for _, dependency := range p.After {
			if err := visit(append(path, name), dependency.Name); err != nil {
				return err
			}
		}
		checked[name] = true
		return nil
	}
	for _, p := range programs {
		if err := visit(nil, p.Name); err != nil {
			return err
		}
	}
	return nil
}

// WriteStage writes the lifecycle block of a task, and its meta block with the programs that it waits
// for and with rerun, the value of lite_rerun.
func WriteStage(task *Body, stage Stage, after []Dependency, rerun string) {
	if stage != Main {
		lifecycle := task.Block("lifecycle")
		if stage == Poststart {
			lifecycle.Set("hook", "poststart")
		} else {
			lifecycle.Set("hook", "prestart")
		}
		lifecycle.Set("sidecar", stage == PrestartSidecar)
	}
	if len(after) == 0 && rerun == "" {
		return
	}
	var conditions []string
	for _, dependency := range after {
		conditions = append(conditions, dependency.Name+":"+string(dependency.Condition))
	}
	meta := task.Block("meta")
	meta.SetNonZero("lite_after", strings.Join(conditions, ", "))
	meta.SetNonZero("lite_rerun", rerun)
}
