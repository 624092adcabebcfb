package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/templatetext"
)

// MissingVariableFaults returns a warning for each missing variable that one of the job's templates or secret blocks certainly
// reads, with the command that creates it. exists reports whether the job's namespace has a variable. Only paths that are
// constant in the job are known. If the template tests whether a variable exists, it is not missing.
func MissingVariableFaults(job *api.Job, exists func(path string) bool) []*JobFault {
	r := newFaultReport()
	create := "nomad-lite var put "
	if namespace := pointer.Value(job.Namespace); namespace != "" && namespace != api.DefaultNamespace {
		create += "-namespace " + namespace + " "
	}
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			at := r.atPath("group", pointer.Value(g.Name), "task", t.Name)
			for i, tmpl := range t.Templates {
				for _, v := range variablesReadByTemplate(pointer.Value(job.Namespace), tmpl) {
					if !exists(v.Arg) {
						at.atPath("template", strconv.Itoa(i), "data").addFault("Task %q: the template of %q reads the variable %q, which does not exist: the task waits until it is created, with %s%s",
							t.Name, pointer.Value(tmpl.DestPath), v.Arg, create, v.Arg+exampleItems(v.Fields))
					}
				}
			}
			for _, s := range t.Secrets {
				if (s.Provider == "" || s.Provider == ProviderNomad) && ValidateVariablePath(s.Path) == nil && !exists(s.Path) {
					at.atPath("secret", s.Name, "path").addFault("Task %q: the secret %q reads the variable %q, which does not exist: the task waits until it is created, with %s%s",
						t.Name, s.Name, s.Path, create, s.Path+exampleItems(nil))
				}
			}
		}
	}
	return *r.faults
}

// variablesReadByTemplate returns the variables in the job's namespace that each rendering of a template reads. The path is the
// argument of each call.
func variablesReadByTemplate(namespace string, t *api.Template) (variables []templatetext.Call) {
	text := pointer.Value(t.EmbeddedTmpl)
	if !strings.Contains(text, "nomadVar") {
		return nil
	}
	for _, call := range templatetext.CertainCalls(text, pointer.Value(t.LeftDelim), pointer.Value(t.RightDelim), "nomadVar") {
		path, place, hasPlace := strings.Cut(strings.Trim(call.Arg, "/"), "@")
		if hasPlace && place != namespace || ValidateVariablePath(path) != nil {
			continue // the template fails, or the variable is in a named region
		}
		call.Arg = path
		call.Fields = slices.DeleteFunc(call.Fields, func(name string) bool { return slices.Contains(methodsOfNomadVar, name) })
		variables = append(variables, call)
	}
	return variables
}

// methodsOfNomadVar are the methods on the template function nomadVar's result. Other fields are the variable's items.
var methodsOfNomadVar = []string{"Keys", "Metadata", "Parent", "Tuples", "Values"}

// exampleItems returns the arguments for var put that create a variable's items.
func exampleItems(keys []string) string {
	if len(keys) == 0 {
		return " KEY=..."
	}
	var b strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&b, " %s=...", key)
	}
	return b.String()
}
