package allocrunner

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
)

func TestEnvironmentOfTaskAndAllocation(t *testing.T) {
	alloc := newAllocation(parseJob(t, job("service", endlessTaskText)))
	a := newAllocTasks(&Config{Alloc: alloc, InheritedHostEnv: map[string]string{"PATH": "/bin"}}, newAllocState(alloc), []taskrunner.Task{{Name: "web"}}, nil, nullLogger)
	const templateText = "${NOMAD_TASK_NAME} of ${NOMAD_ALLOC_NAME}"
	wantEqual(t, "task", a.envOfTaskOrAlloc("web").ReplaceReferences(templateText), "web of "+alloc.Name)
	wantEqual(t, "variable of the host", a.envOfTaskOrAlloc("web").Vars()["PATH"], "/bin")
	wantEqual(t, "allocation", a.allocEnv().Vars()["NOMAD_ALLOC_NAME"], alloc.Name)
	wantEqual(t, "no such task", a.envOfTaskOrAlloc("other").ReplaceReferences(templateText), a.allocEnv().ReplaceReferences(templateText))

	next := *alloc
	next.Name = "renamed"
	a.rebuildTaskEnv(&next, "web")
	wantEqual(t, "next version", a.envOfTaskOrAlloc("web").ReplaceReferences(templateText), "web of renamed")
}
