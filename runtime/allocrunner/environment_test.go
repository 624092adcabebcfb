package allocrunner

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
)

func TestEnvironmentOfTaskAndAllocation(t *testing.T) {
	alloc := place(parseJob(t, job("service", sleeper)))
	e := &environments{alloc: func() *api.Allocation { return alloc }, tasks: make(map[string]*taskenv.Builder)}
	e.addTask("web", map[string]string{"PATH": "/bin"})
	const text = "${NOMAD_TASK_NAME} of ${NOMAD_ALLOC_NAME}"
	want(t, "task", e.of("web").Replace(text), "web of "+alloc.Name)
	want(t, "variable of the host", e.of("web").Vars()["PATH"], "/bin")
	want(t, "allocation", e.ofAlloc().Vars()["NOMAD_ALLOC_NAME"], alloc.Name)
	want(t, "no such task", e.of("other").Replace(text), e.ofAlloc().Replace(text))

	next := *alloc
	next.Name = "renamed"
	e.setAlloc(&next, "web")
	want(t, "next version", e.of("web").Replace(text), "web of renamed")
}
