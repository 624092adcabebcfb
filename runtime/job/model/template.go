package model

import (
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// maxPermBits is a file mode's width with its setuid, setgid and sticky bits.
const maxPermBits = 12

func checkTemplates(r *faultReport, templates []*api.Template) {
	destinations := map[string]int{}
	for i, t := range templates {
		at := r.nestedReport("template", positionText(i))
		checkTemplate(at, t)
		r.addNested(at, "Template %d validation failed:", i+1)
		dest := pointer.Value(t.DestPath)
		if other, taken := destinations[dest]; taken {
			r.atPath("template", positionText(i)).addFault("Template %d has same destination as %d", i+1, other)
		} else {
			destinations[dest] = i + 1
		}
	}
}

func checkTemplate(r *faultReport, t *api.Template) {
	if pointer.Value(t.SourcePath) == "" && pointer.Value(t.EmbeddedTmpl) == "" {
		r.addFault("Must specify a source path or have an embedded template")
	}
	if dest := pointer.Value(t.DestPath); dest == "" {
		r.addFault("Must specify a destination for the template")
	} else if isOutsideAllocDir("task", dest) {
		r.addFault("destination escapes allocation directory")
	}
	switch pointer.Value(t.ChangeMode) {
	case "noop", "restart":
	case "signal":
		if pointer.Value(t.Envvars) {
			r.addFault("cannot use signals with env var templates")
		}
	case "script":
		checkChangeScript(r.atPath("change_script"), t.ChangeScript)
	default:
		r.addFault("Invalid change mode. Must be one of the following: noop, signal, script, restart")
	}
	if pointer.Value(t.Splay) < 0 {
		r.addFault("Must specify positive splay value")
	}
	if perms := pointer.Value(t.Perms); perms != "" {
		if _, err := strconv.ParseUint(perms, 8, maxPermBits); err != nil {
			r.addFault("Failed to parse %q as octal: %v", perms, err)
		}
	}
	if w := t.Wait; w != nil && w.Min != nil && w.Max != nil && *w.Min > *w.Max {
		r.atPath("wait").addFault("wait min %v is greater than max %v", *w.Min, *w.Max)
	}
}

func checkChangeScript(r *faultReport, s *api.ChangeScript) {
	switch {
	case s == nil:
		r.addFault("must specify change script configuration value when change mode is script")
	case pointer.Value(s.Command) == "":
		r.addFault("must specify script path value when change mode is script")
	}
}
